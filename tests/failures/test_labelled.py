from __future__ import annotations

import json

import pytest
from labelled.score import (
    GIVEN,
    MOST_HOPEFUL,
    MOST_HOPELESS,
    MOST_TRAPPED,
    plain_or_traps,
    rows_of,
    score,
)

from mulligan.core.attempt import RETRYABLE, Cls

SETS = ("tune", "aside")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.seed("004-74")
def test_few_hopeless_errors_are_retried_and_few_hopeful_ones_given_up(name):
    found = plain_or_traps(name, traps=False)
    assert found.false_retriable < MOST_HOPELESS, found
    assert found.false_permanent < MOST_HOPEFUL, found


def test_with_its_traps_the_set_that_rules_are_made_from_keeps_the_targets_too():
    found = score("tune", rows_of("tune"))
    assert found.false_retriable < MOST_HOPELESS, found
    assert found.false_permanent < MOST_HOPEFUL, found


@pytest.mark.parametrize("name", SETS)
def test_most_traps_are_seen_through(name):
    found = plain_or_traps(name, traps=True)
    assert found.false_retriable < MOST_TRAPPED, found
    assert found.false_permanent < MOST_TRAPPED, found


def test_every_row_has_a_source_a_reason_and_one_meaning():
    rows = [row for name in SETS for row in rows_of(name)]
    assert len(rows) >= 300
    assert len({row["id"] for row in rows}) == len(rows)
    assert len(
        {json.dumps([row["text"], *(row.get(name) for name in GIVEN)]) for row in rows}
    ) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://"), row["id"]
        assert row["why"]
        assert row["retryable"] == (Cls(row["cls"]) in RETRYABLE), row["id"]
        assert set(row) <= {"id", "text", "cls", "retryable", "trap", "source", "why", *GIVEN}, row[
            "id"
        ]

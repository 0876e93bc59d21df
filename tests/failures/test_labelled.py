from __future__ import annotations

import json

import pytest
from labelled.score import (
    FACT_FIELDS,
    MAX_FALSE_PERMANENT,
    MAX_FALSE_RETRYABLE,
    MAX_TRAP_ERRORS,
    read_rows,
    score_rows,
    score_set,
)

from mulligan.core.attempt import RETRYABLE, Cls

SETS = ("tune", "holdout")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.seed("004-74")
def test_few_permanent_errors_are_called_retryable_and_few_retryable_ones_permanent(name):
    found = score_set(name, traps=False)
    assert found.false_retryable < MAX_FALSE_RETRYABLE, found
    assert found.false_permanent < MAX_FALSE_PERMANENT, found


def test_the_tuning_set_meets_the_targets_with_its_traps_included():
    found = score_rows("tune", read_rows("tune"))
    assert found.false_retryable < MAX_FALSE_RETRYABLE, found
    assert found.false_permanent < MAX_FALSE_PERMANENT, found


@pytest.mark.parametrize("name", SETS)
def test_most_traps_are_classified_correctly(name):
    found = score_set(name, traps=True)
    assert found.false_retryable < MAX_TRAP_ERRORS, found
    assert found.false_permanent < MAX_TRAP_ERRORS, found


def test_every_labelled_row_has_a_source_and_a_reason_and_is_consistent():
    rows = [row for name in SETS for row in read_rows(name)]
    assert len(rows) >= 300
    assert len({row["id"] for row in rows}) == len(rows)
    assert len(
        {json.dumps([row["text"], *(row.get(name) for name in FACT_FIELDS)]) for row in rows}
    ) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://"), row["id"]
        assert row["why"]
        assert row["retryable"] == (Cls(row["cls"]) in RETRYABLE), row["id"]
        assert set(row) <= {
            "id",
            "text",
            "cls",
            "retryable",
            "trap",
            "source",
            "why",
            *FACT_FIELDS,
        }, row["id"]

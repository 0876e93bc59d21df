from __future__ import annotations

import json

import pytest
from labelled.score import GIVEN, MOST_HOPEFUL, MOST_HOPELESS, rows_of, score

from mulligan.job import RETRYABLE, Cls

SETS = ("tune", "aside")


@pytest.mark.parametrize("name", SETS)
def test_few_hopeless_errors_are_retried_and_few_hopeful_ones_given_up(name):
    found = score(name, rows_of(name))
    assert found.false_retriable < MOST_HOPELESS, found
    assert found.false_permanent < MOST_HOPEFUL, found


def test_every_row_has_a_source_a_reason_and_one_meaning():
    rows = [row for name in SETS for row in rows_of(name)]
    assert len(rows) >= 300
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({json.dumps([row["text"], *(row.get(name) for name in GIVEN)]) for row in rows}) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://"), row["id"]
        assert row["why"]
        assert row["retryable"] == (Cls(row["cls"]) in RETRYABLE), row["id"]
        assert set(row) <= {"id", "text", "cls", "retryable", "trap", "source", "why", *GIVEN}, row["id"]

"""Tests of the outcome of a batch: every row of the table in docs/howto/batches.md."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.batches.rules import (
    BatchCounts,
    BatchState,
    check_tolerance,
    compute_outcome,
    count_members,
    displayed_state,
    has_recovered,
)
from mulligan.core.errors import Refused


@pytest.mark.parametrize(
    ("counts", "tolerance", "outcome"),
    [
        (BatchCounts(), "0", "ready"),
        (BatchCounts(succeeded=50), "0", "ready"),
        (BatchCounts(succeeded=49, dead=1), "0", "partial"),
        (BatchCounts(dead=50), "0", "failed"),
        (BatchCounts(succeeded=49, queued=1), "0", "processing"),
        (BatchCounts(succeeded=49, running=1), "0", "processing"),
        (BatchCounts(succeeded=49, parked=1), "0", "processing"),
        (BatchCounts(dead=49, parked=1), "0", "processing"),
        (BatchCounts(cancelled=3), "0", "failed"),
        (BatchCounts(succeeded=1, cancelled=3), "0", "ready"),
        (BatchCounts(dead=1, cancelled=3), "0", "failed"),
        (BatchCounts(succeeded=9, dead=1, missed=1), "5", "failed"),
        (BatchCounts(succeeded=9, cancelled=1, missed=1), "5", "failed"),
        (BatchCounts(succeeded=47, dead=3), "3", "ready"),
        (BatchCounts(succeeded=46, dead=4), "3", "partial"),
        (BatchCounts(succeeded=27, dead=3), "10%", "ready"),
        (BatchCounts(succeeded=26, dead=4), "10%", "partial"),
        (BatchCounts(succeeded=9, dead=1, cancelled=90), "10%", "ready"),
        (BatchCounts(succeeded=8, dead=2, cancelled=90), "10%", "partial"),
        (BatchCounts(dead=5), "5", "failed"),
        (BatchCounts(dead=5), "100%", "failed"),
    ],
)
def test_the_outcome_follows_from_the_members(counts, tolerance, outcome):
    assert compute_outcome(counts, tolerance) == outcome


@given(st.builds(BatchCounts, *[st.integers(0, 60)] * 6))
def test_a_batch_with_a_dead_member_is_never_ready_unless_that_was_tolerated(counts):
    outcome = compute_outcome(counts, "0")
    assert (outcome is BatchState.PROCESSING) == (counts.unfinished > 0)
    if counts.dead:
        assert outcome is not BatchState.READY
    assert counts.total == counts.unfinished + counts.ended
    assert 0 <= counts.share <= 1


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (0, "0"),
        (3, "3"),
        (0.1, "10%"),
        ("10%", "10%"),
        (" 12.5% ", "12.5%"),
        (0.0, "0%"),
        (1.0, "100%"),
    ],
)
def test_a_tolerance_is_a_count_or_a_share(value, stored):
    assert check_tolerance(value) == stored


@pytest.mark.parametrize(
    "value", [-1, 1.5, -0.1, math.nan, math.inf, "ten", "-1%", "101%", "3", None, True, [1], "%"]
)
def test_an_invalid_tolerance_is_refused(value):
    with pytest.raises(Refused, match="tolerance"):
        check_tolerance(value)


def test_members_are_counted_by_state_and_missed_must_haves_separately():
    counts = count_members(
        [("succeeded", True, 2), ("succeeded", False, 3), ("dead", True, 1), ("cancelled", True, 1)]
    )
    assert counts == BatchCounts(succeeded=5, dead=1, cancelled=1, missed=2)
    assert (counts.total, counts.ended, counts.share) == (7, 7, 1.0)
    assert BatchCounts().share == 1.0


def test_a_batch_has_recovered_when_partial_or_failed_becomes_ready():
    assert has_recovered("partial", "ready")
    assert has_recovered("failed", "ready")
    assert not has_recovered("ready", "ready")
    assert not has_recovered("failed", "partial")
    assert not has_recovered(None, "ready")


def test_the_displayed_state():
    assert displayed_state(None, expired=False) == "processing"
    assert displayed_state("partial", expired=False) == "partial"
    assert displayed_state("ready", expired=True) == "expired"

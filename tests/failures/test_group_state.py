"""The state of a failure group, and the counts of its deaths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.core.job import FailureGroupRow
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.failures.groups import (
    CHART_HOURS,
    DAYS,
    HOURS,
    NEW_FOR,
    GroupRetries,
    GroupState,
    GroupTimes,
    bucket_counts,
    group_state,
    recovery_rate,
    summarise_deaths,
)

NOW = 1_000_000 * SECOND


def marked(state, **changes):
    return FailureGroupRow("v2-1", "*", state, None, "", "kim", NOW - 10, None)._replace(**changes)


@pytest.mark.parametrize(
    ("mark", "first", "last", "state"),
    [
        (None, NOW - 1, NOW, GroupState.NEW),
        (None, NOW - NEW_FOR, NOW, GroupState.OPEN),
        (None, None, None, GroupState.OPEN),
        (marked("open"), NOW - 1, NOW, GroupState.OPEN),
        (marked("muted"), NOW - 1, NOW, GroupState.MUTED),
        (marked("muted", until=NOW + 1), NOW - 1, NOW, GroupState.MUTED),
        (marked("muted", until=NOW), NOW - 1, NOW, GroupState.OPEN),
        (marked("resolved", resolved_at=NOW - 5), NOW - 9, NOW - 5, GroupState.RESOLVED),
        (marked("resolved", resolved_at=NOW - 5), NOW - 9, NOW - 4, GroupState.REGRESSED),
        (marked("resolved", resolved_at=NOW - 5), None, None, GroupState.RESOLVED),
    ],
)
def test_the_state_depends_on_the_mark_and_on_the_deaths(mark, first, last, state):
    assert group_state(mark, GroupTimes(first, last, first), NOW) is state


@pytest.mark.parametrize(
    ("mark", "oldest_dead", "retries", "state"),
    [
        (None, None, GroupRetries(341, 341, 0, NOW - 5), GroupState.RECOVERED),
        (marked("open"), None, GroupRetries(341, 341, 0, NOW - 5), GroupState.RECOVERED),
        (None, None, GroupRetries(1, 1, 340, NOW - 5), GroupState.OPEN),
        (None, None, GroupRetries(0, 0, 0, None), GroupState.OPEN),
        (marked("resolved", resolved_at=NOW), None, GroupRetries(9, 9, 0, 1), GroupState.RESOLVED),
        (marked("resolved", resolved_at=1), None, GroupRetries(9, 9, 0, 1), GroupState.RECOVERED),
        # All recovered, then another died.
        (None, NOW - 1, GroupRetries(341, 341, 0, NOW - 5), GroupState.REGRESSED),
        # One was retried on trial; the others are still dead.
        (None, NOW - 9, GroupRetries(1, 1, 0, NOW - 5), GroupState.OPEN),
        # One of those that were retried died again.
        (None, NOW - 1, GroupRetries(10, 9, 0, NOW - 5), GroupState.OPEN),
        (None, NOW - 9, GroupRetries(1, 0, 0, None), GroupState.NEW),
    ],
)
def test_the_state_depends_on_what_became_of_retried_jobs(mark, oldest_dead, retries, state):
    assert group_state(mark, GroupTimes(NOW - 99, NOW - 1, oldest_dead), NOW, retries) is state


deaths = st.builds(
    DeathCount,
    kind=st.sampled_from("ab"),
    code=st.sampled_from("XY"),
    cls=st.just("unknown"),
    jobs=st.integers(1, 99),
)
HOURS_AGO = st.lists(st.tuples(st.integers(0, CHART_HOURS), st.integers(1, 99)))


@given(st.lists(deaths), HOURS_AGO)
def test_all_numbers_of_a_group_describe_the_same_jobs(rows, hours):
    summary = summarise_deaths(Deaths(rows, hours, 3, 9))
    assert (
        summary.count
        == sum(summary.kinds.values())
        == sum(summary.codes.values())
        == sum(summary.classes.values())
    )
    assert (len(summary.hourly), len(summary.daily)) == (HOURS, DAYS)
    assert sum(summary.hourly) == summary.daily[-1]
    assert sum(summary.daily) == sum(jobs for ago, jobs in hours if ago < CHART_HOURS)
    assert list(summary.kinds.values()) == sorted(summary.kinds.values(), reverse=True)


def test_the_last_bucket_is_the_current_period():
    assert bucket_counts([(0, 5), (2, 1), (3, 9)], 3) == (1, 0, 5)


def test_the_recovery_rate_without_retries_is_unknown():
    assert recovery_rate(0, 0) is None
    assert recovery_rate(1, 4) == 0.25

"""The state of a failure group, and when its jobs died."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.job import SECOND, MarkRow
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.failures.groups import (
    BEYOND,
    DAYS,
    FRESH,
    HOURS,
    GroupState,
    buckets,
    folded,
    share,
    standing,
)

NOW = 1_000_000 * SECOND


def said(state, **changes):
    return MarkRow("v2-1", "*", state, None, "", "kim", NOW - 10, None)._replace(**changes)


@pytest.mark.parametrize(
    ("mark", "first", "last", "state"),
    [
        (None, NOW - 1, NOW, GroupState.NEW),
        (None, NOW - FRESH, NOW, GroupState.OPEN),
        (None, None, None, GroupState.OPEN),
        (said("open"), NOW - 1, NOW, GroupState.OPEN),
        (said("muted"), NOW - 1, NOW, GroupState.MUTED),
        (said("muted", until=NOW + 1), NOW - 1, NOW, GroupState.MUTED),
        (said("muted", until=NOW), NOW - 1, NOW, GroupState.OPEN),
        (said("resolved", resolved_at=NOW - 5), NOW - 9, NOW - 5, GroupState.RESOLVED),
        (said("resolved", resolved_at=NOW - 5), NOW - 9, NOW - 4, GroupState.REGRESSED),
        (said("resolved", resolved_at=NOW - 5), None, None, GroupState.RESOLVED),
    ],
)
def test_the_state_follows_from_what_was_said_and_when_jobs_died(mark, first, last, state):
    assert standing(mark, first, last, NOW) is state


deaths = st.builds(
    DeathCount,
    kind=st.sampled_from("ab"),
    code=st.sampled_from("XY"),
    cls=st.just("unknown"),
    jobs=st.integers(1, 99),
)
HOURS_AGO = st.lists(st.tuples(st.integers(0, BEYOND), st.integers(1, 99)))


@given(st.lists(deaths), HOURS_AGO)
def test_all_numbers_of_a_group_describe_the_same_jobs(rows, hours):
    found = folded(Deaths(rows, hours, 3, 9))
    assert (
        found.count
        == sum(found.kinds.values())
        == sum(found.codes.values())
        == sum(found.classes.values())
    )
    assert len(found.hourly), len(found.daily) == (HOURS, DAYS)
    assert sum(found.hourly) == found.daily[-1]
    assert sum(found.daily) == sum(jobs for ago, jobs in hours if ago < BEYOND)
    assert list(found.kinds.values()) == sorted(found.kinds.values(), reverse=True)


def test_the_last_bucket_is_now():
    assert buckets([(0, 5), (2, 1), (3, 9)], 3) == (1, 0, 5)


def test_a_share_of_nothing_is_unknown():
    assert share(0, 0) is None
    assert share(1, 4) == 0.25

"""Limits: rates, token buckets and turns of owners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.core.format import format_rate
from mulligan.core.job import Candidate, Lane, Limit, TokenBucket
from mulligan.guards.lanes import interleave_owners
from mulligan.guards.limits import (
    NO_LIMIT,
    available_starts,
    merge_limits,
    next_start_at,
    owner_share,
    parse_rate,
    refill_bucket,
)

QUEUE = ("queue", "render")


# -- merging -------------------------------------------------------------------------------------
def test_operator_limit_wins_field_by_field():
    declared = {QUEUE: Limit(concurrency=5, rate=2.0)}
    assert merge_limits(declared, {}) == declared
    assert merge_limits(declared, {QUEUE: Limit(concurrency=1)}) == {QUEUE: Limit(1, 2.0)}
    assert merge_limits({}, {QUEUE: Limit(rate=0.5)}) == {QUEUE: Limit(None, 0.5)}


def test_operator_can_lift_a_declared_limit():
    declared = {QUEUE: Limit(concurrency=5, rate=2.0)}
    assert merge_limits(declared, {QUEUE: Limit(NO_LIMIT, float(NO_LIMIT))}) == {}
    assert merge_limits(declared, {QUEUE: Limit(NO_LIMIT)}) == {QUEUE: Limit(None, 2.0)}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5", 5),
        ("5/s", 5),
        ("120/m", 2),
        ("120/min", 2),
        (" 90/H ", 0.025),
        ("8640/d", 0.1),
        ("0.5/s", 0.5),
    ],
)
def test_a_rate_may_be_written_per_second_minute_hour_or_day(text, rate):
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "5/y", "100/month", "5/ms", "1/season", "5 / s", "1e9/s", "5/s/s", "nan"],
)
def test_invalid_rate_is_none(text):
    assert parse_rate(text) is None


@pytest.mark.parametrize(
    ("rate", "text"),
    [(5, "5 a second"), (0.5, "30 a minute"), (1 / 3600, "1 an hour"), (1e-5, "0.9 a day")],
)
def test_rate_is_formatted_in_a_readable_unit(rate, text):
    assert format_rate(rate) == text


# -- buckets -------------------------------------------------------------------------------------
def test_concurrency_limit_leaves_free_slots():
    assert [
        available_starts(Limit(concurrency=3), running, TokenBucket(0, 0))
        for running in (0, 2, 3, 9)
    ] == [
        3,
        1,
        0,
        0,
    ]


@given(st.floats(0.001, 1000), st.lists(st.integers(0, 5 * SECOND), min_size=1, max_size=100))
def test_rate_never_allows_more_than_elapsed_time_plus_one_second(rate, steps):
    """Take all available starts at arbitrary times."""
    meter, now, started = refill_bucket(TokenBucket(0.0, 0), rate, 10**15), 10**15, 0
    for step in steps:
        now += step
        meter = refill_bucket(meter, rate, now)
        taken = available_starts(Limit(rate=rate), 0, meter)
        meter = meter._replace(tokens=meter.tokens - taken)
        started += taken
    assert started <= max(1.0, rate) + sum(steps) / SECOND * rate + 1e-6


def test_clock_set_back_changes_no_tokens():
    assert refill_bucket(TokenBucket(0.5, 100 * SECOND), 1.0, 40 * SECOND) == TokenBucket(
        0.5, 40 * SECOND
    )


def test_slightly_older_time_is_not_counted_twice():
    assert refill_bucket(TokenBucket(0.5, 100 * SECOND), 1.0, 99 * SECOND) == TokenBucket(
        0.5, 100 * SECOND
    )


@given(st.floats(0.001, 1000), st.floats(0, 0.999))
def test_one_job_may_start_at_the_next_start_time(rate, tokens):
    meter, limit = TokenBucket(tokens, 10**15), Limit(rate=rate)
    at = next_start_at(limit, meter)
    assert at is not None
    assert available_starts(limit, 0, refill_bucket(meter, rate, at)) >= 1
    assert (
        available_starts(limit, 0, refill_bucket(meter, rate, at - 2 - round(0.01 / rate * SECOND)))
        == 0
    )


def test_no_next_start_time_if_a_job_may_start_now():
    assert next_start_at(Limit(rate=1.0), TokenBucket(1.0, 0)) is None
    assert next_start_at(Limit(concurrency=1), TokenBucket(0.0, 0)) is None


# -- fairness ---------------------------------------------------------------------------------------
def waiting(owner, *times, queue="fair", priority=0):
    lane = Lane(queue, "render", "", False, owner_share(owner)).key
    return [Candidate(priority, at, f"{owner}{at:03}", lane) for at in times]


def names(found):
    return "".join(candidate[2][0] for candidate in found)


def rotated(found, owners):
    """Order candidates by owner name: the order of the shares decides which owner is first."""
    order = sorted(owners, key=owner_share)
    return names(found).translate(str.maketrans("".join(order), "".join(sorted(owners))))


def test_owners_take_turns():
    found = sorted(waiting("a", *range(10)) + waiting("b", 50, 51) + waiting("c", 60))
    assert rotated(interleave_owners(found, {}), "abc").startswith("abc")
    turns = names(interleave_owners(found, {}))
    assert sorted(turns[:5]) == sorted("abcab")
    assert sorted(turns) == sorted("a" * 10 + "bbc")


def test_owner_served_last_comes_last():
    found = sorted(waiting("a", 0, 1) + waiting("b", 2, 3))
    for owner, other in ("ab", "ba"):
        assert names(interleave_owners(found, {"fair": owner_share(owner)})) == (other + owner) * 2


def test_jobs_of_one_owner_keep_their_order():
    found = sorted(waiting("a", 5, 1, 3) + waiting("b", 4, 2))
    turns = interleave_owners(found, {})
    assert [one[1] for one in turns if one[2][0] == "a"] == [1, 3, 5]


def test_other_queues_and_priorities_keep_their_positions():
    unfair = [Candidate(0, 1, "x", Lane("unfair", "render", "", retry=False).key)]
    found = sorted(waiting("a", 0, 2) + waiting("b", 3) + unfair + waiting("c", 9, priority=-1))
    turns = interleave_owners(found, {})
    assert names(turns)[0] == "c"
    assert names(turns)[2] == "x"


@given(st.text(max_size=5))
def test_owner_share_contains_no_lane_separator(owner):
    lane = Lane("q", "k", "dep,other", True, owner_share(owner))
    assert Lane.parse(lane.key) == lane
    assert lane.key.endswith("|1")

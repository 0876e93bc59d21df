from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.format import per
from mulligan.core.job import SECOND, Lane, Limit, Meter
from mulligan.guards.lanes import in_turn
from mulligan.guards.limits import (
    NO_LIMIT,
    effective,
    next_start,
    rate_of,
    refilled,
    room,
    share_of,
)

QUEUE = ("queue", "render")


# -- who says what ------------------------------------------------------------------------------------
def test_what_an_operator_says_wins_field_by_field():
    declared = {QUEUE: Limit(concurrency=5, rate=2.0)}
    assert effective(declared, {}) == declared
    assert effective(declared, {QUEUE: Limit(concurrency=1)}) == {QUEUE: Limit(1, 2.0)}
    assert effective({}, {QUEUE: Limit(rate=0.5)}) == {QUEUE: Limit(None, 0.5)}


def test_an_operator_can_lift_what_code_declares():
    declared = {QUEUE: Limit(concurrency=5, rate=2.0)}
    assert effective(declared, {QUEUE: Limit(NO_LIMIT, float(NO_LIMIT))}) == {}
    assert effective(declared, {QUEUE: Limit(NO_LIMIT)}) == {QUEUE: Limit(None, 2.0)}


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
    assert rate_of(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "5/y", "100/month", "5/ms", "1/season", "5 / s", "1e9/s", "5/s/s", "nan"],
)
def test_what_is_no_rate_is_none(text):
    assert rate_of(text) is None


@pytest.mark.parametrize(
    ("rate", "said"),
    [(5, "5 a second"), (0.5, "30 a minute"), (1 / 3600, "1 an hour"), (1e-5, "0.9 a day")],
)
def test_a_rate_is_told_in_a_unit_people_can_count(rate, said):
    assert per(rate) == said


# -- how much -----------------------------------------------------------------------------------------
def test_concurrency_leaves_what_does_not_run_yet():
    assert [room(Limit(concurrency=3), running, Meter(0, 0)) for running in (0, 2, 3, 9)] == [
        3,
        1,
        0,
        0,
    ]


@given(st.floats(0.001, 1000), st.lists(st.integers(0, 5 * SECOND), min_size=1, max_size=100))
def test_a_rate_never_lets_more_start_than_its_time_and_one_second_allow(rate, steps):
    """Whoever asks as often as they like takes all there is each time."""
    meter, now, started = refilled(Meter(0.0, 0), rate, 10**15), 10**15, 0
    for step in steps:
        now += step
        meter = refilled(meter, rate, now)
        taken = room(Limit(rate=rate), 0, meter)
        meter = meter._replace(tokens=meter.tokens - taken)
        started += taken
    assert started <= max(1.0, rate) + sum(steps) / SECOND * rate + 1e-6


def test_a_clock_that_was_set_back_brings_nothing_and_takes_nothing():
    assert refilled(Meter(0.5, 100 * SECOND), 1.0, 40 * SECOND) == Meter(0.5, 40 * SECOND)


def test_who_looked_a_little_earlier_does_not_count_the_same_time_twice():
    assert refilled(Meter(0.5, 100 * SECOND), 1.0, 99 * SECOND) == Meter(0.5, 100 * SECOND)


@given(st.floats(0.001, 1000), st.floats(0, 0.999))
def test_at_the_next_start_one_may_start(rate, tokens):
    meter, limit = Meter(tokens, 10**15), Limit(rate=rate)
    at = next_start(limit, meter)
    assert at is not None
    assert room(limit, 0, refilled(meter, rate, at)) >= 1
    assert room(limit, 0, refilled(meter, rate, at - 2 - round(0.01 / rate * SECOND))) == 0


def test_what_may_start_now_has_no_next_start():
    assert next_start(Limit(rate=1.0), Meter(1.0, 0)) is None
    assert next_start(Limit(concurrency=1), Meter(0.0, 0)) is None


# -- turns --------------------------------------------------------------------------------------------
def waiting(owner, *times, queue="fair", priority=0):
    lane = Lane(queue, "render", "", False, share_of(owner)).key
    return [(priority, at, f"{owner}{at:03}", lane) for at in times]


def names(found):
    return "".join(candidate[2][0] for candidate in found)


def rotated(found, owners):
    """The shares' own order decides who begins: say it by names."""
    order = sorted(owners, key=share_of)
    return names(found).translate(str.maketrans("".join(order), "".join(sorted(owners))))


def test_owners_take_turns_whoever_came_first():
    found = sorted(waiting("a", *range(10)) + waiting("b", 50, 51) + waiting("c", 60))
    assert rotated(in_turn(found, {}), "abc").startswith("abc")
    turns = names(in_turn(found, {}))
    assert sorted(turns[:5]) == sorted("abcab")
    assert sorted(turns) == sorted("a" * 10 + "bbc")


def test_who_was_served_last_comes_last():
    found = sorted(waiting("a", 0, 1) + waiting("b", 2, 3))
    for owner, other in ("ab", "ba"):
        assert names(in_turn(found, {"fair": share_of(owner)})) == (other + owner) * 2


def test_each_keeps_the_order_of_its_own_jobs():
    found = sorted(waiting("a", 5, 1, 3) + waiting("b", 4, 2))
    turns = in_turn(found, {})
    assert [one[1] for one in turns if one[2][0] == "a"] == [1, 3, 5]


def test_other_queues_and_priorities_keep_their_places():
    plain = [(0, 1, "x", Lane("plain", "render", "", retry=False).key)]
    found = sorted(waiting("a", 0, 2) + waiting("b", 3) + plain + waiting("c", 9, priority=-1))
    turns = in_turn(found, {})
    assert names(turns)[0] == "c"
    assert names(turns)[2] == "x"


@given(st.text(max_size=5))
def test_a_share_has_no_sign_that_lanes_use(owner):
    lane = Lane("q", "k", "dep,other", True, share_of(owner))
    assert Lane.parse(lane.key) == lane
    assert lane.key.endswith("|1")

"""Tests of due and missed slots, and of which manifests are active."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.core.durations import SECOND, to_micros
from mulligan.core.errors import ConfigError
from mulligan.manifest.declared import find_abandoned_schedules, find_active
from mulligan.schedules.rules import (
    MAX_CLOCK_LEAD,
    MAX_MISSED,
    FiringWindow,
    SlotPlan,
    Timing,
    check_missed,
    plan_slots,
    restart_cursor,
    slots_between,
)

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOON = to_micros(datetime(2026, 5, 4, 12, tzinfo=UTC))
GRACE, AHEAD, MANY = 30 * SECOND, 10 * SECOND, 100_000


def due(
    missed="latest", *, cron="* * * * *", cursor=NOON, now=NOON, most=MANY, ahead=AHEAD
) -> SlotPlan | None:
    return plan_slots(
        Timing(cron, UTC, missed), cursor, FiringWindow(now, now + ahead, GRACE), most
    )


def test_nothing_is_planned_before_the_first_slot_is_near():
    assert due(now=NOON + 49 * SECOND) is None


def test_a_slot_gets_its_job_a_little_ahead():
    assert due(now=NOON + 50 * SECOND) == SlotPlan((NOON + MINUTE,), None, NOON + MINUTE)


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_slots_within_the_grace_period_run_whatever_missed_says(missed):
    now = NOON + 30 * SECOND
    late = tuple(range(NOON + SECOND, now + 1, SECOND))
    assert due(missed, cron="* * * * * *", now=now, ahead=0) == SlotPlan(late, None, now)


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_slots_beyond_the_grace_period_are_missed(missed):
    found = due(missed, cron="0 12 * * *", cursor=NOON - 1, now=NOON + GRACE + 1)
    assert (found.run, found.skipped is None) == (
        ((), False) if missed == "skip" else ((NOON,), True)
    )


def test_latest_runs_the_newest_missed_slot_and_upcoming_ones():
    found = due("latest", now=NOON + HOUR + 55 * SECOND)
    assert found.run == (NOON + HOUR, NOON + HOUR + MINUTE)
    assert (found.skipped.first, found.skipped.last, found.skipped.count) == (
        NOON + MINUTE,
        NOON + 59 * MINUTE,
        59,
    )
    assert "latest" in found.skipped.reason


def test_latest_with_one_missed_slot_skips_nothing():
    assert due("latest", cron="0 12 * * *", cursor=NOON - HOUR, now=NOON + HOUR) == SlotPlan(
        (NOON,), None, NOON
    )


def test_all_runs_every_missed_slot():
    found = due("all", now=NOON + HOUR)
    assert found == SlotPlan(tuple(NOON + n * MINUTE for n in range(1, 61)), None, NOON + HOUR)


def test_all_is_bounded_and_runs_the_newest():
    found = due("all", now=NOON + 3 * DAY)
    assert len(found.run) == MAX_MISSED
    assert found.run[-1] == NOON + 3 * DAY
    assert found.run[0] == NOON + 3 * DAY - 999 * MINUTE
    assert (found.skipped.first, found.skipped.last) == (NOON + MINUTE, found.run[0] - MINUTE)
    assert found.skipped.count == 3 * 24 * 60 - MAX_MISSED


def test_skip_runs_only_slots_within_the_grace_period():
    found = due("skip", now=NOON + HOUR + 20 * SECOND)
    assert found.run == (NOON + HOUR,)
    assert (found.skipped.last, found.skipped.count) == (NOON + 59 * MINUTE, 59)
    assert due("skip", now=NOON + HOUR + 40 * SECOND).run == ()


def test_counting_of_missed_slots_is_bounded():
    found = due("latest", cron="* * * * * *", now=NOON + 3 * 365 * DAY, ahead=0)
    assert found.run == (NOON + 3 * 365 * DAY,)
    assert (found.skipped.last, found.skipped.count) == (found.run[0] - SECOND, 10_000)


def test_a_plan_is_limited_and_the_next_continues():
    now, cursor, taken = NOON + 2 * HOUR, NOON, []
    while (step := due("all", cursor=cursor, now=now, most=50)) is not None:
        assert len(step.run) <= 50
        assert step.skipped is None
        taken += step.run
        cursor = step.cursor
    assert taken == [NOON + n * MINUTE for n in range(1, 121)]


@settings(deadline=None)  # a busy machine is no defect
@given(
    st.sampled_from(["latest", "all", "skip"]),
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 * * * *", "30 */5 * * * *"]),
    st.sampled_from([UTC, ZoneInfo("Europe/Berlin")]),
    st.lists(st.integers(0, 12 * HOUR), max_size=6),
    st.integers(1, 200) | st.just(MANY),
)
def test_every_slot_is_run_once_or_skipped_once(missed, cron, zone, steps, most):
    """At most one job for a slot; at least one, unless it is skipped with a reason."""
    begin = now = to_micros(datetime(2026, 10, 24, 20, tzinfo=UTC))
    cursor, run, skipped = begin, [], []
    for step in steps:
        now += step
        when = FiringWindow(now, now + AHEAD, GRACE)
        while (found := plan_slots(Timing(cron, zone, missed), cursor, when, most)) is not None:
            assert found.cursor > cursor
            if found.skipped:
                gone = [
                    slot
                    for slot in slots_between(cron, zone, cursor, now)
                    if slot <= found.skipped.last
                ]
                assert (gone[0], len(gone)) == (found.skipped.first, found.skipped.count)
                skipped += gone
            run += found.run
            cursor = found.cursor
    assert sorted(run + skipped) == list(
        slots_between(cron, zone, begin, now + AHEAD if steps else begin)
    )


@pytest.mark.parametrize("value", ["newest", "", None, ["all"]])
def test_an_unknown_missed_option_is_refused_with_the_known_ones(value):
    with pytest.raises(ConfigError, match=r"'latest'.*'all'.*'skip'"):
        check_missed(value)


# -- where it begins -----------------------------------------------------------------------------
OLD, NEW = ("0 3 * * *", "UTC"), ("0 4 * * *", "UTC")


def test_an_unchanged_schedule_keeps_its_cursor():
    assert restart_cursor(OLD, OLD, NOON - DAY, NOON) is None
    assert restart_cursor(OLD, OLD, NOON + AHEAD, NOON) is None


def test_a_changed_schedule_restarts_now_but_not_before_its_cursor():
    assert restart_cursor(OLD, NEW, NOON - 9 * DAY, NOON) == NOON
    assert restart_cursor(OLD, NEW, NOON + AHEAD, NOON) == NOON + AHEAD
    assert restart_cursor(OLD, ("0 3 * * *", "Europe/Berlin"), NOON - DAY, NOON) == NOON


def test_a_cursor_far_in_the_future_is_reset():
    assert restart_cursor(OLD, OLD, NOON + MAX_CLOCK_LEAD, NOON) is None
    assert restart_cursor(OLD, OLD, NOON + MAX_CLOCK_LEAD + 1, NOON) == NOON


# -- what was given up ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stored", "gone"),
    [
        ([], set()),  # unknown app
        ([("a", HOUR, {"nightly"})], set()),  # everybody was away
        ([("a", HOUR, {"nightly"}), ("a", 30 * MINUTE, set())], {"nightly"}),
        (
            [("a", HOUR, {"nightly"}), ("a", 50 * MINUTE, set())],
            set(),
        ),  # within ten minutes it would still have held
        (
            [("a", HOUR, {"nightly"}), ("a", 2 * HOUR, set())],
            set(),
        ),  # a release before it was first declared
        ([("a", HOUR, {"nightly"}), ("b", 0, set())], set()),  # another app never had it
        (
            [("a", HOUR, {"nightly"}), ("a", 0, set()), ("b", 0, {"nightly"})],
            set(),
        ),  # another app still declares it
        (
            [("a", HOUR, {"nightly"}), ("a", 30 * MINUTE, set()), ("a", 0, {"nightly"})],
            set(),
        ),  # it is back already
        ([("a", HOUR, {"nightly", "daily"}), ("a", 30 * MINUTE, {"daily"})], {"nightly"}),
    ],
)
def test_a_schedule_ends_when_its_app_drops_it_and_not_when_workers_are_away(stored, gone):
    past = [(app, NOON - ago, names) for app, ago, names in stored]
    assert find_abandoned_schedules(past, "a", ["daily", "nightly"]) == gone


# -- which manifests hold ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("manifests", "hold"),
    [
        ([("a", 0)], [True]),
        ([("a", 23 * HOUR)], [True]),
        ([("a", 25 * HOUR)], [False]),
        ([("a", 0), ("a", MINUTE)], [True, True]),  # a deploy under way, or two pools of one app
        ([("a", 0), ("a", 11 * MINUTE)], [True, False]),  # replaced by a newer one
        ([("a", 11 * MINUTE), ("a", 0)], [False, True]),  # rolled back to an older one
        (
            [("a", 11 * MINUTE), ("a", 12 * MINUTE)],
            [True, True],
        ),  # no manifest is active: nothing was replaced
        ([("a", 0), ("b", 11 * MINUTE)], [True, True]),  # another app is only away
    ],
)
def test_a_manifest_is_active_for_a_day_unless_its_app_has_a_newer_one(manifests, hold):
    assert find_active([(app, NOON - ago) for app, ago in manifests], NOON, DAY) == hold

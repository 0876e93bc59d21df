"""Throttle: reduced concurrency after a dependency rate-limits calls, and back."""

from __future__ import annotations

from mulligan.core.durations import SECOND
from mulligan.guards.ramp import (
    THROTTLE_LIFETIME,
    UNTHROTTLED,
    DependencyLoad,
    ThrottleState,
    update_throttle,
)

NOW = 1_000_000 * SECOND
LOAD = DependencyLoad(max_concurrency=20, running=12)


def test_more_than_five_percent_limited_calls_reduce_concurrency():
    throttle, reason = update_throttle(UNTHROTTLED, 2, 20, LOAD, NOW)
    assert throttle.limit == 14
    assert reason == "2 of 20 calls were rate limited: concurrency reduced from 20 to 14"


def test_throttle_starts_from_running_jobs_without_a_maximum():
    assert update_throttle(UNTHROTTLED, 10, 20, DependencyLoad(None, 10), NOW)[0].limit == 7
    assert update_throttle(UNTHROTTLED, 10, 20, DependencyLoad(None, 0), NOW)[0].limit == 1


def test_few_calls_do_not_throttle():
    throttle, reason = update_throttle(UNTHROTTLED, 2, 19, LOAD, NOW)
    assert (throttle.limit, reason) == (None, None)


def test_throttle_waits_between_changes():
    throttle, _ = update_throttle(UNTHROTTLED, 10, 20, LOAD, NOW)
    again, reason = update_throttle(throttle, 20, 20, LOAD, NOW + 29 * SECOND)
    assert (again.limit, reason) == (14, None)
    again, reason = update_throttle(again, 0, 0, LOAD, NOW + 30 * SECOND)
    assert again.limit == 9


def test_concurrency_is_at_least_one():
    throttle = ThrottleState(1, 20, NOW, NOW + THROTTLE_LIFETIME)
    assert update_throttle(throttle, 20, 20, LOAD, NOW + 60 * SECOND)[0].limit == 1


def test_concurrency_grows_back_without_limited_calls():
    throttle, now, limits = ThrottleState(14, 20, NOW, NOW + THROTTLE_LIFETIME), NOW, []
    while throttle.limit is not None:
        now += 31 * SECOND
        throttle, _ = update_throttle(throttle, 0, 30, LOAD, now)
        limits.append(throttle.limit)
    assert limits == [15, 16, 17, 18, 19, None]


def test_nothing_changes_between_the_thresholds():
    throttle = ThrottleState(14, 20, NOW, NOW + THROTTLE_LIFETIME)
    after, reason = update_throttle(throttle, 3, 100, LOAD, NOW + 60 * SECOND)
    assert (after.limit, reason) == (14, None)


def test_throttle_expires():
    throttle = ThrottleState(14, 20, NOW, NOW + THROTTLE_LIFETIME)
    assert update_throttle(throttle, 0, 0, LOAD, NOW + THROTTLE_LIFETIME)[0] == UNTHROTTLED


def test_throttle_ends_after_the_clock_was_set_back():
    throttle = ThrottleState(14, 20, NOW, NOW + THROTTLE_LIFETIME)
    assert update_throttle(throttle, 0, 0, LOAD, NOW - 7200 * SECOND)[0] == UNTHROTTLED

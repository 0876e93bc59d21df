"""Fewer at a time after a dependency asked for it, and back again."""

from __future__ import annotations

from mulligan.core.job import SECOND
from mulligan.guards.ramp import LASTS, WHOLE, Reduced, Seat, throttle

NOW = 1_000_000 * SECOND
SEAT = Seat(most=20, running=12)


def test_more_than_one_in_twenty_told_to_slow_down_means_fewer_at_a_time():
    reduced, said = throttle(WHOLE, 2, 20, SEAT, NOW)
    assert reduced.limit == 14
    assert said == "2 of 20 calls were told to slow down: 14 at a time instead of 20"


def test_without_a_declared_maximum_it_starts_from_what_runs():
    assert throttle(WHOLE, 10, 20, Seat(None, 10), NOW)[0].limit == 7
    assert throttle(WHOLE, 10, 20, Seat(None, 0), NOW)[0].limit == 1


def test_a_few_calls_say_nothing():
    reduced, said = throttle(WHOLE, 2, 19, SEAT, NOW)
    assert (reduced.limit, said) == (None, None)


def test_it_rests_between_two_changes():
    reduced, _ = throttle(WHOLE, 10, 20, SEAT, NOW)
    again, said = throttle(reduced, 20, 20, SEAT, NOW + 29 * SECOND)
    assert (again.limit, said) == (14, None)
    again, said = throttle(again, 0, 0, SEAT, NOW + 30 * SECOND)
    assert again.limit == 9


def test_never_less_than_one_at_a_time():
    reduced = Reduced(1, 20, NOW, NOW + LASTS)
    assert throttle(reduced, 20, 20, SEAT, NOW + 60 * SECOND)[0].limit == 1


def test_without_complaints_it_grows_back_and_ends_where_it_began():
    reduced, now, seen = Reduced(14, 20, NOW, NOW + LASTS), NOW, []
    while reduced.limit is not None:
        now += 31 * SECOND
        reduced, _ = throttle(reduced, 0, 30, SEAT, now)
        seen.append(reduced.limit)
    assert seen == [15, 16, 17, 18, 19, None]


def test_between_the_thresholds_nothing_moves():
    reduced = Reduced(14, 20, NOW, NOW + LASTS)
    after, said = throttle(reduced, 3, 100, SEAT, NOW + 60 * SECOND)
    assert (after.limit, said) == (14, None)


def test_it_ends_by_itself_when_nobody_renews_it():
    reduced = Reduced(14, 20, NOW, NOW + LASTS)
    assert throttle(reduced, 0, 0, SEAT, NOW + LASTS)[0] == WHOLE


def test_after_a_clock_was_set_back_nobody_stays_throttled_until_the_old_time():
    reduced = Reduced(14, 20, NOW, NOW + LASTS)
    assert throttle(reduced, 0, 0, SEAT, NOW - 7200 * SECOND)[0] == WHOLE

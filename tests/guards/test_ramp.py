"""How many jobs a second may start after a breaker has closed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.job import SECOND
from mulligan.guards.ramp import (
    FREE,
    QUICK,
    QUIET,
    SPARE,
    Ramp,
    begin,
    from_plain,
    observed,
    over,
    to_plain,
)

NOW = 1_700_000_000 * SECOND


def fed(ramp: Ramp, seconds: int, *, failing: float = 0.0, used: float = 1.0) -> Ramp:
    """The ramp after so many intervals in which a share of its rate was used, and a share of that failed."""
    now, failures, starts = max(ramp.at, NOW), 0.0, 0.0
    for _ in range(seconds):
        now += ramp.every
        starts += ramp.rate * used * ramp.every / SECOND
        count, starts = int(starts), starts % 1
        failures += count * failing
        bad, failures = int(failures), failures % 1
        ramp = observed(ramp, count - bad, bad, now)
    return ramp


def after_failures(normal: float = 100.0) -> Ramp:
    return fed(begin(normal, NOW), 1, failing=1.0)


# -- the beginning ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("normal", "rate"), [(60.0, 6.0), (5.0, 1.0), (0.001, 1.0), (0.0, 1.0), (None, 2.0)]
)
def test_it_begins_at_a_tenth_of_normal_and_at_one_a_second_at_least(normal, rate):
    assert begin(normal, NOW).rate == pytest.approx(rate)


def test_where_jobs_are_slow_it_begins_with_one_for_each_judgement():
    assert begin(None, NOW, every=30 * SECOND).rate == pytest.approx(2 / 30)
    assert begin(10.0, NOW, every=30 * SECOND).rate == pytest.approx(1.0)


# -- growth -------------------------------------------------------------------------------------------
def test_it_grows_by_a_twentieth_of_normal_with_each_clean_interval():
    assert fed(begin(60.0, NOW), 1).rate == pytest.approx(9.0)
    assert fed(begin(60.0, NOW), 18).rate == pytest.approx(60.0)


def test_where_nobody_knows_what_is_normal_it_grows_by_a_share_of_itself():
    assert fed(begin(None, NOW), 1).rate == pytest.approx(3)
    assert fed(begin(None, NOW), 20).rate == pytest.approx(10 * 1.1**12)


def test_beyond_normal_it_grows_on_while_it_is_used():
    assert fed(begin(60.0, NOW), 60).rate > 300


def test_without_outcomes_nothing_changes_however_long_it_takes():
    ramp = begin(60.0, NOW)
    for second in range(1, 300):
        ramp = observed(ramp, 0, 0, NOW + second * SECOND)
    assert ramp == begin(60.0, NOW)


def test_who_uses_less_than_half_of_the_rate_does_not_raise_it():
    """Outcomes at ten a second say nothing about a hundred."""
    ramp = fed(begin(1000.0, NOW), 5, used=0.4)
    assert (ramp.rate, ramp.spare) == (100.0, 5)


def test_being_told_often_makes_it_grow_no_faster():
    often, now = begin(60.0, NOW), NOW
    for _ in range(100):
        now += SECOND // 20
        often = observed(often, 1, 0, now)
    assert often.rate == pytest.approx(6 + 5 * 3)


# -- failures -----------------------------------------------------------------------------------------
def test_too_many_failures_cut_it_at_once_and_not_at_the_end_of_the_interval():
    ramp = observed(begin(1000.0, NOW), 0, 10, NOW + SECOND // 10)
    assert ramp.rate < 90
    assert ramp.hurt == 100.0


def test_the_worse_the_deeper_and_never_below_half():
    depths = []
    for failed in (5, 20, 60, 100):
        cut = observed(begin(1000.0, NOW), 100 - failed, failed, NOW + SECOND)
        depths.append(cut.rate / 100)
    assert depths == pytest.approx([0.88, 0.73, 0.5, 0.5])


def test_it_is_cut_once_for_one_wave_of_failures():
    """What is told within the next two seconds started before the cut."""
    cut = observed(begin(1000.0, NOW), 0, 10, NOW + SECOND // 10)
    again = observed(observed(cut, 0, 50, NOW + SECOND), 0, 50, NOW + 2 * SECOND)
    assert again == cut
    assert observed(again, 0, 50, NOW + 3 * SECOND).rate < cut.rate


def test_two_failures_may_be_chance():
    ramp = observed(begin(60.0, NOW), 4, 2, NOW + SECOND)
    assert ramp.rate == 6.0


def test_a_few_failures_among_few_stop_the_growth_until_more_is_known():
    unsure = observed(begin(60.0, NOW), 5, 1, NOW + SECOND)
    assert (unsure.rate, unsure.ok, unsure.failed) == (6.0, 5, 1)
    assert observed(unsure, 50, 0, NOW + 9 * SECOND).rate > 6
    assert observed(unsure, 4, 2, NOW + 2 * SECOND).rate < 6


def test_failures_that_are_told_first_are_not_taken_for_all_there_is():
    """Three of a thousand a second: the successes of that second are still to come."""
    ramp = begin(10_000.0, NOW)
    assert observed(ramp, 0, 3, NOW + SECOND // 10).rate == ramp.rate


def test_it_is_never_cut_below_the_floor():
    ramp = fed(begin(60.0, NOW), 500, failing=1.0)
    assert ramp.rate >= 1.0


def test_it_comes_back_quickly_rests_below_what_hurt_probes_and_then_forgets():
    ramp, paces = after_failures()._replace(rate=50.0, hurt=100.0), []
    for rate in (50.0, 90.0, 98.0, 100.0 * FREE):
        grown = fed(ramp._replace(rate=rate, at=NOW), 1)
        paces.append((grown.rate - rate) / max(rate, 100.0))
    assert paces == pytest.approx([QUICK, 0.0015, 0.01, QUICK])


def test_a_share_that_fails_at_any_rate_does_not_keep_it_down():
    assert fed(begin(60.0, NOW), 1500, failing=0.2).rate > 60


def test_what_fails_beyond_the_usual_share_still_cuts():
    ramp = begin(1000.0, NOW)._replace(usual=0.2)
    assert observed(ramp, 78, 22, NOW + SECOND).rate > 100
    assert observed(ramp, 55, 45, NOW + SECOND).rate < 100


# -- the end ------------------------------------------------------------------------------------------
def test_it_is_over_when_nothing_waits_and_normal_is_reached():
    begun, normal = begin(60.0, NOW), fed(begin(60.0, NOW), 19)
    assert not over(begun, NOW, waiting=False)
    assert not over(normal, normal.at, waiting=True)
    assert over(normal, normal.at, waiting=False)


def test_where_normal_is_unknown_it_is_over_at_ten_a_second():
    assert not over(begin(None, NOW), NOW, waiting=False)
    assert over(begin(None, NOW)._replace(rate=10.0), NOW, waiting=False)


def test_a_dependency_that_can_bear_less_than_before_does_not_keep_it_for_ever():
    ramp = begin(60.0, NOW)._replace(rate=28.0, hurt=30.0)
    assert over(ramp, NOW, waiting=False)
    assert not over(ramp._replace(rate=20.0), NOW, waiting=False)


def test_a_limit_that_nobody_reached_for_a_minute_is_over_even_while_jobs_wait():
    """The workers have no hands, so the limit does not hold anything back."""
    ramp = fed(begin(60.0, NOW), SPARE, used=0.3)
    assert over(ramp, ramp.at, waiting=True)
    assert not over(fed(ramp._replace(spare=0), SPARE - 1, used=0.3), ramp.at, waiting=True)


def test_when_nothing_comes_for_ten_minutes_it_is_over():
    assert not over(begin(60.0, NOW), NOW + QUIET - 1, waiting=False)
    assert over(begin(60.0, NOW), NOW + QUIET, waiting=False)
    assert not over(begin(60.0, NOW), NOW + QUIET, waiting=True)


# -- whatever happens ---------------------------------------------------------------------------------
def test_a_clock_that_was_set_back_is_waited_for_two_seconds_at_most():
    ramp, early = begin(60.0, NOW), NOW - 3600 * SECOND
    ramp = observed(ramp, 6, 0, early)
    for second in (1, 2, 3, 4):
        ramp = observed(ramp, 6, 0, early + second * SECOND)
    assert ramp.rate > 6


steps = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 2000), st.integers(-10 * SECOND, 10 * SECOND)),
    max_size=60,
)


@given(st.none() | st.floats(0, 10_000), st.sampled_from([SECOND, 5 * SECOND, 60 * SECOND]), steps)
def test_it_moves_within_bounds_whatever_it_is_told(normal, every, told):
    ramp, now = begin(normal, NOW, every), NOW
    for ok, failed, passed in told:
        now += passed
        before, ramp = ramp, observed(ramp, ok, failed, now)
        assert ramp.rate >= SECOND / every
        assert ramp.rate >= before.rate * 0.5 - 1e-9
        most = 0.1 * before.rate if normal is None else QUICK * max(before.rate, normal)
        most = max(most, SECOND / every)  # until it has hurt
        assert ramp.rate <= before.rate + most + 1e-9
        assert 0 <= ramp.usual <= 0.5
        assert ramp.at <= now + every + SECOND
        over(ramp, now, waiting=bool(ok))


@given(st.none() | st.floats(0, 10_000), steps)
def test_it_is_the_same_after_it_was_stored(normal, told):
    ramp, now = begin(normal, NOW), NOW
    for ok, failed, passed in told:
        now += passed
        ramp = observed(ramp, ok, failed, now)
        assert from_plain(json.loads(json.dumps(to_plain(ramp)))) == ramp


def test_what_a_later_version_adds_is_passed_over():
    assert from_plain({**to_plain(begin(60.0, NOW)), "mood": "good"}) == begin(60.0, NOW)


def test_a_dependency_that_was_away_for_a_moment_was_not_asked_too_much():
    """What flaps at two a second can bear more: the rate at which it was away is no measure of what it bears."""
    ramp = observed(begin(None, NOW), 0, 4, NOW + SECOND)
    assert ramp.hurt is None
    assert fed(ramp, 20).rate > 8


def test_a_few_failures_hold_it_up_for_a_few_judgements_and_no_longer():
    ramp = observed(begin(None, NOW), 0, 2, NOW + SECOND)
    assert ramp.rate == 2.0
    for second in range(2, 6):
        ramp = observed(ramp, 2, 0, NOW + second * SECOND)
    assert ramp.rate > 2.0


def test_what_was_away_twice_is_believed_to_bear_no_more_until_it_has_been_calm_for_long():
    ramp = observed(begin(None, NOW), 0, 4, NOW + SECOND)
    ramp = observed(ramp, 0, 4, NOW + 5 * SECOND)
    assert ramp.hurt is not None
    assert fed(ramp, 20).rate < 3
    assert fed(ramp, 60).rate > 8

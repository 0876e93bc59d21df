"""Ramp: how many jobs may start per second after a breaker closed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.guards.ramp import (
    FAST_GROWTH,
    FREE_ZONE,
    MAX_QUIET,
    MAX_UNUSED_INTERVALS,
    Ramp,
    apply_outcomes,
    is_finished,
    ramp_from_dict,
    ramp_to_dict,
    start_ramp,
)

NOW = 1_700_000_000 * SECOND


def advance(ramp: Ramp, seconds: int, *, failing: float = 0.0, used: float = 1.0) -> Ramp:
    """Return the ramp after `seconds` intervals, of which a share was used and a share failed."""
    now, failures, starts = max(ramp.evaluated_at, NOW), 0.0, 0.0
    for _ in range(seconds):
        now += ramp.interval
        starts += ramp.rate * used * ramp.interval / SECOND
        count, starts = int(starts), starts % 1
        failures += count * failing
        bad, failures = int(failures), failures % 1
        ramp = apply_outcomes(ramp, count - bad, bad, now)
    return ramp


def after_failures(normal: float = 100.0) -> Ramp:
    return advance(start_ramp(normal, NOW), 1, failing=1.0)


# -- start --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("normal", "rate"), [(60.0, 6.0), (5.0, 1.0), (0.001, 1.0), (0.0, 1.0), (None, 2.0)]
)
def test_ramp_starts_at_a_tenth_of_normal_and_at_least_one_per_second(normal, rate):
    assert start_ramp(normal, NOW).rate == pytest.approx(rate)


def test_ramp_of_slow_jobs_starts_with_one_per_interval():
    assert start_ramp(None, NOW, interval=30 * SECOND).rate == pytest.approx(2 / 30)
    assert start_ramp(10.0, NOW, interval=30 * SECOND).rate == pytest.approx(1.0)


# -- growth --------------------------------------------------------------------------------------
def test_rate_grows_by_five_percent_of_normal_per_clean_interval():
    assert advance(start_ramp(60.0, NOW), 1).rate == pytest.approx(9.0)
    assert advance(start_ramp(60.0, NOW), 18).rate == pytest.approx(60.0)


def test_rate_grows_by_a_share_of_itself_if_normal_is_unknown():
    assert advance(start_ramp(None, NOW), 1).rate == pytest.approx(3)
    assert advance(start_ramp(None, NOW), 20).rate == pytest.approx(10 * 1.1**12)


def test_rate_grows_beyond_normal_while_it_is_used():
    assert advance(start_ramp(60.0, NOW), 60).rate > 300


def test_no_outcomes_change_nothing():
    ramp = start_ramp(60.0, NOW)
    for second in range(1, 300):
        ramp = apply_outcomes(ramp, 0, 0, NOW + second * SECOND)
    assert ramp == start_ramp(60.0, NOW)


def test_rate_used_less_than_half_does_not_grow():
    """Outcomes at 10 per second say nothing about 100 per second."""
    ramp = advance(start_ramp(1000.0, NOW), 5, used=0.4)
    assert (ramp.rate, ramp.unused_intervals) == (100.0, 5)


def test_frequent_reports_do_not_speed_up_growth():
    often, now = start_ramp(60.0, NOW), NOW
    for _ in range(100):
        now += SECOND // 20
        often = apply_outcomes(often, 1, 0, now)
    assert often.rate == pytest.approx(6 + 5 * 3)


# -- failures ------------------------------------------------------------------------------------
def test_many_failures_cut_the_rate_at_once():
    ramp = apply_outcomes(start_ramp(1000.0, NOW), 0, 10, NOW + SECOND // 10)
    assert ramp.rate < 90
    assert ramp.overload_rate == 100.0


def test_cut_depends_on_failures_and_is_at_most_half():
    depths = []
    for failed in (5, 20, 60, 100):
        cut = apply_outcomes(start_ramp(1000.0, NOW), 100 - failed, failed, NOW + SECOND)
        depths.append(cut.rate / 100)
    assert depths == pytest.approx([0.88, 0.73, 0.5, 0.5])


def test_one_wave_of_failures_causes_one_cut():
    """Outcomes within two seconds after a cut belong to the rate before it."""
    cut = apply_outcomes(start_ramp(1000.0, NOW), 0, 10, NOW + SECOND // 10)
    again = apply_outcomes(apply_outcomes(cut, 0, 50, NOW + SECOND), 0, 50, NOW + 2 * SECOND)
    assert again == cut
    assert apply_outcomes(again, 0, 50, NOW + 3 * SECOND).rate < cut.rate


def test_two_failures_do_not_cut_the_rate():
    ramp = apply_outcomes(start_ramp(60.0, NOW), 4, 2, NOW + SECOND)
    assert ramp.rate == 6.0


def test_few_failures_pause_growth():
    unsure = apply_outcomes(start_ramp(60.0, NOW), 5, 1, NOW + SECOND)
    assert (unsure.rate, unsure.ok, unsure.failed) == (6.0, 5, 1)
    assert apply_outcomes(unsure, 50, 0, NOW + 9 * SECOND).rate > 6
    assert apply_outcomes(unsure, 4, 2, NOW + 2 * SECOND).rate < 6


def test_failures_reported_first_are_compared_with_expected_outcomes():
    """Three failures of 1,000 per second: the successes are not reported yet."""
    ramp = start_ramp(10_000.0, NOW)
    assert apply_outcomes(ramp, 0, 3, NOW + SECOND // 10).rate == ramp.rate


def test_rate_is_never_cut_below_the_minimum():
    ramp = advance(start_ramp(60.0, NOW), 500, failing=1.0)
    assert ramp.rate >= 1.0


def test_growth_is_slow_near_the_overload_rate():
    ramp, paces = after_failures()._replace(rate=50.0, overload_rate=100.0), []
    for rate in (50.0, 90.0, 98.0, 100.0 * FREE_ZONE):
        grown = advance(ramp._replace(rate=rate, evaluated_at=NOW), 1)
        paces.append((grown.rate - rate) / max(rate, 100.0))
    assert paces == pytest.approx([FAST_GROWTH, 0.0015, 0.01, FAST_GROWTH])


def test_usual_failure_share_does_not_limit_the_rate():
    assert advance(start_ramp(60.0, NOW), 1500, failing=0.2).rate > 60


def test_failures_above_the_usual_share_cut_the_rate():
    ramp = start_ramp(1000.0, NOW)._replace(usual_failure_share=0.2)
    assert apply_outcomes(ramp, 78, 22, NOW + SECOND).rate > 100
    assert apply_outcomes(ramp, 55, 45, NOW + SECOND).rate < 100


# -- end -----------------------------------------------------------------------------------------
def test_ramp_finishes_at_the_normal_rate_if_nothing_waits():
    begun, normal = start_ramp(60.0, NOW), advance(start_ramp(60.0, NOW), 19)
    assert not is_finished(begun, NOW, waiting=False)
    assert not is_finished(normal, normal.evaluated_at, waiting=True)
    assert is_finished(normal, normal.evaluated_at, waiting=False)


def test_ramp_without_normal_rate_finishes_at_ten_per_second():
    assert not is_finished(start_ramp(None, NOW), NOW, waiting=False)
    assert is_finished(start_ramp(None, NOW)._replace(rate=10.0), NOW, waiting=False)


def test_ramp_finishes_below_a_reduced_capacity():
    ramp = start_ramp(60.0, NOW)._replace(rate=28.0, overload_rate=30.0)
    assert is_finished(ramp, NOW, waiting=False)
    assert not is_finished(ramp._replace(rate=20.0), NOW, waiting=False)


def test_ramp_finishes_after_a_minute_below_its_rate():
    """The workers have no free slots, so the ramp does not limit anything."""
    ramp = advance(start_ramp(60.0, NOW), MAX_UNUSED_INTERVALS, used=0.3)
    assert is_finished(ramp, ramp.evaluated_at, waiting=True)
    assert not is_finished(
        advance(ramp._replace(unused_intervals=0), MAX_UNUSED_INTERVALS - 1, used=0.3),
        ramp.evaluated_at,
        waiting=True,
    )


def test_ramp_finishes_after_ten_quiet_minutes():
    assert not is_finished(start_ramp(60.0, NOW), NOW + MAX_QUIET - 1, waiting=False)
    assert is_finished(start_ramp(60.0, NOW), NOW + MAX_QUIET, waiting=False)
    assert not is_finished(start_ramp(60.0, NOW), NOW + MAX_QUIET, waiting=True)


# -- invariants ----------------------------------------------------------------------------------
def test_clock_set_back_delays_the_ramp_by_at_most_two_seconds():
    ramp, early = start_ramp(60.0, NOW), NOW - 3600 * SECOND
    ramp = apply_outcomes(ramp, 6, 0, early)
    for second in (1, 2, 3, 4):
        ramp = apply_outcomes(ramp, 6, 0, early + second * SECOND)
    assert ramp.rate > 6


steps = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 2000), st.integers(-10 * SECOND, 10 * SECOND)),
    max_size=60,
)


@given(st.none() | st.floats(0, 10_000), st.sampled_from([SECOND, 5 * SECOND, 60 * SECOND]), steps)
def test_rate_stays_within_bounds_for_any_outcomes(normal, every, outcomes):
    ramp, now = start_ramp(normal, NOW, every), NOW
    for ok, failed, passed in outcomes:
        now += passed
        before, ramp = ramp, apply_outcomes(ramp, ok, failed, now)
        assert ramp.rate >= SECOND / every
        assert ramp.rate >= before.rate * 0.5 - 1e-9
        most = 0.1 * before.rate if normal is None else FAST_GROWTH * max(before.rate, normal)
        most = max(most, SECOND / every)  # until it has hurt
        assert ramp.rate <= before.rate + most + 1e-9
        assert 0 <= ramp.usual_failure_share <= 0.5
        assert ramp.evaluated_at <= now + every + SECOND
        is_finished(ramp, now, waiting=bool(ok))


@given(st.none() | st.floats(0, 10_000), steps)
def test_ramp_survives_json(normal, outcomes):
    ramp, now = start_ramp(normal, NOW), NOW
    for ok, failed, passed in outcomes:
        now += passed
        ramp = apply_outcomes(ramp, ok, failed, now)
        assert ramp_from_dict(json.loads(json.dumps(ramp_to_dict(ramp)))) == ramp


def test_fields_of_a_newer_version_are_ignored():
    assert ramp_from_dict({**ramp_to_dict(start_ramp(60.0, NOW)), "mood": "good"}) == start_ramp(
        60.0, NOW
    )


def test_short_outage_is_not_an_overload():
    """An outage at two starts per second says nothing about the capacity."""
    ramp = apply_outcomes(start_ramp(None, NOW), 0, 4, NOW + SECOND)
    assert ramp.overload_rate is None
    assert advance(ramp, 20).rate > 8


def test_few_failures_pause_growth_for_a_few_intervals():
    ramp = apply_outcomes(start_ramp(None, NOW), 0, 2, NOW + SECOND)
    assert ramp.rate == 2.0
    for second in range(2, 6):
        ramp = apply_outcomes(ramp, 2, 0, NOW + second * SECOND)
    assert ramp.rate > 2.0


def test_second_short_outage_counts_as_overload_until_long_calm():
    ramp = apply_outcomes(start_ramp(None, NOW), 0, 4, NOW + SECOND)
    ramp = apply_outcomes(ramp, 0, 4, NOW + 5 * SECOND)
    assert ramp.overload_rate is not None
    assert advance(ramp, 20).rate < 3
    assert advance(ramp, 60).rate > 8

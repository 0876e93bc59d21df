"""Circuit breaker of a dependency: opening, probes, ramp and manual changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.guards import breaker
from mulligan.guards.breaker import (
    BreakerChange,
    apply_tallies,
    draw_cool_down,
    is_probe_due,
    probe_timeout,
    start_probe,
)
from mulligan.guards.state import NEW_GUARD, BreakerConfig, GuardState, ManualOverride, load_guard
from mulligan.guards.window import DependencyTally, ProbeVerdict, duration_step, parse_tally

NOW = 1_000_000 * SECOND
CONFIG = BreakerConfig()
DOWN = DependencyTally(failed=20, jobs=("a", "b", "c"))


class Low:
    """Random source that always draws the minimum."""

    def uniform(self, low, high):
        return low

    def random(self):
        return 0.0


class High(Low):
    def uniform(self, low, high):
        return high


def fold(guard, *tallies, now=NOW, config=CONFIG, rng=None, **more):
    return apply_tallies(guard, tallies, config, now, rng or Random(1), **more)


def is_open(now=NOW, rng=None, **more):
    guard, changes = fold(NEW_GUARD, DOWN, now=now, rng=rng or High(), **more)
    assert [change.type for change in changes] == ["opened"]
    return guard


def with_probe(guard, job="p1", now=None, kind="call"):
    return start_probe(guard, (job, 1), kind, CONFIG, guard.probe_at if now is None else now)


def ended(guard, passed, now, job="p1", rng=None):
    return fold(
        guard, DependencyTally(verdict=ProbeVerdict(job, 1, passed)), now=now, rng=rng or High()
    )


# -- opening -------------------------------------------------------------------------------------
def test_breaker_opens_with_a_reason_and_a_probe_time():
    guard = is_open()
    assert guard.open
    assert guard.reason == "20 of 20 calls failed within 1 s"
    assert guard.probe_at == NOW + 30 * SECOND
    assert guard.affects_claims(CONFIG)


def test_first_probe_is_spread_over_the_cool_down():
    assert is_open(rng=Low()).probe_at == NOW + 15 * SECOND


def test_failures_while_open_change_nothing():
    guard = is_open()
    later, changes = fold(guard, DOWN, now=NOW + SECOND)
    assert (later.open, later.since, later.probe_at, changes) == (True, NOW, guard.probe_at, [])


def test_breaker_pinned_closed_does_not_open():
    guard, changes = fold(
        replace(NEW_GUARD, override=ManualOverride(open=False, until=NOW + SECOND)), DOWN
    )
    assert not guard.open
    assert changes == []
    guard, changes = fold(guard, DOWN, now=NOW + 2 * SECOND)
    assert guard.open


def test_opening_remembers_the_normal_rate():
    guard = NEW_GUARD
    for n in range(30):
        guard, _ = fold(guard, DependencyTally(ok=40), now=NOW + n * SECOND)
    guard, _ = fold(guard, DOWN._replace(failed=200), now=NOW + 30 * SECOND)
    assert guard.open
    assert guard.normal_rate == pytest.approx(40, rel=0.2)


# -- probes --------------------------------------------------------------------------------------
def test_no_probe_before_its_time_or_against_an_operator():
    guard = is_open()
    assert not is_probe_due(guard, guard.probe_at - 1)
    assert is_probe_due(guard, guard.probe_at)
    assert not is_probe_due(
        replace(guard, override=ManualOverride(open=True, until=None)), guard.probe_at
    )
    assert not is_probe_due(NEW_GUARD, NOW)


def test_three_passed_probes_close_the_breaker_without_waiting():
    guard = is_open()
    at = guard.probe_at
    for n in range(3):
        guard, changes = ended(with_probe(guard, f"p{n}", at), True, at + SECOND, f"p{n}")
        at += SECOND
    assert changes == [BreakerChange("closed", "responds again after 33 s")]
    assert not guard.open
    assert guard.ramp is not None


def test_one_passed_probe_of_a_long_job_closes_the_breaker():
    guard = replace(is_open(), times={"encode": {duration_step(90_000): 30}})
    guard, changes = ended(with_probe(guard, kind="encode"), True, guard.probe_at + 90 * SECOND)
    assert changes[0].type == "closed"


def test_failed_probe_restarts_and_excludes_its_job():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard, "p1", at), True, at + SECOND, "p1")
    guard, changes = ended(with_probe(guard, "p2", at + SECOND), False, at + 2 * SECOND, "p2")
    assert (guard.open, guard.passed, guard.tried_jobs, guard.probe, changes) == (
        True,
        0,
        ("p2",),
        None,
        [],
    )
    assert at + SECOND < guard.probe_at <= at + SECOND + 30 * SECOND


def test_cool_down_counts_from_the_start_of_the_probe():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard), False, at + 25 * SECOND)
    assert guard.probe_at == at + 30 * SECOND


def test_probe_without_verdict_is_repeated():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard, "p1", at), True, at + SECOND)
    guard, _ = ended(with_probe(guard, "p2", at + SECOND), None, at + 2 * SECOND, "p2")
    assert (guard.passed, guard.probe, guard.probe_at) == (1, None, at + 2 * SECOND)


def test_verdict_of_an_earlier_outage_is_ignored():
    guard = with_probe(is_open())
    assert ended(guard, True, NOW + 40 * SECOND, "another")[0].passed == 0
    assert ended(NEW_GUARD, True, NOW)[0].open is False


def test_next_probe_replaces_a_probe_of_a_dead_worker():
    guard = with_probe(with_probe(is_open(), "p1"), "p2", NOW + 60 * SECOND)
    assert guard.probe.job_id == "p2"
    assert guard.tried_jobs == ("p1",)


def test_probe_without_verdict_is_followed_by_the_next_one_a_cool_down_later():
    guard = is_open()
    began = guard.probe_at
    guard = with_probe(guard)  # its worker is killed
    assert not is_probe_due(guard, began + CONFIG.cool_down - 1)
    assert is_probe_due(guard, began + CONFIG.cool_down)


def test_probe_of_unknown_duration_takes_at_most_a_cool_down():
    guard = replace(NEW_GUARD, opened_at=NOW)
    soon = replace(CONFIG, cool_down=8 * SECOND)
    assert probe_timeout(guard, "call", soon, NOW) == 8 * SECOND


def test_probe_times_out_at_three_times_the_usual_duration():
    guard = replace(NEW_GUARD, opened_at=NOW)
    assert probe_timeout(guard, "call", CONFIG, NOW) == 30 * SECOND
    quick = replace(guard, times={"call": {duration_step(100): 50}})
    assert probe_timeout(quick, "call", CONFIG, NOW) == 5 * SECOND
    slow = replace(guard, times={"call": {duration_step(8000): 50}})
    assert probe_timeout(slow, "call", CONFIG, NOW) == pytest.approx(24 * SECOND, rel=0.2)


def test_probe_timeout_grows_with_the_outage():
    guard = replace(NEW_GUARD, opened_at=NOW)
    assert probe_timeout(guard, "encode", CONFIG, NOW + 7200 * SECOND) == 1800 * SECOND
    quick = replace(guard, times={"call": {duration_step(100): 50}})
    assert probe_timeout(quick, "call", CONFIG, NOW + 60 * SECOND) == 15 * SECOND
    assert probe_timeout(quick, "call", CONFIG, NOW + 86_400 * SECOND) == 225 * SECOND


def test_durations_do_not_decay_during_an_outage():
    guard = replace(is_open(), times={"encode": {duration_step(90_000): 30}})
    for n in range(1, 20):
        guard, _ = fold(guard, now=NOW + n * 600 * SECOND)
    assert guard.median_ms("encode") is not None


def test_probe_is_rescheduled_after_the_clock_was_set_back():
    guard, _ = fold(is_open(), now=NOW - 36_000 * SECOND)
    assert guard.probe_at <= NOW - 36_000 * SECOND + 30 * SECOND
    assert guard.since <= NOW - 36_000 * SECOND


@given(st.integers(0, 10**7), st.floats(0.5, 1.0))
def test_cool_down_grows_with_the_outage_within_bounds(outage, drawn):
    class Drawn(Low):
        def uniform(self, low, high):
            return drawn

    wait = draw_cool_down(outage * SECOND, CONFIG, Drawn())
    assert 15 * SECOND <= wait <= 900 * SECOND
    assert wait == pytest.approx(min(max(30, outage / 2), 900) * drawn * SECOND, rel=0.01)


# -- ramp -----------------------------------------------------------------------------------------
def recovered(now=NOW):
    guard = is_open(now)
    at = guard.probe_at
    for n in range(3):
        guard, _ = ended(with_probe(guard, f"p{n}", at), True, at, f"p{n}")
    return guard, at


def test_few_failures_on_the_ramp_reopen_the_same_outage():
    guard, at = recovered()
    again, changes = fold(guard, DependencyTally(failed=6, jobs=("a", "b", "c")), now=at + SECOND)
    assert changes[0].type == "opened"
    assert again.since == NOW
    assert again.normal_rate == guard.normal_rate


def test_reopened_breaker_probes_as_early_as_the_first_time():
    guard, at = recovered()
    guard = replace(guard, since=at - 3600 * SECOND)
    again, _ = fold(
        guard, DependencyTally(failed=6, jobs=("a", "b", "c")), now=at + SECOND, rng=High()
    )
    assert again.probe_at == at + SECOND + 30 * SECOND


def test_later_outage_is_a_new_outage():
    guard, at = recovered()
    guard, _ = fold(guard, now=at + 3600 * SECOND)
    again, _ = fold(guard, DOWN, now=at + 3601 * SECOND)
    assert again.open
    assert again.since == at + 3601 * SECOND


def test_ramp_ends_at_the_normal_rate_without_waiting_jobs():
    guard, at = recovered()
    assert guard.ramp is not None
    all_changes = []
    for n in range(1, 1200):
        guard, changes = fold(
            guard, DependencyTally(ok=max(1, round(guard.ramp.rate))), now=at + n * SECOND
        )
        all_changes += changes
        if guard.ramp is None:
            break
    assert [change.type for change in all_changes] == ["changed"]
    assert not guard.affects_claims(CONFIG)


# -- manual --------------------------------------------------------------------------------------
def test_manual_hold_has_no_probe_and_ends_with_a_ramp():
    guard = breaker.open_manually(is_open(), NOW + 3600 * SECOND, "maintenance", CONFIG, NOW)
    assert not is_probe_due(guard, NOW + 1800 * SECOND)
    changes = []
    after = breaker.expire_hold(guard, 3600 * SECOND, CONFIG, NOW + 3601 * SECOND, changes)
    assert changes == [BreakerChange("closed", "the hold expired")]
    assert after.ramp is not None
    assert after.override is None


def test_short_hold_needs_no_ramp():
    changes = []
    after = breaker.expire_hold(NEW_GUARD, 2 * SECOND, CONFIG, NOW, changes)
    assert (after.ramp, changes) == (None, [BreakerChange("closed", "the hold expired")])


# -- JSON ----------------------------------------------------------------------------------------
def test_guard_survives_json():
    guard, _ = recovered()
    guard = replace(
        guard, times={"call": {3: 2.5}}, override=ManualOverride(open=False, until=None)
    )
    assert load_guard(guard.to_json()) == guard
    with_a_probe = with_probe(is_open())
    assert load_guard(with_a_probe.to_json()) == with_a_probe


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"probe": 3}', '{"window": [1]}', '{"later": 1}']
)
def test_unreadable_state_is_reset(text):
    assert load_guard(text) == GuardState()


def test_tally_survives_json():
    tally = DependencyTally(
        1, 0.5, 1, 2, 3, 4, 5, ("a",), {"call": {4: 1}}, ProbeVerdict("p", 2, None)
    )
    assert parse_tally(tally.to_json()) == tally
    assert parse_tally(DependencyTally().to_json()) == DependencyTally()

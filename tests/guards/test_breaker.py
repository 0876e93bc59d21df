"""A dependency's breaker, as one pure rule after the other."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.job import SECOND
from mulligan.guards import breaker
from mulligan.guards.breaker import BreakerChange, cool_down, cut, may_probe, observed, probing
from mulligan.guards.state import FRESH, BreakerTerms, GuardState, Hand, read_guard
from mulligan.guards.window import DependencyTally, ProbeVerdict, read_seen, step_of

NOW = 1_000_000 * SECOND
TERMS = BreakerTerms()
DOWN = DependencyTally(failed=20, jobs=("a", "b", "c"))


class Low:
    """A source that always draws the least."""

    def uniform(self, low, high):
        return low

    def random(self):
        return 0.0


class High(Low):
    def uniform(self, low, high):
        return high


def told(guard, *seen, now=NOW, terms=TERMS, rng=None, **more):
    return observed(guard, seen, terms, now, rng or Random(1), **more)


def is_open(now=NOW, rng=None, **more):
    guard, changes = told(FRESH, DOWN, now=now, rng=rng or High(), **more)
    assert [change.what for change in changes] == ["opened"]
    return guard


def with_probe(guard, job="p1", now=None, kind="call"):
    return probing(guard, job, 1, kind, guard.probe_at if now is None else now)


def ended(guard, passed, now, job="p1", rng=None):
    return told(
        guard, DependencyTally(verdict=ProbeVerdict(job, 1, passed)), now=now, rng=rng or High()
    )


# -- opening ------------------------------------------------------------------------------------------
def test_it_opens_with_a_reason_and_a_time_for_its_first_probe():
    guard = is_open()
    assert guard.open
    assert guard.reason == "20 of 20 calls failed within 1 s"
    assert guard.probe_at == NOW + 30 * SECOND
    assert guard.active(TERMS)


def test_the_first_probe_comes_within_the_cool_down_and_not_all_at_the_same_moment():
    assert is_open(rng=Low()).probe_at == NOW + 15 * SECOND


def test_while_it_is_open_what_still_fails_changes_nothing():
    guard = is_open()
    later, changes = told(guard, DOWN, now=NOW + SECOND)
    assert (later.open, later.since, later.probe_at, changes) == (True, NOW, guard.probe_at, [])


def test_a_person_who_keeps_it_closed_is_believed():
    guard, changes = told(replace(FRESH, hand=Hand(open=False, until=NOW + SECOND)), DOWN)
    assert not guard.open
    assert changes == []
    guard, changes = told(guard, DOWN, now=NOW + 2 * SECOND)
    assert guard.open


def test_it_remembers_how_busy_it_was():
    guard = FRESH
    for n in range(30):
        guard, _ = told(guard, DependencyTally(ok=40), now=NOW + n * SECOND)
    guard, _ = told(guard, replace_seen(DOWN, failed=200), now=NOW + 30 * SECOND)
    assert guard.open
    assert guard.normal == pytest.approx(40, rel=0.2)


def replace_seen(seen, **changes):
    return seen._replace(**changes)


# -- probes -------------------------------------------------------------------------------------------
def test_nobody_probes_before_the_time_or_against_a_person():
    guard = is_open()
    assert not may_probe(guard, guard.probe_at - 1)
    assert may_probe(guard, guard.probe_at)
    assert not may_probe(replace(guard, hand=Hand(open=True, until=None)), guard.probe_at)
    assert not may_probe(FRESH, NOW)


def test_three_probes_in_a_row_close_it_and_each_goes_at_once():
    guard = is_open()
    at = guard.probe_at
    for n in range(3):
        guard, changes = ended(with_probe(guard, f"p{n}", at), True, at + SECOND, f"p{n}")
        at += SECOND
    assert changes == [BreakerChange("closed", "answers again after 33 s")]
    assert not guard.open
    assert guard.ramp is not None


def test_one_success_of_a_long_job_is_enough():
    guard = replace(is_open(), times={"encode": {step_of(90_000): 30}})
    guard, changes = ended(with_probe(guard, kind="encode"), True, guard.probe_at + 90 * SECOND)
    assert changes[0].what == "closed"


def test_a_probe_that_fails_begins_anew_and_its_job_is_not_taken_again():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard, "p1", at), True, at + SECOND, "p1")
    guard, changes = ended(with_probe(guard, "p2", at + SECOND), False, at + 2 * SECOND, "p2")
    assert (guard.open, guard.passed, guard.tried, guard.probe, changes) == (
        True,
        0,
        ("p2",),
        None,
        [],
    )
    assert at + SECOND < guard.probe_at <= at + SECOND + 30 * SECOND


def test_the_wait_counts_from_the_start_of_a_probe_that_hung():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard), False, at + 25 * SECOND)
    assert guard.probe_at == at + 30 * SECOND


def test_a_probe_that_says_nothing_about_the_dependency_is_void():
    guard = is_open()
    at = guard.probe_at
    guard, _ = ended(with_probe(guard, "p1", at), True, at + SECOND)
    guard, _ = ended(with_probe(guard, "p2", at + SECOND), None, at + 2 * SECOND, "p2")
    assert (guard.passed, guard.probe, guard.probe_at) == (1, None, at + 2 * SECOND)


def test_a_verdict_from_an_outage_that_is_over_counts_for_nothing():
    guard = with_probe(is_open())
    assert ended(guard, True, NOW + 40 * SECOND, "another")[0].passed == 0
    assert ended(FRESH, True, NOW)[0].open is False


def test_a_probe_whose_worker_died_is_given_up_with_the_next():
    guard = with_probe(with_probe(is_open(), "p1"), "p2", NOW + 60 * SECOND)
    assert guard.probe.job_id == "p2"
    assert guard.tried == ("p1",)


def test_a_probe_is_cut_at_three_times_what_is_usual():
    guard = replace(FRESH, opened_at=NOW)
    assert cut(guard, "call", NOW) == 30 * SECOND
    quick = replace(guard, times={"call": {step_of(100): 50}})
    assert cut(quick, "call", NOW) == 5 * SECOND
    slow = replace(guard, times={"call": {step_of(8000): 50}})
    assert cut(slow, "call", NOW) == pytest.approx(24 * SECOND, rel=0.2)


def test_in_a_long_outage_a_probe_may_take_longer_or_long_jobs_could_never_tell_that_it_is_over():
    guard = replace(FRESH, opened_at=NOW)
    assert cut(guard, "encode", NOW + 7200 * SECOND) == 1800 * SECOND
    quick = replace(guard, times={"call": {step_of(100): 50}})
    assert cut(quick, "call", NOW + 60 * SECOND) == 15 * SECOND
    assert cut(quick, "call", NOW + 86_400 * SECOND) == 225 * SECOND


def test_what_is_usual_is_not_forgotten_in_an_outage():
    guard = replace(is_open(), times={"encode": {step_of(90_000): 30}})
    for n in range(1, 20):
        guard, _ = told(guard, now=NOW + n * 600 * SECOND)
    assert guard.median("encode") is not None


def test_after_a_clock_was_set_back_nobody_waits_for_the_old_time():
    guard, _ = told(is_open(), now=NOW - 36_000 * SECOND)
    assert guard.probe_at <= NOW - 36_000 * SECOND + 30 * SECOND
    assert guard.since <= NOW - 36_000 * SECOND


@given(st.integers(0, 10**7), st.floats(0.5, 1.0))
def test_the_cool_down_follows_the_outage_within_its_bounds(outage, drawn):
    class Drawn(Low):
        def uniform(self, low, high):
            return drawn

    wait = cool_down(outage * SECOND, TERMS, Drawn())
    assert 15 * SECOND <= wait <= 900 * SECOND
    assert wait == pytest.approx(min(max(30, outage / 2), 900) * drawn * SECOND, rel=0.01)


# -- after it -----------------------------------------------------------------------------------------
def recovered(now=NOW):
    guard = is_open(now)
    at = guard.probe_at
    for n in range(3):
        guard, _ = ended(with_probe(guard, f"p{n}", at), True, at, f"p{n}")
    return guard, at


def test_on_the_ramp_a_few_failures_open_it_again_and_the_outage_goes_on():
    guard, at = recovered()
    again, changes = told(guard, DependencyTally(failed=6, jobs=("a", "b", "c")), now=at + SECOND)
    assert changes[0].what == "opened"
    assert again.since == NOW
    assert again.normal == guard.normal


def test_what_opens_again_is_asked_again_as_soon_as_at_first():
    guard, at = recovered()
    guard = replace(guard, since=at - 3600 * SECOND)
    again, _ = told(
        guard, DependencyTally(failed=6, jobs=("a", "b", "c")), now=at + SECOND, rng=High()
    )
    assert again.probe_at == at + SECOND + 30 * SECOND


def test_long_after_it_a_new_outage_is_a_new_one():
    guard, at = recovered()
    guard, _ = told(guard, now=at + 3600 * SECOND)
    again, _ = told(guard, DOWN, now=at + 3601 * SECOND)
    assert again.open
    assert again.since == at + 3601 * SECOND


def test_once_nothing_waits_and_it_is_as_busy_as_before_the_ramp_is_over():
    guard, at = recovered()
    assert guard.ramp is not None
    said = []
    for n in range(1, 1200):
        guard, changes = told(
            guard, DependencyTally(ok=max(1, round(guard.ramp.rate))), now=at + n * SECOND
        )
        said += changes
        if guard.ramp is None:
            break
    assert [change.what for change in said] == ["changed"]
    assert not guard.active(TERMS)


# -- by hand ------------------------------------------------------------------------------------------
def test_what_a_person_holds_is_not_probed_and_comes_back_on_a_ramp():
    guard = breaker.opened_by_hand(is_open(), NOW + 3600 * SECOND, "maintenance", TERMS, NOW)
    assert not may_probe(guard, NOW + 1800 * SECOND)
    changes = []
    after = breaker.let_go(guard, 3600 * SECOND, TERMS, NOW + 3601 * SECOND, changes)
    assert changes == [BreakerChange("closed", "its time is over")]
    assert after.ramp is not None
    assert after.hand is None


def test_a_hold_of_a_few_seconds_needs_no_ramp():
    changes = []
    after = breaker.let_go(FRESH, 2 * SECOND, TERMS, NOW, changes)
    assert (after.ramp, changes) == (None, [BreakerChange("closed", "its time is over")])


# -- kept ---------------------------------------------------------------------------------------------
def test_a_guard_survives_its_way_through_the_store():
    guard, _ = recovered()
    guard = replace(guard, times={"call": {3: 2.5}}, hand=Hand(open=False, until=None))
    assert read_guard(guard.to_json()) == guard
    with_a_probe = with_probe(is_open())
    assert read_guard(with_a_probe.to_json()) == with_a_probe


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"probe": 3}', '{"window": [1]}', '{"later": 1}']
)
def test_what_cannot_be_read_is_forgotten(text):
    assert read_guard(text) == GuardState()


def test_a_tally_survives_its_way_through_the_store():
    seen = DependencyTally(
        1, 0.5, 1, 2, 3, 4, 5, ("a",), {"call": {4: 1}}, ProbeVerdict("p", 2, None)
    )
    assert read_seen(seen.to_json()) == seen
    assert read_seen(DependencyTally().to_json()) == DependencyTally()

"""Kind breaker: which deaths hold a kind, and which do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Rule
from mulligan.core.attempt import Cls, Decision, Ground, Verb
from mulligan.core.durations import SECOND
from mulligan.core.job import State
from mulligan.failures import codes as ends
from mulligan.failures.matcher import Rulebook, apply_verdict_rules
from mulligan.guards import kind_breaker as cause
from mulligan.guards.kind_breaker import (
    DEFAULT_KIND_BREAKER,
    EMPTY_KIND_STATE,
    KindBreakerConfig,
    KindDeath,
    KindState,
    LastSuccess,
    parse_deaths,
    parse_kind_state,
)
from support.builders import NOW, make_failure, make_lease

NEVER = LastSuccess(None, 0)
LONG_AGO = LastSuccess(NOW - 3600 * SECOND, 0)


def deaths(jobs, owners=1, name="v2-boom", personal=False, at=NOW, first=0):
    return [
        KindDeath(
            f"job{first + n}",
            f"owner{n % owners}",
            at + n * SECOND,
            name,
            "BOOM",
            "It broke.",
            personal,
        )
        for n in range(jobs)
    ]


def after(
    dead,
    success=LONG_AGO,
    terms=DEFAULT_KIND_BREAKER,
    state=EMPTY_KIND_STATE,
    now=NOW + 60 * SECOND,
) -> KindState:
    state = cause.add_deaths(state, dead, terms, now)
    return (
        cause.judge_streaks(state, success, terms, now)
        if cause.is_suspicious(state, terms, now)
        else state
    )


# -- how many ------------------------------------------------------------------------------------
def test_five_deaths_of_two_owners_hold_the_kind_with_a_reason():
    held = after(deaths(5, owners=2)).held
    assert held is not None
    assert (held.fingerprint, held.code, held.jobs, held.owners) == ("v2-boom", "BOOM", 5, 2)
    assert held.since == NOW
    assert held.job == "job4"
    assert held.reason == (
        "5 jobs of 2 owners failed in a row with BOOM since 2023-11-14 22:13:20 UTC;"
        " the others wait instead of dying: It broke."
    )


@pytest.mark.parametrize(
    ("dead", "why"),
    [
        (deaths(4, owners=4), "too few"),
        (deaths(19), "one owner: more are needed"),
        (deaths(5, owners=2, name="a")[:3] + deaths(5, owners=2, name="b")[:3], "two causes"),
        (deaths(1) * 50, "the same job again and again"),
        (deaths(19, owners=5, personal=True), "each may have brought it about alone"),
    ],
)
def test_deaths_that_do_not_hold_the_kind(dead, why):
    assert after(dead).held is None, why


def test_twenty_deaths_of_one_owner_hold_a_kind_that_worked():
    assert after(deaths(20)).held is not None


def test_kind_of_one_owner_that_never_worked_is_not_held():
    assert after(deaths(50), NEVER).held is None


def test_kind_that_never_worked_is_held_after_deaths_of_several_owners():
    assert after(deaths(5, owners=2), NEVER).held is not None


def test_possible_owner_faults_need_the_single_owner_number():
    assert after(deaths(20, owners=2, personal=True), NEVER).held is not None


@pytest.mark.parametrize(
    ("terms", "dead", "held"),
    [
        (KindBreakerConfig(jobs=0), deaths(200, owners=50), False),
        (KindBreakerConfig(jobs=3, owners=3), deaths(3, owners=3), True),
        (KindBreakerConfig(jobs=3, owners=3), deaths(10, owners=2), False),
        (KindBreakerConfig(owners=1), deaths(5), True),
        (KindBreakerConfig(single_owner_jobs=0), deaths(100), False),
        (KindBreakerConfig(single_owner_jobs=8), deaths(8), True),
    ],
)
def test_limits_are_configurable(terms, dead, held):
    assert (after(dead, terms=terms).held is not None) == held


# -- success -------------------------------------------------------------------------------------
def test_only_deaths_after_the_last_success_count():
    state = after(deaths(5, owners=2), LastSuccess(NOW + 2 * SECOND, 0))
    assert state.held is None
    assert len(state.streaks["v2-boom"].victims) == 2
    assert after(deaths(3, owners=2, first=10, at=NOW + 10 * SECOND), state=state).held is not None


def test_deaths_before_the_searched_period_do_not_count():
    assert after(deaths(5, owners=2), LastSuccess(None, NOW + SECOND)).held is None
    assert after(deaths(5, owners=2), LastSuccess(None, NOW - SECOND)).held is not None


def test_few_deaths_cause_no_search_for_a_success():
    assert not cause.is_suspicious(
        cause.add_deaths(EMPTY_KIND_STATE, deaths(4, owners=4), DEFAULT_KIND_BREAKER, NOW),
        DEFAULT_KIND_BREAKER,
        NOW,
    )
    assert cause.is_suspicious(
        cause.add_deaths(EMPTY_KIND_STATE, deaths(5, owners=4), DEFAULT_KIND_BREAKER, NOW),
        DEFAULT_KIND_BREAKER,
        NOW,
    )


def test_success_of_a_failing_kind_is_searched_once_a_minute():
    state = after(deaths(20), NEVER, now=NOW)
    assert not cause.is_suspicious(state, DEFAULT_KIND_BREAKER, NOW + 59 * SECOND)
    assert cause.is_suspicious(state, DEFAULT_KIND_BREAKER, NOW + 60 * SECOND)


def test_past_success_is_remembered():
    state = after(deaths(20), LastSuccess(NOW + 100 * SECOND, 0))
    assert (state.held, state.worked, state.streaks) == (None, True, {})
    assert after(deaths(20, at=NOW + 200 * SECOND), NEVER, state=state).held is not None


# -- state ---------------------------------------------------------------------------------------
def test_deaths_older_than_a_day_are_dropped():
    state = cause.add_deaths(EMPTY_KIND_STATE, deaths(4, owners=2), DEFAULT_KIND_BREAKER, NOW)
    late = NOW + cause.DAY + 60 * SECOND
    assert len(after(deaths(1, at=late), state=state, now=late).streaks["v2-boom"].victims) == 1


def test_state_size_is_bounded():
    dead = [one for n in range(50) for one in deaths(300, name=f"cause{n}")]
    state = cause.add_deaths(EMPTY_KIND_STATE, dead, DEFAULT_KIND_BREAKER, NOW)
    assert len(state.streaks) == cause.MAX_CAUSES
    assert len(state.to_json()) < 20_000


def test_release_drops_deaths_and_keeps_the_past_success():
    state = cause.release_kind(after(deaths(20)))
    assert (state.held, state.streaks, state.worked) == (None, {}, True)
    assert after(deaths(4, owners=2), state=state).held is None
    assert after(deaths(5, owners=2), state=state).held is not None


@given(st.integers(0, 30), st.integers(1, 5), st.booleans())
def test_kind_state_survives_json(jobs, owners, worked):
    state = after(deaths(jobs, owners), LONG_AGO if worked else NEVER)
    assert parse_kind_state(state.to_json()) == state


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"streaks":[1]}', '{"held":[1]}', '{"streaks":{"a":[1]}}']
)
def test_unreadable_state_is_reset(text):
    assert parse_kind_state(text) == EMPTY_KIND_STATE


@pytest.mark.parametrize("text", ["", "{", "[1]", '[["job", "owner"]]'])
def test_deaths_in_an_unknown_format_are_ignored(text):
    assert parse_deaths(text) == []


# -- what counts ---------------------------------------------------------------------------------
def died(failure, failures=1, verb=Verb.DIE):
    return Decision(
        verb, State.DEAD, Ground.CLASS_NOT_RETRYABLE, "", failures=failures, failure=failure
    )


def death(failure, failures=1, **lease):
    known = replace(failure, fingerprint=failure.fingerprint or "v2-boom")
    return cause.count_death(make_lease(**lease), died(known, failures), NOW)


@pytest.mark.parametrize(
    ("cls", "counts"),
    [
        (Cls.PERMANENT, True),
        (Cls.AUTH, True),
        (Cls.QUOTA, True),
        (Cls.UNKNOWN, True),
        (Cls.RESOURCE, True),
        (Cls.INVALID_INPUT, False),
        (Cls.CANCELLED, False),
        (Cls.RATE_LIMITED, False),
        (Cls.TRANSIENT, False),
        (Cls.TIMEOUT, False),
    ],
)
def test_classes_that_count_at_once(cls, counts):
    assert (death(make_failure(cls=cls)) is not None) == counts


@pytest.mark.parametrize("cls", [Cls.TRANSIENT, Cls.TIMEOUT])
def test_temporary_failure_counts_after_a_failed_retry_without_dependency(cls):
    assert death(make_failure(cls=cls), failures=2) is not None
    assert death(make_failure(cls=cls), failures=2, uses="gateway") is None


@pytest.mark.parametrize("cls", list(Cls))
def test_job_that_is_retried_does_not_count(cls):
    assert cause.count_death(make_lease(), died(make_failure(cls=cls), 2, Verb.RETRY), NOW) is None


@pytest.mark.parametrize(
    "failure",
    [
        ends.unknown_kind("render"),
        ends.deadline_passed(),
        ends.dependency_unavailable("gateway", ""),
        ends.snooze_limit(3),
        ends.worker_lost("w1"),
        ends.retry_requested("again"),
        ends.unreported(),
        ends.outcome_refused("no"),
    ],
    ids=lambda failure: failure.code,
)
def test_system_codes_without_a_cause_do_not_count_under_any_name(failure):
    assert death(failure, failures=9) is None
    book = Rulebook([Rule("other", verdict=failure.code, code="UNKNOWN", cls="unknown")])
    renamed = apply_verdict_rules(failure, [book])
    assert renamed.code == "UNKNOWN"
    assert death(renamed, failures=9) is None


@pytest.mark.parametrize(
    "failure", [ends.process_died(signal=11), ends.timed_out(3), ends.memory_limit_exceeded(1, 2)]
)
def test_failure_observed_from_outside_may_be_the_owners_fault(failure):
    one = death(failure, failures=2)
    assert one is not None
    assert one.personal


def test_system_kinds_do_not_count():
    assert death(make_failure(cls=Cls.PERMANENT), kind="mulligan.probe") is None


def test_only_the_shortened_public_message_is_stored():
    one = death(
        replace(make_failure(cls=Cls.PERMANENT), public="x" * 5000, private={"message": "secret"})
    )
    assert one is not None
    assert one.message == "x" * cause.MAX_MESSAGE_CHARS
    assert "secret" not in str(one)

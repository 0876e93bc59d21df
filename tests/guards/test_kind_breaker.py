"""Many jobs, one cause, no success: when that holds a kind, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.attempt import Cls, Decision, Ground, Verb
from mulligan.core.job import SECOND, State
from mulligan.failures import codes as ends
from mulligan.guards import kind_breaker as cause
from mulligan.guards.kind_breaker import (
    DEFAULT_KIND_TERMS,
    NOTHING,
    KindBreakerTerms,
    KindDeath,
    KindState,
    Success,
    read_deaths,
    read_kind_body,
)
from support.builders import NOW, a_failure, a_lease

NEVER = Success(None, 0)
LONG_AGO = Success(NOW - 3600 * SECOND, 0)


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
    dead, success=LONG_AGO, terms=DEFAULT_KIND_TERMS, memory=NOTHING, now=NOW + 60 * SECOND
) -> KindState:
    memory = cause.counted(memory, dead, terms, now)
    return (
        cause.judged(memory, success, terms, now)
        if cause.suspicious(memory, terms, now)
        else memory
    )


# -- how many ------------------------------------------------------------------------------------------
def test_five_jobs_of_two_owners_hold_their_kind_and_say_why():
    held = after(deaths(5, owners=2)).held
    assert held is not None
    assert (held.fingerprint, held.code, held.jobs, held.owners) == ("v2-boom", "BOOM", 5, 2)
    assert held.since == NOW
    assert held.job == "job4"
    assert held.reason == (
        "5 jobs of 2 owners died of BOOM since 2023-11-14 22:13:20 UTC, and none has succeeded: It broke."
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
def test_what_holds_nothing(dead, why):
    assert after(dead).held is None, why


def test_twenty_jobs_of_one_owner_hold_a_kind_that_has_worked_before():
    assert after(deaths(20)).held is not None


def test_a_kind_that_never_worked_and_has_one_owner_just_fails():
    assert after(deaths(50), NEVER).held is None


def test_one_that_never_worked_is_held_all_the_same_when_several_owners_agree():
    assert after(deaths(5, owners=2), NEVER).held is not None


def test_what_may_be_a_customers_own_needs_as_many_as_one_owner_alone():
    assert after(deaths(20, owners=2, personal=True), NEVER).held is not None


@pytest.mark.parametrize(
    ("terms", "dead", "held"),
    [
        (KindBreakerTerms(jobs=0), deaths(200, owners=50), False),
        (KindBreakerTerms(jobs=3, owners=3), deaths(3, owners=3), True),
        (KindBreakerTerms(jobs=3, owners=3), deaths(10, owners=2), False),
        (KindBreakerTerms(owners=1), deaths(5), True),
        (KindBreakerTerms(alone=0), deaths(100), False),
        (KindBreakerTerms(alone=8), deaths(8), True),
    ],
)
def test_the_numbers_are_settings(terms, dead, held):
    assert (after(dead, terms=terms).held is not None) == held


# -- success -------------------------------------------------------------------------------------------
def test_only_deaths_after_the_last_success_count():
    memory = after(deaths(5, owners=2), Success(NOW + 2 * SECOND, 0))
    assert memory.held is None
    assert len(memory.streaks["v2-boom"].victims) == 2
    assert (
        after(deaths(3, owners=2, first=10, at=NOW + 10 * SECOND), memory=memory).held is not None
    )


def test_before_the_oldest_success_that_was_looked_at_nobody_knows_so_nothing_counts():
    assert after(deaths(5, owners=2), Success(None, NOW + SECOND)).held is None
    assert after(deaths(5, owners=2), Success(None, NOW - SECOND)).held is not None


def test_the_store_is_not_asked_before_there_are_enough():
    assert not cause.suspicious(
        cause.counted(NOTHING, deaths(4, owners=4), DEFAULT_KIND_TERMS, NOW),
        DEFAULT_KIND_TERMS,
        NOW,
    )
    assert cause.suspicious(
        cause.counted(NOTHING, deaths(5, owners=4), DEFAULT_KIND_TERMS, NOW),
        DEFAULT_KIND_TERMS,
        NOW,
    )


def test_of_a_hopeless_kind_the_store_is_asked_once_a_minute():
    memory = after(deaths(20), NEVER, now=NOW)
    assert not cause.suspicious(memory, DEFAULT_KIND_TERMS, NOW + 59 * SECOND)
    assert cause.suspicious(memory, DEFAULT_KIND_TERMS, NOW + 60 * SECOND)


def test_that_it_worked_once_is_remembered():
    memory = after(deaths(20), Success(NOW + 100 * SECOND, 0))
    assert (memory.held, memory.worked, memory.streaks) == (None, True, {})
    assert after(deaths(20, at=NOW + 200 * SECOND), NEVER, memory=memory).held is not None


# -- memory --------------------------------------------------------------------------------------------
def test_what_has_no_news_for_a_day_is_forgotten():
    memory = cause.counted(NOTHING, deaths(4, owners=2), DEFAULT_KIND_TERMS, NOW)
    late = NOW + cause.DAY + 60 * SECOND
    assert len(after(deaths(1, at=late), memory=memory, now=late).streaks["v2-boom"].victims) == 1


def test_it_stays_small_whatever_happens():
    dead = [one for n in range(50) for one in deaths(300, name=f"cause{n}")]
    memory = cause.counted(NOTHING, dead, DEFAULT_KIND_TERMS, NOW)
    assert len(memory.streaks) == cause.MOST_CAUSES
    assert len(memory.to_json()) < 20_000


def test_release_forgets_the_deaths_and_keeps_that_it_has_worked():
    memory = cause.released(after(deaths(20)))
    assert (memory.held, memory.streaks, memory.worked) == (None, {}, True)
    assert after(deaths(4, owners=2), memory=memory).held is None
    assert after(deaths(5, owners=2), memory=memory).held is not None


@given(st.integers(0, 30), st.integers(1, 5), st.booleans())
def test_it_reads_back_what_it_wrote(jobs, owners, worked):
    memory = after(deaths(jobs, owners), LONG_AGO if worked else NEVER)
    assert read_kind_body(memory.to_json()) == memory


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"streaks":[1]}', '{"held":[1]}', '{"streaks":{"a":[1]}}']
)
def test_what_cannot_be_read_is_forgotten(text):
    assert read_kind_body(text) == NOTHING


@pytest.mark.parametrize("text", ["", "{", "[1]", '[["job", "owner"]]'])
def test_deaths_as_another_version_counts_them_are_left_aside(text):
    assert read_deaths(text) == []


# -- what counts ---------------------------------------------------------------------------------------
def died(failure, failures=1, verb=Verb.DIE):
    return Decision(
        verb, State.DEAD, Ground.CLASS_NOT_RETRYABLE, "", failures=failures, failure=failure
    )


def death(failure, failures=1, **lease):
    known = replace(failure, fingerprint=failure.fingerprint or "v2-boom")
    return cause.death(a_lease(**lease), died(known, failures), NOW)


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
def test_which_classes_count_at_once(cls, counts):
    assert (death(a_failure(cls=cls)) is not None) == counts


@pytest.mark.parametrize("cls", [Cls.TRANSIENT, Cls.TIMEOUT])
def test_what_may_pass_counts_once_a_retry_did_not_help_and_no_dependency_is_to_blame(cls):
    assert death(a_failure(cls=cls), failures=2) is not None
    assert death(a_failure(cls=cls), failures=2, uses="gateway") is None


@pytest.mark.parametrize("cls", list(Cls))
def test_a_job_that_will_be_tried_again_does_not_count(cls):
    assert cause.death(a_lease(), died(a_failure(cls=cls), 2, Verb.RETRY), NOW) is None


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
        ends.unrecordable("no"),
    ],
    ids=lambda failure: failure.code,
)
def test_ends_of_our_own_that_name_no_cause_never_count(failure):
    assert death(failure, failures=9) is None


@pytest.mark.parametrize(
    "failure", [ends.process_died(signal=11), ends.timed_out(3), ends.memory_limit(1, 2)]
)
def test_what_is_seen_from_outside_may_be_a_customers_own(failure):
    one = death(failure, failures=2)
    assert one is not None
    assert one.personal


def test_kinds_of_our_own_never_count():
    assert death(a_failure(cls=Cls.PERMANENT), kind="mulligan.probe") is None


def test_only_the_public_sentence_is_kept_and_not_all_of_a_long_one():
    one = death(
        replace(a_failure(cls=Cls.PERMANENT), public="x" * 5000, private={"message": "secret"})
    )
    assert one is not None
    assert one.message == "x" * cause.LONGEST
    assert "secret" not in str(one)

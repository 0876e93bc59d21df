"""Decisions: what each outcome means for a job."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.config import RetrySection
from mulligan.core import lifecycle
from mulligan.core.attempt import RETRYABLE, Cls, Ended, Ground, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.core.job import State
from mulligan.retries.backoff import Fixed
from mulligan.retries.decide import decide
from mulligan.retries.policy import Policy, resolve_policy
from support.builders import NOW, make_failure, make_lease

STEADY = resolve_policy(RetrySection(), None, Policy(max_retries=3, backoff=Fixed(10)))
HOUR = 3600 * SECOND


def judge(outcome, policy=STEADY, seed=0, now=NOW, **lease):
    return decide(make_lease(**lease), outcome, policy, now, Random(seed))


def failed(cls=Cls.TRANSIENT, *, final=False, **facts):
    return Outcome(Ended.FAILED, failure=make_failure(cls, **facts), final=final)


def test_a_retry_is_never_due_before_the_attempt_that_failed_began():
    """The worker estimates the time; its estimate may lag behind the time of the claim."""
    began = NOW + SECOND // 10
    assert judge(failed(), now=NOW, started_at=began).run_at == began + 10 * SECOND
    assert judge(Outcome(Ended.LOST, failure=make_failure()), started_at=began).run_at == began


def test_a_retry_does_not_wait_for_a_clock_that_was_set_back():
    assert judge(failed(), now=NOW, started_at=NOW + HOUR).run_at == NOW + 10 * SECOND


# What ends at once


def test_returned_attempt_succeeds():
    decision = judge(Outcome(Ended.RETURNED, result="42", cost=1.5), failures=2, snoozes=1)
    assert (decision.verb, decision.state, decision.result, decision.cost) == (
        "succeed",
        "succeeded",
        "42",
        1.5,
    )
    assert (decision.failures, decision.snoozes) == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"failures": 1},
        {"losses": 2},
        {"snoozes": 3},
        {"counts": "{}"},
        {"settings": "{}"},
        {"cancel_reason": ""},
    ],
)
@pytest.mark.parametrize("more", [{}, {"cost": 1.5}, {"skipped": True}])
def test_success_without_result_keeps_counters_and_settings(changes, more):
    decision = judge(Outcome(Ended.RETURNED, result="null", **more), **changes)
    counted = ("failures", "losses", "snoozes", "counts", "settings")
    assert {name: getattr(decision, name) for name in counted} == {
        name: changes.get(name, 0 if name in counted[:3] else None) for name in counted
    }
    assert (decision.state, decision.result, decision.run_at, decision.failure) == (
        "succeeded",
        "null",
        None,
        None,
    )
    assert (decision.cost, decision.skipped) == (more.get("cost", 0.0), more.get("skipped", False))
    assert decision.reason.endswith("before it could be stopped") is ("cancel_reason" in changes)


def test_result_wins_over_a_later_stop_request():
    decision = judge(Outcome(Ended.RETURNED, result="42"), cancel_reason="wrong file")
    assert decision.state == State.SUCCEEDED
    assert decision.reason == "returned before it could be stopped"


@pytest.mark.parametrize("ended", [ended for ended in Ended if ended != Ended.RETURNED])
def test_any_other_ending_after_a_stop_request_cancels_the_job(ended):
    decision = judge(Outcome(ended, failure=make_failure()), cancel_reason="wrong file")
    assert (decision.verb, decision.state) == (Verb.STOP, State.CANCELLED)
    assert decision.reason == "stopped on request: wrong file"


def test_handler_can_cancel_its_job():
    decision = judge(Outcome(Ended.CANCELLED, reason="no longer wanted"))
    assert (decision.state, decision.reason) == (State.CANCELLED, "no longer wanted")


def test_a_parked_job_carries_its_choices():
    decision = judge(Outcome(Ended.PARKED, reason="two matches", choices=("a", "b")))
    assert (decision.state, decision.choices, decision.reason) == (
        State.PARKED,
        ("a", "b"),
        "two matches",
    )


# What is given back or lost


def test_release_is_not_charged():
    decision = judge(Outcome(Ended.RELEASED), failures=1, losses=1, snoozes=1)
    assert (decision.verb, decision.run_at, decision.alone) == (Verb.GIVE_BACK, NOW, False)
    assert (decision.failures, decision.losses, decision.snoozes) == (1, 1, 1)


@pytest.mark.parametrize(("requested", "before"), [(True, False), (False, True)])
def test_release_keeps_or_sets_the_alone_flag(requested, before):
    decision = judge(Outcome(Ended.RELEASED, alone=requested), alone=before, losses=1)
    assert decision.alone
    assert decision.losses == 1


def test_loss_uses_no_retry_and_the_next_attempt_runs_alone():
    decision = judge(Outcome(Ended.LOST, failure=make_failure(code="PROCESS_DIED")), failures=3)
    assert (decision.verb, decision.run_at, decision.alone) == (Verb.LOSE, NOW, True)
    assert (decision.failures, decision.losses) == (3, 1)
    assert (
        decision.reason == "lost 1 of at most 2 times; the next attempt runs alone in its process"
    )


def test_loss_of_an_attempt_that_had_ended_does_not_make_the_next_one_run_alone():
    failure = make_failure(code="WORKER_LOST")
    decision = judge(Outcome(Ended.LOST, failure=failure, suspect=False))
    assert (decision.losses, decision.alone) == (1, False)
    assert decision.reason == "lost 1 of at most 2 times"


@given(st.integers(0, 10))
def test_poison_job_dies_after_max_losses_plus_one_starts(max_losses):
    policy = resolve_policy(RetrySection(max_losses=max_losses))
    lease, starts = make_lease(), 0
    while True:
        starts += 1
        decision = decide(
            lease,
            Outcome(Ended.LOST, failure=make_failure(code="PROCESS_DIED")),
            policy,
            NOW,
            Random(0),
        )
        if decision.state == State.DEAD:
            break
        lease = lease._replace(losses=decision.losses, alone=decision.alone)
    assert starts == max_losses + 1
    assert decision.failure.code == "PROCESS_DIED"


@pytest.mark.parametrize(
    "ended", [Ended.RETURNED, Ended.FAILED, Ended.RETRY, Ended.SNOOZED, Ended.PARKED, Ended.HELD]
)
def test_surviving_alone_refunds_a_loss_and_ends_isolation(ended):
    outcome = Outcome(ended, failure=make_failure(), after=1, dependency="gateway")
    decision = judge(outcome, alone=True, losses=2, uses="gateway")
    assert (decision.losses, decision.alone) == (1, False)
    assert judge(outcome, alone=True, losses=0, uses="gateway").losses == 0
    assert judge(outcome, alone=False, losses=2, uses="gateway").losses == 2


def test_a_job_that_is_lost_alone_after_a_stop_request_gets_no_refund():
    outcome = Outcome(Ended.LOST, failure=make_failure(code="PROCESS_DIED"))
    decision = judge(outcome, alone=True, losses=2, cancel_reason="enough")
    assert (decision.verb, decision.losses) == (Verb.STOP, 2)


# What waits uncharged


def test_snooze_changes_only_the_snooze_counter():
    decision = judge(Outcome(Ended.SNOOZED, after=5 * SECOND, reason="not ready"), failures=1)
    assert (decision.verb, decision.run_at, decision.snoozes, decision.failures) == (
        Verb.SNOOZE,
        NOW + 5 * SECOND,
        1,
        1,
    )
    assert decision.reason == "snoozed for 5 s: not ready"


def test_snooze_until_a_time():
    assert judge(Outcome(Ended.SNOOZED, until=NOW + 7 * SECOND)).run_at == NOW + 7 * SECOND


@pytest.mark.parametrize(
    "delay", [{"after": 0}, {"after": 7}, {"until": NOW - 7}, {"until": NOW + 7}, {}]
)
def test_snooze_lasts_at_least_one_second(delay):
    assert judge(Outcome(Ended.SNOOZED, **delay)).run_at == NOW + SECOND


def test_too_many_snoozes_end_the_job():
    policy = resolve_policy(RetrySection(max_snoozes=2))
    assert judge(Outcome(Ended.SNOOZED, after=0), policy, snoozes=1).state == State.QUEUED
    decision = judge(Outcome(Ended.SNOOZED, after=0), policy, snoozes=2)
    assert (decision.state, decision.failure.code, decision.failure.cls) == (
        State.DEAD,
        "SNOOZE_LIMIT",
        Cls.PERMANENT,
    )


@pytest.mark.parametrize(
    ("after", "until", "expected"),
    [
        (None, None, 60 * SECOND),
        (90 * SECOND, None, 90 * SECOND),
        (None, NOW + 9 * SECOND, 9 * SECOND),
        (9 * HOUR, None, HOUR),
        (0, None, SECOND),  # uncharged and instant would be a job that spins for ever
    ],
)
def test_a_hold_requeues_uncharged_and_closes_the_dependency(after, until, expected):
    outcome = Outcome(
        Ended.HELD, dependency="gateway", after=after, until=until, reason="maintenance"
    )
    decision = judge(outcome, uses="gateway,s3", failures=1)
    assert (decision.verb, decision.run_at, decision.failures) == (Verb.HOLD, NOW, 1)
    assert decision.hold == ("gateway", NOW + expected, "maintenance")


def test_a_hold_without_a_reason_says_that_a_handler_reported_it():
    decision = judge(Outcome(Ended.HELD, dependency="gateway"), uses="gateway")
    assert decision.hold[2] == "a handler reported that it is down"


@pytest.mark.parametrize("dependency", ["gate", "", "gateway,s3"])
def test_only_dependencies_of_the_job_can_be_held(dependency):
    decision = judge(Outcome(Ended.HELD, dependency=dependency), uses="gateway,s3")
    assert (decision.state, decision.hold) == (State.DEAD, None)
    assert decision.failure.code == "HOLD_UNKNOWN_DEPENDENCY"


# What is tried again


def test_a_transient_failure_is_retried_with_a_reason():
    decision = judge(failed(), failures=1)
    assert (decision.verb, decision.state, decision.failures) == (Verb.RETRY, State.QUEUED, 2)
    assert decision.run_at == NOW + 10 * SECOND
    assert decision.reason == "retry 2 of 3 in 10 s: transient"


def test_job_dies_when_its_retries_are_used():
    decision = judge(failed(), failures=3)
    assert (decision.state, decision.failures, decision.reason) == (
        State.DEAD,
        4,
        "3 of 3 retries used",
    )
    assert decision.failure.code == "BOOM"


@pytest.mark.parametrize("cls", [cls for cls in Cls if cls not in RETRYABLE])
def test_max_retries_cannot_allow_what_the_class_forbids(cls):
    policy = resolve_policy(
        RetrySection(max_retries=9),
        None,
        Policy(max_retries=9, classes={cls: Policy(max_retries=9)}),
    )
    decision = judge(failed(cls), policy)
    assert decision.state == State.DEAD
    assert decision.reason.startswith(
        f"not retried: class {cls} by rule test.rule; to retry it anyway"
    )


def test_programming_error_says_how_to_retry_it():
    outcome = failed(Cls.PERMANENT, rule="py.programming-error")
    decision = judge(outcome)
    assert decision.reason == (
        "not retried: class permanent by rule py.programming-error; "
        "to retry such errors, use Policy(retry_unknown=True)"
    )
    assert (
        judge(outcome, resolve_policy(RetrySection(), None, Policy(retry_unknown=True))).verb
        == Verb.RETRY
    )


def test_final_failure_is_not_retried():
    decision = judge(failed(final=True))
    assert (decision.state, decision.reason) == (
        State.DEAD,
        "not retried: the handler declared the failure final",
    )


def test_retry_enabled_switches_off_all_retries():
    policy = resolve_policy(RetrySection(enabled=False), None, Policy(max_retries=9))
    assert judge(failed(), policy).reason == "not retried: retries are switched off (retry.enabled)"
    assert judge(Outcome(Ended.RETRY), policy).state == State.DEAD
    assert judge(Outcome(Ended.LOST), policy).state == State.QUEUED


def test_zero_retries_names_the_scope_that_sets_it():
    policy = resolve_policy(RetrySection(), None, Policy(max_retries=0))
    assert judge(failed(), policy).reason == "not retried: the kind allows no retries"


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (Policy(), 2),
        (Policy(max_retries=5), 5),
        (Policy(retry_unknown=True), 3),
        (Policy(retry_unknown=False), 0),
        (Policy(max_retries=5, classes={"unknown": Policy(max_retries=1)}), 1),
    ],
)
def test_number_of_retries_of_unknown_failures(policy, allowed):
    effective, lease = resolve_policy(RetrySection(), None, policy), make_lease()
    retries = 0
    while (
        decision := decide(lease, failed(Cls.UNKNOWN), effective, NOW, Random(0))
    ).verb == Verb.RETRY:
        retries += 1
        lease = lease._replace(failures=decision.failures, counts=decision.counts)
    assert retries == allowed


def test_requested_retry_counts_only_against_the_total():
    policy = resolve_policy(
        RetrySection(),
        None,
        Policy(max_retries=2, classes={c: Policy(max_retries=0) for c in Cls}),
    )
    assert judge(Outcome(Ended.RETRY, reason="again"), policy, failures=1).verb == Verb.RETRY
    decision = judge(Outcome(Ended.RETRY, reason="again"), policy, failures=2)
    assert (decision.state, decision.reason) == (State.DEAD, "2 of 2 retries used")
    assert decision.failure.code == "RETRY_REQUESTED"


@pytest.mark.parametrize(
    ("outcome", "wait"),
    [
        (Outcome(Ended.RETRY, after=7 * SECOND), 7 * SECOND),
        (Outcome(Ended.RETRY, until=NOW + 8 * SECOND), 8 * SECOND),
        (Outcome(Ended.RETRY), 10 * SECOND),
    ],
)
def test_requested_retry_waits_as_requested_or_by_the_backoff(outcome, wait):
    assert judge(outcome).run_at == NOW + wait


def test_requested_retry_uses_the_general_backoff():
    special = {cls: Policy(backoff=Fixed(99)) for cls in Cls}
    policy = resolve_policy(
        RetrySection(), None, Policy(max_retries=3, backoff=Fixed(10), classes=special)
    )
    assert judge(Outcome(Ended.RETRY), policy).run_at == NOW + 10 * SECOND
    assert judge(failed(), policy).run_at == NOW + 99 * SECOND


def test_failure_observed_by_the_system_gives_no_advice():
    decision = judge(failed(Cls.PERMANENT, rule="mulligan.bad-outcome"))
    assert decision.reason == "not retried: class permanent by rule mulligan.bad-outcome"


@given(st.floats(0.001, 10**7), st.integers())
def test_server_hint_is_the_minimum_delay_plus_jitter(hint, seed):
    wait = (judge(failed(retry_after=hint), seed=seed).run_at - NOW) / SECOND
    floor = max(10.0, hint)
    assert floor - 1e-5 <= wait <= floor + min(0.1 * hint, 60) + 1e-5


@pytest.mark.parametrize("hint", [-1.0, 0.0, float("nan"), float("inf")])
def test_invalid_server_hint_is_ignored(hint):
    assert judge(failed(retry_after=hint)).run_at == NOW + 10 * SECOND


def test_first_retry_uses_the_first_delay():
    policy = resolve_policy(RetrySection(base_delay=7, jitter="none"), None, Policy(max_retries=3))
    assert judge(failed(), policy).run_at == NOW + 7 * SECOND
    assert judge(failed(), policy, failures=1).run_at == NOW + 14 * SECOND


# What comes too late


def test_max_age_excludes_time_on_hold():
    policy = resolve_policy(
        RetrySection(), None, Policy(max_retries=9, backoff=Fixed(60), max_age=100)
    )
    outcome = Outcome(Ended.FAILED, failure=make_failure())
    times = {"first_started_at": NOW - 3670 * SECOND, "started_at": NOW - SECOND}
    held = make_lease(**times, run_at=NOW - 3650 * SECOND, attempt=2, failures=1)
    decision = decide(held, outcome, policy, NOW, Random(1))
    assert decision.verb is Verb.RETRY
    later = make_lease(**times, run_at=NOW - SECOND, attempt=3, failures=2, counts=decision.counts)
    assert decide(later, outcome, policy, NOW + 60 * SECOND, Random(1)).verb is Verb.DIE
    assert (
        decide(held._replace(run_at=NOW - SECOND), outcome, policy, NOW, Random(1)).verb is Verb.DIE
    )


def test_failures_of_a_down_dependency_are_not_charged_three_times():
    policy, lease = resolve_policy(RetrySection()), make_lease(uses="gateway")
    outcome = Outcome(Ended.FAILED, failure=make_failure())
    for _ in range(3):
        decision = decide(lease, outcome, policy, NOW, Random(1), dependency_down="gateway")
        assert (decision.verb, decision.state, decision.failures, decision.run_at) == (
            Verb.HOLD,
            State.QUEUED,
            0,
            NOW,
        )
        assert decision.failure is outcome.failure
        lease = lease._replace(counts=decision.counts)
    assert (
        decide(lease, outcome, policy, NOW, Random(1), dependency_down="gateway").verb is Verb.RETRY
    )
    final = Outcome(Ended.FAILED, failure=make_failure(), final=True)
    assert (
        decide(
            make_lease(uses="gateway"), final, policy, NOW, Random(1), dependency_down="gateway"
        ).verb
        is Verb.DIE
    )


@pytest.mark.parametrize(
    ("uses", "hint", "until"),
    [
        ("gateway", 90, 90),
        ("gateway", 10**9, 86_400),
        ("gateway", 0.5, None),
        ("a,b", 90, None),
        ("", 90, None),
    ],
)
def test_server_hint_holds_a_single_dependency(uses, hint, until):
    failure = make_failure(Cls.RATE_LIMITED, retry_after=hint)
    decision = decide(
        make_lease(uses=uses),
        Outcome(Ended.FAILED, failure=failure),
        resolve_policy(RetrySection()),
        NOW,
        Random(1),
    )
    assert (decision.hold and decision.hold[:2]) == (until and (uses, NOW + until * SECOND))


def test_quota_with_a_reset_time_holds_and_without_one_is_final():
    def after(uses, hint, counts=None):
        outcome = Outcome(
            Ended.FAILED, failure=make_failure(Cls.QUOTA, retryable=False, retry_after=hint)
        )
        return decide(
            make_lease(uses=uses, counts=counts),
            outcome,
            resolve_policy(RetrySection()),
            NOW,
            Random(1),
        )

    decision = after("gateway", 7200)
    assert (decision.verb, decision.failures) == (Verb.HOLD, 0)
    assert decision.hold == ("gateway", NOW + 7200 * SECOND, "its quota is used up")
    assert decision.reason == "no retry charged: the quota of gateway is used up"
    assert after("gateway", None).verb is Verb.DIE
    assert after("", 7200).verb is Verb.DIE
    assert after("gateway", 7200, counts='{"spared": 3}').verb is Verb.DIE


def test_retry_after_max_age_ends_the_job_with_the_same_failure():
    policy = resolve_policy(
        RetrySection(), None, Policy(max_retries=9, backoff=Fixed(60), max_age=100)
    )
    assert judge(failed(), policy, first_started_at=NOW - 40 * SECOND).verb == Verb.RETRY
    decision = judge(failed(), policy, first_started_at=NOW - 41 * SECOND)
    assert (decision.state, decision.failure.code) == (State.DEAD, "BOOM")
    assert "max_age" in decision.reason


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (failed(evidence={"http_status": 503}, private={"trace": "t"}), "BOOM"),
        (
            Outcome(
                Ended.RETRY,
                failure=make_failure(evidence={"http_status": 503}, private={"trace": "t"}),
            ),
            "BOOM",
        ),
        (Outcome(Ended.SNOOZED, after=10 * SECOND), "snoozed"),
        (Outcome(Ended.RELEASED), "released"),
        (Outcome(Ended.HELD, dependency="gateway"), "held"),
        (Outcome(Ended.LOST, failure=make_failure(code="PROCESS_DIED")), "PROCESS_DIED"),
    ],
)
def test_requeue_after_the_deadline_ends_the_job_and_keeps_evidence(outcome, after):
    decision = judge(outcome, deadline_at=NOW - 1, uses="gateway")
    assert (decision.verb, decision.state, decision.run_at, decision.hold) == (
        Verb.DIE,
        State.DEAD,
        None,
        None,
    )
    assert decision.failure.code == "DEADLINE_PASSED"
    assert decision.failure.evidence["after"] == after
    if after == "BOOM":
        assert decision.failure.evidence["http_status"] == 503
        assert decision.failure.private == {"trace": "t"}


def test_retry_exactly_at_the_deadline_is_allowed():
    assert judge(failed(), deadline_at=NOW + 10 * SECOND).verb == Verb.RETRY
    assert judge(failed(), deadline_at=NOW + 10 * SECOND - 1).verb == Verb.DIE


# Whatever comes

moments = st.none() | st.integers(-(2**60), 2**60)
outcomes = st.builds(
    Outcome,
    ended=st.sampled_from(Ended),
    failure=st.none()
    | st.builds(
        make_failure,
        st.sampled_from(Cls),
        retry_after=st.none() | st.floats(),
        retryable=st.booleans(),
    ),
    after=moments,
    until=moments,
    reason=st.sampled_from(["", "because"]),
    dependency=st.sampled_from(["", "gateway", "other"]),
    final=st.booleans(),
    alone=st.booleans(),
)
leases = st.builds(
    make_lease,
    failures=st.integers(0, 12),
    losses=st.integers(0, 12),
    snoozes=st.integers(0, 12),
    uses=st.sampled_from(["", "gateway", "gateway,s3"]),
    deadline_at=st.none() | st.integers(NOW - HOUR, NOW + HOUR),
    first_started_at=st.integers(NOW - HOUR, NOW),
    alone=st.booleans(),
    cancel_reason=st.sampled_from([None, None, "", "stop"]),
)
effective = st.builds(
    resolve_policy,
    st.builds(RetrySection, enabled=st.booleans(), max_snoozes=st.none() | st.integers(0, 9)),
    st.none(),
    st.builds(
        Policy,
        max_retries=st.none() | st.integers(0, 9),
        max_age=st.none() | st.integers(0, 7200),
        retry_unknown=st.none() | st.booleans(),
    ),
)


@given(leases, outcomes, effective, st.integers())
def test_every_decision_is_a_legal_transition_with_reason_and_counters(
    lease, outcome, policy, seed
):
    decision = decide(lease, outcome, policy, NOW, Random(seed))
    assert decision.state == lifecycle.next_state(decision.verb, State.RUNNING)
    assert decision.reason
    assert min(decision.failures, decision.losses, decision.snoozes) >= 0
    assert (decision.run_at is not None) == (decision.state == State.QUEUED)
    assert (decision.failure is not None) or decision.state != State.DEAD
    if decision.run_at is not None:
        assert NOW <= decision.run_at < 2**62
        # What a job waits for may come before its deadline, which ends the job by itself.
        is_bounded = lease.deadline_at is not None and decision.verb is not Verb.WAIT
        assert not is_bounded or decision.run_at <= lease.deadline_at


@given(leases, outcomes, effective, st.integers())
def test_same_seed_gives_the_same_decision(lease, outcome, policy, seed):
    first, second = (decide(lease, outcome, policy, NOW, Random(seed)) for _ in range(2))
    assert repr(first) == repr(second)


@given(leases, outcomes, effective)
def test_counters_change_by_at_most_one(lease, outcome, policy):
    decision = decide(lease, outcome, policy, NOW, Random(0))
    assert decision.failures - lease.failures in {0, 1}
    assert decision.snoozes - lease.snoozes in {0, 1}
    assert decision.losses - lease.losses in {-1, 0, 1}


def test_evidence_of_every_decision_is_json():
    decision = judge(failed(evidence={"exit_code": 1}), deadline_at=NOW)
    assert json.loads(json.dumps(dict(decision.failure.evidence))) == {
        "exit_code": 1,
        "after": "BOOM",
    }


# What a held kind spares


def decide_kind_held(outcome, times=0, **lease):
    counts = json.dumps({"spared": times}) if times else None
    return decide(
        make_lease(counts=counts, **lease), outcome, STEADY, NOW, Random(0), kind_held="render"
    )


@pytest.mark.parametrize("cls", [Cls.PERMANENT, Cls.UNKNOWN])
def test_failure_with_the_cause_of_a_kind_hold_is_not_charged(cls):
    decision = decide_kind_held(failed(cls), failures=1)
    assert (decision.verb, decision.state, decision.run_at, decision.failures) == (
        "hold",
        "queued",
        NOW,
        1,
    )
    assert decision.failure is not None
    assert (
        decision.reason
        == "no retry charged: kind render is on hold; the job waits until the kind is released"
    )


def test_uncharged_failures_are_limited_and_final_failures_are_charged():
    assert decide_kind_held(failed(Cls.PERMANENT), times=2).verb == Verb.HOLD
    assert decide_kind_held(failed(Cls.PERMANENT), times=3).verb == Verb.DIE
    assert decide_kind_held(failed(Cls.PERMANENT, final=True)).verb == Verb.DIE


@pytest.mark.parametrize("switch", [{"enabled": False}, {"only": frozenset({Cls.TRANSIENT})}])
def test_outage_does_not_override_the_retry_switches(switch):
    policy = replace(STEADY, **switch)
    decision = decide(
        make_lease(uses="gateway"),
        failed(Cls.TIMEOUT),
        policy,
        NOW,
        Random(0),
        dependency_down="gateway",
    )
    assert decision.verb is Verb.DIE


# -- grounds -------------------------------------------------------------------------------------
LIMITED = resolve_policy(
    RetrySection(), None, Policy(max_retries=3, backoff=Fixed(10), max_losses=1, max_snoozes=1)
)
GROUNDS = [
    (Ground.RETURNED, Outcome(Ended.RETURNED, result="1"), {}),
    (Ground.RETURNED_BEFORE_STOP, Outcome(Ended.RETURNED, result="1"), {"cancel_reason": ""}),
    (Ground.SKIPPED, Outcome(Ended.RETURNED, result="1", skipped=True), {}),
    (Ground.SKIPPED, Outcome(Ended.RETURNED, result="1", skipped=True), {"cancel_reason": ""}),
    (Ground.STOP_REQUESTED, Outcome(Ended.LOST), {"cancel_reason": "wrong file"}),
    (Ground.CANCELLED_BY_HANDLER, Outcome(Ended.CANCELLED, reason="no longer needed"), {}),
    (Ground.PARKED_BY_HANDLER, Outcome(Ended.PARKED), {}),
    (Ground.RETRY, failed(), {}),
    (Ground.RETRY_REQUESTED, Outcome(Ended.RETRY), {}),
    (Ground.MAX_RETRIES, Outcome(Ended.RETRY), {"failures": 3}),
    (Ground.LOST, Outcome(Ended.LOST), {}),
    (Ground.MAX_LOSSES, Outcome(Ended.LOST), {"losses": 1}),
    (Ground.SNOOZED, Outcome(Ended.SNOOZED, after=SECOND), {}),
    (Ground.MAX_SNOOZES, Outcome(Ended.SNOOZED, after=SECOND), {"snoozes": 1}),
    (Ground.HELD, Outcome(Ended.HELD, dependency="gateway"), {"uses": "gateway"}),
    (Ground.CLASS_NOT_RETRYABLE, Outcome(Ended.HELD, dependency="other"), {"uses": "gateway"}),
    (Ground.RELEASED, Outcome(Ended.RELEASED), {}),
    (Ground.QUOTA_USED_UP, failed(Cls.QUOTA, retry_after=60.0), {"uses": "gateway"}),
    (Ground.FINAL, failed(final=True), {}),
    (Ground.DEADLINE, failed(), {"deadline_at": NOW}),
    (Ground.DEADLINE, Outcome(Ended.LOST), {"deadline_at": NOW - SECOND}),
    (Ground.MANUAL_RETRY_REFUSED, Outcome(Ended.REFUSED), {}),
]


@pytest.mark.parametrize(("ground", "outcome", "lease"), GROUNDS)
def test_every_decision_has_the_right_ground(ground, outcome, lease):
    decision = judge(outcome, LIMITED, **lease)
    assert decision.ground is ground, decision.reason
    assert decision.reason
    counted = {Ground.RETRY: "1 of 3", Ground.RETRY_REQUESTED: "1 of 3"}
    assert decision.retry_count == counted.get(ground, "")


def test_uncharged_failure_says_what_it_waits_for():
    down = decide(make_lease(), failed(), STEADY, NOW, Random(0), dependency_down="gateway")
    held = decide(make_lease(), failed(), STEADY, NOW, Random(0), kind_held="render")
    assert (down.ground, held.ground) == (Ground.DEPENDENCY_DOWN, Ground.KIND_HELD)


# -- given back, because another worker may run it -------------------------------------------------
SCHEMA = failed(rule="mulligan.schema", code="SCHEMA")
REFUSED_PAYLOAD = failed(Cls.INVALID_INPUT, rule="mulligan.payload_refused", code="PAYLOAD_REFUSED")


@pytest.mark.parametrize("rule", ["mulligan.schema", "mulligan.unavailable"])
@pytest.mark.parametrize("renamed", [False, True])
def test_errors_of_mulligan_itself_are_not_charged_under_any_name(rule, renamed):
    outcome = failed(rule="app/other", judged={"renamed": rule}) if renamed else failed(rule=rule)
    decision = judge(outcome, failures=2, losses=1, alone=True)
    assert (decision.verb, decision.ground) == (Verb.GIVE_BACK, Ground.SYSTEM_ERROR)
    assert (decision.failures, decision.losses, decision.alone) == (2, 1, True)
    assert decision.run_at == NOW + SECOND


@pytest.mark.parametrize(
    ("elapsed", "wait"),
    [(0, 1), (60, 6), (1200, 120), (24 * 3600, 300)],
)
def test_a_job_that_is_given_back_waits_longer_each_time(elapsed, wait):
    decision = judge(SCHEMA, first_started_at=NOW - elapsed * SECOND)
    assert decision.run_at == NOW + wait * SECOND


def test_a_job_is_given_back_for_a_day_at_most():
    decision = judge(SCHEMA, first_started_at=NOW - 24 * HOUR - 1)
    assert decision.ground is Ground.RETRY


def test_a_started_handler_without_retries_is_not_given_back():
    none = resolve_policy(RetrySection(), None, Policy(max_retries=0))
    assert judge(SCHEMA, none).state is State.DEAD


def test_a_payload_that_another_release_accepts_is_left_to_it():
    none = resolve_policy(RetrySection(), None, Policy(max_retries=0))
    decision = decide(make_lease(), REFUSED_PAYLOAD, none, NOW, Random(0), other_release="r42")
    assert (decision.verb, decision.ground) == (Verb.GIVE_BACK, Ground.OTHER_RELEASE)
    assert decision.failures == 0
    assert "left to r42" in decision.reason
    assert judge(REFUSED_PAYLOAD).state is State.DEAD

"""Escalation: how the attempt after a failure differs."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.core.errors import InvalidPolicy
from mulligan.core.job import State, parse_job_settings
from mulligan.failures.rules import Rule
from mulligan.retries.backoff import Fixed
from mulligan.retries.decide import decide
from mulligan.retries.policy import (
    Policy,
    Then,
    describe_escalation,
    resolve_policy,
    select_step,
)
from support.builders import NOW, make_failure, make_lease

GB = 10**9
BIG = Then(queue="big", memory_limit=8 * GB)
HUGE = Then(memory_limit=32 * GB, timeout=3600)
LADDER = Policy(max_retries=9, backoff=Fixed(0), classes={"resource": Policy(then=[BIG, HUGE])})


def failed(cls=Cls.RESOURCE, **facts):
    return Outcome(Ended.FAILED, failure=make_failure(cls, **facts))


def life(policy, *outcomes, **lease):
    lease, decisions = make_lease(**lease), []
    for outcome in outcomes:
        decisions.append(
            decide(lease, outcome, resolve_policy(RetrySection(), None, policy), NOW, Random(0))
        )
        last = decisions[-1]
        queue = (last.then or {}).get("queue", lease.queue)
        lease = lease._replace(
            failures=last.failures,
            losses=last.losses,
            counts=last.counts,
            settings=last.settings,
            queue=queue,
        )
    return decisions


def test_a_snooze_to_another_queue_moves_the_job_and_charges_no_failure():
    (decision,) = life(LADDER, Outcome(Ended.SNOOZED, after=0, queue="big"))
    assert decision.then == {"queue": "big"}
    assert (decision.failures, decision.snoozes) == (0, 1)
    assert decision.reason == "snoozed for 1 s; the next attempt goes to queue big"


def test_failure_of_its_class_applies_the_step():
    (decision,) = life(LADDER, failed())
    assert decision.then == {"queue": "big", "memory_limit": 8 * GB}
    assert json.loads(decision.settings) == {"memory_limit": 8 * GB, "home": "default"}
    assert decision.reason == (
        "retry 1 of 9 in 0 s: resource; the next attempt goes to queue big with 8 GB of memory"
    )


def test_steps_advance_with_the_class_and_the_last_one_repeats():
    decisions = life(LADDER, failed(), failed(Cls.TRANSIENT), failed(), failed())
    assert [decision.then for decision in decisions] == [
        {"queue": "big", "memory_limit": 8 * GB},
        None,  # another class: nothing new, and nothing taken back
        {"memory_limit": 32 * GB, "timeout": 3600.0},
        None,  # there already
    ]
    assert json.loads(decisions[1].settings) == {"memory_limit": 8 * GB, "home": "default"}
    last = {"memory_limit": 32 * GB, "timeout": 3600 * SECOND, "home": "default"}
    assert [json.loads(decision.settings) for decision in decisions[2:]] == [last, last]
    assert decisions[2].reason.endswith(
        "; the next attempt gets 32 GB of memory and a timeout of 1 h"
    )
    assert "next attempt" not in decisions[3].reason


def test_general_steps_advance_with_all_failures_and_requested_retries():
    policy = Policy(
        max_retries=9, backoff=Fixed(0), then=[Then(queue="a"), Then(queue="b"), Then(queue="c")]
    )
    decisions = life(policy, failed(), Outcome(Ended.RETRY), failed(Cls.TRANSIENT))
    assert [decision.then for decision in decisions] == [
        {"queue": "a"},
        {"queue": "b"},
        {"queue": "c"},
    ]
    assert json.loads(decisions[-1].settings) == {"home": "default"}


def test_steps_of_a_rule_win_over_the_kind_and_advance_with_its_code():
    terms = {"then": [{"queue": "rule1"}, {"queue": "rule2"}]}
    ruled = failed(code="OOM", terms=terms)
    decisions = life(LADDER, failed(code="DISK"), ruled, ruled)
    assert [decision.then["queue"] for decision in decisions] == ["big", "rule1", "rule2"]
    job = resolve_policy(RetrySection(), None, LADDER, Policy(then=Then(queue="job")))
    assert decide(make_lease(), ruled, job, NOW, Random(0)).then == {"queue": "job"}


def test_settings_are_merged_with_earlier_steps():
    steps = [Then(settings={"preset": "fast", "threads": 4}), Then(settings={"threads": 1})]
    first, second = life(Policy(max_retries=9, then=steps), failed(), failed())
    assert first.reason.endswith("; the next attempt gets other settings (preset, threads)")
    assert json.loads(second.settings) == {"settings": {"preset": "fast", "threads": 1}}
    assert second.then == {"settings": {"threads": 1}}


def test_step_may_change_nothing():
    first, second = life(Policy(max_retries=9, then=[Then(), BIG]), failed(), failed())
    assert (first.then, first.settings) == (None, None)
    assert second.then["queue"] == "big"


def test_dead_job_is_not_moved():
    policy = Policy(max_retries=0, then=BIG)
    (decision,) = life(policy, failed())
    assert (decision.state, decision.then, decision.settings) == (State.DEAD, None, None)
    late = decide(
        make_lease(deadline_at=NOW - 1),
        failed(),
        resolve_policy(RetrySection(), None, LADDER),
        NOW,
        Random(0),
    )
    assert (late.verb, late.then, late.settings) == (Verb.DIE, None, None)


def test_oom_kill_applies_the_next_step_without_using_a_retry():
    lost = Outcome(Ended.LOST, failure=make_failure(Cls.RESOURCE, "PROCESS_DIED"))
    first, second = life(LADDER, lost, lost)
    assert first.then == {"queue": "big", "memory_limit": 8 * GB}
    assert (second.then, second.failures) == ({"memory_limit": 32 * GB, "timeout": 3600.0}, 0)
    (other,) = life(LADDER, Outcome(Ended.LOST, failure=make_failure(Cls.TRANSIENT, "WORKER_LOST")))
    assert other.then is None


@pytest.mark.parametrize(
    "ended", [Ended.RETURNED, Ended.SNOOZED, Ended.PARKED, Ended.RELEASED, Ended.LOST]
)
def test_settings_are_kept_by_every_ending(ended):
    (decision,) = life(LADDER, Outcome(ended), settings='{"home":"x"}')
    assert decision.settings == '{"home":"x"}'


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Then(queue="two message"), "a name is 1 to 200 characters"),
        (lambda: Then(queue="a|b"), "a name is 1 to 200 characters"),
        (lambda: Then(queue=""), "a name is 1 to 200 characters"),
        (lambda: Then(timeout=0), "timeout must be above 0 s"),
        (lambda: Then(timeout=-1), "timeout must be between"),
        (lambda: Then(memory_limit=0), "memory_limit"),
        (lambda: Then(settings={"f": print}), "settings must map names to JSON values"),
        (lambda: Then(settings={"f": float("nan")}), "settings must map names to JSON values"),
        (lambda: Then(settings={"f": "x" * 10_001}), "the limit is 10,000"),
        (lambda: Policy(then="big"), "then"),
    ],
)
def test_invalid_step_is_refused(make, message):
    with pytest.raises(InvalidPolicy, match=message):
        make()


def test_steps_survive_json():
    policy = Policy(
        then=[BIG, HUGE], classes={"timeout": Policy(then=Then(settings={"a": [1, {"b": None}]}))}
    )
    assert Policy.from_json(policy.to_json()) == policy
    rule = Rule("oom", exit_code=137, code="OOM", cls="resource", then=[BIG, HUGE])
    assert Policy.from_dict({"then": rule.terms["then"]}).then == (BIG, HUGE)


def test_no_steps_means_no_step():
    assert select_step((), 3) is None
    assert describe_escalation({}) == ""


@pytest.mark.parametrize("text", [None, "", "7", "[]", "nonsense"])
def test_unreadable_job_settings_are_empty(text):
    assert parse_job_settings(text) == {}

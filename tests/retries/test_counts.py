"""Limits in total, per class and per code, and the counts behind them."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan.config import ClassRetrySection, RetrySection
from mulligan.core.attempt import Cls, Ended, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.core.job import State
from mulligan.retries.backoff import Fixed, Table
from mulligan.retries.decide import decide
from mulligan.retries.limits import MAX_COUNTED_CODES, FailureCounts, parse_counts
from mulligan.retries.policy import Policy, resolve_policy
from support.builders import NOW, make_failure, make_lease

TEN = Policy(max_retries=10, backoff=Fixed(0))


def failed(cls=Cls.TRANSIENT, code="BOOM", **facts):
    return Outcome(Ended.FAILED, failure=make_failure(cls, code, **facts))


def life(policy, *outcomes, **lease):
    """Decide about several outcomes, each with the state that the decision before left."""
    lease, decisions = make_lease(**lease), []
    for outcome in outcomes:
        decisions.append(decide(lease, outcome, policy, NOW, Random(0)))
        last = decisions[-1]
        lease = lease._replace(failures=last.failures, counts=last.counts, settings=last.settings)
    return decisions


def waits(decisions):
    return [
        (decision.run_at - NOW) / SECOND for decision in decisions if decision.run_at is not None
    ]


def of_kind(policy, **system):
    return resolve_policy(RetrySection(**system), None, policy)


@pytest.mark.seed("004-23")
def test_class_limit_counts_only_failures_of_that_class():
    policy = of_kind(
        Policy(max_retries=10, backoff=Fixed(0), classes={"resource": Policy(max_retries=1)})
    )
    resource, transient = failed(Cls.RESOURCE), failed()
    decisions = life(policy, transient, transient, resource, transient, resource)
    assert [decision.verb for decision in decisions] == [Verb.RETRY] * 4 + [Verb.DIE]
    assert decisions[2].reason == "retry 3 of 10 (1 of 1 for its class) in 0 s: resource"
    assert decisions[-1].reason == "1 of 1 retries for class resource used (limit set by the kind)"


@pytest.mark.seed("004-23")
def test_total_limit_applies_in_addition_to_class_limits():
    policy = of_kind(Policy(max_retries=2, classes={cls: Policy(max_retries=9) for cls in Cls}))
    decisions = life(policy, failed(), failed(Cls.TIMEOUT), failed(Cls.RESOURCE))
    assert (decisions[-1].state, decisions[-1].reason) == (State.DEAD, "2 of 2 retries used")


def test_class_limit_of_zero_is_named_in_the_reason():
    policy = of_kind(Policy(classes={"timeout": Policy(max_retries=0)}))
    (decision,) = life(policy, failed(Cls.TIMEOUT))
    assert decision.reason == "not retried: the kind allows no retries for class timeout"


def test_builtin_limit_for_unknown_counts_only_unknown_failures():
    decisions = life(
        of_kind(None), failed(), failed(Cls.UNKNOWN), failed(Cls.UNKNOWN), failed(Cls.UNKNOWN)
    )
    assert [decision.verb for decision in decisions] == [Verb.RETRY] * 3 + [Verb.DIE]
    decisions = life(of_kind(None), *[failed(Cls.UNKNOWN)] * 3)
    assert (
        decisions[-1].reason
        == "2 of 2 retries for class unknown used (limit set by retry.unknown_retries)"
    )


def test_every_decision_keeps_the_counts():
    first, second = life(of_kind(TEN), failed(), failed(Cls.TIMEOUT, "SLOW"))
    assert json.loads(second.counts) == {
        "classes": {"transient": 1, "timeout": 1},
        "codes": {"BOOM": 1, "SLOW": 1},
    }
    for outcome in (
        Outcome(Ended.RETURNED),
        Outcome(Ended.SNOOZED),
        Outcome(Ended.LOST),
        Outcome(Ended.RELEASED),
    ):
        (decision,) = life(of_kind(TEN), outcome, counts=first.counts, failures=1)
        assert decision.counts == first.counts


def test_job_without_failures_stores_no_counts():
    (decision,) = life(of_kind(TEN), Outcome(Ended.RETURNED))
    assert decision.counts is None
    (decision,) = life(of_kind(TEN), Outcome(Ended.RETRY))
    assert (decision.failures, decision.counts) == (1, None)


# -- rules ---------------------------------------------------------------------------------------


def test_rule_limit_applies_to_its_code():
    policy, ruled = of_kind(TEN), failed(code="GW", terms={"max_retries": 1})
    decisions = life(policy, failed(), failed(), ruled, failed(), ruled)
    assert [decision.verb for decision in decisions] == [Verb.RETRY] * 4 + [Verb.DIE]
    assert decisions[2].reason == "retry 3 of 10 (1 of 1 for its code) in 0 s: transient"
    assert decisions[-1].reason == "1 of 1 retries for code GW used (limit set by rule test.rule)"
    (decision,) = life(policy, failed(code="GW", terms={"max_retries": 0}))
    assert decision.reason == "not retried: rule test.rule allows no retries for code GW"


def test_rule_limit_cannot_raise_other_limits():
    ruled = failed(code="GW", terms={"max_retries": 9})
    assert life(of_kind(Policy(max_retries=1)), ruled, ruled)[-1].reason == "1 of 1 retries used"
    capped = of_kind(Policy(max_retries=5, classes={"transient": Policy(max_retries=0)}))
    assert life(capped, ruled)[-1].state == State.DEAD
    assert life(of_kind(TEN), failed(Cls.AUTH, terms={"max_retries": 9}))[-1].state == State.DEAD


@pytest.mark.parametrize(
    ("job", "kind", "queue", "expected"),
    [
        (Policy(backoff=Fixed(1)), Policy(backoff=Fixed(2)), Policy(backoff=Fixed(3)), 1),
        (
            Policy(classes={"transient": Policy(backoff=Fixed(1))}),
            Policy(backoff=Fixed(2)),
            None,
            1,
        ),
        (Policy(max_retries=9), Policy(backoff=Fixed(2)), Policy(backoff=Fixed(3)), 7),
        (None, Policy(classes={"transient": Policy(backoff=Fixed(2))}), None, 7),
        (None, None, Policy(backoff=Fixed(3)), 7),
        (None, None, None, 7),
    ],
)
def test_rule_backoff_wins_over_the_kind_but_not_over_the_job(job, kind, queue, expected):
    policy = resolve_policy(RetrySection(max_retries=9), queue, kind, job)
    assert waits(life(policy, failed(terms={"backoff": {"type": "fixed", "seconds": 7}}))) == [
        expected
    ]


def test_backoff_advances_with_the_failures_it_was_declared_for():
    table = {"type": "table", "seconds": [1, 2, 3]}
    policy = of_kind(
        Policy(
            max_retries=20,
            backoff=Table([100, 200, 300]),
            classes={"timeout": Policy(backoff=Table([10, 20]))},
        )
    )
    general, timeout, ruled = (
        failed(),
        failed(Cls.TIMEOUT),
        failed(code="GW", terms={"backoff": table}),
    )
    decisions = life(policy, general, timeout, ruled, general, timeout, ruled)
    assert waits(decisions) == [100, 10, 1, 300, 20, 2]


@pytest.mark.parametrize(
    ("terms", "expected"), [({}, 60), ({"wait_for_hint": True}, 60), ({"wait_for_hint": False}, 0)]
)
def test_a_rule_may_ignore_the_servers_hint(terms, expected):
    (wait,) = waits(life(of_kind(TEN), failed(retry_after=60.0, terms=terms)))
    assert expected <= wait <= expected * 1.1


@pytest.mark.parametrize(
    "terms", [{"max_retries": -1}, {"backoff": "soon"}, {"then": 7}, {"alarm": "page"}]
)
def test_unreadable_rule_terms_are_ignored(terms):
    assert life(of_kind(TEN), failed(terms=terms))[0].verb == Verb.RETRY


# -- settings ------------------------------------------------------------------------------------


def test_settings_can_limit_a_class():
    policy = of_kind(Policy(max_retries=5), classes={"timeout": ClassRetrySection(max_retries=0)})
    assert life(policy, failed())[0].verb == Verb.RETRY
    (decision,) = life(policy, failed(Cls.TIMEOUT))
    assert (
        decision.reason
        == "not retried: retry.classes.timeout.max_retries allows no retries for class timeout"
    )


def test_class_limit_of_a_kind_wins_over_the_settings():
    policy_of_kind = Policy(max_retries=5, classes={"timeout": Policy(max_retries=2)})
    policy = of_kind(policy_of_kind, classes={"timeout": ClassRetrySection(max_retries=0)})
    assert [decision.verb for decision in life(policy, *[failed(Cls.TIMEOUT)] * 3)] == [
        "retry",
        "retry",
        "die",
    ]


def test_unset_delay_settings_of_a_class_take_the_general_ones():
    entry = {"timeout": ClassRetrySection(base_delay=10)}
    policy = resolve_policy(
        RetrySection(max_retries=9, factor=3, max_delay=60, jitter="none", classes=entry)
    )
    decisions = life(
        policy, failed(), failed(Cls.TIMEOUT), failed(Cls.TIMEOUT), failed(Cls.TIMEOUT)
    )
    assert waits(decisions) == [30, 10, 30, 60]


def test_retry_only_restricts_the_retried_classes():
    policy = of_kind(
        Policy(max_retries=9, classes={"transient": Policy(max_retries=9)}), only=("timeout",)
    )
    assert life(policy, failed(Cls.TIMEOUT))[0].verb == Verb.RETRY
    for outcome in (failed(), failed(terms={"max_retries": 3}), Outcome(Ended.RETRY)):
        (decision,) = life(policy, outcome)
        assert decision.reason == ("not retried: class transient is not in retry.only (timeout)")
    assert life(policy, Outcome(Ended.LOST))[0].state == State.QUEUED


# -- stored --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [None, "", "7", "[]", "nonsense", '{"classes": 7}', '{"classes": {"timeout": "x"}}']
)
def test_unreadable_counts_are_empty(text):
    assert parse_counts(text) == FailureCounts({}, {})


def test_codes_of_handlers_are_counted_up_to_a_limit_and_those_of_rules_always():
    counts = FailureCounts({}, {})
    for n in range(MAX_COUNTED_CODES + 50):
        counts = counts.add(make_failure(code=f"C{n}"))
    assert len(counts.codes) == MAX_COUNTED_CODES
    assert counts.for_class(Cls.TRANSIENT) == MAX_COUNTED_CODES + 50
    assert counts.add(make_failure(code="GW", terms={"max_retries": 1})).for_code("GW") == 1
    assert parse_counts(counts.to_json()) == counts

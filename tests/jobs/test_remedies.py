"""Tests of the advice for a dead job: which change would have it retried."""

from __future__ import annotations

import json
from random import Random

import pytest

from jobs.test_story_sentences import a_failure
from mulligan import Policy
from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ground, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.jobs.sentences import suggest_remedy
from mulligan.retries.decide import decide
from mulligan.retries.policy import resolve_policy
from support.builders import NOW, make_lease
from support.builders import make_failure as failed

POLICY = resolve_policy(RetrySection())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cls": "permanent", "rule": "py.programming-error"}, "Policy(retry_unknown=True)"),
        ({"cls": "invalid_input", "rule": "http.refused"}, "return Retry() from the handler"),
        (
            {"cls": "invalid_input", "rule": "http.refused", "code": "HTTP_4XX"},
            'Rule("retry-http-4xx"',
        ),
        (
            {"cls": "permanent", "rule": "handler.declared", "code": "BAD"},
            "The handler declared BAD.",
        ),
        ({"cls": "permanent", "rule": "mulligan.payload-refused"}, "does not fit the handler"),
        ({"ground": Ground.FINAL}, "final=True"),
        ({"ground": Ground.MAX_RETRIES}, "Policy(max_retries=…)"),
        (
            {"code": "GW", "rule": "gw", "ground": Ground.RULE_LIMIT},
            "Rule gw allows no more retries of code GW: raise its max_retries=",
        ),
        (
            {"cls": "transient", "ground": Ground.CLASS_EXCLUDED},
            "add transient to the setting retry.only (MULLIGAN_RETRY__ONLY)",
        ),
        (
            {
                "cls": "timeout",
                "rule": "mulligan.deadline-passed",
                "ground": Ground.DEADLINE,
            },
            "longer deadline=",
        ),
        (
            {"cls": "unknown", "ground": Ground.MAX_RETRIES},
            'Policy(classes={"unknown": Policy(max_retries=…)})',
        ),
        ({"ground": Ground.MAX_AGE}, "Policy(max_age=…)"),
        (
            {"cls": "unknown", "ground": Ground.UNKNOWN_NOT_RETRIED},
            "retry_unknown",
        ),
        ({"ended": "lost", "cls": "unknown", "ground": Ground.MAX_LOSSES}, "Policy(max_losses=…)"),
    ],
)
def test_the_remedy_follows_from_the_stored_ground(changes, expected):
    ground = changes.get("ground", Ground.CLASS_NOT_RETRYABLE)
    columns = {name: value for name, value in changes.items() if name != "ground"}
    attempt = a_failure(verb="die", judged=json.dumps({"ground": ground}), **columns)
    assert expected in suggest_remedy(attempt, POLICY)


def test_a_deadline_that_passed_after_a_lost_worker_does_not_advise_more_losses():
    judged = json.dumps({"ground": Ground.DEADLINE})
    attempt = a_failure(verb="die", ended="lost", rule="mulligan.deadline-passed", judged=judged)
    assert "longer deadline=" in suggest_remedy(attempt, POLICY)


def test_disabled_retries_are_named_first():
    assert "retry.enabled" in suggest_remedy(
        a_failure(verb="die"), resolve_policy(RetrySection(enabled=False))
    )


def test_a_system_verdict_without_a_remedy_gives_no_advice():
    assert (
        suggest_remedy(
            a_failure(verb="die", cls="permanent", rule="mulligan.refused", reason=""), POLICY
        )
        == ""
    )


REFUSALS = {
    Ground.FINAL,
    Ground.RETRIES_DISABLED,
    Ground.CLASS_EXCLUDED,
    Ground.CLASS_NOT_RETRYABLE,
    Ground.UNKNOWN_NOT_RETRIED,
    Ground.MAX_RETRIES,
    Ground.CLASS_LIMIT,
    Ground.RULE_LIMIT,
    Ground.MAX_AGE,
}
MANY_RETRIES = RetrySection(max_retries=9)
REFUSING = [
    resolve_policy(RetrySection(enabled=False)),
    resolve_policy(RetrySection(only=(Cls.TIMEOUT,))),
    resolve_policy(RetrySection(max_retries=0)),
    resolve_policy(RetrySection(max_retries=1)),
    resolve_policy(
        MANY_RETRIES,
        None,
        Policy(classes={"transient": Policy(max_retries=0), "unknown": Policy(max_retries=0)}),
    ),
    resolve_policy(
        MANY_RETRIES,
        None,
        Policy(classes={"transient": Policy(max_retries=1), "unknown": Policy(max_retries=1)}),
    ),
    resolve_policy(MANY_RETRIES, None, Policy(max_age=0.001, retry_unknown=False)),
]
FAILURES = [
    failed(Cls.INVALID_INPUT, "HTTP_4XX"),
    failed(),
    failed(Cls.UNKNOWN),
    failed(terms={"max_retries": 1}),
    failed(terms={"max_retries": 0}),
]


@pytest.mark.parametrize("policy", REFUSING)
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("final", [False, True])
def test_every_refusal_of_a_retry_has_its_ground(policy, failure, final):
    lease = make_lease(
        failures=3, counts='{"classes":{"transient":3,"unknown":3},"codes":{"BOOM":3}}'
    )
    decision = decide(
        lease, Outcome(Ended.FAILED, failure=failure, final=final), policy, NOW + SECOND, Random(1)
    )
    assert decision.verb == "die"
    assert decision.ground in REFUSALS, decision.reason


def test_every_ground_of_a_refused_retry_is_reached():
    lease = make_lease(
        failures=3, counts='{"classes":{"transient":3,"unknown":3},"codes":{"BOOM":3}}'
    )
    outcomes = [
        Outcome(Ended.FAILED, failure=one, final=final)
        for one in FAILURES
        for final in (False, True)
    ]
    policies = [*REFUSING, resolve_policy(MANY_RETRIES)]
    decisions = [
        decide(lease, one, policy, NOW + SECOND, Random(1))
        for one in outcomes
        for policy in policies
    ]
    assert {decision.ground for decision in decisions if decision.verb is Verb.DIE} == REFUSALS

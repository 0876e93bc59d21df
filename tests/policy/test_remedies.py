"""A job that was not tried again says what would have to be said for it to be."""

from __future__ import annotations

from random import Random

import pytest

from mulligan import Policy
from mulligan.core.attempt import Cls, Ended, Outcome
from mulligan.job import SECOND
from mulligan.policy.decide import decide
from mulligan.policy.grounds import Ground, ground_of
from mulligan.policy.remedies import remedy
from mulligan.policy.retry import RetrySettings, layer
from policy.builders import NOW, a_lease
from policy.builders import a_failure as failed
from policy.test_story import a_failure

POLICY = layer(RetrySettings())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cls": "permanent", "rule": "py.programming-error"}, "Policy(retry_unknown=True)"),
        ({"cls": "invalid_input", "rule": "http.refused"}, "Retry() returned by the handler"),
        ({"cls": "invalid_input", "rule": "http.refused", "code": "HTTP_4XX"}, 'Rule("retry-http-4xx"'),
        ({"cls": "permanent", "rule": "handler.declared", "code": "BAD"}, "The handler declared BAD."),
        ({"cls": "permanent", "rule": "mulligan.payload-refused"}, "does not fit the handler"),
        ({"reason": "not retried: the handler said it is final"}, "final=True"),
        ({"reason": "3 of 3 retries used"}, "Policy(max_retries=…)"),
        (
            {"code": "GW", "rule": "gw", "reason": "1 of 1 retries used that rule gw allows for code GW"},
            "Rule gw allows no more for code GW: give it a larger max_retries=",
        ),
        (
            {"code": "GW", "rule": "gw", "reason": "not retried: rule gw allows none for code GW"},
            "Rule gw allows no more for code GW: give it a larger max_retries=",
        ),
        (
            {
                "cls": "transient",
                "reason": "not retried: only timeout may be retried (retry.only), and the class is transient",
            },
            "add transient to the setting retry.only (MULLIGAN_RETRY__ONLY)",
        ),
        (
            {
                "cls": "timeout",
                "rule": "mulligan.deadline-passed",
                "reason": "the deadline passes first (snoozed for 1 s: it is final, retries are switched off)",
            },
            "longer deadline=",
        ),
        ({"cls": "unknown", "reason": "2 of 2 retries used"}, 'Policy(classes={"unknown": Policy(max_retries=…)})'),
        ({"reason": "not retried: the next try would start later than max_age"}, "Policy(max_age=…)"),
        (
            {"cls": "unknown", "reason": "not retried: the class is unknown and the kind says retry_unknown=False"},
            "retry_unknown",
        ),
        ({"ended": "lost", "cls": "unknown"}, "Policy(max_losses=…)"),
    ],
)
def test_what_would_have_to_be_said(changes, words):
    assert words in remedy(a_failure(verb="die", **({"reason": "not retried"} | changes)), POLICY)


def test_switched_off_retries_are_named_first():
    assert "retry.enabled" in remedy(a_failure(verb="die"), layer(RetrySettings(enabled=False)))


def test_a_verdict_of_our_own_without_a_way_out_promises_none():
    assert remedy(a_failure(verb="die", cls="permanent", rule="mulligan.refused", reason=""), POLICY) == ""


ROOMY = RetrySettings(max_retries=9)
REFUSING = [
    layer(RetrySettings(enabled=False)),
    layer(RetrySettings(only=(Cls.TIMEOUT,))),
    layer(RetrySettings(max_retries=0)),
    layer(RetrySettings(max_retries=1)),
    layer(ROOMY, None, Policy(classes={"transient": Policy(max_retries=0), "unknown": Policy(max_retries=0)})),
    layer(ROOMY, None, Policy(classes={"transient": Policy(max_retries=1), "unknown": Policy(max_retries=1)})),
    layer(ROOMY, None, Policy(max_age=0.001, retry_unknown=False)),
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
def test_every_reason_that_decide_gives_for_an_end_is_understood(policy, failure, final):
    """A reason is a sentence for people; that a program reads it too is held together here."""
    lease = a_lease(failures=3, counts='{"classes":{"transient":3,"unknown":3},"codes":{"BOOM":3}}')
    decision = decide(lease, Outcome(Ended.FAILED, failure=failure, final=final), policy, NOW + SECOND, Random(1))
    assert decision.verb == "die"
    assert ground_of(decision.reason) is not None, decision.reason


def test_all_grounds_were_given_by_decide():
    lease = a_lease(failures=3, counts='{"classes":{"transient":3,"unknown":3},"codes":{"BOOM":3}}')
    outcomes = [Outcome(Ended.FAILED, failure=one, final=final) for one in FAILURES for final in (False, True)]
    policies = [*REFUSING, layer(ROOMY)]
    reasons = [decide(lease, one, policy, NOW + SECOND, Random(1)).reason for one in outcomes for policy in policies]
    assert {ground_of(reason) for reason in reasons} >= set(Ground)

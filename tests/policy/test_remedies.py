"""A job that was not tried again says what would have to be said for it to be."""

from __future__ import annotations

import pytest

from mulligan.policy.remedies import remedy
from mulligan.policy.retry import RetrySettings, layer
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
        ({"cls": "unknown", "reason": "2 of 2 retries used"}, 'Policy(classes={"unknown": Policy(max_retries=…)})'),
        ({"reason": "not retried: the next try would start later than max_age"}, "Policy(max_age=…)"),
        ({"cls": "unknown", "reason": "the class is unknown and the kind says retry_unknown=False"}, "retry_unknown"),
        ({"ended": "lost", "cls": "unknown"}, "Policy(max_losses=…)"),
    ],
)
def test_what_would_have_to_be_said(changes, words):
    assert words in remedy(a_failure(verb="die", **({"reason": "not retried"} | changes)), POLICY)


def test_switched_off_retries_are_named_first():
    assert "retry.enabled" in remedy(a_failure(verb="die"), layer(RetrySettings(enabled=False)))


def test_a_verdict_of_our_own_without_a_way_out_promises_none():
    assert remedy(a_failure(verb="die", cls="permanent", rule="mulligan.refused", reason=""), POLICY) == ""

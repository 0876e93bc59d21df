"""Back-tests of past attempts, without a database. tests/failures/test_app_rules.py uses one."""

from __future__ import annotations

import pytest

from mulligan import Rule
from mulligan.failures import codes
from mulligan.failures.backtest import PastAttempt, PastJob, backtest
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import load_facts
from mulligan.failures.matcher import Rulebook, apply_verdict_rules

SYSTEM_FAILURES = [
    codes.timed_out(5),
    codes.memory_limit_exceeded(1, 2),
    codes.process_died(signal=9),
    codes.worker_lost("w"),
    codes.unreported(),
]


def classify_with(*rules):
    books = [Rulebook(rules)]
    return lambda _kind, known: (
        apply_verdict_rules(known, books)
        if hasattr(known, "rule")
        else classify_facts(known, books)
    )


def system_attempt(failure, verb="retry"):
    facts = load_facts('{"limit_s":5}', "{}")
    return PastAttempt(1, "failed", verb, failure.code, str(failure.cls), failure.rule, None, facts)


@pytest.mark.parametrize("failure", SYSTEM_FAILURES, ids=lambda failure: failure.code)
def test_a_system_failure_is_not_classified_again_from_its_evidence(failure):
    report = backtest([PastJob("job", "render", (system_attempt(failure),))], classify_with())
    assert (report.failures, report.changed, report.unreadable) == (1, 0, 0)


def test_a_rule_about_a_verdict_changes_a_system_failure():
    attempts = (system_attempt(codes.timed_out(5)), system_attempt(codes.timed_out(5), verb="die"))
    slow = Rule("slow", verdict="TIMEOUT", code="TOO_SLOW", cls="permanent")
    report = backtest([PastJob("job", "render", attempts)], classify_with(slow))
    assert (report.saved, [change.effect for change in report.changes]) == (1, ["given up"])

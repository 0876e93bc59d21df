"""What another table would have done: from past attempts to counts. Stores are asked in tests/failures/test_app_rules.py."""

from __future__ import annotations

import pytest

from mulligan import Rule
from mulligan.failures import codes as ends
from mulligan.failures.backtest import Past, PastAttempt, backtest
from mulligan.failures.classify import classify_facts, renamed
from mulligan.failures.facts import from_attempt
from mulligan.failures.matcher import Rulebook

OURS = [
    ends.timed_out(5),
    ends.memory_limit(1, 2),
    ends.process_died(signal=9),
    ends.worker_lost("w"),
    ends.unreported(),
]


def judged_by(*rules):
    books = [Rulebook(rules)]
    return lambda _kind, known: (
        renamed(known, books) if hasattr(known, "rule") else classify_facts(known, books)
    )


def an_end_of_ours(failure, verb="retry"):
    facts = from_attempt('{"limit_s":5}', "{}")
    return PastAttempt(1, "failed", verb, failure.code, str(failure.cls), failure.rule, None, facts)


@pytest.mark.parametrize("failure", OURS, ids=lambda failure: failure.code)
def test_an_end_of_our_own_is_not_judged_by_what_little_is_kept_of_it(failure):
    report = backtest([Past("job", "render", (an_end_of_ours(failure),))], judged_by())
    assert (report.failures, report.changed, report.unreadable) == (1, 0, 0)


def test_a_rule_about_the_verdict_changes_it():
    life = (an_end_of_ours(ends.timed_out(5)), an_end_of_ours(ends.timed_out(5), verb="die"))
    slow = Rule("slow", verdict="TIMEOUT", code="TOO_SLOW", cls="permanent")
    report = backtest([Past("job", "render", life)], judged_by(slow))
    assert (report.saved, [change.effect for change in report.changes]) == (1, ["given up"])

"""Back-test a rule table: what would it have decided about past failures?

An attempt that would not have been made is known: its cost and outcome are on record. An attempt
that was never made is not known, so its outcome is reported as a range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Failure, Ground, Verb, is_system_rule
from mulligan.core.statistics import Share, estimate_share
from mulligan.failures.facts import Facts

MAX_SAMPLE = 120  # characters of the sample text of a change
_FAILURES = frozenset({"failed", "retry"})


class PastAttempt(NamedTuple):
    """A stored attempt."""

    generation: int
    ended: str
    verb: str
    code: str
    cls: str
    rule: str
    ground: Ground | None
    facts: Facts | None
    cost: float = 0.0

    @property
    def system_failure(self) -> Failure | None:
        """The failure of an attempt that Mulligan ended, such as TIMEOUT; else None.

        It has no exception, so only rules about verdicts can match it.
        """
        if not is_system_rule(self.rule) or self.cls not in list(Cls):
            return None
        return Failure(self.code, Cls(self.cls), "", self.rule, self.cls in RETRYABLE)


class PastJob(NamedTuple):
    """The attempts of one job, oldest first."""

    job_id: str
    kind: str
    attempts: tuple[PastAttempt, ...]


class VerdictEffect(StrEnum):
    """Consequence of a changed verdict for a job."""

    DIES = "given up"
    RETRIED = "tried again"
    RENAMED = "named differently"


class VerdictChange(NamedTuple):
    """A verdict that would have been different."""

    before: str  # rule code/class
    after: str
    effect: VerdictEffect


@dataclass
class BacktestReport:
    """Counts of one back-test."""

    jobs: int = 0
    failures: int = 0
    unreadable: int = 0  # failures whose facts were not stored
    changes: Counter[VerdictChange] = field(default_factory=Counter)
    samples: dict[VerdictChange, str] = field(default_factory=dict)
    attempts: int = 0  # retries that were made
    saved: int = 0  # retries that would not have been made
    saved_cost: float = 0.0
    rescued: int = 0  # jobs that succeeded after a failure
    lost: int = 0  # rescued jobs that would have died instead
    tried: int = 0  # dead jobs that would have been retried

    @property
    def saved_share(self) -> Share:
        return estimate_share(self.saved, self.attempts)

    @property
    def lost_share(self) -> Share:
        return estimate_share(self.lost, self.rescued)

    @property
    def changed(self) -> int:
        return sum(self.changes.values())


KindClassifier = Callable[[str, Facts | Failure], Failure]


def backtest(jobs: Iterable[PastJob], classify: KindClassifier) -> BacktestReport:
    """Classify the failures of past jobs again and count what would have changed."""
    report = BacktestReport()
    for job in jobs:
        report.jobs += 1
        for attempts in _generations(job):
            _replay(job.kind, attempts, classify, report)
    return report


def _generations(job: PastJob) -> Iterator[list[PastAttempt]]:
    """Yield the attempts of each generation: a manual retry starts from the beginning."""
    for generation in dict.fromkeys(attempt.generation for attempt in job.attempts):
        yield [attempt for attempt in job.attempts if attempt.generation == generation]


def _replay(
    kind: str, attempts: list[PastAttempt], classify: KindClassifier, report: BacktestReport
) -> None:
    failed = [number for number, attempt in enumerate(attempts) if attempt.ended in _FAILURES]
    succeeded = attempts[-1].ended == "returned"
    report.failures += len(failed)
    report.attempts += len(attempts) - 1
    report.rescued += bool(failed) and succeeded
    counts: Counter[str] = Counter()
    for number in failed:
        attempt = attempts[number]
        if attempt.ended == "retry":  # requested by the handler, so no table decides
            continue
        known = attempt.system_failure or attempt.facts
        if known is None:
            report.unreadable += 1
            continue
        failure = classify(kind, known)
        counts[failure.code] += 1
        effect = _effect(attempt, failure, would_retry=_would_retry(failure, counts[failure.code]))
        if effect is not None:
            _record_change(attempt, failure, effect, report)
        if effect is VerdictEffect.DIES:
            later = attempts[number + 1 :]
            report.saved += len(later)
            report.saved_cost += sum(attempt.cost for attempt in later)
            report.lost += succeeded
            return
        if effect is VerdictEffect.RETRIED:
            report.tried += 1


def _would_retry(failure: Failure, nth: int) -> bool:
    max_retries = failure.terms.get("max_retries")
    return failure.retryable and (max_retries is None or nth <= max_retries)


def _effect(attempt: PastAttempt, failure: Failure, *, would_retry: bool) -> VerdictEffect | None:
    if attempt.verb == Verb.RETRY and not would_retry:
        return VerdictEffect.DIES
    # A job that died because it reached a limit would have died with any class.
    died_of_class = attempt.verb == Verb.DIE and attempt.ground is Ground.CLASS_NOT_RETRYABLE
    if died_of_class and would_retry:
        return VerdictEffect.RETRIED
    if (attempt.code, attempt.cls) != (failure.code, failure.cls):
        return VerdictEffect.RENAMED
    return None


def _record_change(
    attempt: PastAttempt, failure: Failure, effect: VerdictEffect, report: BacktestReport
) -> None:
    change = VerdictChange(
        f"{attempt.rule} {attempt.code}/{attempt.cls}",
        f"{failure.rule} {failure.code}/{failure.cls}",
        effect,
    )
    report.changes[change] += 1
    if attempt.facts is not None:
        text = attempt.facts.message or attempt.facts.stderr
        report.samples.setdefault(change, " ".join(text[-MAX_SAMPLE:].split()))


def describe_report(report: BacktestReport) -> Iterator[str]:
    """Yield the report as sentences."""
    yield (
        f"Classified {report.failures:,} failures of {report.jobs:,} jobs again:"
        f" {report.changed:,} verdicts differ."
    )
    if report.saved:
        yield (
            f"{report.saved:,} of {report.attempts:,} retries would not have been made"
            f" ({_format_share(report.saved_share)}), which saves {report.saved_cost:,.2f} in cost."
        )
        yield (
            f"{report.lost:,} of {report.rescued:,} jobs that succeeded after a failure would"
            f" have died instead ({_format_share(report.lost_share)})."
        )
    if report.tried:
        yield (
            f"{report.tried:,} dead jobs would have been retried. The outcome is unknown:"
            f" between 0 and {report.tried:,} of them would have succeeded."
        )
    if report.unreadable:
        yield f"{report.unreadable:,} failures were skipped: their facts were not stored."
    if not report.changed:
        yield "No decision would have been different."


def _format_share(share: Share) -> str:
    if share.value is None:
        return "no data"
    return f"{share.value:.1%}, between {share.low:.1%} and {share.high:.1%}"

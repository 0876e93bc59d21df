"""What another table would have done with failures that are past, and what of it can be known.

An attempt that would not have been made is known to have been made: what it cost and what came of it are facts. An
attempt that would have been made but never was is not: its outcome is unknown, and counted once as a failure and once
as a success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Failure, Ground, Verb, is_system_rule
from mulligan.core.statistics import Share, share
from mulligan.failures.facts import Facts

SAMPLE = 120  # characters of a text that a change is shown with
_COUNTED = frozenset({"failed", "retry"})


class PastAttempt(NamedTuple):
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
    def ours(self) -> Failure | None:
        """An end that we made ourselves, such as a time limit: no text is judged there, only the verdict."""
        if not is_system_rule(self.rule) or self.cls not in list(Cls):
            return None
        return Failure(self.code, Cls(self.cls), "", self.rule, self.cls in RETRYABLE)


class Past(NamedTuple):
    """The attempts of one job, oldest first."""

    job_id: str
    kind: str
    attempts: tuple[PastAttempt, ...]


class VerdictChange(NamedTuple):
    """One way in which verdicts differ: what was said, what would be said, and what that does."""

    before: str  # rule code/class
    after: str
    effect: str  # given up, tried again, named differently


@dataclass
class BacktestReport:
    """Counts of one back-test; the sentences are made from them."""

    jobs: int = 0
    failures: int = 0
    unreadable: int = 0  # without the facts a verdict needs
    changes: Counter[VerdictChange] = field(default_factory=Counter)
    samples: dict[VerdictChange, str] = field(default_factory=dict)
    attempts: int = 0  # retries that were made
    saved: int = 0
    saved_cost: float = 0.0
    rescued: int = 0  # jobs that succeeded after a counted failure
    lost: int = 0  # of these: jobs that would have been given up first
    tried: int = 0  # jobs that died and would have been tried again

    @property
    def saved_share(self) -> Share:
        return share(self.saved, self.attempts)

    @property
    def lost_share(self) -> Share:
        return share(self.lost, self.rescued)

    @property
    def changed(self) -> int:
        return sum(self.changes.values())


Judge = Callable[[str, Facts | Failure], Failure]


def backtest(jobs: Iterable[Past], judge: Judge) -> BacktestReport:
    report = BacktestReport()
    for past in jobs:
        report.jobs += 1
        for life in _lives(past):
            _replay(past.kind, life, judge, report)
    return report


def _lives(past: Past) -> Iterator[list[PastAttempt]]:
    """A generation is a life of its own: between two of them somebody has done something."""
    for generation in dict.fromkeys(attempt.generation for attempt in past.attempts):
        yield [attempt for attempt in past.attempts if attempt.generation == generation]


def _replay(kind: str, life: list[PastAttempt], judge: Judge, report: BacktestReport) -> None:
    failed = [place for place, attempt in enumerate(life) if attempt.ended in _COUNTED]
    succeeded = life[-1].ended == "returned"
    report.failures += len(failed)
    report.attempts += len(life) - 1
    report.rescued += bool(failed) and succeeded
    counts: Counter[str] = Counter()
    for place in failed:
        attempt = life[place]
        if attempt.ended == "retry":  # asked for by the handler: no table has a say
            continue
        known = attempt.ours or attempt.facts
        if known is None:
            report.unreadable += 1
            continue
        failure = judge(kind, known)
        counts[failure.code] += 1
        would = _would_retry(failure, counts[failure.code])
        _note(attempt, failure, report, would=would)
        if attempt.verb == Verb.RETRY and not would:
            later = life[place + 1 :]
            report.saved += len(later)
            report.saved_cost += sum(attempt.cost for attempt in later)
            report.lost += succeeded
            return
        if attempt.verb == Verb.DIE and would and _by_verdict(attempt):
            report.tried += 1


def _would_retry(failure: Failure, nth: int) -> bool:
    most = failure.terms.get("max_retries")
    return failure.retryable and (most is None or nth <= most)


def _by_verdict(attempt: PastAttempt) -> bool:
    """True if the job died because of the failure's class, not because a limit was reached."""
    return attempt.ground is Ground.CLASS_NOT_RETRYABLE


def _note(attempt: PastAttempt, failure: Failure, report: BacktestReport, *, would: bool) -> None:
    retried = attempt.verb == Verb.RETRY
    if retried and not would:
        effect = "given up"
    elif attempt.verb == Verb.DIE and would and _by_verdict(attempt):
        effect = "tried again"
    elif (attempt.code, attempt.cls) != (failure.code, failure.cls):
        effect = "named differently"
    else:
        return
    change = VerdictChange(
        f"{attempt.rule} {attempt.code}/{attempt.cls}",
        f"{failure.rule} {failure.code}/{failure.cls}",
        effect,
    )
    report.changes[change] += 1
    if attempt.facts is not None:
        text = attempt.facts.message or attempt.facts.stderr
        report.samples.setdefault(change, " ".join(text[-SAMPLE:].split()))


def sentences(report: BacktestReport) -> Iterator[str]:
    """The report in words, with what cannot be known said as such."""
    yield (
        f"{report.failures:,} failures of {report.jobs:,} jobs that did not succeed at once were judged again; "
        f"{report.changed:,} verdicts differ."
    )
    if report.saved:
        yield (
            f"{report.saved:,} of {report.attempts:,} retries would not have been made "
            f"({_percent(report.saved_share)}): a saving of {report.saved_cost:,.2f} in cost."
        )
        yield (
            f"{report.lost:,} of {report.rescued:,} jobs that succeeded after a failure would have been given up first "
            f"({_percent(report.lost_share)})."
        )
    if report.tried:
        yield (
            f"{report.tried:,} jobs that died would have been tried again. What would have come of it was never tried: "
            f"between 0 and {report.tried:,} of them would have succeeded."
        )
    if report.unreadable:
        yield f"{report.unreadable:,} failures were left out: what was known of them was not kept."
    if not report.changed:
        yield "Nothing would have been done differently."


def _percent(found: Share) -> str:
    if found.value is None:
        return "no data"
    return f"{found.value:.1%}, between {found.low:.1%} and {found.high:.1%}"

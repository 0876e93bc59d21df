"""Verbs that look back: what became of gates meanwhile, what many attempts came to. They count and decide nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from mulligan.event import Event
from mulligan.job import Micros
from mulligan.store.rows import event_of
from mulligan.tally import CodeCount, EndCount, FailureCount, HandCount, JobCount, LifeCount, Tally, TrialCount


class Asked(NamedTuple):
    """Which jobs insight looks at, and at how many at most."""

    low: str  # ids above this one
    since: Micros
    width: Micros
    kind: str | None
    queue: str | None
    jobs: int
    attempts: int
    rows: int  # of one answer


class PastRow(NamedTuple):
    """One attempt as a back-test needs it."""

    job_id: str
    kind: str
    uses: str
    token: int
    generation: int
    ended: str
    verb: str
    code: str | None
    cls: str | None
    rule: str | None
    judged: str | None
    evidence: str | None
    private: str | None
    cost: float


class HitRow(NamedTuple):
    """Failures that one rule has judged alike, and what was in shadow meanwhile would have said of them."""

    rule: str
    code: str
    cls: str
    verb: str
    would_rule: str | None
    would_code: str | None
    would_cls: str | None
    would_verb: str | None  # of a policy in shadow
    n: int
    last: Micros


class JudgedRow(NamedTuple):
    """One attempt that a rule has judged."""

    job_id: str
    kind: str
    attempt: int
    code: str | None
    cls: str | None
    verb: str
    ended_at: Micros
    public: str | None


class Hindsight(ABC):
    """Part of every `Unit`. Each verb reads a range of an index, and no more of it than its limit says."""

    @abstractmethod
    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        """Pauses, holds and their ends among the first and the last `most` events between two ids."""

    @abstractmethod
    def tally(self, asked: Asked) -> Tally:
        """What the newest jobs came to: at most `asked.jobs` of them and `asked.attempts` attempts are read."""

    @abstractmethod
    def past_begins(self, low: str, attempts: int) -> str:
        """The id after which the newest so many attempts lie, at least `low`."""

    @abstractmethod
    def past(self, begin: tuple[str, int], since: Micros, kind: str | None, most: int) -> list[PastRow]:
        """Attempts after this (job, token), in that order."""

    @abstractmethod
    def rule_hits(self, after: str, since: Micros, kind: str | None, most: int) -> list[HitRow]:
        """What rules have judged among the attempts of jobs after this id, the commonest first."""

    @abstractmethod
    def judged_by(self, rule: str, after: str, since: Micros, kind: str | None, most: int) -> list[JudgedRow]:
        """Of the same attempts those of this rule, also one in shadow; of the newest jobs first."""


class SqlHindsight(Hindsight):
    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        return [event_of(row) for row in self.rows("gate_news", after=after, before=before, most=most)]

    def tally(self, asked: Asked) -> Tally:
        bounds = self.rows("insight_span", low=asked.low, jobs=asked.jobs, attempts=asked.attempts)[0]
        after = max(asked.low, *(bound or "" for bound in bounds))
        chosen = {"after": after, "since": asked.since, "kind": asked.kind, "queue": asked.queue}
        counted = defaultdict(list)
        for what, *row in self.rows("insight_attempts", **chosen, width=asked.width, most=asked.rows):
            counted[what].append(row)
        lives = self.rows("insight_lives", **chosen, most=asked.rows)
        jobs = self.rows("insight_jobs", **chosen)
        at_once = sum(row[4] for row in jobs)
        return Tally(
            now=self.now(),
            since=asked.since,
            width=asked.width,
            cut=after > asked.low or asked.rows in (len(lives), sum(map(len, counted.values()))),
            jobs=[JobCount(*row[:4]) for row in jobs],
            ended=_ended(Counter({row[0]: row[5] for row in counted["ended"]}), at_once),
            codes=[CodeCount(row[0], row[1], row[5], row[4]) for row in counted["code"]],
            failures=[_failure(row) for row in counted["failure"]],
            trials=[TrialCount._make((*row[:8], int(row[8]))) for row in counted["trial"]],
            lives=[*map(_life, lives), *_at_once(at_once)],
            by_hand=[HandCount(*row) for row in self.rows("insight_by_hand", **chosen, most=asked.rows)],
        )

    def past_begins(self, low: str, attempts: int) -> str:
        _, begin = self.rows("insight_span", low=low, jobs=attempts, attempts=attempts)[0]
        return max(low, begin or "")

    def past(self, begin: tuple[str, int], since: Micros, kind: str | None, most: int) -> list[PastRow]:
        job_id, token = begin
        found = self.rows("past", from_id=job_id, from_token=token, since=since, kind=kind, most=most)
        return [PastRow(*row) for row in found]

    def rule_hits(self, after: str, since: Micros, kind: str | None, most: int) -> list[HitRow]:
        return [HitRow._make(row) for row in self.rows("rule_hits", after=after, since=since, kind=kind, most=most)]

    def judged_by(self, rule: str, after: str, since: Micros, kind: str | None, most: int) -> list[JudgedRow]:
        found = self.rows("judged_by", rule=rule, after=after, since=since, kind=kind, most=most)
        return [JudgedRow._make(row) for row in found]


def _failure(row: list[Any]) -> FailureCount:
    rule, _, verb = row[2].rpartition(" ")
    return FailureCount(row[0], row[1], rule, verb, row[3], row[5], row[7], int(row[8]))


def _ended(attempts: Counter[str], at_once: int) -> list[EndCount]:
    attempts["returned"] += at_once
    return [EndCount(ended, n) for ended, n in sorted(attempts.items()) if n]


def _life(row: tuple[Any, ...]) -> LifeCount:
    cls, outcome, retried, hopeless, ms, jobs = row
    return LifeCount(cls, outcome, bool(retried), bool(hopeless), ms, jobs)


def _at_once(jobs: int) -> list[LifeCount]:
    return [LifeCount("", "succeeded", retried=False, hopeless=False, ms=None, jobs=jobs)] if jobs else []

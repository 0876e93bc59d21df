"""Verbs that look back: what became of gates meanwhile, what many attempts came to. They count and decide nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.event import Event
from mulligan.core.job import AttemptRow, JobRow, Micros
from mulligan.core.statistics import (
    CodeCount,
    EndCount,
    FailureCount,
    HandCount,
    InsightCounts,
    JobCount,
    LifeCount,
    TrialCount,
)
from mulligan.storage.event_bundles import events_about
from mulligan.storage.rows import BatchRow, event_of


class InsightScope(NamedTuple):
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


class HistoryQueries(ABC):
    """Part of every `Unit`. Each verb reads a range of an index, and no more of it than its limit says."""

    @abstractmethod
    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        """Pauses, holds and their ends among the first and the last `most` events between two ids."""

    @abstractmethod
    def tally(self, asked: InsightScope) -> InsightCounts:
        """What the newest jobs came to: at most `asked.jobs` of them and `asked.attempts` attempts are read."""

    @abstractmethod
    def past_begins(self, low: str, attempts: int) -> str:
        """The id after which the newest so many attempts lie, at least `low`."""

    @abstractmethod
    def past(
        self, begin: tuple[str, int], since: Micros, kind: str | None, most: int
    ) -> list[PastRow]:
        """Attempts after this (job, token), in that order."""

    @abstractmethod
    def rule_hits(self, after: str, since: Micros, kind: str | None, most: int) -> list[HitRow]:
        """What rules have judged among the attempts of jobs after this id, the commonest first."""

    @abstractmethod
    def judged_by(
        self, rule: str, after: str, since: Micros, kind: str | None, most: int
    ) -> list[JudgedRow]:
        """Of the same attempts those of this rule, also one in shadow; of the newest jobs first."""


class SqlHistoryQueries(HistoryQueries):
    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        return [
            event_of(row) for row in self.rows("gate_news", after=after, before=before, most=most)
        ]

    def tally(self, asked: InsightScope) -> InsightCounts:
        bounds = self.rows("insight_span", low=asked.low, jobs=asked.jobs, attempts=asked.attempts)[
            0
        ]
        after = max(asked.low, *(bound or "" for bound in bounds))
        chosen = {"after": after, "since": asked.since, "kind": asked.kind, "queue": asked.queue}
        counted = defaultdict(list)
        for what, *row in self.rows(
            "insight_attempts", **chosen, width=asked.width, most=asked.rows
        ):
            counted[what].append(row)
        lives = self.rows("insight_lives", **chosen, most=asked.rows)
        jobs = self.rows("insight_jobs", **chosen)
        at_once = sum(row[4] for row in jobs)
        return InsightCounts(
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
            by_hand=[
                HandCount(*row) for row in self.rows("insight_by_hand", **chosen, most=asked.rows)
            ],
        )

    def past_begins(self, low: str, attempts: int) -> str:
        _, begin = self.rows("insight_span", low=low, jobs=attempts, attempts=attempts)[0]
        return max(low, begin or "")

    def past(
        self, begin: tuple[str, int], since: Micros, kind: str | None, most: int
    ) -> list[PastRow]:
        job_id, token = begin
        found = self.rows(
            "past", from_id=job_id, from_token=token, since=since, kind=kind, most=most
        )
        return [PastRow(*row) for row in found]

    def rule_hits(self, after: str, since: Micros, kind: str | None, most: int) -> list[HitRow]:
        return [
            HitRow._make(row)
            for row in self.rows("rule_hits", after=after, since=since, kind=kind, most=most)
        ]

    def judged_by(
        self, rule: str, after: str, since: Micros, kind: str | None, most: int
    ) -> list[JudgedRow]:
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
    return (
        [LifeCount("", "succeeded", retried=False, hopeless=False, ms=None, jobs=jobs)]
        if jobs
        else []
    )


# Verbs of the checker: everything there is, in the order of its keys, a page at a time. They only read.

SlotRow = tuple[str, Micros, str]  # schedule, slot, job


class WholeRow(NamedTuple):
    """A job with what no view shows."""

    job: JobRow
    announced: bool
    unique_until: Micros | None
    must_have: bool


class Checkpointed(NamedTuple):
    job_id: str
    name: str
    token: int
    at: Micros


class PrunedRow(NamedTuple):
    kind: str
    first_id: str
    last_id: str


class VerifyQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def whole_jobs(self, after: str, limit: int) -> list[WholeRow]:
        """In the order of ids, those above `after`."""

    @abstractmethod
    def stories(self, ids: Sequence[str]) -> list[Event]:
        """All events of these jobs, in the order of jobs and of what happened."""

    @abstractmethod
    def attempts_of(self, ids: Sequence[str]) -> list[AttemptRow]: ...

    @abstractmethod
    def checkpointed(self, ids: Sequence[str]) -> list[Checkpointed]: ...

    @abstractmethod
    def batches_above(self, after: str, limit: int) -> list[BatchRow]: ...

    @abstractmethod
    def slots_above(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]: ...

    @abstractmethod
    def pruned_over(self, job_id: str) -> list[PrunedRow]:
        """What retention has removed around this id."""

    @abstractmethod
    def pruned_kinds(self) -> list[tuple[str, Micros]]:
        """Of which kinds retention has removed jobs, and when it last did."""

    @abstractmethod
    def running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        """(queue, uses, how many run that began after this moment)."""

    @abstractmethod
    def events_gone(self) -> int:
        """Up to this id only what people did is left of the log."""

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file, where it can tell."""
        return []


class SqlVerifyQueries(VerifyQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    def whole_jobs(self, after: str, limit: int) -> list[WholeRow]:
        return [
            WholeRow(JobRow._make(row[:-3]), bool(row[-3]), row[-2], bool(row[-1]))
            for row in self.rows("whole_jobs", after=after, most=limit)
        ]

    def stories(self, ids: Sequence[str]) -> list[Event]:
        found = self.rows("stories", ids=self.ids(ids)) if ids else []
        return sorted(
            events_about(found, frozenset(ids)), key=lambda event: (event.job_id or "", event.id)
        )

    def attempts_of(self, ids: Sequence[str]) -> list[AttemptRow]:
        return (
            [AttemptRow._make(row) for row in self.rows("attempts_of", ids=self.ids(ids))]
            if ids
            else []
        )

    def checkpointed(self, ids: Sequence[str]) -> list[Checkpointed]:
        return (
            [Checkpointed._make(row) for row in self.rows("checkpointed", ids=self.ids(ids))]
            if ids
            else []
        )

    def batches_above(self, after: str, limit: int) -> list[BatchRow]:
        return [BatchRow._make(row) for row in self.rows("batches_above", after=after, most=limit)]

    def slots_above(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]:
        found = self.rows("slots_above", schedule=after[0], slot=after[1], most=limit)
        return [(row[0], row[1], row[2]) for row in found]

    def pruned_over(self, job_id: str) -> list[PrunedRow]:
        return [PrunedRow._make(row) for row in self.rows("pruned_over", id=job_id)]

    def pruned_kinds(self) -> list[tuple[str, Micros]]:
        return [(row[0], row[1]) for row in self.rows("pruned_kinds")]

    def running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in self.rows("running_since", since=since)]

    def events_gone(self) -> int:
        found = self.rows("events_floor")
        return int(found[0][0]) if found else 0

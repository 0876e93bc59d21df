"""Verbs that look back: what became of gates meanwhile, what many attempts came to. They count and decide nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event
from mulligan.core.job import AttemptRow, JobRow
from mulligan.core.statistics import (
    CodeCount,
    EndCount,
    FailureCount,
    GenerationCount,
    InsightCounts,
    JobCount,
    ManualRetryCount,
    TrialCount,
)
from mulligan.storage.event_bundles import events_about
from mulligan.storage.rows import BatchRow, parse_event


class InsightScope(NamedTuple):
    """Which jobs insight looks at, and at how many at most."""

    low: str  # ids above this one
    since: Micros
    age_step: Micros
    kind: str | None
    queue: str | None
    jobs: int
    attempts: int
    rows: int  # of one answer


class PastAttemptRow(NamedTuple):
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


class RuleHitRow(NamedTuple):
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


class ClassifiedAttemptRow(NamedTuple):
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
    def list_gate_events(self, after: int, before: int, most: int) -> list[Event]:
        """Pauses, holds and their ends among the first and the last `most` events between two ids."""

    @abstractmethod
    def count_insight(self, asked: InsightScope) -> InsightCounts:
        """What the newest jobs came to: at most `asked.jobs` of them and `asked.attempts` attempts are read."""

    @abstractmethod
    def find_backtest_start(self, low: str, attempts: int) -> str:
        """The id after which the newest so many attempts lie, at least `low`."""

    @abstractmethod
    def list_past_attempts(
        self, begin: tuple[str, int], since: Micros, kind: str | None, most: int
    ) -> list[PastAttemptRow]:
        """Attempts after this (job, token), in that order."""

    @abstractmethod
    def count_rule_hits(
        self, after: str, since: Micros, kind: str | None, most: int
    ) -> list[RuleHitRow]:
        """What rules have judged among the attempts of jobs after this id, the commonest first."""

    @abstractmethod
    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, most: int
    ) -> list[ClassifiedAttemptRow]:
        """Of the same attempts those of this rule, also one in shadow; of the newest jobs first."""


class SqlHistoryQueries(HistoryQueries):
    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def list_gate_events(self, after: int, before: int, most: int) -> list[Event]:
        return [
            parse_event(row)
            for row in self.rows("list_gate_events", after=after, before=before, limit=most)
        ]

    def count_insight(self, asked: InsightScope) -> InsightCounts:
        bounds = self.rows(
            "insight_bounds", low=asked.low, jobs=asked.jobs, attempts=asked.attempts
        )[0]
        after = max(asked.low, *(bound or "" for bound in bounds))
        chosen = {"after": after, "since": asked.since, "kind": asked.kind, "queue": asked.queue}
        counted = defaultdict(list)
        for what, *row in self.rows(
            "insight_attempts", **chosen, age_step=asked.age_step, limit=asked.rows
        ):
            counted[what].append(row)
        lives = self.rows("insight_generations", **chosen, limit=asked.rows)
        jobs = self.rows("insight_jobs", **chosen)
        at_once = sum(row[4] for row in jobs)
        return InsightCounts(
            now=self.now(),
            since=asked.since,
            age_step=asked.age_step,
            truncated=after > asked.low
            or asked.rows in (len(lives), sum(map(len, counted.values()))),
            jobs=[JobCount(*row[:4]) for row in jobs],
            ended=_ended(Counter({row[0]: row[5] for row in counted["ended"]}), at_once),
            codes=[CodeCount(row[0], row[1], row[5], row[4]) for row in counted["code"]],
            failures=[_failure(row) for row in counted["failure"]],
            trials=[TrialCount._make((*row[:8], int(row[8]))) for row in counted["trial"]],
            generations=[*map(_life, lives), *_at_once(at_once)],
            manual_retries=[
                ManualRetryCount(*row)
                for row in self.rows("insight_manual_retries", **chosen, limit=asked.rows)
            ],
        )

    def find_backtest_start(self, low: str, attempts: int) -> str:
        _, begin = self.rows("insight_bounds", low=low, jobs=attempts, attempts=attempts)[0]
        return max(low, begin or "")

    def list_past_attempts(
        self, begin: tuple[str, int], since: Micros, kind: str | None, most: int
    ) -> list[PastAttemptRow]:
        job_id, token = begin
        found = self.rows(
            "list_past_attempts",
            from_id=job_id,
            from_token=token,
            since=since,
            kind=kind,
            limit=most,
        )
        return [PastAttemptRow(*row) for row in found]

    def count_rule_hits(
        self, after: str, since: Micros, kind: str | None, most: int
    ) -> list[RuleHitRow]:
        return [
            RuleHitRow._make(row)
            for row in self.rows("count_rule_hits", after=after, since=since, kind=kind, limit=most)
        ]

    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, most: int
    ) -> list[ClassifiedAttemptRow]:
        found = self.rows(
            "list_attempts_by_rule", rule=rule, after=after, since=since, kind=kind, limit=most
        )
        return [ClassifiedAttemptRow._make(row) for row in found]


def _failure(row: list[Any]) -> FailureCount:
    rule, _, verb = row[2].rpartition(" ")
    return FailureCount(row[0], row[1], rule, verb, row[3], row[5], row[7], int(row[8]))


def _ended(attempts: Counter[str], at_once: int) -> list[EndCount]:
    attempts["returned"] += at_once
    return [EndCount(ended, n) for ended, n in sorted(attempts.items()) if n]


def _life(row: tuple[Any, ...]) -> GenerationCount:
    cls, outcome, retried, hopeless, ms, jobs = row
    return GenerationCount(cls, outcome, bool(retried), bool(hopeless), ms, jobs)


def _at_once(jobs: int) -> list[GenerationCount]:
    return (
        [GenerationCount("", "succeeded", retried=False, hopeless=False, ms=None, jobs=jobs)]
        if jobs
        else []
    )


# Verbs of the checker: everything there is, in the order of its keys, a page at a time. They only read.

SlotRow = tuple[str, Micros, str]  # schedule, slot, job


class WholeJobRow(NamedTuple):
    """A job with what no view shows."""

    job: JobRow
    announced: bool
    unique_until: Micros | None
    must_have: bool


class CheckpointRow(NamedTuple):
    job_id: str
    name: str
    token: int
    at: Micros


class PruneRecordRow(NamedTuple):
    kind: str
    first_id: str
    last_id: str


class VerifyQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_whole_jobs(self, after: str, limit: int) -> list[WholeJobRow]:
        """In the order of ids, those above `after`."""

    @abstractmethod
    def list_events_of_jobs(self, ids: Sequence[str]) -> list[Event]:
        """All events of these jobs, in the order of jobs and of what happened."""

    @abstractmethod
    def list_attempts_of_jobs(self, ids: Sequence[str]) -> list[AttemptRow]: ...

    @abstractmethod
    def list_checkpoints(self, ids: Sequence[str]) -> list[CheckpointRow]: ...

    @abstractmethod
    def list_batches_by_id(self, after: str, limit: int) -> list[BatchRow]: ...

    @abstractmethod
    def list_slots(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]: ...

    @abstractmethod
    def find_prune_records(self, job_id: str) -> list[PruneRecordRow]:
        """What retention has removed around this id."""

    @abstractmethod
    def list_pruned_kinds(self) -> list[tuple[str, Micros]]:
        """Of which kinds retention has removed jobs, and when it last did."""

    @abstractmethod
    def count_running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        """(queue, uses, how many run that began after this moment)."""

    @abstractmethod
    def events_gone(self) -> int:
        """Up to this id only what people did is left of the log."""

    def check_integrity(self) -> list[str]:
        """What the database itself finds wrong with its file, where it can tell."""
        return []


class SqlVerifyQueries(VerifyQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    def list_whole_jobs(self, after: str, limit: int) -> list[WholeJobRow]:
        return [
            WholeJobRow(JobRow._make(row[:-3]), bool(row[-3]), row[-2], bool(row[-1]))
            for row in self.rows("list_whole_jobs", after=after, limit=limit)
        ]

    def list_events_of_jobs(self, ids: Sequence[str]) -> list[Event]:
        found = self.rows("list_events_of_jobs", ids=self.array_param(ids)) if ids else []
        return sorted(
            events_about(found, frozenset(ids)), key=lambda event: (event.job_id or "", event.id)
        )

    def list_attempts_of_jobs(self, ids: Sequence[str]) -> list[AttemptRow]:
        return (
            [
                AttemptRow._make(row)
                for row in self.rows("list_attempts_of_jobs", ids=self.array_param(ids))
            ]
            if ids
            else []
        )

    def list_checkpoints(self, ids: Sequence[str]) -> list[CheckpointRow]:
        return (
            [
                CheckpointRow._make(row)
                for row in self.rows("list_checkpoints", ids=self.array_param(ids))
            ]
            if ids
            else []
        )

    def list_batches_by_id(self, after: str, limit: int) -> list[BatchRow]:
        return [
            BatchRow._make(row) for row in self.rows("list_batches_by_id", after=after, limit=limit)
        ]

    def list_slots(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]:
        found = self.rows("list_slots", schedule=after[0], slot=after[1], limit=limit)
        return [(row[0], row[1], row[2]) for row in found]

    def find_prune_records(self, job_id: str) -> list[PruneRecordRow]:
        return [PruneRecordRow._make(row) for row in self.rows("find_prune_records", id=job_id)]

    def list_pruned_kinds(self) -> list[tuple[str, Micros]]:
        return [(row[0], row[1]) for row in self.rows("list_pruned_kinds")]

    def count_running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in self.rows("count_running_since", since=since)]

    def events_gone(self) -> int:
        found = self.rows("pruned_event_id")
        return int(found[0][0]) if found else 0

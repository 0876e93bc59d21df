"""Statements about the past: gate events, insight, classified attempts, `doctor --verify`."""

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
    """Jobs that insight considers, and its limits."""

    low: str  # only ids above this one
    since: Micros
    age_step: Micros
    kind: str | None
    queue: str | None
    jobs: int
    attempts: int
    rows: int  # of one result


class PastAttemptRow(NamedTuple):
    """Attempt with the columns that a back-test needs."""

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
    """Failures that a rule classified, and what rules and policies in shadow mode would decide."""

    rule: str
    code: str
    cls: str
    verb: str
    would_rule: str | None
    would_code: str | None
    would_cls: str | None
    would_verb: str | None  # of a policy in shadow mode
    n: int
    last: Micros


class ClassifiedAttemptRow(NamedTuple):
    """Attempt that a rule classified."""

    job_id: str
    kind: str
    attempt: int
    code: str | None
    cls: str | None
    verb: str
    ended_at: Micros
    public: str | None


class HistoryQueries(ABC):
    """Part of `Transaction`. Each statement reads a range of an index, bounded by its limit."""

    @abstractmethod
    def list_gate_events(self, after: int, before: int, limit: int) -> list[Event]:
        """List gate events among the first and the last `limit` events between two ids."""

    @abstractmethod
    def count_insight(self, scope: InsightScope) -> InsightCounts:
        """Count outcomes of the newest jobs, within the limits of `scope`."""

    @abstractmethod
    def find_backtest_start(self, low: str, attempts: int) -> str:
        """Return the id after which the newest `attempts` attempts lie, at least `low`."""

    @abstractmethod
    def list_past_attempts(
        self, begin: tuple[str, int], since: Micros, kind: str | None, limit: int
    ) -> list[PastAttemptRow]:
        """List attempts after (job, token), in this order."""

    @abstractmethod
    def count_rule_hits(
        self, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[RuleHitRow]:
        """Count what rules classified among attempts of jobs after an id, most first."""

    @abstractmethod
    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[ClassifiedAttemptRow]:
        """List attempts that a rule classified, also in shadow mode, newest jobs first."""


class SqlHistoryQueries(HistoryQueries):
    """HistoryQueries in SQL."""

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def list_gate_events(self, after: int, before: int, limit: int) -> list[Event]:
        return [
            parse_event(row)
            for row in self.rows("list_gate_events", after=after, before=before, limit=limit)
        ]

    def count_insight(self, scope: InsightScope) -> InsightCounts:
        bounds = self.rows(
            "insight_bounds", low=scope.low, jobs=scope.jobs, attempts=scope.attempts
        )
        after = max(scope.low, *(bound or "" for bound in bounds[0]))
        chosen = {"after": after, "since": scope.since, "kind": scope.kind, "queue": scope.queue}
        attempts = self.rows(
            "insight_attempts", **chosen, age_step=scope.age_step, limit=scope.rows
        )
        generations = self.rows("insight_generations", **chosen, limit=scope.rows)
        manual_retries = self.rows("insight_manual_retries", **chosen, limit=scope.rows)
        jobs = self.rows("insight_jobs", **chosen)
        first_successes = sum(row[4] for row in jobs)
        counts = _group_by_type(attempts)
        return InsightCounts(
            now=self.now(),
            since=scope.since,
            age_step=scope.age_step,
            truncated=after > scope.low or scope.rows in (len(generations), len(attempts)),
            jobs=[JobCount(*row[:4]) for row in jobs],
            ended=_count_endings(counts["ended"], first_successes),
            codes=[CodeCount(row[0], row[1], row[5], row[4]) for row in counts["code"]],
            failures=[_parse_failure(row) for row in counts["failure"]],
            trials=[TrialCount._make((*row[:8], int(row[8]))) for row in counts["trial"]],
            generations=[
                *map(_parse_generation, generations),
                *_count_first_successes(first_successes),
            ],
            manual_retries=[ManualRetryCount(*row) for row in manual_retries],
        )

    def find_backtest_start(self, low: str, attempts: int) -> str:
        _, begin = self.rows("insight_bounds", low=low, jobs=attempts, attempts=attempts)[0]
        return max(low, begin or "")

    def list_past_attempts(
        self, begin: tuple[str, int], since: Micros, kind: str | None, limit: int
    ) -> list[PastAttemptRow]:
        job_id, token = begin
        found = self.rows(
            "list_past_attempts",
            from_id=job_id,
            from_token=token,
            since=since,
            kind=kind,
            limit=limit,
        )
        return [PastAttemptRow(*row) for row in found]

    def count_rule_hits(
        self, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[RuleHitRow]:
        return [
            RuleHitRow._make(row)
            for row in self.rows(
                "count_rule_hits", after=after, since=since, kind=kind, limit=limit
            )
        ]

    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[ClassifiedAttemptRow]:
        found = self.rows(
            "list_attempts_by_rule", rule=rule, after=after, since=since, kind=kind, limit=limit
        )
        return [ClassifiedAttemptRow._make(row) for row in found]


def _group_by_type(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[list[Any]]]:
    """Group the rows of `insight_attempts` by their first column."""
    groups: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row_type, *row in rows:
        groups[row_type].append(row)
    return groups


def _parse_failure(row: list[Any]) -> FailureCount:
    rule, _, verb = row[2].rpartition(" ")
    return FailureCount(row[0], row[1], rule, verb, row[3], row[5], row[7], int(row[8]))


def _count_endings(rows: Sequence[list[Any]], first_successes: int) -> list[EndCount]:
    attempts = Counter({row[0]: row[5] for row in rows})
    attempts["returned"] += first_successes
    return [EndCount(ended, n) for ended, n in sorted(attempts.items()) if n]


def _parse_generation(row: tuple[Any, ...]) -> GenerationCount:
    cls, outcome, retried, hopeless, ms, jobs = row
    return GenerationCount(cls, outcome, bool(retried), bool(hopeless), ms, jobs)


def _count_first_successes(jobs: int) -> list[GenerationCount]:
    """Count jobs that succeeded with their first attempt, which have no attempt rows."""
    if not jobs:
        return []
    return [GenerationCount("", "succeeded", retried=False, hopeless=False, ms=None, jobs=jobs)]


# --- Reading everything page by page, for `doctor --verify` ---

SlotRow = tuple[str, Micros, str]  # schedule, slot, job


class WholeJobRow(NamedTuple):
    """Job with the columns that no view shows."""

    job: JobRow
    announced: bool
    unique_until: Micros | None
    must_have: bool


class CheckpointRow(NamedTuple):
    """Checkpoint without its value."""

    job_id: str
    name: str
    token: int
    at: Micros


class PruneRecordRow(NamedTuple):
    """Range of ids from which retention has deleted jobs."""

    kind: str
    first_id: str
    last_id: str


class VerifyQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_whole_jobs(self, after: str, limit: int) -> list[WholeJobRow]:
        """List jobs in order of id, starting after `after`."""

    @abstractmethod
    def list_events_of_jobs(self, ids: Sequence[str]) -> list[Event]:
        """List all events of jobs, by job and in order."""

    @abstractmethod
    def list_attempts_of_jobs(self, ids: Sequence[str]) -> list[AttemptRow]:
        """List the attempts of jobs in order."""

    @abstractmethod
    def list_checkpoints(self, ids: Sequence[str]) -> list[CheckpointRow]:
        """List the checkpoints of jobs."""

    @abstractmethod
    def list_batches_by_id(self, after: str, limit: int) -> list[BatchRow]:
        """List batches in order of id, starting after `after`."""

    @abstractmethod
    def list_slots(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]:
        """List slots of schedules in order, starting after (schedule, slot)."""

    @abstractmethod
    def find_prune_records(self, job_id: str) -> list[PruneRecordRow]:
        """List records of retention whose range of ids contains this job."""

    @abstractmethod
    def list_pruned_kinds(self) -> list[tuple[str, Micros]]:
        """List kinds of which retention has deleted jobs, and when it last did."""

    @abstractmethod
    def count_running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        """Count running jobs that started after a time, by (queue, dependencies)."""

    def check_integrity(self) -> list[str]:
        """Return the damage that the database itself finds in its file, if it can."""
        return []


class SqlVerifyQueries(VerifyQueries):
    """VerifyQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    def list_whole_jobs(self, after: str, limit: int) -> list[WholeJobRow]:
        found = []
        for row in self.rows("list_whole_jobs", after=after, limit=limit):
            *columns, announced, unique_until, must_have = row
            job = JobRow._make(columns)
            found.append(WholeJobRow(job, bool(announced), unique_until, bool(must_have)))
        return found

    def list_events_of_jobs(self, ids: Sequence[str]) -> list[Event]:
        if not ids:
            return []
        rows = self.rows("list_events_of_jobs", ids=self.array_param(ids))
        events = events_about(rows, frozenset(ids))
        return sorted(events, key=lambda event: (event.job_id or "", event.id))

    def list_attempts_of_jobs(self, ids: Sequence[str]) -> list[AttemptRow]:
        if not ids:
            return []
        rows = self.rows("list_attempts_of_jobs", ids=self.array_param(ids))
        return [AttemptRow._make(row) for row in rows]

    def list_checkpoints(self, ids: Sequence[str]) -> list[CheckpointRow]:
        if not ids:
            return []
        rows = self.rows("list_checkpoints", ids=self.array_param(ids))
        return [CheckpointRow._make(row) for row in rows]

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

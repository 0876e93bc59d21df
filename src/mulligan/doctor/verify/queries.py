"""Statements that read everything page by page, for `doctor --verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mulligan.batches.queries import BatchRow
from mulligan.core.durations import Micros
from mulligan.core.job import AttemptRow, JobRow
from mulligan.storage.base import Queries

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


class VerifyQueries(Queries):
    """Statements of the invariant checker, in a transaction."""

    def list_whole_jobs(self, after: str, limit: int) -> list[WholeJobRow]:
        """List jobs in order of id, starting after `after`."""
        found = []
        for row in self.tx.rows("list_whole_jobs", after=after, limit=limit):
            *columns, announced, unique_until, must_have = row
            job = JobRow._make(columns)
            found.append(WholeJobRow(job, bool(announced), unique_until, bool(must_have)))
        return found

    def list_attempts_of_jobs(self, ids: Sequence[str]) -> list[AttemptRow]:
        """List the attempts of jobs in order."""
        if not ids:
            return []
        rows = self.tx.rows("list_attempts_of_jobs", ids=self.tx.array_param(ids))
        return [AttemptRow._make(row) for row in rows]

    def list_checkpoints(self, ids: Sequence[str]) -> list[CheckpointRow]:
        """List the checkpoints of jobs."""
        if not ids:
            return []
        rows = self.tx.rows("list_checkpoints", ids=self.tx.array_param(ids))
        return [CheckpointRow._make(row) for row in rows]

    def list_batches_by_id(self, after: str, limit: int) -> list[BatchRow]:
        """List batches in order of id, starting after `after`."""
        return [
            BatchRow._make(row)
            for row in self.tx.rows("list_batches_by_id", after=after, limit=limit)
        ]

    def list_slots(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]:
        """List slots of schedules in order, starting after (schedule, slot)."""
        found = self.tx.rows("list_slots", schedule=after[0], slot=after[1], limit=limit)
        return [(row[0], row[1], row[2]) for row in found]

    def find_prune_records(self, job_id: str) -> list[PruneRecordRow]:
        """List records of retention whose range of ids contains this job."""
        return [PruneRecordRow._make(row) for row in self.tx.rows("find_prune_records", id=job_id)]

    def list_pruned_kinds(self) -> list[tuple[str, Micros]]:
        """List kinds of which retention has deleted jobs, and when it last did."""
        return [(row[0], row[1]) for row in self.tx.rows("list_pruned_kinds")]

    def count_running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        """Count running jobs that started after a time, by (queue, dependencies)."""
        return [
            (row[0], row[1], row[2]) for row in self.tx.rows("count_running_since", since=since)
        ]

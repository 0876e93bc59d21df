"""Statements about batches.

A batch has two rows: its definition, which transactions that add members lock in shared mode, and
its progress, which transactions that end members lock. Locks are taken in this order: definition,
jobs by id, progress by id, inserts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueRace
from mulligan.core.event import Event
from mulligan.core.job import JobRow
from mulligan.events.queries import parse_event
from mulligan.jobs.queries import JobQueries, PrunedJobs
from mulligan.storage.base import Queries

UNIQUE_KEY_ROUNDS = 3  # attempts to insert a unique key whose holder changes


PRUNED_BATCH_KIND = "mulligan.batch"  # kind in the record of a pruned batch


MemberCount = tuple[str, str, bool, int]  # batch, state, must_have, count


class NewBatch(NamedTuple):
    """A batch about to be inserted."""

    id: str
    name: str
    owner: str
    tolerance: str
    on_complete: str | None
    unique_key: str | None
    unique_hash: str | None
    expires_span: Micros | None  # duration, from now
    expires_at: Micros | None  # absolute, instead of `expires_span`
    sealed: bool = False  # at once
    parent_id: str | None = None  # the job that waits for the members
    parent_step: str | None = None  # the name of its wait


class BatchRow(NamedTuple):
    """A batch as stored: its definition, then its progress."""

    id: str
    name: str
    owner: str
    tolerance: str  # number or share of members that may die: "3", "10%"
    on_complete: str | None  # JSON of a prepared NewJob
    unique_key: str | None
    created_at: Micros
    sealed_at: Micros | None
    cancelled_at: Micros | None
    cancel_reason: str | None
    parent_id: str | None  # the job that waits for the members
    parent_step: str | None  # the name of its wait
    generation: int
    outcome: str | None  # ready, partial or failed
    outcome_at: Micros | None
    previous: str | None  # outcome of the previous generation
    sealed_event_written: bool  # the event batch.sealed is written
    expires_at: Micros | None
    expired_at: Micros | None
    being_pruned: bool  # retention has started to delete it


class BatchQueries(Queries):
    """Statements about batches, in a transaction."""

    def insert_batch(self, batch: NewBatch) -> str:
        """Insert a batch. Return its id, or that of the batch that holds its unique key."""
        params = batch._asdict()
        for _ in range(UNIQUE_KEY_ROUNDS):
            if self.tx.rows("insert_batch", **params):
                self.tx.rows("insert_batch_progress", **params)
                return batch.id
            holder = self.tx.rows("find_batch_by_key", unique_hash=batch.unique_hash)
            if holder:
                return str(holder[0][0])
        message = (
            f"unique key {batch.unique_key!r} is held by a batch this transaction cannot see. "
            "Try again."
        )
        raise UniqueRace(message)

    def get_batch(self, batch_id: str) -> BatchRow | None:
        """Read one batch."""
        return _first_batch(self.tx.rows("get_batch", id=batch_id))

    def get_batch_for_share(self, batch_id: str) -> BatchRow | None:
        """Read a batch to add members. It cannot be sealed or cancelled until the commit."""
        return _first_batch(self.tx.rows("get_batch_for_share", id=batch_id))

    def get_batch_for_update(self, batch_id: str) -> BatchRow | None:
        """Read a batch to seal or cancel it. Waits for transactions that add members."""
        return _first_batch(self.tx.rows("get_batch_for_update", id=batch_id))

    def seal_batch(self, batch_id: str, *, wait: bool = True) -> bool:
        """Seal a batch. False: it was sealed before.

        Without `wait`, False also means that a transaction is adding members.
        """
        statement = "seal_batch" if wait else "seal_free_batch"
        return bool(self.tx.rows(statement, id=batch_id))

    def cancel_batch(self, batch_id: str, reason: str) -> bool:
        """Cancel a batch and seal it. False: it was cancelled before."""
        return bool(self.tx.rows("cancel_batch", id=batch_id, reason=reason))

    def holds_lease(self, job_id: str, worker: str, token: int, batch_id: str) -> bool:
        """True if this attempt of a member is running. It then cannot end before the commit."""
        return bool(
            self.tx.rows("holds_lease", id=job_id, worker=worker, token=token, batch_id=batch_id)
        )

    def find_batch_members_by_key(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        """Return (owner, kind, unique key) → (id, payload) of members in any state."""
        found = self.tx.rows(
            "find_batch_members_by_key", batch_id=batch_id, keys=self.tx.array_param(keys)
        )
        return {
            (owner, kind, key): (job_id, payload) for owner, kind, key, job_id, payload in found
        }

    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        """Lock the progress of batches. Without `wait`, skip those that are locked."""
        statement = "lock_batches" if wait else "lock_free_batches"
        rows = self.tx.rows(statement, ids=self.tx.array_param(ids))
        return [batch_id for (batch_id,) in rows]

    def list_completable_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        """List sealed batches without outcome and unfinished members. Call `lock_batches` first."""
        return [
            _parse_batch(row)
            for row in self.tx.rows("list_completable_batches", ids=self.tx.array_param(ids))
        ]

    def count_batch_members(self, ids: Sequence[str]) -> list[MemberCount]:
        """Count members by batch, state and must_have."""
        if not ids:
            return []
        found = self.tx.rows("count_batch_members", ids=self.tx.array_param(ids))
        return [(batch_id, state, bool(must), count) for batch_id, state, must, count in found]

    def complete_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        """Store the outcome of a generation. False: it has one."""
        return bool(
            self.tx.rows("complete_batch", id=batch_id, generation=generation, outcome=outcome)
        )

    def reopen_batch(self, batch_id: str) -> int | None:
        """Begin a new generation of a completed batch. None: it is not completed or is final."""
        found = self.tx.rows("reopen_batch", id=batch_id)
        return int(found[0][0]) if found else None

    def mark_sealed_event_written(self, batch_id: str) -> bool:
        """Record that `batch.sealed` is written. False: it was written before."""
        return bool(self.tx.rows("mark_sealed_event_written", id=batch_id))

    def list_batches_to_complete(self, limit: int) -> list[str]:
        """List sealed batches whose event is missing or whose members have all ended."""
        return [row[0] for row in self.tx.rows("list_batches_to_complete", limit=limit)]

    def list_batches_to_expire(self, limit: int) -> list[BatchRow]:
        """List batches past their expiry that are completed or were never sealed."""
        return [_parse_batch(row) for row in self.tx.rows("list_batches_to_expire", limit=limit)]

    def expire_batch(self, batch_id: str) -> bool:
        """Mark a batch as expired. False: it is not due."""
        return bool(self.tx.rows("expire_batch", id=batch_id))

    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[PrunedJobs]] | None:
        """Delete at most `limit` members of an old batch, and the batch after its last member.

        None: there is no old batch.
        """
        batch = _first_batch(self.tx.rows("list_prunable_batches", before=before, limit=1))
        if batch is None:
            return None
        members = self.tx.rows("list_prunable_members", id=batch.id, limit=limit)
        records = JobQueries(self.tx).delete_pruned_jobs(members)
        empty = not self.count_batch_members([batch.id])
        deleted = empty and bool(self.tx.rows("delete_batch", id=batch.id))
        if deleted:
            self.tx.rows("delete_batch_progress", id=batch.id)
            records.append(self._record_pruned_batch(batch))
        else:
            self.tx.rows("mark_batch_being_pruned", id=batch.id)
        return batch._replace(being_pruned=not deleted), records

    def list_batches(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        """List batches, newest first."""
        return [
            _parse_batch(row)
            for row in self.tx.rows(
                "list_batches", state=state, owner=owner, limit=limit, before=before
            )
        ]

    def list_orphaned_batches(self, limit: int) -> list[str]:
        """List batches of child jobs that go on although their parent has ended."""
        return [row[0] for row in self.tx.rows("list_orphaned_batches", limit=limit)]

    def list_batches_of_children(self, parent_id: str) -> list[tuple[str, str]]:
        """List (id, name) of the batches of child jobs that a job has waited for."""
        return list(self.tx.rows("list_batches_of_children", id=parent_id))

    def list_member_results(self, batch_id: str) -> list[tuple[str, str, str | None, str | None]]:
        """List (id, state, result, error) of the members, in the order of enqueue."""
        return list(self.tx.rows("list_member_results", id=batch_id))

    def find_batches(self, prefix: str, limit: int) -> list[str]:
        """List ids that start with `prefix`."""
        return [
            row[0]
            for row in self.tx.rows("find_batches", prefix=prefix, length=len(prefix), limit=limit)
        ]

    def lock_batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        """Lock and list the members in these states, by id."""
        return self.list_rows(
            JobRow, "lock_batch_members", id=batch_id, states=self.tx.array_param(states)
        )

    def list_batch_members(self, batch_id: str, after: str, limit: int) -> list[JobRow]:
        """List members in the order of enqueue, at most `limit`, after the job `after`."""
        rows = self.tx.rows("list_batch_members", id=batch_id, after=after, limit=limit)
        return [JobRow._make(row) for row in rows]

    def count_batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        """List (code, deaths, newest dead job), most frequent first."""
        return [
            (code, count, job_id)
            for code, count, job_id in self.tx.rows(
                "count_batch_failures", id=batch_id, limit=limit
            )
        ]

    def list_batch_events(self, batch_id: str) -> list[Event]:
        """List the events of the batch itself, without those of its members."""
        return [parse_event(row) for row in self.tx.rows("list_batch_events", id=batch_id)]

    def _record_pruned_batch(self, batch: BatchRow) -> PrunedJobs:
        outcome = batch.outcome or ""
        record = PrunedJobs(PRUNED_BATCH_KIND, outcome, batch.owner, "", 1, batch.id, batch.id)
        self.tx.rows("record_pruned_jobs", at=self.tx.now(), **record._asdict())
        return record


def _first_batch(rows: Sequence[tuple[Any, ...]]) -> BatchRow | None:
    return _parse_batch(rows[0]) if rows else None


def _parse_batch(row: tuple[Any, ...]) -> BatchRow:
    batch = BatchRow._make(row)
    return batch._replace(
        sealed_event_written=bool(batch.sealed_event_written), being_pruned=bool(batch.being_pruned)
    )

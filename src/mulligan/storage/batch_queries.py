"""Statements about batches.

A batch has two rows: its definition, which transactions that add members lock in shared mode, and
its progress, which transactions that end members lock. Locks are taken in this order: definition,
jobs by id, progress by id, inserts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueRace
from mulligan.core.event import Event
from mulligan.core.job import JobRow
from mulligan.storage.rows import BatchRow, NewBatch, PrunedJobs, parse_event

UNIQUE_KEY_ROUNDS = 3  # attempts to insert a unique key whose holder changes
PRUNED_BATCH_KIND = "mulligan.batch"  # kind in the record of a pruned batch

MemberCount = tuple[str, str, bool, int]  # batch, state, must_have, count


class BatchQueries(ABC):
    """Part of `Transaction`."""

    # --- Insert, seal, cancel ---
    @abstractmethod
    def insert_batch(self, batch: NewBatch) -> str:
        """Insert a batch. Return its id, or that of the batch that holds its unique key."""

    @abstractmethod
    def get_batch(self, batch_id: str) -> BatchRow | None:
        """Read one batch."""

    @abstractmethod
    def get_batch_for_share(self, batch_id: str) -> BatchRow | None:
        """Read a batch to add members. It cannot be sealed or cancelled until the commit."""

    @abstractmethod
    def get_batch_for_update(self, batch_id: str) -> BatchRow | None:
        """Read a batch to seal or cancel it. Waits for transactions that add members."""

    @abstractmethod
    def seal_batch(self, batch_id: str, *, wait: bool = True) -> bool:
        """Seal a batch. False: it was sealed before.

        Without `wait`, False also means that a transaction is adding members.
        """

    @abstractmethod
    def cancel_batch(self, batch_id: str, reason: str) -> bool:
        """Cancel a batch and seal it. False: it was cancelled before."""

    @abstractmethod
    def holds_lease(self, job_id: str, worker: str, token: int, batch_id: str) -> bool:
        """True if this attempt of a member is running. It then cannot end before the commit."""

    @abstractmethod
    def find_batch_members_by_key(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        """Return (owner, kind, unique key) → (id, payload) of members in any state."""

    # --- Complete ---
    @abstractmethod
    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        """Lock the progress of batches. Without `wait`, skip those that are locked."""

    @abstractmethod
    def list_completable_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        """List sealed batches without outcome and unfinished members. Call `lock_batches` first."""

    @abstractmethod
    def count_batch_members(self, ids: Sequence[str]) -> list[MemberCount]:
        """Count members by batch, state and must_have."""

    @abstractmethod
    def complete_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        """Store the outcome of a generation. False: it has one."""

    @abstractmethod
    def reopen_batch(self, batch_id: str) -> int | None:
        """Begin a new generation of a completed batch. None: it is not completed or is final."""

    @abstractmethod
    def mark_sealed_event_written(self, batch_id: str) -> bool:
        """Record that `batch.sealed` is written. False: it was written before."""

    # --- Upkeep ---
    @abstractmethod
    def list_batches_to_complete(self, limit: int) -> list[str]:
        """List sealed batches whose event is missing or whose members have all ended."""

    @abstractmethod
    def list_batches_to_expire(self, limit: int) -> list[BatchRow]:
        """List batches past their expiry that are completed or were never sealed."""

    @abstractmethod
    def expire_batch(self, batch_id: str) -> bool:
        """Mark a batch as expired. False: it is not due."""

    @abstractmethod
    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[PrunedJobs]] | None:
        """Delete at most `limit` members of an old batch, and the batch after its last member.

        None: there is no old batch.
        """

    # --- Read ---
    @abstractmethod
    def list_batches(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        """List batches, newest first."""

    @abstractmethod
    def find_batches(self, prefix: str, limit: int) -> list[str]:
        """List ids that start with `prefix`."""

    @abstractmethod
    def lock_batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        """Lock and list the members in these states, by id."""

    @abstractmethod
    def count_batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        """List (code, deaths, newest dead job), most frequent first."""

    @abstractmethod
    def list_batch_events(self, batch_id: str) -> list[Event]:
        """List the events of the batch itself, without those of its members."""


class SqlBatchQueries(BatchQueries):
    """BatchQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[str]) -> Any: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def delete_pruned_jobs(self, prunable: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]: ...

    def insert_batch(self, batch: NewBatch) -> str:
        params = batch._asdict()
        for _ in range(UNIQUE_KEY_ROUNDS):
            if self.rows("insert_batch", **params):
                self.rows("insert_batch_progress", **params)
                return batch.id
            holder = self.rows("find_batch_by_key", unique_hash=batch.unique_hash)
            if holder:
                return str(holder[0][0])
        message = (
            f"unique key {batch.unique_key!r} is held by a batch this transaction cannot see. "
            "Try again."
        )
        raise UniqueRace(message)

    def get_batch(self, batch_id: str) -> BatchRow | None:
        return _first_batch(self.rows("get_batch", id=batch_id))

    def get_batch_for_share(self, batch_id: str) -> BatchRow | None:
        return _first_batch(self.rows("get_batch_for_share", id=batch_id))

    def get_batch_for_update(self, batch_id: str) -> BatchRow | None:
        return _first_batch(self.rows("get_batch_for_update", id=batch_id))

    def seal_batch(self, batch_id: str, *, wait: bool = True) -> bool:
        return bool(self.rows("seal_batch" if wait else "seal_free_batch", id=batch_id))

    def cancel_batch(self, batch_id: str, reason: str) -> bool:
        return bool(self.rows("cancel_batch", id=batch_id, reason=reason))

    def holds_lease(self, job_id: str, worker: str, token: int, batch_id: str) -> bool:
        return bool(
            self.rows("holds_lease", id=job_id, worker=worker, token=token, batch_id=batch_id)
        )

    def find_batch_members_by_key(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        found = self.rows(
            "find_batch_members_by_key", batch_id=batch_id, keys=self.array_param(keys)
        )
        return {
            (owner, kind, key): (job_id, payload) for owner, kind, key, job_id, payload in found
        }

    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        statement = "lock_batches" if wait else "lock_free_batches"
        return [row[0] for row in self.rows(statement, ids=self.array_param(ids))]

    def list_completable_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        return [
            _parse_batch(row)
            for row in self.rows("list_completable_batches", ids=self.array_param(ids))
        ]

    def count_batch_members(self, ids: Sequence[str]) -> list[MemberCount]:
        found = self.rows("count_batch_members", ids=self.array_param(ids)) if ids else []
        return [(batch_id, state, bool(must), count) for batch_id, state, must, count in found]

    def complete_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        return bool(
            self.rows("complete_batch", id=batch_id, generation=generation, outcome=outcome)
        )

    def reopen_batch(self, batch_id: str) -> int | None:
        found = self.rows("reopen_batch", id=batch_id)
        return int(found[0][0]) if found else None

    def mark_sealed_event_written(self, batch_id: str) -> bool:
        return bool(self.rows("mark_sealed_event_written", id=batch_id))

    def list_batches_to_complete(self, limit: int) -> list[str]:
        return [row[0] for row in self.rows("list_batches_to_complete", limit=limit)]

    def list_batches_to_expire(self, limit: int) -> list[BatchRow]:
        return [_parse_batch(row) for row in self.rows("list_batches_to_expire", limit=limit)]

    def expire_batch(self, batch_id: str) -> bool:
        return bool(self.rows("expire_batch", id=batch_id))

    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[PrunedJobs]] | None:
        batch = _first_batch(self.rows("list_prunable_batches", before=before, limit=1))
        if batch is None:
            return None
        members = self.rows("list_prunable_members", id=batch.id, limit=limit)
        records = self.delete_pruned_jobs(members)
        empty = not self.count_batch_members([batch.id])
        deleted = empty and bool(self.rows("delete_batch", id=batch.id))
        if deleted:
            self.rows("delete_batch_progress", id=batch.id)
            records.append(self._record_pruned_batch(batch))
        else:
            self.rows("mark_batch_being_pruned", id=batch.id)
        return batch._replace(being_pruned=not deleted), records

    def _record_pruned_batch(self, batch: BatchRow) -> PrunedJobs:
        outcome = batch.outcome or ""
        record = PrunedJobs(PRUNED_BATCH_KIND, outcome, batch.owner, "", 1, batch.id, batch.id)
        self.rows("record_pruned_jobs", at=self.now(), **record._asdict())
        return record

    def list_batches(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        return [
            _parse_batch(row)
            for row in self.rows(
                "list_batches", state=state, owner=owner, limit=limit, before=before
            )
        ]

    def find_batches(self, prefix: str, limit: int) -> list[str]:
        return [
            row[0]
            for row in self.rows("find_batches", prefix=prefix, length=len(prefix), limit=limit)
        ]

    def lock_batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        return [
            JobRow._make(row)
            for row in self.rows("lock_batch_members", id=batch_id, states=self.array_param(states))
        ]

    def count_batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        return [
            (code, count, job_id)
            for code, count, job_id in self.rows("count_batch_failures", id=batch_id, limit=limit)
        ]

    def list_batch_events(self, batch_id: str) -> list[Event]:
        return [parse_event(row) for row in self.rows("list_batch_events", id=batch_id)]


def _first_batch(rows: Sequence[tuple[Any, ...]]) -> BatchRow | None:
    return _parse_batch(rows[0]) if rows else None


def _parse_batch(row: tuple[Any, ...]) -> BatchRow:
    batch = BatchRow._make(row)
    return batch._replace(
        sealed_event_written=bool(batch.sealed_event_written), being_pruned=bool(batch.being_pruned)
    )

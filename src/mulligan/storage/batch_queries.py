"""Verbs of batches. Two rows each: who adds members shares the definition, who ends one holds the progress.

Locks are taken in one order: definition, jobs by id, progress by id, inserts.
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

UNIQUE_KEY_ROUNDS = 3
PRUNED_BATCH_KIND = "mulligan.batch"  # as what a batch is recorded once it is removed

MemberCount = tuple[str, str, bool, int]  # batch, state, must-have, how many


class BatchQueries(ABC):
    """Part of `Transaction`."""

    # --- Begin, seal, cancel ---
    @abstractmethod
    def insert_batch(self, batch: NewBatch) -> str:
        """Its id, or that of the batch that has its unique key."""

    @abstractmethod
    def get_batch(self, batch_id: str) -> BatchRow | None: ...

    @abstractmethod
    def get_batch_for_share(self, batch_id: str) -> BatchRow | None:
        """For who adds members: it cannot be sealed or cancelled before this transaction ends."""

    @abstractmethod
    def get_batch_for_update(self, batch_id: str) -> BatchRow | None:
        """For who seals or cancels: waits for those who add members."""

    @abstractmethod
    def seal_batch(self, batch_id: str, *, wait: bool = True) -> bool:
        """False: it was sealed before (without `wait` also: somebody is adding members)."""

    @abstractmethod
    def cancel_batch(self, batch_id: str, reason: str) -> bool:
        """Seals it too. False: it was cancelled before."""

    @abstractmethod
    def holds_lease(self, job_id: str, worker: str, token: int, batch_id: str) -> bool:
        """Is this attempt of a member under way? Then it cannot end before this transaction does."""

    @abstractmethod
    def find_batch_members_by_key(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        """(owner, kind, unique key) → the member that has it, whatever its state: its id and payload."""

    # --- Complete ---
    @abstractmethod
    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        """Hold the progress of those that exist (without `wait`: and that nobody else holds)."""

    @abstractmethod
    def list_completable_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        """Those that are sealed, have no outcome, and no unfinished member. To be asked after `lock_batches`."""

    @abstractmethod
    def count_batch_members(self, ids: Sequence[str]) -> list[MemberCount]: ...

    @abstractmethod
    def complete_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        """Once per generation."""

    @abstractmethod
    def reopen_batch(self, batch_id: str) -> int | None:
        """A finished one begins a generation; None: it is not finished, or will never change again."""

    @abstractmethod
    def mark_sealed_event_written(self, batch_id: str) -> bool:
        """`batch.sealed` is about to be written. False: it was."""

    # --- By upkeep ---
    @abstractmethod
    def list_batches_to_complete(self, limit: int) -> list[str]:
        """Sealed, and not told of or not noticed to have ended."""

    @abstractmethod
    def list_batches_to_expire(self, limit: int) -> list[BatchRow]:
        """Past their time, and finished or never sealed."""

    @abstractmethod
    def expire_batch(self, batch_id: str) -> bool: ...

    @abstractmethod
    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[PrunedJobs]] | None:
        """One step: at most `limit` members of a batch that ended before then, and itself with the last of them.

        None: there is no such batch.
        """

    # --- Read ---
    @abstractmethod
    def list_batches(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        """Newest first."""

    @abstractmethod
    def find_batches(self, prefix: str, limit: int) -> list[str]: ...

    @abstractmethod
    def lock_batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        """Those in these states, held in the order of ids."""

    @abstractmethod
    def count_batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        """(code, how many died of it, the newest of them), most first."""

    @abstractmethod
    def list_batch_events(self, batch_id: str) -> list[Event]:
        """What happened to the batch itself; its members have stories of their own."""


class SqlBatchQueries(BatchQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[str]) -> Any: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def delete_pruned_jobs(self, doomed: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]: ...

    def insert_batch(self, batch: NewBatch) -> str:
        named = batch._asdict()
        for _ in range(UNIQUE_KEY_ROUNDS):
            if self.rows("insert_batch", **named):
                self.rows("insert_batch_progress", **named)
                return batch.id
            held = self.rows("find_batch_by_key", unique_hash=batch.unique_hash)
            if held:
                return str(held[0][0])
        message = f"unique key {batch.unique_key!r} is held by a batch this transaction cannot see; try again"
        raise UniqueRace(message)

    def get_batch(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("get_batch", id=batch_id))

    def get_batch_for_share(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("get_batch_for_share", id=batch_id))

    def get_batch_for_update(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("get_batch_for_update", id=batch_id))

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
        return [
            row[0]
            for row in self.rows(
                "lock_batches" if wait else "lock_free_batches", ids=self.array_param(ids)
            )
        ]

    def list_completable_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        return [
            _batch(row) for row in self.rows("list_completable_batches", ids=self.array_param(ids))
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
        return [_batch(row) for row in self.rows("list_batches_to_expire", limit=limit)]

    def expire_batch(self, batch_id: str) -> bool:
        return bool(self.rows("expire_batch", id=batch_id))

    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[PrunedJobs]] | None:
        batch = _only(self.rows("list_prunable_batches", before=before, limit=1))
        if batch is None:
            return None
        records = self.delete_pruned_jobs(
            self.rows("list_prunable_members", id=batch.id, limit=limit)
        )
        gone = not self.count_batch_members([batch.id]) and bool(
            self.rows("delete_batch", id=batch.id)
        )
        if gone:
            self.rows("delete_batch_progress", id=batch.id)
            record = PrunedJobs(
                PRUNED_BATCH_KIND, batch.outcome or "", batch.owner, "", 1, batch.id, batch.id
            )
            self.rows("record_pruned_jobs", at=self.now(), **record._asdict())
            records.append(record)
        else:
            self.rows("mark_batch_being_pruned", id=batch.id)
        return batch._replace(leaving=not gone), records

    def list_batches(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        return [
            _batch(row)
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


def _only(rows: Sequence[tuple[Any, ...]]) -> BatchRow | None:
    return _batch(rows[0]) if rows else None


def _batch(row: tuple[Any, ...]) -> BatchRow:
    batch = BatchRow._make(row)
    return batch._replace(told=bool(batch.told), leaving=bool(batch.leaving))

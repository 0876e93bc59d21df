"""Verbs of batches. Two rows each: who adds members shares the definition, who ends one holds the progress.

Locks are taken in one order: definition, jobs by id, progress by id, inserts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mulligan.core.errors import UniqueRace
from mulligan.core.event import Event
from mulligan.core.job import JobRow, Micros
from mulligan.storage.rows import BatchRow, NewBatch, Pruned, event_of

ROUNDS = 3
KIND = "mulligan.batch"  # as what a batch is recorded once it is removed

MemberCount = tuple[str, str, bool, int]  # batch, state, must-have, how many


class BatchQueries(ABC):
    """Part of every `Unit`."""

    # -- begin, seal, cancel ------------------------------------------------------------------------
    @abstractmethod
    def new_batch(self, batch: NewBatch) -> str:
        """Its id, or that of the batch that has its unique key."""

    @abstractmethod
    def batch(self, batch_id: str) -> BatchRow | None: ...

    @abstractmethod
    def batch_to_join(self, batch_id: str) -> BatchRow | None:
        """For who adds members: it cannot be sealed or cancelled before this transaction ends."""

    @abstractmethod
    def batch_to_change(self, batch_id: str) -> BatchRow | None:
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
    def batch_twins(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        """(owner, kind, unique key) → the member that has it, whatever its state: its id and payload."""

    # -- complete -----------------------------------------------------------------------------------
    @abstractmethod
    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        """Hold the progress of those that exist (without `wait`: and that nobody else holds)."""

    @abstractmethod
    def ended_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        """Those that are sealed, have no outcome, and no unfinished member. To be asked after `lock_batches`."""

    @abstractmethod
    def batch_counts(self, ids: Sequence[str]) -> list[MemberCount]: ...

    @abstractmethod
    def end_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        """Once per generation."""

    @abstractmethod
    def reopen_batch(self, batch_id: str) -> int | None:
        """A finished one begins a generation; None: it is not finished, or will never change again."""

    @abstractmethod
    def told_batch(self, batch_id: str) -> bool:
        """`batch.sealed` is about to be written. False: it was."""

    # -- by upkeep ----------------------------------------------------------------------------------
    @abstractmethod
    def batches_waiting(self, limit: int) -> list[str]:
        """Sealed, and not told of or not noticed to have ended."""

    @abstractmethod
    def batches_late(self, limit: int) -> list[BatchRow]:
        """Past their time, and finished or never sealed."""

    @abstractmethod
    def expire_batch(self, batch_id: str) -> bool: ...

    @abstractmethod
    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[Pruned]] | None:
        """One step: at most `limit` members of a batch that ended before then, and itself with the last of them.

        None: there is no such batch.
        """

    # -- read -----------------------------------------------------------------------------------------
    @abstractmethod
    def batch_page(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        """Newest first."""

    @abstractmethod
    def find_batches(self, prefix: str, limit: int) -> list[str]: ...

    @abstractmethod
    def batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        """Those in these states, held in the order of ids."""

    @abstractmethod
    def batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        """(code, how many died of it, the newest of them), most first."""

    @abstractmethod
    def batch_story(self, batch_id: str) -> list[Event]:
        """What happened to the batch itself; its members have stories of their own."""


class SqlBatchQueries(BatchQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[str]) -> Any: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def remove(self, doomed: Sequence[tuple[Any, ...]]) -> list[Pruned]: ...

    def new_batch(self, batch: NewBatch) -> str:
        named = batch._asdict()
        for _ in range(ROUNDS):
            if self.rows("new_batch", **named):
                self.rows("new_progress", **named)
                return batch.id
            held = self.rows("batch_of_key", unique_hash=batch.unique_hash)
            if held:
                return str(held[0][0])
        message = f"unique key {batch.unique_key!r} is held by a batch this transaction cannot see; try again"
        raise UniqueRace(message)

    def batch(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("batch", id=batch_id))

    def batch_to_join(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("batch_shared", id=batch_id))

    def batch_to_change(self, batch_id: str) -> BatchRow | None:
        return _only(self.rows("batch_alone", id=batch_id))

    def seal_batch(self, batch_id: str, *, wait: bool = True) -> bool:
        return bool(self.rows("seal_batch" if wait else "seal_batch_at_hand", id=batch_id))

    def cancel_batch(self, batch_id: str, reason: str) -> bool:
        return bool(self.rows("cancel_batch", id=batch_id, reason=reason))

    def holds_lease(self, job_id: str, worker: str, token: int, batch_id: str) -> bool:
        return bool(
            self.rows("holds_lease", id=job_id, worker=worker, token=token, batch_id=batch_id)
        )

    def batch_twins(
        self, batch_id: str, keys: Sequence[str]
    ) -> dict[tuple[str, str, str], tuple[str, str]]:
        found = self.rows("batch_twins", batch_id=batch_id, keys=self.ids(keys))
        return {
            (owner, kind, key): (job_id, payload) for owner, kind, key, job_id, payload in found
        }

    def lock_batches(self, ids: Sequence[str], *, wait: bool = True) -> list[str]:
        return [
            row[0]
            for row in self.rows(
                "lock_batches" if wait else "lock_batches_at_hand", ids=self.ids(ids)
            )
        ]

    def ended_batches(self, ids: Sequence[str]) -> list[BatchRow]:
        return [_batch(row) for row in self.rows("ended_batches", ids=self.ids(ids))]

    def batch_counts(self, ids: Sequence[str]) -> list[MemberCount]:
        found = self.rows("batch_counts", ids=self.ids(ids)) if ids else []
        return [(batch_id, state, bool(must), count) for batch_id, state, must, count in found]

    def end_batch(self, batch_id: str, generation: int, outcome: str) -> bool:
        return bool(self.rows("end_batch", id=batch_id, generation=generation, outcome=outcome))

    def reopen_batch(self, batch_id: str) -> int | None:
        found = self.rows("reopen_batch", id=batch_id)
        return int(found[0][0]) if found else None

    def told_batch(self, batch_id: str) -> bool:
        return bool(self.rows("told_batch", id=batch_id))

    def batches_waiting(self, limit: int) -> list[str]:
        return [row[0] for row in self.rows("batches_waiting", most=limit)]

    def batches_late(self, limit: int) -> list[BatchRow]:
        return [_batch(row) for row in self.rows("batches_late", most=limit)]

    def expire_batch(self, batch_id: str) -> bool:
        return bool(self.rows("expire_batch", id=batch_id))

    def prune_batch(self, before: Micros, limit: int) -> tuple[BatchRow, list[Pruned]] | None:
        batch = _only(self.rows("batches_leaving", before=before, most=1))
        if batch is None:
            return None
        records = self.remove(self.rows("prunable_members", id=batch.id, most=limit))
        gone = not self.batch_counts([batch.id]) and bool(
            self.rows("prune_definition", id=batch.id)
        )
        if gone:
            self.rows("prune_progress", id=batch.id)
            record = Pruned(KIND, batch.outcome or "", batch.owner, "", 1, batch.id, batch.id)
            self.rows("pruned", at=self.now(), **record._asdict())
            records.append(record)
        else:
            self.rows("batch_leaves", id=batch.id)
        return batch._replace(leaving=not gone), records

    def batch_page(
        self, state: str | None, owner: str | None, limit: int, before: str | None
    ) -> list[BatchRow]:
        return [
            _batch(row)
            for row in self.rows("batch_page", state=state, owner=owner, most=limit, before=before)
        ]

    def find_batches(self, prefix: str, limit: int) -> list[str]:
        return [
            row[0]
            for row in self.rows("find_batches", prefix=prefix, length=len(prefix), most=limit)
        ]

    def batch_members(self, batch_id: str, states: Sequence[str]) -> list[JobRow]:
        return [
            JobRow._make(row)
            for row in self.rows("batch_members", id=batch_id, states=self.ids(states))
        ]

    def batch_failures(self, batch_id: str, limit: int) -> list[tuple[str, int, str]]:
        return [
            (code, count, job_id)
            for code, count, job_id in self.rows("batch_failures", id=batch_id, most=limit)
        ]

    def batch_story(self, batch_id: str) -> list[Event]:
        return [event_of(row) for row in self.rows("batch_story", id=batch_id)]


def _only(rows: Sequence[tuple[Any, ...]]) -> BatchRow | None:
    return _batch(rows[0]) if rows else None


def _batch(row: tuple[Any, ...]) -> BatchRow:
    batch = BatchRow._make(row)
    return batch._replace(told=bool(batch.told), leaving=bool(batch.leaving))

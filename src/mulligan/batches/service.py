"""`app.batches`: begin batches, look at them, seal, repair and cancel them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from types import TracebackType
from typing import Any, Self

from mulligan.batches import completion as batching
from mulligan.batches.completion import refuse_late
from mulligan.batches.rules import UNFINISHED, BatchCounts, BatchState, checked_tolerance, shown
from mulligan.core.attempt import Verb
from mulligan.core.durations import length_or_moment, moment_of
from mulligan.core.errors import (
    BatchCancelled,
    BatchOwner,
    BatchSealed,
    IllegalMove,
    MulliganError,
    NotFound,
    NothingFailed,
    Refused,
    UniqueMismatch,
    UniqueTaken,
)
from mulligan.core.event import Event, EventType
from mulligan.core.ids import LENGTH, new_id
from mulligan.core.job import Job, JobRow, Micros, NewJob, State, to_datetime
from mulligan.core.unique import unique_hash
from mulligan.guards.limits import share_of
from mulligan.jobs import repair as recover
from mulligan.jobs.enqueue import checked_text
from mulligan.jobs.service import NAMED, Jobs, ambiguous
from mulligan.storage.base import BatchRow, Inserted, NewBatch, Store, Transaction
from mulligan.worker.runner.context import LeaseLost

# Before members are inserted: is there such a batch, may they join it, and are some of them there already?

_batch_id = attrgetter("batch_id")


def insert(
    unit: Transaction, new: Sequence[NewJob], *, announce: bool
) -> tuple[Sequence[NewJob], list[Inserted]]:
    """The jobs as they were inserted, each with its answer."""
    if not any(map(_batch_id, new)):
        return new, unit.insert(new, announce=announce)
    batches = sorted({job.batch_id for job in new if job.batch_id is not None})
    twins: dict[str, Inserted] = {}
    for batch_id in batches:
        row = unit.batch_to_join(batch_id)
        if row is None:
            message = f"no batch {batch_id!r}; a batch is made before its members: app.batch(name)"
            raise NotFound(message)
        new = [_owned(job, row) if job.batch_id == batch_id else job for job in new]
        twins |= _members(unit, row, [job for job in new if job.batch_id == batch_id])
    fresh = [job for job in new if job.id not in twins]
    answers = dict(
        zip(
            (job.id for job in fresh),
            unit.insert(fresh, announce=announce) if fresh else (),
            strict=True,
        )
    )
    return new, [twins.get(job.id) or answers[job.id] for job in new]


def _owned(job: NewJob, row: BatchRow) -> NewJob:
    """A member without an owner takes the batch's, and with it its place and its key."""
    if not row.owner or job.owner == row.owner:
        return job
    if job.owner:
        message = (
            f"batch {row.id} ({row.name}) belongs to owner {row.owner!r}, this job to {job.owner!r}"
        )
        raise BatchOwner(message)
    key = job.unique_key
    return job._replace(
        owner=row.owner,
        share=share_of(row.owner) if job.share else "",
        unique_hash=None if key is None else unique_hash(row.owner, job.kind, key),
    )


def _members(unit: Transaction, row: BatchRow, jobs: Sequence[NewJob]) -> dict[str, Inserted]:
    """Those that are there: within a batch a unique key has one member, whatever became of it. The others may join."""
    keys = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    known = unit.batch_twins(row.id, keys) if keys else {}
    found = {
        job.id: _twin(job, known.get((job.owner, job.kind, job.unique_key or ""))) for job in jobs
    }
    twins = {job_id: twin for job_id, twin in found.items() if twin is not None}
    fresh = [job for job in jobs if job.id not in twins]
    if fresh:
        _admit(unit, row, fresh)
    return {job_id: Inserted(twin, fresh=False) for job_id, twin in twins.items()}


def _twin(job: NewJob, known: tuple[str, str] | None) -> str | None:
    if known is not None and job.unique_exact and known[1] != job.payload:
        message = f"unique key {job.unique_key!r} belongs to job {known[0]} of this batch, which has another payload"
        raise UniqueMismatch(message)
    return None if known is None else known[0]


def _admit(unit: Transaction, row: BatchRow, jobs: Sequence[NewJob]) -> None:
    if row.cancelled_at is not None:
        message = f"batch {row.id} ({row.name}) is cancelled; it takes no new members"
        raise BatchCancelled(message)
    refuse_late(row, unit.now())
    for adder in sorted({job.added_by for job in jobs if job.added_by is not None}):
        if not unit.holds_lease(*adder, row.id):
            message = f"job {adder[0]}: this attempt no longer holds the job, so it adds nothing to batch {row.id}"
            raise LeaseLost(message)
    if row.sealed_at is not None and any(job.added_by is None for job in jobs):
        message = (
            f"batch {row.id} ({row.name}) is sealed; it takes no new members, "
            "except from inside a running member: options(batch=ctx)"
        )
        raise BatchSealed(message)


# `app.batches`: begin batches, look at them, seal, repair and cancel them.

LIST_MOST = 500
CODES_MOST = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as people see it: a picture of one moment; `refresh()` takes a new one.

    As a context manager it is sealed at the end of a block that did not raise.
    """

    id: str
    name: str
    owner: str
    state: BatchState
    counts: BatchCounts
    generation: int
    tolerance: str
    on_complete: str | None  # the kind
    unique_key: str | None
    created_at: datetime
    sealed_at: datetime | None
    finished_at: datetime | None  # when its outcome came
    outcome: BatchState | None  # also of one that has expired
    previous: BatchState | None  # the outcome before somebody retried members
    expires_at: datetime | None
    expired_at: datetime | None
    cancelled_at: datetime | None
    cancel_reason: str | None
    _home: Batches | None = field(default=None, repr=False, compare=False)
    _connection: Any = field(default=None, repr=False, compare=False)

    @property
    def sealed(self) -> bool:
        return self.sealed_at is not None

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    def refresh(self) -> Batch:
        return self._at_home().get(self.id)

    def seal(self, *, connection: Any = None) -> Batch:
        """No more members; its outcome comes with the end of the last one."""
        return self._at_home().seal(self.id, connection=connection)

    async def refresh_async(self) -> Batch:
        return await asyncio.to_thread(self.refresh)

    async def seal_async(self, *, connection: Any = None) -> Batch:
        return await _bridged(self.seal, connection)

    def _at_home(self) -> Batches:
        if self._home is None:
            message = "this Batch was not read from a store; use app.batches.get(id)"
            raise RuntimeError(message)
        return self._home

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """An attempt that runs again may find its batch sealed already: then there is nothing left to do."""
        if kind is None and not self.sealed:
            self.seal(connection=self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self.sealed:
            await self.seal_async(connection=self._connection)


@dataclass(frozen=True, slots=True)
class MemberFailures:
    """Dead members of one code; message and job are those of the newest."""

    code: str
    message: str  # the public one
    count: int
    job: str


@dataclass(frozen=True, slots=True)
class RetriedMembers:
    """What `retry_failed` did, item by item."""

    batch: Batch
    jobs: tuple[str, ...]
    refused: Mapping[str, MulliganError]  # by job: why it stays dead


# -- begin ----------------------------------------------------------------------------------------------
def new_batch(name: Any, owner: Any, tolerance: Any, expires_in: Any, unique: Any) -> NewBatch:
    """Checked before anything is written."""
    called, whose = checked_text("name", name, least=1), checked_text("owner", owner)
    key = None if unique is None else checked_text("unique", unique, least=1)
    span, at = (None, None) if expires_in is None else length_or_moment("expires_in", expires_in)
    if span == 0:
        message = "expires_in must be above 0 s"
        raise Refused(message)
    return NewBatch(
        id=new_id(),
        name=called,
        owner=whose,
        tolerance=checked_tolerance(tolerance),
        on_complete=None,
        unique_key=key,
        unique_hash=None if key is None else unique_hash(whose, "mulligan.batch", key),
        expires_span=span,
        expires_at=at,
    )


class Batches:
    def __init__(
        self,
        store: Callable[[], Store],
        jobs: Jobs,
        actor: str = "python",
        join: Callable[[Any], Transaction] | None = None,
    ) -> None:
        self._open = store
        self._jobs = jobs
        self._actor = actor
        self._join = join or (lambda connection: store().join(connection))

    def begin(self, new: NewBatch, connection: Any = None) -> Batch:
        """Inserts it, or finds the one that has its unique key."""
        if connection is not None:
            found = self._seen(self._join(connection), new)
            return replace(found, _connection=connection)
        with self._open().begin() as unit:
            return self._seen(unit, new)

    def _seen(self, unit: Transaction, new: NewBatch) -> Batch:
        if new.expires_at is not None and new.expires_at <= unit.now():
            message = f"expires_in is not in the future: {_when(new.expires_at)}"
            raise Refused(message)
        return self._picture(unit, [_found(unit, unit.new_batch(new))])[0]

    # -- read -------------------------------------------------------------------------------------
    def get(self, batch_id: str, *, owner: str | None = None) -> Batch:
        """With `owner`, somebody else's batch answers like one that does not exist."""
        with self._open().read() as unit:
            row = _found(unit, batch_id)
            if owner not in (None, row.owner):
                raise NotFound(_no_such(batch_id))
            return self._picture(unit, [row])[0]

    def list(
        self,
        *,
        state: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Batch]:
        """Newest first; `before` is the id of the last batch of the page above."""
        if not 1 <= limit <= LIST_MOST:
            message = f"limit must be from 1 to {LIST_MOST}, not {limit}"
            raise Refused(message)
        if state is not None and state not in list(BatchState):
            message = f"state {state!r}: a batch is {', '.join(BatchState)}"
            raise Refused(message)
        with self._open().read() as unit:
            return self._picture(unit, unit.batch_page(state, owner, limit, before))

    def resolve(self, prefix: str) -> str:
        """A whole id, from as many of its first characters as make it unique."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:
            message = "the id is empty; give at least its first characters"
            raise Refused(message)
        with self._open().read() as unit:
            found = unit.find_batches(prefix, NAMED + 1)
        if len(found) == 1:
            return found[0]
        raise NotFound(ambiguous("batch", prefix, found) if found else _no_such(prefix))

    def members(
        self,
        batch_id: str,
        filter: str = "",  # noqa: A002 - CONTRACT's name
        *,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Job]:
        """Its jobs, newest first; `filter` as for `jobs.list`."""
        self.get(batch_id)
        return self._jobs.list(f"{filter} batch:{batch_id}".strip(), limit=limit, before=before)

    def failures(self, batch_id: str) -> Sequence[MemberFailures]:
        """Dead members by code, most first: for a mail, or for the job that completes the batch."""
        with self._open().read() as unit:
            _found(unit, batch_id)
            return [_failed(unit, *found) for found in unit.batch_failures(batch_id, CODES_MOST)]

    def history(self, batch_id: str) -> Sequence[Event]:
        """What happened to the batch itself, in order."""
        with self._open().read() as unit:
            _found(unit, batch_id)
            return unit.batch_story(batch_id)

    def _picture(self, unit: Transaction, rows: Sequence[BatchRow]) -> Sequence[Batch]:
        counts = batching.counts_of(unit, [row.id for row in rows])
        return [_batch(row, counts[row.id], self) for row in rows]

    # -- by hand ----------------------------------------------------------------------------------
    def seal(self, batch_id: str, *, connection: Any = None, reason: str = "") -> Batch:
        """No more members. In a caller's transaction what follows from it follows a moment after its commit."""
        if connection is not None:
            unit = self._join(connection)
            self._seal(unit, batch_id)
            return replace(self._picture(unit, [_found(unit, batch_id)])[0], _connection=connection)
        with self._open().begin() as unit:
            row = self._seal(unit, batch_id)
            unit.lock_batches([batch_id])
            batching.tell_sealed(unit, row, actor=self._actor, reason=reason)
            batching.complete(unit, [batch_id])
            return self._picture(unit, [_found(unit, batch_id)])[0]

    @staticmethod
    def _seal(unit: Transaction, batch_id: str) -> BatchRow:
        if not unit.seal_batch(batch_id):
            row = _found(unit, batch_id)
            message = (
                f"batch {batch_id} ({row.name}) is sealed already, since {_when(row.sealed_at)}"
            )
            raise BatchSealed(message)
        return _found(unit, batch_id)

    def retry_failed(self, batch_id: str, *, reason: str = "") -> RetriedMembers:
        """Every dead member once more, together; the batch goes on, and its next outcome comes with their end."""
        with self._open().begin() as unit:
            batching.refuse_late(_found(unit, batch_id), unit.now())
            dead = unit.batch_members(batch_id, [State.DEAD.value])
            if not dead:
                message = f"batch {batch_id}: no member is dead, so there is nothing to retry"
                raise NothingFailed(message)
            refused = {
                row.id: why for row in dead if (why := self._retry(unit, row, reason)) is not None
            }
            retried = tuple(row.id for row in dead if row.id not in refused)
            if retried:
                batching.reopen(
                    unit, batch_id, actor=self._actor, reason=reason, news={"jobs": len(retried)}
                )
            return RetriedMembers(
                self._picture(unit, [_found(unit, batch_id)])[0], retried, refused
            )

    def _retry(self, unit: Transaction, row: JobRow, reason: str) -> MulliganError | None:
        """One whose key somebody else holds by now keeps none of the others."""
        try:
            recover.move_in(unit, row, Verb.RETRY_BY_HAND, self._actor, reason, alone=False)
        except UniqueTaken as taken:
            return taken
        return None

    def cancel(self, batch_id: str, *, reason: str = "") -> Batch:
        """No more members; those that wait are cancelled, those that run are asked to stop."""
        with self._open().begin() as unit:
            row = unit.batch_to_change(batch_id)
            if row is None:
                raise NotFound(_no_such(batch_id))
            _refuse_finished(row)
            fresh = unit.cancel_batch(batch_id, reason)
            members = unit.batch_members(batch_id, sorted(state.value for state in UNFINISHED))
            for member in members:
                recover.move_in(
                    unit, member, Verb.CANCEL, self._actor, reason or "batch cancelled", alone=False
                )
            unit.lock_batches([batch_id])
            _refuse_finished(
                _found(unit, batch_id)
            )  # its last member may have ended while we looked
            if fresh:
                self._tell_cancelled(unit, row, members, reason)
            batching.complete(unit, [batch_id])
            return self._picture(unit, [_found(unit, batch_id)])[0]

    def _tell_cancelled(
        self, unit: Transaction, row: BatchRow, members: Sequence[JobRow], reason: str
    ) -> None:
        if row.sealed_at is None:
            batching.tell_sealed(unit, row, actor=self._actor, reason="cancelled")
        running = sum(member.state == State.RUNNING for member in members)
        seen = {"before": {"cancelled": False}, "after": {"cancelled": True}}
        counts = {"cancelled": len(members) - running, "asked_to_stop": running}
        news = {"name": row.name, "reason": reason, **counts, **seen}
        unit.write_events(
            [batching.event(EventType.BATCH_CANCELLED, row, actor=self._actor, data=news)]
        )


# -- the picture ------------------------------------------------------------------------------------------
def _batch(row: BatchRow, counts: BatchCounts, home: Batches) -> Batch:
    return Batch(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=_state(row),
        counts=counts,
        generation=row.generation,
        tolerance=row.tolerance,
        on_complete=None if row.on_complete is None else json.loads(row.on_complete)["kind"],
        unique_key=row.unique_key,
        created_at=to_datetime(row.created_at),
        sealed_at=moment_of(row.sealed_at),
        finished_at=moment_of(row.outcome_at),
        outcome=None if row.outcome is None else BatchState(row.outcome),
        previous=None if row.previous is None else BatchState(row.previous),
        expires_at=moment_of(row.expires_at),
        expired_at=moment_of(row.expired_at),
        cancelled_at=moment_of(row.cancelled_at),
        cancel_reason=row.cancel_reason,
        _home=home,
    )


def _state(row: BatchRow) -> BatchState:
    return shown(row.outcome, expired=row.expired_at is not None)


def _failed(unit: Transaction, code: str, count: int, job_id: str) -> MemberFailures:
    row = unit.get(job_id)
    error = json.loads((row.error if row is not None else None) or "{}")
    return MemberFailures(code, str(error.get("message", "")), count, job_id)


def _refuse_finished(row: BatchRow) -> None:
    if row.outcome is not None:
        message = f"batch {row.id} ({row.name}) is {_state(row)}: there is nothing left to cancel"
        raise IllegalMove(message)


def _found(unit: Transaction, batch_id: str) -> BatchRow:
    row = unit.batch(batch_id)
    if row is None:
        raise NotFound(_no_such(batch_id))
    return row


def _when(at: Micros | None) -> str:
    return "" if at is None else f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"


def _no_such(batch_id: str) -> str:
    return f"no batch {batch_id!r}"


async def _bridged(call: Callable[..., Batch], connection: Any) -> Batch:
    """On a thread; on SQLAlchemy's async connections and sessions where they are, by their own bridge."""
    run_sync = getattr(connection, "run_sync", None)
    if run_sync is None:
        return await asyncio.to_thread(call, connection=connection)
    done: Batch = await run_sync(lambda inner: call(connection=inner))
    return done


class AsyncBatches:
    """The same, awaitable: each call on a thread."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def get(self, batch_id: str, *, owner: str | None = None) -> Batch:
        return await asyncio.to_thread(self._batches.get, batch_id, owner=owner)

    async def list(
        self,
        *,
        state: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Batch]:
        return await asyncio.to_thread(
            self._batches.list, state=state, owner=owner, limit=limit, before=before
        )

    async def members(
        self,
        batch_id: str,
        filter: str = "",  # noqa: A002 - CONTRACT's name
        *,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Job]:
        return await asyncio.to_thread(
            self._batches.members, batch_id, filter, limit=limit, before=before
        )

    async def failures(self, batch_id: str) -> Sequence[MemberFailures]:
        return await asyncio.to_thread(self._batches.failures, batch_id)

    async def history(self, batch_id: str) -> Sequence[Event]:
        return await asyncio.to_thread(self._batches.history, batch_id)

    async def seal(self, batch_id: str, *, connection: Any = None, reason: str = "") -> Batch:
        seal = self._batches.seal
        return await _bridged(
            lambda connection: seal(batch_id, connection=connection, reason=reason), connection
        )

    async def retry_failed(self, batch_id: str, *, reason: str = "") -> RetriedMembers:
        return await asyncio.to_thread(self._batches.retry_failed, batch_id, reason=reason)

    async def cancel(self, batch_id: str, *, reason: str = "") -> Batch:
        return await asyncio.to_thread(self._batches.cancel, batch_id, reason=reason)

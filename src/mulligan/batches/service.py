"""`app.batches`: create, read, seal, retry and cancel batches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mulligan.batches import completion
from mulligan.batches.cancel import cancel_batch
from mulligan.batches.completion import refuse_expired
from mulligan.batches.queries import BatchQueries, BatchRow, NewBatch
from mulligan.batches.rules import (
    BatchCounts,
    BatchState,
    check_tolerance,
    displayed_state,
)
from mulligan.core import other_libraries
from mulligan.core.attempt import Verb
from mulligan.core.durations import Micros, check_duration_or_time, optional_datetime, to_datetime
from mulligan.core.errors import (
    BatchSealed,
    Duration,
    MulliganError,
    NoResult,
    NotFound,
    NothingFailed,
    Refused,
    StoreUnavailable,
    UniqueTaken,
    no_such_batch,
)
from mulligan.core.event import Event
from mulligan.core.format import check_text, format_time
from mulligan.core.ids import LENGTH, new_id
from mulligan.core.job import Job, JobRow, State, unique_hash
from mulligan.core.other_libraries import refuse_attribute
from mulligan.jobs import repair
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.service import (
    MAX_IDS_NAMED,
    Jobs,
    Poll,
    describe_ambiguous_id,
    describe_missing_result,
)
from mulligan.jobs.view import load_job_views
from mulligan.storage.async_connections import call_with_connection
from mulligan.storage.base import Store, Transaction

JobViews = list[Job]  # The classes below have a method named list.
Results = list[Any]
RAISE: Any = ...  # default of `results`: no value stands for a missing result

MAX_BATCHES_LISTED = 500
MEMBERS_PER_READ = 1000
MAX_CODES = 100


# --- Public values ---


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was when it was read; `refresh()` reads it again.

    As a context manager, it is sealed at the end of a block that did not raise.
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
    finished_at: datetime | None  # time of the outcome
    outcome: BatchState | None  # kept after the batch has expired
    previous: BatchState | None  # outcome before members were retried
    expires_at: datetime | None
    expired_at: datetime | None
    cancelled_at: datetime | None
    cancel_reason: str | None
    _service: Batches | None = field(default=None, repr=False, compare=False)
    _connection: Any = field(default=None, repr=False, compare=False)

    @property
    def sealed(self) -> bool:
        return self.sealed_at is not None

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    @property
    def has_ended(self) -> bool:
        """True once it has an outcome or has expired. A retry of members ends this again."""
        return self.outcome is not None or self.expired_at is not None

    def refresh(self) -> Batch:
        """Read the batch again."""
        return self._require_service().get(self.id)

    def seal(self, *, connection: Any = None) -> Batch:
        """Accept no more members. The outcome follows when the last member ends."""
        return self._require_service().seal(self.id, connection=connection)

    if not TYPE_CHECKING:  # checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute; name what one of another library is called here."""
            return refuse_attribute(self, name, other_libraries.BATCH)

    def wait(self, timeout: Duration | None = None) -> Batch:
        """Wait until a sealed batch has its outcome, and return it. Raises WaitTimeout."""
        return self._require_service().wait(self.id, timeout)

    def jobs(self) -> JobViews:
        """Return all members in the order of enqueue."""
        return self._require_service().jobs(self.id)

    def results(self, *, default: Any = RAISE) -> Results:
        """Return the result of every member in the order of enqueue, as JSON like `job.result`.

        Raises NoResult if a member has none because it died, was cancelled or has not ended;
        `default` is returned in its place instead, if you pass one.
        """
        return self._require_service().results(self.id, default=default)

    async def refresh_async(self) -> Batch:
        return await asyncio.to_thread(self.refresh)

    async def wait_async(self, timeout: Duration | None = None) -> Batch:  # noqa: ASYNC109
        """Wait like `wait`, from a coroutine."""
        return await self._require_service().wait_async(self.id, timeout)

    async def jobs_async(self) -> JobViews:
        """Return the members like `jobs`, from a coroutine."""
        return await asyncio.to_thread(self.jobs)

    async def results_async(self, *, default: Any = RAISE) -> Results:
        """Return the results like `results`, from a coroutine."""
        return await asyncio.to_thread(self.results, default=default)

    async def seal_async(self, *, connection: Any = None) -> Batch:
        return await _call_on_thread(self.seal, connection)

    def _require_service(self) -> Batches:
        if self._service is None:
            raise RuntimeError("this Batch was not read from a store. Use app.batches.get(id).")
        return self._service

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Seal the batch, unless an earlier attempt of the same job has sealed it."""
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
    """Dead members with one code. Message and job are those of the newest."""

    code: str
    message: str  # public part
    count: int
    job: str


@dataclass(frozen=True, slots=True)
class RetriedMembers:
    """Result of `retry_failed`, job by job."""

    batch: Batch
    jobs: tuple[str, ...]
    refused: Mapping[str, MulliganError]  # job id → why it stays dead


# --- Service ---
def new_batch(name: Any, owner: Any, tolerance: Any, expires_in: Any, unique: Any) -> NewBatch:
    """Check the options of a new batch; nothing is written."""
    name = check_text("name", name, min_length=1)
    owner = check_text("owner", owner)
    key = key_hash = None
    if unique is not None:
        key = check_text("unique", unique, min_length=1)
        key_hash = unique_hash(owner, "mulligan.batch", key)
    lifetime = expires_at = None
    if expires_in is not None:
        lifetime, expires_at = check_duration_or_time("expires_in", expires_in)
    if lifetime == 0:
        raise Refused("expires_in must be above 0 s")
    return NewBatch(
        id=new_id(),
        name=name,
        owner=owner,
        tolerance=check_tolerance(tolerance),
        on_complete=None,
        unique_key=key,
        unique_hash=key_hash,
        expires_span=lifetime,
        expires_at=expires_at,
    )


class Batches:
    """Create, read, seal, retry and cancel batches."""

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
        """Insert a batch, or return the one that has its unique key."""
        if connection is not None:
            batch = self._insert(self._join(connection), new)
            return replace(batch, _connection=connection)
        with self._open().begin() as tx:
            return self._insert(tx, new)

    def _insert(self, tx: Transaction, new: NewBatch) -> Batch:
        if new.expires_at is not None and new.expires_at <= tx.now():
            raise Refused(f"expires_in is not in the future: {_format_time(new.expires_at)}")
        return self._view(tx, BatchQueries(tx).insert_batch(new))

    # --- Read ---
    def get(self, batch_id: str, *, owner: str | None = None) -> Batch:
        """Return one batch. With `owner`, another owner's batch counts as missing."""
        with self._open().read() as tx:
            row = _load_row(tx, batch_id)
            if owner not in (None, row.owner):
                raise no_such_batch(batch_id)
            return self._views(tx, [row])[0]

    def list(
        self,
        *,
        state: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Batch]:
        """Return batches, newest first. `before` is the id of the previous page's last batch."""
        if not 1 <= limit <= MAX_BATCHES_LISTED:
            raise Refused(f"limit must be from 1 to {MAX_BATCHES_LISTED}, not {limit}")
        if state is not None and state not in list(BatchState):
            raise Refused(f"unknown batch state {state!r}; one of {', '.join(BatchState)}")
        with self._open().read() as tx:
            return self._views(tx, BatchQueries(tx).list_batches(state, owner, limit, before))

    def resolve(self, prefix: str) -> str:
        """Return the full id that begins with `prefix`."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:
            raise Refused("the id is empty. Pass an id or its first characters.")
        with self._open().read() as tx:
            found = BatchQueries(tx).find_batches(prefix, MAX_IDS_NAMED + 1)
        if not found:
            raise no_such_batch(prefix)
        if len(found) > 1:
            raise NotFound(describe_ambiguous_id("batch", prefix, found))
        return found[0]

    def members(
        self,
        batch_id: str,
        filter: str = "",  # noqa: A002 - public name
        *,
        limit: int = 50,
        before: str | None = None,
    ) -> Sequence[Job]:
        """Return the batch's jobs, newest first. `filter` works as in `jobs.list`."""
        self.get(batch_id)
        return self._jobs.list(f"{filter} batch:{batch_id}".strip(), limit=limit, before=before)

    def wait(self, batch_id: str, timeout: Duration | None = None) -> Batch:
        """Wait until a batch has its outcome or has expired, and return it."""
        poll = Poll(f"batch {batch_id}", timeout)
        while True:
            batch = self._read_while_waiting(batch_id)
            if batch is not None and batch.has_ended:
                return batch
            if poll.is_over:
                raise poll.timed_out(*_describe_waiting(batch))
            time.sleep(poll.next_pause())

    async def wait_async(self, batch_id: str, timeout: Duration | None = None) -> Batch:  # noqa: ASYNC109
        """Wait as `wait` does, using a thread only for each read: thousands may wait."""
        poll = Poll(f"batch {batch_id}", timeout)
        while True:
            batch = await asyncio.to_thread(self._read_while_waiting, batch_id)
            if batch is not None and batch.has_ended:
                return batch
            if poll.is_over:
                raise poll.timed_out(*_describe_waiting(batch))
            await asyncio.sleep(poll.next_pause())

    def _read_while_waiting(self, batch_id: str) -> Batch | None:
        """Return the batch, or None during a database outage."""
        try:
            return self.get(batch_id)
        except StoreUnavailable:
            return None

    def jobs(self, batch_id: str) -> JobViews:
        """Return all members in the order of enqueue."""
        with self._open().read() as tx:
            _load_row(tx, batch_id)
            rows = list(_read_members(tx, batch_id))
            return load_job_views(tx, rows, self._jobs)

    def results(self, batch_id: str, *, default: Any = RAISE) -> Results:
        """Return the result of every member in the order of enqueue, as JSON.

        Raises NoResult if a member has none; `default` is returned in its place instead, if given.
        """
        with self._open().read() as tx:
            batch = _load_row(tx, batch_id)
            rows = list(_read_members(tx, batch_id))
            missing = [row for row in rows if row.state != State.SUCCEEDED]
            if missing and default is RAISE:
                [first] = load_job_views(tx, missing[:1], self._jobs)
                raise NoResult(
                    f"batch {batch_id} ({batch.name}): {len(missing)} of {len(rows)} members have "
                    f"no result; {describe_missing_result(first)}",
                    first,
                )
        return [_result_or(row, default) for row in rows]

    def failures(self, batch_id: str) -> Sequence[MemberFailures]:
        """Return dead members by code, most frequent first."""
        with self._open().read() as tx:
            _load_row(tx, batch_id)
            found = BatchQueries(tx).count_batch_failures(batch_id, MAX_CODES)
            return [_member_failures(tx, code, count, job) for code, count, job in found]

    def history(self, batch_id: str) -> Sequence[Event]:
        """Return the events of the batch itself, oldest first."""
        with self._open().read() as tx:
            _load_row(tx, batch_id)
            return BatchQueries(tx).list_batch_events(batch_id)

    def _view(self, tx: Transaction, batch_id: str) -> Batch:
        return self._views(tx, [_load_row(tx, batch_id)])[0]

    def _views(self, tx: Transaction, rows: Sequence[BatchRow]) -> Sequence[Batch]:
        counts = completion.load_counts(tx, [row.id for row in rows])
        return [_build_view(row, counts[row.id], self) for row in rows]

    # --- Manual actions ---
    def seal(self, batch_id: str, *, connection: Any = None, reason: str = "") -> Batch:
        """Accept no more members. In a caller's transaction, completion follows its commit."""
        if connection is not None:
            tx = self._join(connection)
            self._seal(tx, batch_id)
            return replace(self._view(tx, batch_id), _connection=connection)
        with self._open().begin() as tx:
            row = self._seal(tx, batch_id)
            BatchQueries(tx).lock_batches([batch_id])
            completion.write_sealed_event(tx, row, actor=self._actor, reason=reason)
            completion.complete_batches(tx, [batch_id])
            return self._view(tx, batch_id)

    async def seal_async(self, batch_id: str, *, connection: Any = None, reason: str = "") -> Batch:
        """Seal a batch on a thread, or in the transaction of an async SQLAlchemy connection."""
        return await _call_on_thread(partial(self.seal, batch_id, reason=reason), connection)

    @staticmethod
    def _seal(tx: Transaction, batch_id: str) -> BatchRow:
        was_open = BatchQueries(tx).seal_batch(batch_id)
        row = _load_row(tx, batch_id)
        if not was_open:
            raise BatchSealed(
                f"batch {batch_id} ({row.name}) is already sealed since "
                f"{_format_time(row.sealed_at)}"
            )
        return row

    def retry_failed(self, batch_id: str, *, reason: str = "") -> RetriedMembers:
        """Retry all dead members in one transaction; the batch gets a new outcome after them."""
        with self._open().begin() as tx:
            refuse_expired(_load_row(tx, batch_id), tx.now())
            dead = BatchQueries(tx).lock_batch_members(batch_id, [State.DEAD.value])
            if not dead:
                raise NothingFailed(f"batch {batch_id} has no dead members to retry")
            refused: dict[str, MulliganError] = {}
            for row in dead:
                refusal = self._retry_member(tx, row, reason)
                if refusal is not None:
                    refused[row.id] = refusal
            retried = tuple(row.id for row in dead if row.id not in refused)
            if retried:
                data = {"jobs": len(retried)}
                completion.reopen_batch(tx, batch_id, actor=self._actor, reason=reason, data=data)
            return RetriedMembers(self._view(tx, batch_id), retried, refused)

    def _retry_member(self, tx: Transaction, row: JobRow, reason: str) -> MulliganError | None:
        """Retry one member. A member whose key another job holds does not stop the others."""
        verb = Verb.RETRY_BY_HAND
        try:
            repair.move_job(tx, row, verb, self._actor, reason, update_batch=False)
        except UniqueTaken as refusal:
            return refusal
        return None

    def cancel(self, batch_id: str, *, reason: str = "") -> Batch:
        """Accept no more members, cancel waiting members and ask running ones to stop."""
        with self._open().begin() as tx:
            cancel_batch(tx, batch_id, self._actor, reason)
            return self._view(tx, batch_id)


# --- Views and errors ---
def _build_view(row: BatchRow, counts: BatchCounts, service: Batches) -> Batch:
    on_complete = None
    if row.on_complete is not None:
        on_complete = json.loads(row.on_complete)["kind"]
    return Batch(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=_state(row),
        counts=counts,
        generation=row.generation,
        tolerance=row.tolerance,
        on_complete=on_complete,
        unique_key=row.unique_key,
        created_at=to_datetime(row.created_at),
        sealed_at=optional_datetime(row.sealed_at),
        finished_at=optional_datetime(row.outcome_at),
        outcome=_optional_state(row.outcome),
        previous=_optional_state(row.previous),
        expires_at=optional_datetime(row.expires_at),
        expired_at=optional_datetime(row.expired_at),
        cancelled_at=optional_datetime(row.cancelled_at),
        cancel_reason=row.cancel_reason,
        _service=service,
    )


def _read_members(tx: Transaction, batch_id: str) -> Iterator[JobRow]:
    """Yield the members in the order of enqueue: ids ascend."""
    after = ""
    while rows := BatchQueries(tx).list_batch_members(batch_id, after, MEMBERS_PER_READ):
        yield from rows
        after = rows[-1].id


def _result_or(row: JobRow, default: Any) -> Any:
    if row.state != State.SUCCEEDED:
        return default
    return None if row.result is None else json.loads(row.result)


def _describe_waiting(batch: Batch | None) -> tuple[str, str]:
    """Return the state of a batch that is waited for, and what it waits for."""
    if batch is None:
        return "in an unknown state (database unavailable)", ""
    if not batch.sealed:
        return "open", "no outcome before batch.seal()"
    counts = batch.counts
    waiting = counts.queued + counts.running + counts.parked
    return batch.state, f"{waiting} of {counts.total} members have not ended"


def _optional_state(outcome: str | None) -> BatchState | None:
    return None if outcome is None else BatchState(outcome)


def _state(row: BatchRow) -> BatchState:
    return displayed_state(row.outcome, expired=row.expired_at is not None)


def _member_failures(tx: Transaction, code: str, count: int, job_id: str) -> MemberFailures:
    row = JobQueries(tx).get_job(job_id)
    error = {}
    if row is not None and row.error:
        error = json.loads(row.error)
    return MemberFailures(code, str(error.get("message", "")), count, job_id)


def _load_row(tx: Transaction, batch_id: str) -> BatchRow:
    row = BatchQueries(tx).get_batch(batch_id)
    if row is None:
        raise no_such_batch(batch_id)
    return row


def _format_time(at: Micros | None) -> str:
    return "" if at is None else format_time(at)


async def _call_on_thread(call: Callable[..., Batch], connection: Any) -> Batch:
    """Call on a thread, or in the transaction of an async connection."""
    return await call_with_connection(lambda inner: call(connection=inner), connection)

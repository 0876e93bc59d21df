"""One transaction on PostgreSQL: the methods that differ from SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import Event
from mulligan.core.job import NewJob, WorkerRow
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.storage.base import (
    ClaimPosition,
    ClaimState,
    Inserted,
    Move,
    RetryRow,
    Settlement,
    SharedRetryTexts,
    SuccessRow,
    Transaction,
    UnlimitedLanes,
)
from mulligan.storage.failure_queries import dead_jobs_filter
from mulligan.storage.foreign import PostgresConnection
from mulligan.storage.rows import (
    DEFAULT_VALUES,
    PER_ATTEMPT_FIELDS,
    ClaimCandidate,
    LocatedSuccessColumns,
    PerAttemptColumns,
    RetryColumns,
    SuccessColumns,
    arg_rows,
    format_array,
    insert_columns,
    replace_unstorable,
    unique_race,
    unique_taken,
)
from mulligan.storage.search_queries import Conditions, Where, build_conditions
from mulligan.storage.sql import load_statement
from mulligan.storage.stat_queries import StatRow
from mulligan.storage.transaction import MAX_LANES, SqlTransaction

# --- Warm-up: run a worker's statements once without effect, so that their plans are cached ---

NO_WORKER = ""
PREPARE_AFTER = 2  # executions until the driver prepares a statement
WARM_UP_ROWS = 10  # as many rows as select the variants for large sets


def warm_up(tx: Transaction) -> None:
    """Run the statements of claims and settlements for a worker that does not exist."""
    now = tx.now()
    names = [str(number) for number in range(WARM_UP_ROWS)]
    # No job has these ids, so rows at these locations are not changed.
    successes = [
        SuccessRow(name, 1, 1, 1, now, "null", "", None, name, f"(0,{name})") for name in names
    ]
    retries = [RetryRow(name, f"(0,{name})", now, "", 0, 0) for name in names]
    for _ in range(PREPARE_AFTER):
        tx.read_state_and_claim(NO_WORKER, UnlimitedLanes((), now, now), 1)
        tx.claim_from_position(NO_WORKER, ClaimPosition("", 0, now, now, now), 1)
        tx.claim_from_lane(NO_WORKER, "", 0, 1)
        tx.settle_successes_by_location(NO_WORKER, successes)
        tx.settle_retries_by_location(
            _sample_retry(now), SharedRetryTexts("", "", "", "", ""), retries
        )


def _sample_retry(now: int) -> Settlement:
    """Build a retry with typical values: a statement is prepared for their types."""
    return Settlement(
        id="",
        worker=NO_WORKER,
        token=1,
        cancel_known=False,
        state="queued",
        run_at=now,
        failures=1,
        losses=0,
        snoozes=0,
        alone=False,
        result=None,
        error=None,
        choices=None,
        reason="",
        finished=False,
        release_key=False,
        cost=0.0,
        generation=1,
        attempt=1,
        settled_by=NO_WORKER,
        started_at=now,
        ended="failed",
        verb="retry",
        code="",
        cls="",
        rule="",
        public="",
        evidence="{}",
        private="",
        fingerprint="",
        event="",
        owner="",
        batch_id=None,
        data="",
        counts="{}",
        judged="{}",
    )


# --- Transaction ---

CLAIM_STATE_COLUMNS = 7  # in rows of `read_state_and_claim`, before the columns of a lease
LARGE_SET = 10  # rows; larger sets send shared values once
# A cached plan may date from when the table was empty. Plans of slower statements are discarded.
SLOW_STATEMENT = 0.05  # seconds
SLOW_PER_ROW = 0.0001  # seconds more for each row of a set
# Columns of an insert that its job.queued event contains.
QUEUED_EVENT_COLUMNS = frozenset({"kind", "queue", "owner", "batch_id", "delay", "at"})


NO_PIPELINE = nullcontext()

T = TypeVar("T")


class StatementTimeout(psycopg.OperationalError):
    """The server did not answer in time. Its connection is closed."""


class PooledConnection(psycopg.Connection[Any]):
    """Connection of the store's pool."""

    last_used = 0.0  # monotonic time of its last success
    round_trip = float("inf")  # seconds of its fastest statement
    merges_begin = False  # BEGIN is sent together with the first statement
    stack: Any = None  # the ConnectionStack that it belongs to
    statement_limit: float | None = None  # seconds that a statement may take

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for the server, but no longer than the limit.

        A connection can stay open and carry nothing, for instance through a load balancer. TCP
        notices only a peer that does not acknowledge.
        """
        if self.statement_limit is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_limit_time(gen, self.statement_limit), *args, **kwargs)
        except StatementTimeout:
            self.close()
            raise

    @cached_property
    def reused_cursor(self) -> psycopg.Cursor[Any]:
        """Cursor for short results. It keeps the driver's adapters, and the last result."""
        return self.cursor()


def _limit_time(gen: PQGen[T], seconds: float) -> PQGen[T]:
    """Raise StatementTimeout if the server takes longer. The driver resumes it every 0.1 s."""
    deadline = time.monotonic() + seconds
    try:
        waits_for = next(gen)
        while True:
            ready = yield waits_for
            if not ready and time.monotonic() > deadline:
                message = f"no answer for {seconds:g} s"
                raise StatementTimeout(message)
            waits_for = gen.send(ready)
    except StopIteration as result:
        return cast("T", result.value)


class StoreContext(Protocol):
    """Attributes of the store that its transactions need."""

    prefix: str  # of table names: the quoted schema and a dot
    channel: str  # name of the NOTIFY channel
    notify_callers: bool

    def discard_plans(self, connection: PostgresConnection) -> None: ...


class PostgresTransaction(SqlTransaction):
    """Transaction on one connection."""

    candidates_per_slot = 3

    def __init__(
        self, connection: PostgresConnection, store: StoreContext, *, autocommit: bool = False
    ) -> None:
        """Wrap a connection. `autocommit`: each statement is a transaction."""
        self._connection = connection
        self._store = store
        self._autocommit = autocommit
        self._began = autocommit

    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, params)

    def rows_where(self, statement: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        return self.rows_matching(statement, build_conditions(where), **params)

    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        return self._run(statement, conditions.params | params, shape=conditions.shape)

    def _run(
        self,
        statement: str,
        params: dict[str, Any],
        *,
        prepare: bool | None = None,
        reuse_cursor: bool = False,
        row_count: int = 0,
        **variant: Any,
    ) -> list[tuple[Any, ...]]:
        """Run a statement. `variant` holds the options of `load_statement`."""
        text = load_statement(statement, "postgres", self._store.prefix, **variant)
        executor: Any = self._connection
        if reuse_cursor and isinstance(executor, PooledConnection):
            executor = executor.reused_cursor
        started = time.monotonic()
        try:
            with self._merged_begin():
                cursor = executor.execute(text, params, prepare=prepare)
        except (UnicodeEncodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None):  # refused by the server, not by the driver
                raise
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            cursor = self._connection.execute(text, storable, prepare=prepare)
        elapsed = time.monotonic() - started
        elapsed -= self._round_trip(elapsed)
        if prepare is None and elapsed > SLOW_STATEMENT + row_count * SLOW_PER_ROW:
            self._store.discard_plans(self._connection)
        return cursor.fetchall() if _has_rows(cursor) else []

    def _merged_begin(self) -> AbstractContextManager[object]:
        """Send BEGIN together with the first statement: one round trip instead of two."""
        connection = self._connection
        if self._began or not isinstance(connection, PooledConnection):
            return NO_PIPELINE
        self._began = True
        return connection.pipeline() if connection.merges_begin else NO_PIPELINE

    def _round_trip(self, elapsed: float) -> float:
        """Return how long the network takes at least, by the fastest statement so far."""
        connection = self._connection
        if not isinstance(connection, PooledConnection):
            return 0.0
        connection.round_trip = min(connection.round_trip, elapsed)
        return connection.round_trip

    def notify(self, payload: str) -> None:
        """Notify all listeners."""
        self._connection.execute(
            "SELECT pg_notify(%s, %s)", (self._store.channel, payload), prepare=False
        )

    def run_command(self, text: str) -> None:
        self._connection.execute(text)

    def _run_set(self, statement: str, rows: Sequence[Any], **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a set of rows of one type."""
        columns = type(rows[0])._make(zip(*rows, strict=True))
        return self._run_columns(statement, columns._asdict(), **params)

    def _run_columns(
        self, statement: str, columns: Mapping[str, Sequence[Any]], **params: Any
    ) -> list[tuple[Any, ...]]:
        """Run a statement on columns. A large column of equal values is sent as one value."""
        row_count = len(next(iter(columns.values())))
        if row_count == 1:
            row = {name: column[0] for name, column in columns.items()}
            return self._run(statement, row | params, single_row=True)
        if row_count < LARGE_SET:
            arrays = {name: format_array(column) for name, column in columns.items()}
            return self._run(statement, arrays | params)
        shared = frozenset(
            name for name, column in columns.items() if column.count(column[0]) == row_count
        )
        values = {
            name: column[0] if name in shared else format_array(column)
            for name, column in columns.items()
        }
        return self._run(statement, values | params, row_count=row_count, shared=shared)

    def array_param(self, values: Sequence[Any]) -> Any:
        return format_array(values)

    def count_group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        death_times = self.get_group_death_times(names, where)
        bounds = {"at_time": now, "hours": hours, "cap": cap}
        rows = self.rows_where(
            "count_group_deaths",
            dead_jobs_filter(where),
            names=self.array_param(list(death_times)),
            **bounds,
        )
        found = {name: Deaths([], [], first, last) for name, (first, last) in death_times.items()}
        for name, kind, code, cls, ago, jobs in rows:
            if ago is None:
                found[name].counts.append(DeathCount(kind, code, cls, jobs))
            else:
                found[name].hours.append((ago, jobs))
        return found

    def count_group_recoveries(
        self, names: Sequence[str], owner: str | None, limit: int
    ) -> dict[str, tuple[int, int]]:
        rows = self.rows(
            "count_group_recoveries", names=self.array_param(names), owner=owner, limit=limit
        )
        return {name: (retried, recovered) for name, retried, recovered in rows}

    def now(self) -> Micros:
        return int(self.rows("now")[0][0])

    def monotonic_now(self) -> Micros:
        return time.monotonic_ns() // 1000

    # --- Enqueue ---
    def insert_unconstrained(self, jobs: Sequence[NewJob], *, announce: bool) -> Micros:
        inserted = self._insert(jobs, announce=announce, unconstrained=True)
        return int(inserted[0][2])

    def insert_new_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        inserted = self._insert(jobs, announce=announce, unconstrained=False)
        return {
            job_id: Inserted(job_id, fresh=True, run_at=run_at, created_at=created_at)
            for job_id, run_at, created_at, *_ in inserted
        }

    def _insert(
        self, jobs: Sequence[NewJob], *, announce: bool, unconstrained: bool
    ) -> list[tuple[Any, ...]]:
        """Insert jobs. If no insert can be refused, return one row instead of one per job."""
        params = {
            "announce": announce,
            "channel": self._store.channel if announce or self._store.notify_callers else None,
            "max_rows": 1 if unconstrained else None,
            **_arg_columns(jobs),
        }
        insert = self._insert_one if len(jobs) == 1 else self._insert_many
        try:
            return insert(
                jobs, params, unconstrained=unconstrained, is_transaction=self._autocommit
            )
        except pg.SerializationFailure as error:
            # Only in a caller's transaction: our own are READ COMMITTED.
            key = next((job.unique_key for job in jobs if job.unique_hash), None)
            raise unique_race(key) from error

    def _insert_one(
        self, jobs: Sequence[NewJob], params: dict[str, Any], **variant: Any
    ) -> list[tuple[Any, ...]]:
        shared, defaulted, _ = insert_columns(jobs)
        statement = "insert_jobs_with_args" if "arg_jobs" in params else "insert_job"
        return self._run(
            statement,
            shared | params,
            reuse_cursor=True,
            single_row=True,
            defaulted=defaulted,
            **variant,
        )

    def _insert_many(
        self, jobs: Sequence[NewJob], params: dict[str, Any], **variant: Any
    ) -> list[tuple[Any, ...]]:
        shared, defaulted, varying = insert_columns(jobs)
        statement = "insert_jobs_with_args" if "arg_jobs" in params else "insert_jobs"
        arrays = {name: format_array(column) for name, column in varying.items()}
        if len(jobs) >= LARGE_SET:
            events_equal = not varying.keys() & QUEUED_EVENT_COLUMNS
            if variant["unconstrained"] and statement == "insert_jobs" and events_equal:
                statement = "insert_equal_jobs"
            variant |= {"shared": frozenset(shared), "defaulted": defaulted}
            return self._run(statement, shared | arrays | params, row_count=len(jobs), **variant)
        # Small sets of any shape share one statement, whose plan is cached.
        values = shared | {name: DEFAULT_VALUES[name] for name in defaulted}
        filled = {name: format_array([value] * len(jobs)) for name, value in values.items()}
        return self._run(statement, filled | arrays | params, **variant)

    def announce_jobs(self, limit: int) -> int:
        return len(self.rows("announce_jobs", limit=limit))

    # --- Claim ---
    def read_state_and_claim(
        self, worker: str, lanes: UnlimitedLanes, limit: int
    ) -> tuple[ClaimState, list[Lease]]:
        params = _claim_params(worker, lanes, limit)
        rows = self._run("read_state_and_claim", params, row_count=limit)
        leases = [Lease._make(row[CLAIM_STATE_COLUMNS:]) for row in rows if row[0] == "lease"]
        state_rows = (row[:CLAIM_STATE_COLUMNS] for row in rows[len(leases) :])
        return self.parse_claim_state(state_rows), leases

    def read_state_and_claim_one(
        self, worker: str, lanes: UnlimitedLanes
    ) -> tuple[ClaimState, list[Lease]]:
        first, *rest = self._run(
            "read_state_and_claim_one",
            _claim_params(worker, lanes, 1),
            reuse_cursor=True,
            single_row=True,
            is_transaction=self._autocommit,
        )
        if first[0] != "lease":
            rows = (first, *rest)
            return self.parse_claim_state(row[:CLAIM_STATE_COLUMNS] for row in rows), []
        state = self.parse_claim_state(row[:CLAIM_STATE_COLUMNS] for row in rest)
        # The state was read before the claim: replace the lane's first due time by its next one.
        _, lane, _, priority, next_run_at, *_ = first
        waiting = [entry for entry in state.lanes if entry[:2] != (lane, priority)]
        if next_run_at is not None:
            waiting.append((lane, priority, next_run_at))
        return state._replace(lanes=waiting), [Lease._make(first[CLAIM_STATE_COLUMNS:])]

    def claim_from_position(self, worker: str, position: ClaimPosition, limit: int) -> list[Lease]:
        params = position._asdict() | {"worker": worker, "limit": limit}
        rows = self._run("claim_from_position", params, row_count=limit)
        return [Lease._make(row) for row in rows]

    def list_due_jobs(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        if not lanes:
            return []
        if len(lanes) == 1:
            lane, priority = lanes[0]
            rows = self.rows(
                "list_due_jobs", lane=lane, priority=priority, limit=min(limit, each or limit)
            )
        else:
            keys, priorities = map(format_array, zip(*lanes, strict=True))
            rows = self.rows(
                "list_due_jobs_of_lanes",
                lanes=keys,
                priorities=priorities,
                limit=limit,
                each=each or limit,
            )
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    @contextmanager
    def atomically(self) -> Iterator[None]:
        connection = self._connection
        if not isinstance(connection, psycopg.Connection) or not connection.autocommit:
            yield
            return
        with connection.transaction():
            yield

    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not ids:
            return []
        order = {job_id: place for place, job_id in enumerate(ids)}
        candidates = [*map(ClaimCandidate, ids)]
        rows = self._run_set("claim_jobs", candidates, worker=worker, limit=limit)
        return sorted(map(Lease._make, rows), key=lambda lease: order[lease.id])

    def claim_from_lane(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        params = {"worker": worker, "lane": lane, "priority": priority, "limit": limit}
        rows = self._run("claim_from_lane", params, row_count=limit)
        return [Lease._make(row) for row in rows]

    # --- Settle ---
    def settle_fenced(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        if not settlements:
            return set()
        count = len(settlements)
        columns = Settlement._make(zip(*settlements, strict=True))._asdict()
        varying = {name for name, column in columns.items() if column.count(column[0]) < count}
        if count < LARGE_SET or not varying <= PER_ATTEMPT_FIELDS:
            return _fences(self._run_columns("settle", columns))
        arrays = {name: format_array(columns[name]) for name in PerAttemptColumns._fields}
        params = settlements[0]._asdict() | arrays
        return _fences(self._run("settle_equal", params, row_count=count))

    def settle_successes(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> set[tuple[str, int]]:
        return self._settle_successes("settle_successes", SuccessColumns, worker, successes)

    def settle_successes_by_location(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> set[tuple[str, int]]:
        return self._settle_successes(
            "settle_successes_by_location", LocatedSuccessColumns, worker, successes
        )

    def _settle_successes(
        self,
        statement: str,
        row_type: type[SuccessColumns | LocatedSuccessColumns],
        worker: str,
        successes: Sequence[SuccessRow],
    ) -> set[tuple[str, int]]:
        columns: Any = SuccessRow._make(zip(*successes, strict=True))
        sent = {name: getattr(columns, name) for name in row_type._fields}
        return _fences(self._run_columns(statement, sent, worker=worker))

    def settle_retries_by_location(
        self, row: Settlement, texts: SharedRetryTexts, retries: Sequence[RetryRow]
    ) -> set[tuple[str, int]]:
        columns: Any = RetryRow._make(zip(*retries, strict=True))
        arrays = {name: format_array(getattr(columns, name)) for name in RetryColumns._fields}
        params = row._asdict() | texts._asdict() | arrays
        return _fences(self._run("settle_retries_by_location", params, row_count=len(retries)))

    # --- Other statements ---
    def write_stats(self, rows: Sequence[StatRow]) -> None:
        self._run_set("write_stats", rows)

    def move_job(self, move: Move) -> bool:
        try:
            # A taken key must not abort the transaction. Without a key there is no conflict.
            with nullcontext() if move.unique_hash is None else self.savepoint():
                return super().move_job(move)
        except pg.UniqueViolation as error:
            raise unique_taken(move.id, str(error.diag.message_detail)) from error

    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        requested = self.rows(
            "request_cancel", id=job_id, token=token, reason=reason, channel=self._store.channel
        )
        return bool(requested)

    def is_expired(self, worker: WorkerRow) -> bool:
        return self.now() - worker.renewed_at > worker.lease

    def list_events_after(self, cursor: int, limit: int) -> list[Event]:
        return self.events_in_range("list_events", cursor, self.newest_event(), limit)

    def newest_event(self, above: int = -1) -> int:
        # Read the sequence first. Every transaction that drew an id up to it has set its mark by
        # now, or has ended.
        top: int = self.rows("last_event_id")[0][0]
        if top <= above:
            return top
        floor: int | None = self.rows("lowest_open_event_mark")[0][0]
        return top if floor is None else min(top, floor)

    def event_lag(self) -> Micros:
        return int(self.rows("event_lag")[0][0])


def _fences(rows: Sequence[tuple[Any, ...]]) -> set[tuple[str, int]]:
    return {(row[0], row[1]) for row in rows}


def _claim_params(worker: str, unlimited: UnlimitedLanes, limit: int) -> dict[str, Any]:
    return {
        "unlimited": format_array(unlimited.lanes),
        "since": unlimited.since,
        "until": unlimited.until,
        "worker": worker,
        "limit": limit,
        "lanes": MAX_LANES,
    }


def _arg_columns(jobs: Sequence[NewJob]) -> dict[str, str]:
    """Return the indexed arguments of jobs, one array per column. Empty if there are none."""
    rows = arg_rows(jobs)
    if not rows:
        return {}
    ids, _, names, values = map(format_array, zip(*rows, strict=True))
    return {"arg_jobs": ids, "arg_names": names, "arg_values": values}


def _has_rows(cursor: Any) -> bool:
    """True if a statement returned rows. Reading `description` would be slower."""
    result = getattr(cursor, "pgresult", None)
    return bool(cursor.description) if result is None else result.nfields > 0

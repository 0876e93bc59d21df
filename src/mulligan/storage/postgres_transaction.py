"""One transaction on PostgreSQL: the methods that differ from SQLite."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.job import Candidate, ClaimState, LaneRef, NewJob
from mulligan.storage.base import (
    Move,
    Settlement,
    StatementConditions,
    Transaction,
)
from mulligan.storage.foreign import PostgresConnection
from mulligan.storage.rows import (
    ClaimCandidate,
    LaneShare,
    format_array,
    replace_unstorable,
    unique_race,
    unique_taken,
)
from mulligan.storage.sql import load_statement, set_columns
from mulligan.storage.statements import SqlDialect
from mulligan.storage.transaction import MAX_LANES, SqlTransaction

# --- Warm-up: run a worker's statements once without effect, so that their plans are cached ---

NO_WORKER = ""
PREPARE_AFTER = 2  # executions until the driver prepares a statement
WARM_UP_ROWS = 2  # a set of rows has another statement than one row


def warm_up(tx: Transaction) -> None:
    """Run the statements of claims and settlements for a worker that does not exist."""
    now = tx.now()
    success = _sample_settlement(now, state="succeeded", finished=True, succeeded_by=NO_WORKER)
    failure = _sample_settlement(now, state="queued", run_at=now, code="UNKNOWN")
    for _ in range(PREPARE_AFTER):
        warm_up_claim(tx)
        tx.settle([success] * WARM_UP_ROWS)
        tx.settle([failure] * WARM_UP_ROWS)


def warm_up_claim(tx: Transaction) -> None:
    """Run the statements of a claim for a worker that does not exist."""
    tx.read_claim_state([("", 0)], 1)
    tx.claim_candidates(NO_WORKER, [Candidate(0, 0, "", "")])


def _sample_settlement(now: Micros, **columns: Any) -> Settlement:
    """Build a settlement of a job that does not exist."""
    return Settlement(
        id="",
        worker=NO_WORKER,
        token=1,
        failures=0,
        reason="",
        generation=1,
        attempt=1,
        settled_by=NO_WORKER,
        started_at=now,
        ended="",
        verb="",
        event="",
        owner="",
        data="",
        **columns,
    )


# --- Transaction ---

LARGE_SET = 10  # rows; larger sets send shared values once
# Columns of a settlement that are left out if no row of the set has a value in them. Two groups
# make four statements, so that each is soon prepared.
FAILURE_COLUMNS = frozenset(
    {"run_at", "counts", "code", "cls", "rule", "public", "evidence", "private", "fingerprint"}
    | {"judged"}
)
RARE_COLUMNS = frozenset(
    {"cancel_known", "losses", "snoozes", "alone", "error", "choices", "release_key", "cost"}
    | {"settings", "queue", "lane"}
)
OPTIONAL_COLUMNS = (FAILURE_COLUMNS, RARE_COLUMNS)
# A cached plan may date from when the table was empty. Plans of slower statements are discarded.
SLOW_STATEMENT = 0.05  # seconds
SLOW_PER_ROW = 0.0001  # seconds more for each row of a set


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

    dialect = SqlDialect.POSTGRES

    def __init__(
        self, connection: PostgresConnection, store: StoreContext, *, autocommit: bool = False
    ) -> None:
        """Wrap a connection. `autocommit`: each statement is a transaction."""
        self._connection = connection
        self._store = store
        self._autocommit = autocommit
        self.channel = store.channel
        self._began = autocommit

    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, params)

    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {**conditions.params, **params}
        return self._run(statement, values, matching=conditions.text(self.dialect))

    def run_set(self, statement: str, rows: Sequence[Any]) -> None:
        self._run_set(statement, rows)

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
            return self._run(
                statement,
                row | params,
                reuse_cursor=True,
                single_row=True,
                is_transaction=self._autocommit,
            )
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

    def now(self) -> Micros:
        return int(self.rows("now")[0][0])

    # --- Enqueue ---
    def insert_rows(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        columns = dict(zip(NewJob._fields, zip(*jobs, strict=True), strict=True))
        notify = announce or self._store.notify_callers
        try:
            [row] = self._run_columns(
                "insert_jobs",
                {name: columns[name] for name in set_columns(NewJob)},
                announce=announce,
                channel=self._store.channel if notify else None,
            )
        except pg.SerializationFailure as error:
            # Only in a caller's transaction: our own are READ COMMITTED.
            key = next((job.unique_key for job in jobs if job.unique_hash), None)
            raise unique_race(key) from error
        count, now, *_ = row
        return count, now or self.now()

    def announce_jobs(self, limit: int) -> int:
        return len(self.rows("announce_jobs", limit=limit))

    # --- Claim ---
    def read_claim_state(self, expected: Sequence[LaneRef] = (), depth: int = 0) -> ClaimState:
        params = self._lane_params(expected, depth) | {"max_lanes": MAX_LANES}
        row_count = len(expected) * depth
        reuse_cursor = row_count <= LARGE_SET
        rows = self._run("read_claim_state", params, row_count=row_count, reuse_cursor=reuse_cursor)
        return self.parse_claim_state(rows)

    def list_due_jobs(self, lanes: Sequence[LaneRef], depth: int) -> list[Candidate]:
        params = self._lane_params(lanes, depth)
        rows = self._run("list_due_jobs", params, row_count=len(lanes) * depth)
        return [*map(Candidate._make, rows)]

    def _lane_params(self, lanes: Sequence[LaneRef], depth: int) -> dict[str, Any]:
        return {
            "lanes": format_array([lane for lane, _ in lanes]),
            "priorities": format_array([priority for _, priority in lanes]),
            "depth": depth,
        }

    @contextmanager
    def atomically(self) -> Iterator[None]:
        connection = self._connection
        if not isinstance(connection, psycopg.Connection) or not connection.autocommit:
            yield
            return
        single_statements = self._autocommit
        self._autocommit = False
        try:
            with connection.transaction():
                yield
        finally:
            self._autocommit = single_statements

    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if not ids:
            return []
        order = {job_id: place for place, job_id in enumerate(ids)}
        candidates = [*map(ClaimCandidate, ids)]
        rows = self._run_set("claim_jobs", candidates, worker=worker, limit=limit)
        return sorted(map(Lease._make, rows), key=lambda lease: order[lease.id])

    def claim_candidates(self, worker: str, picked: Sequence[Candidate]) -> list[Lease]:
        if not picked:
            return []
        # By lane and not by id: workers that picked the same jobs get different ones.
        counts = Counter((job.lane, job.priority) for job in picked)
        since = {(job.lane, job.priority): job.run_at for job in reversed(picked)}
        shares = [LaneShare(*lane, since[lane], jobs) for lane, jobs in counts.items()]
        columns = LaneShare._make(map(format_array, zip(*shares, strict=True)))
        params = columns._asdict() | {"worker": worker}
        rows = self._run(
            "claim_from_lanes",
            params,
            row_count=len(picked),
            reuse_cursor=len(picked) <= LARGE_SET,
            is_transaction=self._autocommit,
        )
        order = {job.id: place for place, job in enumerate(picked)}
        last = len(order)
        return sorted(map(Lease._make, rows), key=lambda lease: order.get(lease.id, last))

    # --- Settle ---
    def settle_fenced(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        if not settlements:
            return set()
        if len(settlements) == 1:
            rows = self._run("settle", settlements[0]._asdict(), single_row=True)
        else:
            rows = self._settle_set(settlements)
        return {(row[0], row[1]) for row in rows}

    def _settle_set(self, settlements: Sequence[Settlement]) -> list[tuple[Any, ...]]:
        columns = dict(zip(Settlement._fields, zip(*settlements, strict=True), strict=True))
        defaulted: frozenset[str] = frozenset()
        for group in OPTIONAL_COLUMNS:
            if not any(any(columns[name]) for name in group):
                defaulted |= group
        arrays = {
            name: format_array(column) for name, column in columns.items() if name not in defaulted
        }
        return self._run("settle", arrays, row_count=len(settlements), defaulted=defaulted)

    # --- Other statements ---
    def move_job(self, move: Move) -> bool:
        try:
            # A taken key must not abort the transaction. Without a key there is no conflict.
            with nullcontext() if move.unique_hash is None else self.savepoint():
                return super().move_job(move)
        except pg.UniqueViolation as error:
            raise unique_taken(move.id, str(error.diag.message_detail)) from error


def _has_rows(cursor: Any) -> bool:
    """True if a statement returned rows. Reading `description` would be slower."""
    result = getattr(cursor, "pgresult", None)
    return bool(cursor.description) if result is None else result.nfields > 0

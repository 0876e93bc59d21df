"""One transaction on PostgreSQL: runs statements on sets of rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen

from mulligan.core.durations import Micros
from mulligan.storage.base import StatementConditions, Transaction, replace_unstorable
from mulligan.storage.foreign import PostgresConnection
from mulligan.storage.statements import (
    NULL_MARK,
    SEPARATOR,
    SqlDialect,
    default_values,
    load_statement,
    set_columns,
)

# Unlike an address, this is the same on every way to one database: socket, host name or pooler.
WHICH_DATABASE = "SELECT current_database(), pg_postmaster_start_time()"
LARGE_SET = 10  # rows; larger sets send shared values once
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


class PostgresTransaction(Transaction):
    """Transaction on one connection."""

    dialect = SqlDialect.POSTGRES
    unique_violations = (pg.UniqueViolation,)
    serialization_failures = (pg.SerializationFailure,)

    def __init__(
        self, connection: PostgresConnection, store: StoreContext, *, autocommit: bool = False
    ) -> None:
        """Wrap a connection. `autocommit`: each statement is a transaction."""
        self._connection = connection
        self._store = store
        self._autocommit = autocommit
        self.channel = store.channel
        self.notify_callers = store.notify_callers
        self._began = autocommit

    def now(self) -> Micros:
        return int(self.rows("now")[0][0])

    def rows(
        self, statement: str, row_count: int | None = None, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        return self._run(statement, params, row_count)

    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {**conditions.params, **params}
        return self._run(statement, values, matching=conditions.text(self.dialect))

    def run_set(
        self,
        statement: str,
        rows: Sequence[Any],
        optional: Sequence[frozenset[str]] = (),
        /,
        **params: Any,
    ) -> list[tuple[Any, ...]]:
        """Send one row as values, more rows as one array per column.

        A large column of equal values is sent as one of them, and a column that has its default
        in one row or in all rows of a large set is not sent.
        """
        if not rows:
            return []
        count = len(rows)
        row_type: type = type(rows[0])
        defaults = {} if optional else default_values(row_type)
        if count == 1:
            params |= rows[0]._asdict()
            defaulted = frozenset([name for name in defaults if params[name] == defaults[name]])
            return self._run(statement, params, 1, single_row=True, defaulted=defaulted)
        sent = set_columns(row_type)
        columns = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
        shared: set[str] = set()
        omitted: set[str] = set()
        for group in optional:
            if not any(any(columns[name]) for name in group):
                omitted |= group
        if count >= LARGE_SET and not optional:
            shared.update(name for name in sent if columns[name].count(columns[name][0]) == count)
            firsts = {name: columns[name][0] for name in shared & defaults.keys()}
            omitted.update(name for name, first in firsts.items() if first == defaults[name])
            shared -= omitted
        params |= {name: columns[name][0] for name in shared}
        varying = {name: columns[name] for name in sent.keys() - shared - omitted}
        params |= format_columns(varying, sent)
        return self._run(
            statement, params, count, shared=frozenset(shared), defaulted=frozenset(omitted)
        )

    def _run(
        self,
        statement: str,
        params: dict[str, Any],
        row_count: int | None = None,
        **variant: Any,
    ) -> list[tuple[Any, ...]]:
        """Run a statement. `variant` holds the options of `load_statement`."""
        text = load_statement(
            statement, "postgres", self._store.prefix, is_transaction=self._autocommit, **variant
        )
        executor: Any = self._connection
        is_short = row_count is not None and row_count <= LARGE_SET
        if is_short and isinstance(executor, PooledConnection):
            executor = executor.reused_cursor
        started = time.monotonic()
        try:
            with self._merged_begin():
                cursor = executor.execute(text, params)
        except (UnicodeEncodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None):  # refused by the server, not by the driver
                raise
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            cursor = self._connection.execute(text, storable)
        elapsed = time.monotonic() - started
        elapsed -= self._round_trip(elapsed)
        if elapsed > SLOW_STATEMENT + (row_count or 0) * SLOW_PER_ROW:
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

    def which_database(self) -> tuple[Any, ...]:
        """Return the name of the database, and when its server was started."""
        return tuple(self._connection.execute(WHICH_DATABASE).fetchone())

    def run_command(self, text: str) -> None:
        self._connection.execute(text)

    def array_param(self, values: Sequence[Any]) -> Any:
        return format_array(values)

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

    def describe(self, error: Exception) -> str:
        diagnostics = getattr(error, "diag", None)
        return str(getattr(diagnostics, "message_detail", None) or error)


def _has_rows(cursor: Any) -> bool:
    """True if a statement returned rows. Reading `description` would be slower."""
    result = getattr(cursor, "pgresult", None)
    return bool(cursor.description) if result is None else result.nfields > 0


# --- Columns and arrays ---


def format_columns(
    columns: Mapping[str, Sequence[Any]], sql_types: Mapping[str, str]
) -> dict[str, str]:
    """Format the columns of a set: texts are joined, other values are array literals."""
    texts = {name: column for name, column in columns.items() if sql_types[name] == "text"}
    params = {name: format_array(column) for name, column in columns.items() if name not in texts}
    for separator, null_mark in _marks():
        joined = {name: _join(column, separator, null_mark) for name, column in texts.items()}
        if None not in joined.values():
            params |= {SEPARATOR: separator, NULL_MARK: null_mark}
            return params | cast("dict[str, str]", joined)
    message = "a set of texts contains all private characters of Unicode; send fewer rows"
    raise ValueError(message)


def _marks() -> Iterator[tuple[str, str]]:
    """Yield pairs of characters that texts rarely contain."""
    for code in (0x1E, *range(0xE000, 0xF8FF, 2)):
        yield chr(code + 1), chr(code)


def _join(column: Sequence[str | None], separator: str, null_mark: str) -> str | None:
    """Join the texts of a column. Return None if a text contains one of the marks."""
    nulls = column.count(None)
    if nulls:
        column = [null_mark if value is None else value for value in column]
    joined = separator.join(cast("Sequence[str]", column))
    is_unique = joined.count(separator) == len(column) - 1 and joined.count(null_mark) == nulls
    return joined if is_unique else None


def format_array(values: Iterable[Any]) -> str:
    """Format an array literal of PostgreSQL. Ten times faster than the driver."""
    column = [*values]
    if {*map(type, column)} in ({int}, {bool}):
        return "{" + str(column)[1:-1] + "}"
    return "{" + ",".join(map(_format_element, column)) + "}"


def _format_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)

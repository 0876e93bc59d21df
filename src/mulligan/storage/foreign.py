"""Connections of callers: unwrap them to the driver's connection and check their transaction.

A job that is enqueued with `connection=` is committed or rolled back with the caller's rows, so
there must be a transaction. If the driver begins one before the first write, that is enough. If
the caller has disabled that and has begun none, the connection is refused.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from mulligan.core.errors import ConnectionRefused
from mulligan.storage.async_connections import LoopBridge, driver_of, is_async_connection

NO_TRANSACTION = (
    "connection= is in autocommit mode and has no open transaction, so the job could not be "
    "committed together with your rows. Two ways out: (1) begin a transaction on it first; "
    "(2) leave connection= out, and the job is committed on its own."
)
ASYNC = (
    "connection= got {name}, an async connection, but this call is not async. Two ways out: "
    "(1) await kind.options(connection=conn).enqueue_async(...); with SQLAlchemy also enqueue "
    "inside conn.run_sync(...); (2) run this transaction in a thread, with app.transaction() or "
    "a sync connection: await asyncio.to_thread(...)."
)
POSTGRES_TAKES = (
    "connection= got {name}. Two ways out: (1) pass what a PostgreSQL store accepts: "
    "app.transaction(), a psycopg (3) connection, an asyncpg connection, Django's connection, or "
    "SQLAlchemy over postgresql+psycopg://… or postgresql+asyncpg://…; (2) leave connection= out "
    "and enqueue once your transaction is committed."
)


class PostgresConnection(Protocol):
    """The part of a psycopg connection that transactions use."""

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any: ...
    def transaction(self) -> AbstractContextManager[Any]: ...


def unwrap_connection(connection: Any) -> Any:
    """Return the driver's connection inside a connection of Django or SQLAlchemy."""
    if isinstance(connection, LoopBridge):
        return connection.connection
    connection = _unwrap_django(connection)
    pooled = _unwrap_sqlalchemy(connection)
    return connection if pooled is None else pooled.driver_connection


def _unwrap_django(connection: Any) -> Any:
    """Unwrap `django.db.connection`, a proxy for a wrapper that connects on first use."""
    if not hasattr(connection, "ensure_connection"):
        return connection
    connection.ensure_connection()
    return connection.connection


def _unwrap_sqlalchemy(connection: Any) -> Any:
    """Return SQLAlchemy's pooled connection. None: this is no connection of SQLAlchemy."""
    if is_async_connection(connection):
        raise ConnectionRefused(ASYNC.format(name=connection_name(connection)))
    if hasattr(connection, "driver_connection"):  # engine.raw_connection()
        return connection
    if callable(getattr(connection, "connection", None)):  # an ORM Session
        connection = connection.connection()
    pooled = getattr(connection, "connection", None)
    if not hasattr(pooled, "driver_connection"):
        return None
    if not connection.in_transaction():
        connection.begin()  # as its first statement would; before that, commit() does nothing
    return pooled


def connection_name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


# --- PostgreSQL ---


def open_postgres_connection(connection: Any) -> JoinedConnection:
    """Wrap a caller's PostgreSQL connection, or raise ConnectionRefused."""
    import psycopg  # noqa: PLC0415 - an optional extra
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an optional extra

    if isinstance(connection, LoopBridge):
        return _open_bridged_connection(connection)
    connection = _unwrap_django(connection)
    pooled = _unwrap_sqlalchemy(connection)
    raw = connection if pooled is None else pooled.driver_connection
    if driver_of(raw) == "asyncpg" and pooled is not None:
        return _open_asyncpg_in_sqlalchemy(pooled)
    if not isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
        raise ConnectionRefused(POSTGRES_TAKES.format(name=connection_name(raw)))
    if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise ConnectionRefused(NO_TRANSACTION)
    if isinstance(raw, psycopg.Connection):
        # Not raw.cursor(): the caller may have set cursors that bind on the client, as Django does.
        return JoinedPsycopg(raw, lambda: psycopg.Cursor(raw, row_factory=tuple_row))
    # Inside SQLAlchemy's run_sync: its cursors need no await.
    return JoinedPsycopg(raw, pooled.cursor)


def _open_bridged_connection(bridge: LoopBridge) -> JoinedConnection:
    """Wrap an async connection of asyncpg or psycopg that a thread uses through its loop."""
    import psycopg  # noqa: PLC0415 - an optional extra
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an optional extra

    raw = bridge.connection
    if driver_of(raw) == "asyncpg" and hasattr(raw, "is_in_transaction"):
        if not raw.is_in_transaction():
            raise ConnectionRefused(NO_TRANSACTION)
        driver_connection = getattr(raw, "_con", raw)  # inside the proxy of a pool

        async def fetch(query: str) -> Iterable[Iterable[Any]]:
            # Unlike `fetch`, this does not take a place in the connection's cache of statements.
            statement = await driver_connection.prepare(query, name="")
            rows: Iterable[Iterable[Any]] = await statement.fetch()
            return rows

        return JoinedAsyncpg(driver_connection, lambda query: bridge.run(fetch(query)))
    if not isinstance(raw, psycopg.AsyncConnection):
        raise ConnectionRefused(POSTGRES_TAKES.format(name=connection_name(raw)))
    if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise ConnectionRefused(NO_TRANSACTION)

    async def run(query: Any, params: Any) -> FetchedRows:
        cursor = psycopg.AsyncCursor(raw, row_factory=tuple_row)
        await cursor.execute(query, params)
        return FetchedRows(await cursor.fetchall() if cursor.description else ())

    return JoinedAsyncPsycopg(raw, lambda query, params: bridge.run(run(query, params)))


def _open_asyncpg_in_sqlalchemy(pooled: Any) -> JoinedAsyncpg:
    """Wrap asyncpg inside SQLAlchemy's run_sync: its cursors need no await."""
    raw = pooled.driver_connection
    if getattr(pooled.dbapi_connection, "autocommit", False) and not raw.is_in_transaction():
        raise ConnectionRefused(NO_TRANSACTION)

    def fetch(query: str) -> Iterable[Iterable[Any]]:
        cursor = pooled.cursor()
        cursor.execute(query)
        rows: Iterable[Iterable[Any]] = cursor.fetchall()
        return rows

    return JoinedAsyncpg(raw, fetch)


class JoinedConnection(ABC):
    """Caller's connection. The caller's transaction is never ended."""

    driver_connection: Any

    @abstractmethod
    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:
        """Run a statement. Return something with its rows."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a savepoint. The block of psycopg would commit if it is the first to begin."""
        self.execute("SAVEPOINT mulligan")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK TO mulligan")
            raise
        finally:
            self.execute("RELEASE mulligan")


class JoinedPsycopg(JoinedConnection):
    """Caller's psycopg connection. Uses only its cursors."""

    def __init__(self, driver_connection: Any, cursor: Callable[[], Any]) -> None:
        self.driver_connection = driver_connection
        self._cursor = cursor

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:  # noqa: ARG002
        cursor = self._cursor()
        cursor.execute(query, params)
        return cursor


class JoinedAsyncPsycopg(JoinedConnection):
    """Caller's async psycopg connection, used from a thread."""

    def __init__(self, driver_connection: Any, run: Callable[[Any, Any], FetchedRows]) -> None:
        self.driver_connection = driver_connection
        self._run = run

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:  # noqa: ARG002
        return self._run(query, params)


class JoinedAsyncpg(JoinedConnection):
    """Caller's asyncpg connection.

    Statements are sent with literals. asyncpg derives the Python type of each parameter from its
    SQL type, which our statements leave to psycopg.
    """

    def __init__(
        self, driver_connection: Any, fetch: Callable[[str], Iterable[Iterable[Any]]]
    ) -> None:
        self.driver_connection = driver_connection
        self._fetch = fetch

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:  # noqa: ARG002
        from psycopg import errors  # noqa: PLC0415 - an optional extra

        text = with_literals(query, params)
        try:
            rows = self._fetch(text)
        except Exception as error:
            sqlstate = getattr(error, "sqlstate", None)
            if not isinstance(sqlstate, str):
                raise
            raise errors.lookup(sqlstate)(str(error)) from error
        return FetchedRows(tuple(tuple(row) for row in rows))


class FetchedRows:
    """Rows of a statement that has ended, with the methods of a cursor that are used."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rows = [*rows]
        self.description = bool(self._rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row."""
        return self._rows[0] if self._rows else None


_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s)")


def with_literals(query: str, params: Mapping[str, Any] | Sequence[Any] | None) -> str:
    """Return a statement with its parameters as literals, quoted by psycopg."""
    from psycopg import sql  # noqa: PLC0415 - an optional extra

    if params is None:
        return query
    positional = iter(params if not isinstance(params, Mapping) else ())
    literals: dict[str, str] = {}

    def literal(found: re.Match[str]) -> str:
        name = found[1]
        if found[0] == "%%":
            return "%"
        if name is None or not isinstance(params, Mapping):
            return sql.Literal(next(positional)).as_string(None)
        if name not in literals:
            literals[name] = sql.Literal(params[name]).as_string(None)
        return literals[name]

    return _PLACEHOLDER.sub(literal, query)

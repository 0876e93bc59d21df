"""Connections of callers: unwrap them to the driver's connection and check their transaction.

A job that is enqueued with `connection=` is committed or rolled back with the caller's rows, so
there must be a transaction. If the driver begins one before the first write, that is enough. If
the caller has disabled that and has begun none, the connection is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from inspect import iscoroutinefunction
from typing import Any, Protocol

import apsw

from mulligan.core.errors import ConnectionRefused
from mulligan.storage.sqlite_handle import ApswHandle, Handle, StdlibHandle

NO_TRANSACTION = (
    "connection= is in autocommit mode and has no open transaction, so the job could not be "
    "committed together with your rows. Two ways out: (1) begin a transaction on it first; "
    "(2) leave connection= out, and the job is committed on its own."
)
ASYNC = (
    "connection= got {name}, an async connection, but the statement must run on it without an "
    "event loop. Two ways out: (1) with SQLAlchemy: await "
    "kind.options(connection=conn).enqueue_async(...), or enqueue inside conn.run_sync(...), the "
    "same with an AsyncSession; (2) run this transaction in a thread, with app.transaction() or a "
    "sync connection: await asyncio.to_thread(...)."
)
SQLITE_TAKES = (
    "connection= got {name}. Two ways out: (1) pass what a SQLite store accepts: "
    "app.transaction(), a mulligan.dbapi connection, or SQLAlchemy over sqlite+mulligan:///… "
    "(with sqlite+stdlib:///…: a sqlite3 connection, or SQLAlchemy or Django over it); "
    "(2) leave connection= out and enqueue once your transaction is committed."
)
POSTGRES_TAKES = (
    "connection= got {name}. Two ways out: (1) pass what a PostgreSQL store accepts: "
    "app.transaction(), a psycopg (3) Connection, Django's connection, or SQLAlchemy over "
    "postgresql+psycopg://…; (2) leave connection= out and enqueue once your transaction is "
    "committed."
)


class PostgresConnection(Protocol):
    """The part of a psycopg connection that transactions use."""

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any: ...
    def transaction(self) -> AbstractContextManager[Any]: ...


def unwrap_connection(connection: Any) -> Any:
    """Return the driver's connection inside a connection of Django or SQLAlchemy."""
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
    if any(iscoroutinefunction(getattr(connection, name, None)) for name in ("execute", "commit")):
        raise ConnectionRefused(ASYNC.format(name=_name(connection)))
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


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


# --- SQLite ---


def open_sqlite_handle(connection: Any) -> Handle:
    """Wrap a caller's SQLite connection, or raise ConnectionRefused."""
    raw = unwrap_connection(connection)
    if hasattr(raw, "apsw_connection"):  # a connection of mulligan.dbapi
        return _JoinedApsw(raw.apsw_connection, raw.begin)
    if isinstance(raw, apsw.Connection):
        return _JoinedApsw(raw, _no_begin)
    if isinstance(raw, sqlite3.Connection):
        return _JoinedStdlib(raw)
    raise ConnectionRefused(SQLITE_TAKES.format(name=_name(raw)))


def _no_begin() -> None: ...


class _JoinedApsw(ApswHandle):
    """Caller's apsw connection. `begin` begins a transaction if the caller allows that."""

    def __init__(self, connection: apsw.Connection, begin: Callable[[], None]) -> None:
        super().__init__(connection)
        self._begin = begin

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        if not self.in_transaction():
            self._begin()
        if not self.in_transaction():
            raise ConnectionRefused(NO_TRANSACTION)
        return super().execute(sql, params)


class _JoinedStdlib(StdlibHandle):
    """Caller's sqlite3 connection."""

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        if not self.in_transaction():
            autocommit = getattr(self.connection, "autocommit", False) is True
            if self.connection.isolation_level is None or autocommit:
                raise ConnectionRefused(NO_TRANSACTION)
            # The transaction of sqlite3 would be deferred, and our first statement a read.
            self.connection.execute("BEGIN IMMEDIATE")
        with self._tuple_rows():
            return super().execute(sql, params)

    def path(self) -> str:
        with self._tuple_rows():
            return super().path()

    @contextmanager
    def _tuple_rows(self) -> Iterator[None]:
        """Return rows as tuples, whatever row factory the caller has set."""
        factory, self.connection.row_factory = self.connection.row_factory, None
        try:
            yield
        finally:
            self.connection.row_factory = factory


# --- PostgreSQL ---


def open_postgres_connection(connection: Any) -> PostgresConnection:
    """Wrap a caller's PostgreSQL connection, or raise ConnectionRefused."""
    import psycopg  # noqa: PLC0415 - an optional extra
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an optional extra

    connection = _unwrap_django(connection)
    pooled = _unwrap_sqlalchemy(connection)
    raw = connection if pooled is None else pooled.driver_connection
    if not isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
        raise ConnectionRefused(POSTGRES_TAKES.format(name=_name(raw)))
    if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise ConnectionRefused(NO_TRANSACTION)
    if isinstance(raw, psycopg.Connection):
        # Not raw.cursor(): the caller may have set cursors that bind on the client, as Django does.
        return _JoinedPsycopg(lambda: psycopg.Cursor(raw, row_factory=tuple_row))
    # Inside SQLAlchemy's run_sync: its cursors need no await.
    return _JoinedPsycopg(pooled.cursor)


class _JoinedPsycopg:
    """Caller's connection. Uses only its cursors, so the caller's transaction is never ended."""

    def __init__(self, cursor: Callable[[], Any]) -> None:
        self._cursor = cursor

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:  # noqa: ARG002
        cursor = self._cursor()
        cursor.execute(query, params)
        return cursor

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

"""A caller's connection: find the driver's own connection inside whatever was handed to us, and its transaction.

A job given to a connection shares the fate of the caller's rows. So there must be a transaction: where the driver
begins one before the first write, we see to it; where the caller switched that off and began none, we refuse.
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
    "connection= is in autocommit mode and has no transaction open, so the job could not share the fate of your rows. "
    "Two ways out: (1) begin a transaction on it first; (2) leave connection= out, and the job is committed on its own."
)
ASYNC = (
    "connection= got {name}, an async connection; the statement must run on it without a loop of its own. Two ways "
    "out: (1) with SQLAlchemy: await kind.options(connection=conn).enqueue_async(...), or inside conn.run_sync(...) "
    "the plain enqueue, the same on an AsyncSession; (2) do this transaction on a thread, with app.transaction() or a "
    "sync connection: await asyncio.to_thread(...)."
)
SQLITE_TAKES = (
    "connection= got {name}. Two ways out: (1) hand over what a SQLite store takes: app.transaction(), a "
    "mulligan.dbapi connection, or SQLAlchemy over sqlite+mulligan:///… (with sqlite+stdlib:///…: a sqlite3 "
    "connection, or SQLAlchemy or Django over it); (2) leave connection= out and enqueue once your transaction is "
    "committed."
)
POSTGRES_TAKES = (
    "connection= got {name}. Two ways out: (1) hand over what a PostgreSQL store takes: app.transaction(), a psycopg "
    "(3) Connection, Django's connection, or SQLAlchemy over postgresql+psycopg://…; (2) leave connection= out and "
    "enqueue once your transaction is committed."
)


class PostgresConnection(Protocol):
    """As much of a psycopg Connection as the verbs use."""

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any: ...
    def transaction(self) -> AbstractContextManager[Any]: ...


def unwrap_connection(connection: Any) -> Any:
    """Unwrap Django's connection, SQLAlchemy's Connection or Session to the driver's; anything else is itself."""
    connection = _out_of_django(connection)
    pooled = _pooled(connection)
    return connection if pooled is None else pooled.driver_connection


def _out_of_django(connection: Any) -> Any:
    """`django.db.connection` is a proxy for a wrapper, which connects when it is first used."""
    if not hasattr(connection, "ensure_connection"):
        return connection
    connection.ensure_connection()
    return connection.connection


def _pooled(connection: Any) -> Any:
    """SQLAlchemy's hold on the driver's connection, or None if this is not SQLAlchemy's."""
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
        connection.begin()  # as its first statement would: commit() does nothing before that
    return pooled


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


# -- SQLite -------------------------------------------------------------------------------------------
def open_sqlite_handle(connection: Any) -> Handle:
    raw = unwrap_connection(connection)
    if hasattr(raw, "apsw_connection"):  # a connection of mulligan.dbapi
        return _JoinedApsw(raw.apsw_connection, raw.begin)
    if isinstance(raw, apsw.Connection):
        return _JoinedApsw(raw, _nothing)
    if isinstance(raw, sqlite3.Connection):
        return _JoinedStdlib(raw)
    raise ConnectionRefused(SQLITE_TAKES.format(name=_name(raw)))


def _nothing() -> None: ...


class _JoinedApsw(ApswHandle):
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
    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        if not self.in_transaction():
            if (
                self.connection.isolation_level is None
                or getattr(self.connection, "autocommit", False) is True
            ):
                raise ConnectionRefused(NO_TRANSACTION)
            self.connection.execute(
                "BEGIN IMMEDIATE"
            )  # sqlite3's own would be deferred, and our first look a read
        with self._tuples():
            return super().execute(sql, params)

    def path(self) -> str:
        with self._tuples():
            return super().path()

    @contextmanager
    def _tuples(self) -> Iterator[None]:
        """The caller may like rows of another kind."""
        factory, self.connection.row_factory = self.connection.row_factory, None
        try:
            yield
        finally:
            self.connection.row_factory = factory


# -- PostgreSQL ---------------------------------------------------------------------------------------
def open_postgres_connection(connection: Any) -> PostgresConnection:
    import psycopg  # noqa: PLC0415 - an optional extra
    from psycopg.rows import tuple_row  # noqa: PLC0415 - the same

    connection = _out_of_django(connection)
    pooled = _pooled(connection)
    raw = connection if pooled is None else pooled.driver_connection
    if not isinstance(raw, psycopg.Connection | psycopg.AsyncConnection):
        raise ConnectionRefused(POSTGRES_TAKES.format(name=_name(raw)))
    if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise ConnectionRefused(NO_TRANSACTION)
    if isinstance(raw, psycopg.Connection):
        # Not raw.cursor(): the caller may have chosen cursors that bind on the client, as Django does.
        return _JoinedPsycopg(lambda: psycopg.Cursor(raw, row_factory=tuple_row))
    return _JoinedPsycopg(
        pooled.cursor
    )  # inside SQLAlchemy's run_sync, whose cursors need no await


class _JoinedPsycopg:
    """A caller's connection by its cursors alone: they answer with tuples and never end the caller's transaction."""

    def __init__(self, cursor: Callable[[], Any]) -> None:
        self._cursor = cursor

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None) -> Any:  # noqa: ARG002
        cursor = self._cursor()
        cursor.execute(query, params)
        return cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A savepoint, always: psycopg's own would commit where it is the first to begin."""
        self.execute("SAVEPOINT mulligan")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK TO mulligan")
            raise
        finally:
            self.execute("RELEASE mulligan")

"""A PEP 249 connection: transactions as in `sqlite3`, begun IMMEDIATE."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from sqlite3 import ProgrammingError
from typing import Any, Self

import apsw

from mulligan.dbapi.cursor import Cursor, Params
from mulligan.dbapi.translate import translated

Release = Callable[[], None]

_LEVELS = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Connection:
    def __init__(self, raw: apsw.Connection, release: Release, isolation_level: str | None) -> None:
        self.reading: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._raw = raw
        self._close = weakref.finalize(self, _close, raw, release)
        self._close.atexit = False  # a forked child that exits must leave its parent's connections alone
        self._isolation_level: str | None = ""
        self.isolation_level = isolation_level

    @property
    def apsw_connection(self) -> apsw.Connection:
        if not self._close.alive:
            message = "Cannot operate on a closed database."  # SQLAlchemy knows a lost connection by these words
            raise ProgrammingError(message)
        return self._raw

    # -- transactions -----------------------------------------------------------------------------
    @property
    def isolation_level(self) -> str | None:
        """How a transaction begins: "" means IMMEDIATE, None only by your own BEGIN."""
        return self._isolation_level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        if level is None:
            self.commit()  # as sqlite3 does
        elif level.upper() not in _LEVELS:
            message = f"isolation_level must be None or one of {_LEVELS}, not {level!r}"
            raise ProgrammingError(message)
        self._isolation_level = level

    @property
    def autocommit(self) -> bool:
        return self._isolation_level is None

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self.isolation_level = None if on else ""

    @property
    def in_transaction(self) -> bool:
        return self.apsw_connection.in_transaction

    def begin(self) -> None:
        """Begin as the first write would, unless a transaction is open or `isolation_level` is None."""
        raw = self.apsw_connection
        if self._isolation_level is None or raw.in_transaction:
            return
        for cursor in list(self.reading):
            cursor.read_to_end()  # a half-read SELECT holds an old snapshot, on which SQLite allows no write
        with translated:
            raw.execute(f"BEGIN {self._isolation_level or 'IMMEDIATE'}")

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        raw = self.apsw_connection
        if raw.in_transaction:
            with translated:
                raw.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: object) -> None:
        """Commit, or roll back if the block raised; the connection stays open, as with `sqlite3`."""
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def close(self) -> None:
        """Roll back what is not committed and give the file free."""
        with translated:
            self._close()

    # -- statements -------------------------------------------------------------------------------
    def cursor(self) -> Cursor:
        return Cursor(self)

    def execute(self, sql: str, params: Params = ()) -> Cursor:
        return self.cursor().execute(sql, params)

    def executemany(self, sql: str, params: Iterable[Params]) -> Cursor:
        return self.cursor().executemany(sql, params)

    def executescript(self, script: str) -> Cursor:
        return self.cursor().executescript(script)

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        with translated:
            self.apsw_connection.create_scalar_function(name, func, narg, deterministic=deterministic)


def _close(raw: apsw.Connection, release: Release) -> None:
    raw.close()
    release()

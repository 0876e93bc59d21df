"""A PEP 249 cursor: knows before its first step what a statement is, and begins the transaction it needs."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from itertools import islice
from sqlite3 import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from typing import Any, Protocol, Self
from weakref import WeakSet

import apsw

# What apsw raises, as PEP 249 calls it, and values SQLite has no type for.

# The first row that matches; the choice is that of sqlite3.
_MEANINGS: tuple[tuple[tuple[type[Exception], ...], type[Error]], ...] = (
    ((apsw.ConstraintError, apsw.MismatchError), IntegrityError),
    ((apsw.TooBigError,), DataError),
    ((apsw.MisuseError, apsw.RangeError), InterfaceError),
    ((apsw.InternalError, apsw.NotFoundError), InternalError),
    ((apsw.AuthError, apsw.CorruptError, apsw.FormatError, apsw.NotADBError), DatabaseError),
    ((apsw.BindingsError, apsw.ConnectionClosedError, apsw.CursorClosedError), ProgrammingError),
    (
        (apsw.ThreadingViolationError, KeyError, TypeError),
        ProgrammingError,
    ),  # the last two: parameters
    ((apsw.Error,), OperationalError),
)


class _Translated:
    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for types, meaning in _MEANINGS:
            if isinstance(error, types):
                text = (
                    f"no value for parameter {error}" if isinstance(error, KeyError) else str(error)
                )
                raise meaning(text) from error


translated = _Translated()


def adapt(_cursor: apsw.Cursor, _number: int, value: Any) -> str:
    """Dates and times, as `sqlite3` writes them."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    message = f"type {type(value).__qualname__!r} is not supported"
    raise ProgrammingError(message)


# A PEP 249 cursor: knows before its first step what a statement is, and begins the transaction it needs.

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]*")
# SQLite counts them among the writers, and they cannot or need not run inside a transaction.
_OUTSIDE = frozenset({"ATTACH", "BEGIN", "DETACH", "EXPLAIN", "PRAGMA", "VACUUM"})
_COUNTED = frozenset({"DELETE", "INSERT", "REPLACE", "UPDATE", "WITH"})


class CursorOwner(Protocol):
    """What a cursor asks of its connection."""

    reading: WeakSet[Cursor]

    @property
    def apsw_connection(self) -> apsw.Connection: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...


class Cursor:
    def __init__(self, connection: CursorOwner) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._raw = connection.apsw_connection.cursor()
        self._rows: Iterator[Row] = iter(())
        self._sql = ""
        self._word = ""
        self._writes = False

    # -- run --------------------------------------------------------------------------------------
    def execute(self, sql: str, params: Params = ()) -> Self:
        self._run(sql, params)
        return self

    def executemany(self, sql: str, params: Iterable[Params]) -> Self:
        total = 0
        for each in params:
            self._run(sql, each)
            if not self._writes:
                message = "executemany() runs statements that write; this one does not"
                raise ProgrammingError(message)
            total += max(self.rowcount, 0)
        self.rowcount = total
        return self

    def executescript(self, script: str) -> Self:
        """Commit what is open, then run the statements as they stand, as `sqlite3` does."""
        self.connection.commit()
        with translated:
            self.connection.apsw_connection.execute(script).fetchall()
        return self

    def _run(self, sql: str, params: Params) -> None:
        connection = self.connection.apsw_connection
        self._forget()
        self._sql = sql
        self._raw.exec_trace = self._before
        try:
            with translated:
                self._rows = self._raw.execute(sql, params)
        finally:
            self._raw.exec_trace = None
        if not self._writes:
            self.connection.reading.add(self)
            return
        self.read_to_end()  # COMMIT would find a half-read INSERT … RETURNING still in progress
        if self._word in _COUNTED:
            self.rowcount = connection.changes()
        if self._word in ("INSERT", "REPLACE"):
            self.lastrowid = connection.last_insert_rowid()

    def _forget(self) -> None:
        self.connection.reading.discard(self)
        self.description = None
        self.rowcount = -1
        self._rows = iter(())
        self._word = ""
        self._writes = False

    def _before(self, raw: apsw.Cursor, statement: str, _: object) -> bool:
        """Called by apsw between preparing a statement and its first step."""
        if self._word:
            return True  # this is only the comment behind our statement
        rest = self._sql[len(statement) :]
        if _blanks(rest) < len(rest):
            message = "You can only execute one statement at a time."
            raise ProgrammingError(message)
        self._word = _first_word(statement)
        self._writes = not raw.is_readonly and self._word not in _OUTSIDE
        self.description = tuple((name, *[None] * 6) for name, _ in raw.get_description()) or None
        if self._writes or self._word == "SAVEPOINT":
            self.connection.begin()
        return True

    # -- read -------------------------------------------------------------------------------------
    def read_to_end(self) -> None:
        """Keep the rest of the rows in memory, so that the statement is over."""
        with translated:
            self._rows = iter(list(self._rows))
        self.connection.reading.discard(self)

    def __iter__(self) -> Iterator[Row]:
        while (row := self.fetchone()) is not None:
            yield row

    def fetchone(self) -> Row | None:
        with translated:
            return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        with translated:
            return list(islice(self._rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[Row]:
        with translated:
            return list(self._rows)

    def close(self) -> None:
        self._forget()
        self._raw.close(force=True)

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """SQLite has no use for it."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """SQLite has no use for it."""


def _blanks(text: str) -> int:
    """How many characters at the start are white space, comments or semicolons."""
    found = _BLANK.match(text)
    return found.end() if found else 0


def _first_word(sql: str) -> str:
    found = _WORD.match(sql, _blanks(sql))
    return found.group().upper() if found else ""


# A PEP 249 connection: transactions as in `sqlite3`, begun IMMEDIATE.

Release = Callable[[], None]

_LEVELS = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Connection:
    def __init__(self, raw: apsw.Connection, release: Release, isolation_level: str | None) -> None:
        self.reading: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._raw = raw
        self._close = weakref.finalize(self, _close, raw, release)
        self._close.atexit = (
            False  # a forked child that exits must leave its parent's connections alone
        )
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
            self.apsw_connection.create_scalar_function(
                name, func, narg, deterministic=deterministic
            )


def _close(raw: apsw.Connection, release: Release) -> None:
    raw.close()
    release()

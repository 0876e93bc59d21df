"""DB-API 2.0 (PEP 249) module over apsw: your statements and Mulligan's share one SQLite library.

    create_engine("sqlite:///app.db", module=mulligan.dbapi)

A SQLite file must be opened through one SQLite library per process; `storage/sqlite_handle.py`
gives the reason. This module puts SQLAlchemy, or any code written for `sqlite3`, on Mulligan's
library. It behaves like `sqlite3`, with these differences:

- A transaction begins before the first statement that writes, and it begins IMMEDIATE. A deferred
  transaction that has read and then requests the write lock fails at once ("database is locked"),
  whatever the busy timeout, because its snapshot is old. BEGIN IMMEDIATE waits for the lock.
- A transaction begins before every write, including DDL, `WITH … INSERT` and SAVEPOINT, which
  `sqlite3` runs outside of a transaction.
- Reads before the first write are not part of the transaction, as in `sqlite3`. Your own BEGIN
  includes them.

For everything else (collations, aggregates, backup, …) use `connection.apsw_connection`.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from sqlite3 import (  # the same classes, so that `except sqlite3.IntegrityError` works
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - PEP 249's name
)
from typing import Any, Protocol, Self
from weakref import WeakSet

import apsw

from mulligan.storage.sqlite_handle import (
    BUSY_MS,
    ApswHandle,
    bind_file,
    create_private_file,
    unbind_file,
)

__all__ = [
    "PARSE_COLNAMES",
    "PARSE_DECLTYPES",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 1  # threads may share the module, not a connection
paramstyle = "qmark"
sqlite_version = apsw.sqlite_lib_version()
sqlite_version_info = tuple(int(part) for part in sqlite_version.split("."))
PARSE_DECLTYPES = 1
PARSE_COLNAMES = 2

Binary = memoryview
Date = date
Time = time
Timestamp = datetime
DateFromTicks = date.fromtimestamp
TimestampFromTicks = datetime.fromtimestamp


def connect(
    database: str | os.PathLike[str],
    timeout: float = BUSY_MS / 1000,
    detect_types: int = 0,
    isolation_level: str | None = "",
    check_same_thread: bool = True,  # noqa: ARG001, FBT001, FBT002 - as in sqlite3; ignored
    cached_statements: int = 200,  # noqa: ARG001 - as in sqlite3; ignored
    *,
    uri: bool = False,
) -> Connection:
    """Open a file (WAL, synchronous FULL) or ":memory:".

    Refused if this process has already opened the file through another SQLite library.
    """
    if detect_types or uri:
        message = "mulligan.dbapi does not support uri and detect_types. Pass a path."
        raise NotSupportedError(message)
    name = os.fspath(database)
    path = name
    release: Release = _release_nothing
    if name not in ("", ":memory:"):
        path = str(Path(name).absolute())
        release = _bind(Path(path))
    try:
        with translate_errors:
            raw = ApswHandle.open(path).connection
    except BaseException:
        release()
        raise
    raw.set_busy_timeout(round(timeout * 1000))
    raw.convert_binding = adapt_value
    return Connection(raw, release, isolation_level)


def _bind(path: Path) -> Release:
    """Reserve the file for apsw in this process. Return a function that ends the reservation.

    The file is identified by its inode, so it is created first, readable only by its owner.
    """
    try:
        create_private_file(path)
    except OSError as error:
        message = f"unable to open database file {path}: {error.strerror}"
        raise OperationalError(message) from error
    key = bind_file(path, "apsw")
    return lambda: unbind_file(key)


def _release_nothing() -> None: ...


# --- Errors and values ---

# apsw error → PEP 249 error, the same as in sqlite3. The first matching row counts.
_ERROR_CLASSES: tuple[tuple[tuple[type[Exception], ...], type[Error]], ...] = (
    ((apsw.ConstraintError, apsw.MismatchError), IntegrityError),
    ((apsw.TooBigError,), DataError),
    ((apsw.MisuseError, apsw.RangeError), InterfaceError),
    ((apsw.InternalError, apsw.NotFoundError), InternalError),
    ((apsw.AuthError, apsw.CorruptError, apsw.FormatError, apsw.NotADBError), DatabaseError),
    ((apsw.BindingsError, apsw.ConnectionClosedError, apsw.CursorClosedError), ProgrammingError),
    # KeyError and TypeError come from wrong parameters.
    ((apsw.ThreadingViolationError, KeyError, TypeError), ProgrammingError),
    ((apsw.Error,), OperationalError),
)


class _ErrorTranslation:
    """Context manager that raises errors of apsw as PEP 249 errors."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for apsw_classes, error_class in _ERROR_CLASSES:
            if isinstance(error, apsw_classes):
                text = str(error)
                if isinstance(error, KeyError):
                    text = f"no value for parameter {error}"
                raise error_class(text) from error


translate_errors = _ErrorTranslation()


def adapt_value(_cursor: apsw.Cursor, _number: int, value: Any) -> str:
    """Convert dates and times to the text that `sqlite3` writes."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date | time):
        return value.isoformat()
    message = f"type {type(value).__qualname__!r} is not supported"
    raise ProgrammingError(message)


# --- Cursor ---

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_KEYWORD = re.compile(r"[A-Za-z]*")
# Statements that apsw reports as writing, but that begin no transaction.
_NO_TRANSACTION = frozenset({"ATTACH", "BEGIN", "DETACH", "EXPLAIN", "PRAGMA", "VACUUM"})
_WITH_ROWCOUNT = frozenset({"DELETE", "INSERT", "REPLACE", "UPDATE", "WITH"})


class CursorOwner(Protocol):
    """The part of a connection that a cursor uses."""

    reading: WeakSet[Cursor]

    @property
    def apsw_connection(self) -> apsw.Connection: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...


class Cursor:
    """PEP 249 cursor. Inspects each statement before its first step, to begin a transaction."""

    def __init__(self, connection: CursorOwner) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._raw = connection.apsw_connection.cursor()
        self._rows: Iterator[Row] = iter(())
        self._sql = ""
        self._keyword = ""
        self._is_write = False

    # --- Running statements ---
    def execute(self, sql: str, params: Params = ()) -> Self:
        self._run(sql, params)
        return self

    def executemany(self, sql: str, params: Iterable[Params]) -> Self:
        total = 0
        for values in params:
            self._run(sql, values)
            if not self._is_write:
                message = "executemany() accepts only statements that write"
                raise ProgrammingError(message)
            total += max(self.rowcount, 0)
        self.rowcount = total
        return self

    def executescript(self, script: str) -> Self:
        """Commit the open transaction, then run the statements unchanged, as `sqlite3` does."""
        self.connection.commit()
        with translate_errors:
            self.connection.apsw_connection.execute(script).fetchall()
        return self

    def _run(self, sql: str, params: Params) -> None:
        connection = self.connection.apsw_connection
        self._reset()
        self._sql = sql
        self._raw.exec_trace = self._before_first_step
        try:
            with translate_errors:
                self._rows = self._raw.execute(sql, params)
        finally:
            self._raw.exec_trace = None
        if not self._is_write:
            self.connection.reading.add(self)
            return
        self.read_to_end()  # COMMIT fails while an INSERT … RETURNING is half-read
        if self._keyword in _WITH_ROWCOUNT:
            self.rowcount = connection.changes()
        if self._keyword in ("INSERT", "REPLACE"):
            self.lastrowid = connection.last_insert_rowid()

    def _reset(self) -> None:
        self.connection.reading.discard(self)
        self.description = None
        self.rowcount = -1
        self._rows = iter(())
        self._keyword = ""
        self._is_write = False

    def _before_first_step(self, raw: apsw.Cursor, statement: str, _: object) -> bool:
        """Inspect a prepared statement. apsw calls this before the first step of each one."""
        if self._keyword:
            return True  # only a comment after the statement
        rest = self._sql[len(statement) :]
        if _skip_blanks(rest) < len(rest):
            message = "You can only execute one statement at a time."
            raise ProgrammingError(message)
        self._keyword = _first_keyword(statement)
        self._is_write = not raw.is_readonly and self._keyword not in _NO_TRANSACTION
        columns = [(name, None, None, None, None, None, None) for name, _ in raw.get_description()]
        self.description = tuple(columns) or None
        if self._is_write or self._keyword == "SAVEPOINT":
            self.connection.begin()
        return True

    # --- Reading rows ---
    def read_to_end(self) -> None:
        """Load the remaining rows, so that the statement is finished."""
        with translate_errors:
            self._rows = iter(list(self._rows))
        self.connection.reading.discard(self)

    def __iter__(self) -> Iterator[Row]:
        while (row := self.fetchone()) is not None:
            yield row

    def fetchone(self) -> Row | None:
        with translate_errors:
            return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        count = self.arraysize if size is None else size
        with translate_errors:
            return list(islice(self._rows, count))

    def fetchall(self) -> list[Row]:
        with translate_errors:
            return list(self._rows)

    def close(self) -> None:
        self._reset()
        self._raw.close(force=True)

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing; required by PEP 249."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing; required by PEP 249."""


def _skip_blanks(text: str) -> int:
    """Return the length of the white space, comments and semicolons at the start."""
    blanks = _BLANK.match(text)
    assert blanks is not None  # noqa: S101 - the pattern matches the empty string
    return blanks.end()


def _first_keyword(sql: str) -> str:
    keyword = _KEYWORD.match(sql, _skip_blanks(sql))
    assert keyword is not None  # noqa: S101 - the pattern matches the empty string
    return keyword.group().upper()


# --- Connection ---

Release = Callable[[], None]

_LEVELS = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")


class Connection:
    """PEP 249 connection with the transactions of `sqlite3`, begun IMMEDIATE."""

    def __init__(self, raw: apsw.Connection, release: Release, isolation_level: str | None) -> None:
        self.reading: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._raw = raw
        self._close = weakref.finalize(self, _close, raw, release)
        # A forked child that exits must not close the connections of its parent.
        self._close.atexit = False
        self._isolation_level: str | None = ""
        self.isolation_level = isolation_level

    @property
    def apsw_connection(self) -> apsw.Connection:
        if not self._close.alive:
            # SQLAlchemy recognises a lost connection by this text.
            message = "Cannot operate on a closed database."
            raise ProgrammingError(message)
        return self._raw

    # --- Transactions ---
    @property
    def isolation_level(self) -> str | None:
        """How a transaction begins: "" is IMMEDIATE, None requires your own BEGIN."""
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
        """Begin a transaction, unless one is open or `isolation_level` is None."""
        raw = self.apsw_connection
        if self._isolation_level is None or raw.in_transaction:
            return
        for cursor in list(self.reading):
            # SQLite refuses to write on the old snapshot of a half-read SELECT.
            cursor.read_to_end()
        with translate_errors:
            raw.execute(f"BEGIN {self._isolation_level or 'IMMEDIATE'}")

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        raw = self.apsw_connection
        if raw.in_transaction:
            with translate_errors:
                raw.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: object) -> None:
        """Commit, or roll back if the block raised. The connection stays open, as in `sqlite3`."""
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def close(self) -> None:
        """Roll back an open transaction and release the file."""
        with translate_errors:
            self._close()

    # --- Statements ---
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
        with translate_errors:
            self.apsw_connection.create_scalar_function(
                name, func, narg, deterministic=deterministic
            )


def _close(raw: apsw.Connection, release: Release) -> None:
    raw.close()
    release()

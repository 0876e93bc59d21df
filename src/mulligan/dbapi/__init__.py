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
from datetime import date, datetime, time
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

import apsw

from mulligan.dbapi.connection import Connection, Cursor, Release, adapt_value, translate_errors
from mulligan.storage.sqlite_handle import (
    BUSY_MS,
    ApswHandle,
    bind_file,
    create_private_file,
    unbind_file,
)

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

"""A DB-API 2.0 (PEP 249) module over apsw, so that your own statements and Mulligan's share one SQLite library.

    create_engine("sqlite:///app.db", module=mulligan.dbapi)

One SQLite file is opened through one SQLite library per process (`storage/sqlite_handle.py` says why). This module puts
SQLAlchemy, or any code written for `sqlite3`, on Mulligan's. It behaves like `sqlite3` except where that hurts:

- A transaction begins before the first statement that writes, and it begins IMMEDIATE. A deferred one that has read
  and then asks for the write lock is refused at once ("database is locked") however long the busy timeout is, because
  its snapshot is old. Asked for first, the lock is waited for.
- It begins before every write: also DDL, `WITH … INSERT` and SAVEPOINT, which `sqlite3` leaves outside.
- Reads before the first write are not part of the transaction, as in `sqlite3`; a BEGIN of your own includes them.

What is not here (collations, aggregates, backup, …) is on `connection.apsw_connection`.
"""

from __future__ import annotations

import os
from datetime import date, datetime, time
from pathlib import Path
from sqlite3 import (  # the same classes: `except sqlite3.IntegrityError` goes on working
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

from mulligan.dbapi.connection import Connection, Cursor, Release, adapt, translated
from mulligan.storage import sqlite_handle as onelibrary
from mulligan.storage.sqlite_handle import BUSY_MS, ApswHandle

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
    check_same_thread: bool = True,  # noqa: ARG001, FBT001, FBT002 - sqlite3's; apsw ties no connection to a thread
    cached_statements: int = 200,  # noqa: ARG001 - sqlite3's; we cache as many as the store does
    *,
    uri: bool = False,
) -> Connection:
    """Open a file (WAL, synchronous FULL) or ":memory:". Refused if another library holds the file in this process."""
    if detect_types or uri:
        message = "mulligan.dbapi opens plain paths and converts no column types: uri and detect_types are not supported"
        raise NotSupportedError(message)
    name = os.fspath(database)
    in_memory = name in ("", ":memory:")
    path = name if in_memory else str(Path(name).absolute())
    release = _nothing if in_memory else _bind(Path(path))
    try:
        with translated:
            raw = ApswHandle.open(path).connection
    except BaseException:
        release()
        raise
    raw.set_busy_timeout(round(timeout * 1000))
    raw.convert_binding = adapt
    return Connection(raw, release, isolation_level)


def _bind(path: Path) -> Release:
    # A file is known by its inode, so it must be there; it is made private, like the store's own.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"unable to open database file {path}: {error.strerror}"
        raise OperationalError(message) from error
    key = onelibrary.bind_file(path, "apsw")
    return lambda: onelibrary.unbind_file(key)


def _nothing() -> None: ...


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

"""One SQLite connection, through apsw or through the standard library: the same few calls on both."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import apsw

from mulligan.core.errors import TwoLibraries
from mulligan.core.job import Micros

# One SQLite file is opened through one SQLite library per process.

FileKey = tuple[int, int]
STDLIB = "sqlite3"

_listening = False
_lock = threading.Lock()
_bound: dict[FileKey, str] = {}
_opens: Counter[FileKey] = Counter()

ADVICE = (
    "Two SQLite libraries on one file in one process destroy each other's locks and lose rows. Two ways out: "
    "(1) put everything on Mulligan's library: app.transaction() for your own statements, or for SQLAlchemy "
    'create_engine("sqlite+mulligan:///…"); '
    "(2) keep sqlite3 and open Mulligan with sqlite+stdlib:///… in this process (it may enqueue and read, not run "
    "workers)."
)


def bind(path: Path, library: str) -> FileKey:
    """Claim the file for a library, or raise TwoLibraries."""
    key = _key(path)
    with _lock:
        holder = _bound.get(key)
        # Nobody tells one holder's descriptors from another's: where sqlite3 asks, we take them for its own.
        if holder is None and library != STDLIB and held(key):
            holder = "another SQLite library"
        if holder not in (None, library):
            message = (
                f"{path} is already open in this process through {holder}, not {library}. {ADVICE}"
            )
            raise TwoLibraries(message)
        _bound[key] = library
        _opens[key] += 1
        _listen()
    return key


def unbind(key: FileKey) -> None:
    with _lock:
        _opens[key] -= 1
        if _opens[key] <= 0:
            del _opens[key]
            _bound.pop(key, None)


def _listen() -> None:
    """Hear of every sqlite3.connect to come. An audit hook stays for good, so it is set once, at the first need."""
    global _listening  # noqa: PLW0603 - one hook per process
    if not _listening:
        _listening = True
        sys.addaudithook(_refuse_sqlite3)


def _refuse_sqlite3(event: str, args: tuple[Any, ...]) -> None:
    """sqlite3 is about to open a file. Even to read and close it would drop the locks of the other library."""
    if event != "sqlite3.connect":
        return
    path = _path_of(args[0])
    try:
        holder = _bound.get(_key(path))
    except OSError:
        return
    if holder not in (None, STDLIB):
        message = f"{path} is already open in this process through {holder}, not {STDLIB}. {ADVICE}"
        raise TwoLibraries(message)


def _path_of(database: Any) -> Path:
    name = os.fsdecode(database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def _key(path: Path) -> FileKey:
    stat = path.stat()
    return (stat.st_dev, stat.st_ino)


def after_fork() -> None:
    """In the child: nobody is left who could give the lock back."""
    global _lock  # noqa: PLW0603 - it is this module's own
    _lock = threading.Lock()


def held(key: FileKey) -> bool:
    """Does any open descriptor of this process point at the file?"""
    return any(_points_at(int(name), key) for name in os.listdir("/dev/fd"))  # noqa: PTH208 - names, nothing more


def _points_at(descriptor: int, key: FileKey) -> bool:
    try:
        stat = os.fstat(descriptor)
    except OSError:  # others open and close while we look
        return False
    return (stat.st_dev, stat.st_ino) == key


# One SQLite connection, through apsw or through the standard library: the same few calls on both.

BUSY_MS = 10_000
PAUSES = ((100, 0.001), (500, 0.005))  # so often a waiting writer looks after so many seconds,
LAST_PAUSE = 0.025  # and then each time after these
AT_ONCE = 2.0  # seconds
PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA journal_size_limit=67108864",
)

UNAVAILABLE: tuple[type[Exception], ...] = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.ProtocolError,
    apsw.NotADBError,
    apsw.CorruptError,
    sqlite3.OperationalError,
)
CONSTRAINT: tuple[type[Exception], ...] = (apsw.ConstraintError, sqlite3.IntegrityError)


class Handle(ABC):
    library: str
    seen: int | None = None  # the version of the file that its last unit of work left
    offset: Micros = 0  # of the clock, as of then

    @abstractmethod
    def version(self) -> int | None:
        """A number that grows with every commit of anybody's; None: this library does not tell."""

    @abstractmethod
    def command(self, sql: str) -> None:
        """A statement that takes and answers nothing."""

    @abstractmethod
    def execute(
        self, sql: str, params: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def one(self, sql: str, row: tuple[Any, ...]) -> int:
        """A statement that answers nothing, its parameters by place; how many rows of the table were changed."""

    @abstractmethod
    def many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """One statement for each row, its parameters by place; how many rows of the table were changed."""

    @abstractmethod
    def changes(self) -> int:
        """Rows changed by the last statement."""

    @abstractmethod
    def script(self, text: str) -> None:
        """Several statements, inside the transaction that is open."""

    @abstractmethod
    def path(self) -> str: ...

    @abstractmethod
    def in_transaction(self) -> bool: ...

    @abstractmethod
    def wait_at_most(self, ms: int) -> None:
        """For whoever holds the file."""

    @abstractmethod
    def close(self) -> None: ...


class Patience:
    """How a writer waits for another one. SQLite's own way soon sleeps for longer than most transactions take, and a
    file into which two write lies idle meanwhile.
    """

    def __init__(self, ms: int) -> None:
        self._seconds = ms / 1000
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        time.sleep(next((pause for most, pause in PAUSES if tries < most), LAST_PAUSE))
        return True


def _set_up(handle: Handle) -> None:
    """Several who open a new file at once each want to change its mode; SQLite refuses all but one without waiting."""
    deadline = time.monotonic() + AT_ONCE
    for pragma in PRAGMAS:
        while True:
            try:
                handle.execute(pragma)
                break
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


class ApswHandle(Handle):
    library = "apsw"

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    @cached_property
    def _kept(self) -> apsw.Cursor:
        """For what answers nothing: a new cursor takes as long as what is done with it."""
        return self.connection.cursor()

    @classmethod
    def open(cls, path: str) -> ApswHandle:
        connection = apsw.Connection(path, statementcachesize=200)
        connection.set_busy_handler(Patience(BUSY_MS))
        # A plan that looks at what is bound, as at a LIMIT, is made anew for each value: ten times the work of a claim.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        handle = cls(connection)
        try:
            _set_up(handle)
        except apsw.Error:
            connection.close()
            raise
        return handle

    def version(self) -> int | None:
        return self.connection.data_version()

    def command(self, sql: str) -> None:
        self._kept.execute(sql)

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, params).fetchall()

    def one(self, sql: str, row: tuple[Any, ...]) -> int:
        self._kept.execute(sql, row)
        return self.connection.changes()

    def many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        before = self.connection.total_changes()
        self.connection.executemany(sql, rows)
        return self.connection.total_changes() - before

    def changes(self) -> int:
        return self.connection.changes()

    def script(self, text: str) -> None:
        self.connection.execute(text)

    def path(self) -> str:
        return self.connection.filename

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def wait_at_most(self, ms: int) -> None:
        self.connection.set_busy_handler(Patience(ms))

    def close(self) -> None:
        self.connection.close()


class StdlibHandle(Handle):
    """The distribution's SQLite. It never checkpoints: that is left to a library without the WAL-reset race."""

    library = "sqlite3"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._changes = 0

    @classmethod
    def open(cls, path: str) -> StdlibHandle:
        connection = sqlite3.connect(
            path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        handle = cls(connection)
        for pragma in (*PRAGMAS, "PRAGMA wal_autocheckpoint=0"):
            handle.execute(pragma)
        return handle

    def version(self) -> int | None:
        return None

    def command(self, sql: str) -> None:
        self.execute(sql)

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql, params or {})
        rows = cursor.fetchall()
        self._changes = max(cursor.rowcount, 0)
        cursor.close()
        return rows

    def one(self, sql: str, row: tuple[Any, ...]) -> int:
        return self.many(sql, [row])

    def many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        cursor = self.connection.executemany(sql, rows)
        changed = max(cursor.rowcount, 0)
        cursor.close()
        return changed

    def changes(self) -> int:
        return self._changes

    def script(self, text: str) -> None:
        # executescript would commit first; our scripts have no semicolons inside statements.
        for statement in text.split(";\n"):
            self.connection.execute(statement)

    def path(self) -> str:
        found = self.connection.execute("PRAGMA database_list").fetchall()
        return str(found[0][2])

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def wait_at_most(self, ms: int) -> None:
        self.connection.execute(f"PRAGMA busy_timeout={ms}")

    def close(self) -> None:
        self.connection.close()

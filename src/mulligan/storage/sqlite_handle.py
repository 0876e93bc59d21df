"""SQLite connections through apsw or the standard library, the check for two libraries, backups."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import apsw

from mulligan.core.durations import Micros
from mulligan.core.errors import ConnectionRefused, Refused, StoreUnavailable, TwoLibraries
from mulligan.storage.foreign import NO_TRANSACTION, connection_name, unwrap_connection

# --- One SQLite library per process and file ---

FileKey = tuple[int, int]  # device and inode
STDLIB = "sqlite3"

_audit_hook_set = False
_lock = threading.Lock()
_bound: dict[FileKey, str] = {}
_opens: Counter[FileKey] = Counter()

TWO_LIBRARIES_ADVICE = (
    "Two SQLite libraries on one file in one process drop each other's locks and lose rows. "
    "Two ways out: (1) use Mulligan's library for everything: app.transaction() for your own "
    'statements, or for SQLAlchemy create_engine("sqlite+mulligan:///…"); '
    "(2) keep sqlite3 and open Mulligan with sqlite+stdlib:///… in this process (it may enqueue "
    "and read, not run workers)."
)


def create_private_file(path: Path) -> None:
    """Create the file, readable only by its owner, unless it exists.

    The lock keeps `bind_file` in another thread from taking our short-lived descriptor for another
    SQLite library. An existing file is not opened: closing it would drop SQLite's POSIX locks.
    """
    with _lock, contextlib.suppress(FileExistsError):
        target = path.resolve()  # the file may be a link to a file that does not exist yet
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def bind_file(path: Path, library: str) -> FileKey:
    """Bind a file to a library in this process, or raise TwoLibraries."""
    key = _key(path)
    with _lock:
        holder = _bound.get(key)
        # Open descriptors do not tell which library opened them. For sqlite3, assume its own.
        if holder is None and library != STDLIB and is_file_open(key):
            holder = "another SQLite library"
        if holder not in (None, library):
            raise TwoLibraries(_two_libraries(path, holder, library))
        _bound[key] = library
        _opens[key] += 1
        _set_audit_hook()
    return key


def _two_libraries(path: Path, holder: str | None, library: str) -> str:
    return (
        f"{path} is already open in this process through {holder}, not {library}. "
        f"{TWO_LIBRARIES_ADVICE}"
    )


def unbind_file(key: FileKey) -> None:
    """Undo one `bind_file`."""
    with _lock:
        _opens[key] -= 1
        if _opens[key] <= 0:
            del _opens[key]
            _bound.pop(key, None)


def _set_audit_hook() -> None:
    """Watch every later sqlite3.connect. Hooks cannot be removed, so it is set once, if needed."""
    global _audit_hook_set  # noqa: PLW0603 - one hook per process
    if not _audit_hook_set:
        _audit_hook_set = True
        sys.addaudithook(_refuse_sqlite3)


def _refuse_sqlite3(event: str, args: tuple[Any, ...]) -> None:
    """Raise if sqlite3 opens a bound file: closing it would drop the other library's locks."""
    if event != "sqlite3.connect":
        return
    path = _path_of(args[0])
    try:
        holder = _bound.get(_key(path))
    except OSError:
        return
    if holder not in (None, STDLIB):
        raise TwoLibraries(_two_libraries(path, holder, STDLIB))


def _path_of(database: Any) -> Path:
    name = os.fsdecode(database)
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return Path(name)


def _key(path: Path) -> FileKey:
    stat = path.stat()
    return (stat.st_dev, stat.st_ino)


def after_fork() -> None:
    """Replace the lock in a forked child: the thread that may have held it does not exist there."""
    global _lock  # noqa: PLW0603 - state of this module
    _lock = threading.Lock()


def is_file_open(key: FileKey) -> bool:
    """True if a descriptor of this process has the file open."""
    return any(_points_at(int(name), key) for name in os.listdir("/dev/fd"))  # noqa: PTH208 - only names are needed


def _points_at(descriptor: int, key: FileKey) -> bool:
    try:
        stat = os.fstat(descriptor)
    except OSError:  # closed meanwhile by another thread
        return False
    return (stat.st_dev, stat.st_ino) == key


# --- Connections ---

BUSY_MS = 10_000
# How long a waiting writer sleeps between two tries, by the number of tries.
BUSY_PAUSES = ((100, 0.001), (500, 0.005))
LAST_PAUSE = 0.025
SETUP_TIMEOUT = 2.0  # seconds
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
    """Connection with the few calls that the store needs."""

    library: str
    last_version: int | None = None  # version of the file after its last transaction
    clock_offset: Micros = 0  # clock offset at that version

    # Return a number that changes with every commit to the file. None: not supported.
    version: Callable[[], int | None]

    @property
    @abstractmethod
    def command(self) -> Callable[[str], object]:
        """Function that runs a statement without parameters and result."""

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement with named parameters. Return its rows."""

    @abstractmethod
    def execute_one(self, sql: str, row: tuple[Any, ...]) -> int:
        """Run a statement with positional parameters. Return the number of changed rows."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for each row of parameters. Return the number of changed rows."""

    @abstractmethod
    def changes(self) -> int:
        """Return the number of rows that the last statement changed."""

    @abstractmethod
    def script(self, text: str) -> None:
        """Run several statements within the open transaction."""

    @abstractmethod
    def path(self) -> str:
        """Return the path of the database file, or "" if it is temporary."""

    @abstractmethod
    def in_transaction(self) -> bool:
        """True if a transaction is open."""

    @abstractmethod
    def set_busy_timeout(self, ms: int) -> None:
        """Set how long a statement waits for another writer."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class BusyHandler:
    """Wait for another writer in short steps.

    SQLite's own handler soon sleeps longer than most transactions take, and a file with two writers
    would be idle meanwhile.
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
        time.sleep(_busy_pause(tries))
        return True


def _busy_pause(tries: int) -> float:
    for limit, pause in BUSY_PAUSES:
        if tries < limit:
            return pause
    return LAST_PAUSE


def _set_up(handle: Handle) -> None:
    """Set the pragmas. Retry: SQLite does not wait while another process sets WAL mode."""
    deadline = time.monotonic() + SETUP_TIMEOUT
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
    """Connection of Mulligan's own SQLite library."""

    library = "apsw"

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.version = connection.data_version

    @cached_property
    def command(self) -> Callable[[str], object]:
        return self._cursor.execute

    @cached_property
    def _cursor(self) -> apsw.Cursor:
        """Cursor for statements without result. Creating one takes as long as a short statement."""
        return self.connection.cursor()

    @classmethod
    def open(cls, path: str) -> ApswHandle:
        """Open a file."""
        connection = apsw.Connection(path, statementcachesize=200)
        connection.set_busy_handler(BusyHandler(BUSY_MS))
        # Plans must not depend on bound values such as a LIMIT: planning again for each value takes
        # ten times as long as a claim.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        handle = cls(connection)
        try:
            _set_up(handle)
        except apsw.Error:
            connection.close()
            raise
        return handle

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, params).fetchall()

    def execute_one(self, sql: str, row: tuple[Any, ...]) -> int:
        self._cursor.execute(sql, row)
        return self.connection.changes()

    def execute_many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        before = self.connection.total_changes()
        self._cursor.executemany(sql, rows)
        return self.connection.total_changes() - before

    def changes(self) -> int:
        return self.connection.changes()

    def script(self, text: str) -> None:
        self.connection.execute(text)

    def path(self) -> str:
        return self.connection.filename

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def set_busy_timeout(self, ms: int) -> None:
        self.connection.set_busy_handler(BusyHandler(ms))

    def close(self) -> None:
        self.connection.close()


class StdlibHandle(Handle):
    """Connection of the standard library. Never checkpoints: it may have the WAL-reset race."""

    library = "sqlite3"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._changes = 0

    @classmethod
    def open(cls, path: str) -> StdlibHandle:
        """Open a file."""
        connection = sqlite3.connect(
            path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        handle = cls(connection)
        for pragma in (*PRAGMAS, "PRAGMA wal_autocheckpoint=0"):
            handle.execute(pragma)
        return handle

    def version(self) -> int | None:
        return None

    @property
    def command(self) -> Callable[[str], object]:
        return self.execute

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql, params or {})
        rows = cursor.fetchall()
        self._changes = max(cursor.rowcount, 0)
        cursor.close()
        return rows

    def execute_one(self, sql: str, row: tuple[Any, ...]) -> int:
        return self.execute_many(sql, [row])

    def execute_many(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        cursor = self.connection.executemany(sql, rows)
        changed = max(cursor.rowcount, 0)
        cursor.close()
        return changed

    def changes(self) -> int:
        return self._changes

    def script(self, text: str) -> None:
        # executescript would commit first. Our scripts have no semicolons inside statements.
        for statement in text.split(";\n"):
            self.connection.execute(statement)

    def path(self) -> str:
        found = self.connection.execute("PRAGMA database_list").fetchall()
        return str(found[0][2])

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def set_busy_timeout(self, ms: int) -> None:
        self.connection.execute(f"PRAGMA busy_timeout={ms}")

    def close(self) -> None:
        self.connection.close()


# --- Connections of callers ---

SQLITE_TAKES = (
    "connection= got {name}. Two ways out: (1) pass what a SQLite store accepts: "
    "app.transaction(), a mulligan.dbapi connection, or SQLAlchemy over sqlite+mulligan:///… "
    "(with sqlite+stdlib:///…: a sqlite3 connection, or SQLAlchemy or Django over it); "
    "(2) leave connection= out and enqueue once your transaction is committed."
)


IN_TESTS = (
    " In a test with the fixture `mulligan`: name your PostgreSQL in MULLIGAN_TEST_URL, or its "
    "database is a new SQLite file."
)


def open_sqlite_handle(connection: Any) -> Handle:
    """Wrap a caller's SQLite connection, or raise ConnectionRefused."""
    raw = unwrap_connection(connection)
    if hasattr(raw, "apsw_connection"):  # a connection of mulligan.dbapi
        return _JoinedApsw(raw.apsw_connection, raw.begin)
    if isinstance(raw, apsw.Connection):
        return _JoinedApsw(raw, _no_begin)
    if isinstance(raw, sqlite3.Connection):
        return _JoinedStdlib(raw)
    name = connection_name(raw)
    advice = IN_TESTS if name.startswith(("psycopg.", "asyncpg.")) else ""
    raise ConnectionRefused(SQLITE_TAKES.format(name=name) + advice)


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

    @contextlib.contextmanager
    def _tuple_rows(self) -> Iterator[None]:
        """Return rows as tuples, whatever row factory the caller has set."""
        factory, self.connection.row_factory = self.connection.row_factory, None
        try:
            yield
        finally:
            self.connection.row_factory = factory


# --- Backup of a live file ---

PAGES_PER_STEP = 2000  # pages copied between two calls of `progress`
Progress = Callable[[int, int], None]  # pages done, pages in total


def copy_database(source: Path, target: Path, progress: Progress) -> None:
    """Copy a database while others write to it. The copy is complete and checked, or absent."""
    part = target.with_name(f".{target.name}.part")
    _create_part(target, part)
    try:
        _copy_pages(source, part, progress)
        _check_integrity(part)
        _sync(part)
        _link(part, target)
        _sync(target.parent)
    except FileExistsError:
        raise Refused(_already_exists(target)) from None
    except UNAVAILABLE as error:
        message = f"cannot copy {source} to {target}: {type(error).__name__}: {error}"
        raise StoreUnavailable(message) from error
    finally:
        for file in (part, Path(f"{part}-journal"), Path(f"{part}-wal"), Path(f"{part}-shm")):
            file.unlink(missing_ok=True)


def _link(part: Path, target: Path) -> None:
    """Give the copy its name, but never replace a file.

    A link cannot replace a file that was created meanwhile; a rename could. Some file systems have
    no links.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        part.replace(target)


def _create_part(target: Path, part: Path) -> None:
    """Create the file to copy into, readable by its owner only: it will contain payloads."""
    if target.exists():
        raise Refused(_already_exists(target))
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        message = (
            f"{part} exists: another backup is writing it, or one was killed. "
            "If no backup is running, remove the file."
        )
        raise Refused(message) from None
    except OSError as error:
        message = f"cannot write {part}: {error.strerror}"
        raise Refused(message) from error


def _already_exists(target: Path) -> str:
    return f"{target} already exists. A backup replaces no file; choose another name."


def _copy_pages(source: Path, part: Path, progress: Progress) -> None:
    handle = ApswHandle.open(str(source))
    copy = apsw.Connection(str(part))
    try:
        # An open read transaction fixes the snapshot. Without it a write would restart the copy.
        handle.execute("BEGIN")
        handle.execute("SELECT count(*) FROM sqlite_master")
        with copy.backup("main", handle.connection, "main") as backup:
            while not backup.done:
                backup.step(PAGES_PER_STEP)
                progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        copy.close()
        handle.close()


def _check_integrity(part: Path) -> None:
    connection = apsw.Connection(str(part))
    try:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    if found != [("ok",)]:
        message = f"the copy is damaged, so the database may be damaged too: {found[0][0]}"
        raise StoreUnavailable(message)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

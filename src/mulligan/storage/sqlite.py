"""SQLite store: connections, transactions, schema and wake-ups.

Every write transaction begins IMMEDIATE: a deferred one that starts to write later fails at once
with "database is locked", whatever the busy timeout is.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

from mulligan.core.durations import Micros
from mulligan.core.errors import ConnectionRefused, StoreUnavailable, TwoLibraries
from mulligan.core.format import format_size
from mulligan.storage import migrations
from mulligan.storage import sqlite_handle as libraries
from mulligan.storage.base import (
    HintListener,
    RowTransaction,
    StatementConditions,
    Store,
    replace_unstorable,
)
from mulligan.storage.sqlite_handle import (
    BUSY_MS,
    CONSTRAINT,
    UNAVAILABLE,
    ApswHandle,
    Handle,
    StdlibHandle,
    create_private_file,
    open_sqlite_handle,
)
from mulligan.storage.statements import (
    SQLITE_PREFIX,
    SqlDialect,
    load_positional,
    load_statement,
)

PREFIX = SQLITE_PREFIX
CLOCK_OFFSET_QUERY = f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'"


class SqliteTransaction(RowTransaction):
    """Transaction on one connection. SQLite has one writer, so nothing is ever locked by others."""

    dialect = SqlDialect.SQLITE
    unique_violations = CONSTRAINT

    def __init__(self, handle: Handle, clock_offset: Micros | None = None) -> None:
        self._handle = handle
        offset = read_clock_offset(handle) if clock_offset is None else clock_offset
        self._now = time.time_ns() // 1000 + offset

    def now(self) -> Micros:
        return self._now

    def rows(
        self, statement: str, _row_count: int | None = None, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        return self._run(statement, {"now": self._now} | params)

    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {"now": self._now, **conditions.params, **params}
        return self._run(statement, values, conditions.text(self.dialect))

    def run_set(
        self,
        statement: str,
        rows: Sequence[Any],
        _optional: Sequence[frozenset[str]] = (),
        /,
        **params: Any,
    ) -> list[tuple[Any, ...]]:
        return [found for row in rows for found in self.rows(statement, **row._asdict(), **params)]

    def _run(
        self, statement: str, params: dict[str, Any], matching: str = "1 = 1"
    ) -> list[tuple[Any, ...]]:
        text = load_statement(statement, "sqlite", PREFIX, matching=matching)
        try:
            return self._handle.execute(text, params)
        except UnicodeEncodeError:
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            return self._handle.execute(text, storable)

    def run_many(self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]) -> int:
        text, select_params = load_positional(statement, PREFIX, fields)
        values = [*map(select_params, rows)]
        try:
            if len(values) <= 1:
                return self._handle.execute_one(text, values[0]) if values else 0
            with self.savepoint():
                return self._handle.execute_many(text, values)
        except UnicodeEncodeError:
            storable = [tuple(map(replace_unstorable, row)) for row in values]
            return self._handle.execute_many(text, storable)

    def run_each(
        self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]
    ) -> Sequence[int]:
        """Try all rows at once first: usually each of them changes something."""
        changed: Sequence[int] = range(len(rows))
        if len(rows) == 1:
            return changed[: self.run_many(statement, fields, rows)]
        self.run_command("SAVEPOINT mulligan_each")
        if self.run_many(statement, fields, rows) < len(rows):
            self.run_command("ROLLBACK TO SAVEPOINT mulligan_each")
            changed = [
                place for place in changed if self.run_many(statement, fields, [rows[place]])
            ]
        self.run_command("RELEASE SAVEPOINT mulligan_each")
        return changed

    def run_command(self, text: str) -> None:
        self._handle.execute(text)

    def array_param(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def check_integrity(self) -> list[str]:
        found = [str(row[0]) for row in self._handle.execute("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found


def read_clock_offset(handle: Handle) -> Micros:
    """Read by how much tests have moved the clock."""
    found = handle.execute(CLOCK_OFFSET_QUERY)
    return int(found[0][0]) if found else 0


# --- File watch: inotify on Linux, short sleeps elsewhere ---

_MODIFY = 0x2
_CREATE = 0x100
_NONBLOCK = os.O_NONBLOCK
_POLL_RESOLUTION = 0.001  # seconds
_SLEEP_WITHOUT_INOTIFY = 0.05  # seconds
_TIMERSLACK = 29  # PR_SET_TIMERSLACK
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class WatchEvent(Enum):
    """Why `FileWatch.wait` has returned."""

    CHANGED = auto()
    WOKEN = auto()
    NOTHING = auto()


class FileWatch:
    """Wait for changes of a file, or of its folder while the file does not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _open_inotify(path) if sys.platform == "linux" else -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def wait(self, seconds: float, wake: int = -1) -> WatchEvent:
        """Wait until the file changes or `wake` is readable. Without inotify, return soon."""
        woken = False
        if seconds < _POLL_RESOLUTION:
            time.sleep(seconds)
        else:
            woken = self._poll(seconds, wake)
        if self._drain():
            return WatchEvent.CHANGED
        return WatchEvent.WOKEN if woken else WatchEvent.NOTHING

    def _poll(self, seconds: float, wake: int) -> bool:
        """Wait for a descriptor. True if `wake` is readable."""
        poll = select.poll()  # select() refuses descriptors beyond 1024
        for fd in (wake, self._fd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        most = seconds if self._fd >= 0 else min(seconds, _SLEEP_WITHOUT_INOTIFY)
        return any(fd == wake for fd, _ in poll.poll(most * 1000))

    def _drain(self) -> bool:
        """Read all pending events. True if there were any."""
        touched = False
        if self._fd < 0:
            return touched
        try:
            while os.read(self._fd, 65536):
                touched = True
        except BlockingIOError:
            return touched
        return touched


def _open_inotify(path: Path) -> int:
    """Open an inotify descriptor for the file or its folder. -1: the kernel refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_NONBLOCK | _CLOEXEC)
    if fd < 0:
        return -1
    target = path if path.exists() else path.parent
    if libc.inotify_add_watch(fd, os.fsencode(target), _MODIFY | _CREATE) < 0:
        os.close(fd)
        return -1
    # For this thread, in nanoseconds. Otherwise each short sleep is 0.05 ms longer.
    libc.prctl(_TIMERSLACK, 1, 0, 0, 0)
    return fd


# --- Store ---

WATCH_INTERVAL = 0.5
# The file changes before a commit is visible (write, fsync, shared index), so look again a little
# later. After a rest look more often: a worker may be waiting and there is no other work.
RECHECK_PAUSES = (0.0002, 0.0002, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
REST_AFTER = 0.01
RECHECK_PAUSES_AFTER_REST = (*(0.0001,) * 8, *RECHECK_PAUSES[4:])
WAL_LIMIT = 64 * 1024 * 1024
CHECKPOINT_WAIT_MS = 250  # how long reclaiming space may delay writers
FORKED_ERROR = (
    "this process was forked while its parent had {file} open in another thread or library, and "
    "SQLite's locks do not survive a fork. Two ways out: (1) start the process without fork: "
    "subprocess, or multiprocessing's spawn; (2) fork first, open the file afterwards."
)


T = TypeVar("T")


class SqliteStore(Store):
    """Store in a SQLite file."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stdlib = url.startswith("sqlite+stdlib:")
        self.file = Path(url.split("///", 1)[1] or "mulligan.db").absolute()
        self.created = not self.file.exists()
        self._create_private()
        self._library = "sqlite3" if self._stdlib else "apsw"
        self._key = libraries.bind_file(self.file, self._library)
        self._idle: list[Handle] = []
        self._lock = threading.Lock()
        self._dedicated: SqliteStore | None = None
        self._closed = False
        self._inherited = False  # forked while the parent had the file open
        _stores.add(self)

    def _create_private(self) -> None:
        """Create the file, readable by its owner only."""
        if not self.file.parent.is_dir():
            message = (
                f"the directory of {self.file} does not exist. "
                f"Create it: mkdir -p {self.file.parent}"
            )
            raise StoreUnavailable(message)
        # Do not open an existing file: closing the descriptor would drop all locks of this process.
        if self.file.exists():
            return
        try:
            create_private_file(self.file)
        except OSError as error:
            message = f"cannot open {self.file}: {error.strerror}"
            raise StoreUnavailable(message) from error

    # --- Connections ---
    def _checkout(self) -> Handle:
        """Take a connection from the pool, or open one."""
        if self._inherited:
            raise StoreUnavailable(FORKED_ERROR.format(file=self.file))
        with self._lock:
            if self._idle:
                return self._idle.pop()
        library = StdlibHandle if self._stdlib else ApswHandle
        try:
            return library.open(str(self.file))
        except UNAVAILABLE as error:
            raise unavailable(self.file, error) from error

    def return_handle(self, handle: Handle) -> None:
        """Return a connection to the pool."""
        with self._lock:
            if not self._closed:
                self._idle.append(handle)
                return
        handle.close()

    def before_fork(self) -> None:
        """Close idle connections before a fork.

        SQLite's table of locks is copied to the child, the locks are not. A child that trusts the
        table would write to a log that others may delete. A file without connections has no entry.
        """
        with self._lock:
            idle, self._idle = self._idle, []
        for handle in idle:
            handle.close()

    def after_fork(self) -> None:
        """Forget the parent's connections in a child, without closing them."""
        _inherited_handles.extend(self._idle)
        self._idle = []
        self._lock = threading.Lock()
        self._inherited = not self._closed and libraries.is_file_open(self._key)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Handle]:
        """Borrow a connection for one transaction. Roll it back if the block fails."""
        with self.borrowed_handle() as handle:
            handle.command(begin)
            yield handle
            handle.command("COMMIT")

    @contextmanager
    def borrowed_handle(self) -> Iterator[Handle]:
        """Borrow a connection for a block. Roll back what the block leaves open if it fails."""
        handle = self._checkout()
        try:
            yield handle
        except BaseException as error:
            self._discard_failed(handle, error)
            raise
        else:
            self.return_handle(handle)

    def _discard_failed(self, handle: Handle, error: BaseException) -> None:
        """Return a connection after a failure. Raise StoreUnavailable if the file is unusable."""
        self._abandon(handle)
        if isinstance(error, UNAVAILABLE):
            raise unavailable(self.file, error) from error

    def _abandon(self, handle: Handle) -> None:
        try:
            if handle.in_transaction():
                handle.execute("ROLLBACK")
            self.return_handle(handle)
        except Exception:  # noqa: BLE001 - the connection is not used again
            handle.close()

    @contextmanager
    def begin(self) -> Iterator[SqliteTransaction]:
        """Hold the write lock during the block.

        If no other connection has committed since the last transaction of this one, the clock
        offset is unchanged and need not be read.
        """
        handle = self._checkout()
        try:
            handle.command("BEGIN IMMEDIATE")
            version = handle.version()
            if version is None or version != handle.last_version:
                handle.last_version = version
                handle.clock_offset = read_clock_offset(handle)
            yield SqliteTransaction(handle, handle.clock_offset)
            handle.command("COMMIT")
            handle.last_version = handle.version()
        except BaseException as error:
            self._discard_failed(handle, error)
            raise
        self.return_handle(handle)

    single_statement = begin

    @contextmanager
    def read(self) -> Iterator[SqliteTransaction]:
        with self._transaction("BEGIN") as handle:
            yield SqliteTransaction(handle)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            yield handle.connection  # type: ignore[attr-defined]

    def join(self, connection: Any) -> SqliteTransaction:
        handle = open_sqlite_handle(connection)
        if handle.library != self._library:
            message = (
                f"connection= is a {handle.library} connection, this store uses {self._library}. "
                f"{libraries.TWO_LIBRARIES_ADVICE}"
            )
            raise TwoLibraries(message)
        path = handle.path()
        if not path or not Path(path).samefile(self.file):
            message = (
                f"connection= is open on {path or 'a temporary database'}, not on {self.file}. Two "
                "ways out: (1) open both on the same file; (2) leave connection= out, and the job "
                "is committed on its own."
            )
            raise ConnectionRefused(message)
        return SqliteTransaction(handle)

    # --- Schema ---
    def known_steps(self) -> list[migrations.Step]:
        return migrations.load_steps("sqlite", PREFIX)

    def applied_steps(self) -> list[migrations.AppliedStep]:
        with self._transaction("BEGIN") as handle:
            if not handle.execute(
                "SELECT 1 FROM sqlite_master WHERE name = :n", {"n": f"{PREFIX}schema"}
            ):
                return []
            rows = handle.execute(f"SELECT {migrations.COLUMNS} FROM {PREFIX}schema ORDER BY 1")
        return [migrations.AppliedStep(*row) for row in rows]

    def apply_steps(self, steps: Sequence[migrations.Step]) -> list[str]:
        applied: list[str] = []
        for group in migrations.group_steps(steps):
            with self._transaction("BEGIN EXCLUSIVE") as handle:
                handle.execute(
                    f"CREATE TABLE IF NOT EXISTS {PREFIX}schema (number INTEGER PRIMARY KEY, "
                    "name TEXT NOT NULL, checksum TEXT NOT NULL, "
                    "compatible_from INTEGER NOT NULL) STRICT"
                )
                names = [step.row.name for step in group if self._apply_step(handle, step)]
            applied += names
        return applied

    def _apply_step(self, handle: Handle, step: migrations.Step) -> bool:
        row = step.row._asdict()
        if handle.execute(
            f"SELECT 1 FROM {PREFIX}schema WHERE number = :n", {"n": step.row.number}
        ):
            return False
        handle.script(step.text)
        handle.execute(
            f"INSERT INTO {PREFIX}schema ({migrations.COLUMNS}) "
            "VALUES (:number, :name, :checksum, :compatible_from)",
            row,
        )
        return True

    # --- Wake-ups and upkeep ---
    def open_listener(self) -> HintListener:
        return FileListener(self.dedicated())

    def dedicated(self) -> SqliteStore:
        """Return a store with its own connections.

        `PRAGMA data_version` ignores commits of its connection. On a connection of its own, the
        thread that listens is not hinted by what it writes.
        """
        with self._lock:
            if self._dedicated is None:
                self._dedicated = SqliteStore(self.url)
            return self._dedicated

    def reclaim_space(self) -> None:
        """Truncate a long WAL that a long read left behind."""
        wal = Path(f"{self.file}-wal")
        if self._stdlib or not wal.exists() or wal.stat().st_size <= WAL_LIMIT:
            return
        with self.borrowed_handle() as handle:
            _, frames, copied = handle.execute("PRAGMA wal_checkpoint(PASSIVE)")[0]
            # The reader is still active. Waiting for it would make all writers wait.
            if copied < frames:
                return
            handle.set_busy_timeout(CHECKPOINT_WAIT_MS)
            try:
                handle.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                handle.set_busy_timeout(BUSY_MS)

    def shift_clock(self, by: Micros) -> None:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            handle.execute(
                f"INSERT INTO {PREFIX}meta VALUES ('clock_offset', :by) "
                "ON CONFLICT (key) DO UPDATE SET "
                "value = CAST(CAST(value AS INTEGER) + CAST(:by AS INTEGER) AS TEXT)",
                {"by": str(by)},
            )

    def erase(self) -> None:
        """Do nothing: the file belongs to its user."""

    def facts(self) -> dict[str, str]:
        with self._transaction("BEGIN") as handle:
            version = handle.execute("SELECT sqlite_version()")[0][0]
            sync = handle.execute("PRAGMA synchronous")[0][0]
            mode = handle.execute("PRAGMA journal_mode")[0][0]
        return {
            "store": "sqlite",
            "file": str(self.file),
            "library": f"{self._library}, SQLite {version}",
            "synchronous": {2: "FULL", 3: "EXTRA"}.get(sync, f"{sync} (weaker than FULL)"),
            "journal_mode": str(mode),
            "size": format_size(self.file.stat().st_size),
        }

    @property
    def lock_directory(self) -> str:
        return f"{self.file}-life"

    @property
    def identity(self) -> str:
        return hashlib.sha256(str(self.file.resolve()).encode()).hexdigest()[:12]

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
            dedicated, self._dedicated = self._dedicated, None
        if dedicated is not None:
            dedicated.close()
        for handle in idle:
            handle.close()
        libraries.unbind_file(self._key)


class FileListener(HintListener):
    """Notices commits of other connections by `PRAGMA data_version`."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._watch = FileWatch(Path(f"{store.file}-wal"))
        self._known_version = self._read_version()
        self._last_change = 0.0
        self._pauses: Iterator[float] = iter(())

    def wait(self, seconds: float, wake: int = -1) -> bool:
        deadline = time.monotonic() + seconds
        while not self._has_changed():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            event = self._watch.wait(min(left, next(self._pauses, WATCH_INTERVAL)), wake)
            if event is WatchEvent.WOKEN:
                return False
            # A change restarts the pauses, even within a series: it may be another commit.
            if event is WatchEvent.CHANGED:
                rested = time.monotonic() - self._last_change > REST_AFTER
                self._pauses = iter(RECHECK_PAUSES_AFTER_REST if rested else RECHECK_PAUSES)
        self._last_change = time.monotonic()
        return True

    def _has_changed(self) -> bool:
        version = self._read_version()
        changed = version is not None and version != self._known_version
        self._known_version = version
        return changed

    def _read_version(self) -> int | None:
        """Return the number of the last commit of another connection. None: unavailable."""
        try:
            with self._store.borrowed_handle() as handle:
                return int(handle.execute("PRAGMA data_version")[0][0])
        except StoreUnavailable:
            return None

    def close(self) -> None:
        self._watch.close()


def unavailable(file: Path, error: BaseException) -> StoreUnavailable:
    """Return the error for a file that SQLite cannot use now."""
    return StoreUnavailable(f"SQLite cannot use {file}: {type(error).__name__}: {error}")


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_inherited_handles: list[Handle] = []  # of the parent; kept so that they are never closed


def _before_fork() -> None:
    for store in list(_stores):
        store.before_fork()


def _after_fork() -> None:
    libraries.after_fork()
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

"""SQLite: connections, transactions, wake-ups.

One writer at a time, so every write begins IMMEDIATE: a deferred transaction that upgrades fails at once
("database is locked") whatever the busy timeout says.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mulligan.core.errors import ConnectionRefused, SchemaError, StoreUnavailable, TwoLibraries
from mulligan.core.job import Micros
from mulligan.storage import maintenance as migrations
from mulligan.storage import sqlite_handle as onelibrary
from mulligan.storage.base import QUIET, Store
from mulligan.storage.foreign import sqlite_handle_of
from mulligan.storage.sqlite_handle import BUSY_MS, UNAVAILABLE, ApswHandle, Handle, StdlibHandle
from mulligan.storage.sqlite_transaction import PREFIX, SqliteTransaction

# Wake up when a file changes: inotify on Linux, a short sleep elsewhere.

_MODIFY = 0x2
_CREATE = 0x100
_NONBLOCK = os.O_NONBLOCK
_TICK = 0.001  # seconds: a poll is not finer
_TIMERSLACK = 29  # PR_SET_TIMERSLACK
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class FileWatch:
    """`wait(seconds)` returns early when the file (or, before it exists, its folder) changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _open_inotify(path) if sys.platform == "linux" else -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def wait(self, seconds: float) -> bool:
        """True: the file was touched. Where nobody can tell, look often."""
        if self._fd < 0:
            time.sleep(min(seconds, 0.05))
            return False
        if seconds < _TICK:
            time.sleep(seconds)
        else:
            poll = select.poll()  # select() refuses descriptors beyond 1024
            poll.register(self._fd, select.POLLIN)
            poll.poll(seconds * 1000)
        return self._drain()

    def _drain(self) -> bool:
        """Was there anything?"""
        touched = False
        try:
            while os.read(self._fd, 65536):
                touched = True
        except BlockingIOError:
            return touched
        return touched


def _open_inotify(path: Path) -> int:
    """Watch the file, or its folder while it does not exist; -1 when the kernel gives us no watch."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_NONBLOCK | _CLOEXEC)
    if fd < 0:
        return -1
    target = path if path.exists() else path.parent
    if libc.inotify_add_watch(fd, os.fsencode(target), _MODIFY | _CREATE) < 0:
        os.close(fd)
        return -1
    libc.prctl(
        _TIMERSLACK, 1, 0, 0, 0
    )  # of this thread, in nanoseconds: else each short sleep is 0.05 ms longer
    return fd


# SQLite: connections, transactions, wake-ups.

WATCH_EVERY = 0.5
# The file changes before the commit counts (write, then fsync, then the shared index): look again a little later, and
# more often after a rest, when somebody may wait for it and nobody has anything else to do.
SETTLING = (0.0002, 0.0002, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
RESTED, AFTER_REST = 0.01, (*(0.0001,) * 8, *SETTLING[4:])
WHILE_BUSY = 0.002
MOST_BUSY = 0.1  # turns may follow each other without end, and it may be a wish to cancel
WAL_BOUND = 64 * 1024 * 1024
TIDY_MS = 250  # how long tidying up may keep writers waiting
INHERITED = (
    "this process was forked while its parent had {file} open in another thread or library, and SQLite's locks do not "
    "survive that. Two ways out: (1) start it without fork: subprocess, or multiprocessing's spawn; (2) fork first, "
    "open the file afterwards."
)


T = TypeVar("T")


class SqliteStore(Store):
    def __init__(self, url: str) -> None:
        self.url = url
        self._stdlib = url.startswith("sqlite+stdlib:")
        self.file = Path(url.split("///", 1)[1] or "mulligan.db").absolute()
        self.created = not self.file.exists()
        self._create_private()
        self._library = "sqlite3" if self._stdlib else "apsw"
        self._key = onelibrary.bind(self.file, self._library)
        self._idle: list[Handle] = []
        self._lock = threading.Lock()
        self._at_hand = _WatchingConnection()
        self._closed = False
        self._inherited = False  # forked while the parent had the file open
        _stores.add(self)

    def _create_private(self) -> None:
        if not self.file.parent.is_dir():
            message = f"the directory of {self.file} does not exist; make it first: mkdir -p {self.file.parent}"
            raise StoreUnavailable(message)
        if (
            self.file.exists()
        ):  # and is not touched: closing a descriptor of it would drop every lock we hold on it
            return
        place = self.file.resolve()  # a link to where it shall be is no file yet
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            message = f"cannot open {self.file}: {error.strerror}"
            raise StoreUnavailable(message) from error

    # -- connections ------------------------------------------------------------------------------
    def _checkout(self) -> Handle:
        if self._inherited:
            raise StoreUnavailable(INHERITED.format(file=self.file))
        if (at_hand := self._at_hand.free) is not None:
            self._at_hand.free = None
            return at_hand
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return (
            StdlibHandle.open(str(self.file)) if self._stdlib else ApswHandle.open(str(self.file))
        )

    def keep(self, handle: Handle) -> None:
        if handle is self._at_hand.own:
            self._at_hand.free = handle
            return
        with self._lock:
            if not self._closed:
                self._idle.append(handle)
                return
        handle.close()

    def before_fork(self) -> None:
        """SQLite's table of locks is copied into the child, the locks themselves are not.

        A child that believed the table would write into a log that others may remove. A file without connections
        has no entry there.
        """
        with self._lock:
            idle, self._idle = self._idle, []
        for handle in idle:
            handle.close()

    def after_fork(self) -> None:
        """In the child: never touch the parent's connections, not even to close them."""
        _kept.extend(self._idle)
        self._idle = []
        self._lock = threading.Lock()
        self._inherited = not self._closed and onelibrary.held(self._key)

    def _transaction(self, begin: str) -> AbstractContextManager[Handle]:
        return _Transaction(self, begin, _itself)

    @contextmanager
    def _lent(self) -> Iterator[Handle]:
        """A connection for the length of a block; what it leaves open when it fails is rolled back."""
        handle = self.lend()
        try:
            yield handle
        except BaseException as error:
            self.take_back(handle, error)
            raise
        else:
            self.keep(handle)

    def lend(self) -> Handle:
        try:
            return self._checkout()
        except UNAVAILABLE as error:
            raise unavailable(self.file, error) from error

    def take_back(self, handle: Handle, error: BaseException) -> None:
        """After a failure; one that says the file is out of reach is said in our words."""
        self._abandon(handle)
        if isinstance(error, UNAVAILABLE):
            raise unavailable(self.file, error) from error

    def _abandon(self, handle: Handle) -> None:
        try:
            if handle.in_transaction():
                handle.execute("ROLLBACK")
            self.keep(handle)
        except Exception:  # noqa: BLE001 - whatever it is, this connection is not used again
            handle.close()

    def begin(self) -> AbstractContextManager[SqliteTransaction]:
        return _Transaction(self, "BEGIN IMMEDIATE", SqliteTransaction.alone, alone=True)

    once = begin

    def read(self) -> AbstractContextManager[SqliteTransaction]:
        return _Transaction(self, "BEGIN", SqliteTransaction)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            yield handle.connection  # type: ignore[attr-defined]

    def join(self, connection: Any) -> SqliteTransaction:
        handle = sqlite_handle_of(connection)
        if handle.library != self._library:
            message = f"connection= is a {handle.library} connection, this store uses {self._library}. {onelibrary.ADVICE}"
            raise TwoLibraries(message)
        if not handle.path() or not Path(handle.path()).samefile(self.file):
            message = (
                f"connection= is open on {handle.path() or 'a temporary database'}, not on {self.file}. Two ways out: "
                "(1) open both on the same file; (2) leave connection= out, and the job is committed on its own."
            )
            raise ConnectionRefused(message)
        return SqliteTransaction(handle)

    # -- schema -----------------------------------------------------------------------------------
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        todo = migrations.pending(migrations.steps("sqlite", PREFIX), self._applied())
        return migrations.apply(todo, self._take_steps, dry_run=dry_run)

    def empty(self) -> bool:
        return not self._applied()

    def check_schema(self) -> None:
        todo = migrations.pending(migrations.steps("sqlite", PREFIX), self._applied())
        if todo:
            message = f"the schema of {self.file} is not up to date; run: mulligan migrate"
            raise SchemaError(message)

    def _take_steps(self, steps: list[migrations.Step]) -> list[str]:
        with self._transaction("BEGIN EXCLUSIVE") as handle:
            handle.execute(
                f"CREATE TABLE IF NOT EXISTS {PREFIX}schema "
                "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
            )
            return [step.name for step in steps if self._take_step(handle, step)]

    def _take_step(self, handle: Handle, step: migrations.Step) -> bool:
        if handle.execute(f"SELECT 1 FROM {PREFIX}schema WHERE number = :n", {"n": step.number}):
            return False
        handle.script(step.text)
        handle.execute(
            f"INSERT INTO {PREFIX}schema VALUES (:number, :name, :checksum)", step._asdict()
        )
        return True

    def _applied(self) -> list[tuple[int, str, str]]:
        with self._transaction("BEGIN") as handle:
            if not handle.execute(
                "SELECT 1 FROM sqlite_master WHERE name = :n", {"n": f"{PREFIX}schema"}
            ):
                return []
            return [
                (row[0], row[1], row[2])
                for row in handle.execute(f"SELECT * FROM {PREFIX}schema ORDER BY 1")
            ]

    # -- hints and upkeep ---------------------------------------------------------------------------
    def watch(
        self,
        hint: Callable[[], None],
        stop: threading.Event,
        busy: Callable[[], bool] = lambda: False,
        quiet: Callable[[], float] = lambda: QUIET,
    ) -> None:
        handle = self._checkout()
        try:
            with FileWatch(Path(f"{self.file}-wal")) as watch:
                seen, heard, pause = handle.execute("PRAGMA data_version"), 0.0, QUIET
                pauses: Iterator[float] = iter(())
                while not stop.is_set():
                    # Also in the middle of them: this may be somebody else.
                    if watch.wait(next(pauses, min(pause, WATCH_EVERY))):
                        pauses = iter(AFTER_REST if time.monotonic() - heard > RESTED else SETTLING)
                    until = time.monotonic() + MOST_BUSY
                    while busy() and time.monotonic() < until and not stop.is_set():
                        time.sleep(WHILE_BUSY)  # whoever writes would be kept from it by every look
                    version = handle.execute("PRAGMA data_version")
                    if version != seen:
                        seen = version
                        self._over(handle, hint)
                        heard = time.monotonic()
                    else:
                        pause = self._over(handle, quiet)
        finally:
            handle.close()

    def _over(self, handle: Handle, call: Callable[[], T]) -> T:
        """What the one who is called asks and writes next goes over this connection, which does not count what it has
        written itself as a change: else a claim would be a hint to look what there is to claim.
        """
        self._at_hand.own = self._at_hand.free = handle
        try:
            return call()
        finally:
            self._at_hand.own = self._at_hand.free = None

    def tidy(self) -> None:
        """A reader that stayed long leaves a long WAL behind; give the room back once it has gone."""
        wal = Path(f"{self.file}-wal")
        if self._stdlib or not wal.exists() or wal.stat().st_size <= WAL_BOUND:
            return
        with self._lent() as handle:
            _, frames, done = handle.execute("PRAGMA wal_checkpoint(PASSIVE)")[0]
            if (
                done < frames
            ):  # it is still there; to wait for it would keep every writer waiting too
                return
            handle.wait_at_most(TIDY_MS)
            try:
                handle.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                handle.wait_at_most(BUSY_MS)

    def shift_clock(self, by: Micros) -> None:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            handle.execute(
                f"INSERT INTO {PREFIX}meta VALUES ('clock_offset', :by) ON CONFLICT (key) DO UPDATE SET "
                "value = CAST(CAST(value AS INTEGER) + CAST(:by AS INTEGER) AS TEXT)",
                {"by": str(by)},
            )

    def erase(self) -> None:
        """The file is not ours to remove."""

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
            "size": f"{self.file.stat().st_size} bytes",
        }

    @property
    def place(self) -> str:
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
        for handle in idle:
            handle.close()
        onelibrary.unbind(self._key)


class _WatchingConnection(threading.local):
    """The connection of a thread that watches, while it hints."""

    own: Handle | None = None
    free: Handle | None = None  # the same, unless it is lent


class _Transaction(AbstractContextManager[T]):
    """A block that is one; what is made of its connection is handed in. Not a generator: every enqueue passes here."""

    def __init__(
        self, store: SqliteStore, begin: str, make: Callable[[Handle], T], *, alone: bool = False
    ) -> None:
        """`alone`: a unit of work that knew the clock once it had the lock, and in which nobody can have moved it."""
        self._store = store
        self._begin = begin
        self._make = make
        self._alone = alone

    def __enter__(self) -> T:
        self._handle = handle = self._store.lend()
        try:
            handle.command(self._begin)
            return self._make(handle)
        except BaseException as error:
            self._store.take_back(handle, error)
            raise

    def __exit__(self, cls: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._store.take_back(self._handle, error)
            return
        try:
            self._handle.command("COMMIT")
        except BaseException as failed:
            self._store.take_back(self._handle, failed)
            raise
        if self._alone:
            self._handle.seen = self._handle.version()
        self._store.keep(self._handle)


def _itself(handle: Handle) -> Handle:
    return handle


def unavailable(file: Path, error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"SQLite cannot use {file}: {type(error).__name__}: {error}")


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_kept: list[Handle] = []


def _before_fork() -> None:
    for store in list(_stores):
        store.before_fork()


def _after_fork() -> None:
    onelibrary.after_fork()
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

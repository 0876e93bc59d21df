"""SQLite: connections, transactions, wake-ups, and the verbs that differ from PostgreSQL's.

One writer at a time, so every write begins IMMEDIATE: a deferred transaction that upgrades fails at once
("database is locked") whatever the busy timeout says.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulligan.errors import ConnectionRefused, SchemaError, StoreUnavailable, TwoLibraries
from mulligan.event import Event, EventType
from mulligan.job import Lease, Micros, NewJob, WorkerRow
from mulligan.store import migrate as migrations, onelibrary
from mulligan.store.base import Inserted, Move, Settlement, Store
from mulligan.store.foreign import sqlite_handle_of
from mulligan.store.handle import CONSTRAINT, UNAVAILABLE, ApswHandle, Handle, StdlibHandle
from mulligan.store.host import boot_id
from mulligan.store.rows import event_of, insert_row
from mulligan.store.sql import load
from mulligan.store.unit import SqlUnit
from mulligan.store.watch import FileWatch
from mulligan.store.words import taken

PREFIX = "mulligan_"
WATCH_EVERY = 0.5
# The file changes before the commit counts (write, then fsync, then the shared index): look again a little later.
SETTLING = (0.0, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
WAL_BOUND = 64 * 1024 * 1024


class SqliteUnit(SqlUnit):
    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._now = time.time_ns() // 1000 + self._offset()

    def _offset(self) -> Micros:
        found = self._handle.execute(f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'")
        return int(found[0][0]) if found else 0

    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]:
        params["now"] = self._now
        return self._handle.execute(load(verb, "sqlite", PREFIX), params)

    def ids(self, ids: Sequence[str]) -> Any:
        return json.dumps(list(ids))

    def now(self) -> Micros:
        return self._now

    def mono(self) -> Micros:
        return time.monotonic_ns() // 1000

    def insert_new(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        fresh: dict[str, Inserted] = {}
        for job in jobs:
            rows = self.rows("insert", **insert_row(job)._asdict(), announce=announce)
            if not rows:
                continue
            fresh[job.id] = Inserted(job.id, fresh=True, run_at=rows[0][1], created_at=self._now)
            if announce:
                self._announce(job.id, job.batch_id, job.owner, job.kind, job.queue, rows[0][1], self._now)
        return fresh

    def _announce(self, *row: Any) -> None:
        job_id, batch_id, owner, kind, queue, run_at, created_at = row
        data = json.dumps({"kind": kind, "queue": queue, "run_at": run_at})
        self._handle.execute(
            load("settle_event", "sqlite", PREFIX),
            {"now": created_at, "event": EventType.JOB_QUEUED, "id": job_id, "batch_id": batch_id, "owner": owner,
             "attempt": None, "token": None, "data": data},
        )  # fmt: skip

    def announce(self, limit: int) -> int:
        silent = self.rows("announce", most=limit)
        for row in silent:
            self._announce(*row)
        return len(silent)

    def candidates(self, lanes: Sequence[tuple[str, int]], limit: int) -> list[tuple[int, Micros, str]]:
        found: list[Any] = []
        for lane, priority in lanes:
            found += self.rows("candidates", lane=lane, priority=priority, most=limit)
        return sorted(found)[:limit]

    def take(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        if ids:
            self.announce(len(ids) * 2)
        leases = [Lease._make(row) for job_id in ids[:limit] for row in self.rows("take", id=job_id, worker=worker)]
        data = json.dumps({"worker": worker})
        for lease in leases:
            self.rows("settle_event", event=EventType.JOB_STARTED, id=lease.id, batch_id=lease.batch_id,
                      owner=lease.owner, attempt=lease.attempt, token=lease.token, data=data)  # fmt: skip
        return leases

    def settle_held(self, settlements: Sequence[Settlement]) -> set[str]:
        return {ending.id for ending in settlements if self._settle_one(ending)}

    def _settle_one(self, ending: Settlement) -> bool:
        params = ending._asdict()
        params["now"] = self._now
        execute = self._handle.execute
        execute(load("settle", "sqlite", PREFIX), params)
        if not self._handle.changes():
            return False
        execute(load("settle_attempt", "sqlite", PREFIX), params)
        execute(load("settle_event", "sqlite", PREFIX), params)
        return True

    def move(self, move: Move) -> bool:
        try:
            return super().move(move)
        except CONSTRAINT as clash:
            raise taken(move.id, str(clash)) from clash

    def expired(self, worker: WorkerRow) -> bool:
        if worker.boot_id == boot_id():
            return self.mono() - worker.renewed_mono > worker.lease
        return self._now - worker.renewed_at > worker.lease

    def events_after(self, cursor: int, limit: int) -> list[Event]:
        # One writer: ids are drawn in commit order.
        return [event_of(row) for row in self.rows("events_between", cursor=cursor, top=2**62, most=limit)]


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
        self._closed = False
        _stores.add(self)

    def _create_private(self) -> None:
        if not self.file.parent.is_dir():
            message = f"the directory of {self.file} does not exist; make it first: mkdir -p {self.file.parent}"
            raise StoreUnavailable(message)
        try:
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            message = f"cannot open {self.file}: {error.strerror}"
            raise StoreUnavailable(message) from error

    # -- connections ------------------------------------------------------------------------------
    def _checkout(self) -> Handle:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return StdlibHandle.open(str(self.file)) if self._stdlib else ApswHandle.open(str(self.file))

    def _checkin(self, handle: Handle) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(handle)
                return
        handle.close()

    def after_fork(self) -> None:
        """In a forked child: never touch the parent's connections, not even to close them."""
        _inherited.extend(self._idle)
        self._idle = []
        self._lock = threading.Lock()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Handle]:
        try:
            handle = self._checkout()
            handle.execute(begin)
        except UNAVAILABLE as error:
            raise unavailable(self.file, error) from error
        try:
            yield handle
            handle.execute("COMMIT")
        except BaseException as error:
            self._abandon(handle)
            if isinstance(error, UNAVAILABLE):
                raise unavailable(self.file, error) from error
            raise
        else:
            self._checkin(handle)

    def _abandon(self, handle: Handle) -> None:
        try:
            if handle.in_transaction():
                handle.execute("ROLLBACK")
            self._checkin(handle)
        except Exception:  # noqa: BLE001 - whatever it is, this connection is not used again
            handle.close()

    @contextmanager
    def begin(self) -> Iterator[SqliteUnit]:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            yield SqliteUnit(handle)

    @contextmanager
    def read(self) -> Iterator[SqliteUnit]:
        with self._transaction("BEGIN") as handle:
            yield SqliteUnit(handle)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            yield handle.connection  # type: ignore[attr-defined]

    def join(self, connection: Any) -> SqliteUnit:
        handle = sqlite_handle_of(connection)
        if handle.library != self._library:
            message = f"connection= is a {handle.library} connection, this store uses {self._library}. {onelibrary.ADVICE}"
            raise TwoLibraries(message)
        if not handle.path() or not Path(handle.path()).samefile(self.file):
            message = f"connection= is open on {handle.path() or 'a temporary database'}, not on {self.file}"
            raise ConnectionRefused(message)
        return SqliteUnit(handle)

    # -- schema -----------------------------------------------------------------------------------
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        todo = migrations.pending(migrations.steps("sqlite", PREFIX), self._applied())
        return migrations.apply(todo, self._take_step, dry_run=dry_run)

    def empty(self) -> bool:
        return not self._applied()

    def check_schema(self) -> None:
        todo = migrations.pending(migrations.steps("sqlite", PREFIX), self._applied())
        if todo:
            message = f"the schema of {self.file} is not up to date; run: mulligan migrate"
            raise SchemaError(message)

    def _take_step(self, step: migrations.Step) -> bool:
        with self._transaction("BEGIN EXCLUSIVE") as handle:
            handle.execute(
                f"CREATE TABLE IF NOT EXISTS {PREFIX}schema "
                "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
            )
            if handle.execute(f"SELECT 1 FROM {PREFIX}schema WHERE number = :n", {"n": step.number}):
                return False
            handle.script(step.text)
            handle.execute(f"INSERT INTO {PREFIX}schema VALUES (:number, :name, :checksum)", step._asdict())
            return True

    def _applied(self) -> list[tuple[int, str, str]]:
        with self._transaction("BEGIN") as handle:
            if not handle.execute("SELECT 1 FROM sqlite_master WHERE name = :n", {"n": f"{PREFIX}schema"}):
                return []
            return [(row[0], row[1], row[2]) for row in handle.execute(f"SELECT * FROM {PREFIX}schema ORDER BY 1")]

    # -- hints and upkeep ---------------------------------------------------------------------------
    def watch(self, hint: Callable[[], None], stop: threading.Event) -> None:
        handle = self._checkout()
        try:
            with FileWatch(Path(f"{self.file}-wal")) as watch:
                seen = handle.execute("PRAGMA data_version")
                while not stop.is_set():
                    touched = watch.wait(WATCH_EVERY)
                    for pause in SETTLING if touched else (0.0,):
                        stop.wait(pause)
                        version = handle.execute("PRAGMA data_version")
                        if version != seen:
                            seen = version
                            hint()
                            break
        finally:
            handle.close()

    def tidy(self) -> None:
        """A reader that stayed long leaves a long WAL behind; give the room back once it has gone."""
        wal = Path(f"{self.file}-wal")
        if self._stdlib or not wal.exists() or wal.stat().st_size <= WAL_BOUND:
            return
        handle = self._checkout()
        handle.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._checkin(handle)

    def shift_clock(self, by: Micros) -> None:
        with self._transaction("BEGIN IMMEDIATE") as handle:
            handle.execute(
                f"INSERT INTO {PREFIX}meta VALUES ('clock_offset', :by) ON CONFLICT (key) DO UPDATE SET "
                "value = CAST(CAST(value AS INTEGER) + CAST(:by AS INTEGER) AS TEXT)",
                {"by": str(by)},
            )

    def facts(self) -> dict[str, str]:
        with self._transaction("BEGIN") as handle:
            version = handle.execute("SELECT sqlite_version()")[0][0]
            sync = handle.execute("PRAGMA synchronous")[0][0]
        return {
            "store": "sqlite",
            "file": str(self.file),
            "library": f"{self._library}, SQLite {version}",
            "synchronous": {2: "FULL", 3: "EXTRA"}.get(sync, f"{sync} (weaker than FULL)"),
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


def unavailable(file: Path, error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"SQLite cannot use {file}: {type(error).__name__}: {error}")


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_inherited: list[Handle] = []


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)

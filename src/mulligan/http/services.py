"""Access to the database for HTTP handlers: threads, lazy opening, and services per caller.

The last section holds the claims of idempotency keys by requests that run now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from mulligan.access.keys import Visitor
from mulligan.access.queries import AccessQueries
from mulligan.app.services import StoreServices
from mulligan.config import Settings
from mulligan.core.durations import SECOND
from mulligan.core.errors import SchemaError, StoreUnavailable
from mulligan.manifest.declared import apply_declared_settings
from mulligan.storage import Store, open_store
from mulligan.storage.base import Transaction

T = TypeVar("T")

log = logging.getLogger("mulligan.http")

DRIVER_MODULES = ("apsw", "sqlite3", "psycopg")
QUERY_TIMEOUT = 4.0  # seconds; the driver itself may retry for longer
# All pools of a server together must not need more than the 16 connections of its store.
THREADS = 6
FOLLOW_INTERVAL = 5.0  # seconds between two readings of the settings that apps declare
THREADS_PER_HOLDER = 3  # of one pool that calls of one key may occupy


class DatabaseUnavailable(Exception):
    """The database does not answer, or it cannot be read."""


def describe_outage(error: Exception, *, show_detail: bool) -> str:
    """Return a sentence about a database outage.

    Callers cannot be authenticated while the database is down, and the error may name its address.
    So the detail is shown only if `show_detail` is set, on a server that listens on loopback.
    """
    log.info("the database does not answer: %s", error)
    if show_detail:
        return str(error)
    return 'The server keeps trying to reconnect. Run "mulligan doctor" on the server for details.'


class DatabaseThreads:
    """A small thread pool for calls that block on the database."""

    def __init__(
        self, name: str, size: int = THREADS, per_holder: int = THREADS_PER_HOLDER
    ) -> None:
        self._pool = ThreadPoolExecutor(size, name)
        self._per_holder = per_holder
        # Removed when no call of the holder waits or runs.
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, call: Callable[[], T], seconds: float | None = None, holder: str = "") -> T:
        """Run `call` on a thread. Raise DatabaseUnavailable if the database fails or is slow.

        Calls of one `holder` (a key) occupy a part of the threads: others need not wait for them.
        """
        seconds = QUERY_TIMEOUT if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._run(call, holder)
        except TimeoutError:
            message = f"no answer within {seconds:g} s"
            raise DatabaseUnavailable(message) from None
        except (StoreUnavailable, SchemaError) as error:
            raise DatabaseUnavailable(str(error)) from error
        except Exception as error:
            # Driver errors mean that the file is not a database or that a table was dropped.
            if not type(error).__module__.startswith(DRIVER_MODULES):
                raise
            log.exception("cannot read the database")
            message = f"the database cannot be read ({type(error).__name__})"
            raise DatabaseUnavailable(message) from error

    async def _run(self, call: Callable[[], T], holder: str) -> T:
        if not holder:
            return await asyncio.wrap_future(self._pool.submit(call))
        place = self._places.setdefault(holder, asyncio.Semaphore(self._per_holder))
        await place.acquire()
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(place.release)

        # After a timeout the place stays taken until the thread is free again.
        running = self._pool.submit(call)
        running.add_done_callback(free)
        return await asyncio.wrap_future(running)

    def run_detached(self, call: Callable[[], object]) -> None:
        """Run `call` on a thread without waiting for it. Errors are logged at debug level."""

        def work() -> None:
            try:
                call()
            except Exception:
                log.debug("background call failed", exc_info=True)

        with contextlib.suppress(RuntimeError):  # the pool is shut down
            self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class StoreOpener:
    """Opens the store on first use, and again if the SQLite file was replaced.

    Opening never creates a SQLite file: a read-only page must not leave an empty database behind.
    With `follow_apps`, `settings` contains what the apps of the database declare in their code.
    """

    def __init__(self, settings: Settings, *, follow_apps: bool = False) -> None:
        self.settings = settings
        self._settings = settings
        self._follow_apps = follow_apps
        self._followed_at = -FOLLOW_INTERVAL
        self._store: Store | None = None
        self._file_id: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Store:
        file_id = self._current_file_id()
        with self._lock:
            if self._store is not None and file_id != self._file_id:
                self._store.close()
                self._store = None
            if self._store is None:
                self._store = self._open()
                self._file_id = file_id
            store = self._store
        self._read_declared_settings(store)
        return store

    def _read_declared_settings(self, store: Store) -> None:
        """Read what the apps declare: a deploy may have changed it."""
        now = time.monotonic()
        if not self._follow_apps or now - self._followed_at < FOLLOW_INTERVAL:
            return
        self._followed_at = now
        with store.read() as tx:
            self.settings = apply_declared_settings(tx, self._settings)

    def _open(self) -> Store:
        settings = self._settings
        store = open_store(
            settings.database_url,
            schema=settings.schema_name,
            notify_callers=settings.notify_callers,
            listen_url=settings.listen_url,
        )
        store.limit_lock_waits(QUERY_TIMEOUT)
        try:
            store.check_schema()
        except BaseException:
            store.close()
            raise
        return store

    def _current_file_id(self) -> tuple[int, int] | None:
        """Return (device, inode) of the SQLite file, or None for other databases."""
        url = self._settings.database_url
        if not url.startswith("sqlite"):
            return None
        try:
            status = Path(url.partition("///")[2] or "mulligan.db").stat()
        except FileNotFoundError:
            message = (
                f"there is no database {url} yet. Start a worker to create it: mulligan worker APP"
            )
            raise StoreUnavailable(message) from None
        return status.st_dev, status.st_ino

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


# --- Services ---


class VisitorServices(StoreServices):
    """The services of one visitor of the dashboard."""

    def __init__(self, store: Store, settings: Settings, visitor: Visitor) -> None:
        super().__init__(lambda: store, settings, visitor.actor)
        self.visitor = visitor
        self.owner = visitor.owner
        self.private = visitor.may_see_private  # quoted search words also match private text


# --- Claims of idempotency keys ---

# A claim that nobody renews is free after `LEASE`: its server is gone. A claim whose request ended
# while the database did not answer is released as soon as it answers again.
LEASE = 10 * SECOND
RENEW_INTERVAL = 2.0  # seconds


class IdempotencyClaims:
    """Claims of one server process. A daemon thread renews them while there are any."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._ended: set[str] = set()  # still in the database
        self._keeper: threading.Thread | None = None

    def take(self, key_id: str, name: str, request: str) -> str | None:
        """Claim a key. None: another request has claimed or answered it."""
        claim = uuid4().hex
        with self._store().begin() as tx:
            ended = self._delete_ended(tx)
            before = tx.now() - LEASE
            is_ours = AccessQueries(tx).claim_idempotency_key(key_id, name, request, claim, before)
        with self._lock:
            self._ended -= ended
            if not is_ours:
                return None
            self._held.add(claim)
            self._start_keeper()
        return claim

    def store_response(self, claim: str, status: int, body: str) -> None:
        """Store the answer of a request that has run."""
        try:
            with self._store().begin() as tx:
                AccessQueries(tx).store_response(claim, status, body)
        except BaseException:
            self.release(claim)
            raise
        self._drop(claim)

    def release(self, claim: str) -> None:
        """Free the key of a request that failed, now or once the database answers."""
        with self._lock:
            self._held.discard(claim)
            self._ended.add(claim)
        try:
            self._flush()
        except Exception:
            log.debug("cannot release an idempotency key yet", exc_info=True)

    def _drop(self, claim: str) -> None:
        with self._lock:
            self._held.discard(claim)

    def _flush(self) -> None:
        with self._store().begin() as tx:
            ended = self._delete_ended(tx)
        with self._lock:
            self._ended -= ended

    def _delete_ended(self, tx: Transaction) -> set[str]:
        """Delete the claims of ended requests and return them. Forget them after the commit."""
        with self._lock:
            ended = set(self._ended)
        if ended:
            AccessQueries(tx).release_idempotency_keys(sorted(ended))
        return ended

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="mulligan-claims", daemon=True)
            self._keeper.start()

    def _keep(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(RENEW_INTERVAL)
            with self._lock:
                held = sorted(self._held)
                if not held and not self._ended:
                    self._keeper = None
                    return
            try:
                self._renew(held)
            except Exception:
                log.debug("cannot renew idempotency keys", exc_info=True)

    def _renew(self, held: list[str]) -> None:
        if held:
            with self._store().begin() as tx:
                AccessQueries(tx).renew_idempotency_keys(held)
        if self._ended:
            self._flush()

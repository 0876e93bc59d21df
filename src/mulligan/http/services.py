"""Access to the database for HTTP handlers: threads, lazy opening, and services per caller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mulligan.access.keys import Visitor
from mulligan.app.services import StoreServices
from mulligan.config import Settings
from mulligan.core.errors import SchemaError, StoreUnavailable
from mulligan.storage import Store, open_store

T = TypeVar("T")

log = logging.getLogger("mulligan.http")

DRIVER_MODULES = ("apsw", "sqlite3", "psycopg")
QUERY_TIMEOUT = 4.0  # seconds; the driver itself may retry for longer
THREADS = 4


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

    def __init__(self, name: str, size: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(size, name)

    async def run(self, call: Callable[[], T], seconds: float = QUERY_TIMEOUT) -> T:
        """Run `call` on a thread. Raise DatabaseUnavailable if the database fails or is slow."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            async with asyncio.timeout(seconds):
                return await running
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
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
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
            return self._store

    def _open(self) -> Store:
        settings = self._settings
        store = open_store(
            settings.database_url,
            schema=settings.schema_name,
            notify_callers=settings.notify_callers,
            listen_url=settings.listen_url,
        )
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

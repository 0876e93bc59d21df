"""Pictures of the database, each read at one moment, none waited for longer than a visitor would."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from mulligan.config import Settings
from mulligan.engine.sessions import Sessions, Visitor
from mulligan.errors import Refused, SchemaError, StoreUnavailable
from mulligan.event import Event
from mulligan.job import AttemptRow, Job, JobRow, Micros
from mulligan.store import Store, open_store
from mulligan.store.base import Unit
from mulligan.web.desk import Desk

T = TypeVar("T")

log = logging.getLogger("mulligan.web")

DRIVERS = ("apsw", "sqlite3", "psycopg")  # a file that is no database, a table that was dropped
PATIENCE = 4.0  # seconds; the driver itself may try longer
THREADS = 4
COUNT_CAP = 10_000
PAGE = 50


class Away(Exception):
    """The database does not answer, or is not ours to read."""


class Shown(NamedTuple):
    job: Job
    note: str  # what its handler last said about its progress


class Story(NamedTuple):
    now: Micros
    row: JobRow
    job: Job
    attempts: list[AttemptRow]
    events: list[Event]


class Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "mulligan-web")

    # -- pictures -----------------------------------------------------------------------------------
    async def at_desk(self, work: Callable[[Desk], T], visitor: Visitor) -> T:
        return await self._wait(lambda: work(Desk(self._opened(), self._settings, visitor)))

    async def with_sessions(self, work: Callable[[Sessions], T]) -> T:
        return await self._wait(lambda: work(Sessions(self._opened)))

    async def ready(self) -> None:
        await self._ask(lambda unit: unit.now())

    # -- the database -------------------------------------------------------------------------------
    async def _ask(self, look: Callable[[Unit], T]) -> T:
        return await self._wait(lambda: self._look(look))

    async def _wait(self, work: Callable[[], T]) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.wait_for(running, PATIENCE)
        except TimeoutError:
            message = f"no answer within {PATIENCE:g} s"
            raise Away(message) from None
        except (StoreUnavailable, SchemaError) as error:
            raise Away(str(error)) from error
        except Exception as error:
            if not type(error).__module__.startswith(DRIVERS):
                raise
            log.exception("cannot read the database")
            raise Away(f"{type(error).__name__}: it cannot be read") from error

    def _look(self, look: Callable[[Unit], T]) -> T:
        with self._opened().read() as unit:
            return look(unit)

    def _opened(self) -> Store:
        """Opened at the first question, and only where a database is: looking must not make one."""
        file = self._there()
        with self._lock:
            if self._store is not None and file != self._file:
                self._store.close()  # another file has this name now
                self._store = None
            if self._store is None:
                store = open_store(self._settings.database_url, schema=self._settings.schema_name)
                try:
                    store.check_schema()
                except BaseException:
                    store.close()
                    raise
                self._store, self._file = store, file
            return self._store

    def _there(self) -> tuple[int, int] | None:
        """Which file it is now; None: not a file."""
        url = self._settings.database_url
        if not url.startswith("sqlite"):
            return None
        try:
            found = Path(url.partition("///")[2] or "mulligan.db").stat()
        except FileNotFoundError:
            message = f"there is no {url} yet; a worker makes it: mulligan worker APP"
            raise StoreUnavailable(message) from None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()


def checked_words(words: str, before: str = "") -> str:
    if not f"{words}{before}".isprintable():
        message = "a filter holds printable characters only"
        raise Refused(message)
    return words.strip()

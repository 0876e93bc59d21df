"""The database, asked on threads: opened only where one is, and waited for no longer than a visitor would."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mulligan.config import Settings
from mulligan.errors import SchemaError, StoreUnavailable
from mulligan.store import Store, open_store

T = TypeVar("T")

log = logging.getLogger("mulligan.web")

DRIVERS = ("apsw", "sqlite3", "psycopg")  # a file that is no database, a table that was dropped
PATIENCE = 4.0  # seconds; the driver itself may try longer
THREADS = 4


class Away(Exception):
    """The database does not answer, or is not ours to read."""


def away_words(error: Exception, *, candid: bool) -> str:
    """Before a database answers nobody can be known, and where it is, is no matter of strangers."""
    log.info("the database does not answer: %s", error)
    return str(error) if candid else "it is asked again all the time, and mulligan doctor says more"


class Threads:
    """A few of them, for questions that wait for a database."""

    def __init__(self, name: str, most: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(most, name)

    async def ask(self, call: Callable[[], T], patience: float = PATIENCE) -> T:
        running = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            async with asyncio.timeout(patience):
                return await running
        except TimeoutError:
            message = f"no answer within {patience:g} s"
            raise Away(message) from None
        except (StoreUnavailable, SchemaError) as error:
            raise Away(str(error)) from error
        except Exception as error:
            if not type(error).__module__.startswith(DRIVERS):
                raise
            log.exception("cannot read the database")
            raise Away(f"{type(error).__name__}: it cannot be read") from error

    def aside(self, call: Callable[[], object]) -> None:
        """Whose answer nobody waits for; if it cannot be done, it is not done."""

        def work() -> None:
            try:
                call()
            except Exception:
                log.debug("not done aside", exc_info=True)

        with contextlib.suppress(RuntimeError):  # they are closed
            self._threads.submit(work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Opening:
    """Opened at the first question, and only where a database is: looking must not make one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Store:
        file = self._there()
        with self._lock:
            if self._store is not None and file != self._file:
                self._store.close()  # another file has this name now
                self._store = None
            if self._store is None:
                self._store, self._file = self._opened(), file
            return self._store

    def _opened(self) -> Store:
        said = self._settings
        store = open_store(
            said.database_url,
            schema=said.schema_name,
            notify_callers=said.notify_callers,
            listen_url=said.listen_url,
        )
        try:
            store.check_schema()
        except BaseException:
            store.close()
            raise
        return store

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
        if self._store is not None:
            self._store.close()

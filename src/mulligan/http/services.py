"""The database, asked on threads: opened only where one is, and waited for no longer than a visitor would."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from mulligan.access.keys import Keys, Visitor
from mulligan.access.status_links import StatusLinks
from mulligan.alerts.service import Alerts
from mulligan.batches.service import Batches
from mulligan.config import Settings
from mulligan.core.errors import SchemaError, StoreUnavailable
from mulligan.events.service import Events
from mulligan.failures.service import Failures
from mulligan.guards.dependencies import Dependencies
from mulligan.guards.gates import Kinds, Queues
from mulligan.jobs.service import Jobs
from mulligan.manifest.specs import Registry
from mulligan.notifications.deliveries import Deliveries
from mulligan.notifications.subscriptions import Subscriptions
from mulligan.operations.service import Operations
from mulligan.retries.service import Policies
from mulligan.schedules.service import Schedules
from mulligan.storage import Store, open_store

T = TypeVar("T")

log = logging.getLogger("mulligan.http")

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


# Everything an app offers for looking and repairing, over one database, in the name of one caller.


class WebServices:
    def __init__(
        self,
        opening: Callable[[], Store],
        settings: Settings,
        actor: str,
        registry: Registry | None = None,
    ) -> None:
        self._opening, self._actor, self._registry = opening, actor, registry or Registry()
        self.settings = settings

    @property
    def store(self) -> Store:
        return self._opening()

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self._opening, self.settings, self._actor, self._registry.handlers)

    @cached_property
    def failures(self) -> Failures:
        return Failures(self._opening, self._actor)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self._opening, self._actor)

    @cached_property
    def batches(self) -> Batches:
        return Batches(self._opening, self.jobs, self._actor)

    @cached_property
    def queues(self) -> Queues:
        return Queues(self._opening, self._actor)

    @cached_property
    def dependencies(self) -> Dependencies:
        return Dependencies(self._opening, self._actor)

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self._opening, self._actor)

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules(self._opening, self.jobs, self._registry.schedules, self._actor)

    @cached_property
    def events(self) -> Events:
        return Events(self._opening)

    @cached_property
    def alerts(self) -> Alerts:
        return Alerts(self._opening, lambda: self.settings.alerts, self._actor)

    @cached_property
    def policies(self) -> Policies:
        return Policies(self._opening, lambda: self.settings, self._registry)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self._opening, lambda: self.settings, self._actor)

    @cached_property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._opening, lambda: self.settings, self._actor)

    @cached_property
    def status(self) -> StatusLinks:
        return StatusLinks(self._opening, lambda: self.settings)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self._opening, self._actor)


class CallerServices(WebServices):
    """The desk of one visitor of the pages."""

    def __init__(self, store: Store, settings: Settings, visitor: Visitor) -> None:
        super().__init__(lambda: store, settings, visitor.actor)
        self.visitor = visitor
        self.owner = visitor.owner
        self.private = visitor.private  # may words in quotes find what only the private half says?

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
from mulligan.engine.dependencies import Dependency, not_closed
from mulligan.engine.filters import Filter, parse_filter
from mulligan.engine.searching import resolved
from mulligan.engine.view import jobs_of
from mulligan.errors import NotFound, Refused, SchemaError, StoreUnavailable
from mulligan.event import Event
from mulligan.ids import LENGTH
from mulligan.job import AttemptRow, Job, JobRow, Micros, State, WorkerRow
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


class Group(NamedTuple):
    """The newest few of some states."""

    states: tuple[str, ...]
    jobs: list[Shown]


class Overview(NamedTuple):
    now: Micros
    counts: dict[str, int]
    groups: list[Group]
    workers: list[tuple[WorkerRow, bool]]  # with: is it silent beyond its lease?
    troubled: list[Dependency]  # those that hold jobs, or come back


class Matching(NamedTuple):
    now: Micros
    jobs: list[Shown]
    cursor: str | None  # where the next page begins
    partial: bool = False  # looking stopped before the page was full


class Story(NamedTuple):
    now: Micros
    row: JobRow
    job: Job
    attempts: list[AttemptRow]
    events: list[Event]


# (states that belong together, how many of each to show)
SECTIONS = ((("parked", "dead"), 6), (("running", "queued"), 12), (("succeeded", "cancelled"), 8))


class Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._actor = "web"
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "mulligan-web")

    # -- pictures -----------------------------------------------------------------------------------
    async def overview(self) -> Overview:
        return await self._ask(_overview)

    async def matching(self, words: str, before: str | None) -> Matching:
        if not f"{words}{before or ''}".isprintable():
            message = "a filter holds printable characters only"
            raise Refused(message)
        where = parse_filter(words)
        return await self._ask(lambda unit: _matching(unit, where, before))

    async def story(self, job_id: str) -> Story:
        return await self._ask(lambda unit: _story(unit, job_id))

    async def at_desk(self, work: Callable[[Desk], T]) -> T:
        return await self._wait(lambda: work(Desk(self._opened(), self._settings, self._actor)))

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


def _overview(unit: Unit) -> Overview:
    groups = [Group(states, _newest(unit, states, most)) for states, most in SECTIONS]
    workers = [(worker, unit.expired(worker)) for worker in unit.workers(closed=False)]
    return Overview(unit.now(), dict(unit.counts(COUNT_CAP)), groups, workers, not_closed(unit))


def _newest(unit: Unit, states: tuple[str, ...], most: int) -> list[Shown]:
    rows = [row for state in states for row in _some(unit.skim({"state": state}, most * 4, None).rows, most)]
    return _shown(unit, rows)


def _some(rows: list[JobRow], most: int) -> list[JobRow]:
    """What ended last, and of those that wait the ones that were tried: a retry must not hide behind fresh work."""
    return sorted(rows, key=lambda row: (row.state == State.QUEUED and row.attempt == 0, -(row.finished_at or 0)))[
        :most
    ]


def _shown(unit: Unit, rows: list[JobRow]) -> list[Shown]:
    return [Shown(job, row.progress_message) for row, job in zip(rows, jobs_of(unit, rows), strict=True)]


def _matching(unit: Unit, where: Filter, before: str | None) -> Matching:
    rows, stopped = unit.skim(resolved(unit, where), PAGE + 1, before)
    cursor = rows[PAGE - 1].id if len(rows) > PAGE else stopped
    return Matching(unit.now(), _shown(unit, rows[:PAGE]), cursor, stopped is not None)


def _story(unit: Unit, job_id: str) -> Story:
    row = unit.get(job_id) if len(job_id) == LENGTH and job_id.isalnum() else None
    if row is None:
        message = f"no job {job_id!r:.80}"
        raise NotFound(message)
    return Story(unit.now(), row, jobs_of(unit, [row])[0], unit.attempts(job_id), unit.story(job_id))

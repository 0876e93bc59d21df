"""Pictures of the database, each read at one moment, none waited for longer than a visitor would."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mulligan.engine.dependencies import Dependency, not_closed
from mulligan.engine.filters import Filter, parse_filter
from mulligan.engine.searching import resolved
from mulligan.engine.view import jobs_of
from mulligan.errors import NotFound, Refused
from mulligan.event import Event
from mulligan.ids import LENGTH
from mulligan.job import AttemptRow, Job, JobRow, Micros, State, WorkerRow
from mulligan.store.base import Unit
from mulligan.web.asking import Opening, Threads

T = TypeVar("T")

COUNT_CAP = 10_000
PAGE = 50


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
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._threads = Threads("mulligan-web")

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

    # -- the database -------------------------------------------------------------------------------
    async def _ask(self, look: Callable[[Unit], T]) -> T:
        return await self._threads.ask(lambda: self._look(look))

    def _look(self, look: Callable[[Unit], T]) -> T:
        with self._opening().read() as unit:
            return look(unit)

    def close(self) -> None:
        self._threads.close()


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

"""The database as screens ask it: on threads, and in the name of who visits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mulligan.config import Settings
from mulligan.engine.sessions import Sessions, Visitor
from mulligan.errors import NotFound, Refused
from mulligan.event import Event
from mulligan.ids import LENGTH
from mulligan.job import AttemptRow, Job, JobRow, Micros
from mulligan.web.asking import Opening, Threads
from mulligan.web.desk import Visited

T = TypeVar("T")

COUNT_CAP = 10_000
PAGE = 50


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
    def __init__(self, settings: Settings, opening: Opening) -> None:
        self._settings = settings
        self._opening = opening
        self._threads = Threads("mulligan-web")

    async def at_desk(self, work: Callable[[Visited], T], visitor: Visitor) -> T:
        return await self._threads.ask(lambda: work(Visited(self._opening(), self._settings, visitor)))

    async def with_sessions(self, work: Callable[[Sessions], T]) -> T:
        return await self._threads.ask(lambda: work(Sessions(self._opening)))

    def close(self) -> None:
        self._threads.close()


def checked_words(words: str, before: str = "") -> str:
    if not f"{words}{before}".isprintable():
        message = "a filter holds printable characters only"
        raise Refused(message)
    return words.strip()


def story_of(desk: Visited, job_id: str) -> Story:
    """Somebody else's is answered like one that does not exist."""
    if len(job_id) != LENGTH or not job_id.isalnum():
        raise NotFound(_no_such(job_id))
    job = desk.jobs.get(job_id, owner=desk.owner)
    with desk.store.read() as unit:
        row = unit.get(job_id)
        if row is None:
            raise NotFound(_no_such(job_id))
        return Story(unit.now(), row, job, unit.attempts(job_id), unit.story(job_id))


def _no_such(job_id: str) -> str:
    return f"no job {job_id!r:.80}"

"""`app.schedules`: look at schedules, pause one, run one now."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from mulligan.core.durations import ended_at
from mulligan.core.errors import ConfigError, Moment, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Job, Micros, to_datetime
from mulligan.jobs.service import Jobs
from mulligan.manifest.specs import ScheduleSpec
from mulligan.schedules.chore import Timetable, queued, resume_in, timetable, zone_of
from mulligan.schedules.rules import following, upcoming
from mulligan.storage.base import ScheduleRow, Store, Transaction

MOST_NEXT = 1000


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule at one moment, read-only. Its times are in its own zone."""

    name: str
    cron: str
    timezone: str
    kind: str
    payload: Any
    missed: str
    queue: str
    priority: int
    owner: str
    next_at: datetime | None
    last_at: datetime | None  # the newest slot that has come and got a job
    last_job_id: str | None
    problem: str  # why this machine cannot tell its times
    paused: bool = False
    paused_until: datetime | None = None  # None: until somebody resumes it
    reason: str = ""  # of the pause
    actor: str = ""


ScheduleList = list[Schedule]  # the classes below have a method called list
Times = list[datetime]


class Schedules:
    def __init__(
        self,
        store: Callable[[], Store],
        jobs: Jobs,
        own: Mapping[str, ScheduleSpec],
        actor: str = "python",
    ) -> None:
        self._open = store
        self._jobs = jobs
        self._own = own  # of this app: they hold here before any worker has stored them
        self._actor = actor

    def list(self) -> ScheduleList:
        """Every schedule that holds, by name."""
        with self._open().read() as unit:
            return self._listed(unit)

    def _listed(self, unit: Transaction) -> ScheduleList:
        table, now, last = self._timetable(unit), unit.now(), unit.last_slots()
        rows = {row.name: row for row in unit.schedules()}
        return [
            _with_pause(_view(spec, table, now, last.get(name)), rows.get(name), now)
            for name, spec in sorted(table.schedules.items())
        ]

    def get(self, name: str) -> Schedule:
        with self._open().read() as unit:
            _named(self._timetable(unit), name)
            return next(one for one in self._listed(unit) if one.name == name)

    # -- by hand ----------------------------------------------------------------------------------
    def pause(self, name: str, *, until: Moment | None = None, reason: str = "") -> Schedule:
        """Its slots get no job until then, or until somebody resumes it; a slot of the next seconds may have one."""
        with self._open().begin() as unit:
            spec, now = _named(self._timetable(unit), name), unit.now()
            unit.declare_schedule(
                name, spec.cron, spec.timezone
            )  # where no worker has begun it yet
            end = ended_at("until", until, now)
            before = _pause_facts(next(row for row in unit.schedules() if row.name == name), now)
            unit.pause_schedule(name, end, self._actor, reason)
            seen = {"before": before, "after": {"paused": True, "until": end}}
            news = {"schedule": name, "kind": spec.kind, "until": end, "reason": reason, **seen}
            told = {key: value for key, value in news.items() if value not in (None, "")}
            unit.write_events(
                [
                    NewEvent(
                        EventType.SCHEDULE_PAUSED, owner=spec.owner, actor=self._actor, data=told
                    )
                ]
            )
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Schedule:
        """It goes on from now; slots that came meanwhile get no job. One that is not paused stays as it is."""
        with self._open().begin() as unit:
            _named(self._timetable(unit), name)
            row = next((row for row in unit.schedules() if row.name == name), None)
            if row is not None and row.paused_at is not None:
                resume_in(unit, row, unit.now(), self._actor, reason)
        return self.get(name)

    def next(self, name: str, n: int = 5) -> Times:
        """Its next slots, in its own zone."""
        if n not in range(1, MOST_NEXT + 1):
            message = f"n must be a whole number from 1 to {MOST_NEXT}, not {n!r:.80}"
            raise Refused(message)
        with self._open().read() as unit:
            spec, now = _named(self._timetable(unit), name), unit.now()
        zone = zone_of(spec.timezone)
        return [
            to_datetime(at).astimezone(zone) for at in islice(upcoming(spec.cron, zone, now), n)
        ]

    def run(self, name: str, *, reason: str = "") -> Job:
        """One job of this schedule now, besides its slots."""
        with self._open().begin() as unit:
            table = self._timetable(unit)
            spec, now = _named(table, name), unit.now()
            job = table.job_for(spec, None, now)
            [answer] = unit.insert([job], announce=False)
            seen = {"before": {}, "after": {"state": "queued"}}
            news = {"schedule": name, "reason": reason, **seen}
            unit.announce_as([queued(job, answer.run_at, self._actor, news)])
            return self._jobs.inserted(unit, [job], [answer])[0]

    def _timetable(self, unit: Transaction) -> Timetable:
        stored = timetable(unit)
        return stored._replace(schedules={**stored.schedules, **self._own})


class AsyncSchedules:
    """The same, awaitable: each call on a thread."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    async def list(self) -> ScheduleList:
        return await asyncio.to_thread(self._schedules.list)

    async def next(self, name: str, n: int = 5) -> Times:
        return await asyncio.to_thread(self._schedules.next, name, n)

    async def get(self, name: str) -> Schedule:
        return await asyncio.to_thread(self._schedules.get, name)

    async def pause(self, name: str, *, until: Moment | None = None, reason: str = "") -> Schedule:
        return await asyncio.to_thread(self._schedules.pause, name, until=until, reason=reason)

    async def resume(self, name: str, *, reason: str = "") -> Schedule:
        return await asyncio.to_thread(self._schedules.resume, name, reason=reason)

    async def run(self, name: str, *, reason: str = "") -> Job:
        return await asyncio.to_thread(self._schedules.run, name, reason=reason)


def _named(table: Timetable, name: str) -> ScheduleSpec:
    found = table.schedules.get(name)
    if found is None:
        near = difflib.get_close_matches(str(name), table.schedules, n=1)
        known = (
            f"did you mean {near[0]}?"
            if near
            else f"there are: {', '.join(sorted(table.schedules)) or 'none yet'}"
        )
        message = f"no schedule {name!r:.80}; {known}"
        raise NotFound(message)
    return found


def _view(
    spec: ScheduleSpec, table: Timetable, now: Micros, last: tuple[Micros, str] | None
) -> Schedule:
    kind = table.kind_of(spec)
    next_at, last_at, problem = _times(spec, now, last)
    return Schedule(
        name=spec.name,
        cron=spec.cron,
        timezone=spec.timezone,
        kind=spec.kind,
        payload=json.loads(spec.payload),
        missed=spec.missed,
        queue=spec.queue or kind.queue,
        priority=kind.priority if spec.priority is None else spec.priority,
        owner=spec.owner,
        next_at=next_at,
        last_at=last_at,
        last_job_id=None if last is None else last[1],
        problem=problem,
    )


def _with_pause(schedule: Schedule, row: ScheduleRow | None, now: Micros) -> Schedule:
    """With what a person has said; without a next slot while nothing comes of it."""
    if row is None or not _paused(row, now):
        return schedule
    until = None if row.paused_until is None else to_datetime(row.paused_until)
    return replace(
        schedule, paused=True, paused_until=until, reason=row.pause_reason, actor=row.paused_by
    )


def _paused(row: ScheduleRow, now: Micros) -> bool:
    return row.paused_at is not None and (row.paused_until is None or row.paused_until > now)


def _pause_facts(row: ScheduleRow, now: Micros) -> dict[str, Any]:
    return {"paused": True, "until": row.paused_until} if _paused(row, now) else {"paused": False}


def _times(
    spec: ScheduleSpec, now: Micros, last: tuple[Micros, str] | None
) -> tuple[datetime | None, datetime | None, str]:
    try:
        zone = zone_of(spec.timezone)
    except ConfigError as error:
        return None, None, str(error)
    coming = following(spec.cron, zone, now)
    local = [
        None if at is None else to_datetime(at).astimezone(zone)
        for at in (coming, last and last[0])
    ]
    return local[0], local[1], ""

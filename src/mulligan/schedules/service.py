"""`app.schedules`: read schedules, pause and resume them, run one now."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any

from mulligan.core.durations import Micros, resolve_end, to_datetime
from mulligan.core.errors import ConfigError, DurationOrTime, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Job
from mulligan.events.queries import EventQueries
from mulligan.jobs.enqueue import insert
from mulligan.jobs.service import Jobs
from mulligan.manifest.specs import ScheduleSpec
from mulligan.schedules.chore import (
    Timetable,
    load_timetable,
    load_timezone,
    resume_schedule,
)
from mulligan.schedules.queries import ScheduleQueries, ScheduleRow
from mulligan.schedules.rules import next_slot, slots_after
from mulligan.storage.base import Store, Transaction

MAX_NEXT_SLOTS = 1000


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was when it was read. Its times are in its own zone."""

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
    last_at: datetime | None  # newest past slot that has a job
    last_job_id: str | None
    problem: str  # why this machine cannot compute its times
    paused: bool = False
    paused_until: datetime | None = None  # None: until it is resumed
    reason: str = ""  # of the pause
    actor: str = ""


ScheduleList = list[Schedule]  # The classes below have a method named list.
Times = list[datetime]


class Schedules:
    """Read, pause, resume and run schedules."""

    def __init__(
        self,
        store: Callable[[], Store],
        jobs: Jobs,
        app_schedules: Mapping[str, ScheduleSpec],
        actor: str = "python",
    ) -> None:
        self._open = store
        self._jobs = jobs
        self._app_schedules = app_schedules  # active before any worker has stored them
        self._actor = actor

    def list(self) -> ScheduleList:
        """Return every active schedule, by name."""
        with self._open().read() as tx:
            return self._views(tx)

    def _views(self, tx: Transaction) -> ScheduleList:
        now = tx.now()
        table = self._timetable(tx)
        last_slots = ScheduleQueries(tx).get_last_slots()
        rows = {row.name: row for row in ScheduleQueries(tx).list_schedules()}
        views = []
        for name, spec in sorted(table.schedules.items()):
            view = _build_view(spec, table, now, last_slots.get(name))
            views.append(_with_pause(view, rows.get(name), now))
        return views

    def get(self, name: str) -> Schedule:
        """Return one schedule."""
        with self._open().read() as tx:
            _find_spec(self._timetable(tx), name)
            return next(schedule for schedule in self._views(tx) if schedule.name == name)

    # --- Manual actions ---
    def pause(
        self, name: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Schedule:
        """Give slots no jobs until a time or until it is resumed.

        A slot of the next few seconds may already have its job.
        """
        with self._open().begin() as tx:
            now = tx.now()
            spec = _find_spec(self._timetable(tx), name)
            queries = ScheduleQueries(tx)
            # The row exists only once a worker has fired the schedule.
            queries.declare_schedule(name, spec.cron, spec.timezone)
            end = resolve_end("until", until, now)
            row = next(row for row in queries.list_schedules() if row.name == name)
            queries.pause_schedule(name, end, self._actor, reason)
            data: dict[str, Any] = {"schedule": name, "kind": spec.kind}
            if end is not None:
                data["until"] = end
            if reason:
                data["reason"] = reason
            data["before"] = _pause_state(row, now)
            data["after"] = {"paused": True, "until": end}
            paused = NewEvent(
                EventType.SCHEDULE_PAUSED, owner=spec.owner, actor=self._actor, data=data
            )
            EventQueries(tx).write_events([paused])
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Schedule:
        """Continue from now; slots that passed meanwhile get no job."""
        with self._open().begin() as tx:
            _find_spec(self._timetable(tx), name)
            row = next(
                (row for row in ScheduleQueries(tx).list_schedules() if row.name == name), None
            )
            if row is not None and row.paused_at is not None:
                resume_schedule(tx, row, tx.now(), self._actor, reason)
        return self.get(name)

    def next(self, name: str, n: int = 5) -> Times:
        """Return the next slots, in the schedule's zone."""
        if n not in range(1, MAX_NEXT_SLOTS + 1):
            raise Refused(f"n must be a whole number from 1 to {MAX_NEXT_SLOTS:,}, not {n!r:.80}")
        with self._open().read() as tx:
            spec = _find_spec(self._timetable(tx), name)
            now = tx.now()
        zone = load_timezone(spec.timezone)
        slots = islice(slots_after(spec.cron, zone, now), n)
        return [to_datetime(slot).astimezone(zone) for slot in slots]

    def run(self, name: str, *, reason: str = "") -> Job:
        """Enqueue one job of this schedule now, in addition to its slots."""
        with self._open().begin() as tx:
            table = self._timetable(tx)
            spec = _find_spec(table, name)
            job = table.job_for(spec, None, tx.now())
            data = {"schedule": name, "reason": reason}
            return insert(tx, [job], self._jobs, actor=self._actor, data=data)[0]

    def _timetable(self, tx: Transaction) -> Timetable:
        stored = load_timetable(tx)
        return stored._replace(schedules={**stored.schedules, **self._app_schedules})


def _find_spec(table: Timetable, name: str) -> ScheduleSpec:
    spec = table.schedules.get(name)
    if spec is not None:
        return spec
    similar = difflib.get_close_matches(str(name), table.schedules, n=1)
    if similar:
        hint = f"did you mean {similar[0]}?"
    else:
        hint = f"there are: {', '.join(sorted(table.schedules)) or 'none yet'}"
    raise NotFound(f"no schedule {name!r:.80}; {hint}")


def _build_view(
    spec: ScheduleSpec, table: Timetable, now: Micros, last: tuple[Micros, str] | None
) -> Schedule:
    kind = table.kind_of(spec)
    priority = kind.priority if spec.priority is None else spec.priority
    last_slot, last_job_id = last or (None, None)
    next_at = last_at = None
    problem = ""
    try:
        zone = load_timezone(spec.timezone)
    except ConfigError as error:
        problem = str(error)
    else:
        next_at = _local_time(next_slot(spec.cron, zone, now), zone)
        last_at = _local_time(last_slot, zone)
    return Schedule(
        name=spec.name,
        cron=spec.cron,
        timezone=spec.timezone,
        kind=spec.kind,
        payload=json.loads(spec.payload),
        missed=spec.missed,
        queue=spec.queue or kind.queue,
        priority=priority,
        owner=spec.owner,
        next_at=next_at,
        last_at=last_at,
        last_job_id=last_job_id,
        problem=problem,
    )


def _with_pause(schedule: Schedule, row: ScheduleRow | None, now: Micros) -> Schedule:
    """Add the pause of a schedule, if it is paused now."""
    if row is None or not _is_paused(row, now):
        return schedule
    until = None if row.paused_until is None else to_datetime(row.paused_until)
    return replace(
        schedule, paused=True, paused_until=until, reason=row.pause_reason, actor=row.paused_by
    )


def _is_paused(row: ScheduleRow, now: Micros) -> bool:
    return row.paused_at is not None and (row.paused_until is None or row.paused_until > now)


def _pause_state(row: ScheduleRow, now: Micros) -> dict[str, Any]:
    if _is_paused(row, now):
        return {"paused": True, "until": row.paused_until}
    return {"paused": False}


def _local_time(at: Micros | None, zone: tzinfo) -> datetime | None:
    return None if at is None else to_datetime(at).astimezone(zone)

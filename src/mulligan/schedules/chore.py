"""Schedules: declared in the app, kept in the manifest, fired by every worker's sweep.

There is no leader. Any number of workers look at the same cursor; who moves it inserts the slots it has passed, in the
same transaction. Should two ever try the same slot, its key in the database lets one of them.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from mulligan.config import WorkerSection
from mulligan.core.durations import length
from mulligan.core.errors import ConfigError, PayloadRefused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Micros, NewJob
from mulligan.core.json import indexed
from mulligan.guards.limits import share_of
from mulligan.jobs.enqueue import EnqueueOptions, new_job
from mulligan.manifest.declared import KNOWN_FOR, in_force
from mulligan.manifest.specs import (
    Handler,
    KindSpec,
    Manifest,
    QueueSpec,
    ScheduleSpec,
    checked_name,
)
from mulligan.schedules.rules import (
    Moments,
    Plan,
    Timing,
    checked_cron,
    checked_missed,
    plan,
    restart,
)
from mulligan.storage.base import Inserted, ScheduleRow, Store, Transaction
from mulligan.worker.upkeep import STEP

log = logging.getLogger("mulligan.schedules")

NAMED_EVERY: Micros = 86_400 * SECOND
AHEAD = 2  # sweeps


# -- declare ------------------------------------------------------------------------------------------
def checked_schedule(
    spec: ScheduleSpec, handler: Handler | None, payload: Any, options: EnqueueOptions, limit: int
) -> ScheduleSpec:
    """The schedule with everything checked that can be checked here."""
    job = _trial(spec, handler, payload, options, limit)
    return replace(
        spec,
        cron=checked_cron(spec.cron),
        missed=checked_missed(spec.missed),
        timezone=_checked_zone(spec.timezone),
        payload=job.payload,
        queue=options.queue,
        priority=options.priority,
        owner=job.owner,
        uses=None if handler is None else job.uses,
        max_retries=job.max_retries,
        policy=job.policy,
        timeout=job.timeout,
        deadline=None if options.deadline is None else length("deadline", options.deadline),
    )


def checked_again(spec: ScheduleSpec, handler: Handler, limit: int) -> ScheduleSpec:
    """A schedule declared by its kind's name, once the handler is known."""
    job = _trial(
        spec,
        handler,
        json.loads(spec.payload),
        EnqueueOptions(owner=spec.owner, queue=spec.queue),
        limit,
    )
    return replace(spec, payload=job.payload, uses=job.uses)


def _trial(
    spec: ScheduleSpec, handler: Handler | None, payload: Any, options: EnqueueOptions, limit: int
) -> NewJob:
    """A job as a slot would make it; jobs of slots hold no unique key."""
    if not isinstance(payload, Mapping):
        message = f"schedule {spec.name!r}: the payload maps names of arguments to values, not {payload!r:.80}"
        raise PayloadRefused(message)
    if handler is None:
        return new_job(
            KindSpec(checked_name("kind", spec.kind)), None, dict(payload), options, limit, {}
        )
    try:
        plain = handler.arguments.encode(payload)
    except PayloadRefused as error:
        message = f"schedule {spec.name!r}: {error}"
        raise PayloadRefused(message) from None
    return new_job(handler.spec, replace(handler, unique=None), plain, options, limit, {})


def _checked_zone(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(_no_zone(name))
    zone_of(name)
    return name


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo:
    """A zone by its name in the system's database, or what to write or install instead."""
    if name == "UTC":  # needs no database
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ConfigError(_no_zone(name)) from None


def _no_zone(name: Any) -> str:
    known = available_timezones()
    if not known:
        return (
            f"timezone {name!r:.80}: this machine has no time zone database; install the system's tzdata package "
            "or: pip install tzdata"
        )
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"timezone {name!r:.80} is unknown; write a name like {(near or ['Europe/Berlin'])[0]!r}, or 'UTC'"


# -- what holds ---------------------------------------------------------------------------------------
class Timetable(NamedTuple):
    """Every schedule that holds, and the kinds and queues their jobs need to know, as the newest manifest says."""

    schedules: Mapping[str, ScheduleSpec]
    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec]

    def kind_of(self, spec: ScheduleSpec) -> KindSpec:
        return self.kinds.get(spec.kind) or KindSpec(spec.kind)

    def job_for(self, spec: ScheduleSpec, slot: Micros | None, now: Micros) -> NewJob:
        """The job of a slot, due at it; of no slot: due now."""
        kind = self.kind_of(spec)
        queue = spec.queue or kind.queue
        return NewJob(
            id=new_id(),
            kind=spec.kind,
            queue=queue,
            payload=spec.payload,
            owner=spec.owner,
            priority=kind.priority if spec.priority is None else spec.priority,
            uses=kind.uses if spec.uses is None else spec.uses,
            run_at=slot,
            max_retries=spec.max_retries,
            policy=spec.policy,
            timeout=spec.timeout,
            deadline_at=None if spec.deadline is None else max(slot or now, now) + spec.deadline,
            share=share_of(spec.owner) if queue in self.queues and self.queues[queue].fair else "",
            args=indexed(json.loads(spec.payload), kind.index) if kind.index else (),
        )


def timetable(unit: Transaction) -> Timetable:
    now = unit.now()
    stored = [(app, named, _parsed(body)) for _, app, _, body, named in unit.manifests()]
    holds = in_force([(app, named) for app, named, _ in stored], now, KNOWN_FOR)
    schedules: dict[str, ScheduleSpec] = {}
    kinds: dict[str, KindSpec] = {}
    queues: dict[str, QueueSpec] = {}
    for (_, named, manifest), counts in zip(stored, holds, strict=True):
        kinds = {**manifest.kinds, **kinds}
        if counts:
            schedules = {**manifest.schedules, **schedules}
        if named > now - KNOWN_FOR:
            queues = {**manifest.queues, **queues}
    return Timetable(schedules, kinds, queues)


@lru_cache(maxsize=64)
def _parsed(body: str) -> Manifest:
    """Every sweep reads the same few."""
    return Manifest.from_json(body)


# -- fire ---------------------------------------------------------------------------------------------
class Timekeeper:
    """One worker's part in firing schedules."""

    def __init__(self, store: Store, worker: WorkerSection) -> None:
        self._store = store
        self._grace: Micros = round(worker.lease * SECOND)
        self._ahead: Micros = round(worker.sweep * SECOND) * AHEAD
        self._told: set[str] = set()

    def fire(self, *, ahead: bool = True) -> int:
        """Give every slot that is due its job, or will be within two sweeps; returns how many jobs were made."""
        with self._store.read() as unit:
            table = timetable(unit)
            if not table.schedules:
                return 0
            rows = {row.name: row for row in unit.schedules()}
            now = unit.now()
        when = Moments(now, now + self._ahead if ahead else now, self._grace)
        self._name(table, rows, now)
        due = table.schedules.items()
        return sum(self._tried(table, spec, rows.get(name), when) for name, spec in due)

    def _name(self, table: Timetable, rows: Mapping[str, ScheduleRow], now: Micros) -> None:
        old = [
            name
            for name in table.schedules
            if name in rows and rows[name].named_at < now - NAMED_EVERY
        ]
        if old:
            with self._store.begin() as unit:
                unit.name_schedules(old)

    def _tried(
        self, table: Timetable, spec: ScheduleSpec, row: ScheduleRow | None, when: Moments
    ) -> int:
        """What is wrong with one schedule stops no other."""
        try:
            timing = Timing(checked_cron(spec.cron), zone_of(spec.timezone), spec.missed)
            if row is not None and row.paused_at is not None:
                row = self._over(row, when.now)
                if row is None:
                    return 0
            begun = self._begun(spec, row, when.now)
            return 0 if begun is None else self._fire(table, spec, begun, timing, when)
        except StoreUnavailable:
            raise
        except Exception as error:
            told = f"{spec} {error}"
            if told not in self._told:
                self._told.add(told)
                log.exception("schedule %s does not fire on this worker", spec.name)
            return 0

    def _begun(
        self, spec: ScheduleSpec, row: ScheduleRow | None, now: Micros
    ) -> ScheduleRow | None:
        """Its row, begun or begun anew where needed. None: somebody else is at it."""
        if row is None:
            with self._store.begin() as unit:
                return unit.declare_schedule(spec.name, spec.cron, spec.timezone)
        cursor = restart((row.cron, row.timezone), (spec.cron, spec.timezone), row.cursor, now)
        if cursor is None:
            return row
        if cursor < row.cursor:
            log.warning(
                "schedule %s: the clock was set back by more than a day; going on from now",
                spec.name,
            )
        begun = row._replace(cron=spec.cron, timezone=spec.timezone, cursor=cursor)
        with self._store.begin() as unit:
            return begun if unit.advance_schedule(begun, seen=row.cursor) else None

    def _over(self, row: ScheduleRow, now: Micros) -> ScheduleRow | None:
        """A pause whose time has passed ends by itself. None: it lasts."""
        until = row.paused_until
        if until is None or until > now:
            return None
        with self._store.begin() as unit:
            return resume_in(unit, row, until, "upkeep", "its time is over")

    def _fire(
        self, table: Timetable, spec: ScheduleSpec, row: ScheduleRow, timing: Timing, when: Moments
    ) -> int:
        fired = 0
        while (due := plan(timing, row.cursor, when, STEP)) is not None:
            moved = row._replace(cursor=due.cursor)
            with self._store.begin() as unit:
                if not unit.advance_schedule(moved, seen=row.cursor):
                    break
                fired += _insert(unit, table, spec, due, when.now)
            row = moved
        return fired


def resume_in(
    unit: Transaction, row: ScheduleRow, at: Micros, actor: str, reason: str
) -> ScheduleRow | None:
    """In the caller's transaction: it goes on after this moment. None: somebody was quicker."""
    cursor = max(row.cursor, at)
    if not unit.resume_schedule(row, cursor):
        return None
    seen = {"before": {"paused": True, "until": row.paused_until}, "after": {"paused": False}}
    news = {"schedule": row.name, "reason": reason, **seen}
    unit.write_events([NewEvent(EventType.SCHEDULE_RESUMED, actor=actor, data=news)])
    return row._replace(
        cursor=cursor, paused_at=None, paused_until=None, pause_reason="", paused_by=""
    )


def _insert(unit: Transaction, table: Timetable, spec: ScheduleSpec, due: Plan, now: Micros) -> int:
    """Slots and their jobs, what is skipped, and what is told of both: all in one transaction."""
    jobs = {slot: table.job_for(spec, slot, now) for slot in due.run}
    fresh = sorted(unit.take_slots(spec.name, {slot: job.id for slot, job in jobs.items()}))
    if fresh:
        unit.insert([jobs[slot] for slot in fresh], announce=False)
        said = {"schedule": spec.name}
        unit.announce_as(
            [queued(jobs[slot], slot, "schedule", {**said, "slot_at": slot}) for slot in fresh]
        )
    if due.skipped is not None:
        news = {"schedule": spec.name, "kind": spec.kind, **asdict(due.skipped)}
        unit.write_events(
            [NewEvent(EventType.SCHEDULE_SKIPPED, owner=spec.owner, actor="schedule", data=news)]
        )
    return len(fresh)


def queued_by(actor: str, new: Sequence[NewJob], answers: Sequence[Inserted]) -> list[NewEvent]:
    """What there is to tell of jobs that a person has enqueued; a twin is nobody's new one."""
    seen: dict[str, Any] = {"before": {}, "after": {"state": "queued"}}
    return [
        queued(job, one.run_at, actor, seen)
        for job, one in zip(new, answers, strict=True)
        if one.fresh
    ]


def queued(job: NewJob, run_at: Micros, actor: str, more: Mapping[str, Any]) -> NewEvent:
    news = {"kind": job.kind, "queue": job.queue, "run_at": run_at, **more}
    return NewEvent(
        EventType.JOB_QUEUED,
        job_id=job.id,
        batch_id=job.batch_id,
        owner=job.owner,
        actor=actor,
        data=news,
    )

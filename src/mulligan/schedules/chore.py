"""Fire schedules: every worker's sweep inserts the jobs of due slots.

There is no leader. Any number of workers look at the same cursor; the one that moves it inserts
the slots it passed in the same transaction. If two workers ever try the same slot, its unique key
in the database lets only one of them insert it.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from mulligan.config import WorkerSection
from mulligan.core.durations import SECOND, Micros, check_duration
from mulligan.core.errors import ConfigError, PayloadRefused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent, queued_event
from mulligan.core.ids import new_id
from mulligan.core.job import NewJob
from mulligan.core.json import index_entries
from mulligan.events.queries import EventQueries
from mulligan.guards.limits import owner_share
from mulligan.jobs.enqueue import new_job
from mulligan.jobs.options import EnqueueOptions, expand_uses
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.declared import (
    MANIFEST_LIFETIME,
    find_active,
    load_kinds,
    load_manifest,
    load_recent_manifests,
)
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import (
    Handler,
    KindSpec,
    QueueSpec,
    ScheduleSpec,
    check_name,
)
from mulligan.schedules.queries import ScheduleQueries, ScheduleRow
from mulligan.schedules.rules import (
    FiringWindow,
    SlotPlan,
    Timing,
    check_cron,
    check_missed,
    plan_slots,
    restart_cursor,
)
from mulligan.storage.base import Store, Transaction
from mulligan.worker.upkeep import BATCH_SIZE

log = logging.getLogger("mulligan.schedules")

DECLARE_INTERVAL: Micros = 86_400 * SECOND  # how often a schedule's last use is stored
SWEEPS_AHEAD = 2  # Slots of the next sweeps get their jobs early, so that they start on time.


# --- Declare ---
def check_schedule(
    spec: ScheduleSpec, handler: Handler | None, payload: Any, options: EnqueueOptions, limit: int
) -> ScheduleSpec:
    """Return the schedule with every option checked that can be checked without a database."""
    job = _build_sample_job(spec, handler, payload, options, limit)
    deadline = None
    if options.deadline is not None:
        deadline = check_duration("deadline", options.deadline)
    uses = None if handler is None else job.uses
    return replace(
        spec,
        cron=check_cron(spec.cron),
        missed=check_missed(spec.missed),
        timezone=_check_timezone(spec.timezone),
        payload=job.payload,
        queue=options.queue,
        priority=options.priority,
        owner=job.owner,
        uses=uses,
        max_retries=job.max_retries,
        policy=job.policy,
        timeout=job.timeout,
        deadline=deadline,
        version=job.version,
    )


def recheck_schedule(spec: ScheduleSpec, handler: Handler, limit: int) -> ScheduleSpec:
    """Check a schedule that was declared by its kind's name, once the handler is known."""
    options = EnqueueOptions(owner=spec.owner, queue=spec.queue)
    job = _build_sample_job(spec, handler, json.loads(spec.payload), options, limit)
    return replace(spec, payload=job.payload, uses=job.uses, version=job.version)


def _build_sample_job(
    spec: ScheduleSpec, handler: Handler | None, payload: Any, options: EnqueueOptions, limit: int
) -> NewJob:
    """Return a job as a slot would create it, except that jobs of slots hold no unique key."""
    if not isinstance(payload, Mapping):
        raise PayloadRefused(
            f"schedule {spec.name!r}: the payload must map argument names to values, "
            f"not {payload!r:.80}"
        )
    if handler is None:
        kind = KindSpec(check_name("kind", spec.kind))
        return new_job(kind, None, dict(payload), options, limit, {})
    try:
        encoded = handler.arguments.encode(payload)
    except PayloadRefused as error:
        raise PayloadRefused(f"schedule {spec.name!r}: {error}") from None
    return new_job(handler.spec, handler, encoded, options, limit, {})


def _check_timezone(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(_unknown_timezone(name))
    load_timezone(name)
    return name


@lru_cache(maxsize=1024)
def load_timezone(name: str) -> tzinfo:
    """Return a time zone by its name in the system's database."""
    if name == "UTC":  # works without a time zone database
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ConfigError(_unknown_timezone(name)) from None


def _unknown_timezone(name: Any) -> str:
    known = available_timezones()
    if not known:
        return (
            f"timezone {name!r:.80}: this machine has no time zone database. "
            "Install the system's tzdata package or: pip install tzdata"
        )
    similar = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    example = similar[0] if similar else "Europe/Berlin"
    return f"unknown timezone {name!r:.80}. Write a name like {example!r}, or 'UTC'."


# --- Active schedules ---
class Timetable(NamedTuple):
    """Active schedules and their kinds and queues, as the newest manifests declare them."""

    schedules: Mapping[str, ScheduleSpec]
    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec]

    def kind_of(self, spec: ScheduleSpec) -> KindSpec:
        """Return the kind of a schedule; defaults if no manifest has it."""
        return self.kinds.get(spec.kind) or KindSpec(spec.kind)

    def job_for(self, spec: ScheduleSpec, slot: Micros | None, now: Micros) -> NewJob:
        """Return the job of a slot, due at the slot; without a slot, due now."""
        kind = self.kind_of(spec)
        queue = spec.queue or kind.queue
        priority = kind.priority if spec.priority is None else spec.priority
        uses = _uses_by_name(kind, spec.payload) if spec.uses is None else spec.uses
        share = ""
        if queue in self.queues and self.queues[queue].fair:
            share = owner_share(spec.owner)
        deadline_at = None
        if spec.deadline is not None:
            deadline_at = max(slot or now, now) + spec.deadline
        args: tuple[tuple[str, str], ...] = ()
        if kind.index:
            args = index_entries(json.loads(spec.payload), kind.index)
        return NewJob(
            id=new_id(),
            kind=spec.kind,
            queue=queue,
            payload=spec.payload,
            owner=spec.owner,
            priority=priority,
            uses=uses,
            run_at=slot,
            max_retries=spec.max_retries,
            policy=spec.policy,
            timeout=spec.timeout,
            deadline_at=deadline_at,
            share=share,
            version=spec.version,
            args=args,
        )


def _uses_by_name(kind: KindSpec, payload: str) -> str:
    """Return the dependencies of a job whose schedule was declared without the kind's handler."""
    return expand_uses(kind, json.loads(payload)) if kind.uses_template else kind.uses


def load_timetable(tx: Transaction) -> Timetable:
    """Read the active schedules. Newer manifests come first and take precedence."""
    now = tx.now()
    stored = ManifestQueries(tx).list_manifests()
    active = find_active([(row.app, row.published_at) for row in stored], now, MANIFEST_LIFETIME)
    schedules: dict[str, ScheduleSpec] = {}
    for row, is_active in zip(stored, active, strict=True):
        if is_active:
            schedules = {**load_manifest(tx, row.id).schedules, **schedules}
    queues: dict[str, QueueSpec] = {}
    for manifest in load_recent_manifests(tx, now):
        queues = {**manifest.queues, **queues}
    return Timetable(schedules, load_kinds(tx), queues)


# --- Fire ---
class Scheduler:
    """Fire the due schedules of all apps, on one worker."""

    def __init__(self, store: Store, worker: WorkerSection) -> None:
        self._store = store
        self._grace: Micros = round(worker.lease * SECOND)
        self._ahead: Micros = round(worker.sweep * SECOND) * SWEEPS_AHEAD
        self._logged_errors: dict[str, str] = {}  # the last one of each schedule

    def fire(self, *, ahead: bool = True) -> int:
        """Insert the jobs of all slots that are due within two sweeps; return how many."""
        with self._store.read() as tx:
            table = load_timetable(tx)
            if not table.schedules:
                return 0
            rows = {row.name: row for row in ScheduleQueries(tx).list_schedules()}
            now = tx.now()
        until = now + self._ahead if ahead else now
        window = FiringWindow(now, until, self._grace)
        self._touch(table, rows, now)
        fired = 0
        for name, spec in table.schedules.items():
            fired += self._fire_isolated(table, spec, rows.get(name), window)
        return fired

    def _touch(self, table: Timetable, rows: Mapping[str, ScheduleRow], now: Micros) -> None:
        """Store once a day that these schedules are still declared: retention deletes others."""
        before = now - DECLARE_INTERVAL
        outdated = [
            name for name in table.schedules if name in rows and rows[name].declared_at < before
        ]
        if outdated:
            with self._store.begin() as tx:
                ScheduleQueries(tx).touch_schedules(outdated)

    def _fire_isolated(
        self, table: Timetable, spec: ScheduleSpec, row: ScheduleRow | None, window: FiringWindow
    ) -> int:
        """Fire one schedule; its error does not stop the others and is logged once."""
        try:
            return self._fire(table, spec, row, window)
        except StoreUnavailable:
            raise
        except Exception as error:
            description = f"{spec} {error}"
            if self._logged_errors.get(spec.name) != description:
                self._logged_errors[spec.name] = description
                log.exception("schedule %s cannot fire on this worker", spec.name)
            return 0

    def _fire(
        self, table: Timetable, spec: ScheduleSpec, row: ScheduleRow | None, window: FiringWindow
    ) -> int:
        timing = Timing(check_cron(spec.cron), load_timezone(spec.timezone), spec.missed)
        if row is not None and row.paused_at is not None:
            row = self._end_pause(row, window.now)
            if row is None:
                return 0
        current = self._declare(spec, row, window.now)
        if current is None:
            return 0
        return self._insert_due(table, spec, current, timing, window)

    def _declare(
        self, spec: ScheduleSpec, row: ScheduleRow | None, now: Micros
    ) -> ScheduleRow | None:
        """Return the schedule's row, created or restarted if needed; None if another worker did."""
        if row is None:
            with self._store.begin() as tx:
                return ScheduleQueries(tx).declare_schedule(spec.name, spec.cron, spec.timezone)
        cursor = restart_cursor(
            (row.cron, row.timezone), (spec.cron, spec.timezone), row.cursor, now
        )
        if cursor is None:
            return row
        if cursor < row.cursor:
            log.warning(
                "schedule %s: the clock was set back by more than 15 minutes; continuing from now",
                spec.name,
            )
        restarted = row._replace(cron=spec.cron, timezone=spec.timezone, cursor=cursor)
        with self._store.begin() as tx:
            advanced = ScheduleQueries(tx).advance_schedule(restarted, from_cursor=row.cursor)
        return restarted if advanced else None

    def _end_pause(self, row: ScheduleRow, now: Micros) -> ScheduleRow | None:
        """End a pause whose time has passed. None: the schedule is still paused."""
        until = row.paused_until
        if until is None or until > now:
            return None
        with self._store.begin() as tx:
            return resume_schedule(tx, row, until, "upkeep", "its time is over")

    def _insert_due(
        self,
        table: Timetable,
        spec: ScheduleSpec,
        row: ScheduleRow,
        timing: Timing,
        window: FiringWindow,
    ) -> int:
        """Insert the jobs of due slots in steps, moving the cursor with each."""
        fired = 0
        while True:
            plan = plan_slots(timing, row.cursor, window, BATCH_SIZE)
            if plan is None:
                return fired
            advanced = row._replace(cursor=plan.cursor)
            with self._store.begin() as tx:
                if not ScheduleQueries(tx).advance_schedule(advanced, from_cursor=row.cursor):
                    return fired  # Another worker fires this schedule.
                fired += _insert_slots(tx, table, spec, plan, window.now)
            row = advanced


def resume_schedule(
    tx: Transaction, row: ScheduleRow, at: Micros, actor: str, reason: str
) -> ScheduleRow | None:
    """Resume a schedule in the caller's transaction; slots up to `at` are skipped.

    Return None if another transaction resumed it first.
    """
    cursor = max(row.cursor, at)
    if not ScheduleQueries(tx).resume_schedule(row, cursor):
        return None
    data = {
        "schedule": row.name,
        "reason": reason,
        "before": {"paused": True, "until": row.paused_until},
        "after": {"paused": False},
    }
    EventQueries(tx).write_events([NewEvent(EventType.SCHEDULE_RESUMED, actor=actor, data=data)])
    return row._replace(
        cursor=cursor, paused_at=None, paused_until=None, pause_reason="", paused_by=""
    )


def _insert_slots(
    tx: Transaction, table: Timetable, spec: ScheduleSpec, plan: SlotPlan, now: Micros
) -> int:
    """Insert the jobs of slots and write the events of fired and skipped slots."""
    jobs = {slot: table.job_for(spec, slot, now) for slot in plan.run}
    claimed = ScheduleQueries(tx).claim_slots(
        spec.name, {slot: job.id for slot, job in jobs.items()}
    )
    fresh = sorted(claimed)
    if fresh:
        JobQueries(tx).insert_jobs([jobs[slot] for slot in fresh], announce=False)
        events = []
        for slot in fresh:
            data = {"schedule": spec.name, "slot_at": slot}
            events.append(queued_event(jobs[slot], slot, "schedule", data))
        JobQueries(tx).write_queued_events(events)
    if plan.skipped is not None:
        data = {"schedule": spec.name, "kind": spec.kind, **asdict(plan.skipped)}
        skipped = NewEvent(
            EventType.SCHEDULE_SKIPPED, owner=spec.owner, actor="schedule", data=data
        )
        EventQueries(tx).write_events([skipped])
    return len(fresh)

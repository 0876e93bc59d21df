"""Screens of queues, kinds, workers and schedules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request, Response

from mulligan.app.status import NO_FLOW, Flow, FlowKey, Quantiles, read_depths, read_flows
from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_actor, format_duration, format_elapsed, format_size
from mulligan.core.ids import shorten_id
from mulligan.guards.gate_status import KindStatus, Queue
from mulligan.guards.queries import GuardQueries, RunningGroup
from mulligan.http.dashboard.actions import format_limits
from mulligan.http.dashboard.charts import depth_line, stacked_bar
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, screen
from mulligan.http.dashboard.view_models import (
    Badge,
    format_count,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.insight.rules import format_percent
from mulligan.schedules.queries import ScheduleQueries, ScheduleRun
from mulligan.schedules.service import Schedule
from mulligan.storage.base import Transaction
from mulligan.worker.service import WorkerStatus, worker_statuses

UPCOMING = 3  # times of a schedule
MAX_RUNS = 10  # of a schedule
DEPTH_MINUTES = 60
MAX_GROUPS = 500  # of running jobs
MAX_HOLDERS = 3  # kinds that a sentence names
PAUSED = Badge("pause", "paused", "warn")
RUNNING = Badge("play", "running", "good")
IDLE = Badge("play", "running", "calm")
ON = Badge("circle-dot", "on", "good")
HELD = Badge("pause", "held", "warn")
WORKER_BADGES = {
    "live": Badge("circle-dot", "live", "good"),
    "draining": Badge("contrast", "draining", "warn"),
    "silent": Badge("circle-dashed", "silent", "warn"),
    "dead": Badge("x", "dead", "bad"),
    "left": Badge("circle", "left", "calm"),
}


class QueueScreens:
    """The screens of queues and workers, and of schedules."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/queues", MenuEntry("", 4, "queues", "Queues", "layers", shared=True))
    async def queues(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            queues = services.queues.list()
            kinds = services.kinds.list()
            with services.store.read() as tx:
                fleet = _load_fleet(tx, queues)
            return {
                "queues": [_queue(queue, fleet) for queue in queues],
                "kinds": [_kind(kind, fleet) for kind in _rank_kinds(kinds, fleet)],
                "workers": [
                    {**worker_row(worker, fleet.now), "jobs": _holders(fleet, worker=worker.row.id)}
                    for worker in fleet.workers
                ],
                "places": _describe_places(fleet),
                "is_full": fleet.taken >= fleet.places > 0,
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "queues.html", "queues", **values)

    @screen(
        "/schedules", MenuEntry("More", 1, "schedules", "Schedules", "calendar-clock", shared=True)
    )
    async def schedules(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            schedules = services.schedules.list()
            with services.store.read() as tx:
                now = tx.now()
                runs = {
                    one.name: ScheduleQueries(tx).list_recent_runs(one.name, MAX_RUNS)
                    for one in schedules
                }
            rows = [
                {
                    **_schedule(one, _upcoming(services, one), now),
                    "runs": [_run(run, now) for run in reversed(runs[one.name])],
                }
                for one in schedules
            ]
            return {"rows": rows}

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "schedules.html", "schedules", **values)


# --- Queues, kinds and workers ---


class Fleet(NamedTuple):
    """Workers, running jobs and what went through queues and kinds lately."""

    now: Micros
    workers: list[WorkerStatus]
    running: list[RunningGroup]
    flows: Mapping[FlowKey, Flow]
    depths: Mapping[str, list[int]]  # of each queue, by minute

    @property
    def places(self) -> int:
        return sum(worker.row.concurrency for worker in self.workers if worker.is_live)

    @property
    def taken(self) -> int:
        live = [worker for worker in self.workers if worker.is_live]
        return sum(min(worker.running, worker.row.concurrency) for worker in live)


def _load_fleet(tx: Transaction, queues: Sequence[Queue]) -> Fleet:
    current = {
        queue.name: queue.ready + queue.held_jobs + queue.later + queue.running for queue in queues
    }
    return Fleet(
        tx.now(),
        worker_statuses(tx),
        GuardQueries(tx).list_running_groups(MAX_GROUPS),
        read_flows(tx),
        read_depths(tx, current, DEPTH_MINUTES),
    )


def _queue(queue: Queue, fleet: Fleet) -> dict[str, Any]:
    limits = format_limits(queue.concurrency, queue.rate)
    if queue.fair:
        limits += ", fair between owners"
    oldest = ""
    if queue.oldest is not None:
        oldest = format_elapsed(to_micros(queue.oldest), fleet.now)
    by = ""
    if queue.paused or queue.set_by_hand:
        by = changed_by(queue.actor, queue.reason)
    flow = fleet.flows.get(("queue", queue.name), NO_FLOW)
    return {
        "name": queue.name,
        "badge": PAUSED if queue.paused else RUNNING,
        "paused": queue.paused,
        **_waiting_parts(queue, f"queue:{queue.name}"),
        "oldest": oldest,
        "enqueued": format_per_minute(flow.enqueued),
        "ended": format_per_minute(flow.ended),
        "wait": _format_quantiles(flow.wait),
        "depth": depth_line(fleet.depths.get(queue.name, []), DEPTH_MINUTES),
        "running": format_count(queue.running),
        "holders": _holders(fleet, queue=queue.name),
        "limits": limits,
        "set_manually": queue.set_by_hand,
        "until": optional_time_label(queue.paused_until or queue.set_until, fleet.now),
        "changed_by": by,
    }


def _waiting_parts(found: Queue | KindStatus, text: str) -> dict[str, Any]:
    """Split the waiting jobs of a queue or kind: a bar, and a linked number for each part."""
    counts = [
        ("ready", "busy", found.ready, f"{text} state:queued"),
        ("retrying", "warn", found.retrying, f"{text} phase:backing_off"),
        ("held", "bad", found.held_jobs, f"{text} phase:held"),
        ("scheduled", "calm", found.later - found.retrying, f"{text} phase:scheduled"),
    ]
    parts = [
        {"word": word, "count": format_count(n), "link": f"/jobs?filter={quote(filter_)}"}
        for word, _, n, filter_ in counts
        if n
    ]
    return {
        "waiting": parts,
        "bar": stacked_bar([(word, tone, n) for word, tone, n, _ in counts]),
    }


def format_per_minute(rate: float) -> str:
    """Format a number of jobs per minute: `1,410`, `3.2`, `< 0.1`, `0`."""
    if rate >= 10 or rate == 0:
        return f"{rate:,.0f}"
    return "< 0.1" if rate < 0.1 else f"{rate:.1f}"


def _format_quantiles(found: Quantiles | None) -> str:
    if found is None:
        return ""
    return f"{format_duration(found.half)} / {format_duration(found.most)}"


def _holders(fleet: Fleet, *, queue: str = "", worker: str = "") -> str:
    """Say which kinds hold places, for how long and how long they usually run."""
    groups = [
        group
        for group in fleet.running
        if (not queue or group.queue == queue) and (not worker or group.worker == worker)
    ]
    jobs: dict[str, int] = {}
    since: dict[str, Micros] = {}
    for group in groups:
        jobs[group.kind] = jobs.get(group.kind, 0) + group.jobs
        since[group.kind] = min(since.get(group.kind, group.since), group.since)
    ranked = sorted(jobs, key=lambda kind: (-jobs[kind], kind))
    sentences = []
    for kind in ranked[:MAX_HOLDERS]:
        text = f"{kind} {jobs[kind]:,} for {format_elapsed(since[kind], fleet.now)}"
        usual = fleet.flows.get(("kind", kind), NO_FLOW).run
        if usual is not None:
            text += f", usually {format_duration(usual.half)}"
        sentences.append(text)
    if len(ranked) > MAX_HOLDERS:
        sentences.append(f"{len(ranked) - MAX_HOLDERS} other kinds")
    return "; ".join(sentences)


def _describe_places(fleet: Fleet) -> str:
    """Say how many places are taken and by what."""
    if not fleet.places:
        return ""
    holders = _holders(fleet)
    text = f"{fleet.taken:,} of {fleet.places:,} places taken"
    return f"{text}: {holders}" if holders else text


def changed_by(actor: str, reason: str) -> str:
    """Name who changed something and why."""
    text = f"by {format_actor(actor)}"
    return f"{text}: {reason}" if reason else text


def _rank_kinds(kinds: Iterable[KindStatus], fleet: Fleet) -> list[KindStatus]:
    """Return held kinds first, then those with most attempts."""

    def rank(kind: KindStatus) -> tuple[bool, int, str]:
        attempts = fleet.flows.get(("kind", kind.name), NO_FLOW).attempts
        return not kind.held, -attempts, kind.name

    return sorted(kinds, key=rank)


def _kind(kind: KindStatus, fleet: Fleet) -> dict[str, Any]:
    now = fleet.now
    badge = IDLE
    by = ""
    if kind.held:
        badge = HELD
        by = changed_by(kind.actor, kind.reason)
    flow = fleet.flows.get(("kind", kind.name), NO_FLOW)
    running = sum(group.jobs for group in fleet.running if group.kind == kind.name)
    failed = ""
    if flow.failed:
        failed = format_percent(flow.failed / flow.attempts)
    return {
        "name": kind.name,
        "held": kind.held,
        "badge": badge,
        **_waiting_parts(kind, f"kind:{kind.name}"),
        "attempts": f"{flow.attempts:,}",
        "run": _format_quantiles(flow.run),
        "failed": failed,
        "failed_count": f"{flow.failed:,} of {flow.attempts:,} attempts failed in the last hour",
        "often_fails": flow.failed * 20 > flow.attempts,
        "running": format_count(running),
        "until": optional_time_label(kind.until, now),
        "since": optional_time_label(kind.since, now),
        "changed_by": by,
        "fingerprint": kind.fingerprint,
        "message": kind.message,
    }


def worker_row(worker: WorkerStatus, now: Micros) -> dict[str, Any]:
    """Build the row of a worker for a table."""
    row = worker.row
    return {
        "id": row.id,
        "short_id": shorten_id(row.id),
        "badge": WORKER_BADGES[worker.life],
        "host": row.host,
        "pid": row.pid,
        "running": worker.running,
        "concurrency": row.concurrency,
        "memory": format_size(row.memory) if row.memory else "–",
        "kinds": len(json.loads(row.kinds)),
        "release": row.release,
        "last_heartbeat": time_label(row.renewed_at, now),
        "since": time_label(row.started_at, now),
        "queues": ", ".join(json.loads(row.queues)) or "all queues",
        "may_drain": worker.life == "live",
        "drain_reason": row.drain_reason or "",
    }


# --- Schedules ---


def _upcoming(services: VisitorServices, schedule: Schedule) -> list[datetime]:
    return [] if schedule.problem else services.schedules.next(schedule.name, UPCOMING)


def _schedule(schedule: Schedule, upcoming: list[datetime], now: Micros) -> dict[str, Any]:
    badge = ON
    by = ""
    if schedule.paused:
        badge = PAUSED
        by = changed_by(schedule.actor, schedule.reason)
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "kind": schedule.kind,
        "queue": schedule.queue,
        "problem": schedule.problem,
        "upcoming": [time_label(to_micros(at), now) for at in upcoming],
        "last": optional_time_label(schedule.last_at, now),
        "last_job": schedule.last_job_id,
        "badge": badge,
        "paused": schedule.paused,
        "until": optional_time_label(schedule.paused_until, now),
        "changed_by": by,
    }


RUN_TONES = {"succeeded": "good", "dead": "bad", "cancelled": "calm", "parked": "warn"}


def _run(run: ScheduleRun, now: Micros) -> dict[str, Any]:
    """Describe one past run of a schedule."""
    state = run.state or "no longer stored"
    duration = ""
    if run.started_at is not None and run.finished_at is not None:
        duration = f" in {format_elapsed(run.started_at, run.finished_at)}"
    return {
        "at": time_label(run.slot, now),
        "tone": RUN_TONES.get(state, "busy" if run.state else "calm"),
        "label": f"{state}{duration}",
        "job": run.job_id if run.state else "",
    }

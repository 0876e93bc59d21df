"""Screens of queues, kinds, workers, dependencies and schedules."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from fastapi import Request, Response

from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_actor, format_elapsed, format_rate
from mulligan.guards.gate_status import Dependency, KindStatus, Queue
from mulligan.http.dashboard.actions import format_limits
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, screen
from mulligan.http.dashboard.view_models import (
    OPEN,
    RECOVERING,
    Badge,
    format_count,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.manifest.declared import load_kinds
from mulligan.schedules.service import Schedule
from mulligan.storage.base import Transaction
from mulligan.worker.registry import WorkerStatus, worker_statuses

UPCOMING = 5  # times of a schedule
CLOSED = Badge("●", "closed", "good")
PAUSED = Badge("‖", "paused", "warn")
FLOWING = Badge("●", "open", "good")
ON = Badge("●", "on", "good")
HELD = Badge("‖", "held", "warn")
WORKER_BADGES = {
    "live": Badge("●", "live", "good"),
    "draining": Badge("◐", "draining", "warn"),
    "silent": Badge("◌", "silent", "warn"),
    "dead": Badge("✕", "dead", "bad"),
    "left": Badge("○", "left", "calm"),
}
BREAKER_BADGES = {"open": OPEN, "ramping": RECOVERING}
BREAKER_MODES = {"hold": "jobs wait", "fail_fast": "jobs fail at once"}


class QueueScreens:
    """The screens of queues and workers, dependencies, and schedules."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/queues", MenuEntry("Control", 1, "queues", "Queues and workers", "⇶"))
    async def queues(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            queues = services.queues.list()
            kinds = services.kinds.list()
            with services.store.read() as tx:
                now = tx.now()
                workers = worker_statuses(tx)
            return {
                "queues": [_queue(queue, now) for queue in queues],
                "kinds": [_kind(kind, now) for kind in kinds],
                "workers": [worker_row(worker, now) for worker in workers],
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "queues.html", "queues", **values)

    @screen("/dependencies", MenuEntry("Control", 2, "dependencies", "Dependencies", "⊗"))
    async def dependencies(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            dependencies = services.dependencies.list()
            with services.store.read() as tx:
                now = tx.now()
                kinds = _kinds_by_dependency(tx)
            ranked = sorted(dependencies, key=lambda one: (one.state == "closed", one.key))
            rows = [{**dependency_row(one, now), "kinds": kinds.get(one.key, "")} for one in ranked]
            return {"rows": rows}

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "dependencies.html", "dependencies", **values)

    @screen("/schedules", MenuEntry("Control", 4, "schedules", "Schedules", "◷"))
    async def schedules(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            schedules = services.schedules.list()
            with services.store.read() as tx:
                now = tx.now()
            return {"rows": [_schedule(one, _upcoming(services, one), now) for one in schedules]}

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "schedules.html", "schedules", **values)


def _kinds_by_dependency(tx: Transaction) -> dict[str, str]:
    """Return the kinds that use each dependency, joined with commas as in a filter."""
    kinds: dict[str, list[str]] = {}
    for name, spec in load_kinds(tx).items():
        for key in filter(None, spec.uses.split(",")):
            kinds.setdefault(key, []).append(name)
    return {key: ",".join(names) for key, names in kinds.items()}


def _queue(queue: Queue, now: Micros) -> dict[str, Any]:
    limits = format_limits(queue.concurrency, queue.rate)
    if queue.fair:
        limits += ", fair between owners"
    oldest = ""
    if queue.oldest is not None:
        oldest = format_elapsed(to_micros(queue.oldest), now)
    changed_by = ""
    if queue.paused or queue.set_by_hand:
        changed_by = _changed_by(queue.actor, queue.reason)
    return {
        "name": queue.name,
        "badge": PAUSED if queue.paused else FLOWING,
        "waiting": format_count(queue.ready + queue.later),
        "ready": format_count(queue.ready),
        "later": format_count(queue.later),
        "running": format_count(queue.running),
        "oldest": oldest,
        "limits": limits,
        "set_manually": queue.set_by_hand,
        "until": optional_time_label(queue.paused_until or queue.set_until, now),
        "changed_by": changed_by,
    }


def _changed_by(actor: str, reason: str) -> str:
    text = f"by {format_actor(actor)}"
    return f"{text}: {reason}" if reason else text


def _kind(kind: KindStatus, now: Micros) -> dict[str, Any]:
    return {
        "name": kind.name,
        "held": kind.held,
        "badge": HELD if kind.held else FLOWING,
        "waiting": format_count(kind.ready + kind.later),
        "until": optional_time_label(kind.until, now),
        "since": optional_time_label(kind.since, now),
        "changed_by": _changed_by(kind.actor, kind.reason) if kind.held else "",
        "fingerprint": kind.fingerprint,
        "message": kind.message,
    }


def worker_row(worker: WorkerStatus, now: Micros) -> dict[str, Any]:
    """Build the row of a worker for a table."""
    row = worker.row
    return {
        "id": row.id,
        "badge": WORKER_BADGES[worker.life],
        "host": row.host,
        "pid": row.pid,
        "running": worker.running,
        "concurrency": row.concurrency,
        "kinds": len(json.loads(row.kinds)),
        "release": row.release,
        "last_heartbeat": time_label(row.renewed_at, now),
        "since": time_label(row.started_at, now),
        "queues": ", ".join(json.loads(row.queues)) or "all queues",
        "may_drain": worker.life == "live",
        "drain_reason": row.drain_reason or "",
    }


def dependency_row(dependency: Dependency, now: Micros) -> dict[str, Any]:
    """Build the row of a dependency for a table."""
    calls = dependency.calls
    share = 0.0
    failed = "no recent calls"
    if calls:
        share = dependency.failed / calls
        failed = f"{dependency.failed:,} of {calls:,} failed"
    return {
        "key": dependency.key,
        "badge": BREAKER_BADGES.get(dependency.state, CLOSED),
        "since": optional_time_label(dependency.since, now),
        "reason": _breaker_reason(dependency),
        "held": format_count(dependency.held),
        "running": format_count(dependency.running),
        "failed": failed,
        "share": round(share * 100, 1),
        "mode": BREAKER_MODES[dependency.mode],
        "limits": _dependency_limits(dependency),
        "budget": "" if dependency.tokens is None else f"{dependency.tokens:.0f}",
        "next": _next_change(dependency, now),
        "set_manually": dependency.set_by_hand,
        "effects": _action_effects(dependency),
    }


def _breaker_reason(dependency: Dependency) -> str:
    if dependency.state == "ramping":
        return f"limited to {format_rate(dependency.rate or 0.0)} while it recovers"
    if dependency.state == "open":
        return _changed_by(dependency.actor, dependency.reason)
    return ""


def _action_effects(dependency: Dependency) -> dict[str, str]:
    """Describe what each action would do, next to its button."""
    effect = "wait" if dependency.mode == "hold" else "fail at once with the breaker's code"
    held = format_count(dependency.held)
    return {
        "open": f"New jobs that use it {effect}. Running jobs continue. No probes are sent.",
        "close": f"The {held} waiting jobs start, slowly at first. "
        "If calls fail, the breaker opens again.",
        "probe": "One job or the probe function runs now. The others wait for its result.",
    }


def _dependency_limits(dependency: Dependency) -> str:
    limits = []
    if dependency.concurrency is not None:
        limits.append(f"{dependency.concurrency} at once")
    if dependency.rate is not None:
        limits.append(format_rate(dependency.rate))
    if dependency.reduced:
        limits.append("reduced after rate limit responses")
    if dependency.set_by_hand:
        limits.append("set manually")
    return ", ".join(limits)


def _next_change(dependency: Dependency, now: Micros) -> str:
    """Describe what an open breaker does next."""
    if dependency.probing:
        return "probe running"
    at = dependency.probe_at or dependency.until
    if at is None or dependency.state != "open":
        return ""
    event = "next probe" if dependency.probe_at else "closes"
    if to_micros(at) <= now:
        return f"{event} due now"
    return f"{event} in {format_elapsed(now, to_micros(at))}"


def _upcoming(services: VisitorServices, schedule: Schedule) -> list[datetime]:
    return [] if schedule.problem else services.schedules.next(schedule.name, UPCOMING)


def _schedule(schedule: Schedule, upcoming: list[datetime], now: Micros) -> dict[str, Any]:
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
        "badge": PAUSED if schedule.paused else ON,
        "paused": schedule.paused,
        "until": optional_time_label(schedule.paused_until, now),
        "changed_by": _changed_by(schedule.actor, schedule.reason) if schedule.paused else "",
    }

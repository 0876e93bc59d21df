"""Queues and workers, dependencies, schedules: what jobs pass through."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from fastapi import Request, Response

from mulligan.core.format import per, span, who
from mulligan.core.job import Micros, to_micros
from mulligan.guards.dependencies import Dependency
from mulligan.guards.gates import KindStatus, Queue
from mulligan.http.dashboard.actions import limits_in_words
from mulligan.http.dashboard.renderer import Renderer
from mulligan.http.dashboard.view_models import OPEN, RECOVERING, Badge, Moment, at_moment
from mulligan.http.services import CallerServices
from mulligan.manifest.declared import stored_kinds
from mulligan.schedules.service import Schedule
from mulligan.storage.base import Transaction
from mulligan.worker.liveness import WorkerStatus, workers_seen

CAP = 10_000
UPCOMING = 5
CLOSED = Badge("●", "closed", "good")
PAUSED = Badge("‖", "paused", "warn")
FLOWING = Badge("●", "open", "good")
ON = Badge("●", "on", "good")
HELD = Badge("‖", "held", "warn")
LIVES = {
    "live": Badge("●", "live", "good"),
    "draining": Badge("◐", "draining", "warn"),
    "silent": Badge("◌", "silent", "warn"),
    "dead": Badge("✕", "dead", "bad"),
    "left": Badge("○", "left", "calm"),
}


class QueueScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def queues(self, request: Request) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            queues, kinds = desk.queues.list(), desk.kinds.list()
            with desk.store.read() as unit:
                now, seen = unit.now(), workers_seen(unit)
            return {
                "queues": [_queue(queue, now) for queue in queues],
                "kinds": [_kind(kind, now) for kind in kinds],
                "workers": [worker_row(one, now) for one in seen],
            }

        return self._house.page(
            request, "queues.html", "queues", **await self._house.ask(request, look, shared=True)
        )

    async def dependencies(self, request: Request) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.dependencies.list()
            with desk.store.read() as unit:
                now = unit.now()
                users = _users(unit)
            ranked = sorted(found, key=lambda one: (one.state == "closed", one.key))
            return {
                "rows": [
                    dependency_row(one, now) | {"kinds": users.get(one.key, "")} for one in ranked
                ]
            }

        return self._house.page(
            request,
            "dependencies.html",
            "dependencies",
            **await self._house.ask(request, look, shared=True),
        )

    async def schedules(self, request: Request) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.schedules.list()
            with desk.store.read() as unit:
                now = unit.now()
            return {"rows": [_schedule(one, _next(desk, one), now) for one in found]}

        return self._house.page(
            request,
            "schedules.html",
            "schedules",
            **await self._house.ask(request, look, shared=True),
        )


def _users(unit: Transaction) -> dict[str, str]:
    """Which kinds use what, as a filter has them."""
    users: dict[str, list[str]] = {}
    for name, spec in stored_kinds(unit).items():
        for key in filter(None, spec.uses.split(",")):
            users.setdefault(key, []).append(name)
    return {key: ",".join(names) for key, names in users.items()}


def _many(count: int) -> str:
    return f"{CAP:,}+" if count >= CAP else f"{count:,}"


def _at(at: datetime | None, now: Micros) -> Moment | None:
    return None if at is None else at_moment(to_micros(at), now)


def _queue(queue: Queue, now: Micros) -> dict[str, Any]:
    fair = ", owners take turns" if queue.fair else ""
    return {
        "name": queue.name,
        "badge": PAUSED if queue.paused else FLOWING,
        "waiting": _many(queue.ready + queue.later),
        "ready": _many(queue.ready),
        "later": _many(queue.later),
        "running": _many(queue.running),
        "oldest": "" if queue.oldest is None else span(to_micros(queue.oldest), now),
        "limits": f"{limits_in_words(queue.concurrency, queue.rate)}{fair}",
        "by_hand": queue.set_by_hand,
        "until": _at(queue.paused_until or queue.set_until, now),
        "said": _said(queue.actor, queue.reason) if queue.paused or queue.set_by_hand else "",
    }


def _said(actor: str, reason: str) -> str:
    return f"by {who(actor)}{': ' + reason if reason else ''}"


def _kind(kind: KindStatus, now: Micros) -> dict[str, Any]:
    return {
        "name": kind.name,
        "held": kind.held,
        "badge": HELD if kind.held else FLOWING,
        "waiting": _many(kind.ready + kind.later),
        "until": _at(kind.until, now),
        "since": _at(kind.since, now),
        "said": _said(kind.actor, kind.reason) if kind.held else "",
        "fingerprint": kind.fingerprint,
        "message": kind.message,
    }


def worker_row(seen: WorkerStatus, now: Micros) -> dict[str, Any]:
    row = seen.row
    return {
        "id": row.id,
        "badge": LIVES[seen.life],
        "host": row.host,
        "pid": row.pid,
        "running": seen.running,
        "concurrency": row.concurrency,
        "kinds": len(json.loads(row.kinds)),
        "release": row.release,
        "seen": at_moment(row.renewed_at, now),
        "since": at_moment(row.started_at, now),
        "queues": ", ".join(json.loads(row.queues)) or "all queues",
        "leaving": seen.life != "live",
        "said": row.drain_reason or "",
    }


def dependency_row(one: Dependency, now: Micros) -> dict[str, Any]:
    share = one.failed / one.calls if one.calls else 0.0
    return {
        "key": one.key,
        "badge": {"open": OPEN, "ramping": RECOVERING}.get(one.state, CLOSED),
        "since": _at(one.since, now),
        "reason": _why(one),
        "held": _many(one.held),
        "running": _many(one.running),
        "failed": f"{one.failed:,} of {one.calls:,} failed" if one.calls else "no calls lately",
        "share": round(share * 100, 1),
        "mode": {"hold": "jobs wait", "fail_fast": "jobs end at once"}[one.mode],
        "limits": _limits(one),
        "budget": "" if one.tokens is None else f"{one.tokens:.0f}",
        "next": _expected(one, now),
        "by_hand": one.set_by_hand,
        "would": _would(one),
    }


def _why(one: Dependency) -> str:
    if one.state == "ramping":
        return f"{per(one.rate or 0.0)} may start"
    return _said(one.actor, one.reason) if one.state == "open" else ""


def _would(one: Dependency) -> dict[str, str]:
    """What each of the forms does, said beside it."""
    ends = "wait" if one.mode == "hold" else "end at once with the breaker's code"
    return {
        "open": f"Jobs that use it {ends}, also the {_many(one.running)} to come after those that run; no probe goes.",
        "close": f"The {_many(one.held)} that wait go on, slowly at first; if calls fail, its breaker opens again.",
        "probe": "One job or its health function goes now; the others wait for what comes of it.",
    }


def _limits(one: Dependency) -> str:
    said = [
        f"{one.concurrency} at once" if one.concurrency is not None else "",
        per(one.rate) if one.rate is not None else "",
        "lowered: it asked for fewer" if one.reduced else "",
        "set by hand" if one.set_by_hand else "",
    ]
    return ", ".join(limit for limit in said if limit)


def _expected(one: Dependency, now: Micros) -> str:
    if one.probing:
        return "a probe is under way"
    at = one.probe_at or one.until
    if at is None or one.state != "open":
        return ""
    when = f"in {span(now, to_micros(at))}" if to_micros(at) > now else "in a moment"
    return f"{'next probe' if one.probe_at else 'closes'} {when}"


def _next(desk: CallerServices, one: Schedule) -> list[datetime]:
    return [] if one.problem else desk.schedules.next(one.name, UPCOMING)


def _schedule(one: Schedule, upcoming: list[datetime], now: Micros) -> dict[str, Any]:
    return {
        "name": one.name,
        "cron": one.cron,
        "timezone": one.timezone,
        "kind": one.kind,
        "queue": one.queue,
        "problem": one.problem,
        "upcoming": [at_moment(to_micros(at), now) for at in upcoming],
        "last": _at(one.last_at, now),
        "last_job": one.last_job_id,
        "badge": PAUSED if one.paused else ON,
        "paused": one.paused,
        "until": _at(one.paused_until, now),
        "said": _said(one.actor, one.reason) if one.paused else "",
    }

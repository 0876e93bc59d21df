"""`app.queues`: what waits where, and what an operator says about it. Code declares, operators decide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mulligan.engine.audit import gate_facts
from mulligan.engine.declared import declared_limits, recent_manifests, stored_queues
from mulligan.engine.kinds import OURS, checked_name
from mulligan.engine.limiting import KEEP, Said, clear_limit, set_limit
from mulligan.engine.rooms import running_under
from mulligan.engine.said import ended_at, moment_of
from mulligan.errors import Moment, NotFound
from mulligan.event import EventType, NewEvent
from mulligan.job import Gate, Lane, Limit, LimitRow, Micros
from mulligan.policy.lanes import is_closed
from mulligan.policy.limits import effective, lasts
from mulligan.store.base import Store, Unit
from mulligan.store.counting import DepthRow

COUNT_CAP = 10_000
MOST_LANES = 2_000


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue at one moment. Counts stop at 10,000."""

    name: str
    paused: bool
    paused_until: datetime | None
    reason: str  # of the pause, else of what was set
    actor: str
    ready: int
    later: int  # scheduled, or waiting before a retry
    running: int
    oldest: datetime | None  # since when the first of them is due
    concurrency: int | None
    rate: float | None  # per second
    fair: bool
    set_by_hand: bool  # the limits are an operator's, not the code's
    set_until: datetime | None


QueueList = list[Queue]  # the classes below have a method called list


class Queues:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> QueueList:
        """Every queue that a job, a kind, a declaration or an operator names; of our own what is not as usual."""
        with self._open().read() as unit:
            return [queue for queue in _picture(unit) if not queue.name.startswith(OURS) or _unusual(queue)]

    def get(self, name: str) -> Queue:
        with self._open().read() as unit:
            found = _picture(unit)
        for queue in found:
            if queue.name == name:
                return queue
        message = f"no queue {name!r}: nothing waits or runs there, and no code or person names it"
        raise NotFound(message)

    # -- pause ------------------------------------------------------------------------------------
    def pause(self, name: str, *, until: Moment | None = None, reason: str = "") -> Queue:
        """Nothing of it starts any more; what runs goes on. `until`: seconds, timedelta or datetime."""
        checked_name("queue", name)
        with self._open().begin() as unit:
            now = unit.now()
            pause_in(unit, Gate("queue", name, now, ended_at("until", until, now), reason, self._actor))
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Queue:
        """A queue that is not paused stays as it is."""
        checked_name("queue", name)
        with self._open().begin() as unit:
            before = gate_facts(unit, "queue", name, unit.now())
            if unit.open_gate("queue", name):
                self._tell(unit, EventType.QUEUE_RESUMED, name, reason=reason, before=before, after={"paused": False})
        return self._known(name)

    # -- limits -----------------------------------------------------------------------------------
    def set(
        self,
        name: str,
        *,
        concurrency: int | None = KEEP,
        rate: float | str | None = KEEP,
        until: Moment | None = KEEP,
        reason: str = "",
    ) -> Queue:
        """Fleet-wide limits that win over the declared ones; None: no limit, no end. Not given: as it was set."""
        checked_name("queue", name)
        with self._open().begin() as unit:
            news = set_limit(unit, ("queue", name), Said(concurrency, rate, until, reason), self._actor)
            self._tell(unit, EventType.QUEUE_CHANGED, name, **news)
        return self.get(name)

    def clear(self, name: str, *, reason: str = "") -> Queue:
        """Back to what the code declares."""
        checked_name("queue", name)
        with self._open().begin() as unit:
            news = clear_limit(unit, ("queue", name), reason)
            if news is not None:
                self._tell(unit, EventType.QUEUE_CHANGED, name, **news)
        return self._known(name)

    def _known(self, name: str) -> Queue:
        """Also one that nothing names any more, now that the last word about it is gone."""
        try:
            return self.get(name)
        except NotFound:
            return Queue(name, False, None, "", "", 0, 0, 0, None, None, None, False, False, None)

    def _tell(self, unit: Unit, event: EventType, name: str, **data: Any) -> None:
        tell(unit, event, name, self._actor, data)


def pause_in(unit: Unit, gate: Gate) -> None:
    """In the caller's transaction."""
    before = gate_facts(unit, "queue", gate.key, gate.since)
    unit.open_gate("queue", gate.key)  # the last word counts, also when it is shorter
    unit.close_gate(gate)
    seen = {"before": before, "after": gate_facts(unit, "queue", gate.key, gate.since)}
    tell(unit, EventType.QUEUE_PAUSED, gate.key, gate.actor, {"until": gate.until, "reason": gate.reason, **seen})


def tell(unit: Unit, event: EventType, name: str, actor: str, data: Mapping[str, Any]) -> None:
    news = {"queue": name, **{key: value for key, value in data.items() if value not in (None, "")}}
    unit.write_events([NewEvent(event, actor=actor, data=news)])


class AsyncQueues:
    """The same, awaitable: each call on a thread."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def list(self) -> QueueList:
        return await asyncio.to_thread(self._queues.list)

    async def get(self, name: str) -> Queue:
        return await asyncio.to_thread(self._queues.get, name)

    async def pause(self, name: str, *, until: Moment | None = None, reason: str = "") -> Queue:
        return await asyncio.to_thread(self._queues.pause, name, until=until, reason=reason)

    async def resume(self, name: str, *, reason: str = "") -> Queue:
        return await asyncio.to_thread(self._queues.resume, name, reason=reason)

    async def set(self, name: str, **said: Any) -> Queue:
        return await asyncio.to_thread(self._queues.set, name, **said)

    async def clear(self, name: str, *, reason: str = "") -> Queue:
        return await asyncio.to_thread(self._queues.clear, name, reason=reason)


# -- the picture ------------------------------------------------------------------------------------
def _picture(unit: Unit) -> QueueList:
    look = unit.look()
    running = running_under(unit.running())
    declared = stored_queues(unit, look.now)
    limits = effective(declared_limits(unit, look.now), look.limits)
    rows = {row.key: row for row in unit.limits() if row.scope == "queue" and lasts(row, look.now)}
    gates = {gate.key: gate for gate in look.gates if gate.scope == "queue" and is_closed(gate, look.now)}
    of_kinds = {spec.queue for manifest in recent_manifests(unit, look.now) for spec in manifest.kinds.values()}
    depths = waiting_by(unit, look.now, lambda lane: lane.queue)
    busy = {key for scope, key in running if scope == "queue"}
    return [
        _queue(
            name,
            gates.get(name),
            rows.get(name),
            limits.get(("queue", name), Limit()),
            _depth(depths.get(name, ()), look.now),
            running["queue", name],
            fair=name in declared and declared[name].fair,
        )
        for name in sorted({*depths, *busy, *of_kinds, *declared, *rows, *gates})
    ]


def _unusual(queue: Queue) -> bool:
    """Somebody has said something about it."""
    return queue.paused or queue.set_by_hand


def _queue(
    name: str,
    gate: Gate | None,
    row: LimitRow | None,
    limit: Limit,
    depth: tuple[int, int, Micros | None],
    running: int,
    *,
    fair: bool,
) -> Queue:
    ready, later, oldest = depth
    said = gate or row
    return Queue(
        name=name,
        paused=gate is not None,
        paused_until=moment_of(gate.until) if gate is not None else None,
        reason="" if said is None else said.reason,
        actor="" if said is None else said.actor,
        ready=ready,
        later=later,
        running=running,
        oldest=moment_of(oldest),
        concurrency=limit.concurrency,
        rate=limit.rate,
        fair=fair,
        set_by_hand=row is not None,
        set_until=moment_of(row.until) if row is not None else None,
    )


def waiting_by(unit: Unit, now: Micros, name: Callable[[Lane], str]) -> dict[str, list[DepthRow]]:
    """What waits, lane by lane, put together by what a lane is of."""
    found: dict[str, list[DepthRow]] = {}
    for row in unit.depths(now, COUNT_CAP, MOST_LANES):
        found.setdefault(name(Lane.parse(row.lane)), []).append(row)
    return found


def _depth(rows: Sequence[DepthRow], now: Micros) -> tuple[int, int, Micros | None]:
    """(due, for later, since when the first is due); counting stops at the cap."""
    ready, later = sum(row.due for row in rows), sum(row.later for row in rows)
    oldest = min((row.first for row in rows if row.first <= now), default=None)
    return min(COUNT_CAP, ready), min(COUNT_CAP, later), oldest

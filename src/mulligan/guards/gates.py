"""`app.queues`: what waits where, and what an operator says about it. Code declares, operators decide."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.core.durations import ended_at, moment_of
from mulligan.core.errors import Moment, NotFound, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, Guarded, GuardRow, Lane, Limit, LimitRow, Micros
from mulligan.events.service import gate_facts, limit_facts, shown_limit
from mulligan.guards import kind_breaker as cause
from mulligan.guards.capacity import running_under
from mulligan.guards.kind_breaker import KindHold
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import MOST_RATE, NO_LIMIT, effective, lasts, rate_of
from mulligan.guards.observer import read_kind_state, write
from mulligan.manifest.declared import declared_limits, recent_manifests, stored_queues
from mulligan.manifest.specs import OURS, checked_name
from mulligan.storage.base import Store, Transaction
from mulligan.storage.stat_queries import DepthRow

# Limits as an operator says them, for a queue or a dependency: checked, merged with what was said before, written.

ALERT = "alert"  # the actor of what alerts do by themselves
KEEP: Any = type("Keep", (), {"__repr__": lambda _: "as it is"})()  # not said: as it was set before


class LimitChange(NamedTuple):
    """None: no limit, no end. Not given: as it was set."""

    concurrency: int | None = KEEP
    rate: float | str | None = KEEP
    until: Moment | None = KEEP
    reason: str = ""


def set_limit(unit: Transaction, key: Guarded, said: LimitChange, actor: str) -> dict[str, Any]:
    """What there is to tell about it."""
    now = unit.now()
    before = next((row for row in unit.limits() if row[:2] == key and lasts(row, now)), None)
    if before is not None and before.actor == ALERT != actor:
        before = None  # a person's word does not go on with what an alert has set for a while
    row = LimitRow(
        *key,
        _kept(said.concurrency, before and before.concurrency, checked_concurrency),
        _kept(said.rate, before and before.rate, checked_rate),
        now,
        (before and before.until) if said.until is KEEP else ended_at("until", said.until, now),
        said.reason,
        actor,
    )
    if row.concurrency is None and row.rate is None:
        message = f"{key[0]} {key[1]!r}: say concurrency=, rate= or both"
        raise Refused(message)
    unit.set_limit(row)
    after = shown_limit(row)
    return {
        **after,
        "reason": said.reason,
        "before": {} if before is None else shown_limit(before),
        "after": after,
    }


def clear_limit(unit: Transaction, key: Guarded, reason: str) -> dict[str, Any] | None:
    """What there is to tell about it; None: nothing was set."""
    before = limit_facts(unit, key, unit.now())
    if not unit.clear_limit(key):
        return None
    return {"cleared": True, "reason": reason, "before": before, "after": {}}


def _kept(said: Any, before: Any, checked: Callable[[Any], Any]) -> Any:
    """None lifts a limit, which is not the same as saying nothing."""
    if said is KEEP:
        return before
    return NO_LIMIT if said is None else checked(said)


def checked_concurrency(value: Any, name: str = "concurrency") -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < NO_LIMIT:
        message = (
            f"{name} must be a whole number from 1, or None; to stop everything, pause: {value!r}"
        )
        raise Refused(message)
    return value


def checked_rate(value: Any) -> float | None:
    """Starts per second."""
    if value is None:
        return None
    rate = rate_of(value) if isinstance(value, str) else value
    if (
        isinstance(rate, bool)
        or not isinstance(rate, int | float)
        or not math.isfinite(rate)
        or not 0 < rate <= MOST_RATE
    ):
        message = f'rate must be starts per second above 0, or a text like "5/s", "100/m", "2/h"; not {value!r}'
        raise Refused(message)
    return float(rate)


# `app.queues`: what waits where, and what an operator says about it. Code declares, operators decide.

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
            return [
                queue
                for queue in _read_queues(unit)
                if not queue.name.startswith(OURS) or _unusual(queue)
            ]

    def get(self, name: str) -> Queue:
        with self._open().read() as unit:
            found = _read_queues(unit)
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
            pause_in(
                unit, Gate("queue", name, now, ended_at("until", until, now), reason, self._actor)
            )
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Queue:
        """A queue that is not paused stays as it is."""
        checked_name("queue", name)
        with self._open().begin() as unit:
            before = gate_facts(unit, "queue", name, unit.now())
            if unit.open_gate("queue", name):
                self._tell(
                    unit,
                    EventType.QUEUE_RESUMED,
                    name,
                    reason=reason,
                    before=before,
                    after={"paused": False},
                )
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
            news = set_limit(
                unit, ("queue", name), LimitChange(concurrency, rate, until, reason), self._actor
            )
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

    def _tell(self, unit: Transaction, event: EventType, name: str, **data: Any) -> None:
        write_queue_event(unit, event, name, self._actor, data)


def pause_in(unit: Transaction, gate: Gate) -> None:
    """In the caller's transaction."""
    before = gate_facts(unit, "queue", gate.key, gate.since)
    unit.open_gate("queue", gate.key)  # the last word counts, also when it is shorter
    unit.close_gate(gate)
    seen = {"before": before, "after": gate_facts(unit, "queue", gate.key, gate.since)}
    write_queue_event(
        unit,
        EventType.QUEUE_PAUSED,
        gate.key,
        gate.actor,
        {"until": gate.until, "reason": gate.reason, **seen},
    )


def write_queue_event(
    unit: Transaction, event: EventType, name: str, actor: str, data: Mapping[str, Any]
) -> None:
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
def _read_queues(unit: Transaction) -> QueueList:
    look = unit.look()
    running = running_under(unit.running())
    declared = stored_queues(unit, look.now)
    limits = effective(declared_limits(unit, look.now), look.limits)
    rows = {row.key: row for row in unit.limits() if row.scope == "queue" and lasts(row, look.now)}
    gates = {
        gate.key: gate for gate in look.gates if gate.scope == "queue" and is_closed(gate, look.now)
    }
    of_kinds = {
        spec.queue
        for manifest in recent_manifests(unit, look.now)
        for spec in manifest.kinds.values()
    }
    depths = waiting_by(unit, look.now, lambda lane: lane.queue)
    busy = {key for scope, key in running if scope == "queue"}
    return [
        _queue(
            name,
            gates.get(name),
            rows.get(name),
            limits.get(("queue", name), Limit()),
            _queue_depth(depths.get(name, ()), look.now),
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


def waiting_by(
    unit: Transaction, now: Micros, name: Callable[[Lane], str]
) -> dict[str, list[DepthRow]]:
    """What waits, lane by lane, put together by what a lane is of."""
    found: dict[str, list[DepthRow]] = {}
    for row in unit.depths(now, COUNT_CAP, MOST_LANES):
        found.setdefault(name(Lane.parse(row.lane)), []).append(row)
    return found


def _queue_depth(rows: Sequence[DepthRow], now: Micros) -> tuple[int, int, Micros | None]:
    """(due, for later, since when the first is due); counting stops at the cap."""
    ready, later = sum(row.due for row in rows), sum(row.later for row in rows)
    oldest = min((row.first for row in rows if row.first <= now), default=None)
    return min(COUNT_CAP, ready), min(COUNT_CAP, later), oldest


# `app.kinds`: which kinds are held, for what, and what an operator says about it.

PATIENCE = 100  # times
PAUSE = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class KindStatus:
    """A kind at one moment. Counts stop at 10,000."""

    name: str
    held: bool
    since: datetime | None
    until: datetime | None  # when it is released by itself
    reason: str
    actor: str
    ready: int  # due, and would run if it were not held
    later: int  # scheduled, or waiting before a retry
    code: str  # of the cause, if a guard holds it; and so on
    message: str
    fingerprint: str
    job: str  # one that died of it
    jobs: int
    owners: int


KindList = list[KindStatus]  # the classes below have a method called list


class Kinds:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> KindList:
        """Every kind that a waiting job, an app or a person names, those that are held first."""
        with self._open().read() as unit:
            found = [
                kind for kind in _read_kinds(unit) if kind.held or not kind.name.startswith(OURS)
            ]
        return sorted(found, key=lambda kind: (not kind.held, kind.name))

    def get(self, name: str) -> KindStatus:
        for found in self.list():
            if found.name == name:
                return found
        message = f"no kind {name!r}: no job of it waits, and no app or person names it"
        raise NotFound(message)

    # -- by hand ----------------------------------------------------------------------------------
    def hold(self, name: str, *, until: Moment | None = None, reason: str = "") -> KindStatus:
        """Start nothing of it until then, or until somebody releases it; what runs goes on."""

        def change(unit: Transaction, row: GuardRow, now: Micros) -> None:
            end = ended_at("until", until, now)
            before = gate_facts(unit, "kind", name, now)
            self._forget(unit, row, reason or "a person holds it")
            unit.open_gate("kind", name)  # the last word counts, also when it is shorter
            unit.close_gate(Gate("kind", name, now, end, reason, self._actor))
            seen = {"before": before, "after": gate_facts(unit, "kind", name, now)}
            self._tell(unit, EventType.KIND_HELD, kind=name, until=end, reason=reason, **seen)

        self._changed(name, change)
        return self.get(name)

    def release(self, name: str, *, reason: str = "") -> KindStatus:
        """Let its jobs go. What they died of before is forgotten. A kind that is not held stays as it is."""

        def change(unit: Transaction, row: GuardRow, now: Micros) -> None:
            before = gate_facts(unit, "kind", name, now)
            self._forget(unit, row, reason)
            if unit.open_gate("kind", name):
                self._tell(
                    unit,
                    EventType.KIND_RELEASED,
                    kind=name,
                    reason=reason,
                    before=before,
                    after={"held": False},
                )

        self._changed(name, change)
        return self._known(name)

    def _forget(self, unit: Transaction, row: GuardRow, reason: str) -> None:
        memory = read_kind_state(row.body)
        unit.take_tallies(("kind", row.key))
        write(unit, row, cause.released(memory))
        if memory.held is not None:
            said = {
                "kind": row.key,
                "fingerprint": memory.held.fingerprint,
                "code": memory.held.code,
            }
            seen = {"before": {"alert": "fired"}, "after": {"alert": "resolved"}}
            self._tell(unit, EventType.ALERT_RESOLVED, **said, reason=reason, **seen)

    def _changed(self, name: str, change: Callable[[Transaction, GuardRow, Micros], None]) -> None:
        checked_name("kind", name)
        store = self._open()
        for _ in range(PATIENCE):
            with store.begin() as unit:
                row = unit.guard(("kind", name))
                if row is not None:
                    change(unit, row, unit.now())
                    return
            time.sleep(PAUSE)  # a worker has it in hand, for the length of a turn
        message = f"kind {name!r} is busy; try again"
        raise StoreUnavailable(message)

    def _known(self, name: str) -> KindStatus:
        """Also one that nothing names any more."""
        try:
            return self.get(name)
        except NotFound:
            return _status(name, None, None, 0, 0)

    def _tell(self, unit: Transaction, event: EventType, **data: Any) -> None:
        news = {key: value for key, value in data.items() if value not in (None, "")}
        unit.write_events([NewEvent(event, actor=self._actor, data=news)])


class AsyncKinds:
    """The same, awaitable: each call on a thread."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    async def list(self) -> KindList:
        return await asyncio.to_thread(self._kinds.list)

    async def get(self, name: str) -> KindStatus:
        return await asyncio.to_thread(self._kinds.get, name)

    async def hold(self, name: str, *, until: Moment | None = None, reason: str = "") -> KindStatus:
        return await asyncio.to_thread(self._kinds.hold, name, until=until, reason=reason)

    async def release(self, name: str, *, reason: str = "") -> KindStatus:
        return await asyncio.to_thread(self._kinds.release, name, reason=reason)


# -- the picture ------------------------------------------------------------------------------------
def _read_kinds(unit: Transaction) -> KindList:
    look = unit.look()
    gates = {
        gate.key: gate for gate in look.gates if gate.scope == "kind" and is_closed(gate, look.now)
    }
    causes = (
        {row.key: read_kind_state(row.body).held for row in unit.guards() if row.scope == "kind"}
        if gates
        else {}
    )
    waiting = waiting_by(unit, look.now, lambda lane: lane.kind)
    known = {kind for manifest in recent_manifests(unit, look.now) for kind in manifest.kinds}
    names = {*gates, *waiting, *(kind for kind in known if not kind.startswith(cause.OURS))}
    return [
        _status(name, gates.get(name), causes.get(name), *_kind_depth(waiting.get(name, ())))
        for name in names
    ]


def _status(
    name: str, gate: Gate | None, held: KindHold | None, ready: int, later: int
) -> KindStatus:
    why = held or KindHold("", "", "", "", 0, 0, 0, "")
    return KindStatus(
        name=name,
        held=gate is not None,
        since=moment_of(None if gate is None else gate.since),
        until=moment_of(None if gate is None else gate.until),
        reason="" if gate is None else gate.reason,
        actor="" if gate is None else gate.actor,
        ready=ready,
        later=later,
        code=why.code,
        message=why.message,
        fingerprint=why.fingerprint,
        job=why.job,
        jobs=why.jobs,
        owners=why.owners,
    )


def _kind_depth(rows: Sequence[DepthRow]) -> tuple[int, int]:
    return min(COUNT_CAP, sum(row.due for row in rows)), min(
        COUNT_CAP, sum(row.later for row in rows)
    )

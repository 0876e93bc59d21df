"""`app.dependencies`: what jobs use, how it is, and what an operator says about it.

Open, here as at any breaker, means that nothing flows: its jobs are held. Closed means all is well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mulligan.engine.declared import declared_limits, holding_manifests, recent_manifests, terms_of_all
from mulligan.engine.kinds import checked_name
from mulligan.engine.queues import COUNT_CAP
from mulligan.engine.rooms import running_under
from mulligan.engine.said import ended_at, moment_of
from mulligan.engine.watch import Watch, remembered
from mulligan.errors import Moment, NotFound, Refused, StoreUnavailable
from mulligan.event import EventType, NewEvent
from mulligan.job import Gate, GuardRow, Lane, Limit, Micros
from mulligan.policy import breaker
from mulligan.policy.guard import FRESH, Guard
from mulligan.policy.lanes import is_closed
from mulligan.policy.limits import effective
from mulligan.store.base import Look, Store, Unit

PATIENCE = 100  # times
PAUSE = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency at one moment. Counts stop at 10,000."""

    key: str
    state: str  # closed, ramping, open
    mode: str  # hold, fail_fast
    since: datetime | None  # when it was opened, or began to recover
    until: datetime | None  # when it closes by itself; None: when a probe succeeds, or a person says so
    reason: str
    actor: str
    probe_at: datetime | None  # when the next one may go
    probing: bool  # one is under way
    held: int  # due jobs that wait for it
    running: int
    calls: int  # in its window
    failed: int
    rate: float | None  # starts a second that are allowed now, if a rate limits it
    concurrency: int | None  # at a time, if that is limited
    tokens: float | None  # retries that are left; None: nobody counts them
    declared: bool  # by app.dependency(), not only by what jobs use


Dependencies_ = list[Dependency]  # the classes below have a method called list


class Dependencies:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open_store = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> Dependencies_:
        """Every dependency that a kind, a waiting job, a declaration, a guard or a person names."""
        with self._open_store().read() as unit:
            return _picture(unit)

    def get(self, key: str) -> Dependency:
        for found in self.list():
            if found.key == key:
                return found
        message = f"no dependency {key!r}: no job uses it, and no code or person names it"
        raise NotFound(message)

    # -- by hand ----------------------------------------------------------------------------------
    def open(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        """Hold its jobs until then, or until somebody closes it. No probe goes meanwhile."""

        def change(unit: Unit, watch: Watch, row: GuardRow, guard: Guard, now: Micros) -> None:
            end = ended_at("until", until, now)
            after = breaker.opened_by_hand(guard, end, reason, watch.terms(key), now)
            watch.write(unit, row, guard, after, [])
            unit.open_gate("dependency", key)  # the last word counts, also when it is shorter
            unit.close_gate(Gate("dependency", key, now, end, reason, self._actor))
            self._tell(unit, EventType.DEPENDENCY_OPENED, key, until=end, reason=reason)

        return self._changed(key, change)

    def close(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        """Let its jobs go, on a ramp. `until`: the breaker does not open before, whatever it sees."""

        def change(unit: Unit, watch: Watch, row: GuardRow, guard: Guard, now: Micros) -> None:
            end = ended_at("until", until, now)
            gate = next((one for one in unit.gates() if one[:2] == ("dependency", key)), None)
            changes: breaker.Changes = []
            why = reason or "closed by hand"
            if gate is None and not guard.open:  # nothing is held: there is nothing to let go
                after = breaker.kept_closed(guard, end)
            else:
                after = breaker.closed_by_hand(guard, end, why, watch.terms(key), now, changes)
            watch.write(unit, row, guard, after, changes, actor=self._actor)
            if end is not None:
                self._tell(unit, EventType.DEPENDENCY_CHANGED, key, until=end, reason=f"kept closed: {why}")

        return self._changed(key, change)

    def probe(self, key: str, *, reason: str = "") -> Dependency:
        """Look now whether it answers again, instead of when its time has come."""

        def change(unit: Unit, watch: Watch, row: GuardRow, guard: Guard, now: Micros) -> None:
            if not guard.open:
                held = guard.by_hand(now) is not None
                hint = f"a person holds it; to let it go: deps close {key}" if held else "it is not open"
                message = f"dependency {key!r} cannot be probed: {hint}"
                raise Refused(message)
            watch.write(unit, row, guard, replace(guard, probe_at=now), [])
            self._tell(unit, EventType.DEPENDENCY_CHANGED, key, reason=reason or "a probe was asked for")

        return self._changed(key, change)

    def _changed(self, key: str, change: Callable[[Unit, Watch, GuardRow, Guard, Micros], None]) -> Dependency:
        checked_name("dependency", key)
        store = self._open_store()
        for _ in range(PATIENCE):
            with store.begin() as unit:
                row = unit.guard(("dependency", key))
                if row is not None:
                    now = unit.now()
                    watch = Watch(others=terms_of_all(holding_manifests(unit, now)))
                    change(unit, watch, row, remembered(row.body), now)
                    break
            time.sleep(PAUSE)  # a worker has it in hand, for the length of a turn
        else:
            message = f"dependency {key!r} is busy; try again"
            raise StoreUnavailable(message)
        return self.get(key)

    def _tell(self, unit: Unit, event: EventType, key: str, **data: Any) -> None:
        news = {"dependency": key, **{name: value for name, value in data.items() if value not in (None, "")}}
        unit.write_events([NewEvent(event, actor=self._actor, data=news)])


class AsyncDependencies:
    """The same, awaitable: each call on a thread."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    async def list(self) -> Dependencies_:
        return await asyncio.to_thread(self._dependencies.list)

    async def get(self, key: str) -> Dependency:
        return await asyncio.to_thread(self._dependencies.get, key)

    async def open(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.open, key, until=until, reason=reason)

    async def close(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.close, key, until=until, reason=reason)

    async def probe(self, key: str, *, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.probe, key, reason=reason)


# -- the picture ------------------------------------------------------------------------------------
def _picture(unit: Unit) -> Dependencies_:
    look = unit.look()
    guards = {row.key: remembered(row.body) for row in unit.guards() if row.scope == "dependency"}
    gates = {gate.key: gate for gate in unit.gates() if gate.scope == "dependency" and is_closed(gate, look.now)}
    manifests = holding_manifests(unit, look.now)
    watch = Watch(others=terms_of_all(manifests))
    declared = {key for manifest in manifests for key in manifest.dependencies}
    limits = effective(declared_limits(unit, look.now), look.limits)
    running = running_under(unit.running())
    of_kinds = {
        key
        for manifest in recent_manifests(unit, look.now)
        for spec in manifest.kinds.values()
        for key in spec.uses.split(",")
    }
    used = {key for lane, _, _ in look.lanes for key in Lane.parse(lane).uses.split(",")}
    busy = {key for scope, key in running if scope == "dependency"}
    return [
        _dependency(
            unit, look, key, guards.get(key, FRESH), gates.get(key), watch,
            limits.get(("dependency", key), Limit()), running["dependency", key], declared=key in declared,
        )
        for key in sorted({*guards, *gates, *declared, *of_kinds, *used, *busy} - {""})
    ]  # fmt: skip


def _dependency(  # noqa: PLR0913 - what is known of it from everywhere
    unit: Unit, look: Look, key: str, guard: Guard, gate: Gate | None, watch: Watch, limit: Limit, running: int, *,
    declared: bool,
) -> Dependency:  # fmt: skip
    terms = watch.terms(key)
    ramp, probe = guard.ramp, guard.probe
    tight = [value for value in (limit.concurrency, guard.reduced.limit) if value is not None]
    rates = [value for value in (limit.rate, None if ramp is None else ramp.rate) if value is not None]
    since = gate.since if gate is not None else guard.closed_at if ramp is not None else None
    return Dependency(
        key=key,
        state="open" if gate is not None else "ramping" if ramp is not None else "closed",
        mode=terms.mode,
        since=moment_of(since),
        until=moment_of(gate.until if gate is not None else None),
        reason="" if gate is None else gate.reason,
        actor="" if gate is None else gate.actor,
        probe_at=moment_of(guard.probe_at if guard.open else None),
        probing=probe is not None and unit.runs(probe.job_id, probe.token),
        held=_held(unit, look, key) if gate is not None or ramp is not None else 0,
        running=running,
        calls=round(guard.window.ok + guard.window.failed),
        failed=round(guard.window.failed),
        rate=min(rates, default=None),
        concurrency=min(tight, default=None),
        tokens=guard.tokens(terms, look.now),
        declared=declared,
    )


def _held(unit: Unit, look: Look, key: str) -> int:
    held = 0
    for lane, priority, at in look.lanes:
        if at <= look.now and held < COUNT_CAP and key in Lane.parse(lane).uses.split(","):
            held += unit.depth(lane, priority, look.now, COUNT_CAP)[0]
    return min(COUNT_CAP, held)

"""`app.dependencies`: what jobs use, how it is, and what an operator says about it.

Open, here as at any breaker, means that nothing flows: its jobs are held. Closed means all is well.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import Any

from mulligan.core.durations import ended_at, moment_of
from mulligan.core.errors import IllegalMove, Moment, NotFound, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import moment
from mulligan.core.job import Gate, Guarded, GuardRow, Lane, Limit, LimitRow, Micros
from mulligan.events.service import gate_facts
from mulligan.guards import breaker
from mulligan.guards.capacity import running_under
from mulligan.guards.gates import COUNT_CAP, KEEP, LimitChange, clear_limit, set_limit
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import effective, lasts, tighter
from mulligan.guards.observer import DependencyObserver, read_guard_state
from mulligan.guards.state import FRESH, GuardState
from mulligan.manifest.declared import (
    holding_manifests,
    limits_of_all,
    recent_manifests,
    terms_of_all,
)
from mulligan.manifest.specs import OURS, checked_name
from mulligan.storage.base import Look, Store, Transaction

PATIENCE = 100  # times
PAUSE = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency at one moment. Counts stop at 10,000."""

    key: str
    state: str  # closed, ramping, open
    mode: str  # hold, fail_fast
    since: datetime | None  # when it was opened, or began to recover
    until: (
        datetime | None
    )  # open: when it closes by itself, without probes; else: how long a person keeps it closed
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
    reduced: bool  # to that many, because it asked for fewer calls
    tokens: float | None  # retries that are left; None: nobody counts them
    declared: bool  # by app.dependency(), not only by what jobs use
    set_by_hand: bool  # the limits are an operator's, not the code's
    set_until: datetime | None


Dependencies_ = list[Dependency]  # the classes below have a method called list
_UNSET: dict[str, Any] = {
    "rate": None,
    "concurrency": None,
    "set_by_hand": False,
    "set_until": None,
}


class Dependencies:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open_store = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> Dependencies_:
        """Every dependency that a kind, a waiting job, a declaration, a guard or a person names.

        Where messages go to only if it is not well.
        """
        with self._open_store().read() as unit:
            return [
                one
                for one in picture(unit)
                if not one.key.startswith(OURS) or one.state != "closed"
            ]

    def get(self, key: str) -> Dependency:
        with self._open_store().read() as unit:
            known = picture(unit)
        for found in known:
            if found.key == key:
                return found
        near = difflib.get_close_matches(key, [one.key for one in known], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message = f"no dependency {key!r}: no job uses it, and no code or person names it{hint}"
        raise NotFound(message)

    # -- by hand ----------------------------------------------------------------------------------
    def open(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        """Hold its jobs (mode fail_fast: end them) until then or until somebody closes it. No probe goes meanwhile."""

        def change(
            unit: Transaction,
            watch: DependencyObserver,
            row: GuardRow,
            guard: GuardState,
            now: Micros,
        ) -> None:
            end = ended_at("until", until, now)
            open_in(unit, watch, row, guard, Gate("dependency", key, now, end, reason, self._actor))

        return self._changed(key, change)

    def close(self, key: str, *, until: Moment | None = None, reason: str = "") -> Dependency:
        """Let its jobs go, on a ramp. `until`: the breaker does not open before, whatever it sees."""
        if until is None:
            self.get(key)

        def change(
            unit: Transaction,
            watch: DependencyObserver,
            row: GuardRow,
            guard: GuardState,
            now: Micros,
        ) -> None:
            end = ended_at("until", until, now)
            gate = next((one for one in unit.gates() if one[:2] == ("dependency", key)), None)
            before, kept = gate_facts(unit, "dependency", key, now), _until(None, guard, now)
            changes: breaker.Changes = []
            why = reason or "closed by hand"
            if gate is None and not guard.open:  # nothing is held: there is nothing to let go
                after = breaker.kept_closed(guard, end)
            else:
                after = breaker.closed_by_hand(guard, end, why, watch.terms(key), now, changes)
            seen = {"before": before, "after": {"open": False}}
            watch.write(unit, row, guard, after, changes, actor=self._actor, more=seen)
            if end is not None:
                seen = {"before": {"kept_closed_until": kept}, "after": {"kept_closed_until": end}}
                said = f"kept closed: {why}"
                self._tell(unit, EventType.DEPENDENCY_CHANGED, key, until=end, reason=said, **seen)

        return self._changed(key, change)

    def probe(self, key: str, *, reason: str = "") -> Dependency:
        """Look now whether it answers again, instead of when its time has come."""
        self.get(key)

        def change(
            unit: Transaction,
            watch: DependencyObserver,
            row: GuardRow,
            guard: GuardState,
            now: Micros,
        ) -> None:
            if not guard.open:
                raise IllegalMove(_not_probed(unit, key, now))
            watch.write(unit, row, guard, replace(guard, probe_at=now), [])
            seen = {"before": {"probe_at": guard.probe_at}, "after": {"probe_at": now}}
            self._tell(
                unit,
                EventType.DEPENDENCY_CHANGED,
                key,
                reason=reason or "a probe was asked for",
                **seen,
            )

        return self._changed(key, change)

    # -- limits -----------------------------------------------------------------------------------
    def set(
        self,
        key: str,
        *,
        concurrency: int | None = KEEP,
        rate: float | str | None = KEEP,
        until: Moment | None = KEEP,
        reason: str = "",
    ) -> Dependency:
        """Fleet-wide limits that win over the declared ones; None: no limit, no end. Not given: as it was set."""
        checked_name("dependency", key)
        with self._open_store().begin() as unit:
            news = set_limit(
                unit,
                ("dependency", key),
                LimitChange(concurrency, rate, until, reason),
                self._actor,
            )
            self._tell(unit, EventType.DEPENDENCY_CHANGED, key, **news)
        return self.get(key)

    def clear(self, key: str, *, reason: str = "") -> Dependency:
        """Back to what the code declares."""
        before = self.get(key)
        with self._open_store().begin() as unit:
            news = clear_limit(unit, ("dependency", key), reason)
            if news is not None:
                self._tell(unit, EventType.DEPENDENCY_CHANGED, key, **news)
        return next((one for one in self.list() if one.key == key), replace(before, **_UNSET))

    def _changed(
        self,
        key: str,
        change: Callable[[Transaction, DependencyObserver, GuardRow, GuardState, Micros], None],
    ) -> Dependency:
        checked_name("dependency", key)
        store = self._open_store()
        for _ in range(PATIENCE):
            with store.begin() as unit:
                row = unit.guard(("dependency", key))
                if row is not None:
                    now = unit.now()
                    watch = DependencyObserver(others=terms_of_all(holding_manifests(unit, now)))
                    change(unit, watch, row, read_guard_state(row.body), now)
                    break
            time.sleep(PAUSE)  # a worker has it in hand, for the length of a turn
        else:
            message = f"dependency {key!r} is busy; try again"
            raise StoreUnavailable(message)
        return self.get(key)

    def _tell(self, unit: Transaction, event: EventType, key: str, **data: Any) -> None:
        tell(unit, event, key, self._actor, data)


def open_in(
    unit: Transaction, watch: DependencyObserver, row: GuardRow, guard: GuardState, gate: Gate
) -> None:
    """In the caller's transaction, who has the guard's row."""
    before = gate_facts(unit, "dependency", gate.key, gate.since)
    after = breaker.opened_by_hand(
        guard, gate.until, gate.reason, watch.terms(gate.key), gate.since
    )
    watch.write(unit, row, guard, after, [])
    unit.open_gate("dependency", gate.key)  # the last word counts, also when it is shorter
    unit.close_gate(gate)
    seen = {"before": before, "after": gate_facts(unit, "dependency", gate.key, gate.since)}
    tell(
        unit,
        EventType.DEPENDENCY_OPENED,
        gate.key,
        gate.actor,
        {"until": gate.until, "reason": gate.reason, **seen},
    )


def tell(
    unit: Transaction, event: EventType, key: str, actor: str, data: Mapping[str, Any]
) -> None:
    news = {
        "dependency": key,
        **{name: value for name, value in data.items() if value not in (None, "")},
    }
    unit.write_events([NewEvent(event, actor=actor, data=news)])


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

    async def set(self, key: str, **said: Any) -> Dependency:
        return await asyncio.to_thread(self._dependencies.set, key, **said)

    async def clear(self, key: str, *, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.clear, key, reason=reason)


def _not_probed(unit: Transaction, key: str, now: Micros) -> str:
    gate = next(
        (gate for gate in unit.gates() if gate[:2] == ("dependency", key) and is_closed(gate, now)),
        None,
    )
    if gate is None:
        return f"dependency {key!r} cannot be probed: it is not open"
    end = "somebody closes it" if gate.until is None else moment(gate.until)
    sooner = f"mulligan deps close {quote(key)}"
    return f"dependency {key!r} cannot be probed: it is held until {end}; to let it go: {sooner}"


# -- the picture ------------------------------------------------------------------------------------
def not_closed(unit: Transaction) -> Dependencies_:
    """Those that hold, end or slow down jobs now. Quick where there is none."""
    at_work = any(row.scope == "dependency" for row in unit.guards(at_work=True))
    if not at_work and not any(gate.scope == "dependency" for gate in unit.gates()):
        return []
    return [one for one in picture(unit) if one.state != "closed"]


def picture(unit: Transaction) -> Dependencies_:
    look = unit.look()
    manifests = holding_manifests(unit, look.now)
    scene = _Scene(
        unit=unit,
        look=look,
        guards={
            row.key: read_guard_state(row.body)
            for row in unit.guards()
            if row.scope == "dependency"
        },
        gates={
            gate.key: gate
            for gate in unit.gates()
            if gate.scope == "dependency" and is_closed(gate, look.now)
        },
        rows={
            row.key: row
            for row in unit.limits()
            if row.scope == "dependency" and lasts(row, look.now)
        },
        watch=DependencyObserver(others=terms_of_all(manifests)),
        declared={key for manifest in manifests for key in manifest.dependencies},
        limits=effective(limits_of_all(manifests), look.limits),
        running=running_under(unit.running()),
    )
    return [_dependency(scene, key) for key in sorted(_named(scene) - {""})]


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is known of dependencies from everywhere."""

    unit: Transaction
    look: Look
    guards: Mapping[str, GuardState]
    gates: Mapping[str, Gate]
    rows: Mapping[str, LimitRow]
    watch: DependencyObserver
    declared: AbstractSet[str]
    limits: Mapping[Guarded, Limit]
    running: Mapping[Guarded, int]


def _named(scene: _Scene) -> AbstractSet[str]:
    """By whomever."""
    specs = (
        spec for one in recent_manifests(scene.unit, scene.look.now) for spec in one.kinds.values()
    )
    of_kinds = {key for spec in specs for key in spec.uses.split(",")}
    used = {key for lane, _, _ in scene.look.lanes for key in Lane.parse(lane).uses.split(",")}
    busy = {key for scope, key in scene.running if scope == "dependency"}
    return {*scene.guards, *scene.gates, *scene.rows, *scene.declared, *of_kinds, *used, *busy}


def _dependency(scene: _Scene, key: str) -> Dependency:
    guard, gate, row = scene.guards.get(key, FRESH), scene.gates.get(key), scene.rows.get(key)
    terms, limit = scene.watch.terms(key), scene.limits.get(("dependency", key), Limit())
    ramp, probe = guard.ramp, guard.probe
    tight = tighter(limit, guard.reduced.limit, None if ramp is None else ramp.rate, None)
    since = gate.since if gate is not None else guard.closed_at if ramp is not None else None
    said = gate or row
    return Dependency(
        key=key,
        state="open" if gate is not None else "ramping" if ramp is not None else "closed",
        mode=terms.mode,
        since=moment_of(since),
        until=moment_of(_until(gate, guard, scene.look.now)),
        reason="" if said is None else said.reason,
        actor="" if said is None else said.actor,
        probe_at=moment_of(guard.probe_at if guard.open and gate is not None else None),
        probing=probe is not None and scene.unit.runs(probe.job_id, probe.token),
        held=_held(scene, key) if gate is not None or ramp is not None else 0,
        running=scene.running.get(("dependency", key), 0),
        calls=round(guard.window.ok + guard.window.failed),
        failed=round(guard.window.failed),
        rate=tight.rate,
        concurrency=tight.concurrency,
        reduced=guard.reduced.limit is not None and tight.concurrency == guard.reduced.limit,
        tokens=guard.tokens(terms, scene.look.now),
        declared=key in scene.declared,
        set_by_hand=row is not None,
        set_until=moment_of(row.until) if row is not None else None,
    )


def _until(gate: Gate | None, guard: GuardState, now: Micros) -> Micros | None:
    if gate is not None:
        return gate.until
    hand = guard.by_hand(now)
    return None if hand is None or hand.open else hand.until


def _held(scene: _Scene, key: str) -> int:
    held, now = 0, scene.look.now
    for lane, priority, at in scene.look.lanes:
        if at <= now and held < COUNT_CAP and key in Lane.parse(lane).uses.split(","):
            held += scene.unit.depth(lane, priority, now, COUNT_CAP)[0]
    return min(COUNT_CAP, held)

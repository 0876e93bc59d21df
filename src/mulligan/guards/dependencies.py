"""Service `app.dependencies`: list, open, close, probe and limit dependencies.

As with every circuit breaker, open means that jobs are held. Closed is the normal state.
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
from typing import Any, Literal

from mulligan.core.durations import Micros, optional_datetime, resolve_end
from mulligan.core.errors import DurationOrTime, IllegalMove, NotFound, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import format_time
from mulligan.core.job import ClaimState, Gate, GuardRow, Lane, Limit, LimitKey, LimitRow
from mulligan.events.service import load_gate_state
from mulligan.guards import breaker
from mulligan.guards.capacity import count_running
from mulligan.guards.gates import (
    COUNT_CAP,
    LOCK_ATTEMPTS,
    LOCK_RETRY_DELAY,
    UNCHANGED,
    LimitChange,
    clear_limit,
    drop_empty,
    set_limit,
)
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import is_limit_active, merge_limits, tighten_limit
from mulligan.guards.observer import DependencyObserver, load_guard
from mulligan.guards.ramp import Ramp
from mulligan.guards.state import NEW_GUARD, GuardState
from mulligan.manifest.declared import (
    load_active_manifests,
    load_recent_manifests,
    merge_breaker_configs,
    merge_declared_limits,
)
from mulligan.manifest.specs import SYSTEM_PREFIX, check_name
from mulligan.storage.base import Store, Transaction


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency at one time. Counts stop at 10,000."""

    key: str
    state: str  # closed, ramping, open
    mode: str  # hold, fail_fast
    since: datetime | None  # when it opened, or started to recover
    # Open: when the hold expires. Closed: until when an operator keeps it closed.
    until: datetime | None
    reason: str
    actor: str
    probe_at: datetime | None  # earliest time of the next probe
    probing: bool  # a probe is running
    held: int  # due jobs that wait for it
    running: int
    calls: int  # in its window
    failed: int
    rate: float | None  # starts per second allowed now; None: not limited
    concurrency: int | None  # None: not limited
    reduced: bool  # the concurrency is reduced because the dependency rate-limits calls
    tokens: float | None  # retries left in the budget; None: no budget
    declared: bool  # by app.dependency(), not only by the jobs that use it
    set_by_hand: bool  # an operator set the limits
    set_until: datetime | None


DependencyList = list[Dependency]  # `Dependencies.list` hides the builtin
_NO_LIMITS: dict[str, Any] = {
    "rate": None,
    "concurrency": None,
    "set_by_hand": False,
    "set_until": None,
}


@dataclass(frozen=True, slots=True)
class _LockedGuard:
    """A guard that an operator's command has locked in its transaction."""

    tx: Transaction
    observer: DependencyObserver
    row: GuardRow
    guard: GuardState
    now: Micros


class Dependencies:
    """`app.dependencies`: list and control dependencies."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._store = store
        self._actor = actor

    def list(self) -> DependencyList:
        """Return every dependency that a kind, a job, a declaration, a guard or an operator names.

        Endpoints of notifications are listed only if they are not closed.
        """
        with self._store().read() as tx:
            dependencies = read_dependencies(tx)
        return [
            dependency
            for dependency in dependencies
            if not dependency.key.startswith(SYSTEM_PREFIX) or dependency.state != "closed"
        ]

    def get(self, key: str) -> Dependency:
        """Return a dependency; raise NotFound if nothing names it."""
        with self._store().read() as tx:
            dependencies = read_dependencies(tx)
        for dependency in dependencies:
            if dependency.key == key:
                return dependency
        raise NotFound(_unknown_dependency(key, dependencies))

    # --- Breaker ---

    def open(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        """Hold the jobs of a dependency until then or until it is closed; no probe runs meanwhile.

        In mode fail_fast its jobs fail at once instead.
        """

        def change(locked: _LockedGuard) -> None:
            end = resolve_end("until", until, locked.now)
            gate = Gate("dependency", key, locked.now, end, reason, self._actor)
            open_dependency(locked.tx, locked.observer, locked.row, locked.guard, gate)

        return self._update_guard(key, change)

    def close(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        """Start the jobs of a dependency again, on a ramp.

        `until`: the breaker does not open before, whatever it observes.
        """
        if until is None:
            self.get(key)

        def change(locked: _LockedGuard) -> None:
            end = resolve_end("until", until, locked.now)
            self._close(locked, end, reason or "closed by an operator")

        return self._update_guard(key, change)

    def _close(self, locked: _LockedGuard, until: Micros | None, reason: str) -> None:
        tx, guard, key, now = locked.tx, locked.guard, locked.row.key, locked.now
        gate_before = load_gate_state(tx, "dependency", key, now)
        pinned_before = _pinned_until(guard, now)
        changes: breaker.Changes = []
        if _find_gate(tx, key) is None and not guard.open:
            after = breaker.pin_closed(guard, until)  # nothing is held, so no ramp is needed
        else:
            config = locked.observer.config_for(key)
            after = breaker.close_manually(guard, until, reason, config, now, changes)
        more = {"before": gate_before, "after": {"open": False}}
        locked.observer.write(tx, locked.row, guard, after, changes, actor=self._actor, more=more)
        if until is not None:
            data = {
                "until": until,
                "reason": f"kept closed: {reason}",
                "before": {"kept_closed_until": pinned_before},
                "after": {"kept_closed_until": until},
            }
            self._write_change_event(tx, key, data)

    def probe(self, key: str, *, reason: str = "") -> Dependency:
        """Probe an open dependency now instead of at the scheduled time."""
        self.get(key)

        def change(locked: _LockedGuard) -> None:
            guard = locked.guard
            if not guard.open:
                raise IllegalMove(_explain_no_probe(locked.tx, key, locked.now))
            after = replace(guard, probe_at=locked.now)
            locked.observer.write(locked.tx, locked.row, guard, after, [])
            data = {
                "reason": reason or "a probe was requested",
                "before": {"probe_at": guard.probe_at},
                "after": {"probe_at": locked.now},
            }
            self._write_change_event(locked.tx, key, data)

        return self._update_guard(key, change)

    # --- Limits ---

    def set(
        self,
        key: str,
        *,
        concurrency: int | None = UNCHANGED,
        rate: float | str | None = UNCHANGED,
        until: DurationOrTime | None = UNCHANGED,
        reason: str = "",
    ) -> Dependency:
        """Set fleet-wide limits that win over the declared ones.

        None removes a limit or an end; a limit that is not passed stays as it was set.
        """
        check_name("dependency", key)
        change = LimitChange(concurrency, rate, until, reason)
        with self._store().begin() as tx:
            data = set_limit(tx, ("dependency", key), change, self._actor)
            self._write_change_event(tx, key, data)
        return self.get(key)

    def clear(self, key: str, *, reason: str = "") -> Dependency:
        """Return to the limits that the code declares."""
        before = self.get(key)
        with self._store().begin() as tx:
            data = clear_limit(tx, ("dependency", key), reason)
            if data is not None:
                self._write_change_event(tx, key, data)
        for dependency in self.list():
            if dependency.key == key:
                return dependency
        return replace(before, **_NO_LIMITS)

    def _update_guard(self, key: str, change: Callable[[_LockedGuard], None]) -> Dependency:
        """Lock the guard of a dependency and change it; wait if a worker has locked it."""
        check_name("dependency", key)
        store = self._store()
        for _ in range(LOCK_ATTEMPTS):
            with store.begin() as tx:
                row = tx.lock_guard(("dependency", key))
                if row is not None:
                    now = tx.now()
                    configs = merge_breaker_configs(load_active_manifests(tx, now))
                    observer = DependencyObserver(declared_elsewhere=configs)
                    change(_LockedGuard(tx, observer, row, load_guard(row.body), now))
                    break
            time.sleep(LOCK_RETRY_DELAY)
        else:
            message = f"dependency {key!r} is locked by a worker; try again"
            raise StoreUnavailable(message)
        return self.get(key)

    def _write_change_event(self, tx: Transaction, key: str, data: Mapping[str, Any]) -> None:
        write_dependency_event(tx, EventType.DEPENDENCY_CHANGED, key, self._actor, data)


def open_dependency(
    tx: Transaction,
    observer: DependencyObserver,
    row: GuardRow,
    guard: GuardState,
    gate: Gate,
) -> None:
    """Close the gate of a dependency in the transaction that has locked its guard."""
    key = gate.key
    before = load_gate_state(tx, "dependency", key, gate.since)
    config = observer.config_for(key)
    after = breaker.open_manually(guard, gate.until, gate.reason, config, gate.since)
    observer.write(tx, row, guard, after, [])
    tx.open_gate("dependency", key)  # the new hold replaces the old one, even if it ends sooner
    tx.close_gate(gate)
    data = {
        "until": gate.until,
        "reason": gate.reason,
        "before": before,
        "after": load_gate_state(tx, "dependency", key, gate.since),
    }
    write_dependency_event(tx, EventType.DEPENDENCY_OPENED, key, gate.actor, data)


def write_dependency_event(
    tx: Transaction, event: EventType, key: str, actor: str, data: Mapping[str, Any]
) -> None:
    """Write an event about a dependency, without empty fields."""
    event_data = {"dependency": key, **drop_empty(data)}
    tx.write_events([NewEvent(event, actor=actor, data=event_data)])


class AsyncDependencies:
    """`app.aio.dependencies`: the methods of `Dependencies`, each on a thread."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    async def list(self) -> DependencyList:
        return await asyncio.to_thread(self._dependencies.list)

    async def get(self, key: str) -> Dependency:
        return await asyncio.to_thread(self._dependencies.get, key)

    async def open(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        return await asyncio.to_thread(self._dependencies.open, key, until=until, reason=reason)

    async def close(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        return await asyncio.to_thread(self._dependencies.close, key, until=until, reason=reason)

    async def probe(self, key: str, *, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.probe, key, reason=reason)

    async def set(self, key: str, **limits: Any) -> Dependency:
        return await asyncio.to_thread(self._dependencies.set, key, **limits)

    async def clear(self, key: str, *, reason: str = "") -> Dependency:
        return await asyncio.to_thread(self._dependencies.clear, key, reason=reason)


def _unknown_dependency(key: str, known: DependencyList) -> str:
    message = f"no dependency {key!r}: no job, code or operator names it"
    similar = difflib.get_close_matches(key, [dependency.key for dependency in known], n=1)
    if similar:
        return f"{message}; did you mean {similar[0]}?"
    return message


def _explain_no_probe(tx: Transaction, key: str, now: Micros) -> str:
    gate = _find_gate(tx, key)
    if gate is None or not is_closed(gate, now):
        return f"dependency {key!r} cannot be probed: it is not open"
    end = "it is closed" if gate.until is None else format_time(gate.until)
    command = f"mulligan deps close {quote(key)}"
    return (
        f"dependency {key!r} cannot be probed: an operator holds it until {end}."
        f" To release its jobs, run: {command}"
    )


def _find_gate(tx: Transaction, key: str) -> Gate | None:
    for gate in tx.list_gates():
        if gate.scope == "dependency" and gate.key == key:
            return gate
    return None


# --- Reading dependencies ---


def list_impaired(tx: Transaction) -> DependencyList:
    """Return the dependencies that hold, fail or slow down jobs now. Cheap if there are none."""
    has_guards = any(row.scope == "dependency" for row in tx.list_guards(active_only=True))
    has_gates = any(gate.scope == "dependency" for gate in tx.list_gates())
    if not has_guards and not has_gates:
        return []
    return [dependency for dependency in read_dependencies(tx) if dependency.state != "closed"]


def read_dependencies(tx: Transaction) -> DependencyList:
    """Return all dependencies that anything names, sorted by key."""
    sources = _load_sources(tx)
    return [_build_dependency(sources, key) for key in sorted(_collect_keys(sources) - {""})]


@dataclass(frozen=True, slots=True)
class _Sources:
    """Everything that is known about dependencies, by key."""

    tx: Transaction
    state: ClaimState
    guards: Mapping[str, GuardState]
    gates: Mapping[str, Gate]
    limit_rows: Mapping[str, LimitRow]
    observer: DependencyObserver
    declared: AbstractSet[str]
    limits: Mapping[LimitKey, Limit]
    running: Mapping[LimitKey, int]


def _load_sources(tx: Transaction) -> _Sources:
    state = tx.read_claim_state()
    now = state.now
    manifests = load_active_manifests(tx, now)
    guards = {
        row.key: load_guard(row.body) for row in tx.list_guards() if row.scope == "dependency"
    }
    gates = {
        gate.key: gate
        for gate in tx.list_gates()
        if gate.scope == "dependency" and is_closed(gate, now)
    }
    limit_rows = {
        row.key: row
        for row in tx.list_limits()
        if row.scope == "dependency" and is_limit_active(row, now)
    }
    return _Sources(
        tx=tx,
        state=state,
        guards=guards,
        gates=gates,
        limit_rows=limit_rows,
        observer=DependencyObserver(declared_elsewhere=merge_breaker_configs(manifests)),
        declared={key for manifest in manifests for key in manifest.dependencies},
        limits=merge_limits(merge_declared_limits(manifests), state.limits),
        running=count_running(tx.count_running()),
    )


def _collect_keys(sources: _Sources) -> AbstractSet[str]:
    """Return the keys that a guard, a gate, a limit, a declaration, a kind or a job names."""
    keys = {*sources.guards, *sources.gates, *sources.limit_rows, *sources.declared}
    for manifest in load_recent_manifests(sources.tx, sources.state.now):
        for spec in manifest.kinds.values():
            keys.update(spec.uses.split(","))
    for lane, _, _ in sources.state.lanes:
        keys.update(Lane.parse(lane).uses.split(","))
    keys.update(key for scope, key in sources.running if scope == "dependency")
    return keys


def _build_dependency(sources: _Sources, key: str) -> Dependency:
    now = sources.state.now
    guard = sources.guards.get(key, NEW_GUARD)
    gate = sources.gates.get(key)
    limit_row = sources.limit_rows.get(key)
    config = sources.observer.config_for(key)
    ramp = guard.ramp
    probe = guard.probe
    declared_limit = sources.limits.get(("dependency", key), Limit())
    ramp_rate = None if ramp is None else ramp.rate
    limit = tighten_limit(declared_limit, guard.throttle.limit, ramp_rate, None)
    throttled = guard.throttle.limit is not None and limit.concurrency == guard.throttle.limit
    state = _breaker_state(gate, ramp)
    last_change = gate or limit_row
    return Dependency(
        key=key,
        state=state,
        mode=config.mode,
        since=optional_datetime(_state_since(guard, gate)),
        until=optional_datetime(gate.until if gate is not None else _pinned_until(guard, now)),
        reason="" if last_change is None else last_change.reason,
        actor="" if last_change is None else last_change.actor,
        probe_at=optional_datetime(guard.probe_at) if guard.open and gate is not None else None,
        probing=probe is not None and sources.tx.is_running(probe.job_id, probe.token),
        held=0 if state == "closed" else _count_held(sources, key),
        running=sources.running.get(("dependency", key), 0),
        calls=round(guard.window.ok + guard.window.failed),
        failed=round(guard.window.failed),
        rate=limit.rate,
        concurrency=limit.concurrency,
        reduced=throttled,
        tokens=guard.retry_tokens(config, now),
        declared=key in sources.declared,
        set_by_hand=limit_row is not None,
        set_until=None if limit_row is None else optional_datetime(limit_row.until),
    )


def _breaker_state(gate: Gate | None, ramp: Ramp | None) -> Literal["open", "ramping", "closed"]:
    if gate is not None:
        return "open"
    return "ramping" if ramp is not None else "closed"


def _state_since(guard: GuardState, gate: Gate | None) -> Micros | None:
    if gate is not None:
        return gate.since
    return guard.closed_at if guard.ramp is not None else None


def _pinned_until(guard: GuardState, now: Micros) -> Micros | None:
    """Return until when an operator keeps the breaker closed."""
    override = guard.active_override(now)
    if override is None or override.open:
        return None
    return override.until


def _count_held(sources: _Sources, key: str) -> int:
    now = sources.state.now
    held = 0
    for lane, priority, at in sources.state.lanes:
        if at <= now and held < COUNT_CAP and key in Lane.parse(lane).uses.split(","):
            held += sources.tx.count_waiting(lane, priority, now, COUNT_CAP)[0]
    return min(COUNT_CAP, held)

"""Services `app.queues`, `app.kinds` and `app.dependencies`: gates and limits of three scopes.

A closed gate starts no jobs: its queue is paused, its kind is held, or the circuit breaker of its
dependency is open. Code declares limits; an operator's gate or limit wins over the declaration.
"""

from __future__ import annotations

import difflib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from mulligan.core.durations import Micros, resolve_end
from mulligan.core.errors import (
    DurationOrTime,
    IllegalMove,
    NotFound,
    Refused,
    StoreUnavailable,
)
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import format_time
from mulligan.core.job import Gate, GuardRow, Lane, LimitKey
from mulligan.events.queries import EventQueries
from mulligan.events.service import CLOSED_FIELD, load_gate_state
from mulligan.guards import breaker, kind_breaker
from mulligan.guards.gate_status import (
    Dependency,
    DependencyList,
    KindList,
    KindStatus,
    Queue,
    QueueList,
    describe_trial,
    empty_kind,
    empty_queue,
    pinned_until,
    read_dependencies,
    read_kinds,
    read_queues,
)
from mulligan.guards.kind_breaker import KindState, KindTrial
from mulligan.guards.kind_observer import load_kind_state, write_kind_state
from mulligan.guards.lanes import find_closed_keys, is_closed
from mulligan.guards.observer import (
    DependencyObserver,
)
from mulligan.guards.operator_limits import UNCHANGED, LimitChange, clear_limit, set_limit
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import GuardState, load_guard
from mulligan.manifest.declared import load_active_manifests, merge_breaker_configs
from mulligan.manifest.specs import SYSTEM_PREFIX, check_name
from mulligan.storage.base import Store, Transaction

# --- Gates in a transaction ---


class ScopeEvents(NamedTuple):
    """Events about the gates and limits of a scope."""

    closed: EventType
    opened: EventType
    changed: EventType | None = None


SCOPE_EVENTS = {
    "queue": ScopeEvents(EventType.QUEUE_PAUSED, EventType.QUEUE_RESUMED, EventType.QUEUE_CHANGED),
    "kind": ScopeEvents(EventType.KIND_HELD, EventType.KIND_RELEASED),
    "dependency": ScopeEvents(
        EventType.DEPENDENCY_OPENED, EventType.DEPENDENCY_CLOSED, EventType.DEPENDENCY_CHANGED
    ),
}


def close_gate(
    tx: Transaction, gate: Gate, change_guard: Callable[[], None] = lambda: None
) -> None:
    """Close a gate in the caller's transaction, change its guard and write the event."""
    scope, key = gate.scope, gate.key
    before = load_gate_state(tx, scope, key, gate.since)
    change_guard()
    GuardQueries(tx).open_gate(
        scope, key
    )  # the new gate replaces the old one, even if it ends sooner
    GuardQueries(tx).close_gate(gate)
    data = {
        "until": gate.until,
        "reason": gate.reason,
        "before": before,
        "after": load_gate_state(tx, scope, key, gate.since),
    }
    _write_event(tx, SCOPE_EVENTS[scope].closed, (scope, key), gate.actor, data)


def open_gate(
    tx: Transaction,
    key: LimitKey,
    actor: str,
    reason: str,
    change_guard: Callable[[], None] = lambda: None,
) -> None:
    """Open a gate, change its guard, and write an event if the gate was closed."""
    scope, name = key
    before = load_gate_state(tx, scope, name, tx.now())
    change_guard()
    if GuardQueries(tx).open_gate(scope, name):
        data = {"reason": reason, "before": before, "after": {CLOSED_FIELD[scope]: False}}
        _write_event(tx, SCOPE_EVENTS[scope].opened, key, actor, data)


def write_change_event(tx: Transaction, key: LimitKey, actor: str, data: Mapping[str, Any]) -> None:
    """Write the event of changed limits or of another change that an operator made."""
    changed = SCOPE_EVENTS[key[0]].changed
    if changed is not None:
        _write_event(tx, changed, key, actor, data)


def _write_event(
    tx: Transaction, event: EventType, key: LimitKey, actor: str, data: Mapping[str, Any]
) -> None:
    """Write an event about a queue, kind or dependency, without empty fields."""
    scope, name = key
    fields = {field: value for field, value in data.items() if value not in (None, "")}
    EventQueries(tx).write_events([NewEvent(event, actor=actor, data={scope: name, **fields})])


# --- The service of a scope ---

LOCK_ATTEMPTS = 100
LOCK_RETRY_DELAY = 0.02  # seconds; a worker locks a guard for one transaction

S = TypeVar("S")


class Gates(ABC, Generic[S]):
    """Gates and limits of one scope, read and changed in the name of one actor."""

    scope: ClassVar[str]

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._store = store
        self._actor = actor

    @abstractmethod
    def _read(self, tx: Transaction) -> Mapping[str, S]:
        """Return everything that this scope has, by name."""

    def _read_all(self) -> Mapping[str, S]:
        with self._store().read() as tx:
            return self._read(tx)

    def _get(self, name: str) -> S:
        found = self._read_all()
        if name not in found:
            raise NotFound(_unknown_name(self.scope, name, list(found)))
        return found[name]

    def _find(self, name: str) -> S | None:
        return self._read_all().get(name)

    def _set(self, name: str, change: LimitChange) -> S:
        key = (self.scope, check_name(self.scope, name))
        with self._store().begin() as tx:
            write_change_event(tx, key, self._actor, set_limit(tx, key, change, self._actor))
        return self._get(name)

    def _clear(self, name: str, reason: str) -> S | None:
        key = (self.scope, check_name(self.scope, name))
        with self._store().begin() as tx:
            data = clear_limit(tx, key, reason)
            if data is not None:
                write_change_event(tx, key, self._actor, data)
        return self._find(name)

    def _new_gate(
        self, tx: Transaction, name: str, until: DurationOrTime | None, reason: str
    ) -> Gate:
        now = tx.now()
        end = resolve_end("until", until, now)
        return Gate(self.scope, name, now, end, reason, self._actor)

    def _change_guard(self, name: str, change: Callable[[Transaction, GuardRow], None]) -> None:
        """Lock the guard of a gate and change it; wait if a worker has locked it."""
        check_name(self.scope, name)
        store = self._store()
        for _ in range(LOCK_ATTEMPTS):
            with store.begin() as tx:
                row = GuardQueries(tx).lock_guard((self.scope, name))
                if row is not None:
                    change(tx, row)
                    return
            time.sleep(LOCK_RETRY_DELAY)
        message = f"{self.scope} {name!r} is locked by a worker; try again"
        raise StoreUnavailable(message)


def _unknown_name(scope: str, name: str, known: Sequence[str]) -> str:
    message = f"no {scope} {name!r}: no job, code or operator names it"
    similar = difflib.get_close_matches(name, known, n=1)
    return f"{message}. Did you mean {similar[0]}?" if similar else f"{message}."


# --- app.queues ---


class Queues(Gates[Queue]):
    """`app.queues`: list, pause and limit queues."""

    scope = "queue"

    def _read(self, tx: Transaction) -> Mapping[str, Queue]:
        return {queue.name: queue for queue in read_queues(tx)}

    def list(self) -> QueueList:
        """Return every queue that a job, a kind, a declaration or an operator names.

        Queues of Mulligan itself are listed only if an operator changed them.
        """
        return [
            queue
            for queue in self._read_all().values()
            if not queue.name.startswith(SYSTEM_PREFIX) or queue.paused or queue.set_by_hand
        ]

    def get(self, name: str) -> Queue:
        """Return a queue; raise NotFound if nothing names it."""
        return self._get(name)

    def pause(self, name: str, *, until: DurationOrTime | None = None, reason: str = "") -> Queue:
        """Start no more jobs of a queue; running jobs continue.

        `until` is seconds, a timedelta or a datetime.
        """
        check_name("queue", name)
        with self._store().begin() as tx:
            close_gate(tx, self._new_gate(tx, name, until, reason))
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Queue:
        """End a pause. A queue that is not paused is not changed."""
        check_name("queue", name)
        with self._store().begin() as tx:
            open_gate(tx, ("queue", name), self._actor, reason)
        return self._find(name) or empty_queue(name)

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = UNCHANGED,
        rate: float | str | None = UNCHANGED,
        until: DurationOrTime | None = UNCHANGED,
        reason: str = "",
    ) -> Queue:
        """Set fleet-wide limits that win over the declared ones.

        None removes a limit or an end; a limit that is not passed stays as it was set.
        """
        return self._set(name, LimitChange(concurrency, rate, until, reason))

    def clear(self, name: str, *, reason: str = "") -> Queue:
        """Return to the limits that the code declares."""
        return self._clear(name, reason) or empty_queue(name)


# --- app.kinds ---


_TRIAL_CHANGE = {"before": {"phase": "held"}, "after": {"phase": "ready"}}


class Kinds(Gates[KindStatus]):
    """`app.kinds`: list, hold and release kinds."""

    scope = "kind"

    def _read(self, tx: Transaction) -> Mapping[str, KindStatus]:
        return {kind.name: kind for kind in read_kinds(tx)}

    def list(self) -> KindList:
        """Return every kind that a waiting job, an app or an operator names, held kinds first."""
        kinds = self._read_all().values()
        visible = [kind for kind in kinds if kind.held or not kind.name.startswith(SYSTEM_PREFIX)]
        return sorted(visible, key=lambda kind: (not kind.held, kind.name))

    def get(self, name: str) -> KindStatus:
        """Return a kind; raise NotFound if nothing names it."""
        return self._get(name)

    def hold(
        self, name: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> KindStatus:
        """Start no more jobs of a kind until then or until it is released.

        Running jobs continue.
        """

        def change(tx: Transaction, row: GuardRow) -> None:
            why = reason or "held by an operator"
            gate = self._new_gate(tx, name, until, reason)
            close_gate(tx, gate, lambda: self._reset_breaker(tx, row, why))

        self._change_guard(name, change)
        return self.get(name)

    def release(self, name: str, *, reason: str = "") -> KindStatus:
        """End a hold and forget the counted deaths. A kind that is not held is not changed."""

        def change(tx: Transaction, row: GuardRow) -> None:
            key = ("kind", name)
            open_gate(tx, key, self._actor, reason, lambda: self._reset_breaker(tx, row, reason))

        self._change_guard(name, change)
        return self._find(name) or empty_kind(name)

    def try_one(self, name: str, *, reason: str = "") -> KindStatus:
        """Let one waiting job of a held kind run; the others still wait.

        `trial_result` of the kind says how it went. If the job fails again with the cause for which
        its kind is held, it is not charged and waits again, unless its kind allows no retries.
        """

        def change(tx: Transaction, row: GuardRow) -> None:
            state = load_kind_state(row.body)
            trial, owner = _choose_trial(tx, name, state)
            write_kind_state(tx, row, replace(state, trial=trial))
            event = NewEvent(
                EventType.JOB_TRIED,
                job_id=trial.job,
                owner=owner,
                actor=self._actor,
                data={"kind": name, "reason": reason, **_TRIAL_CHANGE},
            )
            EventQueries(tx).write_events([event])

        self._change_guard(name, change)
        return self.get(name)

    def _reset_breaker(self, tx: Transaction, row: GuardRow, reason: str) -> None:
        """Forget counted deaths and resolve the alert of a breaker that holds the kind."""
        state = load_kind_state(row.body)
        key = ("kind", row.key)
        GuardQueries(tx).take_tallies(key)
        write_kind_state(tx, row, kind_breaker.release_kind(state))
        if state.held is not None:
            data = {
                "fingerprint": state.held.fingerprint,
                "code": state.held.code,
                "reason": reason,
                "before": {"alert": "fired"},
                "after": {"alert": "resolved"},
            }
            _write_event(tx, EventType.ALERT_RESOLVED, key, self._actor, data)


def _choose_trial(tx: Transaction, name: str, state: KindState) -> tuple[KindTrial, str]:
    """Choose the next waiting job of a held kind, and return its owner too."""
    claim_state = GuardQueries(tx).read_claim_state()
    now = claim_state.now
    if name not in find_closed_keys(claim_state.gates, now).kinds:
        message = f"kind {name!r} is not held, so its jobs run"
        raise Refused(message)
    last = state.trial
    if last is not None:
        result = describe_trial(last, GuardQueries(tx).get_trial_job(last.job, last.token))
        if result in {"waiting", "running"}:
            message = f"job {last.job} of kind {name!r} is being tried"
            raise Refused(message)
    lanes = []
    for lane, priority, run_at in claim_state.lanes:
        if Lane.parse(lane).kind == name and run_at <= now:
            lanes.append((lane, priority))
    due = GuardQueries(tx).list_due_jobs(lanes, 2) if lanes else []
    # The job of the last trial comes last: its input may be the reason for the failures.
    last_job = "" if last is None else last.job
    due.sort(key=lambda job: (job.id == last_job, job))
    for candidate in due:
        job = GuardQueries(tx).get_trial_job(candidate.id, 0)
        if job is not None:
            return KindTrial(candidate.id, candidate.lane, job.token + 1, now), job.owner
    message = f"no job of kind {name!r} waits"
    raise Refused(message)


# --- app.dependencies ---

_NO_LIMITS: dict[str, Any] = {
    "rate": None,
    "concurrency": None,
    "set_by_hand": False,
    "set_until": None,
}


@dataclass(frozen=True, slots=True)
class _LockedGuard:
    """The guard of a dependency that an operator's command has locked in its transaction."""

    tx: Transaction
    observer: DependencyObserver
    row: GuardRow
    guard: GuardState
    now: Micros


class Dependencies(Gates[Dependency]):
    """`app.dependencies`: list and control dependencies.

    As with every circuit breaker, open means that jobs are held. Closed is the normal state.
    """

    scope = "dependency"

    def _read(self, tx: Transaction) -> Mapping[str, Dependency]:
        return {dependency.key: dependency for dependency in read_dependencies(tx)}

    def list(self) -> DependencyList:
        """Return every dependency that a kind, a job, a declaration, a guard or an operator names.

        Endpoints of notifications are listed only if they are not closed.
        """
        return [
            dependency
            for dependency in self._read_all().values()
            if not dependency.key.startswith(SYSTEM_PREFIX) or dependency.state != "closed"
        ]

    def get(self, key: str) -> Dependency:
        """Return a dependency; raise NotFound if nothing names it."""
        return self._get(key)

    def open(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        """Hold the jobs of a dependency until then or until it is closed; no probe runs meanwhile.

        In mode fail_fast its jobs fail at once instead.
        """

        def change(tx: Transaction, row: GuardRow) -> None:
            open_dependency(tx, row, self._new_gate(tx, key, until, reason))

        self._change_guard(key, change)
        return self.get(key)

    def close(
        self, key: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> Dependency:
        """Start the jobs of a dependency again, on a ramp.

        `until`: the breaker does not open before, whatever it observes.
        """
        if until is None:
            self.get(key)

        def change(tx: Transaction, row: GuardRow) -> None:
            locked = _load_locked(tx, row)
            end = resolve_end("until", until, locked.now)
            self._close(locked, end, reason or "closed by an operator")

        self._change_guard(key, change)
        return self.get(key)

    def _close(self, locked: _LockedGuard, until: Micros | None, reason: str) -> None:
        tx, guard, key, now = locked.tx, locked.guard, locked.row.key, locked.now
        gate_before = load_gate_state(tx, "dependency", key, now)
        pinned_before = pinned_until(guard, now)
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
            write_change_event(tx, ("dependency", key), self._actor, data)

    def probe(self, key: str, *, reason: str = "") -> Dependency:
        """Probe an open dependency now instead of at the scheduled time."""
        self.get(key)

        def change(tx: Transaction, row: GuardRow) -> None:
            locked = _load_locked(tx, row)
            guard = locked.guard
            if not guard.open:
                raise IllegalMove(_explain_no_probe(tx, key, locked.now))
            after = replace(guard, probe_at=locked.now)
            locked.observer.write(tx, row, guard, after, [])
            data = {
                "reason": reason or "a probe was requested",
                "before": {"probe_at": guard.probe_at},
                "after": {"probe_at": locked.now},
            }
            write_change_event(tx, ("dependency", key), self._actor, data)

        self._change_guard(key, change)
        return self.get(key)

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
        return self._set(key, LimitChange(concurrency, rate, until, reason))

    def clear(self, key: str, *, reason: str = "") -> Dependency:
        """Return to the limits that the code declares."""
        before = self.get(key)
        return self._clear(key, reason) or replace(before, **_NO_LIMITS)


def _load_locked(tx: Transaction, row: GuardRow) -> _LockedGuard:
    now = tx.now()
    configs = merge_breaker_configs(load_active_manifests(tx, now))
    observer = DependencyObserver(declared_elsewhere=configs)
    return _LockedGuard(tx, observer, row, load_guard(row.body), now)


def open_dependency(tx: Transaction, row: GuardRow, gate: Gate) -> None:
    """Open the breaker of a dependency in the transaction that has locked its guard."""
    locked = _load_locked(tx, row)
    config = locked.observer.config_for(gate.key)
    after = breaker.open_manually(locked.guard, gate.until, gate.reason, config, gate.since)
    close_gate(tx, gate, lambda: locked.observer.write(tx, row, locked.guard, after, []))


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
    for gate in GuardQueries(tx).list_gates():
        if gate.scope == "dependency" and gate.key == key:
            return gate
    return None

"""Services `app.queues` and `app.kinds`, and limits that an operator sets.

Code declares limits; an operator's pause, hold or limit wins over the declaration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, optional_datetime, resolve_end
from mulligan.core.errors import DurationOrTime, NotFound, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, GuardRow, Lane, Limit, LimitKey, LimitRow
from mulligan.events.service import limit_state, load_gate_state, load_limit_state
from mulligan.guards import kind_breaker
from mulligan.guards.capacity import count_running
from mulligan.guards.kind_breaker import KindHold
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import MAX_RATE, NO_LIMIT, is_limit_active, merge_limits, parse_rate
from mulligan.guards.observer import load_kind_state, write_kind_state
from mulligan.manifest.declared import load_declared_limits, load_queues, load_recent_manifests
from mulligan.manifest.specs import SYSTEM_PREFIX, check_name
from mulligan.storage.base import Store, Transaction
from mulligan.storage.stat_queries import LaneDepthRow

# --- Limits that an operator sets ---

ALERT_ACTOR = "alert"  # actor of changes that an alert makes itself


class _Unchanged:
    """Type of the default that keeps a limit as it was set; None removes the limit."""

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Any = _Unchanged()


class LimitChange(NamedTuple):
    """New limits. None removes a limit or an end; UNCHANGED keeps it as it was set."""

    concurrency: int | None = UNCHANGED
    rate: float | str | None = UNCHANGED
    until: DurationOrTime | None = UNCHANGED
    reason: str = ""


def set_limit(tx: Transaction, key: LimitKey, change: LimitChange, actor: str) -> dict[str, Any]:
    """Set the limits of a queue or dependency. Return the data of its event."""
    now = tx.now()
    before = _find_limit(tx, key, now)
    if before is not None and before.actor == ALERT_ACTOR and actor != ALERT_ACTOR:
        before = None  # an operator's limit does not extend a temporary one that an alert set
    concurrency, rate, until = None, None, None
    if before is not None:
        concurrency, rate, until = before.concurrency, before.rate, before.until
    if change.concurrency is not UNCHANGED:
        concurrency = _or_no_limit(check_concurrency(change.concurrency))
    if change.rate is not UNCHANGED:
        rate = _or_no_limit(check_rate(change.rate))
    if change.until is not UNCHANGED:
        until = resolve_end("until", change.until, now)
    scope, name = key
    if concurrency is None and rate is None:
        message = f"{scope} {name!r}: pass concurrency=, rate= or both"
        raise Refused(message)
    row = LimitRow(scope, name, concurrency, rate, now, until, change.reason, actor)
    tx.set_limit(row)
    after = limit_state(row)
    return {
        **after,
        "reason": change.reason,
        "before": {} if before is None else limit_state(before),
        "after": after,
    }


def _find_limit(tx: Transaction, key: LimitKey, now: Micros) -> LimitRow | None:
    for row in tx.list_limits():
        if (row.scope, row.key) == key and is_limit_active(row, now):
            return row
    return None


def _or_no_limit(value: Any) -> Any:
    """Return NO_LIMIT for None: lifting a limit is stored, unlike not setting one."""
    return NO_LIMIT if value is None else value


def clear_limit(tx: Transaction, key: LimitKey, reason: str) -> dict[str, Any] | None:
    """Remove an operator's limits. Return the data of the event, or None if none were set."""
    before = load_limit_state(tx, key, tx.now())
    if not tx.clear_limit(key):
        return None
    return {"cleared": True, "reason": reason, "before": before, "after": {}}


def check_concurrency(value: Any, name: str = "concurrency") -> int | None:
    """Return a concurrency limit; refuse anything but a whole number from 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < NO_LIMIT:
        message = (
            f"{name} must be a whole number of at least 1 or None, not {value!r}."
            " To stop all jobs, pause the queue."
        )
        raise Refused(message)
    return value


def check_rate(value: Any) -> float | None:
    """Return a rate limit in starts per second."""
    if value is None:
        return None
    rate = parse_rate(value) if isinstance(value, str) else value
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        rate = math.nan
    if not 0 < rate <= MAX_RATE:
        message = (
            "rate must be a number of starts per second above 0, or a text like"
            f' "5/s", "100/m" or "2/h"; not {value!r}'
        )
        raise Refused(message)
    return float(rate)


# --- app.queues ---

COUNT_CAP = 10_000
MAX_LANES = 2_000


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue at one time. Counts stop at 10,000."""

    name: str
    paused: bool
    paused_until: datetime | None
    reason: str  # of the pause, else of the operator's limits
    actor: str
    ready: int
    later: int  # scheduled, or waiting before a retry
    running: int
    oldest: datetime | None  # due time of the first ready job
    concurrency: int | None
    rate: float | None  # per second
    fair: bool
    set_by_hand: bool  # an operator set the limits
    set_until: datetime | None


QueueList = list[Queue]  # `Queues.list` hides the builtin


class Queues:
    """`app.queues`: list, pause and limit queues."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._store = store
        self._actor = actor

    def list(self) -> QueueList:
        """Return every queue that a job, a kind, a declaration or an operator names.

        Queues of Mulligan itself are listed only if an operator changed them.
        """
        with self._store().read() as tx:
            queues = _read_queues(tx)
        return [
            queue
            for queue in queues
            if not queue.name.startswith(SYSTEM_PREFIX) or queue.paused or queue.set_by_hand
        ]

    def get(self, name: str) -> Queue:
        """Return a queue; raise NotFound if nothing names it."""
        queue = self._find(name)
        if queue is None:
            message = f"no queue {name!r}: no job, code or operator names it"
            raise NotFound(message)
        return queue

    def pause(self, name: str, *, until: DurationOrTime | None = None, reason: str = "") -> Queue:
        """Start no more jobs of a queue; running jobs continue.

        `until` is seconds, a timedelta or a datetime.
        """
        check_name("queue", name)
        with self._store().begin() as tx:
            now = tx.now()
            end = resolve_end("until", until, now)
            pause_queue(tx, Gate("queue", name, now, end, reason, self._actor))
        return self.get(name)

    def resume(self, name: str, *, reason: str = "") -> Queue:
        """End a pause. A queue that is not paused is not changed."""
        check_name("queue", name)
        with self._store().begin() as tx:
            before = load_gate_state(tx, "queue", name, tx.now())
            if tx.open_gate("queue", name):
                data = {"reason": reason, "before": before, "after": {"paused": False}}
                write_queue_event(tx, EventType.QUEUE_RESUMED, name, self._actor, data)
        return self._find(name) or _empty_queue(name)

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
        check_name("queue", name)
        change = LimitChange(concurrency, rate, until, reason)
        with self._store().begin() as tx:
            data = set_limit(tx, ("queue", name), change, self._actor)
            write_queue_event(tx, EventType.QUEUE_CHANGED, name, self._actor, data)
        return self.get(name)

    def clear(self, name: str, *, reason: str = "") -> Queue:
        """Return to the limits that the code declares."""
        check_name("queue", name)
        with self._store().begin() as tx:
            data = clear_limit(tx, ("queue", name), reason)
            if data is not None:
                write_queue_event(tx, EventType.QUEUE_CHANGED, name, self._actor, data)
        return self._find(name) or _empty_queue(name)

    def _find(self, name: str) -> Queue | None:
        with self._store().read() as tx:
            queues = _read_queues(tx)
        return next((queue for queue in queues if queue.name == name), None)


def pause_queue(tx: Transaction, gate: Gate) -> None:
    """Close the gate of a queue in the caller's transaction and write its event."""
    before = load_gate_state(tx, "queue", gate.key, gate.since)
    tx.open_gate("queue", gate.key)  # the new pause replaces the old one, even if it ends sooner
    tx.close_gate(gate)
    data = {
        "until": gate.until,
        "reason": gate.reason,
        "before": before,
        "after": load_gate_state(tx, "queue", gate.key, gate.since),
    }
    write_queue_event(tx, EventType.QUEUE_PAUSED, gate.key, gate.actor, data)


def write_queue_event(
    tx: Transaction, event: EventType, name: str, actor: str, data: Mapping[str, Any]
) -> None:
    """Write an event about a queue, without empty fields."""
    event_data = {"queue": name, **drop_empty(data)}
    tx.write_events([NewEvent(event, actor=actor, data=event_data)])


def drop_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return event data without fields that are None or an empty text."""
    return {name: value for name, value in data.items() if value not in (None, "")}


# --- Reading queues ---


class _Depth(NamedTuple):
    """Waiting jobs of a queue or kind. Counts stop at the cap."""

    ready: int
    later: int
    oldest: Micros | None  # due time of the first ready job


def _read_queues(tx: Transaction) -> QueueList:
    state = tx.read_claim_state()
    now = state.now
    running = count_running(tx.count_running())
    declared = load_queues(tx, now)
    limits = merge_limits(load_declared_limits(tx, now), state.limits)
    limit_rows = {
        row.key: row
        for row in tx.list_limits()
        if row.scope == "queue" and is_limit_active(row, now)
    }
    gates = _closed_gates(state.gates, "queue", now)
    depths = group_depths(tx, now, lambda lane: lane.queue)
    busy = {key for scope, key in running if scope == "queue"}
    names = {*depths, *busy, *_kind_queues(tx, now), *declared, *limit_rows, *gates}
    return [
        _build_queue(
            name,
            gates.get(name),
            limit_rows.get(name),
            limits.get(("queue", name), Limit()),
            _sum_depths(depths.get(name, ()), now),
            running["queue", name],
            fair=name in declared and declared[name].fair,
        )
        for name in sorted(names)
    ]


def _closed_gates(gates: Sequence[Gate], scope: str, now: Micros) -> dict[str, Gate]:
    return {gate.key: gate for gate in gates if gate.scope == scope and is_closed(gate, now)}


def _kind_queues(tx: Transaction, now: Micros) -> set[str]:
    """Return the queues that kinds of recent manifests declare."""
    return {
        spec.queue
        for manifest in load_recent_manifests(tx, now)
        for spec in manifest.kinds.values()
    }


def _build_queue(
    name: str,
    gate: Gate | None,
    limit_row: LimitRow | None,
    limit: Limit,
    depth: _Depth,
    running: int,
    *,
    fair: bool,
) -> Queue:
    last_change = gate or limit_row
    return Queue(
        name=name,
        paused=gate is not None,
        paused_until=None if gate is None else optional_datetime(gate.until),
        reason="" if last_change is None else last_change.reason,
        actor="" if last_change is None else last_change.actor,
        ready=depth.ready,
        later=depth.later,
        running=running,
        oldest=optional_datetime(depth.oldest),
        concurrency=limit.concurrency,
        rate=limit.rate,
        fair=fair,
        set_by_hand=limit_row is not None,
        set_until=None if limit_row is None else optional_datetime(limit_row.until),
    )


def _empty_queue(name: str) -> Queue:
    """Return a queue that nothing names any more."""
    return _build_queue(name, None, None, Limit(), _Depth(0, 0, None), 0, fair=False)


def group_depths(
    tx: Transaction, now: Micros, key_of: Callable[[Lane], str]
) -> dict[str, list[LaneDepthRow]]:
    """Return the waiting jobs of every lane, grouped by a part of the lane."""
    groups: dict[str, list[LaneDepthRow]] = {}
    for row in tx.count_waiting_by_lane(now, COUNT_CAP, MAX_LANES):
        groups.setdefault(key_of(Lane.parse(row.lane)), []).append(row)
    return groups


def _sum_depths(rows: Sequence[LaneDepthRow], now: Micros) -> _Depth:
    ready = min(COUNT_CAP, sum(row.due for row in rows))
    later = min(COUNT_CAP, sum(row.later for row in rows))
    oldest = min((row.first for row in rows if row.first <= now), default=None)
    return _Depth(ready, later, oldest)


# --- app.kinds ---

LOCK_ATTEMPTS = 100
LOCK_RETRY_DELAY = 0.02  # seconds; a worker locks a guard for one transaction


@dataclass(frozen=True, slots=True)
class KindStatus:
    """A kind at one time. Counts stop at 10,000."""

    name: str
    held: bool
    since: datetime | None
    until: datetime | None  # when the hold expires
    reason: str
    actor: str
    ready: int  # due jobs
    later: int  # scheduled, or waiting before a retry
    code: str  # cause, if a kind breaker holds it; as the fields below
    message: str
    fingerprint: str
    job: str  # one that died of the cause
    jobs: int
    owners: int


KindList = list[KindStatus]  # `Kinds.list` hides the builtin


class Kinds:
    """`app.kinds`: list, hold and release kinds."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._store = store
        self._actor = actor

    def list(self) -> KindList:
        """Return every kind that a waiting job, an app or an operator names, held kinds first."""
        with self._store().read() as tx:
            kinds = _read_kinds(tx)
        visible = [kind for kind in kinds if kind.held or not kind.name.startswith(SYSTEM_PREFIX)]
        return sorted(visible, key=lambda kind: (not kind.held, kind.name))

    def get(self, name: str) -> KindStatus:
        """Return a kind; raise NotFound if nothing names it."""
        kind = self._find(name)
        if kind is None:
            message = f"no kind {name!r}: no waiting job, app or operator names it"
            raise NotFound(message)
        return kind

    def hold(
        self, name: str, *, until: DurationOrTime | None = None, reason: str = ""
    ) -> KindStatus:
        """Start no more jobs of a kind until then or until it is released.

        Running jobs continue.
        """

        def change(tx: Transaction, row: GuardRow, now: Micros) -> None:
            end = resolve_end("until", until, now)
            before = load_gate_state(tx, "kind", name, now)
            self._reset_breaker(tx, row, reason or "held by an operator")
            tx.open_gate("kind", name)  # the new hold replaces the old one, even if it is shorter
            tx.close_gate(Gate("kind", name, now, end, reason, self._actor))
            data = {
                "kind": name,
                "until": end,
                "reason": reason,
                "before": before,
                "after": load_gate_state(tx, "kind", name, now),
            }
            self._write_event(tx, EventType.KIND_HELD, data)

        self._update_guard(name, change)
        return self.get(name)

    def release(self, name: str, *, reason: str = "") -> KindStatus:
        """End a hold and forget the counted deaths. A kind that is not held is not changed."""

        def change(tx: Transaction, row: GuardRow, now: Micros) -> None:
            before = load_gate_state(tx, "kind", name, now)
            self._reset_breaker(tx, row, reason)
            if tx.open_gate("kind", name):
                data = {"kind": name, "reason": reason, "before": before, "after": {"held": False}}
                self._write_event(tx, EventType.KIND_RELEASED, data)

        self._update_guard(name, change)
        return self._find(name) or _build_kind(name, None, None, _Depth(0, 0, None))

    def _find(self, name: str) -> KindStatus | None:
        return next((kind for kind in self.list() if kind.name == name), None)

    def _reset_breaker(self, tx: Transaction, row: GuardRow, reason: str) -> None:
        """Forget counted deaths and resolve the alert of a breaker that holds the kind."""
        state = load_kind_state(row.body)
        tx.take_tallies(("kind", row.key))
        write_kind_state(tx, row, kind_breaker.release_kind(state))
        if state.held is not None:
            data = {
                "kind": row.key,
                "fingerprint": state.held.fingerprint,
                "code": state.held.code,
                "reason": reason,
                "before": {"alert": "fired"},
                "after": {"alert": "resolved"},
            }
            self._write_event(tx, EventType.ALERT_RESOLVED, data)

    def _update_guard(
        self, name: str, change: Callable[[Transaction, GuardRow, Micros], None]
    ) -> None:
        """Lock the guard of a kind and change it; wait if a worker has locked it."""
        check_name("kind", name)
        store = self._store()
        for _ in range(LOCK_ATTEMPTS):
            with store.begin() as tx:
                row = tx.lock_guard(("kind", name))
                if row is not None:
                    change(tx, row, tx.now())
                    return
            time.sleep(LOCK_RETRY_DELAY)
        message = f"kind {name!r} is locked by a worker; try again"
        raise StoreUnavailable(message)

    def _write_event(self, tx: Transaction, event: EventType, data: Mapping[str, Any]) -> None:
        tx.write_events([NewEvent(event, actor=self._actor, data=drop_empty(data))])


def _read_kinds(tx: Transaction) -> KindList:
    state = tx.read_claim_state()
    now = state.now
    gates = _closed_gates(state.gates, "kind", now)
    holds: dict[str, KindHold | None] = {}
    if gates:
        holds = {
            row.key: load_kind_state(row.body).held
            for row in tx.list_guards()
            if row.scope == "kind"
        }
    depths = group_depths(tx, now, lambda lane: lane.kind)
    declared = {kind for manifest in load_recent_manifests(tx, now) for kind in manifest.kinds}
    user_kinds = {kind for kind in declared if not kind.startswith(SYSTEM_PREFIX)}
    return [
        _build_kind(name, gates.get(name), holds.get(name), _sum_depths(depths.get(name, ()), now))
        for name in {*gates, *depths, *user_kinds}
    ]


def _build_kind(name: str, gate: Gate | None, hold: KindHold | None, depth: _Depth) -> KindStatus:
    cause = hold or KindHold("", "", "", "", 0, 0, 0, "")
    return KindStatus(
        name=name,
        held=gate is not None,
        since=None if gate is None else optional_datetime(gate.since),
        until=None if gate is None else optional_datetime(gate.until),
        reason="" if gate is None else gate.reason,
        actor="" if gate is None else gate.actor,
        ready=depth.ready,
        later=depth.later,
        code=cause.code,
        message=cause.message,
        fingerprint=cause.fingerprint,
        job=cause.job,
        jobs=cause.jobs,
        owners=cause.owners,
    )

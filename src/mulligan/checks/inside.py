"""What can only be asked once the schema is there: clock, workers, work that waits, events, keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from shlex import quote

from mulligan.checks.finding import OK, WARN, Check, Checks
from mulligan.checks.guards import guard_checks
from mulligan.checks.subscriptions import subscription_checks
from mulligan.config import Settings
from mulligan.engine.declared import stored_kinds
from mulligan.engine.kinds import DELIVERY_QUEUE
from mulligan.engine.upkeep import known_kinds
from mulligan.engine.workers import workers_seen
from mulligan.errors import MulliganError
from mulligan.job import SECOND, Lane
from mulligan.policy.lanes import is_closed
from mulligan.policy.phrase import duration, moment, one_line, who
from mulligan.store import Store
from mulligan.store.base import Unit

SKEW = 2.0  # seconds between the database's clock and ours that nobody should mind
LAG = 30.0  # seconds readers of events may wait for a transaction


def inside_checks(store: Store, settings: Settings) -> Checks:
    try:
        store.check_schema()
    except MulliganError:
        return
    looks: tuple[Callable[[Unit, Settings], Checks], ...] = (
        _clock,
        _workers,
        _unknown,
        _unserved,
        _held,
        guard_checks,
        subscription_checks,
        _events,
        _keys,
    )
    for look in looks:
        with store.read() as unit:
            yield from look(unit, settings)


def _clock(unit: Unit, _: Settings) -> Checks:
    before = time.time()
    theirs = unit.now() / SECOND
    after = time.time()
    skew = max(0.0, before - theirs, theirs - after)
    if skew > SKEW:
        yield Check(WARN, "clock", f"the database's clock is {duration(skew)} away from ours", "let NTP set both")
    else:
        yield Check(OK, "clock", "agrees with the database's")


def _workers(unit: Unit, _: Settings) -> Checks:
    seen = workers_seen(unit)
    living = [worker for worker in seen if worker.living]
    gone = [worker for worker in seen if not worker.living]
    if living:
        yield Check(OK, "workers", f"{len(living)} live")
    else:
        yield Check(WARN, "workers", "none is live: nothing runs", "mulligan worker APP")
    if gone:
        names = ", ".join(f"{worker.row.id} on {worker.row.host}" for worker in gone)
        yield Check(WARN, "workers", f"silent beyond their lease: {names}", "a live worker takes over their jobs")


def _unknown(unit: Unit, settings: Settings) -> Checks:
    look = unit.look()
    kinds = sorted({Lane.parse(key).kind for key, _, _ in look.lanes} - known_kinds(unit, look.now))
    if kinds:
        limit = duration(settings.worker.unknown_kind_after)
        found = f"jobs wait for kinds no worker knows: {', '.join(kinds)}; they die {limit} after they are due"
        yield Check(WARN, "kinds", found, "mulligan worker APP, with an app that has them")
    else:
        yield Check(OK, "kinds", "a worker knows every kind that waits")


def _unserved(unit: Unit, _: Settings) -> Checks:
    """Due work that every live worker passes by: it has other kinds, or was told other queues."""
    living = [worker.row for worker in workers_seen(unit) if worker.life == "live"]
    if not living:
        return  # said already
    served = [(set(json.loads(row.kinds)), set(json.loads(row.queues))) for row in living]
    look = unit.look()
    due = {Lane.parse(key) for key, _, first in look.lanes if first <= look.now}
    known = known_kinds(unit, look.now)
    left = {lane for lane in due if lane.kind in known and not any(_takes(lane, *what) for what in served)}
    if left:
        names = ", ".join(sorted({f"{lane.kind} in queue {lane.queue}" for lane in left}))
        yield Check(
            WARN, "queues", f"due, and no live worker takes it: {names}", "mulligan worker APP, without --queues"
        )


def _held(unit: Unit, _: Settings) -> Checks:
    now = unit.now()
    for gate in unit.gates():
        if gate.scope == "kind" and is_closed(gate, now):
            because = f": {one_line(gate.reason)}" if gate.reason else ""
            found = f"kind {gate.key} is held by {who(gate.actor)} since {moment(gate.since)}{because}"
            yield Check(WARN, "kinds", found, f"see to the cause, then: mulligan kinds release {quote(gate.key)}")


def _takes(lane: Lane, kinds: set[str], queues: set[str]) -> bool:
    return lane.kind in kinds and (not queues or lane.queue in {*queues, DELIVERY_QUEUE})


def _events(unit: Unit, _: Settings) -> Checks:
    lag = unit.event_lag() / SECOND
    if lag > LAG:
        found = (
            f"a transaction that has enqueued or written is open since {duration(lag)}: readers of events wait for it"
        )
        yield Check(WARN, "events", found, "SELECT pid, query FROM pg_stat_activity ORDER BY xact_start LIMIT 1")
    else:
        yield Check(OK, "events", f"the newest is {unit.newest_event()}, nobody holds readers up")


def _keys(unit: Unit, settings: Settings) -> Checks:
    """A unique key ends with its job, whatever `for_` says."""
    keep = settings.retention
    for spec in stored_kinds(unit).values():
        ends = [state for state in spec.unique_while.split(",") if hasattr(keep, state)]
        for state in ends if spec.unique_for is not None else ():
            kept = getattr(keep, state) if spec.retention is None else spec.retention / SECOND
            if spec.unique_for is not None and spec.unique_for / SECOND > kept:
                held = duration(spec.unique_for / SECOND)
                found = f"{spec.name}: Unique(for_=) holds a key {held}, {state} jobs are kept {duration(kept)}"
                yield Check(
                    WARN, "retention", found, f"MULLIGAN_RETENTION__{state.upper()}={spec.unique_for / SECOND:g}"
                )

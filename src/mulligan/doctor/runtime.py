"""What can only be asked once the schema is there: clock, workers, work that waits, events, keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from shlex import quote

from mulligan.config import Settings
from mulligan.core.errors import MulliganError
from mulligan.core.format import duration, moment, one_line, per, span, who
from mulligan.core.job import SECOND, Lane, Micros, to_micros
from mulligan.doctor.environment import OK, WARN, Check, Checks
from mulligan.doctor.settings import subscription_checks
from mulligan.guards.dependencies import Dependency, picture
from mulligan.guards.gates import COUNT_CAP
from mulligan.guards.lanes import is_closed
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.storage import Store
from mulligan.storage.base import Transaction
from mulligan.worker.liveness import workers_seen
from mulligan.worker.upkeep import known_kinds

SKEW = 2.0  # seconds between the database's clock and ours that nobody should mind
LAG = 30.0  # seconds readers of events may wait for a transaction


def inside_checks(store: Store, settings: Settings) -> Checks:
    try:
        store.check_schema()
    except MulliganError:
        return
    looks: tuple[Callable[[Transaction, Settings], Checks], ...] = (
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


def _clock(unit: Transaction, _: Settings) -> Checks:
    before = time.time()
    theirs = unit.now() / SECOND
    after = time.time()
    skew = max(0.0, before - theirs, theirs - after)
    if skew > SKEW:
        yield Check(
            WARN,
            "clock",
            f"the database's clock is {duration(skew)} away from ours",
            "let NTP set both",
        )
    else:
        yield Check(OK, "clock", "agrees with the database's")


def _workers(unit: Transaction, _: Settings) -> Checks:
    seen = workers_seen(unit)
    living = [worker for worker in seen if worker.living]
    gone = [worker for worker in seen if not worker.living]
    if living:
        yield Check(OK, "workers", f"{len(living)} live")
    else:
        yield Check(WARN, "workers", "none is live: nothing runs", "mulligan worker APP")
    if gone:
        names = ", ".join(f"{worker.row.id} on {worker.row.host}" for worker in gone)
        yield Check(
            WARN,
            "workers",
            f"silent beyond their lease: {names}",
            "a live worker takes over their jobs",
        )


def _unknown(unit: Transaction, settings: Settings) -> Checks:
    look = unit.look()
    kinds = sorted({Lane.parse(key).kind for key, _, _ in look.lanes} - known_kinds(unit, look.now))
    if kinds:
        limit = duration(settings.worker.unknown_kind_after)
        found = f"jobs wait for kinds no worker knows: {', '.join(kinds)}; they die {limit} after they are due"
        yield Check(WARN, "kinds", found, "mulligan worker APP, with an app that has them")
    else:
        yield Check(OK, "kinds", "a worker knows every kind that waits")


def _unserved(unit: Transaction, _: Settings) -> Checks:
    """Due work that every live worker passes by: it has other kinds, or was told other queues."""
    living = [worker.row for worker in workers_seen(unit) if worker.life == "live"]
    if not living:
        return  # said already
    served = [(set(json.loads(row.kinds)), set(json.loads(row.queues))) for row in living]
    look = unit.look()
    due = {Lane.parse(key) for key, _, first in look.lanes if first <= look.now}
    known = known_kinds(unit, look.now)
    left = {
        lane
        for lane in due
        if lane.kind in known and not any(_takes(lane, *what) for what in served)
    }
    if left:
        names = ", ".join(sorted({f"{lane.kind} in queue {lane.queue}" for lane in left}))
        yield Check(
            WARN,
            "queues",
            f"due, and no live worker takes it: {names}",
            "mulligan worker APP, without --queues",
        )


def _held(unit: Transaction, _: Settings) -> Checks:
    now = unit.now()
    for gate in unit.gates():
        if gate.scope == "kind" and is_closed(gate, now):
            because = f": {one_line(gate.reason)}" if gate.reason else ""
            found = (
                f"kind {gate.key} is held by {who(gate.actor)} since {moment(gate.since)}{because}"
            )
            yield Check(
                WARN,
                "kinds",
                found,
                f"see to the cause, then: mulligan kinds release {quote(gate.key)}",
            )


def _takes(lane: Lane, kinds: set[str], queues: set[str]) -> bool:
    return lane.kind in kinds and (not queues or lane.queue in {*queues, DELIVERY_QUEUE})


def _events(unit: Transaction, _: Settings) -> Checks:
    lag = unit.event_lag() / SECOND
    if lag > LAG:
        found = f"a transaction that has enqueued or written is open since {duration(lag)}: readers of events wait for it"
        yield Check(
            WARN,
            "events",
            found,
            "SELECT pid, query FROM pg_stat_activity ORDER BY xact_start LIMIT 1",
        )
    else:
        yield Check(OK, "events", f"the newest is {unit.newest_event()}, nobody holds readers up")


def _keys(unit: Transaction, settings: Settings) -> Checks:
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
                    WARN,
                    "retention",
                    found,
                    f"MULLIGAN_RETENTION__{state.upper()}={spec.unique_for / SECOND:g}",
                )


# What jobs use: which breakers are open, what runs at less than it could, and whether there are too many names.

MANY = 2000
WAITS_ANYWAY = ("handler", "hint")  # a hold for a certain time, whatever the mode


def guard_checks(unit: Transaction, _: Settings) -> Checks:
    now = unit.now()
    found = picture(unit)
    troubled = [check for one in found for check in _of(one, now)]
    yield from troubled or [
        Check(OK, "dependencies", f"{len(found)} known, none is open or slowed down")
    ]
    yield from _too_many(len(unit.look().lanes), len(found))


def _of(one: Dependency, now: Micros) -> Checks:
    if one.state == "open":
        why = f": {one.reason}" if one.reason else f", by {one.actor}"
        ends = one.mode == "fail_fast" and one.actor not in WAITS_ANYWAY
        held = "its jobs end at once" if ends else f"{count(one.held)} jobs are held"
        sentence = f"{one.key} is open{_since(one, now)}{why}; {held}, {_next(one, now)}"
        yield Check(WARN, "dependencies", sentence, _advice(one))
    elif one.state == "ramping":
        sentence = f"{one.key} recovers{_since(one, now)}: {per(one.rate or 0)} may start, {count(one.held)} jobs wait"
        yield Check(
            WARN, "dependencies", sentence, "nothing: it grows by itself while all goes well"
        )
    if one.reduced:
        sentence = f"{one.key} asked for fewer calls: {one.concurrency} at a time for now"
        advice = f"mulligan deps set {quote(one.key)} --rate N/s, with what it allows"
        yield Check(WARN, "dependencies", sentence, advice)


def _since(one: Dependency, now: Micros) -> str:
    return "" if one.since is None else f" since {span(to_micros(one.since), now)}"


def _next(one: Dependency, now: Micros) -> str:
    if one.probing:
        return "a probe is under way"
    if one.probe_at is not None:
        at = to_micros(one.probe_at)
        return (
            f"next probe in {span(now, at)}"
            if at - now >= SECOND
            else "a probe goes as soon as a worker is free"
        )
    return (
        "until somebody closes it"
        if one.until is None
        else f"for another {span(now, to_micros(one.until))}"
    )


def _advice(one: Dependency) -> str:
    return f"mulligan deps {'close' if one.probe_at is None else 'probe'} {quote(one.key)}"


def _too_many(lanes: int, keys: int) -> Checks:
    """Every claim looks at every lane."""
    advice = "fewer different uses=, or kinds: a key per service, not per customer or file"
    if lanes > MANY:
        yield Check(
            WARN,
            "lanes",
            f"{lanes} lanes have waiting jobs: every claim looks at each of them",
            advice,
        )
    if keys > MANY:
        yield Check(
            WARN, "lanes", f"{keys} dependencies are known: each has a guard of its own", advice
        )


def count(jobs: int) -> str:
    return f"{COUNT_CAP}+" if jobs >= COUNT_CAP else str(jobs)

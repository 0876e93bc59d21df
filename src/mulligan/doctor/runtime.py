"""Checks that need the schema: clock, workers, waiting jobs, dependencies, events, keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from shlex import quote

from mulligan.config import Settings
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.errors import MulliganError
from mulligan.core.format import (
    format_actor,
    format_duration,
    format_elapsed,
    format_rate,
    format_time,
    one_line,
)
from mulligan.core.job import COUNT_CAP, Lane
from mulligan.doctor.environment import OK, WARN, Check, Checks
from mulligan.doctor.settings import subscription_checks
from mulligan.events.queries import EventQueries
from mulligan.guards.gate_status import Dependency, read_dependencies
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.storage import Store
from mulligan.storage.base import Transaction
from mulligan.worker.registry import worker_statuses
from mulligan.worker.upkeep import known_kinds

MAX_CLOCK_SKEW = 2.0  # seconds between the database's clock and ours
MAX_EVENT_LAG = 30.0  # seconds that readers of events may wait for a transaction


def runtime_checks(store: Store, settings: Settings) -> Checks:
    try:
        store.check_schema()
    except MulliganError:
        return
    checks: tuple[Callable[[Transaction, Settings], Checks], ...] = (
        _clock,
        _workers,
        _unknown_kinds,
        _unserved_queues,
        _held_kinds,
        guard_checks,
        subscription_checks,
        _events,
        _unique_keys,
    )
    for check in checks:
        with store.read() as tx:
            yield from check(tx, settings)


def _clock(tx: Transaction, _: Settings) -> Checks:
    before = time.time()
    database = tx.now() / SECOND
    after = time.time()
    skew = max(0.0, before - database, database - after)
    if skew > MAX_CLOCK_SKEW:
        yield Check(
            WARN,
            "clock",
            f"the clocks of the database and this host differ by {format_duration(skew)}",
            "synchronise both with NTP",
        )
    else:
        yield Check(OK, "clock", "same as the database's")


def _workers(tx: Transaction, _: Settings) -> Checks:
    workers = worker_statuses(tx)
    live = [worker for worker in workers if worker.is_live]
    gone = [worker for worker in workers if not worker.is_live]
    if live:
        yield Check(OK, "workers", f"{len(live)} live")
    else:
        yield Check(WARN, "workers", "no live worker: no job runs", "mulligan worker APP")
    if gone:
        names = ", ".join(f"{worker.row.id} on {worker.row.host}" for worker in gone)
        yield Check(
            WARN,
            "workers",
            f"lease expired: {names}",
            "start a worker; it recovers their jobs",
        )


def _unknown_kinds(tx: Transaction, settings: Settings) -> Checks:
    claim_state = GuardQueries(tx).read_claim_state()
    kinds = sorted(
        {Lane.parse(key).kind for key, _, _ in claim_state.lanes} - known_kinds(tx, claim_state.now)
    )
    if kinds:
        limit = format_duration(settings.worker.unknown_kind_after)
        found = (
            f"jobs wait for kinds that no worker knows: {', '.join(kinds)}. "
            f"They die {limit} after they are due."
        )
        yield Check(WARN, "kinds", found, "run mulligan worker APP with an app that has them")
    else:
        yield Check(OK, "kinds", "every waiting kind is known to a worker")


def _unserved_queues(tx: Transaction, _: Settings) -> Checks:
    """Find due jobs that no live worker serves: wrong kinds or wrong --queues."""
    live = [worker.row for worker in worker_statuses(tx) if worker.life == "live"]
    if not live:
        return  # reported by _workers
    served = [(set(json.loads(row.kinds)), set(json.loads(row.queues))) for row in live]
    claim_state = GuardQueries(tx).read_claim_state()
    due = {Lane.parse(key) for key, _, first in claim_state.lanes if first <= claim_state.now}
    known = known_kinds(tx, claim_state.now)
    unserved = {
        lane
        for lane in due
        if lane.kind in known and not any(_serves(lane, *worker) for worker in served)
    }
    if unserved:
        names = ", ".join(sorted({f"{lane.kind} in queue {lane.queue}" for lane in unserved}))
        yield Check(
            WARN,
            "queues",
            f"due jobs that no live worker serves: {names}",
            "run mulligan worker APP without --queues",
        )


def _held_kinds(tx: Transaction, _: Settings) -> Checks:
    now = tx.now()
    for gate in GuardQueries(tx).list_gates():
        if gate.scope == "kind" and is_closed(gate, now):
            reason = f": {one_line(gate.reason)}" if gate.reason else ""
            actor = format_actor(gate.actor)
            since = format_time(gate.since)
            found = f"kind {gate.key} is held by {actor} since {since}{reason}"
            yield Check(
                WARN,
                "kinds",
                found,
                f"fix the cause, then: mulligan kinds release {quote(gate.key)}",
            )


def _serves(lane: Lane, kinds: set[str], queues: set[str]) -> bool:
    return lane.kind in kinds and (not queues or lane.queue in {*queues, DELIVERY_QUEUE})


def _events(tx: Transaction, _: Settings) -> Checks:
    lag = EventQueries(tx).event_lag() / SECOND
    if lag > MAX_EVENT_LAG:
        found = (
            f"a transaction that writes events has been open for {format_duration(lag)}; "
            "readers of events wait for it"
        )
        yield Check(
            WARN,
            "events",
            found,
            "SELECT pid, query FROM pg_stat_activity ORDER BY xact_start LIMIT 1",
        )
    else:
        yield Check(
            OK,
            "events",
            f"the newest is {EventQueries(tx).newest_event()}, readers are not blocked",
        )


def _unique_keys(tx: Transaction, settings: Settings) -> Checks:
    """Find unique keys that end with their pruned job before `for_` has passed."""
    retention = settings.retention
    for spec in load_kinds(tx).values():
        ends = [state for state in spec.unique_while.split(",") if hasattr(retention, state)]
        for state in ends if spec.unique_for is not None else ():
            retained = getattr(retention, state)
            if spec.retention is not None:
                retained = spec.retention / SECOND
            if spec.unique_for is not None and spec.unique_for / SECOND > retained:
                period = format_duration(spec.unique_for / SECOND)
                found = (
                    f"{spec.name}: Unique(for_=) lasts {period}, but {state} jobs are kept only "
                    f"{format_duration(retained)}"
                )
                yield Check(
                    WARN,
                    "retention",
                    found,
                    f"MULLIGAN_RETENTION__{state.upper()}={spec.unique_for / SECOND:g}",
                )


# --- Dependencies ---

MAX_LANES = 2000
TIMED_HOLDS = ("handler", "hint")  # actors whose hold ends by time, whatever the mode


def guard_checks(tx: Transaction, _: Settings) -> Checks:
    now = tx.now()
    found = read_dependencies(tx)
    problems = [check for one in found for check in _dependency_checks(one, now)]
    yield from problems or [
        Check(OK, "dependencies", f"{len(found)} known, none is open or limited")
    ]
    yield from _too_many(len(GuardQueries(tx).read_claim_state().lanes), len(found))


def _dependency_checks(one: Dependency, now: Micros) -> Checks:
    if one.state == "open":
        why = f": {one.reason}" if one.reason else f", by {one.actor}"
        ends = one.mode == "fail_fast" and one.actor not in TIMED_HOLDS
        held = "its jobs fail at once" if ends else f"{format_count(one.held)} jobs are held"
        sentence = f"{one.key} is open{_since(one, now)}{why}; {held}, {_next_step(one, now)}"
        yield Check(WARN, "dependencies", sentence, _advice(one))
    elif one.state == "ramping":
        rate = format_rate(one.rate or 0)
        waiting = format_count(one.held)
        sentence = f"{one.key} recovers{_since(one, now)}: {rate} may start, {waiting} jobs wait"
        yield Check(
            WARN, "dependencies", sentence, "nothing to do: the rate grows while calls succeed"
        )
    if one.reduced:
        sentence = f"{one.key} requested fewer calls: {one.concurrency} at a time for now"
        advice = f"mulligan deps set {quote(one.key)} --rate N/s, with the rate it allows"
        yield Check(WARN, "dependencies", sentence, advice)


def _since(one: Dependency, now: Micros) -> str:
    return "" if one.since is None else f" since {format_elapsed(to_micros(one.since), now)}"


def _next_step(one: Dependency, now: Micros) -> str:
    if one.probing:
        return "a probe is running"
    if one.probe_at is not None:
        at = to_micros(one.probe_at)
        if at - now >= SECOND:
            return f"next probe in {format_elapsed(now, at)}"
        return "a probe will run as soon as a worker is free"
    if one.until is None:
        return "until a person closes it"
    return f"for another {format_elapsed(now, to_micros(one.until))}"


def _advice(one: Dependency) -> str:
    action = "close" if one.probe_at is None else "probe"
    return f"mulligan deps {action} {quote(one.key)}"


def _too_many(lanes: int, keys: int) -> Checks:
    """Warn about too many lanes or dependencies: every claim reads every lane."""
    advice = "use fewer kinds and uses= values: one key per service, not per customer or file"
    if lanes > MAX_LANES:
        yield Check(
            WARN,
            "lanes",
            f"{lanes:,} lanes have waiting jobs; every claim reads all of them",
            advice,
        )
    if keys > MAX_LANES:
        yield Check(
            WARN,
            "lanes",
            f"{keys:,} dependencies are known; each has its own breaker state",
            advice,
        )


def format_count(jobs: int) -> str:
    return f"{COUNT_CAP}+" if jobs >= COUNT_CAP else str(jobs)

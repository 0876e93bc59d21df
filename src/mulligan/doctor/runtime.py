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
from mulligan.core.job import COUNT_CAP, Lane, split_uses
from mulligan.doctor.environment import OK, WARN, Check, Checks
from mulligan.doctor.housekeeping import table_bloat, vacuum_blockers
from mulligan.doctor.settings import subscription_checks, unsent_alerts
from mulligan.events.queries import EventQueries
from mulligan.guards.gate_status import Dependency, read_dependencies
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.declared import (
    find_conflicts,
    find_refused_settings,
    find_setting_conflicts,
    load_active_manifests,
    load_kinds,
    load_running_manifests,
)
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.storage import Store
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.service import worker_statuses
from mulligan.worker.upkeep import known_kinds

MAX_CLOCK_SKEW = 2.0  # seconds between the database's clock and ours
DAY = 86_400 * SECOND
MAX_IDLE_TRANSACTION = 300.0  # seconds
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
        _conflicting_apps,
        _declared_settings,
        _held_kinds,
        _hooks,
        guard_checks,
        subscription_checks,
        unsent_alerts,
        _events,
        idle_transactions,
        vacuum_blockers,
        table_bloat,
        unprobed_dependencies,
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


def _conflicting_apps(tx: Transaction, _: Settings) -> Checks:
    """Find kinds and schedules that two running apps declare differently under one name."""
    conflicts = find_conflicts(load_running_manifests(tx, tx.now()))
    for conflict in conflicts:
        yield Check(
            WARN,
            "apps",
            f"{conflict}: each takes what belongs to the other",
            "rename one of them, or give each app its own database or schema_name",
        )
    if not conflicts:
        yield Check(OK, "apps", "no two running apps declare one name differently")


def _declared_settings(tx: Transaction, settings: Settings) -> Checks:
    """Find settings in code that processes without the app cannot obey."""
    manifests = load_active_manifests(tx, tx.now())
    for conflict in find_setting_conflicts(manifests):
        advice = "declare one value, set it in mulligan.toml, or use one database per app"
        found = f"{conflict}; each worker uses its own, other processes that of the newest app"
        yield Check(WARN, "settings in code", found, advice)
    for refused in find_refused_settings(manifests, settings):
        advice = "change the code, or what is set here"
        yield Check(WARN, "settings in code", f"not used here: {refused}", advice)


def _unserved_queues(tx: Transaction, _: Settings) -> Checks:
    """Find due jobs that no live worker serves: wrong kinds or wrong --queues."""
    live = [worker.row for worker in worker_statuses(tx) if worker.life == "live"]
    if not live:
        return  # reported by _workers
    served = []
    for row in live:
        served.append((set(json.loads(row.kinds)), set(json.loads(row.queues))))
    claim_state = GuardQueries(tx).read_claim_state()
    known = known_kinds(tx, claim_state.now)
    unserved = set()
    for key, _priority, first_due in claim_state.lanes:
        lane = Lane.parse(key)
        if first_due > claim_state.now or lane.kind not in known:
            continue
        if not any(_serves(lane, *worker) for worker in served):
            unserved.add(f"{lane.kind} in queue {lane.queue}")
    if unserved:
        names = ", ".join(sorted(unserved))
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


def _hooks(tx: Transaction, _: Settings) -> Checks:
    now = tx.now()
    for hook in WorkerQueries(tx).list_hook_faults(now - DAY):
        times = "once" if hook.faults == 1 else f"{hook.faults:,} times"
        last = format_elapsed(hook.at, now)
        found = f"hook {hook.name} failed {times}, last {last} ago: {one_line(hook.error, 200)}"
        yield Check(WARN, "hooks", found, "correct it in the app; no outcome of a job was affected")


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


def idle_transactions(
    tx: Transaction, _: Settings, older_than: float = MAX_IDLE_TRANSACTION
) -> Checks:
    """Warn about transactions that a program left open: they keep dead rows from being removed."""
    for pid, user, name, idle in EventQueries(tx).list_idle_transactions(older_than):
        found = (
            f"process {pid} of {user} ({name or 'no application name'}) has left a transaction open"
            f" and idle for {format_duration(idle)}; dead rows cannot be removed meanwhile"
        )
        advice = f"close it in that program, or: SELECT pg_terminate_backend({pid})"
        yield Check(WARN, "transactions", found, advice)


def unprobed_dependencies(tx: Transaction, _: Settings) -> Checks:
    """Warn about dependencies that nothing may probe: all their kinds have once=True."""
    probed: set[str] = set()
    used_once: set[str] = set()
    for manifest in load_active_manifests(tx, tx.now()):
        for key, dependency in manifest.dependencies.items():
            if dependency.probe:
                probed.add(key)
        for kind in manifest.kinds.values():
            keys = used_once if kind.once else probed  # other kinds probe with one of their jobs
            keys.update(split_uses(kind.uses))
    for key in sorted(used_once - probed):
        found = (
            f"dependency {key} is used only by kinds with once=True, which never probe:"
            " its breaker stays open after an outage"
        )
        yield Check(WARN, "dependencies", found, f"app.dependency({key!r}, probe=...)")


def _unique_keys(tx: Transaction, settings: Settings) -> Checks:
    """Find unique keys that end with their pruned job before `for_` has passed."""
    retention = settings.retention
    for spec in load_kinds(tx).values():
        if spec.unique_for is None:
            continue
        unique_for = spec.unique_for / SECOND
        final_states = [name for name in spec.unique_while.split(",") if hasattr(retention, name)]
        for state in final_states:
            retained = getattr(retention, state)
            if spec.retention is not None:
                retained = spec.retention / SECOND
            if unique_for > retained:
                found = (
                    f"{spec.name}: Unique(for_=) lasts {format_duration(unique_for)}, "
                    f"but {state} jobs are kept only {format_duration(retained)}"
                )
                advice = f"MULLIGAN_RETENTION__{state.upper()}={unique_for:g}"
                yield Check(WARN, "retention", found, advice)


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
        since = _since(one, now)
        sentence = f"{one.key} is open{since}{why}; {held}, {_next_step(one, now)}"
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
    """Warn about too many lanes or dependencies: metrics and pages read every lane."""
    advice = "use fewer kinds and uses= values: one key per service, not per customer or file"
    if lanes > MAX_LANES:
        yield Check(
            WARN,
            "lanes",
            f"{lanes:,} lanes have waiting jobs; metrics and pages read all of them",
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

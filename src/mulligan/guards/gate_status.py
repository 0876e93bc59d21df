"""Queues, kinds and dependencies as they are now: their gates, limits and waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple

from mulligan.core.attempt import Ended
from mulligan.core.durations import Micros, optional_datetime, to_datetime
from mulligan.core.errors import QueueRefused
from mulligan.core.job import (
    COUNT_CAP,
    ClaimState,
    Gate,
    Lane,
    Limit,
    LimitKey,
    LimitRow,
    State,
    split_uses,
)
from mulligan.guards.kind_breaker import EMPTY_KIND_STATE, KindHold, KindState, KindTrial
from mulligan.guards.kind_observer import load_kind_state
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import count_running, is_limit_active, merge_limits, tighten_limit
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.queries import GuardQueries, LaneDepthRow, TrialJobRow
from mulligan.guards.ramp import Ramp
from mulligan.guards.state import NEW_GUARD, GuardState, load_guard
from mulligan.manifest.declared import (
    load_active_manifests,
    load_declared_limits,
    load_queue_names,
    load_queues,
    load_recent_manifests,
    merge_breaker_configs,
    merge_declared_limits,
)
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage.base import Transaction

MAX_LANES = 2_000


class _Depth(NamedTuple):
    """Waiting jobs of a queue or kind. Counts stop at the cap."""

    ready: int
    held: int
    later: int
    retrying: int
    oldest: Micros | None  # due time of the first ready job


_EMPTY = _Depth(0, 0, 0, 0, None)


def _closed_gates(gates: Sequence[Gate], scope: str, now: Micros) -> dict[str, Gate]:
    in_scope = [gate for gate in gates if gate.scope == scope]
    return {gate.key: gate for gate in in_scope if is_closed(gate, now)}


def _limit_rows(tx: Transaction, scope: str, now: Micros) -> dict[str, LimitRow]:
    """Return the limits that an operator has set."""
    return {
        row.key: row
        for row in GuardQueries(tx).list_limits()
        if row.scope == scope and is_limit_active(row, now)
    }


def _group_depths(
    tx: Transaction, now: Micros, key_of: Callable[[Lane], str]
) -> dict[str, list[LaneDepthRow]]:
    """Return the waiting jobs of every lane, grouped by a part of the lane."""
    groups: dict[str, list[LaneDepthRow]] = {}
    for row in GuardQueries(tx).count_waiting_by_lane(now, COUNT_CAP, MAX_LANES):
        groups.setdefault(key_of(Lane.parse(row.lane)), []).append(row)
    return groups


def _reason_and_actor(change: Gate | LimitRow | None) -> tuple[str, str]:
    return ("", "") if change is None else (change.reason, change.actor)


def _end_of(change: Gate | LimitRow | None) -> datetime | None:
    """Return when a pause, a hold or an operator's limit ends; None if it does not."""
    return None if change is None else optional_datetime(change.until)


def _sum_depths(rows: Sequence[LaneDepthRow], gates: Sequence[Gate], now: Micros) -> _Depth:
    """Add up lanes. Due jobs behind a closed gate are held, not ready."""
    closed = {(gate.scope, gate.key) for gate in gates if is_closed(gate, now)}
    ready = held = later = retrying = 0
    oldest = None
    for row in rows:
        lane = Lane.parse(row.lane)
        later += row.later
        if lane.retry:
            retrying += row.later
        if not closed.isdisjoint([*lane.limit_keys, ("kind", lane.kind)]):
            held += row.due
            continue
        ready += row.due
        if row.first <= now:
            oldest = min(oldest or row.first, row.first)
    return _Depth(
        ready=min(COUNT_CAP, ready),
        held=min(COUNT_CAP, held),
        later=min(COUNT_CAP, later),
        retrying=min(COUNT_CAP, retrying),
        oldest=oldest,
    )


# --- Queues ---


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue at one time. Counts stop at 10,000."""

    name: str
    paused: bool
    paused_until: datetime | None
    reason: str  # of the pause, else of the operator's limits
    actor: str
    ready: int  # due, and nothing holds them
    later: int  # scheduled, or waiting before a retry
    running: int
    oldest: datetime | None  # due time of the first ready job
    concurrency: int | None
    rate: float | None  # per second
    fair: bool
    set_by_hand: bool  # an operator set the limits
    set_until: datetime | None
    held_jobs: int = 0  # due, but the queue is paused, their kind held or a dependency down
    retrying: int = 0  # of `later`, those that wait before a retry


QueueList = list[Queue]  # services have a method named list


def read_queues(tx: Transaction) -> QueueList:
    """Return all queues that anything names, sorted by name."""
    state = GuardQueries(tx).read_claim_state()
    now = state.now
    running = count_running(GuardQueries(tx).count_running())
    declared = load_queues(tx, now)
    limits = merge_limits(load_declared_limits(tx, now), state.limits)
    limit_rows = _limit_rows(tx, "queue", now)
    gates = _closed_gates(state.gates, "queue", now)
    depths = _group_depths(tx, now, lambda lane: lane.queue)
    busy = {key for scope, key in running if scope == "queue"}
    names = {*depths, *busy, *_kind_queues(tx, now), *declared, *limit_rows, *gates}
    queues = []
    for name in sorted(names):
        queue = _build_queue(
            name,
            gates.get(name),
            limit_rows.get(name),
            limits.get(("queue", name), Limit()),
            _sum_depths(depths.get(name, ()), state.gates, now),
            running["queue", name],
            fair=name in declared and declared[name].fair,
        )
        queues.append(queue)
    return queues


def _kind_queues(tx: Transaction, now: Micros) -> set[str]:
    """Return the queues that kinds of recent manifests declare."""
    return {
        spec.queue
        for manifest in load_recent_manifests(tx, now)
        for spec in manifest.kinds.values()
    }


def check_declared_queues(
    tx: Transaction, names: Iterable[str], app_queues: AbstractSet[str] = frozenset()
) -> None:
    """Refuse queues that neither a manifest nor an operator's limit or gate declares.

    Applies to owners: with queues of their choice they could create any number of lanes.
    `app_queues` are declared by an app that may not have had a worker yet.
    """
    unknown = set(names) - app_queues
    if unknown:
        unknown -= load_queue_names(tx)
    if unknown:
        now = tx.now()
        unknown -= _limit_rows(tx, "queue", now).keys()
        unknown -= _closed_gates(GuardQueries(tx).list_gates(), "queue", now).keys()
    for name in sorted(unknown):
        message = (
            f"queue {name!r}: an owner may use only queues that the app or an operator has "
            f"declared. Leave the queue out, or ask an operator for app.queue({name!r}) in the "
            f'app or "mulligan queues set {name}".'
        )
        raise QueueRefused(message)


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
    reason, actor = _reason_and_actor(gate or limit_row)
    return Queue(
        name=name,
        paused=gate is not None,
        paused_until=_end_of(gate),
        reason=reason,
        actor=actor,
        ready=depth.ready,
        later=depth.later,
        running=running,
        oldest=optional_datetime(depth.oldest),
        concurrency=limit.concurrency,
        rate=limit.rate,
        fair=fair,
        set_by_hand=limit_row is not None,
        set_until=_end_of(limit_row),
        held_jobs=depth.held,
        retrying=depth.retrying,
    )


def empty_queue(name: str) -> Queue:
    """Return a queue that nothing names any more."""
    return _build_queue(name, None, None, Limit(), _EMPTY, 0, fair=False)


# --- Kinds ---


@dataclass(frozen=True, slots=True)
class KindStatus:
    """A kind at one time. Counts stop at 10,000."""

    name: str
    held: bool
    since: datetime | None
    until: datetime | None  # when the hold expires
    reason: str
    actor: str
    ready: int  # due, and nothing holds them
    later: int  # scheduled, or waiting before a retry
    code: str  # cause, if a kind breaker holds it; as the fields below
    message: str
    fingerprint: str
    job: str  # one that died of the cause
    jobs: int
    owners: int
    trial: str = ""  # job that an operator tried during this hold
    trial_result: str = ""  # waiting, running, succeeded, not run, or the code of its failure
    trial_at: datetime | None = None
    held_jobs: int = 0  # due, but the kind is held, their queue paused or a dependency down
    retrying: int = 0  # of `later`, those that wait before a retry


KindList = list[KindStatus]


def read_kinds(tx: Transaction) -> KindList:
    """Return all kinds that anything names; built-in kinds only if they wait or are held."""
    state = GuardQueries(tx).read_claim_state()
    now = state.now
    gates = _closed_gates(state.gates, "kind", now)
    states = _read_kind_states(tx) if gates else {}
    depths = _group_depths(tx, now, lambda lane: lane.kind)
    declared: set[str] = set()
    for manifest in load_recent_manifests(tx, now):
        declared.update(manifest.kinds)
    user_kinds = {kind for kind in declared if not kind.startswith(SYSTEM_PREFIX)}
    kinds = []
    for name in {*gates, *depths, *user_kinds}:
        depth = _sum_depths(depths.get(name, ()), state.gates, now)
        kind_state = states.get(name, EMPTY_KIND_STATE)
        kind = _build_kind(name, gates.get(name), kind_state.held, depth)
        if kind.held and kind_state.trial is not None:
            kind = _add_trial(tx, kind, kind_state.trial)
        kinds.append(kind)
    return kinds


def list_guarded_kinds(tx: Transaction) -> KindList:
    """Return the kinds that their breaker holds, each with its cause. Cheap if there are none."""
    if not any(gate.scope == "kind" for gate in GuardQueries(tx).list_gates()):
        return []
    return [kind for kind in read_kinds(tx) if kind.held and kind.fingerprint]


def _read_kind_states(tx: Transaction) -> dict[str, KindState]:
    """Return why the kind breaker holds each kind, and the last trial."""
    return {
        row.key: load_kind_state(row.body)
        for row in GuardQueries(tx).list_guards()
        if row.scope == "kind"
    }


def _add_trial(tx: Transaction, kind: KindStatus, trial: KindTrial) -> KindStatus:
    result = describe_trial(trial, GuardQueries(tx).get_trial_job(trial.job, trial.token))
    return replace(kind, trial=trial.job, trial_result=result, trial_at=to_datetime(trial.at))


def describe_trial(trial: KindTrial, job: TrialJobRow | None) -> str:
    """Return the result of a trial: waiting, running, succeeded, not run, or a failure's code."""
    if job is None:
        return "not run"
    if job.ended is not None:
        return "succeeded" if job.ended == Ended.RETURNED else job.code or "not run"
    if job.token == trial.token:  # a success is not always stored as an attempt
        return "succeeded" if job.state == State.SUCCEEDED else "running"
    return "waiting" if job.state == State.QUEUED and job.token < trial.token else "not run"


def empty_kind(name: str) -> KindStatus:
    """Return a kind that nothing names any more."""
    return _build_kind(name, None, None, _EMPTY)


def _build_kind(name: str, gate: Gate | None, hold: KindHold | None, depth: _Depth) -> KindStatus:
    cause = hold or KindHold("", "", "", "", 0, 0, 0, "")
    since = None if gate is None else to_datetime(gate.since)
    reason, actor = _reason_and_actor(gate)
    return KindStatus(
        name=name,
        held=gate is not None,
        since=since,
        until=_end_of(gate),
        reason=reason,
        actor=actor,
        ready=depth.ready,
        later=depth.later,
        code=cause.code,
        message=cause.message,
        fingerprint=cause.fingerprint,
        job=cause.job,
        jobs=cause.jobs,
        owners=cause.owners,
        held_jobs=depth.held,
        retrying=depth.retrying,
    )


# --- Dependencies ---


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


DependencyList = list[Dependency]


def list_impaired(tx: Transaction) -> DependencyList:
    """Return the dependencies that hold, fail or slow down jobs now. Cheap if there are none."""
    has_guards = any(
        row.scope == "dependency" for row in GuardQueries(tx).list_guards(active_only=True)
    )
    has_gates = any(gate.scope == "dependency" for gate in GuardQueries(tx).list_gates())
    if not has_guards and not has_gates:
        return []
    return [dependency for dependency in read_dependencies(tx) if dependency.state != "closed"]


def read_dependencies(tx: Transaction) -> DependencyList:
    """Return all dependencies that anything names, sorted by key."""
    sources = _load_sources(tx)
    return [_build_dependency(sources, key) for key in sorted(_collect_keys(sources))]


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
    state = GuardQueries(tx).read_claim_state()
    now = state.now
    manifests = load_active_manifests(tx, now)
    guards = {
        row.key: load_guard(row.body)
        for row in GuardQueries(tx).list_guards()
        if row.scope == "dependency"
    }
    return _Sources(
        tx=tx,
        state=state,
        guards=guards,
        gates=_closed_gates(GuardQueries(tx).list_gates(), "dependency", now),
        limit_rows=_limit_rows(tx, "dependency", now),
        observer=DependencyObserver(declared_elsewhere=merge_breaker_configs(manifests)),
        declared={key for manifest in manifests for key in manifest.dependencies},
        limits=merge_limits(merge_declared_limits(manifests), state.limits),
        running=count_running(GuardQueries(tx).count_running()),
    )


def _collect_keys(sources: _Sources) -> AbstractSet[str]:
    """Return the keys that a guard, a gate, a limit, a declaration, a kind or a job names."""
    keys = {*sources.guards, *sources.gates, *sources.limit_rows, *sources.declared}
    for manifest in load_recent_manifests(sources.tx, sources.state.now):
        for spec in manifest.kinds.values():
            keys.update(split_uses(spec.uses))
    for lane, _, _ in sources.state.lanes:
        keys.update(Lane.parse(lane).dependencies)
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
    until = gate.until if gate is not None else pinned_until(guard, now)
    reason, actor = _reason_and_actor(gate or limit_row)
    probe_at = None
    if guard.open and gate is not None:
        probe_at = optional_datetime(guard.probe_at)
    is_probing = False
    if probe is not None:
        is_probing = GuardQueries(sources.tx).is_running(probe.job_id, probe.token)
    held = 0 if state == "closed" else _count_held(sources, key)
    return Dependency(
        key=key,
        state=state,
        mode=config.mode,
        since=optional_datetime(_state_since(guard, gate)),
        until=optional_datetime(until),
        reason=reason,
        actor=actor,
        probe_at=probe_at,
        probing=is_probing,
        held=held,
        running=sources.running.get(("dependency", key), 0),
        calls=round(guard.window.ok + guard.window.failed),
        failed=round(guard.window.failed),
        rate=limit.rate,
        concurrency=limit.concurrency,
        reduced=throttled,
        tokens=guard.retry_tokens(config, now),
        declared=key in sources.declared,
        set_by_hand=limit_row is not None,
        set_until=_end_of(limit_row),
    )


def _breaker_state(gate: Gate | None, ramp: Ramp | None) -> Literal["open", "ramping", "closed"]:
    if gate is not None:
        return "open"
    return "ramping" if ramp is not None else "closed"


def _state_since(guard: GuardState, gate: Gate | None) -> Micros | None:
    if gate is not None:
        return gate.since
    return guard.closed_at if guard.ramp is not None else None


def pinned_until(guard: GuardState, now: Micros) -> Micros | None:
    """Return until when an operator keeps the breaker closed."""
    override = guard.active_override(now)
    if override is None or override.open:
        return None
    return override.until


def _count_held(sources: _Sources, key: str) -> int:
    now = sources.state.now
    held = 0
    for lane, priority, first_due in sources.state.lanes:
        if first_due > now or key not in Lane.parse(lane).dependencies:
            continue
        held += GuardQueries(sources.tx).count_waiting(lane, priority, now, COUNT_CAP)[0]
        if held >= COUNT_CAP:
            return COUNT_CAP
    return held

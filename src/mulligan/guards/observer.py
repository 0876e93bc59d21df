"""Observer of dependencies: count their calls, and fold the counts into the shared guards.

A worker counts in memory and flushes once a second, or at once after a failure: into the guard's
row if it can lock it, else as a tally that the next worker folds. The worker that notices an outage
opens the breaker in the transaction that settles the failures, so that these are not charged.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any

from mulligan.core.attempt import Cls, Decision, Ended, Ending, Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, GuardRow, split_uses
from mulligan.events.queries import EventQueries
from mulligan.guards import breaker
from mulligan.guards import budget as budgets
from mulligan.guards.breaker import BreakerChange, ChangeType
from mulligan.guards.budget import RetryBucket
from mulligan.guards.kind_observer import KindObserver
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import DEFAULT_BREAKER, NEW_GUARD, BreakerConfig, GuardState, load_guard
from mulligan.guards.window import (
    EMPTY_TALLY,
    MAX_FAILED_JOBS,
    DependencyTally,
    ProbeVerdict,
    blame_share,
    duration_step,
    parse_tally,
)
from mulligan.manifest.specs import ENDPOINT_PREFIX
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.guards")

PROBE_KIND = "mulligan.probe"
# Endpoints of deliveries: one that hangs must be held soon.
ENDPOINT_BREAKER = BreakerConfig(min_calls=5, budget=None, max_concurrency=2)
FLUSH_INTERVAL = SECOND
MAX_CACHED_GUARDS = 5000
BREAKER_ACTOR = "breaker"  # actor of changes that a breaker makes itself

Fence = tuple[str, int]

_EVENTS = {
    ChangeType.OPENED: EventType.DEPENDENCY_OPENED,
    ChangeType.CLOSED: EventType.DEPENDENCY_CLOSED,
    ChangeType.CHANGED: EventType.DEPENDENCY_CHANGED,
}

# --- Dependencies ---


@dataclass(slots=True)
class TallyBuilder:
    """Mutable tally of one dependency while the endings of one flush are counted."""

    ok: int = 0
    failed: float = 0.0
    slow: int = 0
    limited: int = 0
    first_ok: int = 0
    retry_ok: int = 0
    jobs: list[str] = field(default_factory=list)
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    verdict: ProbeVerdict | None = None

    def add_blame(self, share: float, job_id: str) -> None:
        self.failed += share
        if share and len(self.jobs) < MAX_FAILED_JOBS:
            self.jobs.append(job_id)

    def add_duration(self, kind: str, ms: float) -> None:
        histogram = self.times.setdefault(kind, {})
        step = duration_step(ms)
        histogram[step] = histogram.get(step, 0) + 1

    def build(self) -> DependencyTally:
        return DependencyTally(
            self.ok,
            self.failed,
            self.slow,
            self.limited,
            self.first_ok,
            self.retry_ok,
            0,  # retried: counted at the claim
            tuple(self.jobs),
            self.times,
            self.verdict,
        )


Tallies = Mapping[str, DependencyTally]  # by dependency


@dataclass
class DependencyObserver:
    """Counts the calls of one worker and folds them into the guards of its dependencies.

    The work loop calls it for one transaction at a time; chores may call it in between.
    """

    declared: Mapping[str, BreakerConfig] = field(default_factory=dict)  # by this worker's app
    declared_elsewhere: Mapping[str, BreakerConfig] = field(default_factory=dict)  # by other apps
    rng: Random = field(default_factory=lambda: Random(SystemRandom().getrandbits(64)))
    waiting: frozenset[str] = frozenset()  # dependencies for which due jobs wait
    guards: dict[str, GuardState] = field(default_factory=dict)  # as last read
    # Probes that this worker runs, each with the dependencies that it checks.
    probes: dict[Fence, tuple[str, ...]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _pending: dict[str, DependencyTally] = field(default_factory=dict)  # counted, not flushed
    _flushed_at: Micros = 0
    _overdue: set[Fence] = field(default_factory=set)  # running, and already counted as slow
    # Slow thresholds by dependency and kind, each with the guard that it was computed from.
    _thresholds: dict[tuple[str, str], tuple[GuardState, float | None]] = field(
        default_factory=dict
    )
    _unfolded: set[str] = field(default_factory=set)  # another worker had locked their guards
    _on_commit: Callable[[], None] | None = None

    def config_for(self, key: str) -> BreakerConfig:
        """Return the declared configuration of a dependency, or the default."""
        config = self.declared.get(key) or self.declared_elsewhere.get(key)
        if config is not None:
            return config
        return ENDPOINT_BREAKER if key.startswith(ENDPOINT_PREFIX) else DEFAULT_BREAKER

    # --- In the transaction that settles ---

    def observe(self, tx: Transaction, endings: Sequence[Ending], now: Micros) -> dict[Fence, str]:
        """Count endings and flush if it is time.

        Return, for each attempt that failed because a dependency is down, the dependency's key.
        """
        with self.lock:
            tallies = self._count(endings)
            if not (tallies or self._pending or self._unfolded):
                return {}
            finished = [ending.lease.fence for ending in endings]
            flushed_recently = 0 <= now - self._flushed_at < FLUSH_INTERVAL
            if flushed_recently and not self._is_urgent(tallies, now):
                self._on_commit = partial(self._commit_counted, tallies, finished)
            else:
                self._fold_all(tx, _add_tallies(self._pending, tallies), now)
                self._on_commit = partial(self._commit_flushed, now, finished)
            return self._find_causes(endings, now)

    def _is_urgent(self, tallies: Tallies, now: Micros) -> bool:
        """Return True after a failure or a probe, or if retries use up a budget."""
        for tally in tallies.values():
            if tally.failed or tally.verdict:
                return True
        for key, tally in self._pending.items():
            if tally.retried and self._is_budget_low(key, now):
                return True
        return False

    def begin(self) -> None:
        """Start a transaction. One that was not committed is repeated and counted again."""
        self._on_commit = None

    def commit(self) -> None:
        """Apply what the transaction counted, now that it is durable."""
        with self.lock:
            on_commit = self._on_commit
            self._on_commit = None
            if on_commit is not None:
                on_commit()

    def _add_pending(self, tallies: Tallies) -> None:
        self._pending = _add_tallies(self._pending, tallies)

    def _commit_counted(self, tallies: Tallies, finished: Sequence[Fence]) -> None:
        self._add_pending(tallies)
        self._overdue.difference_update(finished)

    def _commit_flushed(self, now: Micros, finished: Sequence[Fence]) -> None:
        self._pending = {}
        self._flushed_at = now
        self._overdue.difference_update(finished)
        for fence in finished:
            self.probes.pop(fence, None)
        # Keys may come from payloads. Guards that do not affect claims can be read again.
        if len(self.guards) > MAX_CACHED_GUARDS:
            kept = {}
            for key, guard in self.guards.items():
                if guard.affects_claims(self.config_for(key)):
                    kept[key] = guard
            self.guards = kept
            self._thresholds.clear()

    def _find_causes(self, endings: Sequence[Ending], now: Micros) -> dict[Fence, str]:
        causes: dict[Fence, str] = {}
        for ending in endings:
            fence = ending.lease.fence
            if not _is_dependency_failure(ending, probe=fence in self.probes):
                continue
            for key in _suspect_keys(ending):
                if self.guards.get(key, NEW_GUARD).is_down(now):
                    causes[fence] = key
                    break
        return causes

    # --- Retry budget ---

    def count_started(self, leases: Iterable[Lease]) -> None:
        """Charge started retries to the budgets of their dependencies."""
        with self.lock:
            for lease in leases:
                if lease.failures and lease.uses:
                    keys = split_uses(lease.uses)
                    self._add_pending(dict.fromkeys(keys, DependencyTally(retried=1)))

    def count_successes(self, keys: Iterable[str]) -> None:
        """Count a call of dependencies that another job queue made and that succeeded."""
        with self.lock:
            self._add_pending(dict.fromkeys(keys, DependencyTally(ok=1, first_ok=1)))

    def judge_call(
        self, tx: Transaction, key: str, fence: Fence, now: Micros, *, passed: bool
    ) -> None:
        """Let a call that another job queue made be the probe that is due, if one is."""
        row = GuardQueries(tx).lock_guard(("dependency", key))
        if row is None:
            return
        before, config = load_guard(row.body), self.config_for(key)
        if not before.open or now < before.probe_at:
            return
        probing = breaker.start_probe(before, fence, PROBE_KIND, config, now)
        tally = DependencyTally(verdict=ProbeVerdict(*fence, passed))
        after, changes = breaker.apply_tallies(probing, [tally], config, now, self.rng)
        self.write(tx, row, before, after, changes)

    def retries_left(self, key: str, now: Micros) -> int | None:
        """Return how many more retries may start, or None if there is no budget."""
        bucket = self._bucket(key, now)
        config = self.config_for(key).budget
        if bucket is None or config is None:
            return None
        return budgets.available_retries(bucket, config, now)

    def next_retry_at(self, key: str, now: Micros) -> Micros | None:
        """Return when the next retry may start, or None if it may start now."""
        bucket = self._bucket(key, now)
        config = self.config_for(key).budget
        if bucket is None or config is None:
            return None
        return budgets.next_retry_at(bucket, config, now)

    def _bucket(self, key: str, now: Micros) -> RetryBucket | None:
        """Return the bucket as last read, less the retries that were started since."""
        config = self.config_for(key).budget
        if config is None:
            return None
        bucket = self.guards.get(key, NEW_GUARD).bucket or RetryBucket(config.size, now)
        started = self._pending.get(key, EMPTY_TALLY).retried
        return bucket._replace(tokens=bucket.tokens - started)

    def _is_budget_low(self, key: str, now: Micros) -> bool:
        bucket = self._bucket(key, now)
        config = self.config_for(key).budget
        return bucket is not None and config is not None and budgets.is_low(bucket, config)

    # --- Slow calls ---

    def count_overdue(self, running: Iterable[tuple[Lease, float]]) -> bool:
        """Count attempts that run for too long (ms) as failed. Return True if there were any.

        They are counted before their end because a call that hangs may never end.
        """
        with self.lock:
            found_any = False
            for lease, ms in running:
                is_counted = lease.fence in self._overdue
                if not lease.uses or is_counted or not self._is_slow(lease, ms):
                    continue
                found_any = True
                self._overdue.add(lease.fence)
                keys = split_uses(lease.uses)
                tally = DependencyTally(failed=1 / len(keys), slow=1, jobs=(lease.id,))
                self._add_pending(dict.fromkeys(keys, tally))
            return found_any

    def _is_slow(self, lease: Lease, ms: float) -> bool:
        thresholds = [self._slow_threshold(key, lease.kind) for key in split_uses(lease.uses)]
        return any(threshold is not None and ms > threshold for threshold in thresholds)

    def _slow_threshold(self, key: str, kind: str) -> float | None:
        guard = self.guards.get(key, NEW_GUARD)
        cached = self._thresholds.get((key, kind))
        if cached is not None and cached[0] is guard:
            return cached[1]
        threshold = guard.slow_threshold_ms(kind, self.config_for(key))
        self._thresholds[key, kind] = (guard, threshold)
        return threshold

    # --- Counting ---

    def _count(self, endings: Sequence[Ending]) -> dict[str, DependencyTally]:
        builders: dict[str, TallyBuilder] = {}
        for ending in endings:
            lease = ending.lease
            if self.probes:
                for key in self.probes.get(lease.fence, ()):
                    builder = builders.setdefault(key, TallyBuilder())
                    builder.verdict = _probe_verdict(ending, key)
            if lease.uses or ending.outcome.step is not None:
                keys = _suspect_keys(ending)
                for key in keys:
                    builder = builders.setdefault(key, TallyBuilder())
                    self._count_ending(builder, ending, key, len(keys))
        tallies = {key: builder.build() for key, builder in builders.items()}
        return {key: tally for key, tally in tallies.items() if tally != EMPTY_TALLY}

    def _count_ending(self, builder: TallyBuilder, ending: Ending, key: str, keys: int) -> None:
        """Count one ending for one of the `keys` dependencies that it used."""
        lease = ending.lease
        outcome = ending.outcome
        if outcome.skipped:  # the handler was not called
            return
        if outcome.ended is Ended.RETURNED:
            self._count_success(builder, ending, key, keys)
        elif outcome.failure is None or not _has_failed(ending):
            return
        elif outcome.failure.cls is Cls.RATE_LIMITED:
            builder.limited += 1
        elif lease.fence not in self._overdue:
            builder.add_blame(blame_share(outcome.failure, keys), lease.id)

    def _count_success(self, builder: TallyBuilder, ending: Ending, key: str, keys: int) -> None:
        lease = ending.lease
        ms = ending.duration_ms
        if lease.failures:
            builder.retry_ok += 1
        else:
            builder.first_ok += 1
        if ms is not None:
            builder.add_duration(lease.kind, ms)
        if lease.fence in self._overdue:
            return
        threshold = self._slow_threshold(key, lease.kind)
        if ms is not None and threshold is not None and ms > threshold:
            builder.slow += 1
            builder.add_blame(1 / keys, lease.id)
        else:
            builder.ok += 1

    # --- Folding ---

    def _fold_all(self, tx: Transaction, tallies: Tallies, now: Micros) -> None:
        for key in sorted({*tallies, *self._unfolded}):
            self.fold(tx, key, tallies.get(key, EMPTY_TALLY), now)

    def fold(self, tx: Transaction, key: str, tally: DependencyTally, now: Micros) -> None:
        """Fold a tally into the guard, or store it if another worker has locked the guard."""
        name = ("dependency", key)
        row = GuardQueries(tx).lock_guard(name)
        if row is None:
            if tally != EMPTY_TALLY:
                GuardQueries(tx).append_tally(name, tally.to_json())
            self._unfolded.add(key)
            return
        self._unfolded.discard(key)
        tallies = [parse_tally(body) for body in GuardQueries(tx).take_tallies(name)]
        tallies.append(tally)
        before = load_guard(row.body)
        running = 0
        if before.throttle.limited or any(one.limited for one in tallies):
            running = _count_running(tx, key)
        after, changes = breaker.apply_tallies(
            before,
            tallies,
            self.config_for(key),
            now,
            self.rng,
            waiting=key in self.waiting,
            running=running,
        )
        self.write(tx, row, before, after, changes)

    def write(
        self,
        tx: Transaction,
        row: GuardRow,
        before: GuardState,
        after: GuardState,
        changes: breaker.Changes,
        *,
        actor: str = BREAKER_ACTOR,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write the guard, its gate and the events of its changes."""
        active = after.affects_claims(self.config_for(row.key))
        GuardQueries(tx).update_guard(row._replace(active=active, body=after.to_json()))
        self.guards[row.key] = after
        for change in changes:
            _write_change(tx, row.key, change, after, actor, more)
        if after.open and before.open and after.probe_at != before.probe_at:
            GuardQueries(tx).set_probe_time(("dependency", row.key), after.probe_at)

    # --- Periodic ---

    def load_guards(self, rows: Iterable[GuardRow]) -> dict[str, GuardState]:
        """Update the cache from the guards that affect claims; all others have no effect."""
        active = {row.key: load_guard(row.body) for row in rows if row.scope == "dependency"}
        with self.lock:
            for key, guard in self.guards.items():
                if key in active:
                    continue
                if guard.override is not None or guard.affects_claims(self.config_for(key)):
                    self.guards[key] = replace(NEW_GUARD, times=guard.times, window=guard.window)
            self.guards |= active
        return active

    def find_pending_keys(self, tx: Transaction) -> set[str]:
        """Return dependencies with tallies to fold, or whose guard may change with time."""
        keys = self._pending.keys() | self._unfolded
        for scope, key in GuardQueries(tx).list_tallied_guards():
            if scope == "dependency":
                keys.add(key)
        for row in GuardQueries(tx).list_guards(active_only=True):
            if row.scope == "dependency":
                keys.add(row.key)
        return keys

    @property
    def has_pending(self) -> bool:
        """True if there are counts that were not folded yet."""
        return bool(self._pending or self._unfolded)

    def take_pending(self) -> dict[str, DependencyTally]:
        """Return and clear what was not flushed yet. Another thread may continue to count."""
        with self.lock:
            pending = self._pending
            self._pending = {}
            return pending

    def restore_pending(self, tallies: Tallies) -> None:
        """Put back what could not be written."""
        with self.lock:
            self._add_pending(tallies)

    def fold_pending(
        self, tx: Transaction, keys: Iterable[str], tallies: Tallies, now: Micros
    ) -> None:
        """Fold these tallies and the stored ones, and let guards react to the passed time."""
        with self.lock:
            self._fold_all(tx, {**dict.fromkeys(keys, EMPTY_TALLY), **tallies}, now)


def _write_change(
    tx: Transaction,
    key: str,
    change: BreakerChange,
    guard: GuardState,
    actor: str,
    more: Mapping[str, Any],
) -> None:
    if change.type is ChangeType.OPENED:
        gate = Gate("dependency", key, guard.since, None, change.reason, actor, guard.probe_at)
        GuardQueries(tx).close_gate(gate)
    elif change.type is ChangeType.CLOSED:
        GuardQueries(tx).open_gate("dependency", key)
    details = _change_details(change, guard)
    data = {"dependency": key, "reason": change.reason, **details, **more}
    EventQueries(tx).write_events([NewEvent(_EVENTS[change.type], actor=actor, data=data)])
    _log_change(change, key, actor, details)


def _change_details(change: BreakerChange, guard: GuardState) -> dict[str, Micros | float | None]:
    if change.type is ChangeType.OPENED:
        return {"probe_at": guard.probe_at}
    if change.type is ChangeType.CLOSED and guard.ramp is not None:
        return {"rate": round(guard.ramp.rate, 3)}
    return {}


def _log_change(change: BreakerChange, key: str, actor: str, details: Mapping[str, Any]) -> None:
    level = logging.WARNING if change.type is ChangeType.OPENED else logging.INFO
    what = change.type.value
    extra = {"dependency": key, "change": what, "reason": change.reason, "actor": actor}
    log.log(level, "dependency %s %s: %s", key, what, change.reason, extra={**extra, **details})


def _probe_verdict(ending: Ending, key: str) -> ProbeVerdict:
    lease = ending.lease
    return ProbeVerdict(lease.id, lease.token, _has_probe_passed(ending, key))


def _has_probe_passed(ending: Ending, key: str) -> bool | None:
    """Return whether a probe shows that a dependency is up; None if it shows nothing."""
    outcome = ending.outcome
    if outcome.skipped:
        return None
    if outcome.ended is Ended.RETURNED:
        if ending.lease.kind != PROBE_KIND:
            return True
        return bool(json.loads(outcome.result or "{}").get("healthy"))
    if outcome.ended in {Ended.RETRY, Ended.LOST}:
        return False  # a probe that kills its process must not be repeated at once
    held = outcome.ended is Ended.HELD and outcome.dependency == key
    if held or _is_dependency_failure(ending, probe=True):
        return False
    return None


def _is_dependency_failure(ending: Ending, *, probe: bool) -> bool:
    """Return True if a dependency may have caused the failure.

    A probe also fails if the dependency responded but asked to be called later: every other job
    would get the same answer.
    """
    failure = ending.outcome.failure
    if failure is None or not _has_failed(ending):
        return False
    if blame_share(failure, 1) > 0:
        return True
    if not probe:
        return False
    quota_with_hint = failure.cls is Cls.QUOTA and failure.retry_after is not None
    return failure.cls is Cls.RATE_LIMITED or quota_with_hint


def _has_failed(ending: Ending) -> bool:
    """Return True for a failure that the handler did not declare final.

    A handler that declares its failure final knows the cause; it is not the dependency.
    """
    return ending.outcome.ended is Ended.FAILED and not ending.outcome.final


def _suspect_keys(ending: Ending) -> list[str]:
    """Return the dependencies that an ending counts for.

    A failure that names exactly one of several dependencies, for example in a host name, counts
    for that one alone.
    """
    step = ending.outcome.step
    if step is not None and step.uses:
        return split_uses(step.uses)
    keys = split_uses(ending.lease.uses)
    failure = ending.outcome.failure
    if len(keys) < 2 or failure is None:
        return keys
    private = failure.private
    text = f"{private.get('message', '')} {private.get('detail', '')}".lower()
    named = [key for key in keys if _names_key(text, key.lower())]
    return named if len(named) == 1 else keys


def _names_key(text: str, key: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(key)}(?![a-z0-9])", text) is not None


def _add_tallies(first: Tallies, second: Tallies) -> dict[str, DependencyTally]:
    result = dict(first)
    for key, tally in second.items():
        result[key] = result.get(key, EMPTY_TALLY).add(tally)
    return result


def _count_running(tx: Transaction, key: str) -> int:
    running = 0
    for _, uses, count in GuardQueries(tx).count_running():
        if key in split_uses(uses):
            running += count
    return running


def close_gates(tx: Transaction, decisions: Iterable[Decision], now: Micros) -> None:
    """Close the gates of dependencies that handlers, or hints of servers, report as down.

    In one order for all transactions, so that they cannot deadlock. Of several holds of one
    dependency, the last in that order counts.
    """
    requests = set()
    for decision in decisions:
        if decision.hold is not None:
            actor = "handler" if decision.failure is None else "hint"
            requests.add((*decision.hold, actor))
    gates = {}
    for key, until, reason, actor in sorted(requests):
        gates[key] = Gate("dependency", key, now, until, reason, actor)
    for key, gate in gates.items():
        GuardQueries(tx).close_gate(gate)
        data = {"dependency": key, "until": gate.until, "reason": gate.reason}
        event = NewEvent(EventType.DEPENDENCY_OPENED, actor=gate.actor, data=data)
        EventQueries(tx).write_events([event])


# --- Chore ---


def has_guards_to_fold(store: Store, dependencies: DependencyObserver, kinds: KindObserver) -> bool:
    """True if there are tallies to fold, or guards that may change with time. Only reads."""
    with store.read() as tx:
        return bool(dependencies.find_pending_keys(tx) or kinds.find_pending_kinds(tx))


def fold_guards(store: Store, dependencies: DependencyObserver, kinds: KindObserver) -> None:
    """Fold stored tallies and let guards react to the passed time. Cheap if no guard is active."""
    with store.read() as tx:
        pending_keys = dependencies.find_pending_keys(tx)
        pending_kinds = kinds.find_pending_kinds(tx)
    if not pending_keys and not pending_kinds:
        return
    tallies = dependencies.take_pending()
    try:
        with store.begin() as tx:
            now = tx.now()
            dependencies.fold_pending(tx, pending_keys, tallies, now)
            kinds.fold_pending(tx, pending_kinds, now)
    except BaseException:
        dependencies.restore_pending(tallies)
        raise

"""Readings of alerts: samples of all measures, from counters and from the current state.

Reads only small tables and bounded queries, and caches counters by window.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mulligan.alerts.measures import (
    MEASURES,
    StatCount,
    counter_names,
    measure_death_rate,
    read_counts,
)
from mulligan.alerts.rules import WHOLE_RULE, Alert, AlertDefinition, Sample, apply_time_limit
from mulligan.core.attempt import Alarm
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane
from mulligan.events.queries import StatQueries
from mulligan.failures.queries import FailureQueries
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import load_guard
from mulligan.manifest.declared import load_recent_manifests
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import ReleaseState
from mulligan.releases.service import judge_kinds
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries

MIN_CACHE_TIME = 5 * SECOND
MAX_CACHE_TIME = 600 * SECOND
SPIKE_SPAN = 3600.0  # seconds whose death rate is the usual one
RUN_TIME_WINDOW = 300.0  # seconds over which the duration of attempts is measured


@dataclass
class CountCache:
    """Counters by window. Counts of a long window change slowly and are cached longer."""

    names: Mapping[float, Sequence[str]]  # counters that are needed, by window
    _cached: dict[float, tuple[Micros, list[StatCount]]] = field(default_factory=dict)

    def load(self, tx: Transaction, window: float, now: Micros) -> list[StatCount]:
        """Return the counts of the last `window` seconds."""
        length = round(window * SECOND)
        loaded_at, counts = self._cached.get(window, (0, []))
        if 0 <= now - loaded_at < _cache_lifetime(length):
            return counts
        rows = StatQueries(tx).sum_stats(self.names.get(window, ()), now - length)
        counts = read_counts(rows)
        self._cached[window] = (now, counts)
        return counts


def _cache_lifetime(length: Micros) -> Micros:
    """Return how long the counts of a window of this length are cached."""
    interval = min(MAX_CACHE_TIME, max(MIN_CACHE_TIME, length // 60))
    return interval - SECOND  # less, so that a caller of this interval never gets them twice


def build_count_cache(rules: Iterable[AlertDefinition]) -> CountCache:
    """Return a cache of the counters that the rules need."""
    needed: defaultdict[float, set[str]] = defaultdict(set)
    needed[RUN_TIME_WINDOW] = {"run"}
    for rule in rules:
        names = counter_names(rule.measure)
        needed[rule.window].update(names)
        if rule.and_window is not None:
            needed[rule.and_window].update(names)
        if rule.measure == "dead_jump":
            needed[SPIKE_SPAN].update(names)
    return CountCache({window: sorted(names) for window, names in needed.items()})


# --- Readings: queue ages, breakers, heartbeats, new failures ---

MAX_DEPTH = 1000  # jobs of a queue that are counted
MAX_GROUPS = 50  # failure groups with the latest deaths
MAX_DEATHS = 200  # of a failure group
BY_QUEUE = "rate_limited_share_by_queue"


class DueLane(NamedTuple):
    """A lane with due jobs that nothing holds."""

    lane: Lane
    key: str
    priority: int
    due_at: Micros  # of its oldest job


@dataclass
class Readings:
    """Samples of all rules in one transaction. Each part is read when a rule first needs it."""

    tx: Transaction
    now: Micros
    counts: CountCache
    alerts: Mapping[str, Mapping[str, Alert]]  # stored, by rule and key

    def samples(self, rule: AlertDefinition) -> list[Sample]:
        """Return the samples of a rule, one per key."""
        gauge = _GAUGES.get(rule.measure)
        if gauge is not None:
            return self._gauge_samples(rule, list(gauge(self, rule)))
        if rule.measure == "dead_jump":
            recent = self._load_counts(rule.window)
            past = self._load_counts(SPIKE_SPAN)
            return measure_death_rate(recent, past, rule.window, SPIKE_SPAN)
        return self._counter_samples(rule)

    def _gauge_samples(self, rule: AlertDefinition, found: list[Sample]) -> list[Sample]:
        """Add a sample of 0 for each key with an alert whose condition has disappeared."""
        if rule.once:
            return found
        measured = {sample.key for sample in found}
        samples = list(found)
        for key in self.alerts.get(rule.name, {}):
            if key not in measured and key != WHOLE_RULE:
                samples.append(Sample(key, 0.0, max(1.0, rule.least)))
        return samples

    def _counter_samples(self, rule: AlertDefinition) -> list[Sample]:
        measure = MEASURES[rule.measure]
        found = list(measure.samples(self._rule_counts(rule, rule.window)))
        if rule.of_limit:
            limits = self.time_limits
            found = [apply_time_limit(rule, sample, limits.get(sample.key)) for sample in found]
        if rule.and_window is None:
            return found
        recent = measure.samples(self._rule_counts(rule, rule.and_window))
        recent_values = {sample.key: sample.value for sample in recent}
        both = []
        for sample in found:
            recent_value = recent_values.get(sample.key, 0.0)
            both.append(sample._replace(value=min(sample.value, recent_value)))
        return both

    def _rule_counts(self, rule: AlertDefinition, window: float) -> list[StatCount]:
        counts = self._load_counts(window)
        if rule.measure != BY_QUEUE:
            return counts
        # Kinds with dependencies are throttled by the guards of their dependencies.
        others = self.kinds_with_dependencies
        return [count for count in counts if count.labels.get("kind") not in others]

    def _load_counts(self, window: float) -> list[StatCount]:
        return self.counts.load(self.tx, window, self.now)

    @cached_property
    def time_limits(self) -> Mapping[str, float]:
        """Seconds that an attempt of each kind may take, as the newest release declares them."""
        limits: dict[str, float] = {}
        for manifest in load_recent_manifests(self.tx, self.now):
            for spec in manifest.kinds.values():
                limits.setdefault(spec.name, spec.timeout / SECOND)
        return limits

    @cached_property
    def kinds_with_dependencies(self) -> frozenset[str]:
        """Kinds whose jobs use a dependency."""
        found = set()
        for manifest in load_recent_manifests(self.tx, self.now):
            for spec in manifest.kinds.values():
                if spec.uses or spec.uses_by_payload:
                    found.add(spec.name)
        return frozenset(found)

    # --- Queues, breakers, workers ---

    @cached_property
    def _due_lanes(self) -> list[DueLane]:
        state = GuardQueries(self.tx).read_claim_state()
        closed_gates = [gate for gate in state.gates if is_closed(gate, state.now)]
        closed = {(gate.scope, gate.key) for gate in closed_gates}
        found = []
        for key, priority, due_at in state.lanes:
            if due_at > state.now:
                continue
            lane = Lane.parse(key)
            is_open = closed.isdisjoint({*lane.limit_keys, ("kind", lane.kind)})
            if is_open and not lane.kind.startswith(SYSTEM_PREFIX):
                found.append(DueLane(lane, key, priority, due_at))
        return found

    def queue_age(self, rule: AlertDefinition) -> Iterator[Sample]:
        """Yield how long the oldest due job of each queue has waited."""
        oldest: dict[str, Micros] = {}
        for due in self._due_lanes:
            queue = due.lane.queue
            oldest[queue] = min(due.due_at, oldest.get(queue, due.due_at))
        for queue, due_at in oldest.items():
            age = max(0, self.now - due_at) / SECOND
            depth = self._queue_depth(queue) if age > rule.above else 0
            yield Sample(queue, age, depth, {"depth": depth, "oldest": due_at})

    def _queue_depth(self, queue: str) -> int:
        depth = 0
        for due in self._due_lanes:
            if due.lane.queue == queue and depth < MAX_DEPTH:
                due_jobs, _ = GuardQueries(self.tx).count_waiting(
                    due.key, due.priority, self.now, MAX_DEPTH
                )
                depth += due_jobs
        return depth

    def unserved(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield how long due jobs have waited of each kind that no live worker runs."""
        served = WorkerQueries(self.tx).live_kinds()
        oldest: dict[str, Micros] = {}
        for due in self._due_lanes:
            kind = due.lane.kind
            if kind not in served:
                oldest[kind] = min(due.due_at, oldest.get(kind, due.due_at))
        for kind, due_at in oldest.items():
            yield Sample(kind, max(0, self.now - due_at) / SECOND, 1.0, {"oldest": due_at})

    def breaker_open(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield how long each dependency has been on hold."""
        for gate in GuardQueries(self.tx).list_gates():
            if gate.scope != "dependency" or gate.key.startswith(SYSTEM_PREFIX):
                continue
            if is_closed(gate, self.now):
                age = max(0, self.now - gate.since) / SECOND
                yield Sample(gate.key, age, 1.0, {"reason": gate.reason, "actor": gate.actor})

    def heartbeat_age(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield the time since the last heartbeat of each worker whose lease has expired."""
        for worker in WorkerQueries(self.tx).list_workers(closed=False):
            age = max(0, self.now - worker.renewed_at) / SECOND
            if age > worker.lease / SECOND:
                yield Sample(worker.id, age, 1.0, {"host": worker.host, "pid": worker.pid})

    def at_floor(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield each dependency and queue whose concurrency was reduced to one."""
        for row in GuardQueries(self.tx).list_guards(active_only=True):
            if row.scope != "dependency" or row.key.startswith(SYSTEM_PREFIX):
                continue
            if load_guard(row.body).throttle.limit == 1:
                yield Sample(f"dependency {row.key}", 1.0, 1.0, {"limit": 1})
        for alerts in self.alerts.values():
            for alert in alerts.values():
                if alert.reduced_limit == 1:
                    scope = alert.action_state["scope"]
                    yield Sample(f"{scope} {alert.key}", 1.0, 1.0, {"limit": 1})

    # --- Releases ---

    def release_worse(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield by how much more a kind fails under a release than under others."""
        rows = ReleaseQueries(self.tx).list_counts()
        live = {release for release, _ in ReleaseQueries(self.tx).count_live_workers()}
        for release in sorted(live):
            own = [row for row in rows if row.release == release]
            for kind in judge_kinds(own, rows):
                if kind.state is ReleaseState.WORSE:
                    share = kind.counts.failed_share or 0.0
                    rise = share - (kind.before.failed_share or 0.0)
                    evidence = {
                        "release": release,
                        "kind": kind.kind,
                        "bad": kind.counts.failures,
                        "of": kind.counts.starts,
                        "bad_before": kind.before.failures,
                        "of_before": kind.before.starts,
                    }
                    key = f"{kind.kind} under {release}"
                    yield Sample(key, max(0.001, rise), kind.counts.starts, evidence)

    # --- Failure groups ---

    def new_group(self, rule: AlertDefinition) -> Iterator[Sample]:
        """Yield the deaths of each failure group that first appeared within the window."""
        since = self.now - round(rule.window * SECOND)
        first_deaths = self._new_groups(rule, since)
        samples = FailureQueries(self.tx).get_cause_samples(list(first_deaths))
        groups = FailureQueries(self.tx).count_group_deaths(
            list(first_deaths), {}, self.now, 1, MAX_DEATHS
        )
        terms = {name: json.loads(text) for name, text in samples.items()}
        for name, deaths in groups.items():
            declared = terms.get(name, {}).get("private", {})
            if declared.get("alarm") == Alarm.NONE:
                continue
            counted = list(deaths.counts)
            if rule.measure == "new_unknown_group":
                counted = [count for count in counted if count.cls == "unknown"]
            if not counted:
                continue
            jobs = sum(count.jobs for count in counted)
            first = counted[0]
            evidence = {
                "kind": first.kind,
                "code": first.code,
                "class": first.cls,
                "first": first_deaths[name],
            }
            if declared.get("runbook"):
                evidence["runbook"] = declared["runbook"]
            yield Sample(name, float(jobs), jobs, evidence)

    def _new_groups(self, rule: AlertDefinition, since: Micros) -> dict[str, Micros]:
        """Return the time of the first death of each new group without an alert."""
        reported = self.alerts.get(rule.name, {})
        queries = FailureQueries(self.tx)
        recent = []
        for name, last_at in queries.list_groups(None, MAX_GROUPS):
            if last_at >= since and name not in reported:
                recent.append(name)
        new_groups = {}
        for name, (first_at, _) in queries.get_group_death_times(recent, {}).items():
            if first_at >= since:
                new_groups[name] = first_at
        return new_groups


_GAUGES: dict[str, Callable[[Readings, AlertDefinition], Iterator[Sample]]] = {
    "queue_age": Readings.queue_age,
    "unserved": Readings.unserved,
    "breaker_open": Readings.breaker_open,
    "heartbeat_age": Readings.heartbeat_age,
    "at_floor": Readings.at_floor,
    "release_worse": Readings.release_worse,
    "new_group": Readings.new_group,
    "new_unknown_group": Readings.new_group,
}

"""Samples of the current state: queue ages, breakers, heartbeats, new failures.

Reads only small tables and bounded queries. Counters are cached by window.
"""

from __future__ import annotations

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
from mulligan.alerts.rules import WHOLE_RULE, Alert, AlertDefinition, Sample
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane
from mulligan.events.queries import StatQueries
from mulligan.failures.queries import FailureQueries
from mulligan.guards.lanes import is_closed
from mulligan.guards.observer import load_guard
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.declared import load_recent_manifests
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries
from mulligan.worker.upkeep import live_kinds

MAX_DEPTH = 1000  # jobs of a queue that are counted
MAX_GROUPS = 50  # failure groups with the latest deaths
MAX_DEATHS = 200  # of a failure group
MIN_CACHE_TIME = 5 * SECOND
MAX_CACHE_TIME = 600 * SECOND
SPIKE_SPAN = 3600.0  # seconds whose death rate is the usual one
RUN_TIME_WINDOW = 300.0  # seconds over which the duration of attempts is measured
BY_QUEUE = "rate_limited_share_by_queue"


# --- Counters ---


@dataclass
class CountCache:
    """Counters by window. Counts of a long window change slowly and are cached longer."""

    names: Mapping[float, Sequence[str]]  # counters that are needed, by window
    _cached: dict[float, tuple[Micros, list[StatCount]]] = field(default_factory=dict)

    def load(self, tx: Transaction, window: float, now: Micros) -> list[StatCount]:
        """Return the counts of the last `window` seconds."""
        loaded_at, counts = self._cached.get(window, (0, []))
        length = round(window * SECOND)
        # One second less than the interval, so that a periodic caller does not miss it narrowly.
        lifetime = min(MAX_CACHE_TIME, max(MIN_CACHE_TIME, length // 60)) - SECOND
        if not 0 <= now - loaded_at < lifetime:
            counts = read_counts(
                StatQueries(tx).sum_stats(self.names.get(window, ()), now - length)
            )
            self._cached[window] = (now, counts)
        return counts


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
    return CountCache({window: sorted(names) for window, names in needed.items() if names})


# --- Readings ---


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
        present = {sample.key for sample in found} | {WHOLE_RULE}
        absent = [key for key in self.alerts.get(rule.name, {}) if key not in present]
        return found + [Sample(key, 0.0, max(1.0, rule.least)) for key in absent]

    def _counter_samples(self, rule: AlertDefinition) -> list[Sample]:
        measure = MEASURES[rule.measure]
        found = list(measure.samples(self._rule_counts(rule, rule.window)))
        if rule.and_window is None:
            return found
        recent = measure.samples(self._rule_counts(rule, rule.and_window))
        recent_values = {sample.key: sample.value for sample in recent}
        return [
            sample._replace(value=min(sample.value, recent_values.get(sample.key, 0.0)))
            for sample in found
        ]

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
        closed = {(gate.scope, gate.key) for gate in state.gates if is_closed(gate, state.now)}
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
                depth += GuardQueries(self.tx).count_waiting(
                    due.key, due.priority, self.now, MAX_DEPTH
                )[0]
        return depth

    def unserved(self, _: AlertDefinition) -> Iterator[Sample]:
        """Yield how long due jobs have waited of each kind that no live worker runs."""
        served = live_kinds(self.tx)
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
                throttle = alert.action_state.get("reduced")
                if throttle and throttle[0] == 1:
                    scope = alert.action_state["scope"]
                    yield Sample(f"{scope} {alert.key}", 1.0, 1.0, {"limit": 1})

    # --- Failure groups ---

    def new_group(self, rule: AlertDefinition) -> Iterator[Sample]:
        """Yield the deaths of each failure group that first appeared within the window."""
        since = self.now - round(rule.window * SECOND)
        first_deaths = self._new_groups(rule, since)
        groups = FailureQueries(self.tx).count_group_deaths(
            list(first_deaths), {}, self.now, 1, MAX_DEATHS
        )
        for name, deaths in groups.items():
            counted = list(deaths.counts)
            if rule.measure == "new_unknown_group":
                counted = [count for count in counted if count.cls == "unknown"]
            if counted:
                jobs = sum(count.jobs for count in counted)
                evidence = {
                    "kind": counted[0].kind,
                    "code": counted[0].code,
                    "class": counted[0].cls,
                    "first": first_deaths[name],
                }
                yield Sample(name, float(jobs), jobs, evidence)

    def _new_groups(self, rule: AlertDefinition, since: Micros) -> dict[str, Micros]:
        """Return the time of the first death of each new group without an alert."""
        reported = self.alerts.get(rule.name, {})
        groups = FailureQueries(self.tx).list_groups(None, MAX_GROUPS)
        recent = [name for name, last_at in groups if last_at >= since and name not in reported]
        times = FailureQueries(self.tx).get_group_death_times(recent, {})
        return {name: first_at for name, (first_at, _) in times.items() if first_at >= since}


_GAUGES: dict[str, Callable[[Readings, AlertDefinition], Iterator[Sample]]] = {
    "queue_age": Readings.queue_age,
    "unserved": Readings.unserved,
    "breaker_open": Readings.breaker_open,
    "heartbeat_age": Readings.heartbeat_age,
    "at_floor": Readings.at_floor,
    "new_group": Readings.new_group,
    "new_unknown_group": Readings.new_group,
}

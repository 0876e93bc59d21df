"""Measures of alerts: computed from stored counters, or read from the current state.

The functions up to `counter_names` are pure. `Readings` reads only small tables and bounded
queries, and caches counters by window.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from mulligan.alerts.rules import WHOLE_RULE, Alert, AlertDefinition, Sample, apply_time_limit
from mulligan.core.attempt import Alarm
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane
from mulligan.core.statistics import FAILED_OUTCOMES
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

USER_CAUSED = frozenset({"invalid_input", "cancelled"})  # classes that are no fault of the system
ATTEMPTED = frozenset({"succeeded", *FAILED_OUTCOMES})
DURATION_QUANTILE = 0.95

Labels = Mapping[str, str]
Predicate = Callable[[Labels], bool]


class StatCount(NamedTuple):
    """Sum of one counter with one set of labels, in one window."""

    name: str
    labels: Labels
    n: int
    total: float


def read_counts(rows: Iterable[tuple[str, str, int, float]]) -> list[StatCount]:
    """Read stored counters: (name, labels as JSON, n, total)."""
    counts = []
    for name, labels, n, total in rows:
        counts.append(StatCount(name, json.loads(labels), n, total))
    return counts


class Measure(Protocol):
    """Computes one sample per key from counters."""

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield the samples of all keys."""
        ...


class ShareCount(NamedTuple):
    """Number of bad events, and of all events that count."""

    bad: int
    total: int


def count_bad(counts: Iterable[StatCount], measure: ShareMeasure) -> dict[str, ShareCount]:
    """Return bad and total counts by key."""
    bad: defaultdict[str, int] = defaultdict(int)
    total: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        if count.name == measure.name and measure.counts(count.labels):
            key = _key(count, measure.by)
            total[key] += count.n
            if measure.is_bad(count.labels):
                bad[key] += count.n
    return {key: ShareCount(bad[key], total[key]) for key in total}


def _key(count: StatCount, label: str) -> str:
    return count.labels.get(label, "") if label else ""


class ShareMeasure(NamedTuple):
    """Share of bad events among those that count."""

    name: str  # of the counter
    by: str  # label that is the key; empty: one key for all
    is_bad: Predicate
    counts: Predicate
    total_is_volume: bool = False  # a rule's minimum volume counts all events, not bad ones

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield the share of each key."""
        for key, (bad, total) in count_bad(counts, self).items():
            if total:
                volume = total if self.total_is_volume else bad
                yield Sample(key, bad / total, volume, {"bad": bad, "of": total})


class CountMeasure(NamedTuple):
    """Number of events."""

    name: str
    by: str
    counts: Predicate

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield the count of each key; without keys, also a count of 0."""
        found: defaultdict[str, int] = defaultdict(int)
        if not self.by:
            found[""] = 0
        for count in counts:
            if count.name == self.name and self.counts(count.labels):
                found[_key(count, self.by)] += count.n
        for key, n in found.items():
            yield Sample(key, float(n), n, {"count": n})


class DurationMeasure(NamedTuple):
    """95th percentile of a histogram."""

    name: str
    by: str

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield the duration of each key, in seconds."""
        for key, buckets in read_histograms(counts, self.name, self.by).items():
            attempts = sum(bucket.n for bucket in buckets.values())
            yield Sample(key, histogram_quantile(buckets), attempts, {"attempts": attempts})


class Bucket(NamedTuple):
    """Values of a histogram between two bounds: how many, and their sum."""

    n: int
    total: float


Histogram = dict[float, Bucket]  # by upper bound


def read_histograms(counts: Iterable[StatCount], name: str, label: str) -> dict[str, Histogram]:
    """Return the histograms of a counter, by the value of a label."""
    histograms: defaultdict[str, Histogram] = defaultdict(dict)
    for count in counts:
        if count.name == name:
            upper_bound = float(count.labels.get("le", "inf"))
            buckets = histograms[_key(count, label)]
            before = buckets.get(upper_bound, Bucket(0, 0.0))
            buckets[upper_bound] = Bucket(before.n + count.n, before.total + count.total)
    return histograms


def histogram_quantile(buckets: Histogram, share: float = DURATION_QUANTILE) -> float:
    """Return the mean of the values in the bucket of a quantile.

    Interpolation between the bounds would find 95 % of attempts that all take 65 minutes to end
    within 117, because the bounds are one and two hours.
    """
    rank = sum(bucket.n for bucket in buckets.values()) * share
    below = 0
    for upper_bound in sorted(buckets):
        bucket = buckets[upper_bound]
        below += bucket.n
        if bucket.n and below >= rank:
            return bucket.total / bucket.n
    return 0.0


class RetryRatioMeasure(NamedTuple):
    """Retries per first attempt."""

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield one ratio for all jobs."""
        first = 0
        retries = 0
        for count in counts:
            if count.name != "verdicts" or count.labels.get("outcome") not in ATTEMPTED:
                continue
            if count.labels.get("nth") == "first":
                first += count.n
            else:
                retries += count.n
        if first:
            evidence = {"retries": retries, "first": first}
            yield Sample("", retries / first, first + retries, evidence)


class RetryCostMeasure(NamedTuple):
    """Cost of retries per enqueued job of the kinds that have costs."""

    def samples(self, counts: list[StatCount]) -> Iterator[Sample]:
        """Yield one cost for all jobs. Reactions and other free jobs do not make it smaller."""
        kinds = {count.labels.get("kind") for count in counts if count.name == "cost"}
        cost = 0.0
        jobs = 0
        for count in counts:
            if count.name == "cost" and count.labels.get("nth") == "retry":
                cost += count.total
            elif count.name == "enqueued" and count.labels.get("kind") in kinds:
                jobs += count.n
        if jobs:
            yield Sample("", cost / jobs, jobs, {"cost": round(cost, 6), "jobs": jobs})


def _is_dead(labels: Labels) -> bool:
    return _is_dead_letter(labels) and labels.get("class") not in USER_CAUSED


def _is_dead_letter(labels: Labels) -> bool:
    """Return whether a job is dead, whatever the cause, also input that was refused."""
    return labels.get("state") == "dead" and labels.get("alarm") != Alarm.NONE


def _has_ended(labels: Labels) -> bool:
    """Return whether a job counts. Refused input says nothing about the system."""
    if labels.get("alarm") == Alarm.NONE:  # its rule says that it is expected
        return False
    return labels.get("state") != "cancelled" and labels.get("class") not in USER_CAUSED


def _has_failed(labels: Labels) -> bool:
    return labels.get("outcome") in FAILED_OUTCOMES and labels.get("class") not in USER_CAUSED


def _was_attempted(labels: Labels) -> bool:
    return labels.get("outcome") in ATTEMPTED and labels.get("class") not in USER_CAUSED


def _is_rate_limited(labels: Labels) -> bool:
    return labels.get("class") == "rate_limited"


def _is_unknown(labels: Labels) -> bool:
    return labels.get("class") == "unknown"


def _is_restart(labels: Labels) -> bool:
    return labels.get("what") in {"lost", "runner_died"}


SHARES = {
    "dead_share": ShareMeasure("finished", "", _is_dead, _has_ended),
    "dead_share_by_kind": ShareMeasure("ends", "kind", _is_dead, _has_ended),
    "dead_share_by_queue": ShareMeasure("ends", "queue", _is_dead, _has_ended),
    "failed_share": ShareMeasure("attempts", "kind", _has_failed, _was_attempted),
    "failed_share_by_queue": ShareMeasure("attempts", "queue", _has_failed, _was_attempted),
    "failed_share_by_dependency": ShareMeasure("calls", "dependency", _has_failed, _was_attempted),
    "rate_limited_share": ShareMeasure(
        "calls", "dependency", _is_rate_limited, _was_attempted, total_is_volume=True
    ),
    "rate_limited_share_by_queue": ShareMeasure(
        "attempts", "queue", _is_rate_limited, _was_attempted, total_is_volume=True
    ),
    "unknown_share": ShareMeasure("verdicts", "", _is_unknown, _has_failed),
}
MEASURES: dict[str, Measure] = {
    **SHARES,
    "dead": CountMeasure("finished", "", _is_dead),
    "dead_by_kind": CountMeasure("ends", "kind", _is_dead),
    "dead_letters": CountMeasure("finished", "", _is_dead_letter),
    "dead_letters_by_kind": CountMeasure("ends", "kind", _is_dead_letter),
    "duration_p95": DurationMeasure("run", "kind"),
    "restarts": CountMeasure("workers", "", _is_restart),
    "retry_ratio": RetryRatioMeasure(),
    "retry_cost": RetryCostMeasure(),
}
_OTHER_COUNTERS = {
    "retry_ratio": ("verdicts",),
    "retry_cost": ("cost", "enqueued"),
    "dead_jump": ("finished",),
}
GROUPS = frozenset({"new_group", "new_unknown_group"})  # computed from failure groups
# What the key of a measure is, where an action needs to know it.
KEYED_BY = {
    "dead_share_by_queue": "queue",
    "failed_share_by_queue": "queue",
    "rate_limited_share_by_queue": "queue",
    "queue_age": "queue",
    "failed_share_by_dependency": "dependency",
    "rate_limited_share": "dependency",
    "breaker_open": "dependency",
    "release_worse": "release",
}


def counter_names(measure: str) -> tuple[str, ...]:
    """Return the counters that a measure needs; none for a gauge."""
    if measure in _OTHER_COUNTERS:
        return _OTHER_COUNTERS[measure]
    found = MEASURES.get(measure)
    if isinstance(found, ShareMeasure | CountMeasure | DurationMeasure):
        return (found.name,)
    return ()


def measure_death_rate(
    recent: list[StatCount], past: list[StatCount], window: float, span: float
) -> list[Sample]:
    """Return how many times more jobs died in the last `window` than usual.

    The usual rate is that of the `span` before, whose counts `past` include the window's.
    """
    dead = _count_dead(recent)
    dead_before = _count_dead(past) - dead
    usual = max(1.0, dead_before * window / max(1.0, span - window))
    return [Sample("", dead / usual, dead, {"dead": dead, "usual": round(usual, 2)})]


def _count_dead(counts: list[StatCount]) -> int:
    finished = [count for count in counts if count.name == "finished"]
    return sum(count.n for count in finished if _is_dead(count.labels))


# --- Counters by window ---

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

"""Export metrics in the Prometheus format: stored counters, and gauges read from the database.

Gauges come from a few bounded reads. Nothing is locked and counts stop at 10,000.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Gate, Lane, WorkerRow
from mulligan.core.statistics import FAILED_OUTCOMES
from mulligan.events.queries import MINUTE, EventQueries, ReaderRow, StatQueries, StatRow
from mulligan.guards.gate_status import Dependency, read_dependencies
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries, LaneDepthRow
from mulligan.jobs.queries import SearchQueries
from mulligan.manifest.declared import load_declared_queue_names
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.observability import metrics
from mulligan.observability.event_counts import LabelNames
from mulligan.operations.queries import OperationQueries
from mulligan.storage.base import Store, Transaction
from mulligan.worker.scaling import Load, compute_scale, queue_names, read_load

CAP = 10_000
MAX_OPERATIONS = 100  # the newest
BREAKERS = ("closed", "open", "ramping", "probing")
WINDOWS = {"5m": 5, "1h": 60}  # minutes

Sample = tuple[tuple[str, ...], float]


class Gauge(NamedTuple):
    """Name, help text and labels of a gauge."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """Values of all gauges, read in one transaction."""

    now: Micros
    load: Load
    depths: Sequence[LaneDepthRow]
    gates: Sequence[Gate]
    running: Sequence[tuple[str, str, int]]
    counts: Mapping[str, int]
    dependencies: Sequence[Dependency]
    workers: Sequence[WorkerRow]
    operations: Mapping[str, int]
    readers: Sequence[ReaderRow]
    newest_event: int
    event_lag: Micros
    recent: Sequence[StatRow]
    declared_queues: frozenset[str] = frozenset()  # of the active apps


def read_gauges(tx: Transaction) -> GaugeReadings:
    """Read everything the gauges need."""
    load = read_load(tx)
    recent = StatQueries(tx).list_stats(
        ["verdicts", "tries", "cost", "finished"], load.now - WINDOWS["1h"] * MINUTE
    )
    return GaugeReadings(
        now=load.now,
        load=load,
        depths=load.depths,
        gates=[gate for gate in load.gates if is_closed(gate, load.now)],
        running=GuardQueries(tx).count_running(),
        counts=dict(SearchQueries(tx).count_jobs_by_state(CAP)),
        dependencies=read_dependencies(tx),
        workers=load.workers,
        operations=Counter(
            row.state for row in OperationQueries(tx).list_operations(None, MAX_OPERATIONS, None)
        ),
        readers=EventQueries(tx).list_readers(),
        newest_event=EventQueries(tx).newest_event(),
        event_lag=EventQueries(tx).event_lag(),
        recent=recent,
        declared_queues=load_declared_queue_names(tx, load.now),
    )


def families(readings: GaugeReadings) -> Iterator[Metric]:
    """Yield all gauges as Prometheus metric families."""
    found = _samples(readings)
    for gauge in GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
        for values, value in found.get(gauge.name, ()):
            family.add_metric(values, value)
        yield family


GAUGES = (
    Gauge("mulligan_jobs", "Jobs by state.", ("state",)),
    Gauge(
        "mulligan_queue_jobs",
        "Jobs of a queue: ready, held (due, but a gate is closed), scheduled, running.",
        ("queue", "phase"),
    ),
    Gauge(
        "mulligan_oldest_job_age_seconds",
        "How long the oldest ready job of a queue has been due.",
        ("queue",),
    ),
    Gauge(
        "mulligan_oldest_held_age_seconds",
        "How long the oldest held job of a queue has been due.",
        ("queue",),
    ),
    Gauge("mulligan_dead_letters", "Dead jobs."),
    Gauge("mulligan_parked_jobs", "Jobs that wait for a person."),
    Gauge("mulligan_workers", "Workers by state: working, draining.", ("state",)),
    Gauge(
        "mulligan_workers_wanted",
        "Workers that start every due job of a queue within 30 s; held and scheduled jobs do not "
        "count.",
        ("queue",),
    ),
    Gauge("mulligan_worker_info", "Workers by release.", ("release",)),
    Gauge("mulligan_worker_slots", "Jobs that all workers together can run at the same time."),
    Gauge(
        "mulligan_worker_heartbeat_age_seconds",
        "Time since the last heartbeat of the worker that has been silent longest.",
    ),
    Gauge(
        "mulligan_breaker_state",
        "1 for the current state of a dependency, 0 for the others.",
        ("dependency", "state"),
    ),
    Gauge(
        "mulligan_breaker_open_seconds",
        "How long the breaker of a dependency has been open; 0 if it is closed.",
        ("dependency",),
    ),
    Gauge(
        "mulligan_held_jobs",
        "Due jobs that wait for a dependency.",
        ("dependency",),
    ),
    Gauge(
        "mulligan_retry_budget_remaining",
        "Retries that the budget of a dependency still allows.",
        ("dependency",),
    ),
    Gauge("mulligan_gates", "Closed gates by scope: queue, kind, dependency.", ("scope",)),
    Gauge("mulligan_operations", "Bulk actions by state, of the newest 100.", ("state",)),
    Gauge(
        "mulligan_event_lag_seconds",
        "Age of the oldest open transaction that writes events; readers wait for it.",
    ),
    Gauge(
        "mulligan_reader_lag_events",
        "Events that a reader (fold, dispatch, alerts) has not read yet.",
        ("reader",),
    ),
    Gauge(
        "mulligan_failure_rate",
        "Share of failed attempts among those that succeeded or failed.",
        ("window",),
    ),
    Gauge(
        "mulligan_retry_success_rate",
        "Share of attempts with this number that succeeded; 1 h.",
        ("try",),
    ),
    Gauge("mulligan_retry_cost_per_job", "Cost of retries per finished job; 1 h."),
    Gauge("mulligan_queue_depth", "Due jobs of a queue, ready or held.", ("queue",)),
    Gauge("mulligan_jobs_active", "Running jobs of a queue.", ("queue",)),
    Gauge("mulligan_dlq_size", "Another name of dead_letters."),
)


def _samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    dead = float(readings.counts.get("dead", 0))
    gates = Counter(gate.scope for gate in readings.gates)
    reader_lags = {row.name: max(0, readings.newest_event - row.cursor) for row in readings.readers}
    return {
        "mulligan_jobs": _count_samples(readings.counts),
        **_queue_samples(readings),
        "mulligan_dead_letters": [((), dead)],
        "mulligan_dlq_size": [((), dead)],
        "mulligan_parked_jobs": [((), float(readings.counts.get("parked", 0)))],
        **_worker_samples(readings),
        "mulligan_workers_wanted": _scale_samples(readings),
        **_dependency_samples(readings),
        "mulligan_gates": _count_samples(gates, ("queue", "kind", "dependency")),
        "mulligan_operations": _count_samples(
            readings.operations, ("running", "paused", "stopped")
        ),
        "mulligan_event_lag_seconds": [((), readings.event_lag / SECOND)],
        "mulligan_reader_lag_events": _count_samples(reader_lags),
        **_attempt_samples(readings),
    }


def _count_samples(counts: Mapping[str, int], always: Sequence[str] = ()) -> list[Sample]:
    """Return one sample for each name, 0 for those of `always` that have no count."""
    samples: list[Sample] = []
    for name in sorted({*always, *counts}):
        samples.append(((name,), float(counts.get(name, 0))))
    return samples


# --- Queues ---
def _queue_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    names = LabelNames({})
    phases: defaultdict[tuple[str, str], int] = defaultdict(int)
    ages: dict[str, dict[str, float]] = {"ready": {}, "held": {}}
    closed = {(gate.scope, gate.key) for gate in readings.gates}
    for row in readings.depths:
        lane = Lane.parse(row.lane)
        if lane.kind.startswith(SYSTEM_PREFIX):
            continue
        queue = names.limit("queue", lane.queue)
        is_held = not closed.isdisjoint([*lane.limit_keys, ("kind", lane.kind)])
        due = "held" if is_held else "ready"
        phases[queue, due] += row.due
        phases[queue, "scheduled"] += row.later
        age = max(0.0, (readings.now - row.first) / SECOND)
        ages[due][queue] = max(ages[due].get(queue, 0.0), age)
    for name, _, n in readings.running:
        if not name.startswith(SYSTEM_PREFIX):
            phases[names.limit("queue", name), "running"] += n
    for name in sorted(readings.declared_queues):
        phases[names.limit("queue", name), "ready"] += 0  # an empty queue has series too
    return _queue_phase_samples(phases, ages)


def _queue_phase_samples(
    phases: Mapping[tuple[str, str], int], ages: Mapping[str, Mapping[str, float]]
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {
        "mulligan_queue_jobs": [],
        "mulligan_oldest_job_age_seconds": [],
        "mulligan_oldest_held_age_seconds": [],
        "mulligan_queue_depth": [],
        "mulligan_jobs_active": [],
    }
    for queue in sorted({queue for queue, _ in phases}):
        labels = (queue,)
        for phase in ("ready", "held", "scheduled", "running"):
            jobs = min(CAP, phases.get((queue, phase), 0))
            samples["mulligan_queue_jobs"].append(((queue, phase), float(jobs)))
        ready_age = ages["ready"].get(queue, 0.0)
        held_age = ages["held"].get(queue, 0.0)
        due = min(CAP, phases.get((queue, "ready"), 0) + phases.get((queue, "held"), 0))
        running = phases.get((queue, "running"), 0)
        samples["mulligan_oldest_job_age_seconds"].append((labels, ready_age))
        samples["mulligan_oldest_held_age_seconds"].append((labels, held_age))
        samples["mulligan_queue_depth"].append((labels, float(due)))
        samples["mulligan_jobs_active"].append((labels, float(running)))
    return samples


# --- Workers and dependencies ---
def _worker_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    names = LabelNames({})
    states: Counter[str] = Counter()
    releases: Counter[str] = Counter()
    slots = 0
    longest_silence = 0
    for row in readings.workers:
        state = "draining" if row.draining else "working"
        states[state] += 1
        releases[names.limit("code", row.release)] += 1
        slots += row.concurrency
        longest_silence = max(longest_silence, readings.now - row.renewed_at)
    return {
        "mulligan_workers": _count_samples(states, ("working", "draining")),
        "mulligan_worker_info": _count_samples(releases),
        "mulligan_worker_slots": [((), float(slots))],
        "mulligan_worker_heartbeat_age_seconds": [((), longest_silence / SECOND)],
    }


def _scale_samples(readings: GaugeReadings) -> list[Sample]:
    names = LabelNames({})
    samples: list[Sample] = []
    for queue in sorted({*queue_names(readings.load), *readings.declared_queues}):
        if names.limit("queue", queue) == queue:
            wanted = compute_scale(readings.load, [queue]).workers
            samples.append(((queue,), float(wanted)))
    return samples


def _dependency_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    names = LabelNames({})
    states: list[Sample] = []
    open_seconds: list[Sample] = []
    held: list[Sample] = []
    tokens: list[Sample] = []
    for dependency in readings.dependencies:
        key = dependency.key
        if key.startswith(SYSTEM_PREFIX) or names.limit("dependency", key) != key:
            continue
        current_state = _breaker_state(dependency)
        for state in BREAKERS:
            states.append(((key, state), float(state == current_state)))
        open_seconds.append(((key,), _open_seconds(dependency, readings.now)))
        held.append(((key,), float(dependency.held)))
        if dependency.tokens is not None:
            tokens.append(((key,), dependency.tokens))
    return {
        "mulligan_breaker_state": states,
        "mulligan_breaker_open_seconds": open_seconds,
        "mulligan_held_jobs": held,
        "mulligan_retry_budget_remaining": tokens,
    }


def _breaker_state(one: Dependency) -> str:
    return "probing" if one.state == "open" and one.probing else one.state


def _open_seconds(one: Dependency, now: Micros) -> float:
    if one.state != "open" or one.since is None:
        return 0.0
    return max(0.0, now / SECOND - one.since.timestamp())


# --- Recent attempts ---
def _attempt_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    verdicts: list[StatRow] = []
    retries: defaultdict[str, list[StatRow]] = defaultdict(list)  # by the number of the attempt
    retry_cost = 0.0
    ended = 0
    for row in readings.recent:
        labels = json.loads(row.labels)
        if row.name == "verdicts":
            verdicts.append(row)
        elif row.name == "tries" and labels["try"] != "1":
            retries[labels["try"]].append(row)
        elif row.name == "cost" and labels["nth"] == "retry":
            retry_cost += row.total
        elif row.name == "finished":
            ended += row.n
    failure_rates: list[Sample] = []
    for window, minutes in WINDOWS.items():
        first_minute = readings.now // MINUTE - minutes
        in_window = [row for row in verdicts if row.minute > first_minute]
        failure_rates.append(((window,), _failure_rate(in_window)))
    success_rates: list[Sample] = []
    for number, rows in sorted(retries.items()):
        success_rates.append(((number,), 1.0 - _failure_rate(rows)))
    cost_per_job = retry_cost / ended if ended else 0.0
    return {
        "mulligan_failure_rate": failure_rates,
        "mulligan_retry_success_rate": success_rates,
        "mulligan_retry_cost_per_job": [((), cost_per_job)],
    }


def _failure_rate(rows: Sequence[StatRow]) -> float:
    """Return the share of failed attempts, 0 if there were none."""
    counts: Counter[bool] = Counter()
    for row in rows:
        outcome = json.loads(row.labels)["outcome"]
        if outcome in FAILED_OUTCOMES or outcome == "succeeded":
            counts[outcome in FAILED_OUTCOMES] += row.n
    return counts[True] / counts.total() if counts else 0.0


# --- Rendering ---

CACHE_SECONDS = 5.0  # scrapes within this time get the same answer
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "mulligan_"  # of the names in this package; the setting `metrics_prefix` replaces it

_lock = threading.Lock()
_answers: WeakKeyDictionary[Store, tuple[float, str, str]] = WeakKeyDictionary()


def metrics_text(store: Store, prefix: str = PREFIX, now: float | None = None) -> str:
    """Return all metrics. Reads the database at most once in five seconds.

    `now`: seconds of a monotonic clock.
    """
    now = time.monotonic() if now is None else now
    with _lock:  # simultaneous scrapes share one read
        cached = _answers.get(store)
        if cached is None or not 0 <= now - cached[0] < CACHE_SECONDS or cached[1] != prefix:
            cached = (now, prefix, render(store, prefix))
            _answers[store] = cached
    return cached[2]


def render(store: Store, prefix: str = PREFIX) -> str:
    """Read the database and return all metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(store, prefix))
    return generate_latest(registry).decode()


class _SnapshotCollector(Collector):
    def __init__(self, store: Store, prefix: str) -> None:
        self._prefix = prefix
        with store.read() as tx:
            self._readings = read_gauges(tx)
            self._stats = StatQueries(tx).list_stat_totals()

    def collect(self) -> Iterator[Metric]:
        for metric in (*metrics.families(self._stats), *families(self._readings)):
            yield _rename(metric, self._prefix)


def _rename(metric: Metric, prefix: str) -> Metric:
    """Give a metric and its samples another prefix."""
    metric.name = prefix + metric.name.removeprefix(PREFIX)
    metric.samples = [
        sample._replace(name=prefix + sample.name.removeprefix(PREFIX)) for sample in metric.samples
    ]
    return metric

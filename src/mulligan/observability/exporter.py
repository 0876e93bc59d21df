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
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.observability import metrics
from mulligan.observability.event_counts import LabelNames
from mulligan.operations.queries import OperationQueries
from mulligan.storage.base import Store, Transaction
from mulligan.worker.queries import WorkerQueries

CAP = 10_000
MAX_LANES = 2_000
MAX_WAITING = 200_000  # waiting jobs counted over all lanes
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


def read_gauges(tx: Transaction) -> GaugeReadings:
    """Read everything the gauges need."""
    state = GuardQueries(tx).read_claim_state()
    cap = max(100, min(CAP, MAX_WAITING // max(1, len(state.lanes))))
    recent = StatQueries(tx).list_stats(
        ["verdicts", "tries", "cost", "finished"], state.now - WINDOWS["1h"] * MINUTE
    )
    return GaugeReadings(
        now=state.now,
        depths=GuardQueries(tx).count_waiting_by_lane(state.now, cap, MAX_LANES),
        gates=[gate for gate in state.gates if is_closed(gate, state.now)],
        running=GuardQueries(tx).count_running(),
        counts=dict(SearchQueries(tx).count_jobs_by_state(CAP)),
        dependencies=read_dependencies(tx),
        workers=WorkerQueries(tx).list_workers(closed=False),
        operations=Counter(
            row.state for row in OperationQueries(tx).list_operations(None, MAX_OPERATIONS, None)
        ),
        readers=EventQueries(tx).list_readers(),
        newest_event=EventQueries(tx).newest_event(),
        event_lag=EventQueries(tx).event_lag(),
        recent=recent,
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
    Gauge("mulligan_jobs", "Jobs by state; counting stops at 10,000.", ("state",)),
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
    Gauge("mulligan_dead_letters", "Dead jobs; counting stops at 10,000."),
    Gauge("mulligan_parked_jobs", "Jobs that wait for a person; counting stops at 10,000."),
    Gauge("mulligan_workers", "Workers by state: working, draining.", ("state",)),
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
        "Due jobs that wait for a dependency; counting stops at 10,000.",
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
    Gauge("mulligan_dlq_size", "Alias of mulligan_dead_letters."),
)


def _samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    dead = float(readings.counts.get("dead", 0))
    return {
        "mulligan_jobs": [((state,), float(n)) for state, n in readings.counts.items()],
        **_queue_samples(readings),
        "mulligan_dead_letters": [((), dead)],
        "mulligan_dlq_size": [((), dead)],
        "mulligan_parked_jobs": [((), float(readings.counts.get("parked", 0)))],
        **_worker_samples(readings),
        **_dependency_samples(readings),
        "mulligan_gates": _count_samples(
            Counter(gate.scope for gate in readings.gates), ("queue", "kind", "dependency")
        ),
        "mulligan_operations": _count_samples(
            readings.operations, ("running", "paused", "stopped")
        ),
        "mulligan_event_lag_seconds": [((), readings.event_lag / SECOND)],
        "mulligan_reader_lag_events": [
            ((row.name,), float(max(0, readings.newest_event - row.cursor)))
            for row in readings.readers
        ],
        **_attempt_samples(readings),
    }


def _count_samples(counts: Mapping[str, int], always: Sequence[str]) -> list[Sample]:
    return [((name,), float(counts.get(name, 0))) for name in sorted({*always, *counts})]


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
        due = "held" if closed.intersection([*lane.limit_keys, ("kind", lane.kind)]) else "ready"
        phases[queue, due] += row.due
        phases[queue, "scheduled"] += row.later
        age = max(0.0, (readings.now - row.first) / SECOND)
        ages[due][queue] = max(ages[due].get(queue, 0.0), age)
    for name, _, n in readings.running:
        if not name.startswith(SYSTEM_PREFIX):
            phases[names.limit("queue", name), "running"] += n
    return _queue_phase_samples(phases, ages)


def _queue_phase_samples(
    phases: Mapping[tuple[str, str], int], ages: Mapping[str, Mapping[str, float]]
) -> dict[str, list[Sample]]:
    queues = sorted({queue for queue, _ in phases})
    every = [
        (queue, phase) for queue in queues for phase in ("ready", "held", "scheduled", "running")
    ]

    def depth(queue: str) -> float:
        return float(phases.get((queue, "ready"), 0) + phases.get((queue, "held"), 0))

    return {
        "mulligan_queue_jobs": [(key, float(min(CAP, phases.get(key, 0)))) for key in every],
        "mulligan_oldest_job_age_seconds": [
            ((queue,), ages["ready"].get(queue, 0.0)) for queue in queues
        ],
        "mulligan_oldest_held_age_seconds": [
            ((queue,), ages["held"].get(queue, 0.0)) for queue in queues
        ],
        "mulligan_queue_depth": [((queue,), min(CAP, depth(queue))) for queue in queues],
        "mulligan_jobs_active": [
            ((queue,), float(phases.get((queue, "running"), 0))) for queue in queues
        ],
    }


# --- Workers and dependencies ---
def _worker_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    names = LabelNames({})
    states = Counter("draining" if row.draining else "working" for row in readings.workers)
    releases = Counter(names.limit("code", row.release) for row in readings.workers)
    silent = max((readings.now - row.renewed_at for row in readings.workers), default=0)
    return {
        "mulligan_workers": _count_samples(states, ("working", "draining")),
        "mulligan_worker_info": _count_samples(releases, ()),
        "mulligan_worker_slots": [((), float(sum(row.concurrency for row in readings.workers)))],
        "mulligan_worker_heartbeat_age_seconds": [((), max(0.0, silent / SECOND))],
    }


def _dependency_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    names = LabelNames({})
    user_dependencies = [
        dependency
        for dependency in readings.dependencies
        if not dependency.key.startswith(SYSTEM_PREFIX)
    ]
    shown = [one for one in user_dependencies if names.limit("dependency", one.key) == one.key]
    return {
        "mulligan_breaker_state": [
            ((one.key, state), float(state == _breaker_state(one)))
            for one in shown
            for state in BREAKERS
        ],
        "mulligan_breaker_open_seconds": [
            ((one.key,), _open_seconds(one, readings.now)) for one in shown
        ],
        "mulligan_held_jobs": [((one.key,), float(one.held)) for one in shown],
        "mulligan_retry_budget_remaining": [
            ((one.key,), one.tokens) for one in shown if one.tokens is not None
        ],
    }


def _breaker_state(one: Dependency) -> str:
    return "probing" if one.state == "open" and one.probing else one.state


def _open_seconds(one: Dependency, now: Micros) -> float:
    if one.state != "open" or one.since is None:
        return 0.0
    return max(0.0, now / SECOND - one.since.timestamp())


# --- Recent attempts ---
def _attempt_samples(readings: GaugeReadings) -> dict[str, list[Sample]]:
    tries = [(json.loads(row.labels), row) for row in readings.recent if row.name == "tries"]
    numbers = sorted({labels["try"] for labels, _ in tries} - {"1"})
    costs = [
        row.total
        for row in readings.recent
        if row.name == "cost" and json.loads(row.labels)["nth"] == "retry"
    ]
    ended = sum(row.n for row in readings.recent if row.name == "finished")
    verdicts = [row for row in readings.recent if row.name == "verdicts"]
    return {
        "mulligan_failure_rate": [
            (
                (window,),
                _failure_rate(
                    [row for row in verdicts if row.minute > readings.now // MINUTE - minutes]
                ),
            )
            for window, minutes in WINDOWS.items()
        ],
        "mulligan_retry_success_rate": [
            (
                (number,),
                1.0 - _failure_rate([row for labels, row in tries if labels["try"] == number]),
            )
            for number in numbers
        ],
        "mulligan_retry_cost_per_job": [((), sum(costs) / ended if ended else 0.0)],
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

_lock = threading.Lock()
_answers: WeakKeyDictionary[Store, tuple[float, str]] = WeakKeyDictionary()


def metrics_text(store: Store, now: float | None = None) -> str:
    """Return all metrics. Reads the database at most once in five seconds.

    `now`: seconds of a monotonic clock.
    """
    now = time.monotonic() if now is None else now
    with _lock:  # simultaneous scrapes share one read
        cached = _answers.get(store)
        if cached is None or not 0 <= now - cached[0] < CACHE_SECONDS:
            cached = (now, render(store))
            _answers[store] = cached
    return cached[1]


def render(store: Store) -> str:
    """Read the database and return all metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(store))
    return generate_latest(registry).decode()


class _SnapshotCollector(Collector):
    def __init__(self, store: Store) -> None:
        with store.read() as tx:
            self._readings = read_gauges(tx)
            self._stats = StatQueries(tx).list_stat_totals()

    def collect(self) -> Iterator[Metric]:
        yield from metrics.families(self._stats)
        yield from families(self._readings)

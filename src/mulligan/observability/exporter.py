"""How things are now: gauges, from a few bounded looks at the database. Nothing is locked and counts stop at 10,000."""

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

from mulligan.core.job import SECOND, Gate, Lane, Micros, WorkerRow
from mulligan.core.statistics import FAILED
from mulligan.guards.dependencies import Dependency, picture
from mulligan.guards.lanes import is_closed
from mulligan.manifest.specs import OURS
from mulligan.observability import metrics
from mulligan.observability.event_counts import Names
from mulligan.storage.base import Store, Transaction
from mulligan.storage.notification_queries import ReaderRow
from mulligan.storage.stat_queries import MINUTE, DepthRow, StatRow

CAP = 10_000
LANES = 2_000
LOOKED = 200_000  # waiting jobs that are counted at most, over all lanes
OPERATIONS = 100  # the newest
BREAKERS = ("closed", "open", "ramping", "probing")
WINDOWS = {"5m": 5, "1h": 60}  # minutes

Sample = tuple[tuple[str, ...], float]


class Gauge(NamedTuple):
    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """All that is looked at, in one read."""

    now: Micros
    depths: Sequence[DepthRow]
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


def look(unit: Transaction) -> GaugeReadings:
    seen = unit.look()
    cap = max(100, min(CAP, LOOKED // max(1, len(seen.lanes))))
    recent = unit.stats(
        ["verdicts", "tries", "cost", "finished"], seen.now - WINDOWS["1h"] * MINUTE
    )
    return GaugeReadings(
        now=seen.now,
        depths=unit.depths(seen.now, cap, LANES),
        gates=[gate for gate in seen.gates if is_closed(gate, seen.now)],
        running=unit.running(),
        counts=dict(unit.counts(CAP)),
        dependencies=picture(unit),
        workers=unit.workers(closed=False),
        operations=Counter(row.state for row in unit.operations(None, OPERATIONS, None)),
        readers=unit.readers(),
        newest_event=unit.newest_event(),
        event_lag=unit.event_lag(),
        recent=recent,
    )


def families(scene: GaugeReadings) -> Iterator[Metric]:
    found = _samples(scene)
    for gauge in GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
        for values, value in found.get(gauge.name, ()):
            family.add_metric(values, value)
        yield family


GAUGES = (
    Gauge("mulligan_jobs", "Jobs by state; counting stops at 10,000.", ("state",)),
    Gauge(
        "mulligan_queue_jobs",
        "Jobs of a queue: ready, held (due, but its queue, kind or dependency is closed), scheduled, running.",
        ("queue", "phase"),
    ),
    Gauge(
        "mulligan_oldest_job_age_seconds",
        "How long the first ready job of a queue has been due.",
        ("queue",),
    ),
    Gauge("mulligan_oldest_held_age_seconds", "The same of those that are held.", ("queue",)),
    Gauge("mulligan_dead_letters", "Dead jobs that are kept; counting stops at 10,000."),
    Gauge("mulligan_parked_jobs", "Jobs that wait for a person; counting stops at 10,000."),
    Gauge("mulligan_workers", "Workers by state: working, draining.", ("state",)),
    Gauge("mulligan_worker_info", "Workers by release.", ("release",)),
    Gauge("mulligan_worker_slots", "How many jobs all workers together run at a time."),
    Gauge(
        "mulligan_worker_heartbeat_age_seconds",
        "Since the last sign of life of the worker that is silent longest.",
    ),
    Gauge(
        "mulligan_breaker_state",
        "1 for the state a dependency is in, 0 for the others.",
        ("dependency", "state"),
    ),
    Gauge(
        "mulligan_breaker_open_seconds",
        "How long a dependency has been held; 0: it is not.",
        ("dependency",),
    ),
    Gauge(
        "mulligan_held_jobs",
        "Due jobs that wait for a dependency; counting stops at 10,000.",
        ("dependency",),
    ),
    Gauge(
        "mulligan_retry_budget_remaining", "Retries that a dependency bears now.", ("dependency",)
    ),
    Gauge("mulligan_gates", "What is closed, by scope: queue, kind, dependency.", ("scope",)),
    Gauge("mulligan_operations", "Bulk actions by state, of the newest 100.", ("state",)),
    Gauge(
        "mulligan_event_lag_seconds",
        "For how long readers wait for the oldest transaction that writes events.",
    ),
    Gauge(
        "mulligan_reader_lag_events",
        "Events that a reader (fold, dispatch, alerts) has not read yet.",
        ("reader",),
    ),
    Gauge(
        "mulligan_failure_rate", "Failed attempts, of those that succeeded or failed.", ("window",)
    ),
    Gauge(
        "mulligan_retry_success_rate",
        "Of the attempts with this number those that succeeded; 1 h.",
        ("try",),
    ),
    Gauge("mulligan_retry_cost_per_job", "What retries cost, for each job that ended; 1 h."),
    Gauge("mulligan_queue_depth", "Due jobs of a queue, ready or held.", ("queue",)),
    Gauge("mulligan_jobs_active", "Running jobs of a queue.", ("queue",)),
    Gauge("mulligan_dlq_size", "mulligan_dead_letters by another name."),
)


def _samples(scene: GaugeReadings) -> dict[str, list[Sample]]:
    dead = float(scene.counts.get("dead", 0))
    return {
        "mulligan_jobs": [((state,), float(n)) for state, n in scene.counts.items()],
        **_of_queues(scene),
        "mulligan_dead_letters": [((), dead)],
        "mulligan_dlq_size": [((), dead)],
        "mulligan_parked_jobs": [((), float(scene.counts.get("parked", 0)))],
        **_of_workers(scene),
        **_of_dependencies(scene),
        "mulligan_gates": _counted(
            Counter(gate.scope for gate in scene.gates), ("queue", "kind", "dependency")
        ),
        "mulligan_operations": _counted(scene.operations, ("running", "paused", "stopped")),
        "mulligan_event_lag_seconds": [((), scene.event_lag / SECOND)],
        "mulligan_reader_lag_events": [
            ((row.name,), float(max(0, scene.newest_event - row.cursor))) for row in scene.readers
        ],
        **_of_attempts(scene),
    }


def _counted(counts: Mapping[str, int], always: Sequence[str]) -> list[Sample]:
    return [((name,), float(counts.get(name, 0))) for name in sorted({*always, *counts})]


# -- queues -----------------------------------------------------------------------------------------
def _of_queues(scene: GaugeReadings) -> dict[str, list[Sample]]:
    names = Names({})
    phases: defaultdict[tuple[str, str], int] = defaultdict(int)
    ages: dict[str, dict[str, float]] = {"ready": {}, "held": {}}
    closed = {(gate.scope, gate.key) for gate in scene.gates}
    for row in scene.depths:
        lane = Lane.parse(row.lane)
        if lane.kind.startswith(OURS):
            continue
        queue = names.keep("queue", lane.queue)
        due = "held" if closed.intersection([*lane.guards, ("kind", lane.kind)]) else "ready"
        phases[queue, due] += row.due
        phases[queue, "scheduled"] += row.later
        age = max(0.0, (scene.now - row.first) / SECOND)
        ages[due][queue] = max(ages[due].get(queue, 0.0), age)
    for name, _, n in scene.running:
        if not name.startswith(OURS):
            phases[names.keep("queue", name), "running"] += n
    return _phases(phases, ages)


def _phases(
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


# -- workers and dependencies -------------------------------------------------------------------------
def _of_workers(scene: GaugeReadings) -> dict[str, list[Sample]]:
    names = Names({})
    states = Counter("draining" if row.draining else "working" for row in scene.workers)
    releases = Counter(names.keep("code", row.release) for row in scene.workers)
    silent = max((scene.now - row.renewed_at for row in scene.workers), default=0)
    return {
        "mulligan_workers": _counted(states, ("working", "draining")),
        "mulligan_worker_info": _counted(releases, ()),
        "mulligan_worker_slots": [((), float(sum(row.concurrency for row in scene.workers)))],
        "mulligan_worker_heartbeat_age_seconds": [((), max(0.0, silent / SECOND))],
    }


def _of_dependencies(scene: GaugeReadings) -> dict[str, list[Sample]]:
    names = Names({})
    known = [one for one in scene.dependencies if not one.key.startswith(OURS)]
    shown = [one for one in known if names.keep("dependency", one.key) == one.key]
    return {
        "mulligan_breaker_state": [
            ((one.key, state), float(state == _state(one))) for one in shown for state in BREAKERS
        ],
        "mulligan_breaker_open_seconds": [((one.key,), _open_for(one, scene.now)) for one in shown],
        "mulligan_held_jobs": [((one.key,), float(one.held)) for one in shown],
        "mulligan_retry_budget_remaining": [
            ((one.key,), one.tokens) for one in shown if one.tokens is not None
        ],
    }


def _state(one: Dependency) -> str:
    return "probing" if one.state == "open" and one.probing else one.state


def _open_for(one: Dependency, now: Micros) -> float:
    if one.state != "open" or one.since is None:
        return 0.0
    return max(0.0, now / SECOND - one.since.timestamp())


# -- what happened lately -----------------------------------------------------------------------------
def _of_attempts(scene: GaugeReadings) -> dict[str, list[Sample]]:
    tries = [(json.loads(row.labels), row) for row in scene.recent if row.name == "tries"]
    numbers = sorted({said["try"] for said, _ in tries} - {"1"})
    costs = [
        row.total
        for row in scene.recent
        if row.name == "cost" and json.loads(row.labels)["nth"] == "retry"
    ]
    ended = sum(row.n for row in scene.recent if row.name == "finished")
    verdicts = [row for row in scene.recent if row.name == "verdicts"]
    return {
        "mulligan_failure_rate": [
            (
                (window,),
                _failed([row for row in verdicts if row.minute > scene.now // MINUTE - minutes]),
            )
            for window, minutes in WINDOWS.items()
        ],
        "mulligan_retry_success_rate": [
            ((number,), 1.0 - _failed([row for said, row in tries if said["try"] == number]))
            for number in numbers
        ],
        "mulligan_retry_cost_per_job": [((), sum(costs) / ended if ended else 0.0)],
    }


def _failed(rows: Sequence[StatRow]) -> float:
    """Of nothing nothing has failed."""
    counts: Counter[bool] = Counter()
    for row in rows:
        outcome = json.loads(row.labels)["outcome"]
        if outcome in FAILED or outcome == "succeeded":
            counts[outcome in FAILED] += row.n
    return counts[True] / counts.total() if counts else 0.0


# The metrics as Prometheus reads them. One exporter for a database is enough: all of it comes from there.

FRESH = 5.0  # seconds for which an answer is good enough
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_lock = threading.Lock()
_answers: WeakKeyDictionary[Store, tuple[float, str]] = WeakKeyDictionary()


def text(store: Store, now: float | None = None) -> str:
    """At most once in five seconds the database is asked. `now`: seconds of a clock that only grows."""
    moment = time.monotonic() if now is None else now
    with _lock:  # whoever scrapes at the same time gets the same answer
        known = _answers.get(store)
        if known is None or not 0 <= moment - known[0] < FRESH:
            known = (moment, fresh(store))
            _answers[store] = known
    return known[1]


def fresh(store: Store) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(store))
    return generate_latest(registry).decode()


class _Collected(Collector):
    def __init__(self, store: Store) -> None:
        with store.read() as unit:
            self._scene, self._counted = look(unit), unit.stats_ever()

    def collect(self) -> Iterator[Metric]:
        yield from metrics.families(self._counted)
        yield from families(self._scene)

"""Definitions of all counters and histograms: name, help, labels and their stored statistic.

The stored statistics (`observability/event_counts.py`) only grow and survive restarts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from mulligan.core.attempt import Cls
from mulligan.events.queries import StatRow
from mulligan.observability.event_counts import (
    ATTEMPT_BUCKETS,
    DELAY_SECONDS,
    OUTCOMES,
    RUN_SECONDS,
    STATES,
    WAIT_SECONDS,
)

USER_CAUSED = frozenset({Cls.INVALID_INPUT.value, Cls.CANCELLED.value})
WORKER_LOST = "WORKER_LOST"  # the code of an attempt whose lease ran out
NTH = ("first", "retry")
JOB = {"kind": "kind", "queue": "queue"}
FAILURE = {"error_code": "code", "error_class": "class"}

Labels = tuple[str, ...]  # label values in the order of the metric's label names


class Counter(NamedTuple):
    """A counter made from one stored statistic."""

    name: str
    help: str
    stat: str
    labels: Mapping[str, str]  # label of the metric → label of the statistic
    where: Mapping[str, str] = {}
    of: str = "n"
    # Series exported from the start: a rate needs a value before the first event.
    zeros: tuple[Labels, ...] = ()


class Histogram(NamedTuple):
    """A histogram made from one stored statistic."""

    name: str
    help: str
    stat: str
    labels: Mapping[str, str]
    bounds: Sequence[float]


_CLASSES = tuple(cls.value for cls in Cls)
_FAILING = ("retry", "dead", "lost", "snoozed")


def _outcome_series() -> Iterator[tuple[str, str, str]]:
    """Yield (outcome, class, nth) of every series; only failures have a class."""
    for outcome in OUTCOMES.values():
        classes = ("", *_CLASSES) if outcome in _FAILING else ("",)
        for cls in classes:
            for nth in NTH:
                yield outcome, cls, nth


def _end_series() -> Iterator[tuple[str, str]]:
    """Yield (state, class) of every series; only dead jobs have a class."""
    for state in STATES.values():
        classes = ("", *_CLASSES) if state == "dead" else ("",)
        for cls in classes:
            yield state, cls


_OUTCOME_SERIES = tuple(_outcome_series())
_END_SERIES = tuple(_end_series())

COUNTERS = (
    Counter("mulligan_jobs_enqueued_total", "Jobs that were enqueued.", "enqueued", JOB),
    Counter(
        "mulligan_jobs_ended_total",
        "Jobs that ended: succeeded, dead or cancelled.",
        "ends",
        {**JOB, "state": "state", **FAILURE},
    ),
    Counter(
        "mulligan_job_ends_total",
        "Ended jobs without kind, queue and code; every series exists from the start, for alerts.",
        "finished",
        {"state": "state", "error_class": "class"},
        zeros=_END_SERIES,
    ),
    Counter(
        "mulligan_attempts_total",
        "Attempts that ended, by outcome: succeeded, retry, dead, cancelled, parked, released, "
        "lost, snoozed, waiting.",
        "attempts",
        {**JOB, "outcome": "outcome", **FAILURE},
    ),
    Counter(
        "mulligan_attempt_ends_total",
        "Ended attempts by first try or retry, without kind, queue and code; every series exists "
        "from the start, for alerts.",
        "verdicts",
        {"outcome": "outcome", "error_class": "class", "nth": "nth"},
        zeros=_OUTCOME_SERIES,
    ),
    Counter(
        "mulligan_tries_total",
        "Attempts by number of previous failures plus one; 8 means 8 or more.",
        "tries",
        {"kind": "kind", "try": "try", "outcome": "outcome"},
    ),
    Counter(
        "mulligan_dependency_calls_total",
        "Attempts of jobs that use a dependency; a job that uses several counts for each.",
        "calls",
        {"dependency": "dependency", "outcome": "outcome", "error_class": "class"},
    ),
    Counter(
        "mulligan_retries_scheduled_total",
        "Retries that were scheduled, by the class of the failure.",
        "retries",
        {**JOB, "reason": "class", "error_code": "code"},
    ),
    Counter("mulligan_manual_retries_total", "Manual retries.", "manual", JOB),
    Counter(
        "mulligan_attempt_cost_total",
        "Cost of attempts, in the unit that handlers use.",
        "cost",
        {"kind": "kind", "nth": "nth", "outcome": "outcome", "error_class": "class"},
        of="total",
    ),
    Counter(
        "mulligan_lease_expired_total",
        "Attempts whose worker was lost.",
        "attempts",
        JOB,
        where={"code": WORKER_LOST},
    ),
    Counter(
        "mulligan_worker_starts_total",
        "Workers that started.",
        "workers",
        {},
        {"what": "started"},
        zeros=((),),
    ),
    Counter(
        "mulligan_workers_lost_total",
        "Workers that died or stopped renewing their lease.",
        "workers",
        {},
        {"what": "lost"},
        zeros=((),),
    ),
    Counter(
        "mulligan_runners_died_total",
        "Runner processes that died; those stopped by Mulligan are not counted.",
        "workers",
        {},
        {"what": "runner_died"},
        zeros=((),),
    ),
    Counter(
        "mulligan_breaker_changes_total",
        "Breaker changes: opened, probing, closed.",
        "breakers",
        {"dependency": "dependency", "to": "to"},
    ),
    Counter(
        "mulligan_notifications_total",
        "Attempts to deliver a message.",
        "deliveries",
        {"channel": "channel", "outcome": "outcome"},
    ),
    Counter("mulligan_events_total", "Events of all types.", "events", {"type": "type"}),
    Counter(
        "mulligan_jobs_failed_total",
        "Jobs that died, by code.",
        "ends",
        {"error_code": "code"},
        where={"state": "dead"},
    ),
    Counter(
        "mulligan_manual_retry_total",
        "Manual retries, without labels.",
        "manual",
        {},
        zeros=((),),
    ),
    Counter(
        "mulligan_worker_failures_total",
        "Attempts that failed; is_permanent: the job died, duration_bucket: how long it ran.",
        "failures",
        {"error_type": "code", "is_permanent": "final", "duration_bucket": "length"},
    ),
)
HISTOGRAMS = (
    Histogram(
        "mulligan_attempt_duration_seconds", "How long handlers ran.", "run", JOB, RUN_SECONDS
    ),
    Histogram("mulligan_job_wait_seconds", "From due to started.", "wait", JOB, WAIT_SECONDS),
    Histogram(
        "mulligan_attempts_to_success",
        "Attempts per success, without losses.",
        "needed",
        {"kind": "kind"},
        ATTEMPT_BUCKETS,
    ),
    Histogram(
        "mulligan_retry_delay_seconds",
        "Delay between a failure and its scheduled retry.",
        "delay",
        {"error_class": "class"},
        DELAY_SECONDS,
    ),
    Histogram(
        "mulligan_job_processing_duration_seconds",
        "How long handlers ran, without the queue.",
        "run",
        {"kind": "kind"},
        RUN_SECONDS,
    ),
)


def families(rows: Iterable[StatRow]) -> Iterator[Metric]:
    """Yield all counters and histograms, including those without a value yet."""
    by_name: defaultdict[str, list[tuple[dict[str, str], StatRow]]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append((json.loads(row.labels), row))
    for counter in COUNTERS:
        yield _counter(counter, by_name[counter.stat])
    for histogram in HISTOGRAMS:
        yield _histogram(histogram, by_name[histogram.stat])


def _counter(counter: Counter, rows: Iterable[tuple[dict[str, str], StatRow]]) -> Metric:
    sums = dict.fromkeys(counter.zeros, 0.0)
    for labels, row in rows:
        if counter.where.items() <= labels.items():
            values = tuple(labels.get(name, "") for name in counter.labels.values())
            amount = row.n if counter.of == "n" else row.total
            sums[values] = sums.get(values, 0.0) + amount
    family = CounterMetricFamily(counter.name, counter.help, labels=tuple(counter.labels))
    for values, value in sorted(sums.items()):
        family.add_metric(values, value)
    return family


def _histogram(histogram: Histogram, rows: Iterable[tuple[dict[str, str], StatRow]]) -> Metric:
    places = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    counts: defaultdict[Labels, dict[str, int]] = defaultdict(lambda: dict.fromkeys(places, 0))
    totals: defaultdict[Labels, float] = defaultdict(float)
    for labels, row in rows:
        values = tuple(labels.get(name, "") for name in histogram.labels.values())
        counts[values][labels["le"]] += row.n
        totals[values] += row.total
    family = HistogramMetricFamily(histogram.name, histogram.help, labels=tuple(histogram.labels))
    for values, found in sorted(counts.items()):
        buckets = []
        cumulative = 0
        for place in places:
            cumulative += found[place]
            buckets.append((place, float(cumulative)))
        family.add_metric(values, buckets, totals[values])
    return family

"""Measures of alerts that are computed from stored counters. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from mulligan.alerts.rules import Sample
from mulligan.core.attempt import Alarm
from mulligan.core.statistics import FAILED_OUTCOMES

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

"""What alerts look at, from numbers that were counted: shares of what ended, counts, durations, costs. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.policy.alert import Sample

THEIRS = frozenset({"invalid_input", "cancelled"})  # classes that are no fault of the system
FAILED = frozenset({"retry", "dead", "lost"})
TRIED = frozenset({"succeeded", *FAILED})
SHARE = 0.95

Labels = Mapping[str, str]


class Count(NamedTuple):
    """Of one name and one set of labels, in one window."""

    name: str
    labels: Labels
    n: int
    total: float


def read_counts(rows: Iterable[tuple[str, str, int, float]]) -> list[Count]:
    """(name, labels as JSON, n, total)."""
    return [Count(name, json.loads(labels), n, total) for name, labels, n, total in rows]


class Portion(NamedTuple):
    """How many of how many."""

    bad: int
    of: int


def portions(counts: Iterable[Count], share: Share) -> dict[str, Portion]:
    """By key."""
    bad: defaultdict[str, int] = defaultdict(int)
    every: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        if count.name == share.name and share.of(count.labels):
            key = count.labels.get(share.by, "") if share.by else ""
            every[key] += count.n
            bad[key] += count.n if share.bad(count.labels) else 0
    return {key: Portion(bad[key], every[key]) for key in every}


class Share(NamedTuple):
    name: str  # of the counts
    by: str  # the label that makes the key; empty: one for all
    bad: Callable[[Labels], bool]
    of: Callable[[Labels], bool]
    least_of_all: bool = False  # the least volume is of all, not of the bad ones

    def samples(self, counts: list[Count]) -> Iterator[Sample]:
        for key, (bad, of) in portions(counts, self).items():
            if of:
                yield Sample(key, bad / of, of if self.least_of_all else bad, {"bad": bad, "of": of})


class Number(NamedTuple):
    name: str
    by: str
    which: Callable[[Labels], bool]

    def samples(self, counts: list[Count]) -> Iterator[Sample]:
        found: defaultdict[str, int] = defaultdict(int)
        if not self.by:
            found[""] = 0  # none is a number too
        for count in counts:
            if count.name == self.name and self.which(count.labels):
                found[count.labels.get(self.by, "") if self.by else ""] += count.n
        for key, n in found.items():
            yield Sample(key, float(n), n, {"count": n})


class Duration(NamedTuple):
    """The time that 19 of 20 need, from a histogram, as Prometheus reads one."""

    name: str
    by: str

    def samples(self, counts: list[Count]) -> Iterator[Sample]:
        found: defaultdict[str, defaultdict[float, int]] = defaultdict(lambda: defaultdict(int))
        for count in counts:
            if count.name == self.name:
                found[count.labels.get(self.by, "")][float(count.labels.get("le", "inf"))] += count.n
        for key, buckets in found.items():
            yield Sample(key, quantile(buckets), sum(buckets.values()), {"attempts": sum(buckets.values())})


def quantile(buckets: Mapping[float, int], share: float = SHARE) -> float:
    whole = sum(buckets.values())
    rank, below, lower = whole * share, 0.0, 0.0
    for bound in sorted(buckets):
        n = buckets[bound]
        if below + n >= rank:
            return lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / n
        below, lower = below + n, bound
    return lower


class RetryRatio(NamedTuple):
    """Retries for each first try."""

    def samples(self, counts: list[Count]) -> Iterator[Sample]:
        tries = [count for count in counts if count.name == "verdicts" and count.labels.get("outcome") in TRIED]
        first = sum(count.n for count in tries if count.labels.get("nth") == "first")
        again = sum(count.n for count in tries) - first
        if first:
            yield Sample("", again / first, first + again, {"retries": again, "first": first})


class RetryCost(NamedTuple):
    """What retries cost, for each job that was enqueued."""

    def samples(self, counts: list[Count]) -> Iterator[Sample]:
        cost = sum(c.total for c in counts if c.name == "cost" and c.labels.get("nth") == "retry")
        jobs = sum(c.n for c in counts if c.name == "enqueued")
        if jobs:
            yield Sample("", cost / jobs, jobs, {"cost": round(cost, 6), "jobs": jobs})


def _dead(labels: Labels) -> bool:
    return labels.get("state") == "dead" and labels.get("class") not in THEIRS


def _ended(labels: Labels) -> bool:
    """What was refused for its input says nothing about the system, so it is in neither number."""
    return labels.get("state") != "cancelled" and labels.get("class") not in THEIRS


def _failed(labels: Labels) -> bool:
    return labels.get("outcome") in FAILED and labels.get("class") not in THEIRS


def _tried(labels: Labels) -> bool:
    return labels.get("outcome") in TRIED and labels.get("class") not in THEIRS


def _limited(labels: Labels) -> bool:
    return labels.get("class") == "rate_limited"


MEASURES: dict[str, Any] = {
    "dead_share": Share("finished", "", _dead, _ended),
    "dead_share_by_kind": Share("ends", "kind", _dead, _ended),
    "dead_share_by_queue": Share("ends", "queue", _dead, _ended),
    "failed_share": Share("attempts", "kind", _failed, _tried),
    "failed_share_by_queue": Share("attempts", "queue", _failed, _tried),
    "failed_share_by_dependency": Share("calls", "dependency", _failed, _tried),
    "rate_limited_share": Share("calls", "dependency", _limited, _tried, least_of_all=True),
    "rate_limited_share_by_queue": Share("attempts", "queue", _limited, _tried, least_of_all=True),
    "unknown_share": Share("verdicts", "", lambda labels: labels.get("class") == "unknown", _failed),
    "dead": Number("finished", "", _dead),
    "dead_by_kind": Number("ends", "kind", _dead),
    "duration_p95": Duration("run", "kind"),
    "restarts": Number("workers", "", lambda labels: labels.get("what") in {"lost", "runner_died"}),
    "retry_ratio": RetryRatio(),
    "retry_cost": RetryCost(),
}
_SEVERAL = {"retry_ratio": ("verdicts",), "retry_cost": ("cost", "enqueued"), "dead_jump": ("finished",)}
KEYED_BY = {
    "dead_share_by_queue": "queue", "failed_share_by_queue": "queue", "rate_limited_share_by_queue": "queue",
    "queue_age": "queue", "failed_share_by_dependency": "dependency", "rate_limited_share": "dependency",
    "breaker_open": "dependency",
}  # fmt: skip


def names_of(measure: str) -> tuple[str, ...]:
    """Which counts a measure needs; of what stands now none."""
    if measure in _SEVERAL:
        return _SEVERAL[measure]
    return (MEASURES[measure].name,) if measure in MEASURES else ()


def jump(now: list[Count], before: list[Count], window: float, span: float) -> list[Sample]:
    """How many times more died in the last `window` than in as long a time of the `span` before it."""
    dead = sum(c.n for c in now if c.name == "finished" and _dead(c.labels))
    past = sum(c.n for c in before if c.name == "finished" and _dead(c.labels)) - dead
    usual = max(1.0, past * window / max(1.0, span - window))
    return [Sample("", dead / usual, dead, {"dead": dead, "usual": round(usual, 2)})]

"""Rules of failure groups: the state of a group, and when its jobs died. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import FailureGroupRow
from mulligan.core.statistics import Deaths

HOURS = 24  # of the hourly chart
DAYS = 14  # of the daily chart
CHART_HOURS = HOURS * DAYS  # older deaths are in no chart
NEW_FOR: Micros = 86_400 * SECOND


class GroupState(StrEnum):
    """State of a failure group."""

    REGRESSED = "regressed"  # a job died after the group was resolved
    NEW = "new"  # not marked, and the first death is less than a day old
    OPEN = "open"
    MUTED = "muted"
    RESOLVED = "resolved"


STATE_ORDER = tuple(GroupState)  # order of a list: what needs attention comes first


def group_state(
    mark: FailureGroupRow | None, first: Micros | None, last: Micros | None, now: Micros
) -> GroupState:
    """Return the state of a group at `now`.

    `mark` is what a person last decided; `first` and `last` are the times of its first and last
    death, None without a dead job.
    """
    if mark is None:
        is_new = first is not None and now - first < NEW_FOR
        return GroupState.NEW if is_new else GroupState.OPEN
    if mark.state == "muted":
        is_muted = mark.until is None or mark.until > now
        return GroupState.MUTED if is_muted else GroupState.OPEN
    if mark.state == "resolved":
        died_since = last is not None and mark.resolved_at is not None and last > mark.resolved_at
        return GroupState.REGRESSED if died_since else GroupState.RESOLVED
    return GroupState.OPEN


@dataclass(frozen=True, slots=True)
class DeathSummary:
    """Counts of the dead jobs of a group."""

    count: int
    kinds: Mapping[str, int]
    codes: Mapping[str, int]
    classes: Mapping[str, int]
    first: Micros | None
    last: Micros | None
    hourly: tuple[int, ...]  # deaths in each of the last 24 hours, the current one last
    daily: tuple[int, ...]  # deaths in each of the last 14 periods of 24 hours


def summarise_deaths(deaths: Deaths) -> DeathSummary:
    """Count the dead jobs of a group. All counts describe the same jobs, so they agree."""
    counts = deaths.counts
    return DeathSummary(
        count=sum(row.jobs for row in counts),
        kinds=_largest_first((row.kind, row.jobs) for row in counts),
        codes=_largest_first((row.code, row.jobs) for row in counts),
        classes=_largest_first((row.cls, row.jobs) for row in counts),
        first=deaths.first,
        last=deaths.last,
        hourly=bucket_counts(deaths.hours, HOURS),
        daily=bucket_counts(((ago // 24, jobs) for ago, jobs in deaths.hours), DAYS),
    )


def bucket_counts(counts: Iterable[tuple[int, int]], size: int) -> tuple[int, ...]:
    """Add up (periods ago, jobs) for the last `size` periods. Return the oldest first."""
    buckets = [0] * size
    for periods_ago, jobs in counts:
        if 0 <= periods_ago < size:
            buckets[size - 1 - periods_ago] += jobs
    return tuple(buckets)


def _largest_first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, jobs in pairs:
        totals[name] = totals.get(name, 0) + jobs
    return dict(sorted(totals.items(), key=lambda pair: (-pair[1], pair[0])))


def recovery_rate(recovered: int, retried: int) -> float | None:
    """Return the share of manual retries that succeeded, or None without a retry."""
    return recovered / retried if retried else None

"""Failure groups: dead jobs that died of one cause. What state a group is in, and when its jobs died. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mulligan.core.job import SECOND, MarkRow, Micros
from mulligan.core.statistics import Deaths

HOURS = 24
DAYS = 14
BEYOND = HOURS * DAYS  # hours; what lies before is in no chart
FRESH: Micros = 86_400 * SECOND
EVERYBODY = "*"  # the scope of who sees the jobs of all owners


class GroupState(StrEnum):
    REGRESSED = "regressed"  # was resolved, and a job has died of it since
    NEW = "new"  # nobody has said anything, and the first death is less than a day old
    OPEN = "open"
    MUTED = "muted"
    RESOLVED = "resolved"


ORDER = tuple(GroupState)  # of a list: what needs somebody comes first
SAID = {"open": GroupState.OPEN, "muted": GroupState.MUTED, "resolved": GroupState.RESOLVED}


def standing(
    mark: MarkRow | None, first: Micros | None, last: Micros | None, now: Micros
) -> GroupState:
    """`first` and `last`: when its dead jobs died; None: there are none."""
    if mark is None:
        return GroupState.NEW if first is not None and now - first < FRESH else GroupState.OPEN
    if mark.state == "muted":
        return GroupState.MUTED if mark.until is None or mark.until > now else GroupState.OPEN
    if mark.state == "resolved":
        again = last is not None and mark.resolved_at is not None and last > mark.resolved_at
        return GroupState.REGRESSED if again else GroupState.RESOLVED
    return GroupState.OPEN


@dataclass(frozen=True, slots=True)
class Members:
    """The dead jobs of a group, counted."""

    count: int
    kinds: Mapping[str, int]
    codes: Mapping[str, int]
    classes: Mapping[str, int]
    first: Micros | None
    last: Micros | None
    hourly: tuple[int, ...]  # deaths in each of the last 24 hours, the last one at the end
    daily: tuple[int, ...]  # the same for 14 days of 24 hours


def folded(deaths: Deaths) -> Members:
    """All of it from the same jobs, so that no two numbers can disagree."""
    counts = deaths.counts
    return Members(
        count=sum(row.jobs for row in counts),
        kinds=_most_first((row.kind, row.jobs) for row in counts),
        codes=_most_first((row.code, row.jobs) for row in counts),
        classes=_most_first((row.cls, row.jobs) for row in counts),
        first=deaths.first,
        last=deaths.last,
        hourly=buckets(deaths.hours, HOURS),
        daily=buckets(((ago // 24, jobs) for ago, jobs in deaths.hours), DAYS),
    )


def buckets(ago: Iterable[tuple[int, int]], many: int) -> tuple[int, ...]:
    """(how many steps ago, how many jobs) → the last `many` steps, oldest first."""
    counted = [0] * many
    for steps, jobs in ago:
        if 0 <= steps < many:
            counted[many - 1 - steps] += jobs
    return tuple(counted)


def _most_first(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name, jobs in pairs:
        counted[name] = counted.get(name, 0) + jobs
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def share(recovered: int, retried: int) -> float | None:
    """None: nobody has tried yet."""
    return recovered / retried if retried else None

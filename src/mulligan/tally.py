"""What is counted about many jobs, as plain numbers: the rows of insight. Times are microseconds unless they say ms."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.job import Micros


class JobCount(NamedTuple):
    """Jobs that were enqueued on a day (days since 1970, UTC) and are in this state now; `cls` of the dead ones."""

    day: int
    state: str
    cls: str
    jobs: int


class EndCount(NamedTuple):
    """All attempts, by how they ended."""

    ended: str
    attempts: int


class CodeCount(NamedTuple):
    """How many jobs were tried again after this failure, and in how many different hours that was."""

    cls: str
    code: str
    jobs: int
    hours: int


class FailureCount(NamedTuple):
    """Counted failures; `k` is the number of the attempt in its life."""

    cls: str
    code: str
    rule: str
    verb: str
    k: int
    failures: int
    cost: float
    busy: Micros


class TrialCount(NamedTuple):
    """Automatic retries after a failure of this class and code: `k`-th attempts, and how many of them succeeded."""

    cls: str
    code: str
    uses: str
    k: int
    age: int  # in steps of `Tally.width`
    trials: int
    successes: int
    cost: float
    busy: Micros


class LifeCount(NamedTuple):
    """First lives. `cls` of the first verdict that meant a retry; `ms` from the first failure to the end, or to now."""

    cls: str
    outcome: str  # succeeded, dead, cancelled, pending
    retried: bool
    hopeless: bool  # the last verdict was that trying again would not help
    ms: int | None
    jobs: int


class HandCount(NamedTuple):
    """Dead lives that a person began again, and how many of the new ones succeeded within a day."""

    cls: str
    code: str
    rule: str
    tries: int
    successes: int


class Tally(NamedTuple):
    """Everything that was counted, and within which bounds."""

    now: Micros
    since: Micros
    width: Micros
    cut: bool  # more was there than is counted; only the newest is
    jobs: list[JobCount]
    ended: list[EndCount]
    codes: list[CodeCount]
    failures: list[FailureCount]
    trials: list[TrialCount]
    lives: list[LifeCount]
    by_hand: list[HandCount]


class DeathCount(NamedTuple):
    """Dead jobs of one group."""

    kind: str
    code: str
    cls: str
    jobs: int


class Deaths(NamedTuple):
    """Of one group. Both lists are of the same jobs; `hours`: how many hours ago (beyond a day, whole days), jobs."""

    counts: list[DeathCount]
    hours: list[tuple[int, int]]
    first: Micros | None
    last: Micros | None

"""Shares and chances from counts, each with how sure one may be of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from mulligan.core.job import Micros

# What is counted about many jobs, as plain numbers: the rows of insight. Times are microseconds unless they say ms.


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


class InsightCounts(NamedTuple):
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


# Shares and chances from counts, each with how sure one may be of it.

Z = 1.959964  # 95 %
_HALVINGS = 30
_MOST_STEPS = 3000


class Share(NamedTuple):
    """`part` of `whole`, and where the true share lies (Wilson's interval, 95 %). Of nothing there is no share."""

    part: int
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        return self.part / self.whole if self.whole else None


class Chance(NamedTuple):
    """A belief about the next attempt (Beta), with its interval (95 %) and what it rests on."""

    mean: float
    low: float
    high: float
    trials: int
    successes: int


def share(part: int, whole: int) -> Share:
    if whole <= 0:
        return Share(0, 0, 0.0, 1.0)
    p, z2 = part / whole, Z * Z
    centre = (p + z2 / (2 * whole)) / (1 + z2 / whole)
    half = Z / (1 + z2 / whole) * math.sqrt(p * (1 - p) / whole + z2 / (4 * whole * whole))
    return Share(part, whole, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)))


def chance(mean: float, weight: float, seen: Iterable[tuple[float, int, int]]) -> Chance:
    """A prior of that mean, worth `weight` trials; then of each age how much it still counts, trials and successes."""
    a, b = mean * weight, (1 - mean) * weight
    trials = successes = 0
    for worth, tried, good in seen:
        a, b = a + worth * good, b + worth * (tried - good)
        trials, successes = trials + tried, successes + good
    low, high = beta_quantile(0.025, a, b), beta_quantile(0.975, a, b)
    return Chance(a / (a + b), low, high, trials, successes)


def beta_quantile(q: float, a: float, b: float) -> float:
    """Where Beta(a, b) has the share `q` below it."""
    low, high = _bracket(a, b)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if beta_below(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _bracket(a: float, b: float) -> tuple[float, float]:
    """Ten standard deviations around the mean: narrow where much is known."""
    mean, spread = a / (a + b), 10 * math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    return max(0.0, mean - spread), min(1.0, mean + spread)


def beta_below(x: float, a: float, b: float) -> float:
    """The share of Beta(a, b) below x: the regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction converges quickly only for the other side
        return 1 - _below(1 - x, b, a)
    return _below(x, a, b)


def _below(x: float, a: float, b: float) -> float:
    front = (
        a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    )
    return min(1.0, math.exp(front) / a / _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), from the inside out; it needs more steps the more is known."""
    value = 1.0
    for m in range(min(_MOST_STEPS, 30 + int(3 * math.sqrt(a + b))), 0, -1):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + odd / (1 + even / value)
    return value


class Observation(NamedTuple):
    """`jobs` jobs at this time: the event came, or they were not watched any longer."""

    at: float
    came: bool
    jobs: int


def quantile(q: float, endings: Iterable[Observation]) -> float | None:
    """When the event had come for the share `q` (Kaplan and Meier); None: it has not, as far as one could see.

    What ends without the event counts until then as one for which it might have come; one for which it can never
    come is given with an infinite time.
    """
    ordered = sorted(endings, key=lambda ending: (ending.at, not ending.came))
    at_risk, still = sum(ending.jobs for ending in ordered), 1.0
    for ending in ordered:
        if ending.came and at_risk:
            still *= 1 - ending.jobs / at_risk
            if 1 - still >= q - 1e-12:
                return ending.at
        at_risk -= ending.jobs
    return None


# -- the last minutes -------------------------------------------------------------------------------
FAILED = frozenset({"retry", "dead", "lost"})

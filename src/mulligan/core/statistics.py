"""Counts about many jobs, and shares, chances and quantiles estimated from them.

Times are microseconds unless the name says ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from mulligan.core.durations import Micros

FAILED_OUTCOMES = frozenset({"retry", "dead", "lost"})


# --- Counts that the insight queries return ---


class JobCount(NamedTuple):
    """Jobs by the day of their enqueue (days since 1970, UTC) and their current state."""

    day: int
    state: str
    cls: str  # class of the final failure of dead jobs
    jobs: int


class EndCount(NamedTuple):
    """Attempts by how they ended."""

    ended: str
    attempts: int


class CodeCount(NamedTuple):
    """Jobs that were retried after a failure, and in how many different hours they were."""

    cls: str
    code: str
    jobs: int
    hours: int


class FailureCount(NamedTuple):
    """Counted failures; `k` is the number of the attempt within its generation."""

    cls: str
    code: str
    rule: str
    verb: str
    k: int
    failures: int
    cost: float
    busy: Micros


class TrialCount(NamedTuple):
    """Automatic retries after a failure of this class and code, and how many of them succeeded."""

    cls: str
    code: str
    uses: str
    k: int  # number of the attempt
    age: int  # in steps of `InsightCounts.age_step`
    trials: int
    successes: int
    cost: float
    busy: Micros


class GenerationCount(NamedTuple):
    """First generations of jobs, by outcome."""

    cls: str  # of the first failure that led to a retry
    outcome: str  # succeeded, dead, cancelled, pending
    retried: bool
    hopeless: bool  # the last failure was judged not retryable
    ms: int | None  # from the first failure to the end, or to now
    jobs: int


class ManualRetryCount(NamedTuple):
    """Manual retries of dead jobs, and how many of them succeeded within a day."""

    cls: str
    code: str
    rule: str
    tries: int
    successes: int


class InsightCounts(NamedTuple):
    """Everything that insight counts, and the bounds of the count."""

    now: Micros
    since: Micros
    age_step: Micros
    truncated: bool  # only the newest jobs were counted
    jobs: list[JobCount]
    ended: list[EndCount]
    codes: list[CodeCount]
    failures: list[FailureCount]
    trials: list[TrialCount]
    generations: list[GenerationCount]
    manual_retries: list[ManualRetryCount]


class DeathCount(NamedTuple):
    """Dead jobs of a failure group, by kind and code."""

    kind: str
    code: str
    cls: str
    jobs: int


class Deaths(NamedTuple):
    """Dead jobs of a failure group. Both lists count the same jobs."""

    counts: list[DeathCount]
    hours: list[tuple[int, int]]  # (hours ago, jobs); whole days after the first day
    first: Micros | None
    last: Micros | None
    owners: dict[str, int] = {}  # noqa: RUF012 - each group gets its own


# --- Shares and chances ---

Z_95 = 1.959964  # quantile of the normal distribution for a 95 % interval
_BISECTIONS = 30
_MAX_FRACTION_STEPS = 3000


class Share(NamedTuple):
    """The share `part` / `whole` with its 95 % interval (Wilson)."""

    part: int
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """The share, or None if `whole` is 0."""
        return self.part / self.whole if self.whole else None


class Chance(NamedTuple):
    """Estimated chance that the next attempt succeeds, with its 95 % interval and its evidence."""

    mean: float
    low: float
    high: float
    trials: int
    successes: int


def estimate_share(part: int, whole: int) -> Share:
    """Compute a share and its Wilson interval."""
    if whole <= 0:
        return Share(0, 0, 0.0, 1.0)
    p = part / whole
    z2 = Z_95 * Z_95
    denominator = 1 + z2 / whole
    centre = (p + z2 / (2 * whole)) / denominator
    variance = p * (1 - p) / whole + z2 / (4 * whole * whole)
    half = Z_95 / denominator * math.sqrt(variance)
    low = max(0.0, centre - half)
    high = min(1.0, centre + half)
    return Share(part, whole, min(p, low), max(p, high))


def estimate_chance(
    prior_mean: float, prior_weight: float, observations: Iterable[tuple[float, int, int]]
) -> Chance:
    """Update a Beta prior, worth `prior_weight` trials, by (weight, trials, successes) tuples."""
    a = prior_mean * prior_weight
    b = (1 - prior_mean) * prior_weight
    trials = 0
    successes = 0
    for weight, tried, succeeded in observations:
        a += weight * succeeded
        b += weight * (tried - succeeded)
        trials += tried
        successes += succeeded
    low = beta_quantile(0.025, a, b)
    high = beta_quantile(0.975, a, b)
    return Chance(a / (a + b), low, high, trials, successes)


def beta_quantile(q: float, a: float, b: float) -> float:
    """Return x such that Beta(a, b) has the share `q` below x."""
    low, high = _bracket(a, b)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _bracket(a: float, b: float) -> tuple[float, float]:
    """Return an interval of ten standard deviations on each side of the mean, within 0 to 1."""
    total = a + b
    mean = a / total
    variance = a * b / (total**2 * (total + 1))
    spread = 10 * math.sqrt(variance)
    return max(0.0, mean - spread), min(1.0, mean + spread)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the share of Beta(a, b) below x: the regularised incomplete beta function."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly only on the other side
        return 1 - _incomplete_beta(1 - x, b, a)
    return _incomplete_beta(x, a, b)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    front = (
        a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    )
    return min(1.0, math.exp(front) / a / _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Compute 1 + d1/(1 + d2/(1 + …)) from the inside out. Large a + b need more steps."""
    value = 1.0
    steps = min(_MAX_FRACTION_STEPS, 30 + int(3 * math.sqrt(a + b)))
    for m in range(steps, 0, -1):
        c = a + 2 * m
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((c - 2) * (c - 1))
        even = m * (b - m) * x / ((c - 1) * c)
        value = 1 + odd / (1 + even / value)
    return value


# --- Time until an event ---


class Observation(NamedTuple):
    """Number of jobs for which the event occurred at `at`, or that were observed until `at`."""

    at: float
    occurred: bool
    jobs: int


def event_time_quantile(q: float, observations: Iterable[Observation]) -> float | None:
    """Return when the event had occurred for the share `q` of the jobs (Kaplan-Meier).

    Return None if it has not within the observed time. Jobs that were observed only for a while
    count until then. Pass an infinite time for jobs for which the event can never occur.
    """
    ordered = sorted(observations, key=lambda one: (one.at, not one.occurred))
    at_risk = sum(one.jobs for one in ordered)
    surviving = 1.0
    for one in ordered:
        if one.occurred and at_risk:
            surviving *= 1 - one.jobs / at_risk
            if 1 - surviving >= q - 1e-12:
                return one.at
        at_risk -= one.jobs
    return None

"""Shares and chances from counts, each with how sure one may be of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

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
    front = a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    return min(1.0, math.exp(front) / a / _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), from the inside out; it needs more steps the more is known."""
    value = 1.0
    for m in range(min(_MOST_STEPS, 30 + int(3 * math.sqrt(a + b))), 0, -1):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + odd / (1 + even / value)
    return value


class Ending(NamedTuple):
    """`jobs` jobs at this time: the event came, or they were not watched any longer."""

    at: float
    came: bool
    jobs: int


def quantile(q: float, endings: Iterable[Ending]) -> float | None:
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

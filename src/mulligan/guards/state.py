"""What is remembered of a dependency, and what was declared about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.core.job import SECOND, Micros
from mulligan.guards import budget as budgets
from mulligan.guards import ramp as ramps
from mulligan.guards.budget import Bucket
from mulligan.guards.ramp import WHOLE, Ramp, Reduced
from mulligan.guards.window import EMPTY, Heat, Times, Window, quantile, read_times

SLOW_LEAST = 1000.0  # ms: what is quicker hurts nobody, whatever it took before
SLOW_TIMES = 3.0  # the time that 19 of 20 need


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """What code declares of a dependency, else these defaults."""

    mode: str = "hold"
    open_at: float = 0.5
    min_calls: int = 20
    window: Micros = 120 * SECOND
    cool_down: Micros = 30 * SECOND
    budget: budgets.BudgetTerms | None = budgets.DEFAULT
    slow: float | None = None  # ms
    most: int | None = None  # at a time, as declared
    probe: bool = False  # there is a function that looks whether it is well


DEFAULT = BreakerTerms()


class Probe(NamedTuple):
    """The one attempt of the fleet that may go through while it is open. Under way as long as that attempt runs."""

    job_id: str
    token: int
    kind: str
    at: Micros
    until: Micros  # when it is cut


class Hand(NamedTuple):
    """A person's word stands above the guard's until it ends."""

    open: bool
    until: Micros | None


@dataclass(frozen=True, slots=True)
class GuardState:
    open: bool = False
    since: Micros = 0  # when the outage began
    opened_at: Micros = 0  # the last time; it may have closed and opened again in one outage
    closed_at: Micros = 0  # when the last one ended
    reason: str = ""
    probe_at: Micros = 0
    probe: Probe | None = None
    passed: int = 0  # probes, one after the other
    tried: tuple[str, ...] = ()  # jobs that failed as probes in this outage
    normal: float | None = None  # dispatches a second before it
    ramp: Ramp | None = None
    window: Window = EMPTY
    times: Mapping[str, Times] = field(default_factory=dict)
    at: Micros = 0  # of the last fold
    bucket: Bucket | None = None  # None: full
    reduced: Reduced = WHOLE
    hand: Hand | None = None

    def median(self, kind: str) -> float | None:
        return quantile(self.times.get(kind), 0.5)

    def slow_after(self, kind: str, terms: BreakerTerms) -> float | None:
        """From how many milliseconds on an answer counts as a failure; None: nobody knows what is usual."""
        if terms.slow is not None:
            return terms.slow
        usual = quantile(self.times.get(kind), 0.95)
        return None if usual is None else max(SLOW_LEAST, SLOW_TIMES * usual)

    def by_hand(self, now: Micros) -> Hand | None:
        hand = self.hand
        return None if hand is None or (hand.until is not None and hand.until <= now) else hand

    def is_down(self, now: Micros) -> bool:
        """As its breaker or a person says."""
        hand = self.by_hand(now)
        return self.open or (hand is not None and hand.open)

    def active(self, terms: BreakerTerms) -> bool:
        """Must claims ask it?"""
        low = (
            self.bucket is not None
            and terms.budget is not None
            and budgets.low(self.bucket, terms.budget)
        )
        held = self.open or (self.hand is not None and self.hand.open)
        return held or self.ramp is not None or self.reduced.limit is not None or low

    def tokens(self, terms: BreakerTerms, now: Micros) -> float | None:
        """Retries that are left; None: nobody counts them."""
        if terms.budget is None:
            return None
        return (
            terms.budget.size
            if self.bucket is None
            else budgets.filled(self.bucket, terms.budget, now).tokens
        )

    def to_json(self) -> str:
        said: dict[str, Any] = {
            name: value for name in _PLAIN if (value := getattr(self, name)) != getattr(FRESH, name)
        }
        if self.ramp is not None:
            said["ramp"] = ramps.to_plain(self.ramp)
        return json.dumps(said, separators=(",", ":"))


FRESH = GuardState()
_PLAIN = tuple(name for name in GuardState.__slots__ if name != "ramp")


def read_guard(text: str) -> GuardState:
    """What a newer version remembers besides is left aside; what cannot be read is forgotten."""
    try:
        said = json.loads(text) if text else {}
        return GuardState(
            **{
                name: _read(name, value)
                for name, value in said.items()
                if name in GuardState.__slots__
            }
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return FRESH


def _read(name: str, value: Any) -> Any:
    reader = _READERS.get(name)
    return value if reader is None or value is None else reader(value)


def _window(value: Any) -> Window:
    buckets, heat, jobs = value
    return Window(tuple((at, ok, failed) for at, ok, failed in buckets), Heat(*heat), tuple(jobs))


_READERS: Mapping[str, Any] = {
    "probe": lambda value: Probe(*value),
    "tried": tuple,
    "ramp": ramps.from_plain,
    "window": _window,
    "times": read_times,
    "bucket": lambda value: Bucket(*value),
    "reduced": lambda value: Reduced(*value),
    "hand": lambda value: Hand(*value),
}

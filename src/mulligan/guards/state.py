"""State of a dependency's guard as stored, and the configuration of its breaker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.guards import budget as budgets
from mulligan.guards.budget import RetryBucket
from mulligan.guards.ramp import (
    UNTHROTTLED,
    Ramp,
    ThrottleState,
    ramp_from_dict,
    ramp_to_dict,
)
from mulligan.guards.window import (
    EMPTY_WINDOW,
    CallWindow,
    Cusum,
    DurationHistogram,
    parse_histograms,
    quantile,
)

MIN_SLOW_MS = 1000.0  # faster calls never count as slow, even if they are usually much faster
SLOW_FACTOR = 3.0  # a call is slow if it takes this many times the 95th percentile


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """Breaker of a dependency as code declares it; the defaults apply to all others."""

    mode: str = "hold"
    open_at: float = 0.5
    min_calls: int = 20
    window: Micros = 120 * SECOND
    cool_down: Micros = 30 * SECOND
    budget: budgets.BudgetConfig | None = budgets.DEFAULT_BUDGET
    slow_after_ms: float | None = None
    max_concurrency: int | None = None
    probe: bool = False  # the app declares a health check function


DEFAULT_BREAKER = BreakerConfig()


class Probe(NamedTuple):
    """The one attempt in the fleet that may run while the breaker is open."""

    job_id: str
    token: int
    kind: str
    at: Micros
    until: Micros  # when it times out


class ManualOverride(NamedTuple):
    """An operator's decision. The breaker does not change the state until it expires."""

    open: bool
    until: Micros | None


@dataclass(frozen=True, slots=True)
class GuardState:
    """Breaker, ramp, throttle and retry budget of one dependency."""

    open: bool = False
    since: Micros = 0  # start of the outage
    opened_at: Micros = 0  # last opening; the breaker may open several times in one outage
    closed_at: Micros = 0  # end of the last outage
    reason: str = ""
    probe_at: Micros = 0
    probe: Probe | None = None
    passed: int = 0  # consecutive probes that passed
    tried_jobs: tuple[str, ...] = ()  # jobs that failed as probes in this outage
    normal_rate: float | None = None  # starts per second before the outage
    ramp: Ramp | None = None
    window: CallWindow = EMPTY_WINDOW
    times: Mapping[str, DurationHistogram] = field(default_factory=dict)  # by kind
    updated_at: Micros = 0
    bucket: RetryBucket | None = None  # None: full
    throttle: ThrottleState = UNTHROTTLED
    override: ManualOverride | None = None

    def median_ms(self, kind: str) -> float | None:
        return quantile(self.times.get(kind), 0.5)

    def slow_threshold_ms(self, kind: str, config: BreakerConfig) -> float | None:
        """Return from when on a call counts as failed, or None if too few calls were measured."""
        if config.slow_after_ms is not None:
            return config.slow_after_ms
        usual = quantile(self.times.get(kind), 0.95)
        if usual is None:
            return None
        return max(MIN_SLOW_MS, SLOW_FACTOR * usual)

    def active_override(self, now: Micros) -> ManualOverride | None:
        """Return the operator's override, unless it has expired."""
        override = self.override
        if override is None:
            return None
        if override.until is not None and override.until <= now:
            return None
        return override

    def is_down(self, now: Micros) -> bool:
        """Return True if the breaker is open or an operator holds the dependency."""
        override = self.active_override(now)
        return self.open or (override is not None and override.open)

    def affects_claims(self, config: BreakerConfig) -> bool:
        """Return True if claims must read this guard."""
        if self.open or (self.override is not None and self.override.open):
            return True
        if self.ramp is not None or self.throttle.limit is not None:
            return True
        if self.bucket is None or config.budget is None:
            return False
        return budgets.is_low(self.bucket, config.budget)

    def retry_tokens(self, config: BreakerConfig, now: Micros) -> float | None:
        """Return how many retries the budget has left, or None if there is no budget."""
        if config.budget is None:
            return None
        if self.bucket is None:
            return config.budget.size
        return budgets.refill(self.bucket, config.budget, now).tokens

    def to_json(self) -> str:
        """Return the fields that differ from a new guard."""
        record: dict[str, Any] = {}
        for name in _STORED_AS_IS:
            value = getattr(self, name)
            if value != getattr(NEW_GUARD, name):
                record[name] = value
        if self.ramp is not None:
            record["ramp"] = ramp_to_dict(self.ramp)
        return json.dumps(record, separators=(",", ":"))


NEW_GUARD = GuardState()
_STORED_AS_IS = tuple(name for name in GuardState.__slots__ if name != "ramp")


@lru_cache(maxsize=512)
def load_guard(text: str) -> GuardState:
    """Parse a stored guard.

    Fields of a newer version are ignored. An unreadable guard is new: it learns again.
    """
    if not text:
        return NEW_GUARD
    try:
        record = json.loads(text)
        known = {
            name: _parse_field(name, value)
            for name, value in record.items()
            if name in GuardState.__slots__
        }
        return GuardState(**known)
    except (AttributeError, KeyError, TypeError, ValueError):
        return NEW_GUARD


def _parse_field(name: str, value: Any) -> Any:
    parser = _PARSERS.get(name)
    if parser is None or value is None:
        return value
    return parser(value)


def _parse_window(value: Any) -> CallWindow:
    buckets, cusum, jobs = value
    parsed = tuple((at, ok, failed) for at, ok, failed in buckets)
    return CallWindow(parsed, Cusum(*cusum), tuple(jobs))


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "probe": Probe._make,
    "tried_jobs": tuple,
    "ramp": ramp_from_dict,
    "window": _parse_window,
    "times": parse_histograms,
    "bucket": RetryBucket._make,
    "throttle": ThrottleState._make,
    "override": ManualOverride._make,
}

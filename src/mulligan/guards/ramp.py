"""Ramp after an outage, and throttle of a dependency that rate-limits calls.

The ramp limits how many jobs may start per second after a breaker closed, so that the backlog does
not cause a second outage. The rate starts low, grows while outcomes are good and is cut when they
are not. It grows fast far from the rate that caused the last cut and slowly near it, so that most
of the time is spent just below what the dependency can handle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros

# --- Ramp ---

FIRST_SHARE = 0.1  # of the normal rate: the rate at the start
MIN_STARTS = 1.0  # per interval

# Growth per interval, as a share of the current or the normal rate, whichever is larger.
FAST_GROWTH = 0.05
RESTING_GROWTH = 0.0015
PROBING_GROWTH = 0.01
UNKNOWN_GROWTH = 0.1  # of the current rate, if the normal rate is unknown, until the first cut

# Zones, as shares of the rate of the last cut: growth is slow from REST, faster from PROBE and
# fast again from FREE.
REST_ZONE = 0.85
PROBE_ZONE = 0.95
FREE_ZONE = 1.15

MAX_FAILURE_SHARE = 0.02  # above the usual share
MIN_FAILURES = 3  # fewer may be chance
MAX_UNSURE_INTERVALS = 5  # a few failures stop growth for at most this long
OUTAGE_SHARE = 1 / 3  # so many failures are a short outage, not an overload
REPEAT_INTERVALS = 10  # a second cut within them is an overload after all
FORGET_INTERVALS = 30  # without a cut, below FORGET_RATE, the last cut says nothing any more
FORGET_RATE = 10.0  # per second
CUT_FACTOR = 0.93  # of the rate, less the share that failed
MIN_CUT_FACTOR = 0.5
REPORT_DELAY = SECOND  # until outcomes reach the guard

LEARNING_WEIGHT = 0.03  # of one full sample in the usual failure share
SAMPLE_SIZE = 30
MAX_USUAL_SHARE = 0.5

MIN_USED_SHARE = 0.5  # with fewer starts than this share, the rate is not what limits
MAX_UNUSED_INTERVALS = 60  # in a row
DEFAULT_NORMAL_RATE = 10.0  # per second, if the normal rate is unknown
MAX_QUIET = 600 * SECOND


class Ramp(NamedTuple):
    """Start rate of a recovering dependency, and the outcomes since it was last evaluated."""

    rate: float  # starts per second that are allowed in the whole fleet
    normal_rate: float | None  # starts per second before the outage; None: unknown
    # After a cut this is in the future, until the outcomes of the old rate have been reported.
    evaluated_at: Micros
    interval: Micros = SECOND  # between evaluations: at least as long as most jobs
    ok: int = 0  # outcomes since `evaluated_at`
    failed: int = 0
    overload_rate: float | None = None  # rate of the last cut
    usual_failure_share: float = 0.0  # share that fails at any rate
    unused_intervals: int = 0  # in a row, in which the rate was not used
    calm_intervals: int = REPEAT_INTERVALS  # since the last cut


def start_ramp(normal_rate: float | None, now: Micros, interval: Micros = SECOND) -> Ramp:
    """Return a ramp that starts at a tenth of the normal rate."""
    if normal_rate is None:
        rate = 2 * _min_rate(interval)
    else:
        rate = max(normal_rate * FIRST_SHARE, _min_rate(interval))
    return Ramp(rate, normal_rate, now, interval)


def _min_rate(interval: Micros) -> float:
    return MIN_STARTS * SECOND / interval


def apply_outcomes(ramp: Ramp, ok: int, failed: int, now: Micros) -> Ramp:
    """Count outcomes and change the rate if it is time. May be called at any frequency."""
    # A time too far ahead means that the clock was set back.
    evaluated_at = min(ramp.evaluated_at, now + _settling_time(ramp))
    if now < evaluated_at:
        return ramp._replace(evaluated_at=evaluated_at)
    ramp = ramp._replace(evaluated_at=evaluated_at, ok=ramp.ok + ok, failed=ramp.failed + failed)
    elapsed = now - evaluated_at
    interval_over = elapsed >= ramp.interval
    count = float(ramp.ok + ramp.failed)
    if not interval_over:
        # Failures are reported before successes, so compare them with all expected outcomes.
        count = max(count, ramp.rate * ramp.interval / SECOND)
    usual = ramp.usual_failure_share
    excess = ramp.failed - usual * count
    chance = 2 * math.sqrt(usual * (1 - usual) * count)
    if excess >= max(MIN_FAILURES, MAX_FAILURE_SHARE * count) + chance:
        return _cut(ramp, count, excess / count, now)
    suspicious = excess > MAX_FAILURE_SHARE * count + chance
    unsure = suspicious and elapsed < MAX_UNSURE_INTERVALS * ramp.interval
    if interval_over and count and not unsure:
        return _grow(ramp, count, now)
    return ramp


def _settling_time(ramp: Ramp) -> Micros:
    """Return how long after a cut outcomes still belong to the rate before it."""
    return ramp.interval + REPORT_DELAY


def _cut(ramp: Ramp, count: float, failed_share: float, now: Micros) -> Ramp:
    factor = max(MIN_CUT_FACTOR, CUT_FACTOR - failed_share)
    is_overload = failed_share < OUTAGE_SHARE or ramp.calm_intervals < REPEAT_INTERVALS
    overload_rate = ramp.rate if is_overload else ramp.overload_rate
    evaluated = _reset_outcomes(ramp, count, now + _settling_time(ramp))
    return evaluated._replace(
        rate=max(ramp.rate * factor, _min_rate(ramp.interval)),
        overload_rate=overload_rate,
        unused_intervals=0,
        calm_intervals=0,
    )


def _grow(ramp: Ramp, count: float, now: Micros) -> Ramp:
    overload_rate = ramp.overload_rate
    if ramp.calm_intervals >= FORGET_INTERVALS and ramp.rate < FORGET_RATE:
        overload_rate = None
    evaluated = _reset_outcomes(ramp, count, now)._replace(
        calm_intervals=ramp.calm_intervals + 1,
        overload_rate=overload_rate,
    )
    allowed = ramp.rate * (now - ramp.evaluated_at) / SECOND
    if count < MIN_USED_SHARE * allowed:
        return evaluated._replace(unused_intervals=ramp.unused_intervals + 1)
    return evaluated._replace(rate=ramp.rate + _growth(ramp), unused_intervals=0)


def _growth(ramp: Ramp) -> float:
    """Return how much the rate grows. Before the first cut it grows by one start at least."""
    if ramp.overload_rate is not None:
        reference = max(ramp.rate, ramp.normal_rate or 0.0)
        return _growth_share(ramp.rate / ramp.overload_rate) * reference
    if ramp.normal_rate is None:
        growth = UNKNOWN_GROWTH * ramp.rate
    else:
        growth = FAST_GROWTH * max(ramp.rate, ramp.normal_rate)
    return max(growth, _min_rate(ramp.interval))


def _growth_share(position: float) -> float:
    """Return the growth for a rate, given as a share of the rate of the last cut."""
    if not REST_ZONE <= position < FREE_ZONE:
        return FAST_GROWTH
    return RESTING_GROWTH if position < PROBE_ZONE else PROBING_GROWTH


def _reset_outcomes(ramp: Ramp, count: float, at: Micros) -> Ramp:
    """Learn the usual failure share from the counted outcomes and start a new interval."""
    weight = LEARNING_WEIGHT * min(1.0, count / SAMPLE_SIZE)
    usual = ramp.usual_failure_share
    usual += weight * (ramp.failed / count - usual)
    return ramp._replace(
        evaluated_at=at, ok=0, failed=0, usual_failure_share=min(usual, MAX_USUAL_SHARE)
    )


def is_finished(ramp: Ramp, now: Micros, *, waiting: bool) -> bool:
    """Return True if the limit may be removed. `waiting`: due jobs still wait for it."""
    if ramp.unused_intervals >= MAX_UNUSED_INTERVALS:
        return True
    if waiting:
        return False
    return ramp.rate >= _sufficient_rate(ramp) or now - ramp.evaluated_at >= MAX_QUIET


def _sufficient_rate(ramp: Ramp) -> float:
    normal = DEFAULT_NORMAL_RATE if ramp.normal_rate is None else ramp.normal_rate
    if ramp.overload_rate is None:
        return normal
    return min(normal, ramp.overload_rate * REST_ZONE)


def ramp_to_dict(ramp: Ramp) -> dict[str, Any]:
    return ramp._asdict()


def ramp_from_dict(record: Mapping[str, Any]) -> Ramp:
    """Restore a stored ramp. Fields of a newer version are ignored."""
    return Ramp(**{name: record[name] for name in Ramp._fields if name in record})


# --- Throttle ---

TRIP_SHARE = 0.05  # of calls that were rate limited: throttle more
CLEAR_SHARE = 0.01  # throttle less
MIN_THROTTLE_CALLS = 20
THROTTLE_DECREASE = 0.7
THROTTLE_INCREASE = 0.05
MIN_THROTTLE_INTERVAL = 30 * SECOND
THROTTLE_LIFETIME = 900 * SECOND


class ThrottleConfig(NamedTuple):
    """Shares of rate-limited calls at which the concurrency is reduced and raised."""

    trip: float = TRIP_SHARE
    clear: float = CLEAR_SHARE
    min_calls: int = MIN_THROTTLE_CALLS


DEFAULT_THROTTLE = ThrottleConfig()


class ThrottleState(NamedTuple):
    """Reduced concurrency of a dependency that asked for fewer calls."""

    limit: int | None = None  # None: not throttled
    base: int = 0  # concurrency before
    changed_at: Micros = 0
    until: Micros = 0
    limited: int = 0  # rate-limited calls since the last change
    calls: int = 0


UNTHROTTLED = ThrottleState()


class DependencyLoad(NamedTuple):
    """Load of a dependency: declared maximum, running jobs, duration of one."""

    max_concurrency: int | None
    running: int
    duration: Micros = 0


def update_throttle(
    throttle: ThrottleState,
    limited: int,
    calls: int,
    load: DependencyLoad,
    now: Micros,
    config: ThrottleConfig = DEFAULT_THROTTLE,
) -> tuple[ThrottleState, str | None]:
    """Count calls and change the concurrency if needed. Return the state and the reason."""
    expired = not 0 < throttle.until - now <= THROTTLE_LIFETIME  # or the clock was set back
    if throttle.limit is not None and expired:
        throttle = UNTHROTTLED
    throttle = throttle._replace(limited=throttle.limited + limited, calls=throttle.calls + calls)
    if throttle.limit is None and throttle.limited == 0:
        return UNTHROTTLED, None
    if throttle.calls < config.min_calls:
        return throttle, None
    share = throttle.limited / throttle.calls
    if _may_change(throttle, load, now):
        if share > config.trip:
            return _decrease(throttle, load, now)
        if share < config.clear:
            return _increase(throttle, load, now)
    if throttle.limit is None:
        return UNTHROTTLED, None
    if share >= config.clear:
        throttle = throttle._replace(until=now + THROTTLE_LIFETIME)
    return throttle, None


def _may_change(throttle: ThrottleState, load: DependencyLoad, now: Micros) -> bool:
    """Return True if the effect of the last change can be seen."""
    if throttle.limit is None:
        return True
    interval = max(MIN_THROTTLE_INTERVAL, 2 * load.duration)
    return not 0 <= now - throttle.changed_at < interval


def _decrease(
    throttle: ThrottleState, load: DependencyLoad, now: Micros
) -> tuple[ThrottleState, str | None]:
    base = throttle.base or load.max_concurrency or max(1, load.running)
    before = base if throttle.limit is None else throttle.limit
    limit = max(1, int(before * THROTTLE_DECREASE))
    state = ThrottleState(limit, base, now, now + THROTTLE_LIFETIME)
    if limit >= before:
        return state, None
    return state, f"{_describe_limited(throttle)}: concurrency reduced from {before} to {limit}"


def _increase(
    throttle: ThrottleState, load: DependencyLoad, now: Micros
) -> tuple[ThrottleState, str | None]:
    if throttle.limit is None:
        return UNTHROTTLED, None
    limit = throttle.limit + max(1, int(throttle.limit * THROTTLE_INCREASE))
    limited = _describe_limited(throttle)
    if limit >= (load.max_concurrency or throttle.base):
        return UNTHROTTLED, f"{limited}: concurrency is no longer reduced"
    state = ThrottleState(limit, throttle.base, now, now + THROTTLE_LIFETIME)
    return state, f"{limited}: concurrency raised from {throttle.limit} to {limit}"


def _describe_limited(throttle: ThrottleState) -> str:
    return f"{throttle.limited:,} of {throttle.calls:,} calls were rate limited"

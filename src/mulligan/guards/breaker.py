"""Circuit breaker of a dependency: when it opens, probes and closes. Pure.

An open breaker holds the jobs that use the dependency, without charge, and lets one probe at a time
through. After it closes, a ramp limits how many jobs may start per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import format_duration
from mulligan.guards import budget as budgets
from mulligan.guards import ramp as ramps
from mulligan.guards.budget import RetryBucket
from mulligan.guards.ramp import DependencyLoad, Ramp
from mulligan.guards.state import BreakerConfig, GuardState, ManualOverride, Probe
from mulligan.guards.window import (
    EMPTY_WINDOW,
    DependencyTally,
    ProbeVerdict,
    decay_histograms,
    explain_outage,
    merge_histograms,
    quantile,
    sum_tallies,
)

if TYPE_CHECKING:
    from mulligan.retries.backoff import Rng

MAX_COOL_DOWN = 900 * SECOND
MIN_PROBE_TIMEOUT = 5 * SECOND
DEFAULT_PROBE_TIMEOUT = 30 * SECOND  # if the usual duration is unknown
# A probe may take a quarter of the time since opening, which is less than the shortest cool-down.
PROBE_TIMEOUT_DIVISOR = 4
REQUIRED_PASSES = 3
LONG_CALL_MS = 60_000.0  # for calls that take longer, one success is enough to close
MAX_TRIED_JOBS = 50
MAX_TIMED_KINDS = 20
HALF_LIFE = 300 * SECOND  # of measured durations
SAME_OUTAGE = 2  # opening again within this many cool-downs continues the same outage
MAX_RAMP_INTERVAL = 60 * SECOND
SHORT_HOLD = 10 * SECOND  # the backlog of a shorter hold needs no ramp
HOLD_EXPIRED = "the hold expired"


class ChangeType(StrEnum):
    """How a breaker changed."""

    OPENED = "opened"
    CLOSED = "closed"
    CHANGED = "changed"


class BreakerChange(NamedTuple):
    """A change that is logged and written as an event."""

    type: ChangeType
    reason: str


Changes = list[BreakerChange]


def apply_tallies(
    guard: GuardState,
    tallies: Sequence[DependencyTally],
    config: BreakerConfig,
    now: Micros,
    rng: Rng,
    *,
    waiting: bool = False,
    running: int = 0,
) -> tuple[GuardState, Changes]:
    """Fold what workers counted into the guard.

    `waiting`: due jobs still wait for the dependency. `running`: how many jobs use it now.
    """
    changes: Changes = []
    tally = sum_tallies(tallies)
    guard = _update_statistics(guard, tally, config, now)
    guard = _repair_probe_time(guard, config, now, rng)
    for one in tallies:
        if one.verdict is not None:
            guard = _apply_verdict(guard, one.verdict, config, now, rng, changes)
    if not guard.open:
        guard = _update_closed(guard, tally, config, now, rng, changes, waiting=waiting)
    load = DependencyLoad(config.max_concurrency, running, _longest_median(guard))
    throttle, reason = ramps.update_throttle(
        guard.throttle, tally.limited, round(tally.calls) + tally.limited, load, now
    )
    if reason:
        changes.append(BreakerChange(ChangeType.CHANGED, reason))
    return replace(guard, throttle=throttle), changes


def _update_statistics(
    guard: GuardState, tally: DependencyTally, config: BreakerConfig, now: Micros
) -> GuardState:
    """Update durations and the retry budget, which continue in every state.

    During an outage durations do not decay: nothing is learnt about what is usual.
    """
    decay = 1.0
    if guard.updated_at and not guard.open:
        decay = 0.5 ** (max(0, now - guard.updated_at) / HALF_LIFE)
    times = merge_histograms(decay_histograms(guard.times, decay, MAX_TIMED_KINDS), tally.times)
    return replace(
        guard,
        times=times,
        bucket=_update_bucket(guard.bucket, tally, config, now),
        updated_at=now,
        override=guard.active_override(now),
    )


def _update_bucket(
    bucket: RetryBucket | None, tally: DependencyTally, config: BreakerConfig, now: Micros
) -> RetryBucket | None:
    """Return the bucket, or None if it is full or there is no budget."""
    if config.budget is None:
        return None
    before = bucket or RetryBucket(config.budget.size, now)
    after = budgets.apply_tally(before, tally, config.budget, now)
    return None if after.tokens >= config.budget.size else after


def _repair_probe_time(
    guard: GuardState, config: BreakerConfig, now: Micros, rng: Rng
) -> GuardState:
    """Reschedule a probe that is further away than any cool-down: the clock was set back."""
    if not guard.open or guard.probe_at - now <= _max_cool_down(config):
        return guard
    opened_at = min(guard.opened_at, now)
    return replace(
        guard,
        since=min(guard.since, now),
        opened_at=opened_at,
        probe_at=now + draw_cool_down(now - opened_at, config, rng),
    )


def _update_closed(
    guard: GuardState,
    tally: DependencyTally,
    config: BreakerConfig,
    now: Micros,
    rng: Rng,
    changes: Changes,
    *,
    waiting: bool,
) -> GuardState:
    """Open the breaker if the calls show an outage, else advance the ramp."""
    window = guard.window.add(tally, now, config.window, config.open_at)
    guard = replace(guard, window=window)
    if guard.override is None:
        reason = explain_outage(
            window,
            now,
            config.window,
            config.open_at,
            config.min_calls,
            after_outage=_recovered_recently(guard, config, now),
        )
        if reason is not None:
            return open_breaker(guard, reason, config, now, rng, changes)
    if guard.ramp is None:
        return guard
    return _update_ramp(guard, guard.ramp, tally, now, changes, waiting=waiting)


def _recovered_recently(guard: GuardState, config: BreakerConfig, now: Micros) -> bool:
    """Return True if new failures probably belong to the last outage."""
    if guard.closed_at <= 0:
        return False
    recent = now - guard.closed_at < SAME_OUTAGE * config.cool_down
    return guard.ramp is not None or recent


def _update_ramp(
    guard: GuardState,
    ramp: Ramp,
    tally: DependencyTally,
    now: Micros,
    changes: Changes,
    *,
    waiting: bool,
) -> GuardState:
    failed = round(tally.failed) + tally.limited
    ramp = ramps.apply_outcomes(ramp, round(tally.ok), failed, now)
    if not ramps.is_finished(ramp, now, waiting=waiting):
        return replace(guard, ramp=ramp)
    reason = "recovered: the start rate is no longer limited"
    changes.append(BreakerChange(ChangeType.CHANGED, reason))
    return replace(guard, ramp=None)


# --- Open ---


def open_breaker(
    guard: GuardState,
    reason: str,
    config: BreakerConfig,
    now: Micros,
    rng: Rng,
    changes: Changes,
) -> GuardState:
    """Open the breaker and schedule the first probe."""
    since = guard.since if _recovered_recently(guard, config, now) else now
    changes.append(BreakerChange(ChangeType.OPENED, reason))
    return replace(
        guard,
        open=True,
        since=since,
        opened_at=now,
        reason=reason,
        probe_at=now + draw_cool_down(0, config, rng),
        probe=None,
        passed=0,
        tried_jobs=(),
        normal_rate=_normal_rate(guard, config, now),
        ramp=None,
        window=EMPTY_WINDOW,
    )


def draw_cool_down(outage: Micros, config: BreakerConfig, rng: Rng) -> Micros:
    """Return the time until the next probe: about half of the outage so far.

    The end of a short outage is noticed soon, and a long outage is not probed every 30 seconds.
    """
    return round(_longest_wait(outage, config) * rng.uniform(0.5, 1.0))


def _longest_wait(outage: Micros, config: BreakerConfig) -> Micros:
    return min(max(config.cool_down, outage // 2), _max_cool_down(config))


def _max_cool_down(config: BreakerConfig) -> Micros:
    return max(config.cool_down, MAX_COOL_DOWN)


# --- Probes ---


def probe_timeout(guard: GuardState, kind: str, config: BreakerConfig, now: Micros) -> Micros:
    """Return how long a probe may take. A probe that hangs must not block the next one.

    If the usual duration is unknown, it may take a cool-down. The limit grows with the outage:
    otherwise a slow job could never prove that it is over.
    """
    by_outage = (now - guard.opened_at) // PROBE_TIMEOUT_DIVISOR
    usual_ms = quantile(guard.times.get(kind), 0.95)
    if usual_ms is None:
        return max(MIN_PROBE_TIMEOUT, min(DEFAULT_PROBE_TIMEOUT, config.cool_down), by_outage)
    limited = min(by_outage, MAX_COOL_DOWN // PROBE_TIMEOUT_DIVISOR)
    return max(MIN_PROBE_TIMEOUT, round(3 * usual_ms * 1000), limited)


def is_probe_due(guard: GuardState, now: Micros) -> bool:
    """Return True if it is time to probe. The caller checks that no other probe is running."""
    return guard.open and guard.override is None and now >= guard.probe_at


def start_probe(
    guard: GuardState, lease: tuple[str, int], kind: str, config: BreakerConfig, now: Micros
) -> GuardState:
    """Record a started probe, by the fence of its lease.

    A probe that is still recorded ended without a verdict, because its worker died. Its job counts
    as tried. Without a verdict the next probe comes a cool-down after this one.
    """
    tried_jobs = guard.tried_jobs
    if guard.probe is not None:
        tried_jobs = _append_tried(tried_jobs, guard.probe.job_id)
    timeout_at = now + probe_timeout(guard, kind, config, now)
    return replace(
        guard,
        probe=Probe(*lease, kind, now, timeout_at),
        probe_at=now + _longest_wait(now - guard.opened_at, config),
        tried_jobs=tried_jobs,
    )


def _apply_verdict(
    guard: GuardState,
    verdict: ProbeVerdict,
    config: BreakerConfig,
    now: Micros,
    rng: Rng,
    changes: Changes,
) -> GuardState:
    probe = guard.probe
    if not guard.open or probe is None:
        return guard
    if (probe.job_id, probe.token) != (verdict.job_id, verdict.token):
        return guard  # a probe of an earlier outage
    if verdict.passed is None:
        tried_jobs = _append_tried(guard.tried_jobs, probe.job_id)
        return replace(guard, probe=None, probe_at=now, tried_jobs=tried_jobs)
    if not verdict.passed:
        return _fail_probe(guard, probe, config, now, rng)
    return _pass_probe(guard, probe, config, now, changes)


def _fail_probe(
    guard: GuardState, probe: Probe, config: BreakerConfig, now: Micros, rng: Rng
) -> GuardState:
    wait = draw_cool_down(now - guard.opened_at, config, rng)
    return replace(
        guard,
        probe=None,
        passed=0,
        probe_at=max(now, probe.at + wait),
        tried_jobs=_append_tried(guard.tried_jobs, probe.job_id),
    )


def _pass_probe(
    guard: GuardState, probe: Probe, config: BreakerConfig, now: Micros, changes: Changes
) -> GuardState:
    passed = guard.passed + 1
    duration_ms = guard.median_ms(probe.kind) or (now - probe.at) / 1000
    required = 1 if duration_ms > LONG_CALL_MS else REQUIRED_PASSES
    if passed < required:
        return replace(guard, probe=None, passed=passed, probe_at=now)
    outage = format_duration(max(1, (now - guard.since) // SECOND))
    return close_breaker(guard, f"responds again after {outage}", config, now, changes)


def _append_tried(tried_jobs: tuple[str, ...], job_id: str) -> tuple[str, ...]:
    return (*tried_jobs, job_id)[-MAX_TRIED_JOBS:]


# --- Closed ---


def close_breaker(
    guard: GuardState, reason: str, config: BreakerConfig, now: Micros, changes: Changes
) -> GuardState:
    """Close the breaker and start the ramp."""
    changes.append(BreakerChange(ChangeType.CLOSED, reason))
    normal_rate = _normal_rate(guard, config, now)
    interval = min(MAX_RAMP_INTERVAL, max(SECOND, _longest_median(guard)))
    since = guard.since if guard.open else now
    return replace(
        guard,
        open=False,
        since=since,
        closed_at=now,
        reason="",
        probe_at=0,
        probe=None,
        passed=0,
        tried_jobs=(),
        normal_rate=normal_rate,
        ramp=ramps.start_ramp(normal_rate, now, interval),
        window=EMPTY_WINDOW,
    )


def _normal_rate(guard: GuardState, config: BreakerConfig, now: Micros) -> float | None:
    """Return the starts per second before the outage.

    During an outage and the recovery from it, the remembered rate is the only one.
    """
    if guard.open or guard.ramp is not None or not guard.window.buckets:
        return guard.normal_rate
    return guard.window.rate(now, config.window)


def _longest_median(guard: GuardState) -> Micros:
    """Return the median duration of the slowest kind; 0 if none was measured."""
    medians = [quantile(times, 0.5) for times in guard.times.values()]
    longest_ms = max((median for median in medians if median is not None), default=0.0)
    return round(longest_ms * 1000)


# --- Manual ---


def open_manually(
    guard: GuardState, until: Micros | None, reason: str, config: BreakerConfig, now: Micros
) -> GuardState:
    """Hold the dependency for an operator. No probe runs meanwhile."""
    return replace(
        guard,
        open=False,
        since=now,
        reason=reason,
        probe_at=0,
        probe=None,
        passed=0,
        normal_rate=_normal_rate(guard, config, now),
        ramp=None,
        window=EMPTY_WINDOW,
        override=ManualOverride(open=True, until=until),
    )


def close_manually(
    guard: GuardState,
    until: Micros | None,
    reason: str,
    config: BreakerConfig,
    now: Micros,
    changes: Changes,
) -> GuardState:
    """Close for an operator, with a ramp. The breaker does not open before `until`."""
    return pin_closed(close_breaker(guard, reason, config, now, changes), until)


def pin_closed(guard: GuardState, until: Micros | None) -> GuardState:
    """Keep the breaker closed until then. None ends an operator's override."""
    override = None if until is None else ManualOverride(open=False, until=until)
    return replace(guard, override=override)


def expire_hold(
    guard: GuardState, held: Micros, config: BreakerConfig, now: Micros, changes: Changes
) -> GuardState:
    """End a hold whose time is over; `held` is how long it lasted.

    An operator's override that keeps the breaker closed for longer stays in force.
    """
    override = guard.active_override(now)
    if override is not None and override.open:
        override = None
    if held >= SHORT_HOLD:
        closed = close_breaker(guard, HOLD_EXPIRED, config, now, changes)
        return replace(closed, override=override)
    changes.append(BreakerChange(ChangeType.CLOSED, HOLD_EXPIRED))
    return replace(guard, override=override)

"""Simulate several ways to release the backlog of an outage, in steps of 0.1 seconds.

A model, not a measurement. The dependency can do `capacity` jobs per second. Jobs above that fail,
and each of them costs half a job of capacity, as in an overloaded service. Failed jobs are retried
within a minute. The ramp and the token bucket are the rules of the product.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Limit, TokenBucket
from mulligan.guards import ramp as ramps
from mulligan.guards.limits import NO_LIMIT, available_starts, refill_bucket

TICKS = 10  # a second
STEP = SECOND // TICKS
AGAIN = 60 * TICKS  # steps over which retries are spread
WASTED = 0.5
WORKERS = 3


class Setting(NamedTuple):
    """A dependency when it recovers."""

    name: str
    capacity: Callable[[float], float]  # jobs per second, by seconds since the recovery
    fresh: float  # new jobs per second
    held: int
    normal: float | None  # normal rate known to the ramp
    fleet: float = 2000.0  # jobs per second that the workers can start
    flaky: float = 0.0  # share that fails at any rate
    duration: float = 0.3  # seconds until an outcome is known
    every: Micros = SECOND

    def ideal(self) -> float:
        """Return the seconds until the backlog is done if all capacity is used from the start."""
        left = float(self.held)
        step = 0
        while left > 0:
            possible = min(self.capacity(step / TICKS), self.fleet) * (1 - self.flaky)
            left -= (possible - self.fresh) / TICKS
            step += 1
        return step / TICKS


class Release:
    """Release the whole backlog at once. Base class of other releases."""

    rate: float | None = None

    def due(self, held: int) -> list[float]:
        """Return how many of the held jobs become due in each step."""
        return [float(held)]

    def available(self, now: Micros) -> int:
        """Return how many jobs may start now."""
        del now
        return NO_LIMIT

    def count_started(self, count: int) -> None:
        """Count jobs that start."""

    def count_ended(self, worker: int, ok: int, failed: int, now: Micros) -> None:
        """Count the outcomes that a worker has received."""

    def finish_if_done(self, now: Micros, *, waiting: bool) -> None:
        """End the release if nothing must be held back any more."""


class EvenRelease(Release):
    """Spread the backlog evenly over a fixed time."""

    def __init__(self, seconds: int) -> None:
        self._steps = seconds * TICKS

    def due(self, held: int) -> list[float]:
        return [held / self._steps] * self._steps


class RampedRelease(Release):
    """Release the backlog with the ramp of Mulligan."""

    def __init__(self, normal: float | None, every: Micros = SECOND) -> None:
        self.ramp: ramps.Ramp | None = ramps.start_ramp(normal, 0, every)
        self._meter = TokenBucket(0.0, 0)
        self._unreported = [(0, 0)] * WORKERS

    @property
    def rate(self) -> float | None:  # type: ignore[override]
        return self.ramp and self.ramp.rate

    def available(self, now: Micros) -> int:
        if self.ramp is None:
            return NO_LIMIT
        meter = refill_bucket(self._meter, self.ramp.rate, now)
        # One token more than a step allows, because fractions of tokens would be lost at each step.
        self._meter = meter._replace(tokens=min(meter.tokens, 1 + self.ramp.rate / 10))
        return available_starts(Limit(rate=self.ramp.rate), 0, self._meter)

    def count_started(self, count: int) -> None:
        self._meter = self._meter._replace(tokens=self._meter.tokens - count)

    def count_ended(self, worker: int, ok: int, failed: int, now: Micros) -> None:
        """Collect outcomes. A worker reports once per second, and failures at once."""
        ok_before, failed_before = self._unreported[worker]
        ok += ok_before
        failed += failed_before
        is_its_turn = now // STEP % TICKS == worker * TICKS // WORKERS
        if not failed and not is_its_turn:
            self._unreported[worker] = (ok, failed)
            return
        self._unreported[worker] = (0, 0)
        if self.ramp is not None:
            self.ramp = ramps.apply_outcomes(self.ramp, ok, failed, now)

    def finish_if_done(self, now: Micros, *, waiting: bool) -> None:
        if self.ramp is None or now % SECOND:
            return
        if ramps.is_finished(self.ramp, now, waiting=waiting):
            self.ramp = None


class Dependency:
    """A dependency that fails jobs above its capacity, measured over the last second."""

    def __init__(self, setting: Setting, rng: Random) -> None:
        self._setting = setting
        self._rng = rng
        self._recent = deque([0] * TICKS, TICKS)  # jobs in each step of the last second
        self._load = 0  # their sum

    def fails(self, count: int, at: float) -> int:
        """Return how many of the jobs that start now fail."""
        self._load += count - self._recent[0]
        self._recent.append(count)
        excess = max(0.0, self._load - self._setting.capacity(at))
        share = min(1.0, (1 + WASTED) * excess / self._load) if excess else 0.0
        share += (1 - share) * self._setting.flaky
        if count > 2 * TICKS:  # many jobs: skip drawing each one
            return int(count * share + self._rng.random() * (0 < share < 1))
        return sum(self._rng.random() < share for _ in range(count))


class Run:
    """The simulation of one release in one setting."""

    def __init__(
        self, setting: Setting, release: Release, seconds: int = 1300, seed: int = 1
    ) -> None:
        self.setting = setting
        self._release = release
        self._rng = Random(seed)
        self._dependency = Dependency(setting, self._rng)
        self._unknown_outcomes = deque(
            [(0, 0)] * round(setting.duration * TICKS)
        )  # outcomes not known yet
        self._due_in_step = deque([0.0] * ((seconds + 60) * TICKS))  # what becomes due in each step
        for step, count in enumerate(release.due(setting.held)):
            self._due_in_step[step] += count
        self._due = 0.0
        self._held = float(setting.held)  # not due yet
        self.started = [0] * seconds
        self.failed = [0] * seconds
        self.waiting = [0] * seconds
        self.rates: list[float | None] = []
        self.drained: int | None = None  # the first second after which nothing waits
        self._drained_below = (1 + 50 * setting.flaky) * max(1.0, setting.fresh)
        for step in range(seconds * TICKS):
            self._step(step)

    def _step(self, step: int) -> None:
        now = step * STEP
        second = step // TICKS
        became_due = self._due_in_step.popleft()
        self._held -= became_due
        self._due += became_due + self.setting.fresh / TICKS
        startable = int(self.setting.fleet / TICKS)
        count = min(int(self._due), self._release.available(now), startable)
        self._release.count_started(count)
        self._due -= count
        bad = self._dependency.fails(count, step / TICKS)
        self._retry_failed(bad)
        self._report_outcomes(count - bad, bad, step)
        self._release.finish_if_done(now, waiting=self._due >= 1)
        self.started[second] += count
        self.failed[second] += bad
        self.waiting[second] = round(self._due + self._held)
        if step % TICKS == TICKS - 1:
            self.rates.append(self._release.rate)
            if self.drained is None and self._due + self._held <= self._drained_below:
                self.drained = second + 1

    def _retry_failed(self, count: int) -> None:
        self._held += count
        together = 10 if count > 5 * TICKS else 1  # group many retries to save time
        for first in range(0, count, together):
            self._due_in_step[int(self._rng.random() * AGAIN)] += min(together, count - first)

    def _report_outcomes(self, ok: int, bad: int, step: int) -> None:
        self._unknown_outcomes.append((ok, bad))
        ok, bad = self._unknown_outcomes.popleft()
        for worker in range(WORKERS):
            turn = (worker + step) % WORKERS
            self._release.count_ended(
                worker, (ok + turn) // WORKERS, (bad + turn) // WORKERS, step * STEP
            )

    @property
    def dispatched(self) -> int:
        """Return the starts until the backlog was drained."""
        return sum(self.started[: self.drained])

    @property
    def failures(self) -> int:
        return sum(self.failed[: self.drained])

    @property
    def share(self) -> float:
        return self.failures / self.dispatched

    @property
    def highest(self) -> float:
        """Return the busiest second as a multiple of the capacity."""
        capacity = self.setting.capacity
        return max(count / capacity(second) for second, count in enumerate(self.started))


def _always(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def _cold(rate: float, until: float) -> Callable[[float], float]:
    return lambda at: rate / 2 if at < until else rate


GATEWAY = Setting("100/s, as it was", _always(100), 60, 20_000, 60)
UNKNOWN = Setting("20/s, normal rate unknown", _always(20), 8, 5_000, None)
COLD = Setting("100/s, the first 200 s half of it", _cold(100, 200), 60, 20_000, 60)
ROOMY = Setting("1,000/s", _always(1000), 60, 20_000, 60)
TIGHT = Setting("66/s", _always(66), 60, 2_000, 60)
SLOW = Setting(
    "100/s, a job takes 5 s", _always(100), 60, 20_000, 60, duration=5.0, every=5 * SECOND
)
FLAKY = Setting("100/s, 5 % always fail", _always(100), 60, 20_000, 60, flaky=0.05)
SETTINGS = (GATEWAY, UNKNOWN, COLD, ROOMY, TIGHT, SLOW, FLAKY)


def ramped(setting: Setting) -> Release:
    return RampedRelease(setting.normal, setting.every)


RELEASES: dict[str, Callable[[Setting], Release]] = {
    "all at once": lambda _: Release(),
    "evenly over 5 min": lambda _: EvenRelease(300),
    "evenly over 20 min": lambda _: EvenRelease(1200),
    "ramp": ramped,
}

"""Remaining capacity for due jobs in one claim: limits of the fleet, slots, and retry budgets.

Limits are exact in the whole fleet: a claim locks the token buckets of its limits until it is
written, so the next claim counts what this one took. A claim does not wait for a bucket that
another worker has locked; it starts nothing under that limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane, LaneRef, Limit, LimitKey
from mulligan.guards.lanes import SLOTS, LaneView
from mulligan.guards.limits import (
    available_starts,
    count_running,
    limit_keys,
    merge_limits,
    next_start_at,
    refill_bucket,
    tighten_limit,
)
from mulligan.guards.observer import ENDPOINT_BREAKER, DependencyObserver
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import GuardState
from mulligan.manifest.specs import DELIVERY_QUEUE, ENDPOINT_PREFIX
from mulligan.storage.base import Transaction

LOCK_RETRY = SECOND // 50  # until a bucket that another worker locked may be free

# --- Slots and retry budgets of one worker ---


class SlotLimits(NamedTuple):
    """Slots of this worker for jobs that use dependencies, and for deliveries."""

    free: int  # free slots, without prefetched jobs
    per_dependency: int  # most slots for jobs that use the same dependency
    in_use: Mapping[str, int]  # taken slots by dependency
    used_by_all: AbstractSet[str] = frozenset()  # dependencies of every kind: may take all slots
    deliveries: int = 0  # slots reserved for deliveries, in addition to all others

    def bounds(self, lanes: Iterable[Lane]) -> dict[LimitKey, int]:
        """Return how many jobs with dependencies this worker may start.

        They are never claimed ahead of a free slot: they would start after the dependency went
        down. No dependency gets all slots: one that hangs would stop every other job.
        """
        used = {key for lane in lanes for key in lane.dependencies}
        if not used:
            return {}
        shared = used - self.used_by_all
        bounds = {("here", key): self.per_dependency - self.in_use.get(key, 0) for key in shared}
        return {SLOTS: self.free, **bounds}


class Demand(NamedTuple):
    """Free slots, and the due lanes whose jobs may fill them."""

    lanes: Sequence[LaneRef]
    slots: int
    slot_limits: SlotLimits | None

    def bounds(self) -> dict[LimitKey, int]:
        """Return how many jobs with dependencies may fill the slots; empty: any number."""
        if self.slot_limits is None:
            return {}
        return self.slot_limits.bounds(Lane.parse(lane) for lane, _ in self.lanes)


def split_demand(
    view: LaneView, free: int, reserved: int, slots: SlotLimits | None
) -> list[Demand]:
    """Return the demand for jobs, and for deliveries if slots are reserved for them."""
    demands = [Demand(view.due, free, slots)]
    if slots is not None:
        deliveries = view.due_in(DELIVERY_QUEUE)
        others = [lane for lane in view.due if lane not in deliveries]
        per_endpoint = ENDPOINT_BREAKER.max_concurrency or reserved
        reserved_slots = slots._replace(free=reserved, per_dependency=per_endpoint)
        demands = [Demand(others, free, slots), Demand(deliveries, reserved, reserved_slots)]
    return [demand for demand in demands if demand.lanes and demand.slots > 0]


def retry_bounds(
    lanes: Iterable[Lane], observer: DependencyObserver, now: Micros
) -> dict[LimitKey, int]:
    """Return how many retries the budget of each dependency allows."""
    used: set[str] = set()
    for lane in lanes:
        if lane.retry:
            used.update(lane.dependencies)
    bounds: dict[LimitKey, int] = {}
    for key in used:
        left = observer.retries_left(key, now)
        if left is not None:
            bounds["budget", key] = left
    return bounds


# --- Limits of the fleet ---

RAMP_TICK = 0.1  # seconds over which the starts of a ramp are spread


def limits_in_force(
    keys: AbstractSet[LimitKey],
    declared: Mapping[LimitKey, Limit],
    overrides: Mapping[LimitKey, Limit],
    guards: Mapping[str, GuardState],
) -> dict[LimitKey, Limit]:
    """Return the limits under these keys: declared, set by operators, and tightened by guards.

    Deliveries to one endpoint are limited too, so that one that hangs holds only some slots.
    """
    limits = {
        key: Limit(ENDPOINT_BREAKER.max_concurrency)
        for key in keys
        if key[1].startswith(ENDPOINT_PREFIX)
    }
    if declared or overrides:
        limits |= merge_limits(declared, overrides)
    for name, guard in guards.items():
        key = ("dependency", name)
        limit = _tighten_by_guard(limits.get(key, Limit()), guard)
        if limit != Limit():
            limits[key] = limit
    return {key: limit for key, limit in limits.items() if key in keys}


def _tighten_by_guard(limit: Limit, guard: GuardState) -> Limit:
    """Apply the rate of a ramp and a reduced concurrency."""
    rate = None if guard.ramp is None else guard.ramp.rate
    return tighten_limit(limit, guard.throttle.limit, rate, 1 + (rate or 0.0) * RAMP_TICK)


class LockedLimits:
    """Limits whose token buckets this claim has locked. Use only inside `tx.atomically()`."""

    def __init__(self, tx: Transaction, limits: Mapping[LimitKey, Limit], now: Micros) -> None:
        self._limits = limits
        self._now = now
        self._stored = {}
        self._buckets = {}
        locked = GuardQueries(tx).lock_token_buckets(list(limits)) if limits else {}
        for key, entry in locked.items():
            if entry is not None:
                bucket, at = entry
                limit = limits[key]
                self._stored[key] = bucket
                self._buckets[key] = refill_bucket(bucket, limit.rate or 0.0, at, limit.burst)
        running = count_running(GuardQueries(tx).count_running()) if limits else Counter()
        self.left = {
            key: self._count_left(key, limit, running[key]) for key, limit in limits.items()
        }

    def _count_left(self, key: LimitKey, limit: Limit, running: int) -> int:
        bucket = self._buckets.get(key)
        if bucket is None:  # another worker has locked it
            return 0
        return available_starts(limit, running, bucket)

    def spend(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """Take the tokens of claimed jobs from the buckets of their rate limits."""
        if not self._buckets:
            return
        started: Counter[LimitKey] = Counter()
        for lease in leases:
            started.update(limit_keys(lease.queue, lease.uses))
        spent = {}
        for key, bucket in self._buckets.items():
            has_rate = self._limits[key].rate is not None
            has_changed = started[key] or bucket.at < self._stored[key].at
            if has_rate and has_changed:
                spent[key] = bucket._replace(tokens=bucket.tokens - started[key])
        if spent:
            self._buckets |= spent
            GuardQueries(tx).update_token_buckets(spent)

    def next_start_at(self) -> Micros | None:
        """Return when a used-up rate allows more, or when a locked bucket may be free."""
        starts = []
        for key, bucket in self._buckets.items():
            start = next_start_at(self._limits[key], bucket)
            if start is not None:
                starts.append(start)
        if len(self._buckets) < len(self._limits):
            starts.append(self._now + LOCK_RETRY)
        return min(starts, default=None)

"""Remaining capacity under the limits that apply to due jobs, inside one claim.

Limits are exact in the whole fleet: a claim locks the token buckets of its limits until it is
written, so the next claim counts what this one took. A claim does not wait for a bucket that
another worker has locked; it starts nothing under that limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane, Limit, LimitKey
from mulligan.guards.lanes import Candidate
from mulligan.guards.limits import available_starts, next_start_at, refill_bucket
from mulligan.guards.queries import GuardQueries
from mulligan.storage.base import Transaction

LOCK_RETRY = SECOND // 50  # until a bucket that another worker locked may be free


class Capacity:
    """Remaining starts under each limit. Use only inside `tx.atomically()`."""

    def __init__(
        self,
        tx: Transaction,
        limits: Mapping[LimitKey, Limit],
        now: Micros,
        bounds: Mapping[LimitKey, int] | None = None,
    ) -> None:
        """Lock the token buckets of the limits.

        `bounds` are other numbers of starts that may run out, see `lane_limit_keys`.
        """
        self._limits = limits
        self._now = now
        self._stored = {}
        self._buckets = {}
        for key, locked in GuardQueries(tx).lock_token_buckets(list(limits)).items():
            if locked is not None:
                bucket, at = locked
                limit = limits[key]
                self._stored[key] = bucket
                self._buckets[key] = refill_bucket(bucket, limit.rate or 0.0, at, limit.burst)
        running = count_running(GuardQueries(tx).count_running()) if limits else Counter()
        self._left = {
            key: self._count_left(key, limit, running[key]) for key, limit in limits.items()
        }
        for key, bound in (bounds or {}).items():
            self._left[key] = max(0, bound)

    def _count_left(self, key: LimitKey, limit: Limit, running: int) -> int:
        bucket = self._buckets.get(key)
        if bucket is None:  # another worker has locked it
            return 0
        return available_starts(limit, running, bucket)

    def available(self, lane: str) -> int | None:
        """Return how many jobs of this lane may start, or None if nothing limits it."""
        keys = lane_limit_keys(Lane.parse(lane))
        return min((self._left[key] for key in keys if key in self._left), default=None)

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return, in order, the candidates that fit under all their limits."""
        left = dict(self._left)
        admitted = []
        for candidate in candidates:
            keys = [key for key in lane_limit_keys(Lane.parse(candidate[3])) if key in left]
            if all(left[key] > 0 for key in keys):
                admitted.append(candidate)
                for key in keys:
                    left[key] -= 1
        return admitted

    def spend(self, tx: Transaction, leases: Sequence[Lease]) -> None:
        """Take the tokens of claimed jobs from the buckets of their rate limits."""
        started = Counter(key for lease in leases for key in limit_keys(lease.queue, lease.uses))
        for key, bucket in self._buckets.items():
            if self._limits[key].rate is None:
                continue
            if started[key] or bucket.at < self._stored[key].at:
                spent = bucket._replace(tokens=bucket.tokens - started[key])
                self._buckets[key] = spent
                GuardQueries(tx).update_token_bucket(key, spent)

    def next_start_at(self) -> Micros | None:
        """Return when a used-up rate allows more, or when a locked bucket may be free."""
        starts = [next_start_at(self._limits[key], bucket) for key, bucket in self._buckets.items()]
        if len(self._buckets) < len(self._limits):
            starts.append(self._now + LOCK_RETRY)
        return min((start for start in starts if start is not None), default=None)


SLOTS: LimitKey = ("slots", "")


def lane_limit_keys(lane: Lane) -> list[LimitKey]:
    """Return the keys of everything that can run out for jobs of this lane.

    These are the limits of its queue and dependencies, this worker's slots for jobs with
    dependencies in total and for each dependency, and the retry budgets.
    """
    if not lane.uses:
        return lane.limit_keys
    dependencies = lane.uses.split(",")
    keys = [*lane.limit_keys, SLOTS]
    keys.extend(("here", key) for key in dependencies)
    if lane.retry:
        keys.extend(("budget", key) for key in dependencies)
    return keys


def count_running(running: Iterable[tuple[str, str, int]]) -> Counter[LimitKey]:
    """Return how many jobs run in each queue and use each dependency."""
    counts: Counter[LimitKey] = Counter()
    for queue, uses, count in running:
        counts.update(dict.fromkeys(limit_keys(queue, uses), count))
    return counts


def limit_keys(queue: str, uses: str) -> list[LimitKey]:
    return Lane(queue, "", uses, retry=False).limit_keys

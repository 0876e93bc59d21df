"""What the limits on the way of due jobs still allow, inside one claim.

Fleet-wide and exact: who claims under a limit holds its meter until the claim is written, so the next one counts
what this one took. Nobody waits for a meter: while it is in another hand there is no room under that limit. Jobs
without a limit on their way pay nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mulligan.core.attempt import Lease
from mulligan.core.job import SECOND, Guarded, Lane, Limit, Micros
from mulligan.guards.lanes import Candidate
from mulligan.guards.limits import next_start, refilled, room
from mulligan.storage.base import Transaction

SOON = SECOND // 50


class Capacity:
    """Only inside `unit.together()`."""

    def __init__(
        self,
        unit: Transaction,
        limits: Mapping[Guarded, Limit],
        now: Micros,
        bounds: Mapping[Guarded, int] | None = None,
    ) -> None:
        """`bounds`: what else there is only so much of (see `ways`)."""
        self._limits = limits
        self._now = now
        held = {key: found for key, found in unit.meters(list(limits)).items() if found is not None}
        self._stored = {key: meter for key, (meter, _) in held.items()}
        self._meters = {
            key: refilled(meter, limits[key].rate or 0.0, at, limits[key].burst)
            for key, (meter, at) in held.items()
        }
        running = running_under(unit.running()) if limits else Counter()
        self._left = {key: self._room(key, limit, running[key]) for key, limit in limits.items()}
        self._left |= {key: max(0, bound) for key, bound in (bounds or {}).items()}

    def _room(self, key: Guarded, limit: Limit, running: int) -> int:
        return room(limit, running, self._meters[key]) if key in self._meters else 0

    def of(self, lane: str) -> int | None:
        """How many of this lane may start; None: nothing limits it."""
        return min(
            (self._left[key] for key in ways(Lane.parse(lane)) if key in self._left), default=None
        )

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """In their order, each for which every limit on its way has room left."""
        left = dict(self._left)
        admitted = []
        for candidate in candidates:
            keys = [key for key in ways(Lane.parse(candidate[3])) if key in left]
            if all(left[key] > 0 for key in keys):
                admitted.append(candidate)
                left |= {key: left[key] - 1 for key in keys}
        return admitted

    def spend(self, unit: Transaction, leases: Sequence[Lease]) -> None:
        taken = Counter(key for lease in leases for key in guards_of(lease.queue, lease.uses))
        for key, meter in self._meters.items():
            left = meter._replace(tokens=meter.tokens - taken[key])
            if self._limits[key].rate is not None and (
                taken[key] or left.at < self._stored[key].at
            ):
                self._meters[key] = left
                unit.spend(key, left)

    def next_start(self) -> Micros | None:
        """When a rate that is used up allows more, or a meter in another hand may be free again."""
        starts = [next_start(self._limits[key], meter) for key, meter in self._meters.items()]
        if len(self._meters) < len(self._limits):
            starts.append(self._now + SOON)
        return min((start for start in starts if start is not None), default=None)


SLOTS: Guarded = ("slots", "")


def ways(lane: Lane) -> list[Guarded]:
    """All that may run out for a job of this lane: limits, the places of this worker for jobs that use something and
    for each of what they use, and the retries that a dependency bears.
    """
    if not lane.uses:
        return lane.guards
    used = lane.uses.split(",")
    budgets = [("budget", key) for key in used] if lane.retry else []
    return [*lane.guards, SLOTS, *(("here", key) for key in used), *budgets]


def running_under(running: Iterable[tuple[str, str, int]]) -> Counter[Guarded]:
    """How many run now under each queue and each dependency."""
    counts: Counter[Guarded] = Counter()
    for queue, uses, count in running:
        counts.update(dict.fromkeys(guards_of(queue, uses), count))
    return counts


def guards_of(queue: str, uses: str) -> list[Guarded]:
    return Lane(queue, "", uses, retry=False).guards

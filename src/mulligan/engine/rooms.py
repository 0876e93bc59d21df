"""What the limits on the way of due jobs still allow, inside one claim.

Fleet-wide and exact: who claims under a limit holds its meter until the claim is written, so the next one counts
what this one took. Jobs without a limit on their way pay nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mulligan.job import Guarded, Lane, Lease, Limit, Meter, Micros
from mulligan.policy.lanes import Candidate
from mulligan.policy.limits import next_start, refilled, room
from mulligan.store.base import Unit


class Rooms:
    """Only inside `unit.together()`."""

    def __init__(self, unit: Unit, limits: Mapping[Guarded, Limit], now: Micros) -> None:
        self._limits = limits
        self._meters = unit.meters(list(limits), Meter(0.0, 0))  # a new one has all the time in the world behind it
        for key, limit in limits.items():
            if limit.rate is not None:
                self._meters[key] = refilled(self._meters[key], limit.rate, now)
        running = running_under(unit.running())
        self._left = {key: room(limit, running[key], self._meters[key]) for key, limit in limits.items()}

    def of(self, lane: str) -> int | None:
        """How many of this lane may start; None: nothing limits it."""
        return min((self._left[key] for key in Lane.parse(lane).guards if key in self._left), default=None)

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """In their order, each for which every limit on its way has room left."""
        left = dict(self._left)
        admitted = []
        for candidate in candidates:
            keys = [key for key in Lane.parse(candidate[3]).guards if key in left]
            if all(left[key] > 0 for key in keys):
                admitted.append(candidate)
                left |= {key: left[key] - 1 for key in keys}
        return admitted

    def spend(self, unit: Unit, leases: Sequence[Lease]) -> None:
        taken = Counter(key for lease in leases for key in guards_of(lease.queue, lease.uses))
        for key, limit in self._limits.items():
            if limit.rate is not None and taken[key]:
                self._meters[key] = self._meters[key]._replace(tokens=self._meters[key].tokens - taken[key])
                unit.spend(key, self._meters[key])

    def next_start(self) -> Micros | None:
        """When a rate that is used up allows more."""
        starts = (next_start(limit, self._meters[key]) for key, limit in self._limits.items())
        return min((start for start in starts if start is not None), default=None)


def running_under(running: Iterable[tuple[str, str, int]]) -> Counter[Guarded]:
    """How many run now under each queue and each dependency."""
    counts: Counter[Guarded] = Counter()
    for queue, uses, count in running:
        counts.update(dict.fromkeys(guards_of(queue, uses), count))
    return counts


def guards_of(queue: str, uses: str) -> list[Guarded]:
    return Lane(queue, "", uses, retry=False).guards

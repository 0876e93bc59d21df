"""How many jobs to hold at once: as many as run side by side, and, while they are short, some more in line.

A no-op ends long before a commit does. With only `concurrency` jobs in hand the runner would wait for the
database between batches, so the line grows while every claim comes back full and jobs are short, up to what is done in
half a second, and is given up as soon as they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from mulligan.core.attempt import Ending, Lease
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.retries.policy import given

MOST_AHEAD = 4000
MOST_AT_ONCE = 2000  # in one claim: what was claimed before runs meanwhile
LINE_MS = 500  # of work for each place
LEAST_MS = 0.25  # of a job: what else it costs
SHORT_MS = 20
RARE = 100  # one in so many may be longer
FEW = 10  # one in so many, if no more than run side by side: a runner that is kept waiting makes all of those long
GROWTH = 4  # times from one turn to the next
FEW_TELLERS, SHARE = 3, 3


def tellers(concurrency: int) -> int:
    """Places for messages, beside all others: who is told must not wait until a long job has ended. Enough of them
    that one address that hangs leaves some to the rest.
    """
    return max(FEW_TELLERS, concurrency // SHARE)


class Prefetch:
    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lately: list[int] = []  # how long what ended last took
        self.ahead = 0

    def room(self, in_hand: int) -> int:
        return min(MOST_AT_ONCE, self._concurrency + self.ahead - in_hand)

    def hold_back(self) -> None:
        """No line for now: these jobs want runners of their own, are heavy, or did not move."""
        self.ahead = 0

    def turned(self, asked: int, got: int, durations_ms: Sequence[int]) -> None:
        """Learn from a turn, and from what has ended since the one before."""
        lately = self._with_those_before(durations_ms)
        if self._too_long(lately):
            self.ahead, self._lately = 0, []
        elif durations_ms and 0 < asked <= got:
            each = sum(lately) / len(lately) + LEAST_MS
            most = min(MOST_AHEAD, int(self._concurrency * LINE_MS / each))
            self.ahead = min(most, GROWTH * max(self._concurrency, self.ahead))

    def _with_those_before(self, durations_ms: Sequence[int]) -> Sequence[int]:
        """Few say little: one moment in which the runner stood still may be all that ended since the last turn."""
        enough = FEW * self._concurrency
        lately = (
            durations_ms
            if len(durations_ms) >= enough
            else [*self._lately, *durations_ms][-enough:]
        )
        self._lately = [*lately[-enough:]]
        return lately

    def _too_long(self, durations_ms: Sequence[int]) -> bool:
        """Is it jobs that are long, and not one moment?"""
        long = sum([took > SHORT_MS for took in durations_ms])
        return long * (FEW if long <= self._concurrency else RARE) > len(durations_ms)


# What one claim brought: what is asked of all its leases is asked of a column at once.


class LeaseBatch(list[Lease]):
    """Not changed any more, once somebody has looked at its columns."""

    @cached_property
    def columns(self) -> Any:
        """A lease in which each field is that of all of them."""
        return Lease._make(zip(*self, strict=True) if self else [()] * len(Lease._fields))

    @property
    def others(self) -> int:
        """How many are no messages."""
        return len(self) - int(self.columns.queue.count(DELIVERY_QUEUE))

    @property
    def weight(self) -> int:
        """Characters of payload."""
        return sum(map(len, self.columns.payload))

    def has_alone(self, lonely: frozenset[str]) -> bool:
        """Does one of them get a runner of its own?"""
        columns = self.columns
        if any(columns.alone) or not lonely.isdisjoint(columns.kind):
            return True
        return any(columns.settings) and any(is_alone(lease, lonely) for lease in self)

    def is_plain(self, lonely: frozenset[str], worker: str, kinds: Iterable[str]) -> bool:
        """All of them ours, of these kinds and in line, and none has taken a runner with it."""
        columns = self.columns
        return (
            {*columns.worker} == {worker}
            and {*columns.kind}.issubset(kinds)
            and not any(columns.losses)
            and not self.has_alone(lonely)
        )


def is_alone(lease: Lease, lonely: frozenset[str]) -> bool:
    """Does this attempt get a runner of its own? `lonely`: kinds of which all do."""
    if lease.settings is not None and "memory_limit" in given(lease.settings):
        return True
    return lease.alone or lease.kind in lonely


def durations(endings: Iterable[Ending], lonely: frozenset[str]) -> list[int]:
    """How many milliseconds those took that were in line with others; messages have places of their own."""
    return [
        took
        for lease, _, took, _ in endings
        if took is not None
        and lease.queue != DELIVERY_QUEUE
        and not (lease.alone or lease.kind in lonely)
        and (lease.settings is None or not is_alone(lease, lonely))
    ]

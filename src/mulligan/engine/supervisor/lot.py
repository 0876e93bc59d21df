"""What one claim brought: what is asked of all its leases is asked of a column at once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from mulligan.core.attempt import Ending, Lease
from mulligan.engine.kinds import DELIVERY_QUEUE
from mulligan.policy.escalate import given


class Lot(list[Lease]):
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

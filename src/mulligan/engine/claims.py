"""One turn at the store: write what ended, take what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mulligan.job import Lane, Lease, Memory, Micros
from mulligan.policy.lanes import open_lanes, pick
from mulligan.store.base import Unit

OVERASK = 3  # several workers choose from the same rows; those somebody else has locked are passed over


@dataclass
class Claimer:
    """What one worker may claim, and its memory of fairness between claims."""

    worker: str
    kinds: frozenset[str]
    queues: frozenset[str] | None = None
    credit: float = field(default=0.0)

    def claim(self, unit: Unit, free: int) -> Claimed:
        look = unit.look()
        known = [(Lane.parse(key), priority, run_at) for key, priority, run_at in look.lanes]
        lanes = open_lanes(((lane, p) for lane, p, _ in known), look.gates, look.now, self.queues, self.kinds)
        mine = set(lanes)
        ahead = [run_at for lane, p, run_at in known if (lane.key, p) in mine]
        due = [lane for lane, run_at in zip(lanes, ahead, strict=True) if run_at <= look.now]
        next_due = min((run_at for run_at in ahead if run_at > look.now), default=None)
        ends = [gate.until for gate in look.gates if gate.until is not None and gate.until > look.now]
        leases = self._take(unit, due, free) if due and free > 0 else []
        return Claimed(leases, look.now, min([*ends, next_due] if next_due else ends, default=None), bool(due))

    def _take(self, unit: Unit, lanes: Sequence[tuple[str, int]], free: int) -> list[Lease]:
        if len(lanes) == 1:
            return unit.take_due(self.worker, *lanes[0], free)
        wanted = free * OVERASK
        fresh = unit.candidates([lane for lane in lanes if lane[0].endswith("|0")], wanted)
        retries = unit.candidates([lane for lane in lanes if lane[0].endswith("|1")], wanted)
        chosen, _ = pick(fresh, retries, wanted, self.credit)
        leases = unit.take(self.worker, chosen, free)
        _, self.credit = pick(fresh, retries, len(leases), self.credit)  # only what was taken was earned
        return leases


class Claimed(NamedTuple):
    leases: list[Lease]
    now: Micros
    next_due: Micros | None  # when something not due yet becomes due, or a gate opens
    more: bool  # there were due lanes: there may be more than was taken


def memories(unit: Unit, leases: Sequence[Lease]) -> dict[str, Memory]:
    """Only jobs that ran before can have any."""
    return unit.memories([lease.id for lease in leases if lease.token > 1])

"""One turn at the store: write what ended, take what is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mulligan.engine.declared import declared_limits
from mulligan.engine.rooms import Rooms
from mulligan.job import SECOND, Guarded, Lane, Lease, Limit, Memory, Micros
from mulligan.policy.lanes import Candidate, in_turn, open_lanes, pick
from mulligan.policy.limits import effective, share_of
from mulligan.store.base import Look, Plain, Unit

OVERASK = 3  # several workers choose from the same rows; those somebody else has locked are passed over
MOST_CROWD = 2000  # candidates of fair or limited lanes in one claim
MOST_PLAIN = 50  # lanes that are worth a claim in one trip
DECLARED_TRUST = 5 * SECOND  # for which the limits that code declares are believed

Open = tuple[str, int]  # lane key, priority


@dataclass
class Claimer:
    """What one worker may claim, and its memory of fairness between claims."""

    worker: str
    kinds: frozenset[str]
    queues: frozenset[str] | None = None
    own: Mapping[Guarded, Limit] = field(default_factory=dict)  # what this worker's app declares: holds in any case
    credit: float = field(default=0.0)
    _served: dict[str, str] = field(default_factory=dict)  # fair queue → the share it gave to last
    _declared: Mapping[Guarded, Limit] = field(default_factory=dict)
    _declared_at: Micros = 0
    _plain: tuple[str, ...] = ()  # lanes that were due alone and no code limits, the last one first
    _plain_by: tuple[object, object] = ((), ())  # the kinds and declarations under which that was so
    _full: bool = False  # the last claim took all it wanted

    def claim(self, unit: Unit, free: int, *, hinted: bool = False) -> Claimed:
        look, leases = self._look(unit, free, hopeful=hinted or self._full)
        self._learn(unit, look.now)
        known = [(Lane.parse(key), priority, run_at) for key, priority, run_at in look.lanes]
        lanes = open_lanes(((lane, p) for lane, p, _ in known), look.gates, look.now, self.queues, self.kinds)
        mine = set(lanes)
        ahead = [run_at for lane, p, run_at in known if (lane.key, p) in mine]
        due = [lane for lane, run_at in zip(lanes, ahead, strict=True) if run_at <= look.now]
        wakes = [run_at for run_at in ahead if run_at > look.now]
        wakes += [gate.until for gate in look.gates if gate.until is not None and gate.until > look.now]
        later = None
        if due and free > 0 and not leases:
            leases, later = self._take(unit, due, free, look)
        wakes += [] if later is None else [later]
        self._full = 0 < free <= len(leases)
        return Claimed(leases, look.now, min(wakes, default=None), bool(due))

    def _look(self, unit: Unit, free: int, *, hopeful: bool) -> tuple[Look, list[Lease]]:
        """Taking is tried with the first look only where something is likely to be there: it costs more."""
        if not hopeful or free <= 0 or not self._plain or self._plain_by != (self.kinds, self._declared):
            return unit.look(), []
        plain = Plain(self._plain, self._declared_at - DECLARED_TRUST, self._declared_at + DECLARED_TRUST)
        return unit.look_and_take(self.worker, plain, free)

    def _know(self, lane: str) -> None:
        """It was due alone. What code limits is no plain lane, whatever an operator has said for now."""
        limited = effective(self._declared, {})
        if any(key in limited for key in Lane.parse(lane).guards):
            return
        by = (self.kinds, self._declared)
        others = [other for other in self._plain if other != lane] if self._plain_by == by else []
        self._plain, self._plain_by = (lane, *others[: MOST_PLAIN - 1]), by

    def _learn(self, unit: Unit, now: Micros) -> None:
        if abs(now - self._declared_at) > DECLARED_TRUST:
            self._declared = {**self.own, **declared_limits(unit, now)}
            self._declared_at = now

    def _take(self, unit: Unit, due: Sequence[Open], free: int, look: Look) -> tuple[list[Lease], Micros | None]:
        """The leases, and when a rate that stands in the way allows more."""
        on_the_way = {key for lane, _ in due for key in Lane.parse(lane).guards}
        limits = effective(self._declared, look.limits)
        limits = {key: limit for key, limit in limits.items() if key in on_the_way}
        if limits:
            with unit.together():
                return self._take_within(unit, due, free, Rooms(unit, limits, look.now))
        if len(due) == 1:
            self._know(due[0][0])
            return unit.take_due(self.worker, *due[0], free), None
        fresh, retries = self._candidates(unit, due, free * OVERASK)
        chosen, _ = pick(fresh, retries, free * OVERASK, self.credit)
        leases = unit.take(self.worker, chosen, free)
        self._remember(fresh, retries, leases)
        return leases, None

    def _take_within(
        self, unit: Unit, due: Sequence[Open], free: int, rooms: Rooms
    ) -> tuple[list[Lease], Micros | None]:
        roomy = [lane for lane in due if rooms.of(lane[0]) != 0]
        fresh, retries = self._candidates(unit, roomy, free * OVERASK, rooms)
        by_id = {candidate[2]: candidate for candidate in (*fresh, *retries)}
        chosen, _ = pick(fresh, retries, len(by_id), self.credit)
        admitted = rooms.admit(by_id[job_id] for job_id in chosen)
        leases = unit.take(self.worker, [candidate[2] for candidate in admitted], free)
        rooms.spend(unit, leases)
        self._remember(fresh, retries, leases)
        return leases, rooms.next_start()

    def _candidates(
        self, unit: Unit, due: Sequence[Open], wanted: int, rooms: Rooms | None = None
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Fresh work and retries, each in its order; in fair queues owners in turn."""
        groups = self._groups(due, wanted, rooms)
        return self._of(unit, groups, "|0", wanted), self._of(unit, groups, "|1", wanted)

    def _groups(self, due: Sequence[Open], wanted: int, rooms: Rooms | None) -> dict[int | None, list[Open]]:
        """Lanes by how many of each are wanted at most: a crowd in one must not hide the others. None: no matter."""
        shared = sum(1 for lane, _ in due if Lane.parse(lane).share)
        turns = max(2, min(wanted, MOST_CROWD // shared)) if shared else None
        groups: dict[int | None, list[Open]] = {}
        for lane in due:
            bounds = [turns if Lane.parse(lane[0]).share else None, None if rooms is None else rooms.of(lane[0])]
            said = [bound for bound in bounds if bound is not None]
            groups.setdefault(min(*said, wanted) if said else None, []).append(lane)
        return groups

    def _of(self, unit: Unit, groups: Mapping[int | None, Sequence[Open]], ending: str, wanted: int) -> list[Candidate]:
        found: list[Candidate] = []
        for each, lanes in groups.items():
            most = wanted if each is None else 2 * MOST_CROWD
            found += unit.candidates([lane for lane in lanes if lane[0].endswith(ending)], most, each=each)
        if list(groups) == [None]:
            return found
        return in_turn(sorted(found), self._served, share_of(self.worker))  # not all workers begin with the same

    def _remember(self, fresh: Sequence[Candidate], retries: Sequence[Candidate], leases: Sequence[Lease]) -> None:
        """Only what was taken was earned."""
        _, self.credit = pick(fresh, retries, len(leases), self.credit)
        lanes = {candidate[2]: candidate[3] for candidate in (*fresh, *retries)}
        taken = [Lane.parse(lanes[lease.id]) for lease in leases if lease.id in lanes]
        self._served |= {lane.queue: lane.share for lane in taken if lane.share}


class Claimed(NamedTuple):
    leases: list[Lease]
    now: Micros
    next_due: Micros | None  # when something not due yet becomes due, a gate opens or a rate allows more
    more: bool  # there were due lanes: there may be more than was taken


def memories(unit: Unit, leases: Sequence[Lease]) -> dict[str, Memory]:
    """Only jobs that ran before can have any."""
    return unit.memories([lease.id for lease in leases if lease.token > 1])

"""What may pass a closed breaker: one probe for the whole fleet; and how a hold whose time is over ends.

Each step holds the guard's row while it looks and takes, so that two workers never both do it; nobody waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mulligan.core.attempt import Lease
from mulligan.engine.watch import PROBE_KIND, Watch, remembered
from mulligan.event import EventType, NewEvent
from mulligan.ids import new_id
from mulligan.job import SECOND, Gate, GuardRow, Lane, Micros, NewJob
from mulligan.policy import breaker
from mulligan.policy.guard import Guard
from mulligan.policy.lanes import closed_keys
from mulligan.store.base import Unit

LOOKED_AT = breaker.MOST_TRIED + 10  # jobs of a lane: some of them have failed as probes already
PROBE_QUEUE = "mulligan.probes"
PROBE_LIMIT = 30 * SECOND
UNASKED = 60 * SECOND  # for which those who have a function may keep all others waiting

Open = tuple[str, int]  # lane key, priority


@dataclass
class Prober:
    worker: str
    watch: Watch
    timeouts: Mapping[str, Micros]  # of the kinds this worker knows

    def may(self, unit: Unit, guard: Guard, now: Micros) -> bool:
        """Is it time, and is no probe under way?"""
        probe = guard.probe
        return breaker.may_probe(guard, now) and (probe is None or not unit.runs(probe.job_id, probe.token))

    def take(self, unit: Unit, key: str, lanes: Sequence[Open], now: Micros) -> Lease | None:
        """`lanes`: those of it that wait for nothing else, or for others of which it is time to look too."""
        with unit.together():
            found = self._in_hand(unit, key, now)
            if found is None:
                return None
            if self._asks(key, remembered(found.body), now):
                return self._started(unit, self._function(unit, key), [found], now)
            return self._job(unit, found, lanes, now)

    def _asks(self, key: str, guard: Guard, now: Micros) -> bool:
        """A function, not a job; unless it is another app's, and nobody who has it comes by."""
        has, declared = key in self.watch.own and self.watch.own[key].probe, self.watch.terms(key).probe
        return has or (declared and now - guard.probe_at < UNASKED)

    def _in_hand(self, unit: Unit, key: str, now: Micros) -> GuardRow | None:
        """None: somebody else has it, or it is not time."""
        row = unit.guard(("dependency", key))
        return None if row is None or not self.may(unit, remembered(row.body), now) else row

    def _started(self, unit: Unit, lease: Lease | None, rows: Sequence[GuardRow], now: Micros) -> Lease | None:
        """It looks for all of these."""
        if lease is None:
            return None
        for row in rows:
            guard = remembered(row.body)
            self.watch.write(unit, row, guard, breaker.probing(guard, lease.id, lease.token, lease.kind, now), [])
            news = {"dependency": row.key, "kind": lease.kind}
            unit.write_events([NewEvent(EventType.DEPENDENCY_PROBING, job_id=lease.id, actor="breaker", data=news)])
        self.watch.probes[lease.fence] = tuple(row.key for row in rows)
        cuts = [breaker.cut(remembered(row.body), lease.kind, now) for row in rows]
        usual = lease.timeout or self.timeouts.get(lease.kind) or PROBE_LIMIT
        return lease._replace(timeout=min(usual, *cuts))

    def _function(self, unit: Unit, key: str) -> Lease | None:
        """Only a worker whose app has it can call it."""
        own = self.watch.own.get(key)
        if own is None or not own.probe:
            return None
        job = NewJob(
            id=new_id(), kind=PROBE_KIND, queue=PROBE_QUEUE, payload=json.dumps({"dependency": key}),
            max_retries=0, timeout=PROBE_LIMIT, deadline=10 * PROBE_LIMIT,
        )  # fmt: skip
        unit.insert([job], announce=True)
        return next(iter(unit.take(self.worker, [job.id], 1)), None)

    def _job(self, unit: Unit, row: GuardRow, lanes: Sequence[Open], now: Micros) -> Lease | None:
        """The first in order of the kind that is usually done soonest; one that failed before says less."""
        guard, held = remembered(row.body), closed_keys(unit.gates(), now)["dependency"]
        for lane in sorted(lanes, key=lambda lane: _rank(guard, lane, held)):
            shut = sorted(held.intersection(Lane.parse(lane[0]).uses.split(",")) - {row.key})
            others = [found for key in shut if (found := self._in_hand(unit, key, now)) is not None]
            if len(others) < len(shut):
                continue
            waiting = [found[2] for found in unit.candidates([lane], LOOKED_AT)]
            fresh = [job_id for job_id in waiting if job_id not in guard.tried]
            leases = unit.take(self.worker, fresh or waiting, 1)
            if leases:
                return self._started(unit, leases[0], [row, *others], now)
        return None


def _rank(guard: Guard, lane: Open, held: set[str]) -> tuple[int, bool, float, int, str]:
    """What uses another that is down too says least."""
    parsed = Lane.parse(lane[0])
    usual = guard.median(parsed.kind)
    shut = len(held.intersection(parsed.uses.split(",")))
    return shut, parsed.retry, float("inf") if usual is None else usual, lane[1], lane[0]


def let_go(unit: Unit, watch: Watch, gate: Gate, now: Micros) -> bool:
    """A hold until a certain time is over: what waits comes on a ramp. False: somebody else is at it."""
    with unit.together():
        row = unit.guard(("dependency", gate.key))
        if row is None:
            return False
        found = next((one for one in unit.gates() if one[:2] == gate[:2]), None)
        if found is None or found.until is None or found.until > now:
            return found is None
        before = remembered(row.body)
        changes: breaker.Changes = []
        after = breaker.let_go(before, found.until - found.since, watch.terms(gate.key), now, changes)
        watch.write(unit, row, before, after, changes)
    return True

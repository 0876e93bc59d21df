"""`app.kinds`: which kinds are held, for what, and what an operator says about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mulligan.engine.audit import gate_facts
from mulligan.engine.causes import remembered, write
from mulligan.engine.declared import recent_manifests
from mulligan.engine.kinds import OURS, checked_name
from mulligan.engine.queues import COUNT_CAP, waiting_by
from mulligan.engine.said import ended_at, moment_of
from mulligan.errors import Moment, NotFound, StoreUnavailable
from mulligan.event import EventType, NewEvent
from mulligan.job import Gate, GuardRow, Micros
from mulligan.policy import cause
from mulligan.policy.cause import Held
from mulligan.policy.lanes import is_closed
from mulligan.store.base import Store, Unit
from mulligan.store.counting import DepthRow

PATIENCE = 100  # times
PAUSE = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class KindStatus:
    """A kind at one moment. Counts stop at 10,000."""

    name: str
    held: bool
    since: datetime | None
    until: datetime | None  # when it is released by itself
    reason: str
    actor: str
    ready: int  # due, and would run if it were not held
    later: int  # scheduled, or waiting before a retry
    code: str  # of the cause, if a guard holds it; and so on
    message: str
    fingerprint: str
    job: str  # one that died of it
    jobs: int
    owners: int


KindList = list[KindStatus]  # the classes below have a method called list


class Kinds:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> KindList:
        """Every kind that a waiting job, an app or a person names, those that are held first."""
        with self._open().read() as unit:
            found = [kind for kind in _picture(unit) if kind.held or not kind.name.startswith(OURS)]
        return sorted(found, key=lambda kind: (not kind.held, kind.name))

    def get(self, name: str) -> KindStatus:
        for found in self.list():
            if found.name == name:
                return found
        message = f"no kind {name!r}: no job of it waits, and no app or person names it"
        raise NotFound(message)

    # -- by hand ----------------------------------------------------------------------------------
    def hold(self, name: str, *, until: Moment | None = None, reason: str = "") -> KindStatus:
        """Start nothing of it until then, or until somebody releases it; what runs goes on."""

        def change(unit: Unit, row: GuardRow, now: Micros) -> None:
            end = ended_at("until", until, now)
            before = gate_facts(unit, "kind", name, now)
            self._forget(unit, row, reason or "a person holds it")
            unit.open_gate("kind", name)  # the last word counts, also when it is shorter
            unit.close_gate(Gate("kind", name, now, end, reason, self._actor))
            seen = {"before": before, "after": gate_facts(unit, "kind", name, now)}
            self._tell(unit, EventType.KIND_HELD, kind=name, until=end, reason=reason, **seen)

        self._changed(name, change)
        return self.get(name)

    def release(self, name: str, *, reason: str = "") -> KindStatus:
        """Let its jobs go. What they died of before is forgotten. A kind that is not held stays as it is."""

        def change(unit: Unit, row: GuardRow, now: Micros) -> None:
            before = gate_facts(unit, "kind", name, now)
            self._forget(unit, row, reason)
            if unit.open_gate("kind", name):
                self._tell(
                    unit, EventType.KIND_RELEASED, kind=name, reason=reason, before=before, after={"held": False}
                )

        self._changed(name, change)
        return self._known(name)

    def _forget(self, unit: Unit, row: GuardRow, reason: str) -> None:
        memory = remembered(row.body)
        unit.take_tallies(("kind", row.key))
        write(unit, row, cause.released(memory))
        if memory.held is not None:
            said = {"kind": row.key, "fingerprint": memory.held.fingerprint, "code": memory.held.code}
            seen = {"before": {"alert": "fired"}, "after": {"alert": "resolved"}}
            self._tell(unit, EventType.ALERT_RESOLVED, **said, reason=reason, **seen)

    def _changed(self, name: str, change: Callable[[Unit, GuardRow, Micros], None]) -> None:
        checked_name("kind", name)
        store = self._open()
        for _ in range(PATIENCE):
            with store.begin() as unit:
                row = unit.guard(("kind", name))
                if row is not None:
                    change(unit, row, unit.now())
                    return
            time.sleep(PAUSE)  # a worker has it in hand, for the length of a turn
        message = f"kind {name!r} is busy; try again"
        raise StoreUnavailable(message)

    def _known(self, name: str) -> KindStatus:
        """Also one that nothing names any more."""
        try:
            return self.get(name)
        except NotFound:
            return _status(name, None, None, 0, 0)

    def _tell(self, unit: Unit, event: EventType, **data: Any) -> None:
        news = {key: value for key, value in data.items() if value not in (None, "")}
        unit.write_events([NewEvent(event, actor=self._actor, data=news)])


class AsyncKinds:
    """The same, awaitable: each call on a thread."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    async def list(self) -> KindList:
        return await asyncio.to_thread(self._kinds.list)

    async def get(self, name: str) -> KindStatus:
        return await asyncio.to_thread(self._kinds.get, name)

    async def hold(self, name: str, *, until: Moment | None = None, reason: str = "") -> KindStatus:
        return await asyncio.to_thread(self._kinds.hold, name, until=until, reason=reason)

    async def release(self, name: str, *, reason: str = "") -> KindStatus:
        return await asyncio.to_thread(self._kinds.release, name, reason=reason)


# -- the picture ------------------------------------------------------------------------------------
def _picture(unit: Unit) -> KindList:
    look = unit.look()
    gates = {gate.key: gate for gate in look.gates if gate.scope == "kind" and is_closed(gate, look.now)}
    causes = {row.key: remembered(row.body).held for row in unit.guards() if row.scope == "kind"} if gates else {}
    waiting = waiting_by(unit, look.now, lambda lane: lane.kind)
    known = {kind for manifest in recent_manifests(unit, look.now) for kind in manifest.kinds}
    names = {*gates, *waiting, *(kind for kind in known if not kind.startswith(cause.OURS))}
    return [_status(name, gates.get(name), causes.get(name), *_depth(waiting.get(name, ()))) for name in names]


def _status(name: str, gate: Gate | None, held: Held | None, ready: int, later: int) -> KindStatus:
    why = held or Held("", "", "", "", 0, 0, 0, "")
    return KindStatus(
        name=name,
        held=gate is not None,
        since=moment_of(None if gate is None else gate.since),
        until=moment_of(None if gate is None else gate.until),
        reason="" if gate is None else gate.reason,
        actor="" if gate is None else gate.actor,
        ready=ready,
        later=later,
        code=why.code,
        message=why.message,
        fingerprint=why.fingerprint,
        job=why.job,
        jobs=why.jobs,
        owners=why.owners,
    )


def _depth(rows: Sequence[DepthRow]) -> tuple[int, int]:
    return min(COUNT_CAP, sum(row.due for row in rows)), min(COUNT_CAP, sum(row.later for row in rows))

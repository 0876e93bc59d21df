"""Kinds whose jobs die of one cause: counted as they are settled, remembered by the fleet, held by one worker for all.

A flush in which nothing died costs nothing, and a success never does: it is asked for only where too many have died.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mulligan.config import Guards
from mulligan.core.attempt import Decision, Ended, Ending, Verb
from mulligan.event import EventType, NewEvent
from mulligan.job import Gate, GuardRow, Micros
from mulligan.policy import cause
from mulligan.policy.cause import DEFAULT, Death, Held, Memory, Success, Terms, read_deaths, read_memory
from mulligan.store.base import Unit

GUARD = "guard"  # the actor of what it does by itself
LOOKED_AT = 10_000  # successes of all kinds: the newest

Fence = tuple[str, int]

remembered = lru_cache(maxsize=512)(read_memory)


@dataclass
class Causes:
    """One per worker."""

    terms: Terms = DEFAULT

    def observe(
        self, unit: Unit, endings: Sequence[Ending], decisions: Sequence[Decision], now: Micros
    ) -> dict[Fence, str]:
        """Count who died; returns whom it spares, and the kind that is held: those died of what it is held for."""
        deaths = self._deaths(endings, decisions, now) if self.terms.jobs else {}
        if not deaths:
            return {}
        worked = {ending.lease.kind for ending in endings if ending.outcome.ended is Ended.RETURNED}
        spared: dict[Fence, str] = {}
        for kind, dead in sorted(deaths.items()):
            held = self.fold(unit, kind, list(dead.values()), now, worked=kind in worked)
            spared |= {fence: kind for fence, one in dead.items() if held and one.fingerprint == held.fingerprint}
        return spared

    def _deaths(
        self, endings: Sequence[Ending], decisions: Sequence[Decision], now: Micros
    ) -> dict[str, dict[Fence, Death]]:
        deaths: dict[str, dict[Fence, Death]] = {}
        for ending, decision in zip(endings, decisions, strict=True):
            one = cause.death(ending.lease, decision, now) if decision.verb is Verb.DIE else None
            if one is not None:
                deaths.setdefault(ending.lease.kind, {})[ending.lease.fence] = one
        return deaths

    def fold(self, unit: Unit, kind: str, dead: Sequence[Death], now: Micros, *, worked: bool = False) -> Held | None:
        """What is remembered of it, with these; returns for what it is held."""
        name = ("kind", kind)
        row = unit.guard(name)
        if row is None:  # in another hand: who has it, or the next one, takes these along
            if dead:
                unit.append_tally(name, json.dumps(dead, separators=(",", ":")))
            return None
        told = [one for body in unit.take_tallies(name) for one in read_deaths(body)]
        before = remembered(row.body)
        if before.held is not None:
            return before.held
        after = cause.counted(before, [*told, *dead], self.terms, now)
        if worked or cause.suspicious(after, self.terms, now):
            success = Success(now, now) if worked else Success(*unit.last_success(kind, LOOKED_AT))
            after = cause.judged(after, success, self.terms, now)
        write(unit, row, after)
        if after.held is not None:
            _hold(unit, kind, after.held, now)
        return after.held

    def waits(self, unit: Unit) -> list[str]:
        """Kinds of which deaths were left behind."""
        return sorted(kind for scope, kind in unit.tallied() if scope == "kind") if self.terms.jobs else []

    def tend(self, unit: Unit, kinds: Iterable[str], now: Micros) -> None:
        for kind in kinds:
            self.fold(unit, kind, (), now)


def causes_of(guards: Guards) -> Causes:
    return Causes(Terms(guards.same_cause, guards.same_cause_owners, guards.same_cause_alone))


def write(unit: Unit, row: GuardRow, memory: Memory) -> None:
    """Claims never ask it: its gate says all they need."""
    unit.write_guard(row._replace(active=False, body=memory.to_json()))


def _hold(unit: Unit, kind: str, held: Held, now: Micros) -> None:
    unit.close_gate(Gate("kind", kind, now, None, held.reason, GUARD))
    alert: dict[str, Any] = {"kind": kind, **held._asdict()}
    unit.write_events([
        NewEvent(EventType.KIND_HELD, actor=GUARD, data={"kind": kind, "reason": held.reason}),
        NewEvent(EventType.ALERT_FIRED, job_id=held.job, actor=GUARD, data=alert),
    ])  # fmt: skip

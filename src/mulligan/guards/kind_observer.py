"""Observer of kinds: count dead jobs per cause, and hold a kind whose jobs die of one cause.

The rules are in `guards/kind_breaker.py`. A worker folds the deaths of a settlement into the state
of their kind, or stores them as a tally if another worker has locked it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mulligan.core.attempt import Decision, Ended, Ending, Verb
from mulligan.core.durations import Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, GuardRow
from mulligan.events.queries import EventQueries
from mulligan.guards import kind_breaker
from mulligan.guards.kind_breaker import (
    DEFAULT_KIND_BREAKER,
    KindBreakerConfig,
    KindDeath,
    KindHold,
    KindState,
    LastSuccess,
    parse_deaths,
    parse_kind_state,
)
from mulligan.guards.queries import GuardQueries
from mulligan.storage.base import Transaction

if TYPE_CHECKING:
    from mulligan.config import GuardSection

Fence = tuple[str, int]  # job id and token

KIND_BREAKER_ACTOR = "guard"  # actor of holds that a kind breaker makes itself
MAX_SUCCESSES_SEARCHED = 10_000  # the newest, of all kinds


load_kind_state = lru_cache(maxsize=512)(parse_kind_state)


@dataclass
class KindObserver:
    """Counts dead jobs per kind and cause, and holds a kind for the whole fleet."""

    config: KindBreakerConfig = DEFAULT_KIND_BREAKER

    def observe(
        self,
        tx: Transaction,
        endings: Sequence[Ending],
        decisions: Sequence[Decision],
        now: Micros,
    ) -> dict[Fence, str]:
        """Count dead jobs.

        Return, for each attempt that died of the cause for which its kind is held, the kind. Such
        a job is not charged.
        """
        if not self.config.jobs:
            return {}
        deaths = _count_deaths(endings, decisions, now)
        if not deaths:
            return {}
        worked = set()
        for ending in endings:
            if ending.outcome.ended is Ended.RETURNED:
                worked.add(ending.lease.kind)
        uncharged: dict[Fence, str] = {}
        for kind, by_fence in sorted(deaths.items()):
            held = self.fold(tx, kind, list(by_fence.values()), now, worked=kind in worked)
            if held is None:
                continue
            for fence, death in by_fence.items():
                if death.fingerprint == held.fingerprint:
                    uncharged[fence] = kind
        return uncharged

    def fold(
        self,
        tx: Transaction,
        kind: str,
        deaths: Sequence[KindDeath],
        now: Micros,
        *,
        worked: bool = False,
    ) -> KindHold | None:
        """Fold deaths into the state of a kind. Return for which cause it is held.

        If another worker has locked the state, the deaths are stored for it.
        """
        name = ("kind", kind)
        row = GuardQueries(tx).lock_guard(name)
        if row is None:
            if deaths:
                GuardQueries(tx).append_tally(name, json.dumps(deaths, separators=(",", ":")))
            return None
        stored: list[KindDeath] = []
        for tally in GuardQueries(tx).take_tallies(name):
            stored += parse_deaths(tally)
        before = load_kind_state(row.body)
        if before.held is not None:
            return before.held
        after = kind_breaker.add_deaths(before, [*stored, *deaths], self.config, now)
        if worked:
            after = kind_breaker.judge_streaks(after, LastSuccess(now, now), self.config, now)
        elif kind_breaker.is_suspicious(after, self.config, now):
            found = GuardQueries(tx).find_last_success(kind, MAX_SUCCESSES_SEARCHED)
            success = LastSuccess(*found)
            after = kind_breaker.judge_streaks(after, success, self.config, now)
        write_kind_state(tx, row, after)
        if after.held is not None:
            _hold_kind(tx, kind, after.held, now)
        return after.held

    def find_pending_kinds(self, tx: Transaction) -> list[str]:
        """Return kinds with stored deaths to fold."""
        if not self.config.jobs:
            return []
        tallied = GuardQueries(tx).list_tallied_guards()
        return sorted(kind for scope, kind in tallied if scope == "kind")

    def fold_pending(self, tx: Transaction, kinds: Iterable[str], now: Micros) -> None:
        for kind in kinds:
            self.fold(tx, kind, (), now)


def _count_deaths(
    endings: Sequence[Ending], decisions: Sequence[Decision], now: Micros
) -> dict[str, dict[Fence, KindDeath]]:
    """Return the deaths that count, by kind and attempt."""
    deaths: dict[str, dict[Fence, KindDeath]] = {}
    for ending, decision in zip(endings, decisions, strict=True):
        if decision.verb is not Verb.DIE:
            continue
        death = kind_breaker.count_death(ending.lease, decision, now)
        if death is not None:
            deaths.setdefault(ending.lease.kind, {})[ending.lease.fence] = death
    return deaths


def build_kind_observer(guards: GuardSection) -> KindObserver:
    """Build the observer from the settings `guards.same_cause*`."""
    config = KindBreakerConfig(guards.same_cause, guards.same_cause_owners, guards.same_cause_alone)
    return KindObserver(config)


def write_kind_state(tx: Transaction, row: GuardRow, state: KindState) -> None:
    """Write the state of a kind. Claims read its gate, and a trial that waits for a worker."""
    awaits_trial = state.trial is not None and not state.trial.claimed
    GuardQueries(tx).update_guard(row._replace(active=awaits_trial, body=state.to_json()))


def _hold_kind(tx: Transaction, kind: str, held: KindHold, now: Micros) -> None:
    actor = KIND_BREAKER_ACTOR
    GuardQueries(tx).close_gate(Gate("kind", kind, now, None, held.reason, actor))
    hold_data = {"kind": kind, "reason": held.reason}
    alert_data: dict[str, Any] = {"kind": kind, **held._asdict()}
    hold = NewEvent(EventType.KIND_HELD, actor=actor, data=hold_data)
    alert = NewEvent(EventType.ALERT_FIRED, job_id=held.job, actor=actor, data=alert_data)
    EventQueries(tx).write_events([hold, alert])

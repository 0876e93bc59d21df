"""What the end of a member means for its batch: decided and written in the transaction of that end.

Two last members may end at the same moment in two transactions, each of which sees the other still running. So whoever
ends a member first holds the batch's progress, and asks in a later statement whether any member is unfinished: the
second of the two then sees the first. Counters that are shown decide nothing.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mulligan.batches.rules import BatchCounts, counted, reckoned, recovered
from mulligan.core.attempt import Verb
from mulligan.core.errors import BatchExpired, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import moment
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, JobRow, Micros, NewJob, State
from mulligan.core.lifecycle import MOVES, TERMINAL
from mulligan.core.unique import unique_hash
from mulligan.storage.base import BatchRow, Store, Transaction

log = logging.getLogger("mulligan.upkeep")

STEP = 200
UPKEEP = "upkeep"
EVERY_STATE = ",".join(state.value for state in State)
ITS_OWN = ("id", "unique_key", "unique_hash", "unique_cover", "unique_for", "unique_exact", "batch_id", "must_have",
           "added_by")  # fmt: skip # of each generation's job, not of what is prepared
_OUTCOMES = {
    "ready": EventType.BATCH_READY,
    "partial": EventType.BATCH_PARTIAL,
    "failed": EventType.BATCH_FAILED,
}


# -- an end ---------------------------------------------------------------------------------------------
def complete(unit: Transaction, ids: Collection[str], *, wait: bool = True) -> None:
    """Members of these have ended. Without `wait` a batch in another hand is left to upkeep."""
    if not ids:
        return
    with unit.together():
        held = unit.lock_batches(sorted(ids), wait=wait)
        for row in unit.ended_batches(held) if held else ():
            _finish(unit, row)


def moved(unit: Transaction, row: JobRow, state: State, *, actor: str, reason: str) -> None:
    """A member was moved outside an attempt; `row` is what it was before."""
    if row.batch_id is None:
        return
    if _goes_on(row, state):
        reopen(unit, row.batch_id, actor=actor, reason=reason, news={"job": row.id})
    elif _ends(row, state):
        complete(unit, {row.batch_id})


def _goes_on(row: JobRow, state: State) -> bool:
    return state is State.QUEUED and row.state in TERMINAL


def _ends(row: JobRow, state: State) -> bool:
    return state in TERMINAL and row.state not in TERMINAL


def moved_all(
    unit: Transaction, moves: Iterable[tuple[JobRow, Verb]], *, actor: str, reason: str
) -> None:
    """Members of several batches were moved in one transaction: in the order of ids, as everybody does."""
    again: Counter[str] = Counter()
    ended: set[str] = set()
    for row, verb in moves:
        before = State(row.state)
        state = MOVES.get((verb, before), before)  # to ask what runs to stop is no move
        if row.batch_id is not None and _goes_on(row, state):
            again[row.batch_id] += 1
        elif row.batch_id is not None and _ends(row, state):
            ended.add(row.batch_id)
    for batch_id in sorted(again):
        reopen(unit, batch_id, actor=actor, reason=reason, news={"jobs": again[batch_id]})
    complete(unit, ended)


def _finish(unit: Transaction, row: BatchRow) -> None:
    counts = counts_of(unit, [row.id])[row.id]
    outcome = reckoned(counts, row.tolerance)
    if not unit.end_batch(row.id, row.generation, outcome.value):
        return
    tell_sealed(unit, row, actor=UPKEEP)
    finaliser = _finaliser(row)
    news = {"name": row.name, "generation": row.generation, **figures(counts)}
    if finaliser is not None:
        unit.insert([finaliser], announce=True)
        news["on_complete"] = finaliser.id
    unit.write_events([event(_OUTCOMES[outcome.value], row, data=news)])
    if recovered(row.previous, outcome):
        unit.write_events(
            [event(EventType.BATCH_RECOVERED, row, data={**news, "previous": row.previous})]
        )


def counts_of(unit: Transaction, ids: Iterable[str]) -> dict[str, BatchCounts]:
    """Summed from the members themselves."""
    members: dict[str, list[tuple[str, bool, int]]] = {batch_id: [] for batch_id in ids}
    for batch_id, state, must_have, count in unit.batch_counts(list(members)):
        members[batch_id].append((state, must_have, count))
    return {batch_id: counted(found) for batch_id, found in members.items()}


def figures(counts: BatchCounts) -> dict[str, int]:
    return {"total": counts.total, **asdict(counts)}


def event(
    kind: EventType, row: BatchRow, *, actor: str = "", data: Mapping[str, Any] | None = None
) -> NewEvent:
    return NewEvent(kind, batch_id=row.id, owner=row.owner, actor=actor, data=data or {})


def tell_sealed(unit: Transaction, row: BatchRow, *, actor: str, reason: str = "") -> None:
    """Once; a caller's transaction leaves it to whoever comes by."""
    if unit.told_batch(row.id):
        total = counts_of(unit, [row.id])[row.id].total
        news: dict[str, Any] = {
            "name": row.name,
            "total": total,
            "before": {"sealed": False},
            "after": {"sealed": True},
        }
        news |= {"reason": reason} if reason else {}
        unit.write_events([event(EventType.BATCH_SEALED, row, actor=actor, data=news)])


# -- on_complete ----------------------------------------------------------------------------------------
def prepared(job: NewJob) -> str:
    """What is stored of it, so that whoever ends the last member can enqueue it without the app."""
    return json.dumps({name: value for name, value in job._asdict().items() if name not in ITS_OWN})


def _finaliser(row: BatchRow) -> NewJob | None:
    if row.on_complete is None:
        return None
    known = {*NewJob._fields} - {*ITS_OWN}
    said = {name: value for name, value in json.loads(row.on_complete).items() if name in known}
    key = f"{row.id}:{row.generation}"
    return NewJob(
        **said,
        id=new_id(),
        unique_key=key,
        unique_hash=unique_hash(said["owner"], said["kind"], key),
        unique_cover=EVERY_STATE,
    )


# -- once more --------------------------------------------------------------------------------------------
def refuse_late(row: BatchRow | None, now: Micros) -> None:
    """After its time nothing of a batch begins again; a name without a batch has no time."""
    if row is None:
        return
    if row.leaving:
        message = (
            f"batch {row.id} ({row.name}) is being removed by retention; enqueue its work anew"
        )
        raise BatchExpired(message)
    if row.expired_at is not None or (row.expires_at is not None and row.expires_at <= now):
        message = (
            f"batch {row.id} ({row.name}) expired at {moment(row.expires_at or now)}: "
            "its members cannot be retried, and it takes no new ones"
        )
        raise BatchExpired(message)


def check_retry(unit: Transaction, row: JobRow) -> None:
    """Before anything is moved; what changes meanwhile is noticed by `reopen`."""
    if row.batch_id is not None:
        refuse_late(unit.batch(row.batch_id), unit.now())


def reopen(
    unit: Transaction, batch_id: str, *, actor: str, reason: str, news: Mapping[str, Any]
) -> None:
    """Members go on: a finished batch begins a generation. To be called once they are moved."""
    with unit.together():
        if not unit.lock_batches([batch_id]):
            return
        row = unit.batch(batch_id)
        refuse_late(row, unit.now())
        if row is None or row.outcome is None:
            return
        generation = unit.reopen_batch(batch_id)
        seen = {
            "before": {"outcome": row.outcome, "generation": row.generation},
            "after": {"outcome": None, "generation": generation},
        }
        told = {"name": row.name, "generation": generation, "reason": reason, **news, **seen}
        unit.write_events([event(EventType.BATCH_REOPENED, row, actor=actor, data=told)])


# -- upkeep -----------------------------------------------------------------------------------------------
def sweep(store: Store) -> int:
    """Seals of callers, ends that nobody noticed, and batches whose time has come. Returns how many were seen."""
    with store.read() as unit:
        waiting, late = unit.batches_waiting(STEP), unit.batches_late(STEP)
    for batch_id in waiting:
        _tried(store, batch_id, _notice)
    for row in late:
        _tried(store, row.id, _expire)
    return max(len(waiting), len(late))


def _tried(store: Store, batch_id: str, step: Callable[[Transaction, str], None]) -> None:
    """What is wrong with one batch stops no other."""
    try:
        with store.begin() as unit:
            step(unit, batch_id)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("batch %s: upkeep cannot see to it", batch_id)


def _notice(unit: Transaction, batch_id: str) -> None:
    if not unit.lock_batches([batch_id], wait=False):
        return
    row = unit.batch(batch_id)
    if row is not None and row.sealed_at is not None:
        tell_sealed(unit, row, actor=UPKEEP)
        complete(unit, [batch_id])


def _expire(unit: Transaction, batch_id: str) -> None:
    """One that nobody has sealed is sealed now: nothing may be added any more, so it must come to an end."""
    if unit.seal_batch(batch_id, wait=False):
        _notice(unit, batch_id)
    if not unit.lock_batches([batch_id], wait=False):
        return
    row = unit.batch(batch_id)
    if row is not None and unit.expire_batch(batch_id):
        news = {"name": row.name, "outcome": row.outcome, "expires_at": row.expires_at}
        unit.write_events([event(EventType.BATCH_EXPIRED, row, actor=UPKEEP, data=news)])


def prune(store: Store, keep: float) -> int:
    """Batches that ended long ago, with their members, in small steps; returns how many rows were removed."""
    removed = 0
    while removed < STEP:
        with store.begin() as unit:
            step = unit.prune_batch(unit.now() - round(keep * SECOND), STEP)
        if step is None or not step[1]:  # the next one is in somebody's hand
            break
        removed += sum(record.jobs for record in step[1])
    return removed

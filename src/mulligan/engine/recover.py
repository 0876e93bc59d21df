"""By hand: retry, cancel, release, discard. The same table of moves, the same events, with actor and reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mulligan.engine import batching
from mulligan.engine.declared import stored_queues
from mulligan.engine.settle import frees_key
from mulligan.engine.unique import unique_hash
from mulligan.errors import IllegalMove, NotFound, Refused
from mulligan.event import EventType, NewEvent
from mulligan.job import JobRow, Lane, State, Verb
from mulligan.policy import lifecycle
from mulligan.policy.escalate import given
from mulligan.policy.lifecycle import TERMINAL
from mulligan.policy.limits import share_of
from mulligan.store.base import Move, Store, Unit

ROUNDS = 3  # somebody else may move the job between our look and our move


def retry(
    store: Store, job_id: str, *, actor: str, reason: str = "", overrides: Mapping[str, Any] | None = None
) -> JobRow:
    """dead, parked or cancelled → queued, as a new generation; its history stays."""
    given = dict(overrides or {})
    max_retries = given.pop("max_retries", None)
    if given:
        message = f"cannot override {', '.join(sorted(given))}; possible: max_retries"
        raise Refused(message)
    return _by_hand(store, job_id, Verb.RETRY_BY_HAND, actor, reason, max_retries=max_retries)


def release(store: Store, job_id: str, *, actor: str, choice: str | None = None, reason: str = "") -> JobRow:
    """parked → queued, with what was decided."""
    with store.read() as unit:
        offered = json.loads(_found(unit, job_id).choices or "[]")
    if choice is not None and offered and choice not in offered:
        message = f"choice {choice!r} is not one of those the job offers: {', '.join(offered)}"
        raise Refused(message)
    return _by_hand(store, job_id, Verb.RELEASE, actor, reason, choice=choice)


def discard(store: Store, job_id: str, *, actor: str, reason: str) -> JobRow:
    """dead or parked → cancelled: nobody wants it any more."""
    if not reason.strip():
        message = "discard needs a reason: it is the last thing anybody will read about this job"
        raise Refused(message)
    return _by_hand(store, job_id, Verb.DISCARD, actor, reason)


def cancel(store: Store, job_id: str, *, actor: str, reason: str = "") -> JobRow:
    """queued or parked → cancelled at once; running → asked to stop, cancelled once its code has stopped."""
    for _ in range(ROUNDS):
        with store.begin() as unit:
            row = _found(unit, job_id)
            done = _ask(unit, row, actor, reason) if row.state == State.RUNNING else None
            if done is None:
                done = _moved(unit, row, Verb.CANCEL, actor, reason)
            if done:
                return _found(unit, job_id)
    raise IllegalMove(_quick(job_id))


def foretell(verb: Verb, state: State) -> str:
    """Where a move by hand would lead; refused as the move itself would be."""
    if verb is Verb.CANCEL and state is State.RUNNING:
        return "asked to stop"
    return str(lifecycle.move(verb, state))


def _ask(unit: Unit, row: JobRow, actor: str, reason: str) -> bool:
    """Ask a running attempt to stop; once asked is enough."""
    if row.cancel_reason is not None:
        return True
    asked = unit.request_cancel(row.id, row.token, reason or "cancelled by hand")
    if asked:
        unit.write_events([_event(EventType.JOB_CANCEL_REQUESTED, row, actor, {"reason": reason})])
    return asked


def _by_hand(
    store: Store,
    job_id: str,
    verb: Verb,
    actor: str,
    reason: str,
    *,
    choice: str | None = None,
    max_retries: int | None = None,
) -> JobRow:
    for _ in range(ROUNDS):
        with store.begin() as unit:
            row = _found(unit, job_id)
            if _moved(unit, row, verb, actor, reason, choice=choice, max_retries=max_retries):
                return _found(unit, job_id)
    raise IllegalMove(_quick(job_id))


def _moved(
    unit: Unit,
    row: JobRow,
    verb: Verb,
    actor: str,
    reason: str,
    *,
    choice: str | None = None,
    max_retries: int | None = None,
    alone: bool = True,
) -> bool:
    """One try; False: somebody was quicker. Not `alone`: the caller sees to its batch, once for all its members."""
    state = lifecycle.move(verb, State(row.state))
    if verb is Verb.RETRY_BY_HAND and alone:
        batching.check_retry(unit, row)
    done = unit.move(_move(unit, row, verb, state, reason, choice, max_retries))
    if done:
        news = _news(row, verb, reason, choice, max_retries)
        unit.write_events([_event(lifecycle.event_for(verb), row, actor, news)])
        if alone:
            batching.moved(unit, row, state, actor=actor, reason=reason)
    return done


def move_member(unit: Unit, row: JobRow, verb: Verb, *, actor: str, reason: str) -> bool:
    """One of several members of a batch, already held: a running one is asked to stop, others are moved."""
    if verb is Verb.CANCEL and row.state == State.RUNNING:
        return _ask(unit, row, actor, reason)
    return _moved(unit, row, verb, actor, reason, alone=False)


def _quick(job_id: str) -> str:
    return f"job {job_id} changed while we looked; look again"


def _move(
    unit: Unit, row: JobRow, verb: Verb, state: State, reason: str, choice: str | None, max_retries: int | None
) -> Move:
    again = verb is Verb.RETRY_BY_HAND
    queued = state is State.QUEUED
    home = given(row.settings).get("home") if again else None
    return Move(
        id=row.id,
        from_state=row.state,
        generation=row.generation,
        token=row.token,
        state=state.value,
        run_at=unit.now() if queued else None,
        new_generation=again,
        finished=state in TERMINAL,
        error=None,
        reason=reason or f"{verb} by hand",
        choice=choice,
        unique_hash=_key_of(row, state),
        max_retries=max_retries,
        queue=home,
        lane=None if home is None else _lane(unit, row, home),
    )


def _lane(unit: Unit, row: JobRow, queue: str) -> str:
    """Back in the queue it was enqueued for, from where an escalation had moved it."""
    spec = stored_queues(unit, unit.now()).get(queue)
    share = share_of(row.owner) if spec is not None and spec.fair else ""
    return Lane(queue, row.kind, row.uses, False, share).key


def _key_of(row: JobRow, state: State) -> str | None:
    """Back in a covered state the job wants its key again; another holder refuses the move."""
    if row.unique_key is None or frees_key(row.unique_cover, state):
        return None
    return row.unique_hash or unique_hash(row.owner, row.kind, row.unique_key)


def _news(row: JobRow, verb: Verb, reason: str, choice: str | None, max_retries: int | None) -> dict[str, Any]:
    news: dict[str, Any] = {"from": row.state, "reason": reason, "generation": row.generation}
    if verb is Verb.RETRY_BY_HAND:
        news["generation"] += 1
    news |= {name: said for name, said in (("choice", choice), ("max_retries", max_retries)) if said is not None}
    return news


def _event(kind: EventType, row: JobRow, actor: str, data: dict[str, Any]) -> NewEvent:
    return NewEvent(kind, job_id=row.id, batch_id=row.batch_id, owner=row.owner, actor=actor, data=data)


def _found(unit: Unit, job_id: str) -> JobRow:
    row = unit.get(job_id)
    if row is None:
        message = f"no job {job_id!r}"
        raise NotFound(message)
    return row

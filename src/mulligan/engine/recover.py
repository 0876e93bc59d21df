"""By hand: retry, cancel, release, discard, move. The same table of moves, the same events, with actor and reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mulligan.engine.declared import stored_queues
from mulligan.engine.kinds import QueueSpec
from mulligan.engine.settle import frees_key
from mulligan.engine.unique import unique_hash
from mulligan.errors import IllegalMove, NotFound, Refused
from mulligan.event import EventType, NewEvent
from mulligan.job import JobRow, Lane, Micros, State, Verb
from mulligan.policy import lifecycle
from mulligan.policy.escalate import given
from mulligan.policy.lifecycle import TERMINAL
from mulligan.policy.limits import share_of
from mulligan.store.base import Move, Store, Unit

NO_NEWS: Mapping[str, Any] = MappingProxyType({})
ROUNDS = 3  # somebody else may move the job between our look and our move


def retry(
    store: Store, job_id: str, *, actor: str, reason: str = "", overrides: Mapping[str, Any] | None = None
) -> JobRow:
    """dead, parked or cancelled → queued, as a new generation; its history stays."""
    said = checked_overrides(overrides)
    return _by_hand(store, job_id, Verb.RETRY_BY_HAND, actor, reason, max_retries=said.get("max_retries"))


def checked_overrides(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a retry may change about its job."""
    given = dict(overrides or {})
    unknown = sorted({*given} - {"max_retries"})
    if unknown:
        message = f"cannot override {', '.join(unknown)}; possible: max_retries"
        raise Refused(message)
    return given


def release(store: Store, job_id: str, *, actor: str, choice: str | None = None, reason: str = "") -> JobRow:
    """parked → queued, with what was decided."""
    with store.read() as unit:
        check_choice(_found(unit, job_id), choice)
    return _by_hand(store, job_id, Verb.RELEASE, actor, reason, choice=choice)


def check_choice(row: JobRow, choice: str | None) -> None:
    offered = json.loads(row.choices or "[]")
    if choice is not None and offered and choice not in offered:
        message = f"choice {choice!r} is not one of those the job offers: {', '.join(offered)}"
        raise Refused(message)


def must_say_why(reason: str) -> None:
    if not reason.strip():
        message = "discard needs a reason: it is the last thing anybody will read about this job"
        raise Refused(message)


def discard(store: Store, job_id: str, *, actor: str, reason: str) -> JobRow:
    """dead or parked → cancelled: nobody wants it any more."""
    must_say_why(reason)
    return _by_hand(store, job_id, Verb.DISCARD, actor, reason)


def cancel(store: Store, job_id: str, *, actor: str, reason: str = "") -> JobRow:
    """queued or parked → cancelled at once; running → asked to stop, cancelled once its code has stopped."""
    for _ in range(ROUNDS):
        with store.begin() as unit:
            if cancel_in(unit, _found(unit, job_id), actor, reason):
                return _found(unit, job_id)
    raise IllegalMove(_quick(job_id))


def cancel_in(unit: Unit, row: JobRow, actor: str, reason: str, *, news: Mapping[str, Any] = NO_NEWS) -> bool:
    """One try; False: somebody was quicker."""
    if row.state == State.RUNNING:
        return _ask(unit, row, actor, reason, news)
    return move_in(unit, row, Verb.CANCEL, actor, reason, news=news)


def foretell(verb: Verb, state: State) -> str:
    """Where a move by hand would lead; refused as the move itself would be."""
    if verb is Verb.CANCEL and state is State.RUNNING:
        return "asked to stop"
    return str(lifecycle.move(verb, state))


def _ask(unit: Unit, row: JobRow, actor: str, reason: str, news: Mapping[str, Any]) -> bool:
    """Ask a running attempt to stop; once asked is enough."""
    if row.cancel_reason is not None:
        return True
    asked = unit.request_cancel(row.id, row.token, reason or "cancelled by hand")
    if asked:
        unit.write_events([_event(EventType.JOB_CANCEL_REQUESTED, row, actor, {"reason": reason, **news})])
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
            if move_in(unit, row, verb, actor, reason, choice=choice, max_retries=max_retries):
                return _found(unit, job_id)
    raise IllegalMove(_quick(job_id))


def move_in(  # noqa: PLR0913 - who, why, which, and what else is said
    unit: Unit,
    row: JobRow,
    verb: Verb,
    actor: str,
    reason: str,
    *,
    choice: str | None = None,
    max_retries: int | None = None,
    behind: bool = False,
    now: Micros | None = None,
    news: Mapping[str, Any] = NO_NEWS,
) -> bool:
    """One try of one move by hand, with its event; False: somebody was quicker. Every such move comes through here.

    `behind`: into the lane of retries, so that fresh work goes first. `now`: where it was asked already. `news`: more
    for the event.
    """
    state = lifecycle.move(verb, State(row.state))
    move = _move(unit, row, verb, state, reason, choice, max_retries, now)
    done = unit.move(move._replace(sign="1") if behind else move)
    if done:
        told = {**_news(row, verb, reason, choice, max_retries), **news}
        unit.write_events([_event(lifecycle.event_for(verb), row, actor, told)])
    return done


def requeue_in(
    unit: Unit, row: JobRow, lane: Lane, actor: str, reason: str, *, news: Mapping[str, Any] = NO_NEWS
) -> bool:
    """queued → queued, in the queue of this lane; everything else about the job stays. False: somebody was quicker."""
    state = lifecycle.move(Verb.MOVE, State(row.state))
    move = _move(unit, row, Verb.MOVE, state, row.reason, row.choice, None, row.run_at)
    done = unit.move(move._replace(run_at=None, reason=row.reason, queue=lane.queue, lane=lane.key, sign=None))
    if done:
        told = {"reason": reason, "before": {"queue": row.queue}, "after": {"queue": lane.queue}, **news}
        unit.write_events([_event(lifecycle.event_for(Verb.MOVE), row, actor, {"from": row.state, **told})])
    return done


def _quick(job_id: str) -> str:
    return f"job {job_id} changed while we looked; look again"


def _move(
    unit: Unit,
    row: JobRow,
    verb: Verb,
    state: State,
    reason: str,
    choice: str | None,
    max_retries: int | None,
    now: Micros | None = None,
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
        run_at=(now or unit.now()) if queued else None,
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
    return lane_in(row, queue, stored_queues(unit, unit.now())).key


def lane_in(row: JobRow, queue: str, queues: Mapping[str, QueueSpec]) -> Lane:
    """Of this job in this queue, where owners may take turns."""
    spec = queues.get(queue)
    share = share_of(row.owner) if spec is not None and spec.fair else ""
    return Lane(queue, row.kind, row.uses, False, share)


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

"""By hand: retry, cancel, release, discard, move. The same table of moves, the same events, with actor and reason."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.batches import completion as batching
from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
from mulligan.core.durations import length_or_moment
from mulligan.core.errors import (
    ChoiceRefused,
    DeadlineFirst,
    IllegalMove,
    Moment,
    MulliganError,
    NotFound,
    ReasonMissing,
    StoreUnavailable,
    UniqueTaken,
)
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import moment
from mulligan.core.job import JobRow, Lane, Micros, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.jobs.preconditions import (
    UNCHANGED,
    Busy,
    JobOverrides,
    KnownKinds,
    amended,
    ask_app,
    homeward,
    key_after,
    kinds_of,
    refusals,
    spend,
    taken,
)
from mulligan.manifest.specs import Handler
from mulligan.storage.base import Move, Store, Transaction
from mulligan.storage.search_queries import ArgRow
from mulligan.worker.job_log import tell_move

ROUNDS = 3  # somebody else may move the job between our look and our move
PATIENCE = 100  # times
PAUSE = 0.02  # seconds
PAYLOAD = 1024 * 1024


class ManualRetry(NamedTuple):
    """What is said with a retry by hand beside the job, the actor and the reason."""

    overrides: Mapping[str, Any] | None = None
    at: Moment | None = None
    owner: str | None = None  # acts as this owner: sees only their jobs, and has their limit
    handlers: Mapping[str, Handler] = {}  # where the app is at hand
    allowed: str | None = None  # "20/h": how many an owner may retry by hand
    most: int = PAYLOAD  # bytes of a payload


class RetryPreview(NamedTuple):
    """What a retry by hand would do, and what stands in its way."""

    row: JobRow
    changes: Mapping[str, Mapping[str, Any]]
    refused: tuple[MulliganError, ...]


# -- retry --------------------------------------------------------------------------------------------
def retry(store: Store, job_id: str, *, actor: str, reason: str = "", **said: Any) -> JobRow:
    """dead, parked or cancelled → queued, as a new generation; its history stays. `said`: fields of a Wish."""
    wish = ManualRetry(**said)
    for _ in range(ROUNDS):
        row, known, now = _look(store, job_id, wish)
        lifecycle.move(Verb.RETRY_BY_HAND, State(row.state))
        change, at = amended(row, wish.overrides, known), _moment(wish.at, now)
        for error in _refused(store, row, change, at):
            raise error
        ask_app(row, change, known)
        done = _retried(store, row, change, at, actor, reason, wish)
        if done is not None:
            return done
    raise IllegalMove(_quick(job_id))


def preview(store: Store, job_id: str, **said: Any) -> RetryPreview:
    """The same checks, and nothing is written: what would change, and everything that is in the way."""
    wish = ManualRetry(**said)
    row, known, now = _look(store, job_id, wish)
    change, at, errors = UNCHANGED, None, []
    try:
        change, at = amended(row, wish.overrides, known), _moment(wish.at, now)
    except MulliganError as error:
        errors = [error]
    errors = [*_refused(store, row, change, at), *errors]
    try:
        if not errors:
            ask_app(row, change, known)
    except MulliganError as error:
        errors = [error]
    return RetryPreview(row, change.told, tuple(errors))


def _look(store: Store, job_id: str, wish: ManualRetry) -> tuple[JobRow, KnownKinds, Micros]:
    with store.read() as unit:
        row = _found(unit, job_id, wish.owner)
        return row, kinds_of(unit, row, wish.handlers, wish.most), unit.now()


def _moment(at: Moment | None, now: Micros) -> Micros | None:
    """One that has passed is now."""
    if at is None:
        return None
    span, fixed = length_or_moment("at", at)
    return max(now, now + span if span is not None else fixed or now)


def _refused(
    store: Store, row: JobRow, change: JobOverrides, at: Micros | None
) -> list[MulliganError]:
    with store.read() as unit:
        return list(refusals(unit, row, change, at))


class _TooLate(Exception):
    """Somebody was quicker; nothing of this transaction may stay."""


def _retried(
    store: Store,
    row: JobRow,
    change: JobOverrides,
    at: Micros | None,
    actor: str,
    reason: str,
    wish: ManualRetry,
) -> JobRow | None:
    """None: somebody was quicker."""
    for _ in range(PATIENCE):
        try:
            with store.begin() as unit:
                if wish.owner is not None and wish.allowed:
                    spend(unit, wish.owner, wish.allowed)
                if not move_in(unit, row, Verb.RETRY_BY_HAND, actor, reason, change=change, at=at):
                    raise _TooLate
                done = _found(unit, row.id)
                _in_time(done)
            tell_move(Verb.RETRY_BY_HAND, done, actor, reason)
            return done
        except _TooLate:
            return None
        except Busy:
            time.sleep(PAUSE)
    message = "others of this owner retry at this very moment; try again"
    raise StoreUnavailable(message)


def _in_time(row: JobRow) -> None:
    if row.deadline_at is not None and row.run_at >= row.deadline_at:
        message = (
            f"job {row.id} could not run at {moment(row.run_at)}: its deadline, which begins anew with the retry, "
            f"passes at {moment(row.deadline_at)}"
        )
        raise DeadlineFirst(message)


# -- the others ---------------------------------------------------------------------------------------
def release(
    store: Store,
    job_id: str,
    *,
    actor: str,
    choice: str | None = None,
    reason: str = "",
    owner: str | None = None,
) -> JobRow:
    """parked → queued, with what was decided."""
    with store.read() as unit:
        check_choice(_found(unit, job_id, owner), choice)
    return _by_hand(store, job_id, Verb.RELEASE, actor, reason, owner, choice=choice)


def check_choice(row: JobRow, choice: str | None) -> None:
    offered = json.loads(row.choices or "[]")
    if choice is not None and offered and choice not in offered:
        message = f"choice {choice!r} is not one of those the job offers: {', '.join(offered)}"
        raise ChoiceRefused(message)


def discard(
    store: Store, job_id: str, *, actor: str, reason: str, owner: str | None = None
) -> JobRow:
    """dead or parked → cancelled: nobody wants it any more."""
    must_say_why(reason)
    return _by_hand(store, job_id, Verb.DISCARD, actor, reason, owner)


def must_say_why(reason: str) -> None:
    if not reason.strip():
        message = "discard needs a reason: it is the last thing anybody will read about this job"
        raise ReasonMissing(message)


def cancel(
    store: Store, job_id: str, *, actor: str, reason: str = "", owner: str | None = None
) -> JobRow:
    """queued or parked → cancelled at once; running → asked to stop, cancelled once its code has stopped."""
    return _by_hand(store, job_id, Verb.CANCEL, actor, reason, owner)


def foretell(verb: Verb, state: State) -> str:
    """Where a move by hand would lead; refused as the move itself would be."""
    if verb is Verb.CANCEL and state is State.RUNNING:
        return "asked to stop"
    return str(lifecycle.move(verb, state))


def _by_hand(
    store: Store,
    job_id: str,
    verb: Verb,
    actor: str,
    reason: str,
    owner: str | None,
    *,
    choice: str | None = None,
) -> JobRow:
    for _ in range(ROUNDS):
        with store.begin() as unit:
            row = _found(unit, job_id, owner)
            done = (
                _found(unit, job_id)
                if move_in(unit, row, verb, actor, reason, choice=choice)
                else None
            )
        if done is not None:
            tell_move(verb, done, actor, reason)
            return done
    raise IllegalMove(_quick(job_id))


def _ask(
    unit: Transaction, row: JobRow, actor: str, reason: str, data: Mapping[str, Any] | None
) -> bool:
    """Ask a running attempt to stop; once asked is enough."""
    if row.cancel_reason is not None:
        return True
    asked = unit.request_cancel(row.id, row.token, reason or "cancelled by hand")
    if asked:
        seen = {
            "before": {"state": row.state, "stopping": False},
            "after": {"state": row.state, "stopping": True},
        }
        unit.write_events(
            [
                _event(
                    EventType.JOB_CANCEL_REQUESTED,
                    row,
                    actor,
                    {"reason": reason, **seen, **(data or {})},
                )
            ]
        )
    return asked


# -- the one door of moves by hand --------------------------------------------------------------------
def move_in(  # noqa: PLR0913 - the one seam of all who move by hand
    unit: Transaction,
    row: JobRow,
    verb: Verb,
    actor: str,
    reason: str,
    *,
    choice: str | None = None,
    change: JobOverrides = UNCHANGED,
    at: Micros | None = None,
    data: Mapping[str, Any] | None = None,
    behind: bool = False,
    alone: bool = True,
) -> bool:
    """One move with its event, in the caller's transaction; False: somebody was quicker. To cancel what runs is to ask.

    `data`: more to tell. `behind`: into the lane of retries, so that fresh work goes first. Not `alone`: the caller
    sees to the batch of the job, once for all its members.
    """
    if verb is Verb.CANCEL and row.state == State.RUNNING:
        return _ask(unit, row, actor, reason, data)
    state = lifecycle.move(verb, State(row.state))
    if verb is Verb.RETRY_BY_HAND and alone:
        batching.check_retry(unit, row)
    if change == UNCHANGED and verb is Verb.RETRY_BY_HAND:
        change = homeward(unit, row)
    move = _move(unit, row, verb, state, reason, choice, change, at)
    done = _moved(unit, row, change, move._replace(sign="1") if behind else move)
    if done:
        _index(unit, row, change)
        news = {**_news(row, move, reason, choice, change, at), **(data or {})}
        unit.write_events([_event(lifecycle.event_for(verb), row, actor, news)])
        if alone:
            batching.moved(unit, row, state, actor=actor, reason=reason)
    return done


def _moved(unit: Transaction, row: JobRow, change: JobOverrides, move: Move) -> bool:
    try:
        return unit.move(move)
    except UniqueTaken as clash:
        assert move.unique_hash is not None  # noqa: S101 - only a wanted key can be taken
        if unit.free_key(move.unique_hash):  # its time is over
            return unit.move(move)
        raise UniqueTaken(taken(row, change, unit.key_holder(move.unique_hash))) from clash


def _index(unit: Transaction, row: JobRow, change: JobOverrides) -> None:
    """What filters find it by follows its payload."""
    if change.args is not None:
        unit.forget_args([row.id])
        unit.write_args([ArgRow(row.id, row.kind, name, value) for name, value in change.args])


def requeue_in(
    unit: Transaction,
    row: JobRow,
    lane: Lane,
    actor: str,
    reason: str,
    *,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """queued → queued, in the queue of this lane; everything else about the job stays. False: somebody was quicker."""
    state = lifecycle.move(Verb.MOVE, State(row.state))
    move = _move(unit, row, Verb.MOVE, state, row.reason, row.choice, at=row.run_at)
    done = unit.move(
        move._replace(run_at=None, reason=row.reason, queue=lane.queue, lane=lane.key, sign=None)
    )
    if done:
        told = {
            "reason": reason,
            "before": {"queue": row.queue},
            "after": {"queue": lane.queue},
            **(data or {}),
        }
        unit.write_events(
            [_event(lifecycle.event_for(Verb.MOVE), row, actor, {"from": row.state, **told})]
        )
    return done


def _quick(job_id: str) -> str:
    return f"job {job_id} changed while we looked; look again"


def _move(
    unit: Transaction,
    row: JobRow,
    verb: Verb,
    state: State,
    reason: str,
    choice: str | None = None,
    change: JobOverrides = UNCHANGED,
    at: Micros | None = None,
) -> Move:
    queued = state is State.QUEUED
    return Move(
        id=row.id,
        from_state=row.state,
        generation=row.generation,
        token=row.token,
        state=state.value,
        run_at=(at or unit.now()) if queued else None,
        new_generation=verb is Verb.RETRY_BY_HAND,
        finished=state in TERMINAL,
        error=None,
        reason=reason or f"{verb} by hand",
        choice=choice,
        unique_hash=key_after(row, state, change.unique_key),
        **change.columns,
    )


def _news(
    row: JobRow,
    move: Move,
    reason: str,
    choice: str | None,
    change: JobOverrides,
    at: Micros | None,
) -> dict[str, Any]:
    generation = row.generation + move.new_generation
    seen = {
        "before": {"state": row.state, "generation": row.generation},
        "after": {"state": move.state, "generation": generation},
    }
    news: dict[str, Any] = {"kind": row.kind, "queue": row.queue}
    news |= {"from": row.state, "reason": reason, "generation": generation}
    said = {
        "choice": choice,
        "max_retries": change.max_retries,
        "run_at": at,
        "changes": dict(change.told),
    }
    news |= {name: value for name, value in said.items() if value not in (None, {})}
    return {**news, **seen}


def _event(kind: EventType, row: JobRow, actor: str, data: dict[str, Any]) -> NewEvent:
    told = {"kind": row.kind, "queue": row.queue, **data}
    return NewEvent(
        kind, job_id=row.id, batch_id=row.batch_id, owner=row.owner, actor=actor, data=told
    )


def _found(unit: Transaction, job_id: str, owner: str | None = None) -> JobRow:
    """Another owner's job is answered exactly like one that does not exist."""
    row = unit.get(job_id)
    if row is None or owner not in (None, row.owner):
        message = f"no job {job_id!r}"
        raise NotFound(message)
    return row

"""Manual actions on jobs: retry, cancel, release, discard, undiscard and move to another queue.

They use the lifecycle table and events of every other move, with an actor and a reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.batches import completion
from mulligan.core import lifecycle
from mulligan.core.attempt import Ground, Verb
from mulligan.core.durations import Micros, check_duration_or_time
from mulligan.core.errors import (
    ChoiceRefused,
    DeadlineFirst,
    DurationOrTime,
    IllegalMove,
    MulliganError,
    ReasonMissing,
    StoreUnavailable,
    UniqueTaken,
    unknown_job,
)
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import format_time
from mulligan.core.job import ArgRow, JobRow, Lane, State
from mulligan.core.lifecycle import TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.guards.gate_status import check_declared_queues
from mulligan.jobs.preconditions import (
    UNCHANGED,
    JobOverrides,
    KindInfo,
    MeterBusy,
    apply_overrides,
    check_can_retry,
    describe_taken_key,
    find_refusals,
    load_kind_info,
    named_queues,
    return_to_home_queue,
    spend_manual_retry,
    unique_hash_after,
)
from mulligan.jobs.queries import JobQueries, Move, SearchQueries
from mulligan.manifest.specs import Handler
from mulligan.retries.undo import (
    UndoCause,
    begin_undo,
    cause_of_move,
    describe_undoing,
    failure_of_dead,
    has_undo,
    keep_undo_mark,
    read_cause,
)
from mulligan.steps.queries import StepQueries
from mulligan.steps.repair import StepChanges, apply_step_changes, resolve_doubt
from mulligan.storage.base import Store, Transaction
from mulligan.worker.job_log import log_manual_action

MAX_TRIES = 3  # Another transaction may move the job between our read and our move.
# What a discard removes from the row of a job. Its event keeps it under this name for `undiscard`.
UNDO = "undo"
RESTORED = ("state", "choices", "finished_at", "error", "reason")
RESTORED_BY_MOVE = ("error", "reason", "died_code", "died_class", "died_group")
MAX_METER_TRIES = 100
METER_PAUSE = 0.02  # seconds
DEFAULT_MAX_PAYLOAD = 1024 * 1024  # bytes


class ManualRetry(NamedTuple):
    """Options of a manual retry besides job, actor and reason."""

    overrides: Mapping[str, Any] | None = None
    at: DurationOrTime | None = None
    # Act as this owner: see only their jobs, use declared queues, obey their rate limit.
    owner: str | None = None
    handlers: Mapping[str, Handler] = {}  # empty where the app is not loaded
    rate_limit: str | None = None  # manual retries that an owner may make, such as "20/h"
    max_payload: int = DEFAULT_MAX_PAYLOAD


DEFAULT_RETRY = ManualRetry()


class RetryPreview(NamedTuple):
    """Changes that a manual retry would make, and every reason to refuse it."""

    row: JobRow
    changes: Mapping[str, Mapping[str, Any]]
    refused: tuple[MulliganError, ...]
    warnings: tuple[str, ...] = ()


class _RetryTarget(NamedTuple):
    """The job to retry and what is known about its kind, read in one transaction."""

    row: JobRow
    kind: KindInfo
    now: Micros


# --- Retry ---
def retry(
    store: Store,
    job_id: str,
    *,
    actor: str,
    reason: str = "",
    request: ManualRetry = DEFAULT_RETRY,
) -> JobRow:
    """Queue a dead, parked or cancelled job as a new generation. Its history stays."""
    for _ in range(MAX_TRIES):
        target = _load_target(store, job_id, request)
        row = target.row
        lifecycle.next_state(Verb.RETRY_BY_HAND, State(row.state))
        overrides = _check_overrides(store, target, request)
        run_at = _resolve_time(request.at, target.now)
        for error in _find_refusals(store, row, overrides, run_at):
            raise error
        check_can_retry(row, overrides, target.kind)
        retried = _retry_once(store, row, overrides, run_at, actor, reason, request)
        if retried is not None:
            return retried
    raise IllegalMove(_changed_meanwhile(job_id))


def preview_retry(store: Store, job_id: str, request: ManualRetry = DEFAULT_RETRY) -> RetryPreview:
    """Run all checks of `retry` without writing: what would change, and all that refuses it."""
    target = _load_target(store, job_id, request)
    row = target.row
    overrides = UNCHANGED
    run_at = None
    errors: list[MulliganError] = []
    try:
        overrides = _check_overrides(store, target, request)
        run_at = _resolve_time(request.at, target.now)
    except MulliganError as error:
        errors.append(error)
    errors = [*_find_refusals(store, row, overrides, run_at), *errors]
    if not errors:
        try:
            check_can_retry(row, overrides, target.kind)
        except MulliganError as error:
            errors.append(error)
    return RetryPreview(row, overrides.changes, tuple(errors), tuple(_warnings(row, target.kind)))


def _warnings(row: JobRow, kind: KindInfo) -> Iterator[str]:
    """Return what a person should check before a manual retry."""
    if kind.spec is not None and kind.spec.once and row.token:
        times = "once" if row.token == 1 else f"{row.token} times"
        yield (
            f"kind {row.kind} runs at most once (once=True), and this job was started {times}."
            " Check first whether its work was done."
        )


def _load_target(store: Store, job_id: str, request: ManualRetry) -> _RetryTarget:
    with store.read() as tx:
        row = _load_job(tx, job_id, request.owner)
        kind = load_kind_info(tx, row, request.handlers, request.max_payload)
        return _RetryTarget(row, kind, tx.now())


def _check_overrides(store: Store, target: _RetryTarget, request: ManualRetry) -> JobOverrides:
    overrides = apply_overrides(target.row, request.overrides, target.kind)
    if request.owner is not None and request.overrides:
        with store.read() as tx:
            check_declared_queues(tx, named_queues(request.overrides))
    return overrides


def _resolve_time(at: DurationOrTime | None, now: Micros) -> Micros | None:
    """Return when to run; a time in the past becomes now."""
    if at is None:
        return None
    delay, time_at = check_duration_or_time("at", at)
    if delay is not None:
        return max(now, now + delay)
    return max(now, time_at or now)


def _find_refusals(
    store: Store, row: JobRow, overrides: JobOverrides, run_at: Micros | None
) -> list[MulliganError]:
    with store.read() as tx:
        return list(find_refusals(tx, row, overrides, run_at))


class _MovedMeanwhileError(Exception):
    """Another transaction moved the job first; roll this one back."""


def _retry_once(
    store: Store,
    row: JobRow,
    overrides: JobOverrides,
    run_at: Micros | None,
    actor: str,
    reason: str,
    request: ManualRetry,
) -> JobRow | None:
    """Retry the job if it is still as we read it. Return None if it was moved meanwhile."""
    for _ in range(MAX_METER_TRIES):
        try:
            with store.begin() as tx:
                if request.owner is not None and request.rate_limit:
                    spend_manual_retry(tx, request.owner, request.rate_limit)
                moved = move_job(
                    tx, row, Verb.RETRY_BY_HAND, actor, reason, change=overrides, at=run_at
                )
                if not moved:
                    raise _MovedMeanwhileError
                retried = _load_job(tx, row.id)
                _check_deadline(retried)
            log_manual_action(Verb.RETRY_BY_HAND, retried, actor, reason)
            return retried
        except _MovedMeanwhileError:
            return None
        except MeterBusy:
            time.sleep(METER_PAUSE)
    raise StoreUnavailable("too many manual retries of this owner at the same time; try again")


def _check_deadline(row: JobRow) -> None:
    if row.deadline_at is not None and row.run_at >= row.deadline_at:
        raise DeadlineFirst(
            f"job {row.id} cannot run at {format_time(row.run_at)}: "
            f"its deadline, counted from this retry, is {format_time(row.deadline_at)}"
        )


# --- Release, discard, cancel ---
def release(
    store: Store,
    job_id: str,
    *,
    actor: str,
    choice: str | None = None,
    value: str | None = None,
    reason: str = "",
    owner: str | None = None,
) -> JobRow:
    """Queue a parked job again, with the choice that a person made.

    `value`: JSON of the result of a step in doubt that happened.
    """
    with store.read() as tx:
        check_choice(_load_job(tx, job_id, owner), choice)
    change = UNCHANGED._replace(steps=StepChanges(value=value))
    return _move_by_hand(
        store, job_id, Verb.RELEASE, actor, reason, owner, choice=choice, change=change
    )


def check_choice(row: JobRow, choice: str | None) -> None:
    """Refuse a choice that the parked job does not offer."""
    offered = json.loads(row.choices or "[]")
    if choice is not None and offered and choice not in offered:
        raise ChoiceRefused(f"unknown choice {choice!r}. The job offers: {', '.join(offered)}")


def discard(
    store: Store, job_id: str, *, actor: str, reason: str, owner: str | None = None
) -> JobRow:
    """Cancel a dead or parked job that will not be repaired."""
    require_reason(reason)
    return _move_by_hand(store, job_id, Verb.DISCARD, actor, reason, owner)


def undiscard(
    store: Store, job_id: str, *, actor: str, reason: str = "", owner: str | None = None
) -> JobRow:
    """Set a discarded job back to dead or parked, as it was. It does not run."""
    for _ in range(MAX_TRIES):
        with store.begin() as tx:
            row = _load_job(tx, job_id, owner)
            before = _load_discarded(tx, row)
            verb = UNDO_VERBS[before["state"]]
            moved = None
            if move_job(tx, row, verb, actor, reason, restored=before):
                JobQueries(tx).restore_discarded(job_id, before["choices"], before["finished_at"])
                moved = _load_job(tx, job_id)
        if moved is not None:
            log_manual_action(verb, moved, actor, reason)
            return moved
    raise IllegalMove(_changed_meanwhile(job_id))


UNDO_VERBS = {State.DEAD.value: Verb.UNDISCARD, State.PARKED.value: Verb.UNDISCARD_PARKED}


def _load_discarded(tx: Transaction, row: JobRow) -> Mapping[str, Any]:
    """Return what the last discard of a job changed, from its event."""
    moves = [
        event
        for event in EventQueries(tx).list_events_of_job(row.id)
        if event.type in {EventType.JOB_DISCARDED, EventType.JOB_CANCELLED}
    ]
    if row.state != State.CANCELLED or not moves or UNDO not in moves[-1].data:
        message = f"cannot undo a discard: the job is {row.state} and was not discarded"
        if row.state == State.CANCELLED and not moves:
            message = "cannot undo the discard: its event has been pruned (retention.audit)"
        raise IllegalMove(message)
    before: Mapping[str, Any] = moves[-1].data[UNDO]
    return before


def require_reason(reason: str) -> None:
    """Refuse to discard without a reason."""
    if not reason.strip():
        raise ReasonMissing("discard needs a reason: why will this job not be run again?")


def cancel(
    store: Store, job_id: str, *, actor: str, reason: str = "", owner: str | None = None
) -> JobRow:
    """Cancel a queued or parked job at once; ask a running one to stop."""
    return _move_by_hand(store, job_id, Verb.CANCEL, actor, reason, owner)


def preview_move(verb: Verb, state: State) -> str:
    """Return the state that a manual action leads to; raise what the action would raise."""
    if verb is Verb.CANCEL and state is State.RUNNING:
        return "asked to stop"
    if verb is Verb.UNDO:
        return str(lifecycle.next_state(Verb.RETRY_BY_HAND, state))
    return str(lifecycle.next_state(verb, state))


def _move_by_hand(
    store: Store,
    job_id: str,
    verb: Verb,
    actor: str,
    reason: str,
    owner: str | None,
    *,
    choice: str | None = None,
    change: JobOverrides = UNCHANGED,
) -> JobRow:
    for _ in range(MAX_TRIES):
        with store.begin() as tx:
            row = _load_job(tx, job_id, owner)
            moved = None
            if move_job(tx, row, verb, actor, reason, choice=choice, change=change):
                moved = _load_job(tx, job_id)
        if moved is not None:
            log_manual_action(verb, moved, actor, reason)
            return moved
    raise IllegalMove(_changed_meanwhile(job_id))


def _request_stop(
    tx: Transaction, row: JobRow, actor: str, reason: str, data: Mapping[str, Any] | None
) -> bool:
    """Ask a running attempt to stop; a second request changes nothing."""
    if row.cancel_reason is not None:
        return True
    if not JobQueries(tx).request_cancel(row.id, row.token, reason or "cancelled by hand"):
        return False
    event_data = {
        "reason": reason,
        "before": {"state": row.state, "stopping": False},
        "after": {"state": row.state, "stopping": True},
        **(data or {}),
    }
    EventQueries(tx).write_events(
        [_job_event(EventType.JOB_CANCEL_REQUESTED, row, actor, event_data)]
    )
    return True


# --- One move with its event ---
def move_job(  # noqa: PLR0913 - every manual move goes through here
    tx: Transaction,
    row: JobRow,
    verb: Verb,
    actor: str,
    reason: str,
    *,
    choice: str | None = None,
    change: JobOverrides = UNCHANGED,
    at: Micros | None = None,
    data: Mapping[str, Any] | None = None,
    as_retry: bool = False,
    update_batch: bool = True,
    restored: Mapping[str, Any] | None = None,
    settings: str | None = None,
) -> bool:
    """Make one move and write its event in the caller's transaction.

    Return False if another transaction moved the job first. Cancelling a running job only asks
    it to stop. `data` is added to the event. `as_retry` puts the job into the lane of retries,
    so that fresh work goes first. With `update_batch=False` the caller updates the job's batch,
    once for all members. `restored`: the fields of a discarded job before its discard.
    `settings`: settings of the new generation.
    """
    if verb is Verb.CANCEL and has_undo(row.settings):
        return _cancel_with_undo(tx, row, reason, actor, data)
    if verb is Verb.CANCEL and row.state == State.RUNNING:
        return _request_stop(tx, row, actor, reason, data)
    state = lifecycle.next_state(verb, State(row.state))
    if update_batch and verb in (Verb.RETRY_BY_HAND, Verb.UNDISCARD_PARKED):
        completion.check_member_retry(tx, row)
    if verb is Verb.RETRY_BY_HAND and change == UNCHANGED:
        change = return_to_home_queue(tx, row)
    move = _build_move(tx, row, verb, state, reason, choice, change, at)
    move = move._replace(settings=settings or move.settings, **_restored_fields(restored))
    if as_retry:
        move = move._replace(lane_suffix="1")
    undo = _undo_data(tx, row, verb)
    if not _write_move(tx, row, change, move):
        return False
    _reindex_arguments(tx, row, change)
    apply_step_changes(tx, row, change.steps, actor)
    resolve_doubt(tx, row, choice, change.steps.value, actor)
    event_data = {**_move_data(row, move, reason, choice, change, at), **undo, **(data or {})}
    EventQueries(tx).write_events([_job_event(lifecycle.EVENTS[verb], row, actor, event_data)])
    if update_batch:
        completion.update_after_move(tx, row, state, actor=actor, reason=reason)
    return True


def _restored_fields(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a move that restores a discarded job."""
    return {} if before is None else {name: before[name] for name in RESTORED_BY_MOVE}


def _cancel_with_undo(
    tx: Transaction, row: JobRow, reason: str, actor: str, data: Mapping[str, Any] | None
) -> bool:
    """Undo the steps of a job that is cancelled. A job that undoes them already stays as it is."""
    if read_cause(row.settings) is not None:
        return True
    if row.state == State.RUNNING:
        return _request_stop(tx, row, actor, reason, data)
    return undo_by_move(tx, row, cause_of_move(Verb.STOP, reason), actor, data=data)


def undo_by_move(
    tx: Transaction,
    row: JobRow,
    cause: UndoCause,
    actor: str,
    *,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Queue a waiting or parked job to undo its steps before it ends."""
    state = lifecycle.next_state(Verb.UNDO, State(row.state))
    why = describe_undoing(cause.reason)
    move = _build_move(tx, row, Verb.UNDO, state, why)
    settings = begin_undo(row.settings, cause)
    if not JobQueries(tx).move_job(move._replace(settings=settings, drop_deadline=True)):
        return False
    event_data = {**_move_data(row, move, why, None, UNCHANGED, None), **(data or {})}
    EventQueries(tx).write_events([_job_event(lifecycle.EVENTS[Verb.UNDO], row, actor, event_data)])
    return True


def undo(
    store: Store, job_id: str, *, actor: str, reason: str = "", owner: str | None = None
) -> JobRow:
    """Undo the finished steps of a dead, cancelled or parked job, which then is as before.

    A parked job is cancelled afterwards. A new generation begins, as with a manual retry.
    """
    for _ in range(MAX_TRIES):
        with store.begin() as tx:
            row = _load_job(tx, job_id, owner)
            lifecycle.next_state(Verb.RETRY_BY_HAND, State(row.state))
            if not StepQueries(tx).list_undoable(row.id):
                message = f"cannot undo: job {row.id} has no finished step with an undo function"
                raise IllegalMove(message)
            moved = None
            settings = begin_undo(row.settings, _cause_by_hand(tx, row, reason))
            data = {"undo": True}
            if move_job(tx, row, Verb.RETRY_BY_HAND, actor, reason, data=data, settings=settings):
                moved = _load_job(tx, job_id)
        if moved is not None:
            log_manual_action(Verb.UNDO, moved, actor, reason)
            return moved
    raise IllegalMove(_changed_meanwhile(job_id))


def _cause_by_hand(tx: Transaction, row: JobRow, reason: str) -> UndoCause:
    """Return how a job ends whose steps a person undoes: in the state that it has."""
    if row.state != State.DEAD:
        return cause_of_move(Verb.STOP, row.reason or reason or "undone by hand")
    group = JobQueries(tx).get_death(row.id)["died_group"]
    failure = failure_of_dead(row.error, group)
    return UndoCause(Verb.DIE, Ground.MAX_RETRIES, row.reason, failure)


def _undo_data(tx: Transaction, row: JobRow, verb: Verb) -> dict[str, Any]:
    """Return what a discard is about to remove from a job's row, for `undiscard`."""
    if verb is not Verb.DISCARD:
        return {}
    kept = {name: getattr(row, name) for name in RESTORED}
    return {UNDO: {**kept, **JobQueries(tx).get_death(row.id)}}


def _write_move(tx: Transaction, row: JobRow, change: JobOverrides, move: Move) -> bool:
    try:
        return JobQueries(tx).move_job(move)
    except UniqueTaken as clash:
        assert move.unique_hash is not None  # noqa: S101 - only a move with a key can clash
        if JobQueries(tx).release_expired_key(
            move.unique_hash
        ):  # The holder's `Unique(for_=…)` has run out.
            return JobQueries(tx).move_job(move)
        holder = JobQueries(tx).find_unique_holder(move.unique_hash)
        raise UniqueTaken(describe_taken_key(row, change, holder)) from clash


def _reindex_arguments(tx: Transaction, row: JobRow, change: JobOverrides) -> None:
    """Replace the indexed arguments if the payload changed them."""
    if change.args is not None:
        SearchQueries(tx).delete_args([row.id])
        SearchQueries(tx).write_args(
            [ArgRow(row.id, row.kind, name, value) for name, value in change.args]
        )


def requeue_job(
    tx: Transaction,
    row: JobRow,
    lane: Lane,
    actor: str,
    reason: str,
    *,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Move a queued job to the queue of this lane and change nothing else.

    Return False if another transaction moved the job first.
    """
    state = lifecycle.next_state(Verb.MOVE, State(row.state))
    move = _build_move(tx, row, Verb.MOVE, state, row.reason, row.choice, at=row.run_at)
    move = move._replace(
        run_at=None, reason=row.reason, queue=lane.queue, lane=lane.key, lane_suffix=None
    )
    if not JobQueries(tx).move_job(move):
        return False
    event_data = {
        "from": row.state,
        "reason": reason,
        "before": {"queue": row.queue},
        "after": {"queue": lane.queue},
        **(data or {}),
    }
    EventQueries(tx).write_events([_job_event(lifecycle.EVENTS[Verb.MOVE], row, actor, event_data)])
    return True


def _changed_meanwhile(job_id: str) -> str:
    return f"job {job_id} was changed by someone else at the same time; look at it and try again"


def _build_move(
    tx: Transaction,
    row: JobRow,
    verb: Verb,
    state: State,
    reason: str,
    choice: str | None = None,
    change: JobOverrides = UNCHANGED,
    at: Micros | None = None,
) -> Move:
    run_at = None
    if state is State.QUEUED:
        run_at = at or tx.now()
    return Move(
        id=row.id,
        from_state=row.state,
        generation=row.generation,
        token=row.token,
        state=state.value,
        run_at=run_at,
        new_generation=verb is Verb.RETRY_BY_HAND,
        finished=state in TERMINAL,
        error=None,
        reason=reason or _default_reason(verb),
        choice=choice,
        unique_hash=unique_hash_after(row, state, change.unique_key),
        settings=keep_undo_mark(row.settings) if verb is Verb.RETRY_BY_HAND else None,
        **change.columns,
    )


def _default_reason(verb: Verb) -> str:
    if verb is Verb.UNDO:
        return describe_undoing("cancelled by hand")
    return str(verb) if verb is Verb.RETRY_BY_HAND else f"{verb} by hand"


def _move_data(
    row: JobRow,
    move: Move,
    reason: str,
    choice: str | None,
    change: JobOverrides,
    at: Micros | None,
) -> dict[str, Any]:
    """Return the data of the event about a move."""
    generation = row.generation + move.new_generation
    data: dict[str, Any] = {"kind": row.kind, "queue": row.queue, "from": row.state}
    data["reason"] = reason
    data["generation"] = generation
    if choice is not None:
        data["choice"] = choice
    if change.max_retries is not None:
        data["max_retries"] = change.max_retries
    if at is not None:
        data["run_at"] = at
    if change.changes:
        data["changes"] = dict(change.changes)
    data["before"] = {"state": row.state, "generation": row.generation}
    data["after"] = {"state": move.state, "generation": generation}
    return data


def _job_event(kind: EventType, row: JobRow, actor: str, data: dict[str, Any]) -> NewEvent:
    return NewEvent(
        kind,
        job_id=row.id,
        batch_id=row.batch_id,
        owner=row.owner,
        actor=actor,
        data={"kind": row.kind, "queue": row.queue, **data},
    )


def _load_job(tx: Transaction, job_id: str, owner: str | None = None) -> JobRow:
    """Return a job's row. Another owner's job is reported exactly like one that does not exist."""
    row = JobQueries(tx).get_job(job_id)
    if row is None or owner not in (None, row.owner):
        raise unknown_job(job_id)
    return row

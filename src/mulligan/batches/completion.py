"""Complete batches: write a batch's outcome in the transaction that ends its last member.

Two last members may end at the same time in two transactions, each of which sees the other still
running. So a transaction that ends a member locks the batch's progress row first, and checks in a
later statement whether any member is unfinished: the second transaction then sees the first one's
end. The displayed counters are not used for this decision.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mulligan.batches.children import wake_parent
from mulligan.batches.queries import BatchQueries, BatchRow
from mulligan.batches.rules import BatchCounts, compute_outcome, count_members, has_recovered
from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import BatchExpired, IllegalMove, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import format_time
from mulligan.core.ids import new_id
from mulligan.core.job import JobRow, NewJob, State, unique_hash
from mulligan.core.lifecycle import MOVES, TERMINAL
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.upkeep")

STEP = 200
UPKEEP_ACTOR = "upkeep"
ALL_STATES = ",".join(state.value for state in State)
# Fields that the on_complete job gets anew in each generation; the others are stored.
FIELDS_OF_EACH_RUN = (
    "id",
    "unique_key",
    "unique_hash",
    "unique_cover",
    "unique_for",
    "unique_exact",
    "batch_id",
    "must_have",
    "added_by",
)
_OUTCOMES = {
    "ready": EventType.BATCH_READY,
    "partial": EventType.BATCH_PARTIAL,
    "failed": EventType.BATCH_FAILED,
}


# --- A member ended or was moved ---
def complete_batches(tx: Transaction, ids: Collection[str], *, wait: bool = True) -> None:
    """Complete those of these batches whose last member has ended.

    Without `wait`, a batch that another transaction has locked is left to upkeep.
    """
    if not ids:
        return
    with tx.atomically():
        locked = BatchQueries(tx).lock_batches(sorted(ids), wait=wait)
        if locked:
            for row in BatchQueries(tx).list_completable_batches(locked):
                _complete(tx, row)


def update_after_move(
    tx: Transaction, row: JobRow, state: State, *, actor: str, reason: str
) -> None:
    """Update the batch of a member that was moved outside an attempt; `row` is its old row."""
    if row.batch_id is None:
        return
    if _restarts(row, state):
        reopen_batch(tx, row.batch_id, actor=actor, reason=reason, data={"job": row.id})
    elif _ends(row, state):
        complete_batches(tx, {row.batch_id})


def _restarts(row: JobRow, state: State) -> bool:
    return state not in TERMINAL and row.state in TERMINAL


def _ends(row: JobRow, state: State) -> bool:
    return state in TERMINAL and row.state not in TERMINAL


def update_after_moves(
    tx: Transaction, moves: Iterable[tuple[JobRow, Verb]], *, actor: str, reason: str
) -> None:
    """Update the batches of members that were moved in one transaction.

    Batches are locked in the order of their ids, as everywhere, to avoid deadlocks.
    """
    restarted: Counter[str] = Counter()
    ended: set[str] = set()
    for row, verb in moves:
        if row.batch_id is None:
            continue
        before = State(row.state)
        state = MOVES.get((verb, before), before)  # Asking a running job to stop is not a move.
        if _restarts(row, state):
            restarted[row.batch_id] += 1
        elif _ends(row, state):
            ended.add(row.batch_id)
    for batch_id in sorted(restarted):
        data = {"jobs": restarted[batch_id]}
        reopen_batch(tx, batch_id, actor=actor, reason=reason, data=data)
    complete_batches(tx, ended)


def _complete(tx: Transaction, row: BatchRow) -> None:
    counts = load_counts(tx, [row.id])[row.id]
    outcome = compute_outcome(counts, row.tolerance)
    if not BatchQueries(tx).complete_batch(row.id, row.generation, outcome.value):
        return
    write_sealed_event(tx, row, actor=UPKEEP_ACTOR)
    data = {"name": row.name, "generation": row.generation, **counts_as_dict(counts)}
    on_complete = _on_complete_job(row)
    if on_complete is not None:
        JobQueries(tx).insert_jobs([on_complete], announce=True)
        data["on_complete"] = on_complete.id
    events = [batch_event(_OUTCOMES[outcome.value], row, data=data)]
    if has_recovered(row.previous, outcome):
        data = {**data, "previous": row.previous}
        events.append(batch_event(EventType.BATCH_RECOVERED, row, data=data))
    EventQueries(tx).write_events(events)
    wake_parent(tx, row)


def load_counts(tx: Transaction, ids: Iterable[str]) -> dict[str, BatchCounts]:
    """Return member counts by batch id, computed from the members themselves."""
    members: dict[str, list[tuple[str, bool, int]]] = {batch_id: [] for batch_id in ids}
    for batch_id, state, must_have, count in BatchQueries(tx).count_batch_members(list(members)):
        members[batch_id].append((state, must_have, count))
    return {batch_id: count_members(found) for batch_id, found in members.items()}


def counts_as_dict(counts: BatchCounts) -> dict[str, int]:
    """Return counts as event data, with their total."""
    return {"total": counts.total, **asdict(counts)}


def batch_event(
    kind: EventType, row: BatchRow, *, actor: str = "", data: Mapping[str, Any] | None = None
) -> NewEvent:
    """Return an event about a batch."""
    return NewEvent(kind, batch_id=row.id, owner=row.owner, actor=actor, data=data or {})


def write_sealed_event(tx: Transaction, row: BatchRow, *, actor: str, reason: str = "") -> None:
    """Write `batch.sealed` once. A batch sealed in a caller's transaction has no event yet."""
    if not BatchQueries(tx).mark_sealed_event_written(row.id):
        return
    data: dict[str, Any] = {
        "name": row.name,
        "total": load_counts(tx, [row.id])[row.id].total,
        "before": {"sealed": False},
        "after": {"sealed": True},
    }
    if reason:
        data["reason"] = reason
    EventQueries(tx).write_events(
        [batch_event(EventType.BATCH_SEALED, row, actor=actor, data=data)]
    )


# --- The on_complete job ---
def dump_on_complete(job: NewJob) -> str:
    """Return the on_complete job as JSON, so that any process can enqueue it without the app."""
    fields = job._asdict().items()
    return json.dumps({name: value for name, value in fields if name not in FIELDS_OF_EACH_RUN})


def _on_complete_job(row: BatchRow) -> NewJob | None:
    if row.on_complete is None:
        return None
    known = set(NewJob._fields) - set(FIELDS_OF_EACH_RUN)
    stored = json.loads(row.on_complete)
    fields = {name: value for name, value in stored.items() if name in known}
    key = f"{row.id}:{row.generation}"
    return NewJob(
        **fields,
        id=new_id(),
        unique_key=key,
        unique_hash=unique_hash(fields["owner"], fields["kind"], key),
        unique_cover=ALL_STATES,
    )


# --- Reopen ---
def refuse_expired(row: BatchRow | None, now: Micros) -> None:
    """Refuse to start members of a batch that has expired or is being deleted."""
    if row is None:
        return
    if row.being_pruned:
        raise BatchExpired(
            f"batch {row.id} ({row.name}) is being deleted by retention. Enqueue its jobs again."
        )
    if row.expired_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise BatchExpired(
            f"batch {row.id} ({row.name}) expired at {format_time(row.expires_at or now)}: "
            "its members cannot be retried, and it accepts no new members"
        )


def check_member_retry(tx: Transaction, row: JobRow) -> None:
    """Refuse a retry if the job's batch has expired. `reopen_batch` checks again under its lock."""
    if row.batch_id is not None:
        refuse_expired(BatchQueries(tx).get_batch(row.batch_id), tx.now())


def reopen_batch(
    tx: Transaction, batch_id: str, *, actor: str, reason: str, data: Mapping[str, Any]
) -> None:
    """Start a new generation of a finished batch, after some of its members were restarted."""
    with tx.atomically():
        queries = BatchQueries(tx)
        if not queries.lock_batches([batch_id]):
            return
        row = queries.get_batch(batch_id)
        refuse_expired(row, tx.now())
        if row is None or row.outcome is None:
            return
        generation = queries.reopen_batch(batch_id)
        event_data = {
            "name": row.name,
            "generation": generation,
            "reason": reason,
            **data,
            "before": {"outcome": row.outcome, "generation": row.generation},
            "after": {"outcome": None, "generation": generation},
        }
        EventQueries(tx).write_events(
            [batch_event(EventType.BATCH_REOPENED, row, actor=actor, data=event_data)]
        )


# --- Upkeep ---
def sweep_batches(store: Store) -> int:
    """Announce seals of callers, complete batches whose end was missed, and expire batches.

    Return how many batches were found.
    """
    with store.read() as tx:
        to_complete = BatchQueries(tx).list_batches_to_complete(STEP)
        to_expire = BatchQueries(tx).list_batches_to_expire(STEP)
    for batch_id in to_complete:
        isolate_errors(store, batch_id, _complete_sealed)
    for row in to_expire:
        isolate_errors(store, row.id, _expire)
    return max(len(to_complete), len(to_expire))


def isolate_errors(store: Store, batch_id: str, step: Callable[[Transaction, str], None]) -> None:
    """Run one step of upkeep; an error of one batch does not stop the others."""
    try:
        with store.begin() as tx:
            step(tx, batch_id)
    except StoreUnavailable:
        raise
    except IllegalMove:  # it has ended meanwhile
        return
    except Exception:
        log.exception("batch %s: upkeep failed", batch_id)


def _complete_sealed(tx: Transaction, batch_id: str) -> None:
    if not BatchQueries(tx).lock_batches([batch_id], wait=False):
        return
    row = BatchQueries(tx).get_batch(batch_id)
    if row is not None and row.sealed_at is not None:
        write_sealed_event(tx, row, actor=UPKEEP_ACTOR)
        complete_batches(tx, [batch_id])


def _expire(tx: Transaction, batch_id: str) -> None:
    """Expire a batch. One that is not sealed is sealed first, so that it gets an outcome."""
    queries = BatchQueries(tx)
    if queries.seal_batch(batch_id, wait=False):
        _complete_sealed(tx, batch_id)
    if not queries.lock_batches([batch_id], wait=False):
        return
    row = queries.get_batch(batch_id)
    if row is not None and queries.expire_batch(batch_id):
        data = {"name": row.name, "outcome": row.outcome, "expires_at": row.expires_at}
        expired = batch_event(EventType.BATCH_EXPIRED, row, actor=UPKEEP_ACTOR, data=data)
        EventQueries(tx).write_events([expired])


def prune_batches(store: Store, retention: float) -> int:
    """Delete batches that ended before `retention` seconds, with their members, in small steps.

    Return how many jobs were deleted.
    """
    deleted = 0
    while deleted < STEP:
        with store.begin() as tx:
            step = BatchQueries(tx).prune_batch(tx.now() - round(retention * SECOND), STEP)
        if step is None or not step[1]:  # The next batch is locked by another transaction.
            break
        deleted += sum(record.jobs for record in step[1])
    return deleted

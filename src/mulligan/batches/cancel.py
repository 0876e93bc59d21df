"""Cancel batches: by hand, and by upkeep once the job that waits for the members has ended."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.batches import completion
from mulligan.batches.queries import BatchQueries, BatchRow
from mulligan.batches.rules import UNFINISHED, displayed_state
from mulligan.core.attempt import Verb
from mulligan.core.errors import IllegalMove, no_such_batch
from mulligan.core.event import EventType
from mulligan.core.job import JobRow, State
from mulligan.events.queries import EventQueries
from mulligan.jobs import repair
from mulligan.storage.base import Store, Transaction


def cancel_batch(tx: Transaction, batch_id: str, actor: str, reason: str) -> None:
    """Accept no more members, cancel waiting members and ask running ones to stop."""
    states = sorted(state.value for state in UNFINISHED)
    queries = BatchQueries(tx)
    row = queries.get_batch_for_update(batch_id)
    if row is None:
        raise no_such_batch(batch_id)
    _refuse_finished(row)
    is_first_cancel = queries.cancel_batch(batch_id, reason)
    members = queries.lock_batch_members(batch_id, states)
    for member in members:
        member_reason = reason or "batch cancelled"
        repair.move_job(tx, member, Verb.CANCEL, actor, member_reason, update_batch=False)
    queries.lock_batches([batch_id])
    # The last member may have ended before its row was locked.
    _refuse_finished(queries.get_batch(batch_id) or row)
    if is_first_cancel:
        _write_cancelled_event(tx, row, members, actor, reason)
    completion.complete_batches(tx, [batch_id])


def _refuse_finished(row: BatchRow) -> None:
    if row.outcome is not None:
        state = displayed_state(row.outcome, expired=row.expired_at is not None)
        raise IllegalMove(
            f"batch {row.id} ({row.name}) is {state}: there is nothing left to cancel"
        )


def _write_cancelled_event(
    tx: Transaction, row: BatchRow, members: Sequence[JobRow], actor: str, reason: str
) -> None:
    if row.sealed_at is None:
        completion.write_sealed_event(tx, row, actor=actor, reason="cancelled")
    running = sum(member.state == State.RUNNING for member in members)
    data = {
        "name": row.name,
        "reason": reason,
        "cancelled": len(members) - running,
        "asked_to_stop": running,
        "before": {"cancelled": False},
        "after": {"cancelled": True},
    }
    event = completion.batch_event(EventType.BATCH_CANCELLED, row, actor=actor, data=data)
    EventQueries(tx).write_events([event])


# --- Upkeep ---


def run_upkeep(store: Store) -> int:
    """Complete, expire and cancel batches that need it. Return how many were found."""
    return max(completion.sweep_batches(store), _cancel_orphans(store))


def _cancel_orphans(store: Store) -> int:
    """Cancel the child jobs of jobs that have ended without them."""
    with store.read() as tx:
        ids = BatchQueries(tx).list_orphaned_batches(completion.STEP)
    for batch_id in ids:
        completion.isolate_errors(store, batch_id, _cancel_orphan)
    return len(ids)


def _cancel_orphan(tx: Transaction, batch_id: str) -> None:
    cancel_batch(tx, batch_id, completion.UPKEEP_ACTOR, "the job that waited for it has ended")

"""Child jobs of a job that waits for them: a batch that knows its parent.

The batch begins in the transaction that ends the parent's attempt. Its completion writes how the
children ended into the step of the wait, and wakes the parent, in one transaction. If a child died
that must not die, the parent wakes with this failure, or waits for the repair of the child.
"""

from __future__ import annotations

import json
from typing import Any

from mulligan.batches.calls import ON_DEATH_WAIT, OWN_FIELDS
from mulligan.batches.queries import BatchQueries, BatchRow, NewBatch
from mulligan.batches.rules import is_tolerated
from mulligan.core.attempt import Lease
from mulligan.core.ids import new_id
from mulligan.core.job import NewJob, State
from mulligan.core.json import encode
from mulligan.core.waits import WaitKind, read_waits
from mulligan.jobs.queries import JobQueries
from mulligan.steps.rules import StepState, read_detail
from mulligan.storage.base import Transaction
from mulligan.waits.queries import AnswerRow, WaitQueries


def begin_children(tx: Transaction, lease: Lease, name: str, detail: dict[str, Any]) -> str:
    """Insert the children of a job that this transaction settles. Return the id of their batch."""
    known = set(NewJob._fields) - set(OWN_FIELDS)
    batch = NewBatch(
        id=new_id(),
        name=f"{lease.kind}: {name}",
        owner=lease.owner,
        tolerance=detail["tolerance"],
        on_complete=None,
        unique_key=None,
        unique_hash=None,
        expires_span=None,
        expires_at=None,
        sealed=True,
        parent_id=lease.id,
        parent_step=name,
    )
    BatchQueries(tx).insert_batch(batch)
    jobs = [
        NewJob(
            **{field: _to_field(value) for field, value in child.items() if field in known},
            id=new_id(),
            batch_id=batch.id,
            trace=lease.trace,
        )
        for child in detail["children"]
    ]
    JobQueries(tx).insert_jobs(jobs, announce=True)
    return batch.id


def _to_field(value: Any) -> Any:
    """Return a field of a job. JSON has lists where a job has tuples."""
    if not isinstance(value, list):
        return value
    return tuple(tuple(pair) for pair in value)


def wake_parent(tx: Transaction, batch: BatchRow) -> None:
    """Tell the parent of a batch how its children ended, unless it waits for their repair."""
    if batch.parent_id is None or batch.parent_step is None:
        return
    queries = WaitQueries(tx)
    parent = queries.lock_job(batch.parent_id)
    step = queries.get_step(batch.parent_id, batch.parent_step)
    if parent is None or step is None or step.state == StepState.DONE:
        return
    detail = read_detail(step.detail)
    if detail.get("batch") != batch.id:
        return
    children = [parse_child(row) for row in BatchQueries(tx).list_member_results(batch.id)]
    deaths = sum(child["state"] != State.SUCCEEDED for child in children)
    is_good = is_tolerated(deaths, len(children), batch.tolerance)
    if not is_good and detail["on_death"] == ON_DEATH_WAIT:
        return
    answer = AnswerRow(parent.id, step.name, encode(children), step.token, "")
    queries.write_children(answer, StepState.DONE if is_good else StepState.FAILED)
    if parent.state == State.QUEUED and parent.waits is not None:
        wait = read_waits(parent.waits)
        if wait.kind == WaitKind.CALL and wait.name == step.name:
            queries.wake(parent.id)


def parse_child(row: tuple[str, str, str | None, str | None]) -> dict[str, Any]:
    """Return how a child ended: its id, state, and result or error."""
    job_id, state, result, error = row
    ended: dict[str, Any] = {"id": job_id, "state": state}
    if result is not None:
        ended["result"] = json.loads(result)
    if error is not None:
        ended["error"] = json.loads(error)
    return ended

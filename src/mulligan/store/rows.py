"""How values become rows, the same for both stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mulligan.event import Event, NewEvent
from mulligan.job import Lane, NewJob


class InsertRow(NamedTuple):
    """One row of an insert; times still relative where the store's clock must decide."""

    id: str
    kind: str
    queue: str
    owner: str
    priority: int
    lane: str
    uses: str
    delay: int
    at: int | None
    deadline_span: int | None
    deadline_fixed: int | None
    max_retries: int | None
    policy: str | None
    timeout: int | None
    unique_key: str | None
    unique_hash: str | None
    unique_cover: str | None
    unique_for: int | None
    batch_id: str | None
    must_have: bool
    trace: str | None
    payload: str


class Wanted(NamedTuple):
    """A job somebody wants to take."""

    id: str


class Done(NamedTuple):
    """What a job's row does not know yet of an attempt that returned."""

    id: str
    token: int
    result: str | None
    data: str


def insert_row(job: NewJob) -> InsertRow:
    return InsertRow(
        job.id,
        job.kind,
        job.queue,
        job.owner,
        job.priority,
        Lane(job.queue, job.kind, job.uses, False, job.share).key,
        job.uses,
        job.delay,
        job.run_at,
        job.deadline,
        job.deadline_at,
        job.max_retries,
        job.policy,
        job.timeout,
        job.unique_key,
        job.unique_hash,
        job.unique_cover,
        job.unique_for,
        job.batch_id,
        job.must_have,
        job.trace,
        job.payload,
    )


def event_params(event: NewEvent) -> dict[str, Any]:
    return {
        "type": event.type,
        "job_id": event.job_id,
        "batch_id": event.batch_id,
        "owner": event.owner,
        "attempt": event.attempt,
        "token": event.token,
        "actor": event.actor,
        "data": json.dumps(event.data, separators=(",", ":")),
    }


def event_of(row: Sequence[Any]) -> Event:
    return Event._make((*row[:-1], json.loads(row[-1])))


def array(values: Iterable[Any]) -> str:
    """A column as PostgreSQL writes arrays. The driver would do it too, in ten times the time."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)

"""Enqueue: the path from checked arguments to written jobs, for one job or many.

`new_jobs` turns payloads into `NewJob` values and writes nothing before all checks pass. `enqueue`
writes them in the caller's transaction or in one of ours; `insert` does so in an open transaction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.core.durations import EPOCH, Micros, to_datetime
from mulligan.core.errors import PayloadRefused
from mulligan.core.event import NewEvent, queued_event
from mulligan.core.format import format_time
from mulligan.core.ids import new_ids
from mulligan.core.job import Job, JobService, NewJob, State
from mulligan.core.tracing import OPENTELEMETRY
from mulligan.jobs.options import EnqueueOptions, job_template, with_payload_fields
from mulligan.manifest.arguments import to_json, to_json_many
from mulligan.manifest.specs import Handler, KindSpec, QueueSpec, Registry

if TYPE_CHECKING:
    from mulligan.jobs.queries import Inserted
    from mulligan.jobs.service import Jobs
    from mulligan.storage.base import Store, Transaction

_batch_id = attrgetter("batch_id")
_payload = attrgetter("payload")
_decode = json.JSONDecoder().raw_decode  # in half the time of json.loads


# --- Build ---


def new_job(
    spec: KindSpec,
    handler: Handler | None,
    payload: Any,
    options: EnqueueOptions,
    limit: int,
    queues: Mapping[str, QueueSpec],
) -> NewJob:
    """Return one checked job. `payload` must already consist of JSON values."""
    template = job_template(spec, options, queues)
    return new_jobs(template, spec, handler, [payload], options, limit)[0]


def new_jobs(
    template: NewJob,
    spec: KindSpec,
    handler: Handler | None,
    payloads: Sequence[Any],
    options: EnqueueOptions,
    limit: int,
) -> list[NewJob]:
    """Return checked jobs with these options. `template` has all that does not need a payload."""
    what = "the payload of " + spec.name
    texts = to_json_many(payloads) or [to_json(payload, what) for payload in payloads]
    longest = max(map(len, texts), default=0)
    if longest > limit:
        raise PayloadRefused(
            f"{what} is {longest:,} bytes of JSON; the limit is {limit:,} (setting "
            "limits.payload). Store the data elsewhere and pass a reference."
        )
    shared = template[2:]  # all fields but id and payload
    ids = new_ids(len(texts))
    jobs = [NewJob._make(varying + shared) for varying in zip(ids, texts, strict=True)]
    is_unique = options.unique is not None or spec.unique_by or spec.unique_while
    if not (is_unique or spec.uses_by_payload or spec.index):
        return jobs
    pairs = zip(jobs, payloads, strict=True)
    return [with_payload_fields(job, spec, handler, one, options) for job, one in pairs]


# --- Write ---


class EnqueueApp(Protocol):
    """Attributes of an app that `enqueue` needs."""

    registry: Registry

    @property
    def store(self) -> Store: ...

    @property
    def jobs(self) -> Jobs: ...

    def join_transaction(self, connection: Any) -> Transaction: ...


def enqueue(
    app: EnqueueApp, new: Sequence[NewJob], connection: Any = None, *, actor: str = ""
) -> list[Job]:
    """Insert all jobs or none. They are durable on return, or with `connection` on its commit.

    `actor`: the person to name in their events.
    """
    if not new:
        return []
    tracer = app.registry.tracer
    span = tracer.trace_insert(new) if OPENTELEMETRY in sys.modules else nullcontext(new)
    with span as traced:
        if connection is not None:
            # Upkeep writes the events after the commit. Written here, they would make readers wait.
            tx = app.join_transaction(connection)
            return insert(tx, traced, app.jobs, announce=False)
        begin = app.store.single_statement
        for job in traced:
            if job.unique_hash or job.batch_id or job.args or actor:
                begin = app.store.begin
                break
        with begin() as tx:
            return insert(tx, traced, app.jobs, actor=actor)


def insert(
    tx: Transaction,
    new: Sequence[NewJob],
    service: JobService,
    *,
    announce: bool = True,
    actor: str = "",
    data: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Insert jobs in an open transaction. Return each, or the job that holds its unique key.

    `announce` writes their job.queued events. An event that names an `actor` also has `data`.
    """
    from mulligan.jobs.queries import JobQueries  # noqa: PLC0415 - a runner may need no database

    announce = announce and not actor
    if any(map(_batch_id, new)):
        from mulligan.batches.members import insert_members  # noqa: PLC0415 - only for members

        new, answers = insert_members(tx, new, announce=announce)
    else:
        answers = JobQueries(tx).insert_jobs(new, announce=announce)
    if actor:
        JobQueries(tx).write_queued_events(_events_of_actor(new, answers, actor, data or {}))
    return _view_jobs(tx, new, answers, service)


def _events_of_actor(
    new: Sequence[NewJob], answers: Sequence[Inserted], actor: str, data: Mapping[str, Any]
) -> list[NewEvent]:
    """Return the job.queued events of jobs that a person enqueued; duplicates have none."""
    changes = {**data, "before": {}, "after": {"state": State.QUEUED.value}}
    events = []
    for job, answer in zip(new, answers, strict=True):
        if answer.fresh:
            events.append(queued_event(job, job.due_at(answer.created_at), actor, changes))
    return events


# --- View ---


def _view_jobs(
    tx: Transaction, new: Sequence[NewJob], answers: Sequence[Inserted], service: JobService
) -> list[Job]:
    """Return views of inserted jobs without reading them back, and of the holders of unique keys.

    Jobs with the same options share all fields but id and payload.
    """
    payloads, _ = _decode(f"[{','.join(map(_payload, new))}]")
    views = []
    shared: dict[str, Any] = {}
    options: Any = None  # of `shared`
    now = 0
    for job, answer, payload in zip(new, answers, payloads, strict=True):
        if not answer.fresh:
            from mulligan.jobs.view import view_holder  # noqa: PLC0415 - loads guards

            views.append(view_holder(tx, answer.id, service))
            continue
        if job[2:] != options or answer.created_at != now:
            options, now = job[2:], answer.created_at
            shared = _view_fields(job, now, service)
        view = object.__new__(Job)
        # All fields at once: the `__init__` of a frozen dataclass sets them one by one.
        object.__setattr__(view, "__dict__", {**shared, "id": job.id, "payload": payload})
        views.append(view)
    return views


def _view_fields(new: NewJob, now: Micros, service: JobService) -> dict[str, Any]:
    """Return the fields in which a job that is inserted now differs from the defaults of `Job`."""
    created_at = EPOCH + timedelta(0, 0, now)
    fields: dict[str, Any] = {
        "id": new.id,
        "kind": new.kind,
        "queue": new.queue,
        "owner": new.owner,
        "payload": None,
        "priority": new.priority,
        "max_retries": new.max_retries,
        "batch_id": new.batch_id,
        "unique_key": new.unique_key,
        "created_at": created_at,
        "run_at": created_at,
        "_service": service,
    }
    if new.version != 1:
        fields["version"] = new.version
    if new.uses:
        fields["uses"] = tuple(new.uses.split(","))
    if new.deadline is not None:
        fields["deadline_at"] = to_datetime(now + new.deadline)
    elif new.deadline_at is not None:
        fields["deadline_at"] = to_datetime(new.deadline_at)
    if new.delay or new.run_at is not None:
        due_at = new.due_at(now)
        fields["run_at"] = to_datetime(due_at)
        if due_at > now:
            fields |= {"phase": "scheduled", "why": f"scheduled for {format_time(due_at)}"}
    return fields

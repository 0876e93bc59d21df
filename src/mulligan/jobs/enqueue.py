"""Enqueue: the path from checked arguments to written jobs, for one job or many.

`new_jobs` turns payloads into `NewJob` values and writes nothing before all checks pass. `enqueue`
writes them in the caller's transaction or in one of ours; `insert` does so in an open transaction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from mulligan.core.durations import EPOCH, optional_datetime, to_datetime
from mulligan.core.errors import PayloadRefused
from mulligan.core.event import NewEvent, queued_event
from mulligan.core.format import format_time
from mulligan.core.ids import new_ids
from mulligan.core.job import Job, NewJob, State
from mulligan.core.tracing import OPENTELEMETRY
from mulligan.jobs.options import EnqueueOptions, job_template, with_payload_fields
from mulligan.manifest.arguments import to_json, to_json_many
from mulligan.manifest.specs import Handler, KindSpec, QueueSpec, Registry

if TYPE_CHECKING:
    from mulligan.jobs.queries import Inserted
    from mulligan.jobs.service import Jobs
    from mulligan.storage.base import Store, Transaction

Reload = Callable[[str], Job]

_batch_id = attrgetter("batch_id")
_payload = attrgetter("payload")


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
    _, _, *shared = template  # all fields but id and payload
    jobs = []
    for job_id, text in zip(new_ids(len(texts)), texts, strict=True):
        if len(text) > limit:
            raise PayloadRefused(
                f"{what} is {len(text):,} bytes of JSON; the limit is {limit:,} (setting "
                "limits.payload). Store the data elsewhere and pass a reference."
            )
        jobs.append(NewJob._make((job_id, text, *shared)))
    has_function = handler is not None and (handler.uses or handler.unique)
    if not (has_function or options.unique is not None or spec.index):
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
            return insert(tx, traced, app.jobs.get, announce=False)
        begin = app.store.single_statement
        for job in traced:
            if job.unique_hash or job.batch_id or job.args or actor:
                begin = app.store.begin
                break
        with begin() as tx:
            return insert(tx, traced, app.jobs.get, actor=actor)


def insert(
    tx: Transaction,
    new: Sequence[NewJob],
    reload: Reload,
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
        from mulligan.batches.service import insert_members  # noqa: PLC0415 - loads all services

        new, answers = insert_members(tx, new, announce=announce)
    else:
        answers = JobQueries(tx).insert_jobs(new, announce=announce)
    if actor:
        JobQueries(tx).write_queued_events(_events_of_actor(new, answers, actor, data or {}))
    payloads = json.loads(f"[{','.join(map(_payload, new))}]")
    views = []
    for job, answer, payload in zip(new, answers, payloads, strict=True):
        if answer.fresh:
            views.append(view_new_job(job, answer, payload, reload))
        else:
            from mulligan.jobs.view import view_holder  # noqa: PLC0415 - loads guards

            views.append(view_holder(tx, answer.id, reload))
    return views


def _events_of_actor(
    new: Sequence[NewJob], answers: Sequence[Inserted], actor: str, data: Mapping[str, Any]
) -> list[NewEvent]:
    """Return the job.queued events of jobs that a person enqueued; duplicates have none."""
    changes = {**data, "before": {}, "after": {"state": State.QUEUED.value}}
    pairs = [pair for pair in zip(new, answers, strict=True) if pair[1].fresh]
    return [queued_event(job, answer.run_at, actor, changes) for job, answer in pairs]


# --- View ---


def view_new_job(new: NewJob, answer: Inserted, payload: Any, reload: Reload) -> Job:
    """Return the view of a job that was just inserted, without reading it back."""
    created_at = EPOCH + timedelta(0, 0, answer.created_at)
    fields = {
        "id": new.id,
        "kind": new.kind,
        "queue": new.queue,
        "owner": new.owner,
        "state": State.QUEUED,
        "phase": "ready",
        "why": "waiting for a free worker",
        "payload": payload,
        "result": None,
        "priority": new.priority,
        "progress": None,
        "attempt": 0,
        "attempts": 0,
        "failures": 0,
        "losses": 0,
        "max_retries": new.max_retries,
        "generation": 1,
        "token": 0,
        "batch_id": new.batch_id,
        "unique_key": new.unique_key,
        "uses": tuple(new.uses.split(",")) if new.uses else (),
        "created_at": created_at,
        "run_at": created_at,
        "started_at": None,
        "finished_at": None,
        "deadline_at": None,
        "error": None,
        "next_retry_at": None,
        "deduplicated": False,
        "cost": 0.0,
        "_reload": reload,
    }
    if answer.run_at != answer.created_at or new.deadline_at or new.deadline is not None:
        fields |= _later_times(new, answer)
    job = object.__new__(Job)
    # All fields at once: the `__init__` of a frozen dataclass sets them one by one.
    object.__setattr__(job, "__dict__", fields)
    return job


def _later_times(new: NewJob, answer: Inserted) -> dict[str, Any]:
    """Return the fields of a job that is due later or has a deadline."""
    deadline_at = new.deadline_at
    if new.deadline is not None:
        deadline_at = answer.created_at + new.deadline
    fields = {"run_at": to_datetime(answer.run_at), "deadline_at": optional_datetime(deadline_at)}
    if answer.run_at <= answer.created_at:
        return fields
    why = f"scheduled for {format_time(answer.run_at)}"
    return {**fields, "phase": "scheduled", "why": why}

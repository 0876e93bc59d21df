"""Run a succeeded job again: enqueue a copy. The first job and its result stay as they are."""

from __future__ import annotations

import json

from mulligan.core.durations import Micros
from mulligan.core.errors import IllegalMove, unknown_job
from mulligan.core.event import queued_event
from mulligan.core.ids import new_id
from mulligan.core.job import Job, JobRow, JobService, NewJob, State
from mulligan.core.json import index_entries
from mulligan.guards.limits import owner_share
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.view import load_job_views
from mulligan.manifest.declared import load_kinds, load_queues
from mulligan.storage.base import Transaction

COPY_OF = "copy_of"  # field of the copy's job.queued event: the job that it repeats


def enqueue_copy(
    tx: Transaction,
    job_id: str,
    service: JobService,
    *,
    actor: str,
    reason: str = "",
    owner: str | None = None,
) -> Job:
    """Enqueue a copy of a succeeded job. With `owner`, another owner's job counts as missing.

    The copy has no batch and no unique key: a key would return the job that has succeeded.
    """
    row = JobQueries(tx).get_job(job_id)
    if row is None or owner not in (None, row.owner):
        raise unknown_job(job_id)
    if row.state != State.SUCCEEDED:
        raise IllegalMove(
            f"job {job_id} is {row.state}; only a succeeded job is run again as a copy. "
            "Retry dead, parked and cancelled jobs."
        )
    now = tx.now()
    copy = _copy(tx, row, now)
    queries = JobQueries(tx)
    queries.insert_jobs([copy], announce=False)
    data = {
        COPY_OF: job_id,
        "reason": reason,
        "before": {},
        "after": {"state": State.QUEUED.value},
    }
    queries.write_queued_events([queued_event(copy, now, actor, data)])
    inserted = queries.get_job(copy.id)
    if inserted is None:
        raise unknown_job(copy.id)
    return load_job_views(tx, [inserted], service)[0]


def _copy(tx: Transaction, row: JobRow, now: Micros) -> NewJob:
    kind = load_kinds(tx).get(row.kind)
    queue = load_queues(tx, now).get(row.queue)
    args: tuple[tuple[str, str], ...] = ()
    if kind is not None and kind.index:
        args = index_entries(json.loads(row.payload), kind.index)
    is_fair = queue is not None and queue.fair
    return NewJob(
        id=new_id(),
        payload=row.payload,
        kind=row.kind,
        queue=row.queue,
        owner=row.owner,
        priority=row.priority,
        uses=row.uses,
        share=owner_share(row.owner) if is_fair else "",
        max_retries=row.max_retries,
        policy=row.policy,
        timeout=row.timeout,
        args=args,
    )

"""Add jobs to a batch: in the transaction that inserts them, under the lock of the batch."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.batches.completion import refuse_expired
from mulligan.batches.queries import BatchQueries, BatchRow
from mulligan.core.errors import (
    BatchCancelled,
    BatchOwner,
    BatchSealed,
    LeaseLost,
    NotFound,
    UniqueMismatch,
)
from mulligan.core.job import NewJob, unique_hash
from mulligan.guards.limits import owner_share
from mulligan.jobs.queries import Inserted, JobQueries
from mulligan.storage.base import Transaction


def insert_members(
    tx: Transaction, new: Sequence[NewJob], *, announce: bool
) -> tuple[list[NewJob], list[Inserted]]:
    """Insert jobs, of which some join batches. Return the jobs as inserted and the answers.

    A member whose unique key is in its batch already is not inserted; its answer names the first.
    """
    jobs = [*new]
    answers: dict[str, Inserted] = {}
    for batch_id in sorted({job.batch_id for job in jobs if job.batch_id is not None}):
        row = BatchQueries(tx).get_batch_for_share(batch_id)
        if row is None:
            raise NotFound(f"no batch {batch_id!r}. Create it before its members: app.batch(name)")
        members = []
        for position, job in enumerate(jobs):
            if job.batch_id == batch_id:
                jobs[position] = _with_batch_owner(job, row)
                members.append(jobs[position])
        answers |= _find_duplicates(tx, row, members)
    fresh = [job for job in jobs if job.id not in answers]
    if fresh:
        inserted = JobQueries(tx).insert_jobs(fresh, announce=announce)
        for job, answer in zip(fresh, inserted, strict=True):
            answers[job.id] = answer
    return jobs, [answers[job.id] for job in jobs]


def _with_batch_owner(job: NewJob, row: BatchRow) -> NewJob:
    """Give a member without an owner the batch's owner, and the fields that follow from it."""
    if not row.owner or job.owner == row.owner:
        return job
    if job.owner:
        raise BatchOwner(
            f"batch {row.id} ({row.name}) belongs to owner {row.owner!r}, this job to {job.owner!r}"
        )
    job = job._replace(owner=row.owner)
    if job.share:
        job = job._replace(share=owner_share(row.owner))
    if job.unique_key is not None:
        job = job._replace(unique_hash=unique_hash(row.owner, job.kind, job.unique_key))
    return job


def _find_duplicates(tx: Transaction, row: BatchRow, jobs: Sequence[NewJob]) -> dict[str, Inserted]:
    """Return jobs whose unique key is in the batch already, and check that the others may join.

    Within a batch a unique key belongs to one member, whatever became of it.
    """
    keys = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    known = BatchQueries(tx).find_batch_members_by_key(row.id, keys) if keys else {}
    duplicates = {}
    for job in jobs:
        first = known.get((job.owner, job.kind, job.unique_key or ""))
        if first is not None:
            duplicates[job.id] = Inserted(_check_same_payload(job, *first), fresh=False)
    fresh = [job for job in jobs if job.id not in duplicates]
    if fresh:
        _check_may_join(tx, row, fresh)
    return duplicates


def _check_same_payload(job: NewJob, first_id: str, first_payload: str) -> str:
    if job.unique_exact and first_payload != job.payload:
        raise UniqueMismatch(
            f"unique key {job.unique_key!r} belongs to job {first_id} of this batch, "
            "which has a different payload"
        )
    return first_id


def _check_may_join(tx: Transaction, row: BatchRow, jobs: Sequence[NewJob]) -> None:
    if row.cancelled_at is not None:
        raise BatchCancelled(f"batch {row.id} ({row.name}) is cancelled; it takes no new members")
    refuse_expired(row, tx.now())
    for job_id, worker, token in sorted({job.added_by for job in jobs if job.added_by}):
        if not BatchQueries(tx).holds_lease(job_id, worker, token, row.id):
            raise LeaseLost(
                f"job {job_id}: this attempt no longer holds the job, "
                f"so it cannot add members to batch {row.id}"
            )
    if row.sealed_at is not None and any(job.added_by is None for job in jobs):
        raise BatchSealed(
            f"batch {row.id} ({row.name}) is sealed; it takes no new members, "
            "except from inside a running member: options(batch=ctx)"
        )

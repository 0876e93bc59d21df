"""Before members are inserted: is there such a batch, may they join it, and are some of them there already?

Whoever adds shares the batch's definition until the end of the transaction and touches nothing else of it, so an open
transaction of a caller delays no ending of anybody's job; it only keeps the batch from being sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from mulligan.engine.batching import refuse_late
from mulligan.engine.runner.context import LeaseLost
from mulligan.engine.unique import unique_hash
from mulligan.errors import BatchCancelled, BatchOwner, BatchSealed, NotFound, UniqueMismatch
from mulligan.job import NewJob
from mulligan.policy.limits import share_of
from mulligan.store.base import BatchRow, Inserted, Unit

_batch_id = attrgetter("batch_id")


def insert(unit: Unit, new: Sequence[NewJob], *, announce: bool) -> tuple[Sequence[NewJob], list[Inserted]]:
    """The jobs as they were inserted, each with its answer."""
    if not any(map(_batch_id, new)):
        return new, unit.insert(new, announce=announce)
    batches = sorted({job.batch_id for job in new if job.batch_id is not None})
    twins: dict[str, Inserted] = {}
    for batch_id in batches:
        row = unit.batch_to_join(batch_id)
        if row is None:
            message = f"no batch {batch_id!r}; a batch is made before its members: app.batch(name)"
            raise NotFound(message)
        new = [_owned(job, row) if job.batch_id == batch_id else job for job in new]
        twins |= _members(unit, row, [job for job in new if job.batch_id == batch_id])
    fresh = [job for job in new if job.id not in twins]
    answers = dict(zip((job.id for job in fresh), unit.insert(fresh, announce=announce) if fresh else (), strict=True))
    return new, [twins.get(job.id) or answers[job.id] for job in new]


def _owned(job: NewJob, row: BatchRow) -> NewJob:
    """A member without an owner takes the batch's, and with it its place and its key."""
    if not row.owner or job.owner == row.owner:
        return job
    if job.owner:
        message = f"batch {row.id} ({row.name}) belongs to owner {row.owner!r}, this job to {job.owner!r}"
        raise BatchOwner(message)
    key = job.unique_key
    return job._replace(
        owner=row.owner,
        share=share_of(row.owner) if job.share else "",
        unique_hash=None if key is None else unique_hash(row.owner, job.kind, key),
    )


def _members(unit: Unit, row: BatchRow, jobs: Sequence[NewJob]) -> dict[str, Inserted]:
    """Those that are there: within a batch a unique key has one member, whatever became of it. The others may join."""
    keys = sorted({job.unique_key for job in jobs if job.unique_key is not None})
    known = unit.batch_twins(row.id, keys) if keys else {}
    found = {job.id: _twin(job, known.get((job.owner, job.kind, job.unique_key or ""))) for job in jobs}
    twins = {job_id: twin for job_id, twin in found.items() if twin is not None}
    fresh = [job for job in jobs if job.id not in twins]
    if fresh:
        _admit(unit, row, fresh)
    return {job_id: Inserted(twin, fresh=False) for job_id, twin in twins.items()}


def _twin(job: NewJob, known: tuple[str, str] | None) -> str | None:
    if known is not None and job.unique_exact and known[1] != job.payload:
        message = f"unique key {job.unique_key!r} belongs to job {known[0]} of this batch, which has another payload"
        raise UniqueMismatch(message)
    return None if known is None else known[0]


def _admit(unit: Unit, row: BatchRow, jobs: Sequence[NewJob]) -> None:
    if row.cancelled_at is not None:
        message = f"batch {row.id} ({row.name}) is cancelled; it takes no new members"
        raise BatchCancelled(message)
    refuse_late(row, unit.now())
    for adder in sorted({job.added_by for job in jobs if job.added_by is not None}):
        if not unit.holds_lease(*adder, row.id):
            message = f"job {adder[0]}: this attempt no longer holds the job, so it adds nothing to batch {row.id}"
            raise LeaseLost(message)
    if row.sealed_at is not None and any(job.added_by is None for job in jobs):
        message = (
            f"batch {row.id} ({row.name}) is sealed; it takes no new members, "
            "except from inside a running member: options(batch=ctx)"
        )
        raise BatchSealed(message)

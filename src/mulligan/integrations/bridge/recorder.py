"""Record a report of a host queue as an attempt of a job.

The attempt is claimed and settled in one transaction, so the job's history is like that of any
other job, and no worker can see it running.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

from mulligan.core.attempt import Decision, Ended, Ending, Lease, Outcome, Verb
from mulligan.core.durations import SECOND
from mulligan.core.ids import host_worker_id
from mulligan.core.job import JobRow, NewJob, State, WorkerRow
from mulligan.guards.observer import DependencyObserver
from mulligan.integrations.bridge.report import ORDER, RunEnd, TaskReport
from mulligan.jobs.queries import JobQueries, Move
from mulligan.jobs.repair import move_job
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Store, Transaction
from mulligan.worker.queries import LeaseQueries, WorkerQueries, boot_id
from mulligan.worker.settle import SettleContext, settle

log = logging.getLogger("mulligan.bridge")

LEASE = 60 * SECOND  # of a worker that exists for one transaction
ORDER_GRACE = 3 * SECOND  # how long a report waits for that of an earlier run
ALL_STATES = tuple(State)  # in which the id of a task identifies its job


class Recorded(Enum):
    """Result of recording a report."""

    NEW = "new"
    KNOWN = "known"  # it was recorded before, or a later one was
    IGNORED = "ignored"  # it says nothing about a job of ours
    BUSY = "busy"  # a worker has claimed the job; try again soon


@dataclass(frozen=True, slots=True)
class RecordContext:
    """Everything besides the report that recording depends on."""

    new_job: NewJob  # for a task without a job
    policies: EffectivePolicies
    # Mulligan decides about the failure, not the host, and observes dependencies.
    observer: DependencyObserver | None = None


def record(
    store: Store, report: TaskReport, context: RecordContext
) -> tuple[Recorded, Decision | None]:
    """Record a report. Return also the decision, if one was made."""
    with store.begin() as tx:
        row = _find_job(tx, context.new_job)
        refusal = _check(tx, row, report, in_order=context.observer is None)
        if refusal is not None:
            return refusal, None
        if row is None:
            JobQueries(tx).insert_jobs([context.new_job], announce=True)
            row = _load_job(tx, context.new_job.id)
        lease = _claim(tx, _make_due(tx, _reopen(tx, row, report)), report)
        if lease is None:
            return Recorded.BUSY, None
        outcome = _make_outcome(report, decide=context.observer is not None)
        settle_context = SettleContext(
            context.policies, tx.now(), Random(), observer=context.observer
        )
        [verdict] = settle(tx, [Ending(lease, outcome)], settle_context)
    if context.observer is not None:
        context.observer.commit()
    return Recorded.NEW, verdict.decision


def _find_job(tx: Transaction, new: NewJob) -> JobRow | None:
    assert new.unique_hash is not None  # noqa: S101 - kinds of tasks have a unique key
    holder = JobQueries(tx).find_unique_holder(new.unique_hash)
    return None if holder is None else JobQueries(tx).get_job(holder)


def _load_job(tx: Transaction, job_id: str) -> JobRow:
    row = JobQueries(tx).get_job(job_id)
    assert row is not None  # noqa: S101 - this transaction has written it
    return row


# --- May it be recorded? ---


def _check(
    tx: Transaction, row: JobRow | None, report: TaskReport, *, in_order: bool
) -> Recorded | None:
    """Return why nothing is recorded; None if the report is to be recorded."""
    if row is None:
        if report.end is RunEnd.SUCCEEDED:
            return Recorded.IGNORED
        return Recorded.BUSY if in_order and _is_early(report, []) else None
    if row.state in {State.SUCCEEDED, State.CANCELLED}:
        return Recorded.KNOWN
    known = [
        (attempt.generation, json.loads(attempt.private or "{}").get("bridge", {}))
        for attempt in JobQueries(tx).list_attempts(row.id)
    ]
    if _is_known(row, report, known):
        return Recorded.KNOWN
    generation = _generation(report, row)
    runs = [one["run"] for number, one in known if number == generation and "run" in one]
    if row.state == State.RUNNING or (in_order and _is_early(report, runs)):
        return Recorded.BUSY
    return None


def _is_known(
    row: JobRow, report: TaskReport, known: Iterable[tuple[int, Mapping[str, Any]]]
) -> bool:
    """True if this report or a later one of the same task was recorded."""
    rank = _rank(report, row)
    for generation, one in known:
        if one.get("report") == report.id:
            return True
        if rank is None or "run" not in one:
            continue
        if rank <= (generation, one["run"], ORDER.index(RunEnd(one["end"]))):
            return True
    return False


def _is_early(report: TaskReport, runs: Collection[int]) -> bool:
    """True if the report of the run before this one may still be on its way.

    A host that runs a task again at once may report the second run first.
    """
    if report.run is None or report.run < 1 or report.run - 1 in runs:
        return False
    return time.time_ns() // 1000 - report.at < ORDER_GRACE


def _rank(report: TaskReport, row: JobRow) -> tuple[int, int, int] | None:
    """Return the place of a report among those of its task; None if it is not known."""
    if report.run is None:
        return None
    return (_generation(report, row), report.run, ORDER.index(report.end))


def _generation(report: TaskReport, row: JobRow) -> int:
    """Return the generation that a report is about. Without a mark it is the first."""
    return min(report.generation or 1, row.generation)


# --- Record ---


def _reopen(tx: Transaction, row: JobRow, report: TaskReport) -> JobRow:
    """Queue a job that has ended: the host ran its task once more."""
    if row.state == State.QUEUED:
        return row
    reason = f"{report.host} ran the task again"
    move_job(tx, row, Verb.RETRY_BY_HAND, report.host, reason)
    return _load_job(tx, row.id)


def _make_due(tx: Transaction, row: JobRow) -> JobRow:
    """Make a queued job due now: its task did not wait for Mulligan."""
    if row.run_at <= tx.now():
        return row
    JobQueries(tx).move_job(
        Move(
            id=row.id,
            from_state=row.state,
            generation=row.generation,
            token=row.token,
            state=row.state,
            run_at=tx.now(),
            new_generation=False,
            finished=False,
            error=None,
            reason=row.reason,
            choice=row.choice,
            unique_hash=row.unique_hash,
            lane_suffix="1" if row.failures else "0",
        )
    )
    return row


def _claim(tx: Transaction, row: JobRow, report: TaskReport) -> Lease | None:
    worker = _transient_worker(report)
    with WorkerQueries(tx).transient_worker(worker):
        leases = LeaseQueries(tx).claim_jobs(worker.id, [row.id], 1)
    return leases[0] if leases else None


def _transient_worker(report: TaskReport) -> WorkerRow:
    """Return a worker named after the host's worker. Its name is unique, as its token is."""
    name = re.sub(r"[^\w@.:-]", "_", report.worker or socket.gethostname(), flags=re.ASCII)
    return WorkerRow(
        id=host_worker_id(report.host, f"{name[:80]}:{report.id[-8:]}"),
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        lease=LEASE,
        started_at=0,
        renewed_at=0,
        renewed_mono=0,
        closed_at=None,
        close_reason="",
        lock_path="",
        lock_dev=0,
        lock_ino=0,
        kinds="[]",
        queues="[]",
        concurrency=1,
        release="",
        draining=False,
    )


def _make_outcome(report: TaskReport, *, decide: bool) -> Outcome:
    """Return the outcome to settle: what the host decided, unless Mulligan decides."""
    if report.end is RunEnd.SUCCEEDED:
        return Outcome(Ended.RETURNED, result="null")
    assert report.failure is not None  # noqa: S101 - every other end has one
    private = {**report.failure.private, "bridge": _describe(report)}
    failure = replace(report.failure, private=private)
    if decide:
        return Outcome(Ended.FAILED, failure=failure)
    if report.end is RunEnd.RETRYING:
        return Outcome(Ended.RETRY, failure=failure, until=report.retry_at, host=report.host)
    return Outcome(Ended.FAILED, failure=failure, final=True, host=report.host)


def _describe(report: TaskReport) -> Mapping[str, Any]:
    """Return what identifies a report, to be stored with its attempt."""
    description: dict[str, Any] = {"report": report.id, "end": report.end.value}
    if report.run is not None:
        description["run"] = report.run
    return description

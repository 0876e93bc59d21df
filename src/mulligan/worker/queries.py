"""Statements about workers and their leases, and about old rows to delete."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import AttemptRow, PreviousAttempts, WorkerRow
from mulligan.jobs.queries import JobQueries
from mulligan.storage.base import Queries
from mulligan.storage.statements import SqlDialect
from mulligan.storage.url import boot_id


class Renewal(NamedTuple):
    """Result of renewing a worker's lease."""

    alive: bool  # False: the worker's row was closed; it must continue under a new id
    now: Micros
    cancels: list[tuple[str, int, str]]  # job id, token, reason
    drain: str | None = None  # reason of a drain request


class WorkerQueries(Queries):
    """Statements about workers and what they run, in a transaction."""

    def insert_worker(self, worker: WorkerRow) -> Micros:
        """Insert a worker. Return the current time.

        An existing row stays: a worker that got no response inserts itself again.
        """
        if self.tx.rows("insert_worker", **worker._asdict()):
            data = {"worker": worker.id, "host": worker.host, "pid": worker.pid}
            self.tx.write_events([NewEvent(EventType.WORKER_STARTED, data=data)])
        return self.tx.now()

    def renew_worker(self, worker: str, *, draining: bool) -> Renewal:
        """Renew the lease of a worker and all its jobs."""
        found = self.tx.rows("renew_worker", id=worker, mono=_monotonic_now(), draining=draining)
        drain_reason = found[0][0] if found else None
        return Renewal(bool(found), self.tx.now(), self.list_cancel_requests(worker), drain_reason)

    def list_cancel_requests(self, worker: str) -> list[tuple[str, int, str]]:
        """List (job, token, reason) of this worker's running jobs that must stop."""
        return [
            (row[0], row[1], row[2]) for row in self.tx.rows("list_cancel_requests", worker=worker)
        ]

    def request_drain(self, worker: str, reason: str) -> bool:
        """Request that a worker finishes its jobs and stops. False: it has stopped."""
        return bool(self.tx.rows("request_drain", id=worker, reason=reason))

    def count_running_by_worker(self) -> dict[str, int]:
        """Count the running jobs of each worker."""
        return {row[0]: row[1] for row in self.tx.rows("count_running_by_worker")}

    def close_worker(self, worker: str, reason: str, *, last_renewed: Micros | None) -> bool:
        """Close a worker's row. It is never opened again.

        With `last_renewed`: only if the worker has not renewed since then.
        """
        return bool(
            self.tx.rows("close_worker", id=worker, reason=reason, last_renewed=last_renewed)
        )

    def list_workers(self, *, closed: bool) -> list[WorkerRow]:
        """List workers, oldest first. `closed` includes those that have stopped."""
        return [WorkerRow._make(row) for row in self.tx.rows("list_workers", closed=closed)]

    def is_expired(self, worker: WorkerRow) -> bool:
        """True if the lease of a worker has expired by the clock that decides about leases."""
        if self.tx.dialect == SqlDialect.SQLITE and worker.boot_id == boot_id():
            elapsed = _monotonic_now() - worker.renewed_mono
            # A negative time comes from another boot, even if the boot id is the same.
            if elapsed >= 0:
                return elapsed > worker.lease
        return self.tx.now() - worker.renewed_at > worker.lease

    def list_leases(self, worker: str) -> list[Lease]:
        """List all leases of a worker, to recover from a claim whose response was lost."""
        return [Lease._make(row) for row in self.tx.rows("list_leases", worker=worker)]

    def list_orphans(self, limit: int) -> list[Lease]:
        """List running jobs whose worker is closed or missing, to be settled as lost."""
        return [Lease._make(row) for row in self.tx.rows("list_orphans", limit=limit)]

    def raise_tokens(self, by: int) -> int:
        """Raise the token of every job, so that none is used twice. Return the number of jobs."""
        return len(self.tx.rows("raise_tokens", by=by))

    def get_previous_attempts(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        """Return checkpoints and the last failure of jobs that ran before."""
        if not ids:
            return {}
        checkpoints: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for job_id, name, value in self.tx.rows("get_checkpoints", ids=self.tx.array_param(ids)):
            checkpoints[job_id][name] = value
        failed = JobQueries(self.tx).get_latest_attempts(ids, failed=True)
        return {
            job_id: PreviousAttempts(checkpoints.get(job_id, {}), _previous(failed.get(job_id)))
            for job_id in ids
            if job_id in checkpoints or job_id in failed
        }

    def update_progress(
        self, worker: str, updates: Sequence[tuple[str, int, float | None, str]]
    ) -> None:
        """Store (id, token, fraction, message) of running attempts, fenced by their leases."""
        for job_id, token, fraction, message in sorted(updates):
            self.tx.rows(
                "update_progress",
                id=job_id,
                worker=worker,
                token=token,
                progress=fraction,
                message=message,
            )

    def save_checkpoint(self, job_id: str, worker: str, token: int, name: str, value: str) -> bool:
        """Save a checkpoint and reset `losses`: a job that makes progress is no poison job.

        False: the lease is lost.
        """
        fence = {"id": job_id, "worker": worker, "token": token}
        if not self.tx.rows("save_checkpoint", **fence, name=name, value=value):
            return False
        self.tx.rows("reset_losses", **fence)
        return True


def _monotonic_now() -> Micros:
    return time.monotonic_ns() // 1000


def _previous(attempt: AttemptRow | None) -> dict[str, Any] | None:
    """Build `ctx.previous`, the last failure as a handler sees it."""
    if attempt is None:
        return None
    return {
        "code": attempt.code,
        "class": attempt.cls,
        "attempt": attempt.attempt,
        "generation": attempt.generation,
        "message": attempt.public,
        "evidence": json.loads(attempt.evidence or "{}"),
    }


class RetentionQueries(Queries):
    """Statements that delete old rows of all features, in a transaction."""

    def prune_slots(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` old slots. Return how many."""
        return len(self.tx.rows("prune_slots", before=before, limit=limit))

    def prune_incidents(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` incidents that were closed before a time."""
        return len(self.tx.rows("prune_incidents", before=before, limit=limit))

    def delete_orphaned_subscriptions(self, before: Micros) -> int:
        """Delete subscriptions of batches that were deleted."""
        return len(self.tx.rows("delete_orphaned_subscriptions", before=before))

    def prune_operations(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` items of old operations, and old operations without items."""
        removed = len(self.tx.rows("prune_items", before=before, limit=limit))
        return removed + len(self.tx.rows("prune_operations", before=before))

    def delete_undeclared_schedules(self, before: Micros) -> int:
        """Delete schedules that no manifest in use has declared since `before`."""
        return len(self.tx.rows("delete_undeclared_schedules", before=before))

    def delete_idle_guards(self, before: Micros) -> int:
        """Delete guards that restrict nothing and were not updated since a time."""
        return len(self.tx.rows("delete_idle_guards", before=before))

    def delete_closed_workers(self, before: Micros) -> int:
        """Delete closed workers that have no running job."""
        return len(self.tx.rows("delete_closed_workers", before=before))

    def delete_old_token_buckets(self, before: Micros) -> None:
        """Delete token buckets of owners that were not used since a time."""
        self.tx.rows("delete_old_token_buckets", before=before)

    def delete_old_group_states(self, before: Micros) -> int:
        """Delete old states of groups that have no dead job."""
        return len(self.tx.rows("delete_old_group_states", before=before))

    def delete_prune_records(self, before: Micros) -> None:
        """Delete old records of what was pruned."""
        self.tx.rows("delete_prune_records", before=before)

    def delete_expired_sessions(self, before: Micros) -> None:
        """Delete sessions that expired before a time."""
        self.tx.rows("delete_expired_sessions", before=before)

    def delete_old_api_keys(self, before: Micros) -> None:
        """Delete keys that were revoked or expired before a time."""
        self.tx.rows("delete_old_api_keys", before=before)

    def prune_stored_responses(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` old responses. Return how many."""
        return len(self.tx.rows("prune_stored_responses", before=before, limit=limit))

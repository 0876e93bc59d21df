"""Statements about workers and their leases, and about old rows to delete."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import AttemptRow, Candidate, PreviousAttempts, State, WorkerRow
from mulligan.events.queries import EventQueries, JobEventQueries
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries, NewJobQueries
from mulligan.releases.queries import ReleaseQueries
from mulligan.steps.queries import StepQueries
from mulligan.storage.base import Queries, RowQueries, RowTransaction, Store, Transaction
from mulligan.storage.statements import SqlDialect
from mulligan.worker.protocol import HookFault

if TYPE_CHECKING:
    from mulligan.config import Settings
    from mulligan.manifest.specs import Manifest
    from mulligan.worker.liveness import LivenessFile

PUBLISH_INTERVAL: Micros = 60 * SECOND  # how often a worker publishes its manifest
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Renewal(NamedTuple):
    """Result of renewing a worker's lease."""

    alive: bool  # False: the worker's row was closed; it must continue under a new id
    now: Micros
    cancels: list[tuple[str, int, str]]  # job id, token, reason
    drain: str | None = None  # reason of a drain request


class HookFaults(NamedTuple):
    """Errors of one hook, of all workers."""

    name: str
    faults: int
    error: str  # the last one
    at: Micros
    worker: str


class WorkerQueries(Queries):
    """Statements about workers and what they run, in a transaction."""

    def insert_worker(self, worker: WorkerRow) -> Micros:
        """Insert a worker. Return the current time.

        An existing row stays: a worker that got no response inserts itself again.
        """
        if self.tx.rows("insert_worker", **worker._asdict()):
            data = {"worker": worker.id, "host": worker.host, "pid": worker.pid}
            EventQueries(self.tx).write_events([NewEvent(EventType.WORKER_STARTED, data=data)])
            if worker.release:
                ReleaseQueries(self.tx).note_release(worker.release)
        return self.tx.now()

    def find_due_upkeep(self, worker: str, manifest_id: str) -> frozenset[str]:
        """Name the parts of upkeep that have something to do."""
        rows = self.tx.rows(
            "find_due_upkeep", worker=worker, manifest=manifest_id, max_age=PUBLISH_INTERVAL
        )
        return frozenset(row[0] for row in rows)

    def renew_worker(
        self, worker: str, *, draining: bool, renewing: Micros = 0, memory: int = 0
    ) -> Renewal:
        """Renew the lease of a worker and all its jobs. `renewing`: without a gap for so long.

        `memory`: resident bytes that the worker and its runners use now.
        """
        found = self.tx.rows(
            "renew_worker",
            id=worker,
            mono=_monotonic_now(),
            draining=draining,
            renewing=renewing,
            memory=memory,
        )
        drain_reason = found[0][0] if found else None
        return Renewal(bool(found), self.tx.now(), self.list_cancel_requests(worker), drain_reason)

    def list_cancel_requests(self, worker: str) -> list[tuple[str, int, str]]:
        """List (job, token, reason) of this worker's running jobs that must stop."""
        return [
            (row[0], row[1], row[2]) for row in self.tx.rows("list_cancel_requests", worker=worker)
        ]

    def record_hook_faults(self, worker: str, faults: Sequence[HookFault]) -> None:
        """Count errors of hooks. In the order of names: two workers must not deadlock."""
        for fault in sorted(faults):
            self.tx.rows(
                "record_hook_fault",
                name=fault.hook,
                faults=fault.faults,
                error=fault.error,
                worker=worker,
            )

    def list_hook_faults(self, since: Micros) -> list[HookFaults]:
        """List the hooks that had errors since a time."""
        return [HookFaults(*row) for row in self.tx.rows("list_hook_faults", since=since)]

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

    @contextmanager
    def transient_worker(self, worker: WorkerRow) -> Iterator[None]:
        """Register a worker during the block, without events: no other transaction sees it."""
        self.tx.rows("insert_worker", **worker._asdict())
        yield
        self.tx.rows("delete_worker", id=worker.id)

    def list_workers(self, *, closed: bool) -> list[WorkerRow]:
        """List workers, oldest first. `closed` includes those that have stopped."""
        return [WorkerRow._make(row) for row in self.tx.rows("list_workers", closed=closed)]

    def live_kinds(self) -> frozenset[str]:
        """Return the kinds that a live worker can run."""
        workers = self.list_workers(closed=False)
        return frozenset(kind for worker in workers for kind in json.loads(worker.kinds))

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

    def advance_ready_jobs(self, old_clock: Micros) -> int:
        """Make queued jobs due that were due at a time of the old clock. Return how many."""
        return len(self.tx.rows("advance_ready_jobs", old_clock=old_clock))

    def raise_tokens(self, by: int) -> int:
        """Raise the token of every job, so that none is used twice. Return the number of jobs."""
        return len(self.tx.rows("raise_tokens", by=by))

    def get_previous_attempts(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        """Return recorded steps and the last failure of jobs that ran before."""
        steps = StepQueries(self.tx).list_recorded(ids)
        failed = JobQueries(self.tx).get_latest_attempts(ids, failed=True)
        return {
            job_id: PreviousAttempts(steps.get(job_id, {}), _previous(failed.get(job_id)))
            for job_id in ids
            if job_id in steps or job_id in failed
        }

    def previous_attempts_of(
        self, leases: Sequence[Lease], history_kinds: frozenset[str] | None = None
    ) -> dict[str, PreviousAttempts]:
        """Return recorded steps and the last failure of leased jobs that ran before.

        `history_kinds`: kinds whose handlers can read them; None: all kinds.
        """
        ids = [
            lease.id
            for lease in leases
            if (lease.token > 1 or lease.generation > 1)
            and (history_kinds is None or lease.kind in history_kinds)
        ]
        return self.get_previous_attempts(ids) if ids else {}

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


def new_worker_row(
    worker: str,
    lock: LivenessFile,
    manifest: Manifest,
    settings: Settings,
    queues: frozenset[str],
    concurrency: int,
) -> WorkerRow:
    """Return the row of a new worker. The store sets its times."""
    return WorkerRow(
        id=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        lease=round(settings.worker.lease * SECOND),
        started_at=0,
        renewed_at=0,
        renewed_mono=time.monotonic_ns() // 1000,
        closed_at=None,
        close_reason="",
        lock_path=str(lock.path),
        lock_dev=lock.dev,
        lock_ino=lock.ino,
        kinds=json.dumps(sorted(manifest.kinds)),
        queues=json.dumps(sorted(queues)),
        concurrency=concurrency,
        release=manifest.release,
        draining=False,
    )


@cache
def boot_id() -> str:
    """Return the id of this boot of the host. Monotonic times of other boots mean nothing."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else "unknown-boot"


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


# --- Claims and settlements ---


class Settlement(NamedTuple):
    """A settlement ready to write: the fence, the event, the job's new columns, the attempt.

    The defaults are those of an attempt without a row of its own: its job's row tells everything.
    """

    lease: Lease
    id: str
    worker: str
    token: int
    state: str
    event: str
    data: str  # of the event
    result: str | None = None
    release_key: bool = False
    ended: str | None = None  # None: a first attempt that succeeded, and nothing else to record
    verb: str | None = None
    settled_by: str | None = None
    failures: int = 0
    reason: str | None = None  # None: that of an attempt that returned
    run_at: int | None = None
    counts: str | None = None
    code: str | None = None
    cls: str | None = None
    rule: str | None = None
    public: str | None = None
    evidence: str | None = None
    private: str | None = None
    fingerprint: str | None = None
    judged: str | None = None
    cancel_known: bool = False
    losses: int = 0
    snoozes: int = 0
    alone: bool = False
    error: str | None = None
    choices: str | None = None
    cost: float = 0.0
    settings: str | None = None
    queue: str | None = None  # None: unchanged
    lane: str | None = None  # lane in that queue


class AttemptLogRow(NamedTuple):
    """The log of a failed attempt, ready to write."""

    job_id: str
    token: int
    records: str
    stacks: str


class RefusalReason(StrEnum):
    """Why a settlement changed nothing."""

    SETTLED = "settled"  # it was written before
    CANCEL = "cancel"  # a cancellation was requested; decide again
    STALE = "stale"  # the lease is lost


class Refusal(NamedTuple):
    """A settlement that changed nothing."""

    id: str
    token: int
    reason: RefusalReason
    cancel_reason: str | None = None


class LaneShare(NamedTuple):
    """How many jobs of a lane and priority a worker wants to claim, and where they begin."""

    lane: str
    priority: int
    since: Micros
    jobs: int


SETTLE_FIELDS = (*Settlement._fields, "now")
ATTEMPT_FIELDS = (*Settlement._fields, *Lease._fields, "now")
# Columns of a settlement that are left out if no row of the set has a value in them. Two groups
# make four statements, so that each is soon prepared.
ATTEMPT_COLUMNS = frozenset(
    {"ended", "verb", "settled_by", "failures", "reason", "run_at", "counts", "judged"}
    | {"code", "cls", "rule", "public", "evidence", "private", "fingerprint"}
)
RARE_COLUMNS = frozenset(
    {"cancel_known", "losses", "snoozes", "alone", "error", "choices", "release_key", "cost"}
    | {"settings", "queue", "lane"}
)
OPTIONAL_COLUMNS = (ATTEMPT_COLUMNS, RARE_COLUMNS)


class LeaseRowQueries(RowQueries):
    """Statements that claim and settle one job after another (SQLite)."""

    def read_and_claim(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        """Read jobs and then claim them. A closed worker claims nothing."""
        if not ids or not self.tx.rows("is_open_worker", worker=worker):
            return []
        rows = self.tx.rows("list_claimable_jobs", worker=worker, ids=self.tx.array_param(ids))
        by_id = {row[1]: row for row in rows}
        chosen = [by_id[job_id] for job_id in ids if job_id in by_id][:limit]
        # Each row: rowid, the columns of the lease, `announced`. This transaction holds the write
        # lock, so the rows cannot have changed since they were read.
        places = self.tx.array_param([row[0] for row in chosen])
        self.tx.rows("claim_jobs", worker=worker, places=places)
        unannounced = [row[1] for row in chosen if not row[-1]]
        if unannounced:
            NewJobQueries(self.tx).announce_ids(unannounced)
        leases = [Lease._make(row[1:-1]) for row in chosen]
        data = [f'{{"worker":"{worker}","retries":{lease.failures}}}' for lease in leases]
        JobEventQueries(self.tx).write_row_events(EventType.JOB_STARTED.value, leases, data)
        return leases

    def settle_each(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Settle attempts one after another. Return those whose fence held."""
        now = self.tx.now()
        rows = [(*row, now) for row in settlements]
        settled = self.tx.run_each("settle", SETTLE_FIELDS, rows)
        written = settlements
        if len(settled) < len(settlements):
            written = [settlements[place] for place in settled]
        attempts = [(*row, *row.lease, now) for row in written if row.ended is not None]
        self.tx.run_many("write_attempts", ATTEMPT_FIELDS, attempts)
        by_type = sorted(written, key=attrgetter("event"))
        for event_type, group in groupby(by_type, key=attrgetter("event")):
            rows_of_type = [*group]
            leases = [row.lease for row in rows_of_type]
            data = [row.data for row in rows_of_type]
            JobEventQueries(self.tx).write_row_events(event_type, leases, data)
        return {(row.id, row.token) for row in written}


class LeaseQueries(Queries):
    """Statements that claim jobs and settle attempts, in a transaction."""

    # --- Claim ---
    def claim_candidates(self, worker: str, picked: Sequence[Candidate]) -> list[Lease]:
        """Claim picked jobs. Return their leases in this order.

        If another worker has taken some of them meanwhile, claim the next jobs of their lanes.
        """
        if isinstance(self.tx, RowTransaction):
            ids = [job.id for job in picked]
            return LeaseRowQueries(self.tx).read_and_claim(worker, ids, len(picked))
        if not picked:
            return []
        # By lane and not by id: workers that picked the same jobs get different ones.
        counts = Counter((job.lane, job.priority) for job in picked)
        since = {(job.lane, job.priority): job.run_at for job in reversed(picked)}
        shares = [LaneShare(*lane, since[lane], jobs) for lane, jobs in counts.items()]
        columns = LaneShare._make(map(self.tx.array_param, zip(*shares, strict=True)))
        rows = self.tx.rows("claim_from_lanes", len(picked), worker=worker, **columns._asdict())
        order = {job.id: place for place, job in enumerate(picked)}
        last = len(order)
        return sorted(map(Lease._make, rows), key=lambda lease: order.get(lease.id, last))

    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        """Claim at most `limit` of the jobs, in their order. Skip those that are locked."""
        if isinstance(self.tx, RowTransaction):
            return LeaseRowQueries(self.tx).read_and_claim(worker, ids, limit)
        order = {job_id: place for place, job_id in enumerate(ids)}
        chosen = self.tx.array_param(ids)
        rows = self.tx.rows("claim_jobs", limit, worker=worker, ids=chosen, limit=limit)
        return sorted(map(Lease._make, rows), key=lambda lease: order[lease.id])

    # --- Settle ---
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        """Settle attempts with their rows and events. The only way an attempt changes its job.

        Fenced by id, worker, token and state. Attempts whose fence fails are returned as refusals
        and change nothing.
        """
        if isinstance(self.tx, RowTransaction):
            written = LeaseRowQueries(self.tx).settle_each(settlements)
        else:
            count = len(settlements)
            in_order = sorted(settlements, key=attrgetter("id"))
            found = self.tx.run_set("settle", in_order, OPTIONAL_COLUMNS, rows=count)
            if found and found[0][1] == count:
                return []
            written = {(row[0], row[1]) for row in found[1:]}
        if len(written) == len(settlements):
            return []
        refused = [row for row in settlements if (row.id, row.token) not in written]
        return [self._explain_refusal(row) for row in refused]

    def write_logs(self, rows: Sequence[AttemptLogRow]) -> None:
        """Write the logs of attempts that this transaction has settled."""
        if rows:
            self.tx.run_set("write_attempt_logs", rows)

    def _explain_refusal(self, row: Settlement) -> Refusal:
        settled_by = row.settled_by or row.worker
        found = self.tx.rows("explain_refusal", id=row.id, token=row.token, settled_by=settled_by)
        if not found:
            return Refusal(row.id, row.token, RefusalReason.STALE)
        state, worker, token, cancel_reason, written = found[0]
        if written:
            return Refusal(row.id, row.token, RefusalReason.SETTLED)
        if (state, worker, token) == (State.RUNNING, row.worker, row.token):
            return Refusal(row.id, row.token, RefusalReason.CANCEL, cancel_reason)
        return Refusal(row.id, row.token, RefusalReason.STALE)


# --- Warm-up: run a worker's statements once without effect, so that their plans are cached ---

NO_WORKER = ""
PREPARE_AFTER = 2  # executions until the driver prepares a statement
WARM_UP_ROWS = 2  # a set of rows has another statement than one row


def warm_up(store: Store) -> None:
    """Run the statements of claims and settlements for a worker that does not exist."""
    if store.prepared:
        with store.single_statement() as tx:
            _warm_up(tx)


def _warm_up(tx: Transaction) -> None:
    now = tx.now()
    success = _sample_settlement(state="succeeded")
    failure = _sample_settlement(state="queued", ended="", run_at=now, code="UNKNOWN")
    for _ in range(PREPARE_AFTER):
        warm_up_claim(tx)
        LeaseQueries(tx).settle([success] * WARM_UP_ROWS)
        LeaseQueries(tx).settle([failure] * WARM_UP_ROWS)


def warm_up_claim(tx: Transaction) -> None:
    """Run the statements of a claim for a worker that does not exist."""
    GuardQueries(tx).read_claim_state([("", 0)], 1)
    LeaseQueries(tx).claim_candidates(NO_WORKER, [Candidate(0, 0, "", "")])


def _sample_settlement(**columns: Any) -> Settlement:
    """Build a settlement of a job that does not exist."""
    return Settlement(
        lease=Lease._make([""] * len(Lease._fields)),  # PostgreSQL reads these values itself
        id="",
        worker=NO_WORKER,
        token=1,
        event="",
        data="",
        **columns,
    )


# --- Retention ---


class RetentionQueries(Queries):
    """Statements that delete old rows of all features, in a transaction."""

    def prune_slots(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` old slots. Return how many."""
        return len(self.tx.rows("prune_slots", before=before, limit=limit))

    def prune_attempt_logs(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` logs of attempts that ended before a time."""
        return len(self.tx.rows("prune_attempt_logs", before=before, limit=limit))

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

    def delete_old_hook_faults(self, before: Micros) -> None:
        """Delete the errors of hooks that have had none since a time."""
        self.tx.rows("delete_old_hook_faults", before=before)

    def delete_old_token_buckets(self, before: Micros) -> None:
        """Delete token buckets of owners that were not used since a time."""
        self.tx.rows("delete_old_token_buckets", before=before)

    def delete_old_group_states(self, before: Micros) -> int:
        """Delete old states of groups that have no dead job."""
        return len(self.tx.rows("delete_old_group_states", before=before))

    def delete_old_causes(self, before: Micros, most: int) -> None:
        """Delete causes without dead jobs that are old, and the oldest of more than `most`."""
        self.tx.rows("delete_old_causes", before=before, most=most)

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

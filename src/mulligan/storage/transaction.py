"""Methods of a transaction that are the same on both databases.

What differs is in `sqlite_transaction.py` and `postgres_transaction.py`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from operator import attrgetter
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueMismatch
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.core.job import (
    AttemptRow,
    Gate,
    GuardRow,
    JobRow,
    Limit,
    LimitKey,
    LimitRow,
    NewJob,
    PreviousAttempts,
    State,
    TokenBucket,
    WorkerRow,
)
from mulligan.storage import event_bundles as bundles
from mulligan.storage.access_queries import SqlApiKeyQueries, SqlAuditQueries, SqlSessionQueries
from mulligan.storage.base import (
    ClaimState,
    Inserted,
    Move,
    PrunedJobs,
    Refusal,
    Renewal,
    ScheduleRow,
    Settlement,
    Transaction,
)
from mulligan.storage.batch_queries import SqlBatchQueries
from mulligan.storage.failure_queries import SqlFailureQueries
from mulligan.storage.guard_queries import SqlGuardQueries
from mulligan.storage.history_queries import SqlHistoryQueries, SqlVerifyQueries
from mulligan.storage.notification_queries import SqlNotificationQueries
from mulligan.storage.operation_queries import SqlOperationQueries
from mulligan.storage.rows import event_params, unique_race
from mulligan.storage.search_queries import ArgRow, Conditions, SqlSearchQueries, Where
from mulligan.storage.stat_queries import SqlAlertQueries, SqlStatQueries

MAX_LANES = 2000 * 19  # pairs of lane and priority that a claim reads
UNIQUE_ROUNDS_LIMIT = 3  # attempts to insert a unique key whose holder changes


class SqlTransaction(
    SqlHistoryQueries,
    SqlGuardQueries,
    SqlFailureQueries,
    SqlBatchQueries,
    SqlAuditQueries,
    SqlOperationQueries,
    SqlApiKeyQueries,
    SqlSessionQueries,
    SqlSearchQueries,
    SqlNotificationQueries,
    SqlStatQueries,
    SqlAlertQueries,
    SqlVerifyQueries,
    Transaction,
):
    """Transaction that runs the statements in `storage/sql`."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement by its name and return its rows."""

    @abstractmethod
    def rows_where(self, statement: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the jobs that match a filter."""

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        """Run a statement on the jobs that match the conditions built from a filter."""

    @abstractmethod
    def array_param(self, values: Sequence[Any]) -> Any:
        """Convert a list of texts or numbers to a parameter of this database."""

    @abstractmethod
    def insert_rows(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        """Insert the jobs whose unique key is free. Return their number and the time of insert."""

    @abstractmethod
    def run_command(self, text: str) -> None:
        """Run a statement given as text."""

    @abstractmethod
    def settle_fenced(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Settle attempts. Return (id, token) of those whose fence held."""

    @abstractmethod
    def monotonic_now(self) -> Micros:
        """Return CLOCK_MONOTONIC of this host."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self.run_command("SAVEPOINT mulligan")
        try:
            yield
        except BaseException:
            self.run_command("ROLLBACK TO SAVEPOINT mulligan")
            raise
        self.run_command("RELEASE SAVEPOINT mulligan")

    # --- Enqueue ---
    def insert_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        if any(map(_unique_hash, jobs)):
            with self.savepoint() if len(jobs) > 1 else nullcontext():
                return self._insert_unique(jobs, announce=announce)
        _, now = self.insert_rows(jobs, announce=announce)
        if any(map(_args, jobs)):
            self._write_args(jobs)
        results = []
        for job in jobs:
            run_at = now + job.delay if job.run_at is None else job.run_at
            results.append(Inserted(job.id, True, run_at, now))
        return results

    def _insert_unique(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """Insert jobs, or find the holders of their unique keys."""
        results: dict[str, Inserted] = {}
        # All transactions insert keys in this order, so they may wait for each other but cannot
        # deadlock.
        remaining = sorted(jobs, key=lambda job: job.unique_hash or "")
        for _ in range(UNIQUE_ROUNDS_LIMIT):
            count, now = self.insert_rows(remaining, announce=announce)
            if count == len(remaining):
                results |= {job.id: _inserted(job, now) for job in remaining}
            else:
                results |= self._find_holders(remaining, now)
            remaining = [job for job in remaining if job.id not in results]
            if not remaining:
                self._write_args([job for job in jobs if results[job.id].fresh])
                return [results[job.id] for job in jobs]
        raise unique_race(remaining[0].unique_key)

    def _find_holders(self, jobs: Sequence[NewJob], now: Micros) -> dict[str, Inserted]:
        """Return a result for each job that was inserted or whose unique key another job holds.

        A job without a result must be inserted again: the holder of its key is gone.
        """
        hashes = self.array_param([job.unique_hash for job in jobs if job.unique_hash])
        found = self.rows("find_unique_holders", hashes=hashes)
        holders = {unique_hash: holder for unique_hash, *holder in found}
        results = {}
        for job in jobs:
            if job.unique_hash is None:
                results[job.id] = _inserted(job, now)
            elif job.unique_hash in holders:
                result = self._result_of_holder(job, now, *holders[job.unique_hash])
                if result is not None:
                    results[job.id] = result
        return results

    def _result_of_holder(
        self, job: NewJob, now: Micros, holder: str, payload: str, until: Micros | None
    ) -> Inserted | None:
        if holder == job.id:
            return _inserted(job, now)
        if until is not None and until <= self.now():
            self.rows("release_unique_key", id=holder, unique_hash=job.unique_hash)
            return None
        if job.unique_exact and payload != job.payload:
            message = (
                f"unique key {job.unique_key!r} belongs to job {holder}, which has another payload"
            )
            raise UniqueMismatch(message)
        return Inserted(holder, fresh=False)

    def _write_args(self, jobs: Sequence[NewJob]) -> None:
        """Index the arguments of new jobs, for filters."""
        rows = [ArgRow(job.id, job.kind, *arg) for job in jobs for arg in job.args]
        if rows:
            self.write_args(rows)

    def write_queued_events(self, events: Sequence[NewEvent]) -> None:
        job_ids = [event.job_id for event in events if event.job_id is not None]
        self.rows("mark_announced", ids=self.array_param(job_ids))
        self.write_events(events)

    # --- Claim ---
    def read_claim_state(self) -> ClaimState:
        return self.parse_claim_state(self.rows("read_claim_state", lanes=MAX_LANES))

    @staticmethod
    def parse_claim_state(rows: Iterable[Sequence[Any]]) -> ClaimState:
        """Build a ClaimState from the rows of `read_claim_state`, which have different types."""
        now = 0
        gates = []
        lanes = []
        guards = []
        limits: dict[LimitKey, tuple[Micros | None, Limit]] = {}
        for row_type, name, key, first, second, text, actor in rows:
            if row_type == "lane":
                lanes.append((name, first, second))
            elif row_type == "gate":
                gates.append(Gate(name, key, first, second, text, actor))
            elif row_type == "guard":
                guards.append(GuardRow(name, key, first, active=True, body=text))
            elif row_type == "limit":
                rate = None if text is None else float(text)
                limits[name, key] = (second, Limit(first, rate))
            else:
                now = first
        in_force = {
            key: limit for key, (until, limit) in limits.items() if until is None or until > now
        }
        return ClaimState(now, gates, in_force, lanes, guards)

    # --- Limits ---
    def atomically(self) -> AbstractContextManager[None]:
        return nullcontext()

    def count_running(self) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in self.rows("count_running")]

    def count_waiting(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        rows = self.rows("count_waiting", lane=lane, priority=priority, at_time=now, cap=cap)
        due, later = rows[0]
        return due, later

    def lock_token_buckets(
        self, keys: Sequence[LimitKey]
    ) -> dict[LimitKey, tuple[TokenBucket, Micros] | None]:
        return {key: self._lock_token_bucket(key) for key in sorted(keys)}

    def _lock_token_bucket(self, key: LimitKey) -> tuple[TokenBucket, Micros] | None:
        name = {"scope": key[0], "key": key[1]}
        found = self.rows("lock_token_bucket", **name)
        if not found and not self.rows("token_bucket_exists", **name):
            # A new bucket starts full: its last refill lies at time 0.
            self.rows("insert_token_bucket", **name, tokens=0.0, at=0)
            found = self.rows("lock_token_bucket", **name)
        if not found:
            return None
        tokens, at, now, *_ = found[0]
        return TokenBucket(tokens, at), now

    def update_token_bucket(self, key: LimitKey, left: TokenBucket) -> None:
        self.rows("update_token_bucket", scope=key[0], key=key[1], tokens=left.tokens, at=left.at)

    def list_limits(self) -> list[LimitRow]:
        return [LimitRow._make(row) for row in self.rows("list_limits")]

    def set_limit(self, row: LimitRow) -> None:
        self.rows("set_limit", **row._asdict())

    def clear_limit(self, key: LimitKey) -> bool:
        return bool(self.rows("clear_limit", scope=key[0], key=key[1]))

    def list_leases(self, worker: str) -> list[Lease]:
        return [Lease._make(row) for row in self.rows("list_leases", worker=worker)]

    def get_previous_attempts(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        if not ids:
            return {}
        checkpoints: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for job_id, name, value in self.rows("get_checkpoints", ids=self.array_param(ids)):
            checkpoints[job_id][name] = value
        failed = self._latest_attempts(ids, failed=True)
        return {
            job_id: PreviousAttempts(checkpoints.get(job_id, {}), _previous(failed.get(job_id)))
            for job_id in ids
            if job_id in checkpoints or job_id in failed
        }

    # --- Running attempts ---
    def update_progress(
        self, worker: str, updates: Sequence[tuple[str, int, float | None, str]]
    ) -> None:
        for job_id, token, fraction, message in sorted(updates):
            self.rows(
                "update_progress",
                id=job_id,
                worker=worker,
                token=token,
                progress=fraction,
                message=message,
            )

    def save_checkpoint(self, job_id: str, worker: str, token: int, name: str, value: str) -> bool:
        fence = {"id": job_id, "worker": worker, "token": token}
        if not self.rows("save_checkpoint", **fence, name=name, value=value):
            return False
        self.rows("reset_losses", **fence)
        return True

    # --- Settle ---
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        written = self.settle_fenced(settlements)
        if len(written) == len(settlements):
            return []
        refused = [row for row in settlements if (row.id, row.token) not in written]
        return [self._explain_refusal(row) for row in refused]

    def _explain_refusal(self, row: Settlement) -> Refusal:
        found = self.rows("explain_refusal", id=row.id, token=row.token, settled_by=row.settled_by)
        if not found:
            return Refusal(row.id, row.token, "stale", None)
        state, worker, token, cancel_reason, written = found[0]
        if written:
            return Refusal(row.id, row.token, "settled", None)
        if (state, worker, token) == (State.RUNNING, row.worker, row.token):
            return Refusal(row.id, row.token, "cancel", cancel_reason)
        return Refusal(row.id, row.token, "stale", None)

    def list_gates(self) -> list[Gate]:
        return [Gate._make(row) for row in self.rows("list_gates")]

    def close_gate(self, gate: Gate) -> None:
        self.rows("close_gate", **gate._asdict())

    def open_gate(self, scope: str, key: str) -> bool:
        return bool(self.rows("open_gate", scope=scope, key=key))

    def write_events(self, events: Iterable[NewEvent]) -> None:
        for event in events:
            self.rows("write_event", **event_params(event))

    # --- Manual actions and upkeep ---
    def move_job(self, move: Move) -> bool:
        moved = self.rows("move_job", **move._asdict())
        if not moved:
            return False
        announced, kind, queue, owner, batch_id, run_at = moved[0]
        if not announced:
            # The job was inserted in a caller's transaction: its first event is still missing.
            data = {"kind": kind, "queue": queue, "run_at": run_at}
            event = NewEvent(
                EventType.JOB_QUEUED, job_id=move.id, batch_id=batch_id, owner=owner, data=data
            )
            self.write_queued_events([event])
        return True

    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        return bool(self.rows("request_cancel", id=job_id, token=token, reason=reason))

    def list_due_deadlines(self, limit: int) -> list[JobRow]:
        return [JobRow._make(row) for row in self.rows("list_due_deadlines", limit=limit)]

    def list_overdue_jobs(self, lane: str, before: Micros, limit: int) -> list[JobRow]:
        return [
            JobRow._make(row)
            for row in self.rows("list_overdue_jobs", lane=lane, before=before, limit=limit)
        ]

    def prune_jobs(
        self,
        state: str,
        before: Micros,
        limit: int,
        *,
        kind: str | None,
        except_kinds: Sequence[str],
    ) -> list[PrunedJobs]:
        prunable = self.rows(
            "list_prunable_jobs",
            state=state,
            before=before,
            limit=limit,
            kind=kind,
            except_kinds=self.array_param(except_kinds),
        )
        return self.delete_pruned_jobs(prunable)

    def delete_pruned_jobs(self, prunable: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]:
        """Delete jobs with all that belongs to them, and record how many of which kind."""
        if not prunable:
            return []
        ids = self.array_param([row[0] for row in prunable])
        for statement in ("delete_attempts", "delete_checkpoints", "delete_args", "delete_jobs"):
            self.rows(statement, ids=ids)
        records = _summarise(prunable)
        at = self.now()
        for record in records:
            self.rows("record_pruned_jobs", at=at, **record._asdict())
        self.write_events(
            NewEvent(EventType.JOB_PRUNED, owner=record.owner, data=record._asdict())
            for record in records
        )
        return records

    def delete_prune_records(self, before: Micros) -> None:
        self.rows("delete_prune_records", before=before)

    # --- Workers ---
    def insert_worker(self, worker: WorkerRow) -> Micros:
        if self.rows("insert_worker", **worker._asdict()):
            data = {"worker": worker.id, "host": worker.host, "pid": worker.pid}
            self.write_events([NewEvent(EventType.WORKER_STARTED, data=data)])
        return self.now()

    def renew_worker(self, worker: str, *, draining: bool) -> Renewal:
        found = self.rows("renew_worker", id=worker, mono=self.monotonic_now(), draining=draining)
        drain_reason = found[0][0] if found else None
        return Renewal(bool(found), self.now(), self.list_cancel_requests(worker), drain_reason)

    def list_cancel_requests(self, worker: str) -> list[tuple[str, int, str]]:
        return [
            (row[0], row[1], row[2]) for row in self.rows("list_cancel_requests", worker=worker)
        ]

    def request_drain(self, worker: str, reason: str) -> bool:
        return bool(self.rows("request_drain", id=worker, reason=reason))

    def count_running_by_worker(self) -> dict[str, int]:
        return {row[0]: row[1] for row in self.rows("count_running_by_worker")}

    def close_worker(self, worker: str, reason: str, *, last_renewed: Micros | None) -> bool:
        return bool(self.rows("close_worker", id=worker, reason=reason, last_renewed=last_renewed))

    def list_workers(self, *, closed: bool) -> list[WorkerRow]:
        return [WorkerRow._make(row) for row in self.rows("list_workers", closed=closed)]

    def list_orphans(self, limit: int) -> list[Lease]:
        return [Lease._make(row) for row in self.rows("list_orphans", limit=limit)]

    def raise_tokens(self, by: int) -> int:
        return len(self.rows("raise_tokens", by=by))

    def delete_closed_workers(self, before: Micros) -> int:
        return len(self.rows("delete_closed_workers", before=before))

    # --- Manifests ---
    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None:
        self.rows("store_manifest", id=manifest_id, app=app, release=release, body=body)

    def list_manifests(self) -> list[tuple[str, str, str, str, Micros]]:
        return [(row[0], row[1], row[2], row[3], row[4]) for row in self.rows("list_manifests")]

    # --- Schedules ---
    def list_schedules(self) -> list[ScheduleRow]:
        return [ScheduleRow._make(row) for row in self.rows("list_schedules")]

    def declare_schedule(self, name: str, cron: str, timezone: str) -> ScheduleRow | None:
        inserted = self.rows("declare_schedule", name=name, cron=cron, timezone=timezone)
        return ScheduleRow._make(inserted[0]) if inserted else None

    def advance_schedule(self, row: ScheduleRow, *, from_cursor: Micros) -> bool:
        updated = self.rows(
            "advance_schedule",
            name=row.name,
            cron=row.cron,
            timezone=row.timezone,
            cursor=row.cursor,
            from_cursor=from_cursor,
        )
        return bool(updated)

    def pause_schedule(self, name: str, until: Micros | None, actor: str, reason: str) -> bool:
        return bool(self.rows("pause_schedule", name=name, until=until, actor=actor, reason=reason))

    def resume_schedule(self, row: ScheduleRow, cursor: Micros) -> bool:
        return bool(
            self.rows("resume_schedule", name=row.name, from_cursor=row.cursor, cursor=cursor)
        )

    def touch_schedules(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.rows("touch_schedule", name=name)

    def claim_slots(self, schedule: str, jobs: Mapping[Micros, str]) -> set[Micros]:
        claimed = set()
        for slot in sorted(jobs):
            if self.rows("claim_slot", schedule=schedule, slot=slot, job_id=jobs[slot]):
                claimed.add(slot)
        return claimed

    def get_last_slots(self) -> dict[str, tuple[Micros, str]]:
        return {name: (slot, job_id) for name, slot, job_id in self.rows("get_last_slots")}

    def prune_slots(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_slots", before=before, limit=limit))

    def delete_schedules(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.rows("delete_schedule", name=name)

    def delete_undeclared_schedules(self, before: Micros) -> int:
        return len(self.rows("delete_undeclared_schedules", before=before))

    # --- Read ---
    def get_job(self, job_id: str) -> JobRow | None:
        found = self.rows("get_job", id=job_id)
        return JobRow._make(found[0]) if found else None

    def find_jobs(self, prefix: str, limit: int = 2) -> list[str]:
        return [
            row[0] for row in self.rows("find_jobs", prefix=prefix, upper=prefix + "~", limit=limit)
        ]

    def list_attempts(self, job_id: str) -> list[AttemptRow]:
        return [AttemptRow._make(row) for row in self.rows("list_attempts", id=job_id)]

    def get_latest_attempts(self, ids: Sequence[str]) -> dict[str, AttemptRow]:
        return self._latest_attempts(ids, failed=False) if ids else {}

    def _latest_attempts(self, ids: Sequence[str], *, failed: bool) -> dict[str, AttemptRow]:
        found = self.rows("get_latest_attempts", ids=self.array_param(ids), failed=failed)
        return {row[0]: AttemptRow._make(row) for row in found}

    def list_events_of_job(self, job_id: str) -> list[Event]:
        return self.list_events_of_jobs([job_id])

    def events_in_range(
        self, statement: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        # A bundle that ends above `top` may contain events below it.
        bounds = {"cursor": cursor, "top": top, "upper": top + bundles.BUNDLE_LIMIT}
        rows = self.rows(statement, **bounds, limit=limit, **params)
        return [*islice(bundles.events_in(rows, cursor, top), limit)]


_unique_hash = attrgetter("unique_hash")
_args = attrgetter("args")


def _inserted(job: NewJob, now: Micros) -> Inserted:
    """Return the result of a job that was inserted now."""
    run_at = now + job.delay if job.run_at is None else job.run_at
    return Inserted(job.id, fresh=True, run_at=run_at, created_at=now)


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


def _summarise(prunable: Sequence[tuple[Any, ...]]) -> list[PrunedJobs]:
    """Group jobs by kind, state, owner and code."""
    groups: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for job_id, kind, state, owner, error in prunable:
        code = json.loads(error)["code"] if error else ""
        groups[kind, state, owner, code].append(job_id)
    return [
        PrunedJobs(*key, jobs=len(ids), first_id=min(ids), last_id=max(ids))
        for key, ids in groups.items()
    ]

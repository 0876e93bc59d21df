"""Methods of a transaction that are the same on both databases.

What differs is in `sqlite_transaction.py` and `postgres_transaction.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueMismatch
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import (
    Candidate,
    ClaimState,
    Gate,
    GuardRow,
    Limit,
    LimitKey,
    NewJob,
    State,
)
from mulligan.storage.base import Inserted, Move, Refusal, RefusalReason, Settlement, Transaction
from mulligan.storage.rows import due_time, event_params, has_unique_key, unique_race

MAX_LANES = 2000 * 19  # pairs of lane and priority that a claim reads
UNIQUE_ROUNDS_LIMIT = 3  # attempts to insert a unique key whose holder changes


class SqlTransaction(Transaction):
    """Transaction that runs the statements of claims, settlements and inserts."""

    @abstractmethod
    def insert_new_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> dict[str, Inserted]:
        """Insert jobs. Return the results of those whose unique key was free."""

    @abstractmethod
    def run_command(self, text: str) -> None:
        """Run a statement given as text."""

    @abstractmethod
    def settle_fenced(self, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Settle attempts. Return (id, token) of those whose fence held."""

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
        if not has_unique_key(jobs):
            now = self.insert_unconstrained(jobs, announce=announce)
            return [Inserted._make((job[0], True, due_time(job, now), now)) for job in jobs]
        with self.savepoint() if len(jobs) > 1 else nullcontext():
            return self._insert_unique(jobs, announce=announce)

    def _insert_unique(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """Insert jobs, or find the holders of their unique keys."""
        results: dict[str, Inserted] = {}
        # All transactions insert keys in this order, so they may wait for each other but cannot
        # deadlock.
        remaining = sorted(jobs, key=lambda job: job.unique_hash or "")
        for _ in range(UNIQUE_ROUNDS_LIMIT):
            results |= self.insert_new_jobs(remaining, announce=announce)
            refused = [job for job in remaining if job.id not in results]
            remaining = [job for job in refused if not self._use_holder(job, results)]
            if not remaining:
                return [results[job.id] for job in jobs]
        raise unique_race(remaining[0].unique_key)

    def _use_holder(self, job: NewJob, results: dict[str, Inserted]) -> bool:
        """Store the holder of a job's unique key as its result. False: insert the job again."""
        found = self.rows("find_unique_holder", unique_hash=job.unique_hash)
        if not found:
            return False
        holder, payload, until = found[0]
        if until is not None and until <= self.now():
            self.rows("release_unique_key", id=holder, unique_hash=job.unique_hash)
            return False
        if job.unique_exact and payload != job.payload:
            message = (
                f"unique key {job.unique_key!r} belongs to job {holder}, which has another payload"
            )
            raise UniqueMismatch(message)
        results[job.id] = Inserted(holder, fresh=False)
        return True

    def write_queued_events(self, events: Sequence[NewEvent]) -> None:
        job_ids = [event.job_id for event in events if event.job_id is not None]
        self.rows("mark_announced", ids=self.array_param(job_ids))
        self.write_events(events)

    # --- Claim ---
    @staticmethod
    def parse_claim_state(rows: Iterable[Sequence[Any]]) -> ClaimState:
        """Build a ClaimState from the rows of `read_claim_state`, which have different types."""
        now = 0
        gates = []
        lanes = []
        guards = []
        candidates = []
        limits: dict[LimitKey, tuple[Micros | None, Limit]] = {}
        for row_type, name, key, first, second, text, actor in rows:
            if row_type == "job":
                candidates.append(Candidate(first, second, key, name))
            elif row_type == "lane":
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
        return ClaimState(now, gates, in_force, lanes, guards, candidates)

    def atomically(self) -> AbstractContextManager[None]:
        return nullcontext()

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
            return Refusal(row.id, row.token, RefusalReason.STALE)
        state, worker, token, cancel_reason, written = found[0]
        if written:
            return Refusal(row.id, row.token, RefusalReason.SETTLED)
        if (state, worker, token) == (State.RUNNING, row.worker, row.token):
            return Refusal(row.id, row.token, RefusalReason.CANCEL, cancel_reason)
        return Refusal(row.id, row.token, RefusalReason.STALE)

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

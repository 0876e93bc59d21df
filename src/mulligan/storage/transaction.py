"""Methods of a transaction that are the same on both databases.

What differs is in `sqlite_transaction.py` and `postgres_transaction.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueMismatch
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import (
    ArgRow,
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
from mulligan.storage.rows import event_params, unique_race

MAX_LANES = 2000 * 19  # pairs of lane and priority that a claim reads
UNIQUE_ROUNDS_LIMIT = 3  # attempts to insert a unique key whose holder changes


class SqlTransaction(Transaction):
    """Transaction that runs the statements of claims, settlements and inserts."""

    @abstractmethod
    def insert_rows(self, jobs: Sequence[NewJob], *, announce: bool) -> tuple[int, Micros]:
        """Insert the jobs whose unique key is free. Return their number and the time of insert."""

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
            self.run_set("write_args", rows)

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


_unique_hash = attrgetter("unique_hash")
_args = attrgetter("args")


def _inserted(job: NewJob, now: Micros) -> Inserted:
    """Return the result of a job that was inserted now."""
    run_at = now + job.delay if job.run_at is None else job.run_at
    return Inserted(job.id, fresh=True, run_at=run_at, created_at=now)

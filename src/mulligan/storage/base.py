"""Interfaces of a database: `Store` opens transactions, `Transaction` has one method per statement.

SQLite and PostgreSQL implement every method. No method decides anything: the rules are in the
feature packages, and a statement that changes nothing reports that by its return value.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import Event, NewEvent
from mulligan.core.job import (
    AttemptRow,
    Gate,
    JobRow,
    LimitKey,
    LimitRow,
    NewJob,
    PreviousAttempts,
    TokenBucket,
    WorkerRow,
)
from mulligan.storage.access_queries import ApiKeyQueries, AuditQueries, SessionQueries
from mulligan.storage.batch_queries import BatchQueries
from mulligan.storage.failure_queries import FailureQueries
from mulligan.storage.guard_queries import GuardQueries
from mulligan.storage.history_queries import HistoryQueries, VerifyQueries
from mulligan.storage.notification_queries import NotificationQueries
from mulligan.storage.operation_queries import OperationQueries
from mulligan.storage.rows import (
    BatchRow,
    ClaimPosition,
    ClaimState,
    Inserted,
    Move,
    NewBatch,
    PrunedJobs,
    Refusal,
    Renewal,
    RetryRow,
    ScheduleRow,
    Settlement,
    SharedRetryTexts,
    SuccessRow,
    UnlimitedLanes,
)
from mulligan.storage.search_queries import SearchQueries
from mulligan.storage.stat_queries import AlertQueries, StatQueries

__all__ = [
    "BatchRow",
    "ClaimPosition",
    "ClaimState",
    "HintListener",
    "Inserted",
    "Move",
    "NewBatch",
    "PrunedJobs",
    "Refusal",
    "Renewal",
    "RetryRow",
    "ScheduleRow",
    "Settlement",
    "SharedRetryTexts",
    "Store",
    "SuccessRow",
    "Transaction",
    "UnlimitedLanes",
]


class Transaction(
    HistoryQueries,
    GuardQueries,
    FailureQueries,
    BatchQueries,
    AuditQueries,
    OperationQueries,
    ApiKeyQueries,
    SessionQueries,
    SearchQueries,
    NotificationQueries,
    StatQueries,
    AlertQueries,
    VerifyQueries,
):
    """One transaction. The docstrings say which rows a method changes and what it waits for."""

    # Jobs to choose for each free slot. More than one if several workers claim at once, because a
    # claim skips jobs that another worker has locked.
    candidates_per_slot = 1

    # --- Clock ---
    @abstractmethod
    def now(self) -> Micros:
        """Return the time by the clock that decides: PostgreSQL's, or the host's on SQLite."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Undo the block if it raises, without ending the transaction."""

    # --- Enqueue ---
    @abstractmethod
    def insert_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """Insert queued jobs. Waits only for transactions that insert the same unique keys.

        `announce` writes a `job.queued` event for each. In a caller's transaction upkeep does so
        later.
        """

    @abstractmethod
    def insert_unconstrained(self, jobs: Sequence[NewJob], *, announce: bool) -> Micros:
        """Insert jobs that have no unique key. Return the time of the insert."""

    @abstractmethod
    def write_queued_events(self, events: Sequence[NewEvent]) -> None:
        """Write the `job.queued` events of jobs that this transaction inserted without one."""

    # --- Claim ---
    @abstractmethod
    def read_claim_state(self) -> ClaimState:
        """Read what a claim must know: clock, gates, limits, guards and lanes with jobs."""

    def read_state_and_claim(
        self, worker: str, lanes: UnlimitedLanes, limit: int
    ) -> tuple[ClaimState, list[Lease]]:
        """Call `read_claim_state` and, if there is no choice, `claim_from_lane` in one round trip.

        Claims only if exactly one lane is due, it is one of `lanes`, and no gate or operator's
        limit is in force. A store may always return no leases.
        """
        del worker, lanes, limit
        return self.read_claim_state(), []

    def read_state_and_claim_one(
        self, worker: str, lanes: UnlimitedLanes
    ) -> tuple[ClaimState, list[Lease]]:
        """Work like `read_state_and_claim` for one job. The state returned is that after the claim.

        Cheaper if probably no more than one job waits.
        """
        del worker, lanes
        return self.read_claim_state(), []

    def claim_from_position(self, worker: str, position: ClaimPosition, limit: int) -> list[Lease]:
        """Continue a claim like `claim_from_lane` where the last one ended.

        Only while no gate or limit has changed, and if the store is faster that way. A store may
        always return no leases.
        """
        del worker, position, limit
        return []

    @abstractmethod
    def list_due_jobs(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        """List due jobs of (lane, priority) pairs as (priority, run_at, id, lane), in that order.

        Locks nothing. `each` limits the jobs of each pair.
        """

    @abstractmethod
    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        """Claim at most `limit` of the jobs, in their order. Skip those that are locked."""

    @abstractmethod
    def claim_from_lane(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        """Call `list_due_jobs` for one (lane, priority) and `claim_jobs` in one statement."""

    # --- Limits ---
    @abstractmethod
    def atomically(self) -> AbstractContextManager[None]:
        """Make the block one transaction, even where each statement is a transaction of its own."""

    @abstractmethod
    def count_running(self) -> list[tuple[str, str, int]]:
        """Count the running jobs by (queue, dependencies)."""

    @abstractmethod
    def count_waiting(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        """Count the queued jobs of a lane: due, and due later. Each count stops at `cap`."""

    @abstractmethod
    def lock_token_buckets(
        self, keys: Sequence[LimitKey]
    ) -> dict[LimitKey, tuple[TokenBucket, Micros] | None]:
        """Lock token buckets, creating those that do not exist. Return each with the current time.

        None: another claim has locked the bucket.
        """

    @abstractmethod
    def update_token_bucket(self, key: LimitKey, left: TokenBucket) -> None:
        """Store what is left in a locked token bucket."""

    @abstractmethod
    def list_limits(self) -> list[LimitRow]:
        """List the limits that operators have set."""

    @abstractmethod
    def set_limit(self, row: LimitRow) -> None:
        """Set a limit that overrides the declared one."""

    @abstractmethod
    def clear_limit(self, key: LimitKey) -> bool:
        """Remove an operator's limit. False: there was none."""

    @abstractmethod
    def list_leases(self, worker: str) -> list[Lease]:
        """List all leases of a worker, to recover from a claim whose response was lost."""

    @abstractmethod
    def get_previous_attempts(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        """Return checkpoints and the last failure of jobs that ran before."""

    # --- Running attempts ---
    @abstractmethod
    def update_progress(
        self, worker: str, updates: Sequence[tuple[str, int, float | None, str]]
    ) -> None:
        """Store (id, token, fraction, message) of running attempts, fenced by their leases."""

    @abstractmethod
    def save_checkpoint(self, job_id: str, worker: str, token: int, name: str, value: str) -> bool:
        """Save a checkpoint and reset `losses`: a job that makes progress is no poison job.

        False: the lease is lost.
        """

    # --- Settle ---
    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        """Settle attempts with their rows and events. The only way an attempt changes its job.

        Fenced by id, worker, token and state. Attempts whose fence fails are returned as refusals
        and change nothing.
        """

    @abstractmethod
    def settle_successes(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> set[tuple[str, int]]:
        """Settle attempts that returned and change nothing but the job's state and result.

        Return (id, token) of those that were written. The others are left to `settle`, which finds
        out why. A store may always write none.
        """

    def settle_successes_by_location(
        self, worker: str, successes: Sequence[SuccessRow]
    ) -> set[tuple[str, int]]:
        """Call `settle_successes` as a transaction of its own, which may be faster."""
        return self.settle_successes(worker, successes)

    supports_settle_retries = False  # whether `settle_retries` writes anything

    def settle_retries(
        self, row: Settlement, texts: SharedRetryTexts, retries: Sequence[RetryRow]
    ) -> set[tuple[str, int]]:
        """Settle attempts that are retried under one shared decision, as `settle_successes` does.

        `row` is the settlement of one of them.
        """
        del row, texts, retries
        return set()

    def settle_retries_by_location(
        self, row: Settlement, texts: SharedRetryTexts, retries: Sequence[RetryRow]
    ) -> set[tuple[str, int]]:
        """Call `settle_retries` as a transaction of its own, which may be faster."""
        return self.settle_retries(row, texts, retries)

    @abstractmethod
    def close_gate(self, gate: Gate) -> None:
        """Close a queue, kind or dependency. A gate that is closed for longer stays so."""

    @abstractmethod
    def open_gate(self, scope: str, key: str) -> bool:
        """Open a gate. False: it was not closed."""

    @abstractmethod
    def write_events(self, events: Iterable[NewEvent]) -> None:
        """Write events in order."""

    # --- Manual actions and upkeep ---
    @abstractmethod
    def move_job(self, move: Move) -> bool:
        """Change the state of a job outside of an attempt, by compare-and-set.

        False: the job has changed meanwhile. Raises UniqueTaken if another job holds its key.
        """

    @abstractmethod
    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        """Request that a running attempt stops. False: this attempt is not running any more."""

    @abstractmethod
    def list_due_deadlines(self, limit: int) -> list[JobRow]:
        """Lock and list waiting jobs whose deadline has passed. Skip locked rows."""

    @abstractmethod
    def list_overdue_jobs(self, lane: str, before: Micros, limit: int) -> list[JobRow]:
        """Lock and list queued jobs of a lane that have been due since `before`."""

    @abstractmethod
    def announce_jobs(self, limit: int) -> int:
        """Write the missing `job.queued` events of jobs inserted in callers' transactions."""

    @abstractmethod
    def prune_jobs(
        self,
        state: str,
        before: Micros,
        limit: int,
        *,
        kind: str | None,
        except_kinds: Sequence[str],
    ) -> list[PrunedJobs]:
        """Delete at most `limit` finished jobs with all that belongs to them. Record the counts."""

    @abstractmethod
    def delete_prune_records(self, before: Micros) -> None:
        """Delete old records of what was pruned."""

    # --- Workers ---
    @abstractmethod
    def insert_worker(self, worker: WorkerRow) -> Micros:
        """Insert a worker. Return the current time.

        An existing row stays: a worker that got no response inserts itself again.
        """

    @abstractmethod
    def renew_worker(self, worker: str, *, draining: bool) -> Renewal:
        """Renew the lease of a worker and all its jobs."""

    @abstractmethod
    def list_cancel_requests(self, worker: str) -> list[tuple[str, int, str]]:
        """List (job, token, reason) of this worker's running jobs that must stop."""

    @abstractmethod
    def request_drain(self, worker: str, reason: str) -> bool:
        """Request that a worker finishes its jobs and stops. False: it has stopped."""

    @abstractmethod
    def count_running_by_worker(self) -> dict[str, int]:
        """Count the running jobs of each worker."""

    @abstractmethod
    def close_worker(self, worker: str, reason: str, *, last_renewed: Micros | None) -> bool:
        """Close a worker's row. It is never opened again.

        With `last_renewed`: only if the worker has not renewed since then.
        """

    @abstractmethod
    def list_workers(self, *, closed: bool) -> list[WorkerRow]:
        """List workers, oldest first. `closed` includes those that have stopped."""

    @abstractmethod
    def is_expired(self, worker: WorkerRow) -> bool:
        """True if the lease of a worker has expired by the clock that decides about leases."""

    @abstractmethod
    def list_orphans(self, limit: int) -> list[Lease]:
        """List running jobs whose worker is closed or missing, to be settled as lost."""

    @abstractmethod
    def raise_tokens(self, by: int) -> int:
        """Raise the token of every job, so that none is used twice. Return the number of jobs."""

    @abstractmethod
    def delete_closed_workers(self, before: Micros) -> int:
        """Delete closed workers that have no running job."""

    # --- Manifests ---
    @abstractmethod
    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None:
        """Store a manifest, or record that it is still in use."""

    @abstractmethod
    def list_manifests(self) -> list[tuple[str, str, str, str, Micros]]:
        """List (id, app, release, body, last use), newest first."""

    # --- Schedules ---
    @abstractmethod
    def list_schedules(self) -> list[ScheduleRow]:
        """List all schedules."""

    @abstractmethod
    def declare_schedule(self, name: str, cron: str, timezone: str) -> ScheduleRow | None:
        """Insert a schedule that starts now. None: it exists."""

    @abstractmethod
    def advance_schedule(self, row: ScheduleRow, *, from_cursor: Micros) -> bool:
        """Move the cursor of a schedule by compare-and-set on `from_cursor`.

        False: another worker has moved it or has locked the schedule.
        """

    @abstractmethod
    def pause_schedule(self, name: str, until: Micros | None, actor: str, reason: str) -> bool:
        """Pause a schedule: its slots get no jobs. False: it does not exist."""

    @abstractmethod
    def resume_schedule(self, row: ScheduleRow, cursor: Micros) -> bool:
        """Resume a schedule at a cursor. False: it was not paused, or has changed meanwhile."""

    @abstractmethod
    def touch_schedules(self, names: Iterable[str]) -> None:
        """Record that a manifest in use still declares these schedules."""

    @abstractmethod
    def claim_slots(self, schedule: str, jobs: Mapping[Micros, str]) -> set[Micros]:
        """Assign a job to each slot that has none. Return these slots."""

    @abstractmethod
    def get_last_slots(self) -> dict[str, tuple[Micros, str]]:
        """Return the newest past slot of each schedule, and its job."""

    @abstractmethod
    def prune_slots(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` old slots. Return how many."""

    @abstractmethod
    def delete_schedules(self, names: Iterable[str]) -> None:
        """Delete schedules. If declared again, they start anew; slots keep their jobs."""

    @abstractmethod
    def delete_undeclared_schedules(self, before: Micros) -> int:
        """Delete schedules that no manifest in use has declared since `before`."""

    # --- Read ---
    @abstractmethod
    def get_job(self, job_id: str) -> JobRow | None:
        """Read one job."""

    @abstractmethod
    def find_jobs(self, prefix: str, limit: int = 2) -> list[str]:
        """List ids that start with `prefix`."""

    @abstractmethod
    def list_attempts(self, job_id: str) -> list[AttemptRow]:
        """List the finished attempts of a job in order."""

    @abstractmethod
    def get_latest_attempts(self, ids: Sequence[str]) -> dict[str, AttemptRow]:
        """Return the last finished attempt of each job that has one."""

    @abstractmethod
    def list_events_of_job(self, job_id: str) -> list[Event]:
        """List the events of a job in order."""

    @abstractmethod
    def list_events_after(self, cursor: int, limit: int) -> list[Event]:
        """List events in order, starting after `cursor`.

        Stops before the first event that may still be uncommitted, so that no reader skips it.
        """

    @abstractmethod
    def newest_event(self, above: int = -1) -> int:
        """Return the highest id that `list_events_after` would return, or 0.

        May be inexact if there is nothing above `above`.
        """

    @abstractmethod
    def event_lag(self) -> Micros:
        """Return how long the oldest transaction that writes events has been open."""

    @abstractmethod
    def list_gates(self) -> list[Gate]:
        """List all closed gates."""


WATCH_STOP_INTERVAL = 1.0  # seconds after which `Store.watch` notices that it must stop


class HintListener(ABC):
    """Waits for hints that a job may have become due. Only one thread may use it.

    A hint is only a hint: it may be missing, late or wrong, and the caller polls as well.
    """

    @abstractmethod
    def wait(self, seconds: float, wake: int = -1) -> bool:
        """Wait until there is a hint, `seconds` have passed, or descriptor `wake` is readable.

        True: there was a hint. Neither blocks longer nor raises if the database is unavailable.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Store(ABC):
    """A database. Threads may share a store; a forked child opens its own connections."""

    url: str  # for people: secrets are masked
    concurrent_writers = False  # whether several transactions may write at once

    @abstractmethod
    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a transaction: durable when the block ends, undone if it raises."""

    def single_statement(self) -> AbstractContextManager[Transaction]:
        """Open a transaction for one method of one statement. May need fewer round trips."""
        return self.begin()

    @abstractmethod
    def read(self) -> AbstractContextManager[Transaction]:
        """Open a transaction that only reads and needs no write lock."""

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction whose results are all of one point in time. Keep it short."""
        return self.read()

    @abstractmethod
    def join(self, connection: Any) -> Transaction:
        """Return a transaction on a caller's connection. The caller commits.

        Raises before anything is written if the connection cannot be used safely.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction and return its connection, for the user's own statements."""

    def dedicated(self) -> Store:
        """Return a store with its own connections, for one thread. Closes with this one."""
        return self

    def limit_statements(self, seconds: float) -> None:  # noqa: B027 - optional
        """Give up a statement that got no answer for so long, and its connection with it."""

    def warm_up(self) -> None:  # noqa: B027 - optional
        """Run the statements of a worker without effect, so that their plans are cached."""

    @abstractmethod
    def open_listener(self) -> HintListener:
        """Listen for hints. Transactions of `dedicated()` need not cause one."""

    def watch(self, hint: Callable[[], None], stop: threading.Event) -> None:
        """Call `hint` soon after a job may have become due. Return when `stop` is set."""
        with closing(self.open_listener()) as listener:
            while not stop.is_set():
                if listener.wait(WATCH_STOP_INTERVAL):
                    hint()

    @abstractmethod
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Apply the missing steps of the schema. Return the names of the steps."""

    def prepare(self) -> None:
        """Create the schema if there is none. Upgrading one is left to `mulligan migrate`."""
        if self.is_empty():
            self.migrate()
        self.check_schema()

    @abstractmethod
    def is_empty(self) -> bool:
        """True if no step of the schema is applied."""

    @abstractmethod
    def check_schema(self) -> None:
        """Raise SchemaError unless the schema is the one of this version."""

    @abstractmethod
    def reclaim_space(self) -> None:
        """Free disk space that a long read or a burst of writes left behind."""

    @abstractmethod
    def shift_clock(self, by: Micros) -> None:
        """Move the database's clock, for tests. Lease clocks on SQLite do not move."""

    @abstractmethod
    def erase(self) -> None:
        """Remove everything of Mulligan from a server, for tests. SQLite files are not removed."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return what `doctor` prints: product, version, durability settings, size."""

    def check_connection(self, timeout: float = 5.0) -> None:  # noqa: B027 - optional
        """Raise the exact reason if the database cannot be reached."""

    def receives_notifications(self) -> bool:
        """True if notifications of due jobs reach this process."""
        return True

    @property
    @abstractmethod
    def lock_directory(self) -> str:
        """Directory next to the database for workers' lock files, or "" (PostgreSQL)."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Short name of this database, the same in every process."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

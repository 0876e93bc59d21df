"""What a store promises: one verb per step of the walk. Both bodies keep every promise, or it is not a promise.

A `Store` opens units of work and hears hints; a `Unit` is one transaction with the verbs on it.
No verb decides anything: the rules are in `policy`, and a verb that refuses says so by what it returns.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mulligan.core.attempt import Lease
from mulligan.core.event import Event, NewEvent
from mulligan.core.job import (
    AttemptRow,
    Gate,
    Guarded,
    JobRow,
    LimitRow,
    Meter,
    Micros,
    NewJob,
    PreviousAttempts,
    WorkerRow,
)
from mulligan.storage.access_queries import AuditQueries, KeyQueries, SessionQueries
from mulligan.storage.batch_queries import BatchQueries
from mulligan.storage.failure_queries import FailureQueries
from mulligan.storage.guard_queries import GuardQueries
from mulligan.storage.history_queries import HistoryQueries, VerifyQueries
from mulligan.storage.notification_queries import NotificationQueries
from mulligan.storage.operation_queries import OperationQueries
from mulligan.storage.rows import (
    Around,
    BatchRow,
    ClaimMark,
    Finished,
    Inserted,
    Look,
    Move,
    NewBatch,
    Pruned,
    Refusal,
    Renewal,
    RetriedAttempt,
    ScheduleRow,
    Settlement,
    UnlimitedLanes,
)
from mulligan.storage.search_queries import SearchQueries
from mulligan.storage.stat_queries import AlertQueries, StatQueries

__all__ = [
    "Around",
    "BatchRow",
    "Finished",
    "Inserted",
    "Look",
    "ClaimMark",
    "Move",
    "NewBatch",
    "UnlimitedLanes",
    "Pruned",
    "Refusal",
    "Renewal",
    "RetriedAttempt",
    "ScheduleRow",
    "Settlement",
    "Store",
    "Transaction",
]


class Transaction(
    HistoryQueries,
    GuardQueries,
    FailureQueries,
    BatchQueries,
    AuditQueries,
    OperationQueries,
    KeyQueries,
    SessionQueries,
    SearchQueries,
    NotificationQueries,
    StatQueries,
    AlertQueries,
    VerifyQueries,
):
    """One transaction. Every verb states what it moves and what it waits for."""

    overask = 1  # candidates for each place: where several choose at once, what another has locked is passed over

    # -- clock ------------------------------------------------------------------------------------
    @abstractmethod
    def now(self) -> Micros:
        """The one clock that rules: the database's on PostgreSQL, the host's on SQLite."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Nothing of the block if it raises, whatever becomes of the transaction around it."""

    # -- enqueue ----------------------------------------------------------------------------------
    @abstractmethod
    def insert(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """→ queued. Inserts rows of its own and waits for nothing but their unique keys.

        `announce` writes `job.queued` beside each; a caller's transaction leaves that to upkeep.
        """

    @abstractmethod
    def insert_free(self, jobs: Sequence[NewJob], *, announce: bool) -> Micros:
        """The same for jobs without a unique key, which nothing can stand in the way of; the moment of it."""

    @abstractmethod
    def announce_as(self, events: Sequence[NewEvent]) -> None:
        """The `job.queued` events of jobs inserted without one in this transaction, in the caller's words."""

    # -- claim ------------------------------------------------------------------------------------
    @abstractmethod
    def look(self) -> Look: ...

    def look_and_take(
        self, worker: str, plain: UnlimitedLanes, limit: int
    ) -> tuple[Look, list[Lease]]:
        """`look`, and where one trip can do both also `take_due`: if only one lane is due, a plain one, and nothing
        is closed or limited by an operator. A store may as well take nothing.
        """
        del worker, plain, limit
        return self.look(), []

    def look_and_take_one(self, worker: str, plain: UnlimitedLanes) -> tuple[Look, list[Lease]]:
        """The same of one job, and the look as it is after that. Costs less, where probably no more than one waits."""
        del worker, plain
        return self.look(), []

    def take_on(self, worker: str, mark: ClaimMark, limit: int) -> list[Lease]:
        """`take_due` from the mark on, where nothing has been closed or limited since and the store gains by it. It
        may as well take nothing.
        """
        del worker, mark, limit
        return []

    @abstractmethod
    def candidates(
        self, lanes: Sequence[tuple[str, int]], limit: int, *, each: int | None = None
    ) -> list[tuple[int, Micros, str, str]]:
        """Due jobs of these (lane, priority) pairs as (priority, run_at, id, lane), in that order, unlocked.

        `each`: at most so many of each pair.
        """

    @abstractmethod
    def take(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        """queued → running for at most `limit` of `ids`, in their order; what somebody else has is passed over."""

    @abstractmethod
    def take_due(self, worker: str, lane: str, priority: int, limit: int) -> list[Lease]:
        """`candidates` of one (lane, priority) and `take` in one step, for when there is nothing to choose between."""

    # -- limits -----------------------------------------------------------------------------------
    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """What is read and written inside belongs together, also where each statement is its own transaction."""

    @abstractmethod
    def running(self) -> list[tuple[str, str, int]]:
        """(queue, uses, how many run now)."""

    @abstractmethod
    def depth(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        """How many wait in a lane: due, and for later; counted up to the cap."""

    @abstractmethod
    def meters(self, keys: Sequence[Guarded]) -> dict[Guarded, tuple[Meter, Micros] | None]:
        """The meter of each and the time now, made where there is none; None: in the hand of somebody who claims."""

    @abstractmethod
    def spend(self, key: Guarded, left: Meter) -> None: ...

    @abstractmethod
    def limits(self) -> list[LimitRow]: ...

    @abstractmethod
    def set_limit(self, row: LimitRow) -> None: ...

    @abstractmethod
    def clear_limit(self, key: Guarded) -> bool: ...

    @abstractmethod
    def claimed(self, worker: str) -> list[Lease]:
        """All leases this worker holds, for the moment after a claim whose answer was lost."""

    @abstractmethod
    def memories(self, ids: Sequence[str]) -> dict[str, PreviousAttempts]:
        """Checkpoints and last failure of jobs that ran before."""

    # -- while it runs ----------------------------------------------------------------------------
    @abstractmethod
    def progress(self, worker: str, news: Sequence[tuple[str, int, float | None, str]]) -> None:
        """(id, token, fraction, message): fenced, last value wins."""

    @abstractmethod
    def checkpoint(self, lease_id: str, worker: str, token: int, name: str, value: str) -> bool:
        """Fenced; also sets `losses` to zero, for a job that gets ahead is no poison. False: the lease is lost."""

    # -- settle -----------------------------------------------------------------------------------
    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        """running → wherever the decision says, with attempt row and event: the only door.

        Matches id, worker, token and `running`; the rest comes back as refusals and nothing of it is written.
        """

    @abstractmethod
    def finish(self, worker: str, finished: Sequence[Finished]) -> set[tuple[str, int]]:
        """running → succeeded for the plainest of endings, in fewer words; (id, token) of those that were written.

        Of the others nothing is: `settle` finds out why. A store may as well write none.
        """

    def finish_alone(self, worker: str, finished: Sequence[Finished]) -> set[tuple[str, int]]:
        """The same where nothing else is done in its transaction, which may be less work."""
        return self.finish(worker, finished)

    retries_together = False  # does `retry` write anything?

    def retry(
        self, row: Settlement, around: Around, retried: Sequence[RetriedAttempt]
    ) -> set[tuple[str, int]]:
        """running → queued for attempts that failed alike, in the same way: `row` is that of one of them."""
        del row, around, retried
        return set()

    def retry_alone(
        self, row: Settlement, around: Around, retried: Sequence[RetriedAttempt]
    ) -> set[tuple[str, int]]:
        """The same where nothing else is done in its transaction."""
        return self.retry(row, around, retried)

    @abstractmethod
    def close_gate(self, gate: Gate) -> None:
        """Close a queue, kind or dependency; a longer closure that is there stays."""

    @abstractmethod
    def open_gate(self, scope: str, key: str) -> bool: ...

    @abstractmethod
    def write_events(self, events: Iterable[NewEvent]) -> None: ...

    # -- by hand and by upkeep ----------------------------------------------------------------------
    @abstractmethod
    def move(self, move: Move) -> bool:
        """Compare-and-set; False: somebody was quicker. Raises UniqueTaken when the key is held by another."""

    @abstractmethod
    def request_cancel(self, job_id: str, token: int, reason: str) -> bool:
        """Ask a running attempt to stop. False: it is not running under this token any more."""

    @abstractmethod
    def due_deadlines(self, limit: int) -> list[JobRow]:
        """Queued or parked jobs past their deadline; rows others work on are passed over."""

    @abstractmethod
    def waiting(self, lane: str, before: Micros, limit: int) -> list[JobRow]:
        """Queued jobs of one lane that have been due since `before`."""

    @abstractmethod
    def announce(self, limit: int) -> int:
        """Write the missing `job.queued` events of jobs inserted in callers' transactions."""

    @abstractmethod
    def prune(
        self,
        state: str,
        before: Micros,
        limit: int,
        *,
        kind: str | None,
        except_kinds: Sequence[str],
    ) -> list[Pruned]:
        """Delete at most `limit` finished jobs with all that belongs to them, leaving a summary record."""

    @abstractmethod
    def prune_records(self, before: Micros) -> None:
        """Delete summary records of what was pruned long ago."""

    # -- workers ----------------------------------------------------------------------------------
    @abstractmethod
    def open_worker(self, worker: WorkerRow) -> Micros:
        """Enter its row. One that is there already stays as it is: who got no answer says it again."""

    @abstractmethod
    def renew(self, worker: str, *, draining: bool) -> Renewal: ...

    @abstractmethod
    def cancels(self, worker: str) -> list[tuple[str, int, str]]:
        """(job, token, reason) of this worker's running jobs that somebody wants to stop."""

    @abstractmethod
    def request_drain(self, worker: str, reason: str) -> bool:
        """Ask a worker to finish what it runs, and leave. False: it has left."""

    @abstractmethod
    def busy(self) -> dict[str, int]:
        """How many jobs each worker runs."""

    @abstractmethod
    def close_worker(self, worker: str, reason: str, *, seen: Micros | None) -> bool:
        """Close a worker's row for ever. With `seen`: only if it has not renewed since then."""

    @abstractmethod
    def workers(self, *, closed: bool) -> list[WorkerRow]: ...

    @abstractmethod
    def expired(self, worker: WorkerRow) -> bool:
        """Has this worker's lease run out, by the clock that judges leases?"""

    @abstractmethod
    def orphans(self, limit: int) -> list[Lease]:
        """Running jobs whose worker is closed or missing: to be settled as lost, through the one door."""

    @abstractmethod
    def lift_tokens(self, by: int) -> int:
        """Raise the token of every job, so that none is given out twice after a restore. Returns how many jobs."""

    @abstractmethod
    def forget_workers(self, before: Micros) -> int:
        """Delete closed worker rows that no running job names."""

    # -- manifests --------------------------------------------------------------------------------
    @abstractmethod
    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None: ...

    @abstractmethod
    def manifests(self) -> list[tuple[str, str, str, str, Micros]]:
        """(id, app, release, body, last named), newest first."""

    # -- schedules --------------------------------------------------------------------------------
    @abstractmethod
    def schedules(self) -> list[ScheduleRow]: ...

    @abstractmethod
    def declare_schedule(self, name: str, cron: str, timezone: str) -> ScheduleRow | None:
        """Begin one, from now. None: it is there."""

    @abstractmethod
    def advance_schedule(self, row: ScheduleRow, *, seen: Micros) -> bool:
        """Move its cursor, compare-and-set on the one that was seen. False: somebody else did, or is at it now."""

    @abstractmethod
    def pause_schedule(self, name: str, until: Micros | None, actor: str, reason: str) -> bool:
        """From now on its slots get no job. False: nobody has begun it yet."""

    @abstractmethod
    def resume_schedule(self, row: ScheduleRow, cursor: Micros) -> bool:
        """It goes on after this moment. False: it was not paused, or somebody was quicker."""

    @abstractmethod
    def name_schedules(self, names: Iterable[str]) -> None:
        """A manifest in force still names them."""

    @abstractmethod
    def take_slots(self, schedule: str, jobs: Mapping[Micros, str]) -> set[Micros]:
        """Enter which job each slot gets; returns the slots that had none. One slot never gets two."""

    @abstractmethod
    def last_slots(self) -> dict[str, tuple[Micros, str]]:
        """By schedule: its newest slot that has come, and the slot's job."""

    @abstractmethod
    def prune_slots(self, before: Micros, limit: int) -> int: ...

    @abstractmethod
    def end_schedules(self, names: Iterable[str]) -> None:
        """Forget how far they were: declared again they begin anew. A slot that has a job keeps it."""

    @abstractmethod
    def forget_schedules(self, before: Micros) -> int:
        """Delete those that no manifest in force has named since."""

    # -- read -------------------------------------------------------------------------------------
    @abstractmethod
    def get(self, job_id: str) -> JobRow | None: ...

    @abstractmethod
    def find(self, prefix: str, limit: int = 2) -> list[str]:
        """Ids that start with this."""

    @abstractmethod
    def attempts(self, job_id: str) -> list[AttemptRow]: ...

    @abstractmethod
    def latest_attempts(self, ids: Sequence[str]) -> dict[str, AttemptRow]:
        """The last finished attempt of each job that has one."""

    @abstractmethod
    def story(self, job_id: str) -> list[Event]: ...

    @abstractmethod
    def events_after(self, cursor: int, limit: int) -> list[Event]:
        """In order, and never past an event that is still to be committed."""

    @abstractmethod
    def newest_event(self, above: int = -1) -> int:
        """The last id `events_after` would give; 0: none. Where nothing is above that one, it need not be exact."""

    @abstractmethod
    def event_lag(self) -> Micros:
        """How long readers of events have been waiting for the oldest transaction that writes some."""

    @abstractmethod
    def gates(self) -> list[Gate]: ...


QUIET = 1.0  # seconds without a hint, at most


class Store(ABC):
    """A database that remembers. Safe to share between threads; a forked child goes on with connections of its own."""

    url: str  # as given, for people: secrets masked
    side_by_side = False  # several may write at once

    @abstractmethod
    def begin(self) -> AbstractContextManager[Transaction]:
        """A transaction of our own: durable when the block ends, nothing of it if it raises."""

    def once(self) -> AbstractContextManager[Transaction]:
        """For one verb of one statement: the same promise as `begin`, with fewer trips where a store can do so."""
        return self.begin()

    @abstractmethod
    def read(self) -> AbstractContextManager[Transaction]:
        """A look without the write lock."""

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """A look of which all answers are of one moment. For who compares them; it must be short."""
        return self.read()

    @abstractmethod
    def join(self, connection: Any) -> Transaction:
        """The verbs on a caller's connection; the caller commits. Refused before anything is written
        if the connection is not one we may share.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Our connection, for the user's own statements and `connection=`."""

    def apart(self) -> Store:
        """The same store, for somebody who asks the same few things over and over; closed with this one."""
        return self

    def rehearse(self) -> None:  # noqa: B027 - a store may have nothing to rehearse
        """What workers ask over and over, asked for nobody: the first ones shall not wait for what is done once."""

    @abstractmethod
    def watch(
        self,
        hint: Callable[[], None],
        stop: threading.Event,
        busy: Callable[[], bool] = lambda: False,
        quiet: Callable[[], float] = lambda: QUIET,
    ) -> None:
        """Call `hint` soon after something may have become due; returns when `stop` is set. Only ever a hint. While
        `busy`, nobody could follow it: it may come afterwards. While there is none, `quiet` is called now and then, and
        says after how many seconds to call it again at the latest; not while none could be heard, and when that begins
        there is a hint.
        """

    @abstractmethod
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring the schema up; returns the names of the steps that were (or would be) taken."""

    def prepare(self) -> None:
        """Make the schema where there is none yet; an older one is a person's decision (`mulligan migrate`)."""
        if self.empty():
            self.migrate()
        self.check_schema()

    @abstractmethod
    def empty(self) -> bool:
        """Has no step of our schema been taken here?"""

    @abstractmethod
    def check_schema(self) -> None:
        """Raise SchemaError unless the schema is exactly the one this version knows."""

    @abstractmethod
    def tidy(self) -> None:
        """Give back room that a long reader or a burst left behind."""

    @abstractmethod
    def shift_clock(self, by: Micros) -> None:
        """For tests: move time for everybody who uses this database. Lease clocks on SQLite stay."""

    @abstractmethod
    def erase(self) -> None:
        """For tests: remove all that is ours from a server. A SQLite file is for its owner to remove."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """What `doctor` prints: product, version, durability settings, size."""

    def reach(self, timeout: float = 5.0) -> None:  # noqa: B027 - where there is no server there is nothing to reach
        """Say at once and exactly why the database does not answer, if it does not."""

    def hears(self) -> bool:
        """Do hints that something is due reach this process?"""
        return True

    @property
    @abstractmethod
    def place(self) -> str:
        """A directory beside the database (SQLite) or "" (PostgreSQL): where life files go."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A short name for this very database, the same in every process that uses it."""

    @abstractmethod
    def close(self) -> None: ...

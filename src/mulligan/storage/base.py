"""Interfaces of a database: `Store` opens transactions, `Transaction` runs named statements.

The statements are those of the features (`storage/statements.py`). A feature's module `queries`
has a class such as `BatchQueries` with one method per statement: `BatchQueries(tx).get_batch(id)`.
No method decides anything: a statement that changes nothing reports that by its return value.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, ClassVar, Protocol

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.event import NewEvent
from mulligan.core.job import Candidate, ClaimState, LaneRef, NewJob
from mulligan.storage.rows import (
    Inserted,
    Move,
    Refusal,
    RefusalReason,
    Settlement,
)
from mulligan.storage.statements import SqlDialect

__all__ = [
    "HintListener",
    "Inserted",
    "Move",
    "Queries",
    "Refusal",
    "RefusalReason",
    "Settlement",
    "StatementConditions",
    "Store",
    "Transaction",
]


class StatementConditions(Protocol):
    """Conditions that a statement's `{matching}` stands for."""

    @property
    def params(self) -> Mapping[str, Any]: ...

    def text(self, dialect: str) -> str:
        """Return the SQL of the conditions."""


class Transaction(ABC):
    """One transaction on a connection."""

    dialect: ClassVar[SqlDialect]
    channel = ""  # of notifications, where the database has them

    # --- Clock ---
    @abstractmethod
    def now(self) -> Micros:
        """Return the time by the clock that decides: PostgreSQL's, or the host's on SQLite."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement by its name and return its rows."""

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        """Run a statement on the rows that match conditions."""

    @abstractmethod
    def run_set(self, statement: str, rows: Sequence[Any]) -> None:
        """Run a statement on named tuples of one type."""

    @abstractmethod
    def array_param(self, values: Sequence[Any]) -> Any:
        """Convert a list of texts or numbers to a parameter of this database."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Undo the block if it raises, without ending the transaction."""

    @abstractmethod
    def atomically(self) -> AbstractContextManager[None]:
        """Make the block one transaction, even where each statement is a transaction of its own."""

    def check_integrity(self) -> list[str]:
        """Return the damage that the database itself finds in its file, if it can."""
        return []

    # --- Enqueue ---
    @abstractmethod
    def insert_jobs(self, jobs: Sequence[NewJob], *, announce: bool) -> list[Inserted]:
        """Insert queued jobs. Waits only for transactions that insert the same unique keys.

        `announce` writes a `job.queued` event for each. In a caller's transaction upkeep does so
        later.
        """

    @abstractmethod
    def write_queued_events(self, events: Sequence[NewEvent]) -> None:
        """Write the `job.queued` events of jobs that this transaction inserted without one."""

    # --- Claim ---
    @abstractmethod
    def read_claim_state(self, expected: Sequence[LaneRef] = (), depth: int = 0) -> ClaimState:
        """Read what a claim must know: clock, gates, limits, guards and lanes with jobs.

        Also list the due jobs of the `expected` lanes, like `list_due_jobs`: a claim that guesses
        its lanes saves a round trip.
        """

    @abstractmethod
    def list_due_jobs(self, lanes: Sequence[LaneRef], depth: int) -> list[Candidate]:
        """List the first due jobs of each lane and priority, at most `depth` of each.

        Locks nothing.
        """

    @abstractmethod
    def claim_candidates(self, worker: str, picked: Sequence[Candidate]) -> list[Lease]:
        """Claim picked jobs. Return their leases in this order.

        If another worker has taken some of them meanwhile, claim the next jobs of their lanes.
        """

    @abstractmethod
    def claim_jobs(self, worker: str, ids: Sequence[str], limit: int) -> list[Lease]:
        """Claim at most `limit` of the jobs, in their order. Skip those that are locked."""

    # --- Settle ---
    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[Refusal]:
        """Settle attempts with their rows and events. The only way an attempt changes its job.

        Fenced by id, worker, token and state. Attempts whose fence fails are returned as refusals
        and change nothing.
        """

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
    def announce_jobs(self, limit: int) -> int:
        """Write the missing `job.queued` events of jobs inserted in callers' transactions."""


class Queries:
    """Base of the classes that run the statements of one feature in a transaction."""

    __slots__ = ("tx",)

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx


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

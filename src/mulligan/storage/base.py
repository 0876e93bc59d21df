"""Interfaces of a database: `Store` opens transactions, `Transaction` runs named statements.

The statements are those of the features (`storage/statements.py`). A feature's module `queries`
has a class such as `BatchQueries` with one method per statement: `BatchQueries(tx).get_batch(id)`.
No method decides anything: a statement that changes nothing reports that by its return value.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from mulligan.core.durations import Micros
from mulligan.core.errors import SchemaError
from mulligan.storage import migrations
from mulligan.storage.statements import SqlDialect

Row = TypeVar("Row", bound=NamedTuple)


class StatementConditions(Protocol):
    """Conditions that a statement's `{matching}` stands for."""

    @property
    def params(self) -> Mapping[str, Any]: ...

    def text(self, dialect: str) -> str:
        """Return the SQL of the conditions."""


class Transaction(ABC):
    """One transaction on a connection."""

    dialect: ClassVar[SqlDialect]
    unique_violations: ClassVar[tuple[type[Exception], ...]]  # errors of the driver
    serialization_failures: ClassVar[tuple[type[Exception], ...]] = ()
    channel = ""  # of notifications, where the database has them
    notify_callers = False  # whether jobs of callers' transactions are notified on commit

    @abstractmethod
    def now(self) -> Micros:
        """Return the time by the clock that decides: PostgreSQL's, or the host's on SQLite."""

    # --- Statements ---
    @abstractmethod
    def rows(
        self, statement: str, row_count: int | None = None, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        """Run a statement by its name and return its rows.

        `row_count`: how many rows it reads or writes at most, so that a slow plan is noticed.
        """

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        """Run a statement on the rows that match conditions."""

    @abstractmethod
    def run_set(
        self,
        statement: str,
        rows: Sequence[Any],
        optional: Sequence[frozenset[str]] = (),
        /,
        **params: Any,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on named tuples of one type. SQLite runs it for one after another.

        `optional`: groups of columns that are not sent if they are empty in all rows.
        """

    @abstractmethod
    def run_command(self, text: str) -> None:
        """Run a statement without parameters that is passed as text."""

    @abstractmethod
    def array_param(self, values: Sequence[Any]) -> Any:
        """Convert a list of texts or numbers to a parameter of this database."""

    # --- Boundaries ---
    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block if it raises, without ending the transaction."""
        self.run_command("SAVEPOINT mulligan")
        try:
            yield
        except BaseException:
            self.run_command("ROLLBACK TO SAVEPOINT mulligan")
            raise
        self.run_command("RELEASE SAVEPOINT mulligan")

    def atomically(self) -> AbstractContextManager[None]:
        """Make the block one transaction, even where each statement is a transaction of its own."""
        return nullcontext()

    # --- Database ---
    def describe(self, error: Exception) -> str:
        """Return the details of an error of the driver."""
        return str(error)

    def check_integrity(self) -> list[str]:
        """Return the damage that the database itself finds in its file, if it can."""
        return []


class RowTransaction(Transaction):
    """Transaction of a database that has no sets of rows (SQLite): one row after another."""

    @abstractmethod
    def run_many(self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]) -> int:
        """Run a statement for each row, for all or none. Return the number of changed rows.

        `fields` are the names of the values of a row.
        """

    @abstractmethod
    def run_each(
        self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]
    ) -> Sequence[int]:
        """Run a statement for each row. Return the places of the rows that changed something."""


@dataclass(slots=True, eq=False)
class Queries:
    """Base of the classes that run the statements of one feature in a transaction."""

    tx: Transaction

    def list_rows(self, row_type: type[Row], statement: str, /, **params: Any) -> list[Row]:
        """Run a statement by its name and return its rows as named tuples of one type."""
        return [row_type._make(row) for row in self.tx.rows(statement, **params)]

    def first_row(self, row_type: type[Row], statement: str, /, **params: Any) -> Row | None:
        """Run a statement by its name and return its first row as a named tuple, if it has any."""
        rows = self.tx.rows(statement, **params)
        return row_type._make(rows[0]) if rows else None


@dataclass(slots=True, eq=False)
class RowQueries(Queries):
    """Base of the classes that run statements on one row after another (SQLite)."""

    tx: RowTransaction


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def replace_unstorable(value: Any) -> Any:
    """Replace NUL and lone surrogates, which no database accepts, in a parameter or JSON value."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [replace_unstorable(one) for one in value]
    if isinstance(value, tuple):
        return tuple(map(replace_unstorable, value))
    if isinstance(value, dict):
        return {replace_unstorable(name): replace_unstorable(one) for name, one in value.items()}
    return value


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
    prepared = False  # whether statements are prepared on the server, so that plans are cached

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

    def limit_lock_waits(self, seconds: float) -> None:  # noqa: B027 - optional
        """Give up a statement that waited so long for a lock of another transaction."""

    @abstractmethod
    def open_listener(self) -> HintListener:
        """Listen for hints. Transactions of `dedicated()` need not cause one."""

    def watch(self, hint: Callable[[], None], stop: threading.Event) -> None:
        """Call `hint` soon after a job may have become due. Return when `stop` is set."""
        with closing(self.open_listener()) as listener:
            while not stop.is_set():
                if listener.wait(WATCH_STOP_INTERVAL):
                    hint()

    # --- Schema ---
    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Apply the missing steps of the schema. Return the names of the steps."""
        steps = migrations.pending_steps(self.known_steps(), self.applied_steps())
        if dry_run or not steps:
            return [step.row.name for step in steps]
        return self.apply_steps(steps)

    def prepare(self) -> None:
        """Create the schema if there is none. Upgrading one is left to `mulligan migrate`."""
        if self.is_empty():
            self.migrate()
        self.check_schema()

    def is_empty(self) -> bool:
        """True if no step of the schema is applied."""
        return not self.applied_steps()

    def check_schema(self) -> None:
        """Raise SchemaError unless this version can use the schema."""
        missing = migrations.pending_steps(self.known_steps(), self.applied_steps())
        if missing:
            names = ", ".join(step.row.name for step in missing)
            message = (
                f"the schema of {self.url} is not up to date: this version of Mulligan needs "
                f"{names}. Run: mulligan migrate"
            )
            raise SchemaError(message)

    def newer_steps(self) -> list[str]:
        """Return the applied steps of a newer version of Mulligan."""
        return migrations.newer_steps(self.known_steps(), self.applied_steps())

    @abstractmethod
    def known_steps(self) -> list[migrations.Step]:
        """Return the steps that this version has."""

    @abstractmethod
    def applied_steps(self) -> list[migrations.AppliedStep]:
        """Return the steps that the database has, in order."""

    @abstractmethod
    def apply_steps(self, steps: Sequence[migrations.Step]) -> list[str]:
        """Apply steps. Return the names of those that no other process has applied meanwhile."""

    # --- Upkeep ---
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

"""Real stores with a virtual clock and injected transaction failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from mulligan.core.errors import MulliganError, StoreUnavailable
from mulligan.storage.base import Transaction
from mulligan.storage.postgres import PostgresStore
from mulligan.storage.sqlite import SqliteStore
from simulation.clock import Clock
from support.store import prefix

AT_COMMIT = 99  # statements: more than any transaction has


class Fault(NamedTuple):
    """Which writing transaction of a step fails, and where: before a statement or after the commit.

    A transaction with fewer statements fails at its end, so that a fault has the same effect on both
    stores.
    """

    transaction: int
    statement: int | None  # None: after the commit; the answer is lost


class Faulty:
    """Mixin for a store: fail the transaction that the armed fault names."""

    clock: Clock
    _fault: Fault | None = None
    _begun = 0
    failed = False  # the fault has occurred

    def arm(self, fault: Fault | None) -> None:
        self._fault, self._begun, self.failed = fault, 0, False

    def _due(self) -> Fault | None:
        self._begun += 1
        fault = self._fault
        return fault if fault is not None and fault.transaction == self._begun else None

    def _fail(self) -> None:
        self.failed = True
        raise StoreUnavailable("the simulated database is unavailable")

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        fault = self._due()
        with super().begin() as tx:  # type: ignore[misc]
            if fault is None or fault.statement is None:
                yield tx
            else:
                _fail_after(tx, fault.statement, self._fail)
                try:
                    yield tx
                except MulliganError as refused:
                    # A refusal may come before or after the statement that fails: the number of
                    # statements differs between the stores.
                    if not isinstance(refused, StoreUnavailable):
                        self._fail()
                    raise
                self._fail()
        if fault is not None:
            self._fail()

    @contextmanager
    def single_statement(self) -> Iterator[Transaction]:
        """Run one statement, which fails before or after it."""
        fault = self._due()
        if fault is not None and fault.statement is not None:
            self._fail()
        with self.reliable_single_statement() as tx:  # type: ignore[attr-defined]
            yield tx
        if fault is not None:
            self._fail()


def _fail_after(tx: Transaction, statements: int, fail: Callable[[], None]) -> None:
    """Make the transaction fail after this number of statements."""
    run, left = tx._run, [statements]

    def counted(*args: Any, **kwargs: Any) -> Any:
        if left[0] <= 0:
            fail()
        left[0] -= 1
        return run(*args, **kwargs)

    tx._run = counted


class SimSqlite(Faulty, SqliteStore):
    def reliable_single_statement(self) -> Any:
        return SqliteStore.begin(self)

    def set_database_time(self) -> None:
        """Do nothing: SQLite uses the clock of this process."""


class SimPostgres(Faulty, PostgresStore):
    def reliable_single_statement(self) -> Any:
        return PostgresStore.single_statement(self)

    def read(self) -> Any:
        return PostgresStore.single_statement(self)

    def replace_clock(self) -> None:
        """Replace the function that returns the database's time by one that returns the virtual time."""
        with self.transaction() as connection:
            insert = f"INSERT INTO {self.prefix}meta VALUES ('simulated', '0')"  # noqa: S608
            connection.execute(f"{insert} ON CONFLICT DO NOTHING")
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {self.prefix}now_us() RETURNS BIGINT LANGUAGE sql STABLE AS $$ "  # noqa: S608
                f"SELECT CAST(value AS BIGINT) FROM {self.prefix}meta WHERE key = 'simulated' $$"
            )

    def set_database_time(self) -> None:
        with PostgresStore.single_statement(self) as tx:
            statement = f"UPDATE {self.prefix}meta SET value = %s WHERE key = 'simulated'"  # noqa: S608
            tx._connection.execute(statement, (str(self.clock.wall),))


SimStore = SimSqlite | SimPostgres


def open_simulated(url: str, clock: Clock) -> SimStore:
    store = SimSqlite(url) if url.startswith("sqlite") else SimPostgres(url)
    store.clock = clock
    store.prepare()
    if isinstance(store, SimPostgres):
        store.replace_clock()
    return store


def list_tables(store: SimStore) -> list[str]:
    with store.transaction() as connection:
        if isinstance(store, SimSqlite):
            found = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'mulligan_%'"
            )
        else:
            found = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
                (store.schema,),
            )
        return sorted(
            {row[0].removeprefix("mulligan_") for row in found.fetchall()} - {"schema", "meta"}
        )


def empty_tables(store: SimStore, tables: list[str]) -> None:
    """Delete all rows; much faster than a new database."""
    table_prefix = prefix(store)
    with store.transaction() as connection:
        for table in tables:
            connection.execute(f"DELETE FROM {table_prefix}{table}")  # noqa: S608
        connection.execute(f"DELETE FROM {table_prefix}meta WHERE key <> 'simulated'")  # noqa: S608

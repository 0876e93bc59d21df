"""Real stores, with a clock that the script sets and transactions that fail where it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from mulligan.core.errors import StoreUnavailable
from mulligan.storage.base import Transaction
from mulligan.storage.postgres import PostgresStore
from mulligan.storage.sqlite import SqliteStore
from simulation.clock import Clock
from support.store import prefix

AT_THE_END = 99  # statements: more than any transaction has


class Fault(NamedTuple):
    """The how manieth writing transaction of a step fails, and where: before which statement, or after its commit.

    A transaction of fewer statements fails at its end: so the same fault means the same on both stores.
    """

    transaction: int
    statement: int | None  # None: it is committed, and the answer is lost


class Faulty:
    """Mixed into a store."""

    clock: Clock
    _fault: Fault | None = None
    _begun = 0
    failed = False  # the fault has been

    def arm(self, fault: Fault | None) -> None:
        self._fault, self._begun, self.failed = fault, 0, False

    def _due(self) -> Fault | None:
        self._begun += 1
        fault = self._fault
        return fault if fault is not None and fault.transaction == self._begun else None

    def _fails(self) -> None:
        self.failed = True
        raise StoreUnavailable("the simulated database is away")

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        fault = self._due()
        with super().begin() as unit:  # type: ignore[misc]
            if fault is not None and fault.statement is not None:
                _count(unit, fault.statement, self._fails)
            yield unit
            if fault is not None and fault.statement is not None:
                self._fails()
        if fault is not None:
            self._fails()

    @contextmanager
    def once(self) -> Iterator[Transaction]:
        """One statement, which is a transaction or part of one: it fails before it or after it."""
        fault = self._due()
        if fault is not None and fault.statement is not None:
            self._fails()
        with self.plain_once() as unit:  # type: ignore[attr-defined]
            yield unit
        if fault is not None:
            self._fails()


def _count(unit: Transaction, statements: int, fails: Callable[[], None]) -> None:
    run, left = unit._run, [statements]

    def counted(*args: Any, **said: Any) -> Any:
        if left[0] <= 0:
            fails()
        left[0] -= 1
        return run(*args, **said)

    unit._run = counted


class SimSqlite(Faulty, SqliteStore):
    def plain_once(self) -> Any:
        return SqliteStore.begin(self)

    def tell_time(self) -> None:
        """It asks the clock itself."""


class SimPostgres(Faulty, PostgresStore):
    def plain_once(self) -> Any:
        return PostgresStore.single_statement(self)

    def read(self) -> Any:
        return PostgresStore.single_statement(self)

    def take_clock(self) -> None:
        """Its one function that says what time it is, says what it was told."""
        with self.transaction() as connection:
            connection.execute(
                f"INSERT INTO {self.prefix}meta VALUES ('simulated', '0') ON CONFLICT DO NOTHING"
            )  # noqa: S608
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {self.prefix}now_us() RETURNS BIGINT LANGUAGE sql STABLE AS $$ "  # noqa: S608
                f"SELECT CAST(value AS BIGINT) FROM {self.prefix}meta WHERE key = 'simulated' $$"
            )

    def tell_time(self) -> None:
        with PostgresStore.single_statement(self) as unit:
            told = f"UPDATE {self.prefix}meta SET value = %s WHERE key = 'simulated'"  # noqa: S608
            unit._connection.execute(told, (str(self.clock.wall),))


SimStore = SimSqlite | SimPostgres


def opened(url: str, clock: Clock) -> SimStore:
    store = SimSqlite(url) if url.startswith("sqlite") else SimPostgres(url)
    store.clock = clock
    store.prepare()
    if isinstance(store, SimPostgres):
        store.take_clock()
    return store


def tables_of(store: SimStore) -> list[str]:
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


def emptied(store: SimStore, tables: list[str]) -> None:
    """As it was when it was made; far quicker than to make it again."""
    begins = prefix(store)
    with store.transaction() as connection:
        for table in tables:
            connection.execute(f"DELETE FROM {begins}{table}")  # noqa: S608
        connection.execute(f"DELETE FROM {begins}meta WHERE key <> 'simulated'")  # noqa: S608

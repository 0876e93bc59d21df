"""A job enqueued in the caller's transaction shares the fate of the caller's rows, whatever the caller's tool is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
import pytest
from django.db import transaction
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

import mulligan.dbapi
from mulligan import Mulligan, State
from mulligan.core.errors import UniqueMismatch
from mulligan.events.queries import EventQueries
from support.django_connections import django_connection

BOUND = 20.0  # seconds; only a deadlock waits this long


class Caller(NamedTuple):
    """The caller's side of one open transaction."""

    connection: Any
    execute: Callable[[str], Any]


class ChangedMind(Exception):
    """Raised by a caller to roll back."""


@contextmanager
def rolled_back(block: AbstractContextManager[Caller]) -> Iterator[Caller]:
    with suppress(ChangedMind), block as caller:
        yield caller
        raise ChangedMind


# -- the caller's tools: the block is a transaction, committed at its end, rolled back if it raise
Way = Callable[["World"], Any]


@contextmanager
def app_transaction(world: World) -> Iterator[Caller]:
    with world.app.transaction() as tx:
        yield Caller(tx, tx.execute)


@contextmanager
def dbapi(world: World) -> Iterator[Caller]:
    connection = mulligan.dbapi.connect(world.file)
    try:
        with connection:
            yield Caller(connection, connection.execute)
    finally:
        connection.close()


@contextmanager
def standard_library(world: World) -> Iterator[Caller]:
    connection = sqlite3.connect(world.file)
    connection.row_factory = lambda cursor, row: {
        column[0]: row[i] for i, column in enumerate(cursor.description)
    }
    try:
        with connection:
            yield Caller(connection, connection.execute)
    finally:
        connection.close()


@contextmanager
def psycopg_connection(world: World) -> Iterator[Caller]:
    with psycopg.connect(world.url, row_factory=dict_row) as connection:
        yield Caller(connection, connection.execute)


@contextmanager
def psycopg_block(world: World) -> Iterator[Caller]:
    with psycopg.connect(world.url, autocommit=True) as connection, connection.transaction():
        yield Caller(connection, connection.execute)


@contextmanager
def core(world: World) -> Iterator[Caller]:
    with world.engine().begin() as connection:
        yield Caller(connection, connection.exec_driver_sql)


@contextmanager
def core_as_you_go(world: World) -> Iterator[Caller]:
    with world.engine().connect() as connection:
        yield Caller(connection, connection.exec_driver_sql)
        connection.commit()


@contextmanager
def raw_from_pool(world: World) -> Iterator[Caller]:
    connection = world.engine().raw_connection()
    try:
        yield Caller(connection, lambda sql: connection.cursor().execute(sql))
        connection.commit()
    finally:
        connection.close()


@contextmanager
def session(world: World) -> Iterator[Caller]:
    with Session(world.engine()) as orm, orm.begin():
        yield Caller(orm, lambda sql: orm.connection().exec_driver_sql(sql))


@contextmanager
def django(world: World) -> Iterator[Caller]:
    with django_connection(world.url) as connection, transaction.atomic(using="shop"):
        yield Caller(connection, lambda sql: connection.cursor().execute(sql))


SQLALCHEMY = (core, core_as_you_go, raw_from_pool, session)
WAYS = {
    "sqlite": (app_transaction, dbapi, *SQLALCHEMY),
    "stdlib": (standard_library, django, *SQLALCHEMY),
    "postgres": (app_transaction, psycopg_connection, psycopg_block, django, *SQLALCHEMY),
}


# -- the world around them -----------------------------------------------------------------------
class World:
    """One app, one table of the user's beside it, and the user's own way to write into both."""

    def __init__(self, store: str, url: str, way: Way) -> None:
        self.store = store
        self.url = url
        self.file = url.partition("///")[2]
        self._way = way
        self._engine: Engine | None = None
        with closing(Mulligan(url)) as app, app.transaction() as tx:
            tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        self.app = Mulligan(f"sqlite+stdlib:///{self.file}" if store == "stdlib" else url)
        self.ship = self.register(self.app)
        self.app.store.check_schema()  # opened before the caller's connections are

    def register(self, app: Mulligan) -> Any:
        @app.job(name="ship", queue="post")
        def ship(order: int) -> str:
            return f"shipped {order}"

        return ship

    def engine(self) -> Engine:
        if self._engine is None:
            if self.store == "postgres":
                self._engine = create_engine(
                    self.url.replace("postgresql://", "postgresql+psycopg://", 1)
                )
            elif self.store == "stdlib":
                self._engine = create_engine(f"sqlite:///{self.file}")
            else:
                self._engine = create_engine(f"sqlite+mulligan:///{self.file}")
        return self._engine

    def caller(self) -> Any:
        return self._way(self)

    def orders(self) -> list[int]:
        with self.app.transaction() as tx:
            return [row[0] for row in tx.execute("SELECT id FROM orders ORDER BY id").fetchall()]

    def jobs(self) -> list[Any]:
        return self.app.jobs.list()

    def events(self) -> list[str]:
        with self.app.store.read() as tx:
            return [event.type for event in EventQueries(tx).list_events_after(0, 100)]

    def run(self) -> int:
        """Inline; a process on the standard library only enqueues, so there the jobs run after it has gone."""
        if self.store != "stdlib":
            return self.app.run_inline()
        self.close()
        self.app = Mulligan(f"sqlite:///{self.file}")
        self.register(self.app)
        return self.app.run_inline()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self.app.close()


@pytest.fixture(
    params=[(store, way) for store, ways in WAYS.items() for way in ways],
    ids=lambda p: f"{p[0]}-{p[1].__name__}",
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    store, way = request.param
    world = World(
        store, request.getfixturevalue("postgres_url" if store == "postgres" else "sqlite_url"), way
    )
    yield world
    world.close()


@pytest.fixture(params=["sqlite", "postgres"])
def sqlalchemy_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """One way per store, where the way makes no difference."""
    world = World(request.param, request.getfixturevalue(f"{request.param}_url"), core)
    yield world
    world.close()


# -- one fate ------------------------------------------------------------------------------------
def test_a_committed_job_exists_and_runs(world):
    with world.caller() as caller:
        job = world.ship.options(connection=caller.connection).enqueue(order=7)
        caller.execute("INSERT INTO orders VALUES (7)")
    assert world.orders() == [7]
    assert [found.id for found in world.jobs()] == [job.id]
    assert world.run() == 1
    done = world.app.jobs.get(job.id)
    assert (done.state, done.result) == (State.SUCCEEDED, "shipped 7")
    assert world.events().count("job.queued") == 1


def test_a_transaction_of_nothing_but_the_job_is_committed_too(world):
    with world.caller() as caller:
        world.ship.options(connection=caller.connection).enqueue(order=7)
    assert len(world.jobs()) == 1


def test_rolled_back_there_is_no_job_no_event_and_no_row(world):
    with rolled_back(world.caller()) as caller:
        world.ship.options(connection=caller.connection).enqueue(order=7)
        caller.execute("INSERT INTO orders VALUES (7)")
    assert (world.orders(), world.jobs(), world.events()) == ([], [], [])
    assert world.run() == 0


def test_many_jobs_with_keys_are_rolled_back_with_the_rest(world):
    with rolled_back(world.caller()) as caller:
        by_key = world.ship.options(connection=caller.connection, unique="a")
        by_key.enqueue_many([{"order": 1}, {"order": 1}])
    assert world.jobs() == []


def test_until_the_commit_nobody_else_sees_the_job_and_no_event_is_written(world):
    with world.caller() as caller:
        world.ship.options(connection=caller.connection).enqueue(order=7)
        assert (world.jobs(), world.events()) == ([], [])
    assert len(world.jobs()) == 1
    assert world.events() == []


def test_by_name_it_is_the_same(world):
    with rolled_back(world.caller()) as caller:
        world.app.enqueue("ship", {"order": 7}, connection=caller.connection)
    assert world.jobs() == []


def test_a_savepoint_takes_back_only_what_came_after_it(world):
    with world.caller() as caller:
        ship = world.ship.options(connection=caller.connection)
        first = ship.enqueue(order=1)
        caller.execute("SAVEPOINT here")
        ship.enqueue(order=2)
        caller.execute("INSERT INTO orders VALUES (2)")
        caller.execute("ROLLBACK TO here")
        caller.execute("INSERT INTO orders VALUES (1)")
    assert [job.id for job in world.jobs()] == [first.id]
    assert world.orders() == [1]


def test_a_nested_block_of_sqlalchemy_is_a_savepoint(sqlalchemy_world):
    with Session(sqlalchemy_world.engine()) as orm, orm.begin():
        first = sqlalchemy_world.ship.options(connection=orm).enqueue(order=1)
        with rolled_back(orm.begin_nested()):
            sqlalchemy_world.ship.options(connection=orm).enqueue(order=2)
    assert [job.id for job in sqlalchemy_world.jobs()] == [first.id]


# -- unique keys ---------------------------------------------------------------------------------
def test_a_key_taken_in_this_transaction_answers_with_the_job_that_has_it(world):
    with world.caller() as caller:
        ship = world.ship.options(connection=caller.connection, unique="order 7")
        first, second = ship.enqueue(order=7), ship.enqueue(order=7)
    assert (second.id, second.deduplicated) == (first.id, True)
    assert len(world.jobs()) == 1


def test_a_key_taken_before_answers_with_that_job(world):
    first = world.ship.options(unique="order 7").enqueue(order=7)
    with world.caller() as caller:
        twin = world.ship.options(connection=caller.connection, unique="order 7").enqueue(order=7)
        caller.execute("INSERT INTO orders VALUES (7)")
    assert (twin.id, twin.deduplicated) == (first.id, True)
    assert (len(world.jobs()), world.orders()) == (1, [7])


def test_a_refused_key_leaves_the_callers_transaction_whole(world):
    world.ship.options(unique="order 7").enqueue(order=7)
    with world.caller() as caller:
        caller.execute("INSERT INTO orders VALUES (7)")
        with pytest.raises(UniqueMismatch):
            world.ship.options(connection=caller.connection, unique="order 7").enqueue(order=8)
        caller.execute("INSERT INTO orders VALUES (8)")
    assert (len(world.jobs()), world.orders()) == (1, [7, 8])


def test_a_key_is_free_again_after_a_rollback(world):
    with rolled_back(world.caller()) as caller:
        world.ship.options(connection=caller.connection, unique="order 7").enqueue(order=7)
    assert not world.ship.options(unique="order 7").enqueue(order=7).deduplicated


# -- a transaction held open ---------------------------------------------------------------------
@pytest.fixture
def postgres(postgres_url: str) -> Iterator[World]:
    world = World("postgres", postgres_url, core)
    yield world
    world.close()


def test_an_open_transaction_blocks_no_other_enqueue_claim_or_settle(postgres):
    mine = postgres.ship.enqueue(order=1)
    with postgres.caller() as caller, ThreadPoolExecutor(1) as others:
        held = postgres.ship.options(connection=caller.connection, unique="held").enqueue_many(
            [{"order": 2}]
        )[0]
        theirs = others.submit(postgres.ship.enqueue, order=3).result(timeout=BOUND)
        assert others.submit(postgres.app.run_inline).result(timeout=BOUND) == 2
        assert {postgres.app.jobs.get(job.id).state for job in (mine, theirs)} == {State.SUCCEEDED}
    assert postgres.app.jobs.get(held.id).state is State.QUEUED


def test_only_an_enqueue_with_the_same_key_waits_for_the_commit(postgres):
    committed = threading.Event()

    def enqueue_twin() -> tuple[Any, bool]:
        twin = postgres.ship.options(unique="order 7").enqueue(order=7)
        return twin, committed.is_set()

    with ThreadPoolExecutor(1) as others:
        with postgres.caller() as caller:
            first = postgres.ship.options(connection=caller.connection, unique="order 7").enqueue(
                order=7
            )
            waiting = others.submit(enqueue_twin)
            committed.set()
        twin, after_commit = waiting.result(timeout=BOUND)
    assert (twin.id, twin.deduplicated, after_commit) == (first.id, True, True)


def test_on_sqlite_readers_never_wait_and_writers_wait_for_the_commit(sqlite_url):
    world = World("sqlite", sqlite_url, core)
    committed = threading.Event()

    def enqueue() -> bool:
        world.ship.enqueue(order=2)
        return committed.is_set()

    with ThreadPoolExecutor(2) as others:
        with world.caller() as caller:
            world.ship.options(connection=caller.connection).enqueue(order=1)
            waiting = others.submit(enqueue)
            assert others.submit(world.jobs).result(timeout=BOUND) == []
            committed.set()
        assert waiting.result(timeout=BOUND)
    assert len(world.jobs()) == 2
    world.close()

"""`connection=` with the drivers of async services: asyncpg, psycopg and aiosqlite, alone and in SQLAlchemy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from mulligan import Mulligan, Unique
from mulligan.core.errors import ConnectionRefused, PayloadRefused, TwoLibraries

asyncpg = pytest.importorskip("asyncpg")
aiosqlite = pytest.importorskip("aiosqlite")
pytest.importorskip("greenlet")

STRANGE = "it's \\ %s %(id)s {} $1 ünï 💥 \x1e"


class Shop:
    """An app with a kind, and ways to open transactions on its database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Mulligan(url)

        @self.app.job(name="ship", unique=Unique(by="payload.order"))
        def ship(order: int, note: str = "") -> str:
            return f"shipped {order}"

        self.ship: Any = ship


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    shop = Shop(postgres_url)
    yield shop
    shop.app.close()


@pytest.fixture
def file_shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"sqlite+stdlib:///{tmp_path}/shop.db")
    shop.app.open()
    yield shop
    shop.app.close()


class Undo(Exception):
    """Ends a transaction without its rows."""


Opens = Callable[[str], Any]


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def engine_of(url: str, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(engine_url(url, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


def sqlalchemy_session(driver: str) -> Opens:
    @asynccontextmanager
    async def opens(url: str) -> AsyncIterator[Any]:
        async with (
            engine_of(url, driver) as engine,
            AsyncSession(engine) as session,
            session.begin(),
        ):
            yield session

    return opens


def sqlalchemy_connection(driver: str) -> Opens:
    @asynccontextmanager
    async def opens(url: str) -> AsyncIterator[Any]:
        async with engine_of(url, driver) as engine, engine.begin() as connection:
            yield connection

    return opens


@asynccontextmanager
async def scoped_session(url: str) -> AsyncIterator[Any]:
    async with engine_of(url, "asyncpg") as engine:
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        try:
            async with scoped.begin():
                yield scoped
        finally:
            await scoped.remove()


def engine_url(url: str, driver: str) -> str:
    if driver == "aiosqlite":
        return url.replace("sqlite+stdlib", "sqlite+aiosqlite")
    return url.replace("postgresql", f"postgresql+{driver}", 1).partition("?")[0]


@asynccontextmanager
async def aiosqlite_connection(url: str) -> AsyncIterator[Any]:
    async with aiosqlite.connect(url.partition("///")[2]) as connection:
        yield connection
        await connection.commit()


POSTGRES = {
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pool,
    "psycopg": psycopg_connection,
    "session over asyncpg": sqlalchemy_session("asyncpg"),
    "connection over asyncpg": sqlalchemy_connection("asyncpg"),
    "scoped session over asyncpg": scoped_session,
    "session over psycopg": sqlalchemy_session("psycopg"),
    "connection over psycopg": sqlalchemy_connection("psycopg"),
}
SQLITE = {
    "aiosqlite": aiosqlite_connection,
    "session over aiosqlite": sqlalchemy_session("aiosqlite"),
    "connection over aiosqlite": sqlalchemy_connection("aiosqlite"),
}
on_postgres = pytest.mark.parametrize("opens", POSTGRES.values(), ids=POSTGRES)
on_sqlite = pytest.mark.parametrize("opens", SQLITE.values(), ids=SQLITE)


async def commit_and_roll_back(shop: Shop, opens: Opens) -> None:
    async with opens(shop.url) as connection:
        await shop.ship.options(connection=connection).enqueue_async(order=1, note=STRANGE)
        await shop.ship.options(connection=connection).enqueue_many_async(
            [{"order": order, "note": STRANGE} for order in range(2, 30)]
        )
        await shop.app.aio.enqueue("ship", {"order": 30}, connection=connection)
    with pytest.raises(Undo):
        await undo(shop, opens)


async def undo(shop: Shop, opens: Opens) -> None:
    async with opens(shop.url) as connection:
        await shop.ship.options(connection=connection).enqueue_async(order=31)
        raise Undo


def expect_thirty_jobs(shop: Shop) -> None:
    jobs = shop.app.jobs.list(limit=100)
    assert sorted(job.payload["order"] for job in jobs) == [*range(1, 31)]
    assert {job.payload.get("note") for job in jobs} == {STRANGE, None}
    assert shop.app.run_inline() == 30


@on_postgres
def test_jobs_are_committed_and_rolled_back_with_the_rows(shop, opens):
    asyncio.run(commit_and_roll_back(shop, opens))
    expect_thirty_jobs(shop)


@on_sqlite
def test_jobs_are_committed_and_rolled_back_with_the_rows_of_a_file(file_shop, opens):
    asyncio.run(commit_and_roll_back(file_shop, opens))
    expect_thirty_jobs(file_shop)


@on_postgres
def test_a_unique_key_finds_the_job_of_the_same_transaction(shop, opens):
    async def twice() -> list[Any]:
        async with opens(shop.url) as connection:
            options = shop.ship.options(connection=connection)
            return [await options.enqueue_async(order=7), await options.enqueue_async(order=7)]

    first, second = asyncio.run(twice())
    assert (second.id, second.deduplicated) == (first.id, True)


@on_postgres
def test_a_refused_call_leaves_the_transaction_usable(shop, opens):
    async def refused() -> None:
        async with opens(shop.url) as connection:
            with pytest.raises(PayloadRefused):
                await shop.app.aio.enqueue("ship", {"order": "x"}, connection=connection)
            await shop.ship.options(connection=connection).enqueue_async(order=1)

    asyncio.run(refused())
    assert len(shop.app.jobs.list()) == 1


@on_postgres
def test_a_batch_is_created_filled_and_sealed(shop, opens):
    async def publish() -> str:
        async with (
            opens(shop.url) as connection,
            await shop.app.aio.batch("spring", connection=connection) as batch,
        ):
            await shop.ship.options(batch=batch, connection=connection).enqueue_many_async(
                [{"order": 7}, {"order": 8}]
            )
        return str(batch.id)

    batch_id = asyncio.run(publish())
    shop.app.run_inline()
    assert shop.app.batches.get(batch_id).state == "ready"


@on_postgres
def test_a_cancelled_call_leaves_the_connection_to_its_caller(shop, opens):
    async def cancel() -> None:
        async with opens(shop.url) as connection:
            options = shop.ship.options(connection=connection)
            await options.enqueue_async(order=1)
            task = asyncio.create_task(options.enqueue_async(order=2))
            await asyncio.sleep(0)  # it begins
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            raise Undo

    with pytest.raises(Undo):
        asyncio.run(cancel())
    assert shop.app.jobs.list() == []


def run(awaitable: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(awaitable())  # type: ignore[arg-type]


def test_asyncpg_without_a_transaction_is_refused(shop):
    async def enqueue() -> None:
        connection = await asyncpg.connect(shop.url)
        try:
            await shop.ship.options(connection=connection).enqueue_async(order=7)
        finally:
            await connection.close()

    with pytest.raises(ConnectionRefused, match=r"(?s)no open transaction.*\(1\).*\(2\)"):
        run(enqueue)


def test_asyncpg_in_autocommit_inside_sqlalchemy_is_refused(shop):
    async def enqueue() -> None:
        engine = create_async_engine(engine_url(shop.url, "asyncpg"), isolation_level="AUTOCOMMIT")
        try:
            async with engine.connect() as connection:
                await shop.ship.options(connection=connection).enqueue_async(order=7)
        finally:
            await engine.dispose()

    with pytest.raises(ConnectionRefused, match="autocommit"):
        run(enqueue)
    assert shop.app.jobs.list() == []


@on_postgres
def test_a_connection_to_another_database_is_refused(shop, ready_postgres_url, opens):
    async def enqueue() -> None:
        async with opens(ready_postgres_url) as connection:
            await shop.ship.options(connection=connection).enqueue_async(order=7)

    with pytest.raises(ConnectionRefused, match="not on that of"):
        run(enqueue)
    assert shop.app.jobs.list() == []


@on_postgres
def test_without_await_the_refusal_names_enqueue_async(shop, opens):
    async def enqueue() -> None:
        async with opens(shop.url) as connection:
            shop.ship.options(connection=connection).enqueue(order=7)

    with pytest.raises(ConnectionRefused, match="enqueue_async"):
        run(enqueue)


def test_rows_of_the_caller_are_in_the_same_transaction(shop):
    async def enqueue() -> None:
        async with engine_of(shop.url, "asyncpg") as engine, AsyncSession(engine) as session:
            await session.execute(text("CREATE TABLE orders (id int)"))
            await session.commit()
            job = await shop.ship.options(connection=session).enqueue_async(order=7)
            await session.execute(text("INSERT INTO orders VALUES (7)"))
            found = text("SELECT payload FROM mulligan.job WHERE id = :id")
            assert (await session.execute(found, {"id": job.id})).scalar_one() is not None
            await session.rollback()
            assert (await session.execute(text("SELECT count(*) FROM orders"))).scalar_one() == 0
            assert (await session.execute(found, {"id": job.id})).first() is None

    run(enqueue)


def test_aiosqlite_beside_mulligans_own_library_is_refused(sqlite_url, tmp_path):
    shop = Shop(sqlite_url)
    shop.app.open()

    async def connect() -> None:
        async with aiosqlite.connect(tmp_path / "other.db") as connection:
            await shop.ship.options(connection=connection).enqueue_async(order=7)

    with pytest.raises(TwoLibraries, match=r"sqlite\+stdlib"):
        run(connect)
    shop.app.close()


def test_asyncpg_is_refused_by_a_sqlite_store(sqlite_url, shop):
    file = Shop(sqlite_url)

    async def enqueue() -> None:
        async with asyncpg_connection(shop.url) as connection:
            await file.ship.options(connection=connection).enqueue_async(order=7)

    with pytest.raises(ConnectionRefused, match=r"asyncpg\.connection\.Connection"):
        run(enqueue)
    file.app.close()

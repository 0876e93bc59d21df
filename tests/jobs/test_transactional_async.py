"""SQLAlchemy's async connections and sessions: with enqueue_async, or with enqueue inside run_sync."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mulligan import Mulligan
from mulligan.core.errors import ConnectionRefused

pytest.importorskip(
    "greenlet",
    reason="SQLAlchemy runs its async engines on greenlet: pip install sqlalchemy[asyncio]",
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine


class Shop:
    def __init__(self, url: str) -> None:
        self.url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        self.app = Mulligan(url)

        @self.app.job(name="ship")
        def ship(order: int) -> str:
            return f"shipped {order}"

        self.ship: Any = ship

    def engine(self) -> AsyncEngine:
        return create_async_engine(self.url)


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    shop = Shop(postgres_url)
    yield shop
    shop.app.close()


def test_an_async_connection_enqueues_inside_run_sync(shop):
    async def enqueue() -> None:
        engine = shop.engine()
        async with engine.begin() as conn:
            await conn.run_sync(lambda c: shop.ship.options(connection=c).enqueue(order=7))
        async with engine.connect() as conn:
            await conn.run_sync(lambda c: shop.ship.options(connection=c).enqueue(order=8))
            await conn.rollback()
        await engine.dispose()

    asyncio.run(enqueue())
    assert [job.payload for job in shop.app.jobs.list()] == [{"order": 7}]
    assert shop.app.run_inline() == 1


def test_an_async_session_enqueues_inside_run_sync_and_keeps_its_keys(shop):
    async def enqueue() -> list[Any]:
        engine = shop.engine()
        async with AsyncSession(engine) as session, session.begin():
            jobs = await session.run_sync(
                lambda s: shop.ship.options(connection=s, unique="order 7").enqueue_many(
                    [{"order": 7}, {"order": 7}]
                )
            )
        await engine.dispose()
        return jobs

    first, second = asyncio.run(enqueue())
    assert (second.id, second.deduplicated) == (first.id, True)
    assert len(shop.app.jobs.list()) == 1


def test_enqueue_async_accepts_async_connections_and_sessions(shop):
    async def enqueue() -> None:
        engine = shop.engine()
        async with engine.begin() as conn:
            await shop.ship.options(connection=conn).enqueue_async(order=7)
        async with AsyncSession(engine) as session, session.begin():
            await shop.ship.options(connection=session).enqueue_many_async(
                [{"order": 8}, {"order": 9}]
            )
            await shop.app.aio.enqueue("ship", {"order": 10}, connection=session)
        async with AsyncSession(engine) as session:
            await shop.ship.options(connection=session).enqueue_async(order=11)
            await session.rollback()
        await engine.dispose()

    asyncio.run(enqueue())
    assert sorted(job.payload["order"] for job in shop.app.jobs.list()) == [7, 8, 9, 10]


def test_sync_enqueue_refuses_async_connections_with_the_fix(shop):
    async def enqueue() -> None:
        engine = shop.engine()
        async with engine.begin() as conn, AsyncSession(engine) as session:
            for given in (conn, session):
                with pytest.raises(ConnectionRefused, match="enqueue_async"):
                    shop.ship.options(connection=given).enqueue(order=7)
        await engine.dispose()

    asyncio.run(enqueue())
    assert shop.app.jobs.list() == []


def test_a_batch_is_created_filled_and_sealed_in_an_async_session(shop):
    async def publish(*, commit: bool) -> str:
        engine = shop.engine()
        async with AsyncSession(engine) as session:
            async with await shop.app.aio.batch("spring", connection=session) as batch:
                await shop.ship.options(batch=batch, connection=session).enqueue_many_async(
                    [{"order": 7}, {"order": 8}]
                )
            await (session.commit() if commit else session.rollback())
        await engine.dispose()
        return str(batch.id)

    asyncio.run(publish(commit=False))
    assert shop.app.batches.list() == []
    batch_id = asyncio.run(publish(commit=True))
    shop.app.run_inline()
    assert shop.app.batches.get(batch_id).state == "ready"

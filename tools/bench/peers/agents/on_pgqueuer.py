"""PgQueuer: asyncpg, batches, a buffer of finished ids."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from inspect import isawaitable
from typing import Any

import asyncpg
import bodies
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.queries import Queries
from talk import CONCURRENCY, FAST, POSTGRES, AsyncAgent, serve

CLONE = """INSERT INTO pgqueuer ({columns}) SELECT {columns} FROM pgqueuer, generate_series(2, $1::int)
           WHERE execute_after > now() + interval '1 day'"""
COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = 'pgqueuer' AND column_name <> 'id'"


class PgQueuerAgent(AsyncAgent):
    concurrency = 1000  # its batch_size

    def open(self) -> None:
        self.run(self._open())

    async def _open(self) -> None:
        self.connection = await asyncpg.connect(POSTGRES)
        self.queries = Queries(AsyncpgDriver(self.connection))
        await self.queries.install()

    async def put(self, task: str, i: int) -> None:
        await self.queries.enqueue(task, str(i).encode())

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        self.run(
            self.queries.enqueue([task] * len(ids), [str(i).encode() for i in ids], [0] * len(ids))
        )

    def pending(self) -> int:
        return int(self.run(self.connection.fetchval("SELECT count(*) FROM pgqueuer")))

    def summary(self) -> str:
        live = self.run(
            self.connection.fetch("SELECT status::text, count(*) FROM pgqueuer GROUP BY 1")
        )
        log = self.run(
            self.connection.fetch("SELECT status::text, count(*) FROM pgqueuer_log GROUP BY 1")
        )
        return f"table {dict(map(tuple, live))}, log {dict(map(tuple, log))}"

    def backlog(self, n: int) -> None:
        self.run(self._backlog(n))

    async def _backlog(self, n: int) -> None:
        await self.queries.enqueue(["noop"], [b"0"], [0], [timedelta(days=30)])
        columns = ", ".join(row[0] for row in await self.connection.fetch(COLUMNS))
        await self.connection.execute("ALTER TABLE pgqueuer DISABLE TRIGGER USER")
        await self.connection.execute(CLONE.format(columns=columns), n)
        await self.connection.execute("ALTER TABLE pgqueuer ENABLE TRIGGER USER")
        await self.connection.execute("VACUUM ANALYZE pgqueuer")

    def worker(self) -> list[str]:
        return [sys.executable, __file__, "worker"]


def _handler(body: Callable[[int], object]) -> Callable[[Any], Awaitable[None]]:
    async def handle(job: Any) -> None:
        try:
            done = body(int(job.payload))
        except Exception as error:
            raise RetryRequested(delay=timedelta(0)) from error
        if isawaitable(done):
            await done

    return handle


async def work() -> None:
    queue = PgQueuer.from_asyncpg_pool(await asyncpg.create_pool(POSTGRES, min_size=2, max_size=10))
    for name, body in bodies.ASYNC_TASKS.items():
        queue.entrypoint(name)(_handler(body))
    quick = (
        {"dequeue_timeout": timedelta(seconds=1), "heartbeat_timeout": timedelta(seconds=2)}
        if FAST
        else {}
    )
    await queue.run(batch_size=CONCURRENCY or PgQueuerAgent.concurrency, **quick)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        uvloop.run(work())
    else:
        serve(PgQueuerAgent())

"""Procrastinate: psycopg, a transaction for each step of a job."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

import bodies
import uvloop
from procrastinate import App, PsycopgConnector, RetryStrategy
from talk import CASE, CONCURRENCY, FAST, POSTGRES, AsyncAgent, serve

CLONE = """INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, status, scheduled_at, attempts)
           SELECT queue_name, task_name, priority, args, status, scheduled_at + g * interval '1 ms', attempts
           FROM procrastinate_jobs, generate_series(2, {n}) AS g WHERE scheduled_at > now() + interval '1 day'"""
STATES = """SELECT status::text, count(*) FROM procrastinate_jobs WHERE task_name <> 'retry_stalled_jobs' GROUP BY 1"""

app = App(connector=PsycopgConnector(conninfo=POSTGRES, min_size=2, max_size=10))


def _task(name: str, body: Callable[[int], object]) -> Any:
    async def handle(i: int) -> None:
        done = body(i)
        if isawaitable(done):
            await done

    again = {"retry": RetryStrategy(max_attempts=3, wait=0)} if name in bodies.FAILING else {}
    return app.task(name=name, **again)(handle)


TASKS = {name: _task(name, body) for name, body in bodies.ASYNC_TASKS.items()}

if FAST and CASE != "latency":
    # Recovery is not built in: this is the periodic task from its documentation, as often as allowed.
    @app.periodic(cron="* * * * * */2")
    @app.task(queueing_lock="retry_stalled_jobs", pass_context=True, name="retry_stalled_jobs")
    async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
        del context, timestamp
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=3):
            await app.job_manager.retry_job(job)


class ProcrastinateAgent(AsyncAgent):
    concurrency = 30

    def open(self) -> None:
        self.run(self._open())

    async def _open(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def put(self, task: str, i: int) -> None:
        await TASKS[task].defer_async(i=i)

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        async def defer() -> None:
            await TASKS[task].batch_defer_async(*[{"i": i} for i in ids])

        self.run(defer())

    def _rows(self, statement: str) -> list[dict[str, Any]]:
        return list(self.run(app.connector.execute_query_all_async(statement)))

    def _states(self) -> dict[str, int]:
        return {row["status"]: row["count"] for row in self._rows(STATES)}

    def pending(self) -> int:
        states = self._states()
        return states.get("todo", 0) + states.get("doing", 0)

    def summary(self) -> str:
        return str(self._states())

    def backlog(self, n: int) -> None:
        async def fill() -> None:
            run: Callable[[str], Awaitable[None]] = app.connector.execute_query_async
            await TASKS["noop"].configure(schedule_in={"days": 30}).defer_async(i=0)
            await run("ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER")
            await run(CLONE.format(n=n))
            await run("ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER")
            await run("ANALYZE procrastinate_jobs")

        self.run(fill())

    def worker(self) -> list[str]:
        return [sys.executable, __file__, "worker"]


async def work() -> None:
    quick = {"update_heartbeat_interval": 1, "stalled_worker_timeout": 3} if FAST else {}
    retention = {"delete_jobs": "successful"} if CASE in ("drain", "retry") else {}
    async with app.open_async():
        await app.run_worker_async(
            concurrency=CONCURRENCY or ProcrastinateAgent.concurrency, **quick, **retention
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        uvloop.run(work())
    else:
        serve(ProcrastinateAgent())

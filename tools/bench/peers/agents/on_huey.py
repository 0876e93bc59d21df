"""Huey on SQLite, with fsync."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

import bodies
from huey import SqliteHuey
from talk import CASE, CONCURRENCY, FAST, SQLITE, Agent, script, serve

huey = SqliteHuey("bench", filename=SQLITE, fsync=True)


def _options(name: str) -> dict[str, int]:
    return {"retries": 3, "retry_delay": 0} if name in bodies.FAILING or FAST else {}


TASKS = {name: huey.task(name=name, **_options(name))(body) for name, body in bodies.TASKS.items()}

CLONE = """WITH RECURSIVE k(x) AS (SELECT 2 UNION ALL SELECT x + 1 FROM k WHERE x < ?)
           INSERT INTO schedule (queue, data, timestamp) SELECT queue, data, timestamp + x FROM schedule, k"""


class HueyAgent(Agent):
    bulk = False
    concurrency = 1

    def enqueue(self, task: str, i: int) -> None:
        TASKS[task](i)

    def pending(self) -> int:
        return huey.pending_count() + huey.scheduled_count()

    def summary(self) -> str:
        return f"queued {huey.pending_count()}, scheduled {huey.scheduled_count()}"

    def backlog(self, n: int) -> None:
        huey.add_schedule(TASKS["noop"].s(0, eta=datetime.now() + timedelta(days=30)))  # noqa: DTZ005 - as it wants it
        huey.storage.close()
        with sqlite3.connect(SQLITE) as connection:
            connection.execute(CLONE, (n,))

    def worker(self) -> list[str]:
        poll = [] if CASE == "latency" and not FAST else ["-d", "0.01", "-m", "0.05"]
        threads = str(CONCURRENCY or self.concurrency)
        return [script("huey_consumer"), "on_huey.huey", "-w", threads, "-k", "thread", "-q", *poll]


if __name__ == "__main__":
    serve(HueyAgent())

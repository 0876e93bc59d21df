"""RQ on Redis. A worker forks for each job; higher concurrency means more workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import bodies
import redis
from rq import Queue, Retry
from rq.registry import (
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from talk import CONCURRENCY, FAST, REDIS, Agent, script, serve

REGISTRIES = {
    "started": StartedJobRegistry,
    "scheduled": ScheduledJobRegistry,
    "failed": FailedJobRegistry,
    "finished": FinishedJobRegistry,
}
QUICK = ["--maintenance-interval", "5", "--job-monitoring-interval", "2", "--worker-ttl", "20"]


def _options(task: str) -> dict[str, Any]:
    return {"retry": Retry(max=3)} if task in bodies.FAILING or FAST else {}


class RqAgent(Agent):
    concurrency = 1

    def open(self) -> None:
        self.redis = redis.Redis.from_url(REDIS)
        self.queue = Queue(connection=self.redis)

    def enqueue(self, task: str, i: int) -> None:
        self.queue.enqueue(bodies.TASKS[task], i, **_options(task))

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        self.queue.enqueue_many(
            [Queue.prepare_data(bodies.TASKS[task], (i,), **_options(task)) for i in ids]
        )

    def _count(self, name: str) -> int:
        return int(self.redis.zcard(REGISTRIES[name](queue=self.queue).key))

    def pending(self) -> int:
        return (
            int(self.redis.llen(self.queue.key)) + self._count("started") + self._count("scheduled")
        )

    def summary(self) -> str:
        return f"queued {self.redis.llen(self.queue.key)}, " + ", ".join(
            f"{name} {self._count(name)}" for name in REGISTRIES
        )

    def worker(self) -> list[str]:
        if (CONCURRENCY or self.concurrency) > 1:
            return [sys.executable, __file__, "pool"]
        return self.single()

    def single(self) -> list[str]:
        return [
            script("rq"),
            "worker",
            "-u",
            REDIS,
            "--logging_level",
            "ERROR",
            *(QUICK if FAST else []),
        ]


def pool() -> None:
    """Run several workers under one parent, like its worker-pool, but with more options."""
    workers = [subprocess.Popen(RqAgent().single()) for _ in range(CONCURRENCY)]
    while all(worker.poll() is None for worker in workers):
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:] == ["pool"]:
        pool()
    else:
        serve(RqAgent())

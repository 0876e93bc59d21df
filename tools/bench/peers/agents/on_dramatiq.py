"""Dramatiq on Redis."""

from __future__ import annotations

from typing import Any

import bodies
import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from talk import CONCURRENCY, FAST, REDIS, Agent, script, serve

QUICK: dict[str, Any] = {"heartbeat_timeout": 5000, "maintenance_chance": 100_000} if FAST else {}
dramatiq.set_broker(RedisBroker(url=REDIS, **QUICK))
AGAIN = {"min_backoff": 1, "max_backoff": 1}
TASKS = {
    name: dramatiq.actor(body, actor_name=name, **(AGAIN if name in bodies.FAILING else {}))
    for name, body in bodies.TASKS.items()
}


class DramatiqAgent(Agent):
    bulk = False
    concurrency = 32

    def open(self) -> None:
        self.redis = redis.Redis.from_url(REDIS)

    def enqueue(self, task: str, i: int) -> None:
        TASKS[task].send(i)

    def pending(self) -> int:
        return int(
            self.redis.hlen("dramatiq:default.msgs") + self.redis.hlen("dramatiq:default.DQ.msgs")
        )

    def summary(self) -> str:
        return f"messages {self.pending()}, dead {self.redis.zcard('dramatiq:default.XQ')}"

    def worker(self) -> list[str]:
        return [
            script("dramatiq"),
            "on_dramatiq",
            "-p",
            "1",
            "-t",
            str(CONCURRENCY or self.concurrency),
            "--skip-logging",
        ]


if __name__ == "__main__":
    serve(DramatiqAgent())

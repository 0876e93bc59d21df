"""Celery on Redis."""

from __future__ import annotations

import bodies
import redis
from celery import Celery
from talk import CASE, CONCURRENCY, FAST, REDIS, Agent, script, serve

app = Celery("bench", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=64 if CASE in ("drain", "retry") else 4,
)
if FAST:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={
            "visibility_timeout": 10,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
AGAIN = {
    "autoretry_for": (ConnectionError,),
    "retry_kwargs": {"max_retries": 5},
    "default_retry_delay": 0,
}
TASKS = {
    name: app.task(name=name, **(AGAIN if name in bodies.FAILING else {}))(body)
    for name, body in bodies.TASKS.items()
}


class CeleryAgent(Agent):
    bulk = False
    concurrency = 2

    def open(self) -> None:
        self.redis = redis.Redis.from_url(REDIS)

    def enqueue(self, task: str, i: int) -> None:
        TASKS[task].delay(i)

    def pending(self) -> int:
        return int(self.redis.llen("celery") + self.redis.hlen("unacked"))

    def summary(self) -> str:
        return f"queued {self.redis.llen('celery')}, unacknowledged {self.redis.hlen('unacked')}"

    def worker(self) -> list[str]:
        pool = ["--pool", "prefork", "--concurrency", str(CONCURRENCY or self.concurrency)]
        return [
            script("celery"),
            "-A",
            "on_celery",
            "worker",
            *pool,
            "-l",
            "WARNING",
            "--without-gossip",
            "--without-mingle",
        ]


if __name__ == "__main__":
    serve(CeleryAgent())

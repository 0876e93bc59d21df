"""The measured systems: Mulligan, six others with their best documented settings, bare databases."""

from __future__ import annotations

from typing import NamedTuple


class Contender(NamedTuple):
    """One measured system on one database."""

    name: str
    store: str  # postgres, sqlite or redis
    agent: str  # tools/bench/peers/agents/on_AGENT.py
    jobs: int  # in a drain: some seconds of work for it
    imports: str  # what a program that enqueues imports
    settings: str  # text for the results
    limit: bool = False  # the database alone
    crash_concurrency: int = 10
    poison_concurrency: int = 4

    @property
    def ours(self) -> bool:
        return self.agent == "mulligan"

    @property
    def environment(self) -> str | None:
        """Name of its environment; None: the current one."""
        return None if self.ours or self.limit else self.agent


OURS = {"postgres": "mulligan on PostgreSQL", "sqlite": "mulligan on SQLite"}
LIMITS = {"postgres": "plain psycopg", "sqlite": "plain SQLite"}

CONTENDERS = (
    Contender(
        OURS["postgres"],
        "postgres",
        "mulligan",
        40_000,
        "import mulligan, psycopg",
        "defaults: one supervisor, one runner, concurrency 10; history, fencing, synchronous commits",
    ),
    Contender(
        OURS["sqlite"],
        "sqlite",
        "mulligan",
        40_000,
        "import mulligan",
        "defaults: one supervisor, one runner, concurrency 10; history, fencing, synchronous=FULL",
    ),
    Contender(
        "pgqueuer",
        "postgres",
        "pgqueuer",
        40_000,
        "import asyncpg, pgqueuer",
        "batch_size 1000, asyncpg pool, uvloop; fast: heartbeat_timeout 2 s, dequeue_timeout 1 s",
    ),
    Contender(
        "procrastinate",
        "postgres",
        "procrastinate",
        1_500,
        "import procrastinate",
        "concurrency 30, uvloop, successful jobs deleted; fast: heartbeats of 1 s and 3 s, the documented periodic "
        "task that retries stalled jobs every 2 s",
    ),
    Contender(
        "celery",
        "redis",
        "celery",
        3_000,
        "import celery; celery.Celery; import kombu.transport.redis",
        "prefork of 2, prefetch multiplier 64, results ignored; fast: acks_late, reject_on_worker_lost, visibility "
        "timeout 10 s, restored every 1 s",
    ),
    Contender(
        "dramatiq",
        "redis",
        "dramatiq",
        10_000,
        "import dramatiq, dramatiq.brokers.redis",
        "1 process of 32 threads; fast: heartbeat timeout 5 s, maintenance chance 10 %",
    ),
    Contender(
        "rq",
        "redis",
        "rq",
        200,
        "import rq",
        "one forking worker (more for more concurrency); fast: Retry(max=3), maintenance 5 s, monitoring 2 s, "
        "worker ttl 20 s",
    ),
    Contender(
        "huey",
        "sqlite",
        "huey",
        10_000,
        "import huey; huey.SqliteHuey",
        "SQLite with fsync, one thread, polls every 10 to 50 ms (latency: its default); fast: retries 3",
    ),
    Contender(
        LIMITS["postgres"],
        "postgres",
        "psycopg",
        40_000,
        "import psycopg",
        "one connection, prepared statements, batches of 100 claimed and finished by update, rows as wide as ours",
        limit=True,
    ),
    Contender(
        LIMITS["sqlite"],
        "sqlite",
        "apsw",
        40_000,
        "import apsw",
        "apsw, WAL, synchronous=FULL, batches of 100 and of 1000 claimed and finished by update, rows as wide as ours",
        limit=True,
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}


def choose_contenders(names: list[str]) -> list[Contender]:
    """Return the contenders with one of these names or databases; all if there are none."""
    return [
        one
        for one in CONTENDERS
        if not names or any(name in (one.store, *_names_of(one)) for name in names)
    ]


def _names_of(one: Contender) -> tuple[str, ...]:
    return (one.name, one.agent, *(("limits",) if one.limit else ()))

"""Mulligan with default settings, on the database of MULLIGAN_DATABASE_URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta

import bodies
import job_mix
from talk import CASE, CONCURRENCY, FAST, Agent, serve

from mulligan import Fixed, Mulligan, Policy
from mulligan.core.durations import SECOND
from mulligan.core.job import Gate
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import SearchQueries

app = Mulligan()


@app.job
async def noop(i: int) -> None:
    bodies.noop(i)


@app.job(uses="gateway")
async def held(i: int) -> None:
    bodies.noop(i)


@app.job(policy=Policy(max_retries=3, backoff=Fixed(0)))
async def flaky(i: int) -> None:
    bodies.flaky(i)


@app.job(policy=Policy(max_retries=3, backoff=Fixed(0)))
async def mixed_failure(i: int) -> None:
    bodies.mixed_failure(i)


@app.job
async def stamp(i: int) -> None:
    bodies.stamp(i)


@app.job(policy=Policy(backoff=Fixed(0)))
def sleeper(i: int) -> None:
    bodies.sleeper(i)


@app.job
def innocent(i: int) -> None:
    bodies.innocent(i)


@app.job
def poison(i: int) -> None:
    bodies.poison(i)


@app.job
def venom(i: int) -> None:
    bodies.venom(i)


KINDS = {
    "noop": noop,
    "held": held,
    "flaky": flaky,
    "mixed_failure": mixed_failure,
    "stamp": stamp,
    "sleeper": sleeper,
    "innocent": innocent,
    "poison": poison,
    "venom": venom,
}
MIXED = job_mix.declare_kinds(app)
QUICK = {
    "MULLIGAN_WORKER__LEASE": "4",
    "MULLIGAN_WORKER__HEARTBEAT": "1",
    "MULLIGAN_WORKER__SWEEP": "1",
}


class MulliganAgent(Agent):
    concurrency = 10  # the default

    def open(self) -> None:
        self.pending()

    def close(self) -> None:
        app.close()

    def enqueue(self, task: str, i: int) -> None:
        KINDS[task].enqueue(i=i)

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        KINDS[task].enqueue_many([{"i": i} for i in ids])

    def fill(self, task: str, n: int) -> None:
        if task == "mixed":
            job_mix.enqueue(app, MIXED, n, bodies.SEED)
        else:
            super().fill(task, n)

    def pending(self) -> int:
        return self._count("queued") + self._count("running")

    def summary(self) -> str:
        states = ("queued", "running", "succeeded", "dead", "parked", "cancelled")
        return str({state: count for state in states if (count := self._count(state))})

    def _count(self, state: str) -> int:
        with app.store.read() as tx:
            return SearchQueries(tx).count_jobs({"state": state}, 100_000)

    def backlog(self, n: int) -> None:
        later = noop.options(delay=timedelta(days=30))
        for start in range(0, n, 5000):
            later.enqueue_many([{"i": i} for i in range(start, min(n, start + 5000))])

    def hold(self, n: int) -> None:
        """Insert n jobs that wait for a held dependency."""
        for start in range(0, n, 5000):
            held.enqueue_many([{"i": i} for i in range(start, min(n, start + 5000))])
        with app.store.begin() as tx:
            now = tx.now()
            GuardQueries(tx).close_gate(
                Gate("dependency", "gateway", now, now + 86_400 * SECOND, "bench", "bench")
            )

    def worker(self) -> list[str]:
        concurrency = str(CONCURRENCY or self.concurrency)
        quick = [f"{name}={value}" for name, value in QUICK.items()] if FAST else []
        command = [
            sys.executable,
            "-m",
            "mulligan",
            "worker",
            "on_mulligan:app",
            "--concurrency",
            concurrency,
        ]
        return ["/usr/bin/env", *quick, *command, "--runners", "1"]

    def about(self) -> dict[str, object]:
        return {
            "concurrency": CONCURRENCY or self.concurrency,
            "case": CASE,
            "store": os.environ["BENCH_STORE"],
        }


if __name__ == "__main__":
    serve(MulliganAgent())

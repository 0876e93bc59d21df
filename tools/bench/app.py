"""Handlers of the measured workers."""

from __future__ import annotations

import logging
import os
import time

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()
log = logging.getLogger("bench")
LINES = 5  # of a job that logs


@app.job
async def noop() -> None:
    return None


@app.job(log=0)
async def noop_unrecorded() -> None:
    return None


@app.job
async def logs() -> None:
    _log_lines()


@app.job(log=0)
async def logs_unrecorded() -> None:
    _log_lines()


def _log_lines() -> None:
    for number in range(LINES):
        log.info("step %d of %d", number, LINES)


@app.job(queue="other")
async def other() -> None:
    return None


@app.job
def noop_sync() -> None:
    return None


@app.job(uses="gateway")
async def held() -> None:
    return None


@app.job(policy=Policy(max_retries=3, backoff=Fixed(0)))
async def fails_once(ctx: Context, n: int) -> None:
    if ctx.attempt == 1:
        raise ConnectionError(f"request {n} to shard {n % 97} was reset after {n / 7:.3f} s")


@app.job
async def stamp() -> int:
    """Return the start time in microseconds."""
    return time.time_ns() // 1000


@app.job(policy=Policy(max_retries=3, backoff=Fixed(0)))
def nap(seconds: float) -> None:
    time.sleep(seconds)


WORKER = [os.environ.get("BENCH_PYTHON", "python"), "-m", "mulligan", "worker", "bench.app:app"]

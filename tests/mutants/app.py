"""Jobs of the scenarios. Each records its steps in the witness file."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from mulligan import Context, Fixed, Mulligan, Policy
from mulligan.doctor.verify import witness

app = Mulligan()
WITNESS_FILE = os.environ.get("MUTANT_WITNESS", "")
QUICK = Policy(max_retries=3, backoff=Fixed(0.3), retry_unknown=True)

if os.environ.get("MUTANT_CRON"):
    app.schedule("tick", os.environ["MUTANT_CRON"], "work", payload={"n": 0})


def finish(ctx: Context, **more: Any) -> dict[str, Any]:
    result = {"job": ctx.job.id, "token": ctx.token, **more}
    witness(WITNESS_FILE, ctx, "end", result=result)
    return result


@app.job(policy=QUICK)
def work(ctx: Context, n: int, seconds: float = 0.0, fails: int = 0) -> dict[str, Any]:
    witness(WITNESS_FILE, ctx, "start")
    time.sleep(seconds)
    if ctx.attempt <= fails:
        witness(WITNESS_FILE, ctx, "fail")
        raise RuntimeError(f"attempt {ctx.attempt} of {n}")
    return finish(ctx, n=n)


@app.job(policy=QUICK)
async def light(ctx: Context, n: int) -> dict[str, Any]:
    witness(WITNESS_FILE, ctx, "start")
    await asyncio.sleep(0.05)
    return finish(ctx, n=n)


@app.job(policy=QUICK)
def gated(ctx: Context, gates: str, keep: bool = False) -> dict[str, Any]:
    """Wait until the file of this token exists. With `keep` the first attempt then writes a checkpoint."""
    witness(WITNESS_FILE, ctx, "start")
    while not Path(f"{gates}-{ctx.token}").exists():
        time.sleep(0.02)
    if keep and ctx.token == 1:
        ctx.checkpoint("place", ctx.token)
    return finish(ctx)


@app.job(policy=QUICK)
def poison(ctx: Context) -> None:
    witness(WITNESS_FILE, ctx, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=QUICK)
def fails_at_gate(ctx: Context, gate: str) -> None:
    """Wait until a file exists, then fail."""
    witness(WITNESS_FILE, ctx, "start")
    while not Path(gate).exists():
        time.sleep(0.02)
    witness(WITNESS_FILE, ctx, "fail")
    raise RuntimeError("not now")


@app.job(policy=Policy(max_retries=0))
def dies(ctx: Context, n: int) -> None:
    witness(WITNESS_FILE, ctx, "start")
    witness(WITNESS_FILE, ctx, "fail")
    raise RuntimeError(f"number {n}")

"""The jobs of the scenarios. Each bears witness of what it does."""

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
SEEN = os.environ.get("MUTANT_WITNESS", "")
QUICK = Policy(max_retries=3, backoff=Fixed(0.3), retry_unknown=True)

if os.environ.get("MUTANT_CRON"):
    app.schedule("tick", os.environ["MUTANT_CRON"], "work", payload={"n": 0})


def done(ctx: Context, **more: Any) -> dict[str, Any]:
    result = {"job": ctx.job.id, "token": ctx.token, **more}
    witness(SEEN, ctx, "end", result=result)
    return result


@app.job(policy=QUICK)
def work(ctx: Context, n: int, seconds: float = 0.0, fails: int = 0) -> dict[str, Any]:
    witness(SEEN, ctx, "start")
    time.sleep(seconds)
    if ctx.attempt <= fails:
        witness(SEEN, ctx, "fail")
        raise RuntimeError(f"attempt {ctx.attempt} of {n}")
    return done(ctx, n=n)


@app.job(policy=QUICK)
async def light(ctx: Context, n: int) -> dict[str, Any]:
    witness(SEEN, ctx, "start")
    await asyncio.sleep(0.05)
    return done(ctx, n=n)


@app.job(policy=QUICK)
def gated(ctx: Context, gates: str, keep: bool = False) -> dict[str, Any]:
    """Each attempt waits until the file named for its token is there; what the first keeps it keeps at its end."""
    witness(SEEN, ctx, "start")
    while not Path(f"{gates}-{ctx.token}").exists():
        time.sleep(0.02)
    if keep and ctx.token == 1:
        ctx.checkpoint("place", ctx.token)
    return done(ctx)


@app.job(policy=QUICK)
def poison(ctx: Context) -> None:
    witness(SEEN, ctx, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=QUICK)
def fails_when_let(ctx: Context, gate: str) -> None:
    """Waits until a file is there, and fails."""
    witness(SEEN, ctx, "start")
    while not Path(gate).exists():
        time.sleep(0.02)
    witness(SEEN, ctx, "fail")
    raise RuntimeError("not now")


@app.job(policy=Policy(max_retries=0))
def dies(ctx: Context, n: int) -> None:
    witness(SEEN, ctx, "start")
    witness(SEEN, ctx, "fail")
    raise RuntimeError(f"number {n}")

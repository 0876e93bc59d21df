"""App whose jobs wait without a slot, for tests with real workers."""

from __future__ import annotations

import time

from mulligan import Context, Mulligan, Policy

app = Mulligan()
ONCE = Policy(max_retries=0)


@app.job(policy=ONCE)
def naps(ctx: Context, seconds: float) -> str:
    ctx.sleep("nap", seconds)
    return "awake"


@app.job(policy=ONCE)
async def asks(ctx: Context, order: int) -> object:
    await ctx.sleep_async("pause", 0.05)
    return await ctx.wait_async("approval", timeout=3600, default="nobody")


@app.job(policy=ONCE)
def answers_in_time(ctx: Context, timeout: float) -> object:
    return ctx.wait("approval", timeout=timeout, default="nobody")


@app.job
def quick(n: int) -> int:
    return n


@app.job(policy=Policy(max_losses=9))
def slowly(n: int) -> int:
    time.sleep(0.05)
    return n


@app.job(policy=Policy(max_losses=9))
def adds_up(ctx: Context, numbers: list[int]) -> int:
    return sum(ctx.gather("numbers", [slowly.call(n=n) for n in numbers]))

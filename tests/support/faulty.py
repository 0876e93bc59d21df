"""App whose jobs misbehave in many ways. Each start is recorded in the witness file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mulligan import Context, Fail, Fixed, Mulligan, Policy, Snooze, Then

app = Mulligan()
NOW = Policy(max_retries=3, backoff=Fixed(0))


def witness(ctx: Context, what: str) -> None:
    """Append a line to the witness file: evidence that does not depend on Mulligan."""
    line = f"{what} {ctx.job.id} {ctx.attempt} {ctx.token} {os.getpid()} {time.monotonic()}\n"
    fd = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


@app.job(policy=NOW)
def nap(ctx: Context, seconds: float) -> str:
    witness(ctx, "start")
    time.sleep(seconds)
    witness(ctx, "end")
    return "rested"


@app.job(policy=NOW)
async def nap_async(ctx: Context, seconds: float) -> str:
    witness(ctx, "start")
    await asyncio.sleep(seconds)
    witness(ctx, "end")
    return "rested"


@app.job(once=True)
def nap_once(ctx: Context, seconds: float) -> str:
    """Take long, and never run twice."""
    witness(ctx, "start")
    time.sleep(seconds)
    return "rested"


@app.job(policy=NOW)
def nap_first(ctx: Context, seconds: float) -> str:
    """Take long in the first attempt only."""
    witness(ctx, "start")
    time.sleep(seconds if ctx.token == 1 else 0)
    witness(ctx, "end")
    return "rested"


@app.job(policy=NOW)
def poison(ctx: Context) -> None:
    witness(ctx, "start")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=NOW)
def assassin(ctx: Context) -> None:
    """Kill the whole worker."""
    witness(ctx, "start")
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=NOW)
def crash_hard(ctx: Context) -> None:
    witness(ctx, "start")
    ctypes.string_at(0)


@app.job(timeout=1, policy=Policy(max_retries=0))
def sleeping_thread(ctx: Context) -> None:
    witness(ctx, "start")
    time.sleep(600)


@app.job(timeout=1, policy=Policy(max_retries=0))
async def sleeping_task(ctx: Context) -> None:
    witness(ctx, "start")
    await asyncio.sleep(600)


@app.job(timeout=1, policy=Policy(max_retries=0))
def holds_the_gil(ctx: Context) -> None:
    """Hold the GIL in a C call: nothing else in this process runs."""
    witness(ctx, "start")
    ctypes.PyDLL(None).sleep(600)


@app.job(timeout=1, policy=Policy(max_retries=0))
async def blocks_the_loop(ctx: Context) -> None:
    witness(ctx, "start")
    time.sleep(600)  # noqa: ASYNC251 - this is the misbehaviour


@app.job(timeout=1, policy=Policy(max_retries=0))
def ignores_sigterm(ctx: Context) -> None:
    """Wait for a child that ignores SIGTERM, without checking ctx.cancelled."""
    witness(ctx, "start")
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], check=True)


@app.job(timeout=1, policy=Policy(max_retries=0))
def process_tree(ctx: Context) -> None:
    witness(ctx, "start")
    ctx.run(["sh", "-c", "sleep 611 & (setsid sleep 612 &) ; sleep 613 & wait"])


@app.job(policy=Policy(max_retries=0), memory_limit=150 * 1024 * 1024)
def eats_memory(ctx: Context) -> None:
    witness(ctx, "start")
    held = []
    while True:
        held.append(bytearray(10 * 1024 * 1024))
        time.sleep(0.02)


LEAK: list[bytearray] = []


@app.job(policy=NOW)
def leaks(ctx: Context, megabytes: int) -> None:
    """Leave memory behind that no later job needs."""
    witness(ctx, "start")
    LEAK.append(bytearray(megabytes * 1_000_000))


@app.job(
    timeout=1,
    policy=Policy(
        max_retries=3, backoff=Fixed(0), classes={"timeout": Policy(then=Then(timeout=30))}
    ),
)
def needs_time(ctx: Context) -> str:
    witness(ctx, "start")
    time.sleep(2.5)
    return "in time"


@app.job(
    policy=Policy(
        max_retries=1,
        backoff=Fixed(0),
        then=Then(memory_limit=150 * 1024 * 1024, settings={"eat": 1}),
    )
)
def grows(ctx: Context) -> None:
    """Fail at first, then use too much memory in a single-use runner."""
    witness(ctx, "start")
    if not ctx.settings:
        raise ConnectionError
    eats_memory(ctx)


@app.job(isolate=True)
def alone(ctx: Context) -> int:
    witness(ctx, "start")
    return os.getpid()


@app.job(isolate=True)
def leaves_a_daemon() -> int:
    """Fork, without exec, a process in its own session."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    return pid


@app.job
def where(ctx: Context) -> str:
    (ctx.workdir / "file").write_text("x")
    return str(ctx.workdir)


@app.job(policy=NOW)
def saves(ctx: Context, steps: int) -> int:
    """Save one step as a checkpoint, then die, until all steps are done."""
    witness(ctx, "start")
    done = int(ctx.checkpoints.get("done", 0))
    if done < steps:
        ctx.checkpoint("done", done + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    return done


@app.job
def says(text: str, times: int) -> dict[str, Any]:
    return {"text": text * times}


@app.job
def leaves_a_child() -> None:
    """Start a program that leaves a process behind, which writes a line and ends."""
    script = 'sh -c "sleep 0.2; echo child >> \\"$WITNESS\\"" &'
    subprocess.run(["sh", "-c", script], check=True)


_waiters: dict[str, asyncio.Task[None]] = {}


async def _wait_for_file(path: str) -> None:
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process creates it
        await asyncio.sleep(0.01)


@app.job(policy=NOW)
async def returns_when(ctx: Context, path: str, size: int) -> str:
    """Return a text of this size once the file exists; all jobs in the same loop iteration."""
    witness(ctx, "start")
    if path not in _waiters:
        _waiters[path] = asyncio.create_task(_wait_for_file(path))
    await asyncio.shield(_waiters[path])
    return "x" * size


@app.job
def snoozes(ctx: Context) -> Any:
    return Snooze(0) if ctx.attempt < 3 else "awake"


@app.job(policy=Policy(max_retries=3, backoff=Fixed(0), max_losses=1000))
def member(ctx: Context, fate: str) -> Any:
    """Run a member of a batch that fails once, kills its process once, or dies until a retry."""
    if fate == "dies" and ctx.job.generation == 1:
        return Fail("BAD_FILE", final=True)
    if fate == "fails" and ctx.attempt == 1:
        raise ConnectionError
    if fate == "kills" and ctx.token == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "splits":
        member.options(batch=ctx, unique=ctx.key("child")).enqueue(fate="well")
    return "done"


@app.job(name="completed", policy=Policy(max_retries=3, backoff=Fixed(0), max_losses=1000))
def completed(batch: str) -> str:
    return str(app.batches.get(batch).state)


@app.on_start
def opened(state: Any) -> None:
    state.pid = os.getpid()


@app.job
def state_of(ctx: Context) -> bool:
    return bool(ctx.state.pid == os.getpid())


if "SLOW_IMPORT" in os.environ:
    time.sleep(float(os.environ["SLOW_IMPORT"]))
Path(os.environ.get("WITNESS", os.devnull))

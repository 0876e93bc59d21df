"""Handlers of a storm: they return, raise, sleep, exceed limits, enqueue, checkpoint and kill.

Each records its start and end in the witness file, in the format of `mulligan.doctor.verify.records`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from mulligan import Context, Fail, Fixed, Hold, Mulligan, Park, Policy, Retry, Snooze, Unique
from mulligan.doctor.verify import records

app = Mulligan()
WITNESS = os.environ.get("STORM_WITNESS", os.devnull)
FOLDER = Path(os.environ.get("STORM_FOLDER", os.devnull))
# Workers are killed all the time: an innocent job must survive many losses.
PATIENT = Policy(max_retries=3, backoff=Fixed(0.2), max_losses=1000)
MEGABYTE = 1024 * 1024
LARGE_RESULT = 900_000  # characters; less than the default of limits.result


def started(ctx: Context) -> None:
    records.witness(WITNESS, ctx, records.START)


def ended(ctx: Context, result: Any) -> Any:
    records.witness(WITNESS, ctx, records.END, result=result)
    return result


def failed(ctx: Context, outcome: Any) -> Any:
    """Record an outcome that is not a result."""
    records.witness(WITNESS, ctx, records.FAIL, outcome=type(outcome).__name__)
    return outcome


def kill_supervisor() -> None:
    """kill -9 of the worker that runs this handler: of its supervisor, then of this process."""
    supervisor = os.getpid()
    while (parent := _parent(supervisor)) > 1 and _is_of_worker(parent):
        supervisor = parent
    os.kill(supervisor, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def _is_of_worker(pid: int) -> bool:
    """True if a process belongs to a worker: the storm starts each of them with a name."""
    return b"STORM_NAME=" in Path(f"/proc/{pid}/environ").read_bytes()


@app.job(policy=PATIENT)
def plain(ctx: Context, n: int) -> dict[str, int]:
    started(ctx)
    return dict(ended(ctx, {"n": n}))


@app.job(policy=PATIENT)
def sleeps(ctx: Context, n: int, seconds: float) -> float:
    started(ctx)
    time.sleep(seconds)
    return float(ended(ctx, seconds))


@app.job(policy=PATIENT, queue="async")
async def sleeps_async(ctx: Context, n: int, seconds: float) -> str:
    started(ctx)
    await asyncio.sleep(seconds)
    return str(ended(ctx, "rested"))


@app.job(policy=PATIENT)
def fails(ctx: Context, n: int, times: int) -> str:
    """Raise `times` times, then succeed. After more than three failures the job is dead."""
    started(ctx)
    if ctx.job.failures < times:
        records.witness(WITNESS, ctx, records.FAIL)
        raise ConnectionError(f"number {n}")
    return str(ended(ctx, "at last"))


@app.job(policy=PATIENT)
def dies(ctx: Context, n: int) -> Any:
    started(ctx)
    return failed(ctx, Fail("NO_SUCH_THING", f"number {n}", final=True))


@app.job(policy=PATIENT)
def asks(ctx: Context, n: int, outcome: str) -> Any:
    """Return a control outcome first, then a result."""
    started(ctx)
    if ctx.attempt > 1 or ctx.job.generation > 1:
        return ended(ctx, outcome)
    answers: dict[str, Any] = {
        "retry": Retry(after=0.2),
        "snooze": Snooze(0.3),
        "park": Park("look", choices=("go",)),
    }
    return failed(ctx, answers[outcome])


@app.job(policy=Policy(max_retries=1, backoff=Fixed(0.1), max_losses=1000), timeout=1)
def overstays(ctx: Context, n: int) -> None:
    started(ctx)
    time.sleep(60)


@app.job(policy=Policy(max_retries=0, max_losses=1000), timeout=1)
def holds_the_gil(ctx: Context, n: int) -> None:
    """Call C through PyDLL, which keeps the GIL: no other thread of this process runs."""
    started(ctx)
    ctypes.PyDLL(None).sleep(60)


@app.job(policy=Policy(max_retries=1, backoff=Fixed(0), max_losses=2))
def poison(ctx: Context, n: int) -> None:
    started(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=Policy(max_retries=0, max_losses=1000), memory_limit=200 * MEGABYTE)
def eats(ctx: Context, n: int) -> None:
    started(ctx)
    held = []
    while True:
        held.append(bytearray(20 * MEGABYTE))
        time.sleep(0.05)


@app.job(policy=PATIENT)
def saves(ctx: Context, n: int, steps: int) -> int:
    """Write one checkpoint and kill the process, until all steps are done."""
    started(ctx)
    done = int(ctx.checkpoints.get("done", 0))
    if done < steps:
        ctx.checkpoint("done", done + 1)
        records.witness(WITNESS, ctx, "kept", done=done + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    return int(ended(ctx, done))


@app.job(policy=PATIENT)
def keeps(ctx: Context, n: int) -> str:
    started(ctx)
    ctx.progress(0.5, "half way")
    ctx.checkpoint("step", n)
    return str(ended(ctx, "kept"))


@app.job(policy=PATIENT)
def parent(ctx: Context, n: int, children: int) -> list[str]:
    """Enqueue children in one transaction; each exists once however often this runs."""
    started(ctx)
    ids = []
    with app.transaction() as connection:
        for number in range(children):
            options = child.options(unique=ctx.key(f"child-{number}"), connection=connection)
            ids.append(options.enqueue(n=n, number=number).id)
    for job_id in ids:
        records.witness(WITNESS, ctx, records.CHILD, child=job_id)
    return list(ended(ctx, ids))


@app.job(policy=PATIENT)
def child(ctx: Context, n: int, number: int) -> int:
    started(ctx)
    return int(ended(ctx, number))


@app.job(policy=PATIENT)
def large(ctx: Context, n: int) -> str:
    """Return a result of almost 1 MB."""
    started(ctx)
    return str(ended(ctx, f"{n} " + "x" * LARGE_RESULT))


@app.job(policy=PATIENT, isolate=True)
def alone(ctx: Context, n: int) -> str:
    started(ctx)
    ctx.run(["sh", "-c", "sleep 0.1"])
    return str(ended(ctx, "alone"))


@app.job(policy=PATIENT, unique=Unique(by=("payload.key",), while_=("queued", "running", "parked")))
def once(ctx: Context, key: str) -> str:
    started(ctx)
    time.sleep(0.05)
    return str(ended(ctx, key))


@app.job(policy=PATIENT, uses="gateway", queue="calls")
def calls(ctx: Context, n: int) -> Any:
    """Call the gateway. It is down while the file `gateway-down` exists, and may hang too."""
    started(ctx)
    if (FOLDER / "gateway-kills").exists():
        kill_supervisor()
    while (FOLDER / "gateway-hangs").exists():
        time.sleep(0.1)
    if (FOLDER / "gateway-down").exists():
        records.witness(WITNESS, ctx, records.FAIL)
        raise ConnectionRefusedError("gateway")
    if n % 50 == 7 and ctx.attempt == 1:
        return failed(ctx, Hold("gateway", until=1, reason="asked to wait"))
    return ended(ctx, n)


@app.job(policy=PATIENT)
def member(ctx: Context, n: int, fate: str) -> Any:
    """Run as a batch member: some fail once, some kill their process, some die until retried."""
    started(ctx)
    if fate == "dies" and ctx.job.generation == 1:
        return failed(ctx, Fail("BAD_FILE", final=True))
    if fate == "fails" and ctx.job.failures == 0 and ctx.job.generation == 1:
        records.witness(WITNESS, ctx, records.FAIL)
        raise ConnectionError
    if fate == "kills" and ctx.token == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "splits":
        extra = member.options(batch=ctx, unique=ctx.key("extra")).enqueue(n=n, fate="well")
        records.witness(WITNESS, ctx, records.CHILD, child=extra.id)
    return ended(ctx, fate)


@app.job(policy=PATIENT)
def completed(ctx: Context, batch: str) -> str:
    started(ctx)
    return str(ended(ctx, batch))


@app.job(policy=PATIENT)
def tick(ctx: Context, name: str) -> str:
    started(ctx)
    return str(ended(ctx, name))


app.dependency("gateway", cool_down=2, window=20)
app.queue("async", concurrency=12)
app.schedule("tick", "*/3 * * * * *", tick, {"name": "latest"}, missed="latest")
app.schedule("every-slot", "*/7 * * * * *", tick, {"name": "all"}, missed="all")

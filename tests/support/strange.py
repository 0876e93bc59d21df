"""App whose jobs do unusual things that real code does too."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mulligan import Context, Fixed, Mulligan, Policy
from mulligan.worker.liveness import MARK

app = Mulligan()
ONCE = Policy(max_retries=0)
NOW = Policy(max_retries=3, backoff=Fixed(0))
HERE = Path(os.environ.get("WITNESS", "/nonexistent/witness")).parent


def write_file(name: str, text: str = "") -> None:
    """Write a file next to the witness file, for the test to read."""
    path = HERE / f"{name}.new"
    path.write_text(text)
    path.rename(HERE / name)


@app.on_start
async def opened() -> dict[str, int]:
    await asyncio.sleep(0)
    return {"pid": os.getpid()}


@app.on_start
def opened_too(state: Any) -> None:
    state.twice = state.pid


@app.on_stop
async def closed(state: Any) -> None:
    write_file(f"closed-{state.twice}")


@app.job
def state_of(ctx: Context) -> list[bool]:
    return [ctx.state.pid == os.getpid(), ctx.state.twice == os.getpid()]


@app.job(name="fine", policy=NOW)
def fine() -> str:
    return "fine"


@app.job(policy=Policy(max_retries=2, backoff=Fixed(0)))
def flags(ctx: Context) -> None:
    ctx.checkpoint("flags", [*ctx.checkpoints.get("flags", []), ctx.last_attempt])
    raise ValueError("again")


# --- Ways to die ---


@app.job(policy=NOW)
def exits(code: int) -> None:
    os._exit(code)


@app.job(policy=NOW)
def closes_files() -> None:
    os.closerange(3, 51)
    time.sleep(0.1)


@app.job(policy=NOW)
async def closes_files_async() -> str:
    os.closerange(3, 51)
    return "closed"


@app.job(policy=NOW)
def closes_the_wire(stays: float) -> str:
    os.close(int(sys.argv[sys.argv.index("--wire") + 1]))
    time.sleep(stays)
    return "closed"


@app.job(policy=NOW)
async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(600)


@app.job(policy=NOW)
async def cancels_everybody() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(600)


@app.job(policy=NOW)
async def naps(ctx: Context, seconds: float) -> str:
    write_file(f"runs-{ctx.job.id}")
    await asyncio.sleep(seconds)
    return "rested"


@app.job(policy=NOW)
def rings_the_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(600)


# --- Unusual, but alive ---


@app.job(policy=ONCE)
async def exits_politely() -> None:
    sys.exit(3)


@app.job(policy=ONCE)
def shouts() -> str:
    sys.stdout.write("out" * 2_000_000 + "\n")
    sys.stderr.write("err" * 2_000_000 + "\n")
    return "said"


@app.job(policy=ONCE)
def complains() -> None:
    sys.stderr.write("err" * 2_000_000 + "\n")


@app.job(policy=ONCE)
def leaves_threads() -> str:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(600,)).start()
    return "left"


@app.job(policy=ONCE)
def forks_a_child_that_stays() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid


@app.job(policy=ONCE)
def forks_and_both_return(ctx: Context) -> int:
    pid = os.fork()
    if pid:
        write_file("fork", str(pid))
    return pid


@app.job(policy=ONCE)
def goes_elsewhere() -> str:
    os.chdir("/")
    return str(Path.cwd())


@app.job(policy=ONCE)
async def ignores_signals() -> str:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return "deaf"


@app.job(policy=ONCE)
def closes_its_voice() -> str:
    for fd in (0, 1, 2):
        os.close(fd)
        os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return "mute"


@app.job(policy=ONCE)
def returns_much(size: int) -> str:
    return "x" * size


@app.job(policy=ONCE)
def raises_much(size: int) -> None:
    raise ValueError("\x00\ud800" + "x" * size)


@app.job(policy=ONCE)
def raises_base() -> None:
    class Odd(BaseException):
        @property
        def __class__(self) -> type:
            raise ZeroDivisionError

    raise Odd


@app.job(policy=ONCE)
async def cancels_itself() -> None:
    raise asyncio.CancelledError


@app.job(policy=ONCE)
def replaces_its_directory(ctx: Context) -> str:
    (HERE / "precious").mkdir()
    (HERE / "precious" / "file").write_text("keep me")
    ctx.workdir.rmdir()
    ctx.workdir.symlink_to(HERE / "precious")
    return str(ctx.workdir)


# --- Requested to stop ---


@app.job(policy=NOW)
def watches_its_flag(ctx: Context) -> None:
    write_file(f"runs-{ctx.job.id}")
    while not ctx.cancelled:
        time.sleep(0.02)


@app.job(policy=NOW)
def finishes_all_the_same(ctx: Context) -> str:
    write_file(f"runs-{ctx.job.id}")
    while not ctx.cancelled:
        time.sleep(0.02)
    return "finished"


@app.job(policy=NOW)
def runs_a_program(ctx: Context) -> None:
    ctx.run(["sh", "-c", f"touch {HERE}/runs-{ctx.job.id}; sleep 651"])


@app.job(policy=NOW)
async def runs_a_program_async(ctx: Context) -> None:
    await ctx.run_async(
        ["sh", "-c", f"trap '' TERM; touch {HERE}/runs-{ctx.job.id}; sleep 652; sleep 653"]
    )


@app.job(policy=NOW)
def overstays(ctx: Context) -> None:
    write_file(f"runs-{ctx.job.id}")
    time.sleep(600)


# --- Progress ---


@app.job(policy=ONCE)
def tells(ctx: Context, go: str) -> str:
    for n in range(5000):
        ctx.progress(n / 5000, f"nul \x00 half \ud800 step {n} " + "x" * 2000)
    ctx.cost(1.5)
    ctx.progress(0.75, "three quarters")
    while not (HERE / go).exists():
        time.sleep(0.02)
    return "told"


@app.job(policy=ONCE)
def says_where_it_stopped(ctx: Context) -> None:
    ctx.progress(0.4, "page 7")
    raise ValueError("page 7 is torn")


@app.job(policy=ONCE)
def mark_of(ctx: Context) -> list[str]:
    return [
        os.environ[MARK],
        ctx.run(["printenv", MARK]).strip(),
        ctx.run(["pwd"]).strip(),
        str(ctx.workdir),
    ]

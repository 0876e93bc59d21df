"""App whose jobs log, print and then fail, die or hang in known lines."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()
NEVER = Policy(max_retries=0, max_losses=0, backoff=Fixed(0))
log = logging.getLogger("shop.orders")


@app.job(policy=NEVER)
def raises(lines: int) -> None:
    for number in range(lines):
        log.warning("line %d password=hunter%d", number, number)
    raise ValueError("too much")


@app.job(policy=NEVER)
async def talks() -> None:
    """Log and print on the loop, on threads, past a closed logger and from a program."""
    quiet = logging.getLogger("shop.quiet")
    quiet.propagate = False
    quiet.error("not propagated")
    sys.stdout.write("one\ntwo\n")
    sys.stderr.write("to stderr\n")
    await asyncio.to_thread(log.warning, "on a thread of the loop")
    thread = threading.Thread(target=log.warning, args=("on a thread of its own",))
    thread.start()
    thread.join()
    raise ValueError("end")


@app.job(policy=NEVER)
def converts(ctx: Context) -> None:
    script = "import sys; print('cannot open film', file=sys.stderr); sys.exit(3)"
    ctx.run([sys.executable, "-c", script])


def talk() -> None:
    for number in range(50):
        log.warning("all is well: %d", number)
        sys.stdout.write("all is well\n")


@app.job
def succeeds() -> None:
    talk()


@app.job(log=0)
def succeeds_unrecorded() -> None:
    talk()


@app.job(policy=NEVER, log=3)
def keeps_three() -> None:
    for number in range(10):
        log.warning("line %d", number)
    raise ValueError("end")


@app.job(policy=NEVER, log=0)
def keeps_none() -> None:
    log.warning("not kept")
    raise ValueError("end")


@app.job(policy=NEVER)
def is_killed(number: int) -> None:
    log.warning("the last line of %d", number)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(policy=NEVER)
def is_killed_too(number: int) -> None:
    os.kill(os.getpid(), number)


def log_and_note(number: int) -> None:
    """Log a number. Then note it, and the process, in a file that survives a kill."""
    log.warning("number %d", number)
    with Path(os.environ["WITNESS"]).open("a", encoding="utf-8") as witness:
        witness.write(f"{os.getpid()} {number}\n")


@app.job(policy=NEVER)
def counts() -> None:
    for number in itertools.count():
        log_and_note(number)


@app.job(policy=NEVER, memory_limit=150 * 1024 * 1024)
def eats_memory() -> None:
    blocks = []
    for number in itertools.count():
        log_and_note(number)
        blocks.append(b"x" * 2_000_000)
        time.sleep(0.001)


@app.job(policy=NEVER)
def exits(code: int) -> None:
    os._exit(code)


# --- Six ways to hang ---


@app.job(policy=NEVER, timeout=1)
def sleeps() -> None:
    log.warning("going to sleep")
    time.sleep(600)  # hangs in sleeps


@app.job(policy=NEVER, timeout=1)
async def awaits() -> None:
    await wait_for_answer()


async def wait_for_answer() -> None:
    await asyncio.sleep(600)  # hangs in awaits


@app.job(policy=NEVER, timeout=1)
def deadlocks() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # hangs in deadlocks


@app.job(policy=NEVER, timeout=1)
async def spins() -> None:
    number = 0
    while True:  # hangs in spins: the jump back belongs to this line
        number += 1  # hangs in spins


@app.job(policy=NEVER, timeout=1)
def matches() -> None:
    pattern = re.compile(r"(a+)+$")
    pattern.match("a" * 60 + "b")  # hangs in matches


@app.job(policy=NEVER, timeout=1)
def waits_for_program() -> None:
    subprocess.run(["sleep", "617"], check=False)  # hangs in waits_for_program


@app.job(policy=NEVER, timeout=1)
async def gathers() -> None:
    await asyncio.gather(wait_for_answer(), asyncio.sleep(0))


@app.job(policy=NEVER, timeout=1)
def hangs_at(place: str) -> None:
    here() if place == "here" else there()


def here() -> None:
    time.sleep(600)


def there() -> None:
    time.sleep(600)


# --- Stalls ---


@app.job(policy=NEVER, stall=1)
def stalls(ctx: Context) -> None:
    ctx.progress(0.1)
    time.sleep(600)  # hangs in stalls


@app.job(policy=NEVER, stall=1)
async def stalls_async(ctx: Context) -> None:
    ctx.progress(0.1)
    await asyncio.sleep(600)  # hangs in stalls_async


@app.job(policy=NEVER, stall=1, isolate=True)
def stalls_alone() -> None:
    re.compile(r"(a+)+$").match("a" * 60 + "b")  # hangs in stalls_alone


@app.job(policy=NEVER, stall=1)
def moves_on(ctx: Context) -> str:
    for step in range(6):
        ctx.progress(step / 6)
        time.sleep(0.4)
    for step in range(6):
        ctx.checkpoint("step", step)
        time.sleep(0.4)
    for step in range(6):
        ctx.step(f"step {step}", time.sleep, 0.4)
    return "done"

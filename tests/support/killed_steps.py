"""App of orders with five steps, for tests that kill its workers at random instants.

Each call of a step or of an undo appends a line to the file STEP_CALLS.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()
NAMES = ("charge", "reserve", "pack", "ship", "mail")
UNDOABLE = NAMES[:4]
CALLS = Path(os.environ.get("STEP_CALLS", "calls"))
MANY = Policy(max_retries=0, max_losses=30, backoff=Fixed(0))


class Call(NamedTuple):
    """A line of the file: a call of a step or of an undo."""

    verb: str
    step: str
    order: str
    token: int  # of the attempt; 0 for an undo, which does not know it


def record(call: Call) -> None:
    """Append a line in one write, which a kill cannot tear."""
    fd = os.open(CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{' '.join(map(str, call))}\n".encode())
    os.close(fd)


def read_calls(folder: Path) -> dict[str, list[Call]]:
    """Return the recorded calls by order, in order."""
    found: dict[str, list[Call]] = {}
    path = folder / "calls"
    for line in path.read_text().splitlines() if path.exists() else ():
        verb, step, order, token = line.split()
        found.setdefault(order, []).append(Call(verb, step, order, int(token)))
    return found


def work(name: str, order: str, token: int, seconds: float) -> str:
    record(Call("do", name, order, token))
    time.sleep(seconds)
    return f"{name} {order}"


def take_back(result: str) -> None:
    name, order = result.split()
    record(Call("undo", name, order, 0))
    time.sleep(0.005)
    if name == "reserve" and "stuck" in order:
        raise ValueError("the parcel is gone")


@app.job(policy=MANY)
def succeeds(ctx: Context, order: str, seconds: float) -> list[str]:
    token = ctx.token
    return [ctx.step(name, work, name, order, token, seconds) for name in NAMES]


@app.job(policy=MANY)
def undoes(ctx: Context, order: str, seconds: float) -> None:
    """Do four steps and die, so that they are undone. The order's name tells whether that works."""
    for name in UNDOABLE:
        ctx.step(name, work, name, order, ctx.token, seconds, undo=take_back, policy=MANY)
    raise ValueError("no such address")

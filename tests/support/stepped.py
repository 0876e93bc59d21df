"""App of orders with steps: they record their calls in a file, die, hang and fail on request."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()
NOW = Policy(max_retries=9, max_losses=9, backoff=Fixed(0))
CALLS = Path(os.environ.get("STEP_CALLS", "calls"))


def record(text: str) -> None:
    """Append a line in one write, which a death cannot tear."""
    with CALLS.open("ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


def calls(folder: Path) -> list[str]:
    """Return the recorded calls in order."""
    path = folder / "calls"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reserve(order: int) -> str:
    record(f"reserve {order}")
    return f"parcel {order}"


def die_once(order: int) -> str:
    """Charge, and die before the result is recorded, the first time."""
    seen = f"charge {order}" in CALLS.read_text().split("\n") if CALLS.exists() else False
    record(f"charge {order}")
    if not seen:
        die()
    return f"charged {order}"


def hang(_order: int) -> None:
    time.sleep(600)


@app.job(policy=Policy(max_retries=0))
def hangs_in_step(ctx: Context, order: int) -> None:
    ctx.step("reserve", reserve, order)
    ctx.step("hang", hang, order, timeout=0.3)


@app.job(policy=Policy(max_retries=0, max_losses=0))
def dies_in_step(ctx: Context, order: int) -> None:
    ctx.step("reserve", reserve, order)
    ctx.step("charge", die_once, order)


@app.job(policy=NOW)
def dies_and_repeats(ctx: Context, order: int) -> list[str]:
    return [ctx.step("reserve", reserve, order), ctx.step("charge", die_once, order)]


def put_back(parcel: str) -> None:
    """Put a parcel back, and die before that is recorded, the first time."""
    seen = f"put back {parcel}" in CALLS.read_text().split("\n")
    record(f"put back {parcel}")
    if not seen:
        die()


@app.job(policy=NOW)
def parks_in_doubt(ctx: Context, order: int) -> str:
    return ctx.step("charge", die_once, order, doubt="park")


@app.job(policy=Policy(max_retries=0, max_losses=9))
def dies_in_undo(ctx: Context, order: int) -> None:
    ctx.step("reserve", reserve, order, undo=put_back)
    ctx.step("send", refuse, order)


def refuse(_order: int) -> None:
    raise ValueError("no such address")


def reserve_if_in_stock(order: int) -> str:
    """Fail until the file `in-stock` exists."""
    record(f"reserve {order}")
    if not Path("in-stock").exists():
        raise ConnectionResetError("the stock is down")
    return f"parcel {order}"


@app.job(policy=Policy(max_retries=0, max_losses=9))
def fulfils(ctx: Context, order: int) -> list[str]:
    return [
        ctx.step("charge", note_and_return, "charge", order),
        ctx.step("reserve", reserve_if_in_stock, order),
        ctx.step("mail", note_and_return, "mail", order),
    ]


def note_and_return(name: str, order: int) -> str:
    record(f"{name} {order}")
    return f"{name} {order}"

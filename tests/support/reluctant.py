"""An app that does not want to leave, and forgets what it has said it can do. Files in its folder say when."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mulligan import Context, Mulligan

app = Mulligan()
FORGET = "forget"  # from its start on a process does not know `forgotten` any more
STAY = "stay"  # who is told to leave does not


@app.job(isolate=True)
def alone() -> int:
    return os.getpid()


@app.job
def forgotten() -> str:
    return "remembered"


@app.job
def recalls(ctx: Context) -> int:
    return int(ctx.checkpoints["page"])


@app.job
def plain() -> int:
    return os.getpid()


@app.on_start
def forget() -> None:
    if Path(FORGET).exists():
        del app.registry.handlers["forgotten"]


@app.on_stop
def stay() -> None:
    while Path(STAY).exists():
        time.sleep(0.02)

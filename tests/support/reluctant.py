"""App that does not stop and loses a handler after its start, when a file in its folder says so."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mulligan import Context, Mulligan

app = Mulligan()
FORGET = "forget"  # file: a process that starts does not register `forgotten`
STAY = "stay"  # file: the on_stop hook does not return


@app.job(isolate=True)
def isolated() -> int:
    return os.getpid()


@app.job
def forgotten() -> str:
    return "remembered"


@app.job
def reads_checkpoint(ctx: Context) -> int:
    return int(ctx.checkpoints["page"])


@app.job
def shared() -> int:
    return os.getpid()


@app.on_start
def forget() -> None:
    if Path(FORGET).exists():
        del app.registry.handlers["forgotten"]


@app.on_stop
def stay() -> None:
    while Path(STAY).exists():
        time.sleep(0.02)

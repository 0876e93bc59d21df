"""An app after a bad deployment: its jobs fail with one cause while a file exists."""

from __future__ import annotations

import os
from pathlib import Path

from mulligan import Mulligan

app = Mulligan()
BROKEN = Path(os.environ.get("WITNESS", "witness") + ".broken")


@app.job
def draw(n: int) -> int:
    if BROKEN.exists():
        raise KeyError("no such font")
    return n


@app.job
def mail(n: int) -> int:
    return n

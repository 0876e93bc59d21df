"""An app as a bad deploy left it: jobs fail alike while a file is there."""

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

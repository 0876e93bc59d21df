"""Jobs with a `done` callback: their result may already exist."""

from __future__ import annotations

import time
from pathlib import Path

from mulligan import Context, Mulligan, Policy

app = Mulligan()


def find_result(place: str) -> str | None:
    return place if Path(place).exists() else None


@app.job(done=find_result)
def convert(ctx: Context, place: str) -> str:
    draft = ctx.workdir / "draft"
    draft.write_text("made once")
    draft.replace(place)
    return place


@app.job(done=lambda: time.sleep(60), timeout=0.3, policy=Policy(max_retries=0))
def slow_check() -> None: ...

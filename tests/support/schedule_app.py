"""App with a schedule that fires every second; each start writes a line to the witness file."""

from __future__ import annotations

from mulligan import Context, Mulligan
from support.faulty import witness

app = Mulligan()


@app.job
def tick(ctx: Context) -> None:
    witness(ctx, "start")


app.schedule("tick", "* * * * * *", tick)

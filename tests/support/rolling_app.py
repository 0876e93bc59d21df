"""Jobs under load during a deploy: some of their handlers open the database and enqueue."""

from __future__ import annotations

from mulligan import Context, Mulligan

app = Mulligan()


@app.job
def child(n: int) -> int:
    return n


@app.job
def parent(ctx: Context, n: int) -> int:
    child.options(unique=ctx.key("child")).enqueue(n=n)
    return n


@app.job(isolate=True)
def alone(ctx: Context, n: int) -> int:
    """Run in a process of its own, which opens the database for the first time."""
    child.options(unique=ctx.key("child")).enqueue(n=n)
    return n

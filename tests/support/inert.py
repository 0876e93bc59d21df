"""An app whose handlers never return: a test reports the end of each attempt itself."""

from __future__ import annotations

import asyncio

from mulligan import Mulligan

app = Mulligan()


@app.job
async def render(n: int = 0) -> None:
    await asyncio.Event().wait()


@app.job
async def mail(n: int = 0) -> None:
    await asyncio.Event().wait()


@app.job
async def report(n: int = 0) -> int:
    """Return at once: the only kind here that ends by itself."""
    return n

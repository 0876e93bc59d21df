"""App for browser tests: a fixable failure, a parked question, a gateway, a bad page."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mulligan import Context, Fail, Mulligan, Park, Policy

app = Mulligan(release="7")
app.dependency("gateway")


def marker_exists(name: str) -> bool:
    return (Path(os.environ["WITNESS"]).parent / name).exists()


@app.job(policy=Policy(max_retries=0))
def convert(clip: int, shelf: str) -> int | Fail:
    if marker_exists(f"fixed-{shelf}"):
        return clip
    public = f"The {shelf} shelf could not be read."
    return Fail(
        f"{shelf.upper()}_GONE",
        f"/srv/{shelf}: no such file or directory",
        public=public,
        final=True,
    )


@app.job
def publish(ctx: Context, post: str) -> str | Park:
    return ctx.choice or Park("somebody must approve this post", choices=("publish", "drop"))


@app.job(uses="gateway")
def charge(order: int) -> int:
    return order


@app.job(editable="page")
def draw(page: int) -> str | Fail:
    if page < 1:
        return Fail(
            "BAD_PAGE",
            f"no page {page} in /srv/books",
            public="This page does not exist.",
            final=True,
        )
    return f"page {page}"


@app.job
async def encode(ctx: Context, clip: int) -> str:
    ctx.progress(0.4, "frame 400 of 1000")
    while not marker_exists(f"encoded-{clip}"):  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.02)
    return "encoded"

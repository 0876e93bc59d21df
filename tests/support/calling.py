"""An app whose jobs call the gateway, and others that do not. The environment says what is declared of it."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import httpx2

from mulligan import Context, Fixed, Mulligan, Policy

GATEWAY_URL = "GATEWAY_URL"
DECLARED = "GATEWAY_DECLARED"  # JSON: what app.dependency is told; nothing: the defaults hold
PATIENCE = "GATEWAY_PATIENCE"  # seconds a client waits for an answer
PROBED = "GATEWAY_PROBED"  # set: with a probe of its own

app = Mulligan()
_clients: list[httpx2.AsyncClient] = []


async def ask(tag: str) -> int:
    """One client per runner, made where its loop is."""
    if not _clients:
        limits = httpx2.Limits(max_connections=None)
        _clients.append(
            httpx2.AsyncClient(timeout=float(os.environ.get(PATIENCE, "10")), limits=limits)
        )
    url = f"{os.environ[GATEWAY_URL]}/call/{tag}"
    answer = await _clients[0].get(
        url, params={"by": os.getppid()}
    )  # the supervisor, whom a test knows by its pid
    return answer.raise_for_status().status_code


@app.job(uses="gateway")
async def call(ctx: Context, tag: str = "") -> int:
    return await ask(tag or ctx.job.id)


@app.job(uses="gateway", policy=Policy(max_retries=3, backoff=Fixed(0.2)))
async def call_again_soon(ctx: Context, tag: str = "") -> int:
    return await ask(tag or ctx.job.id)


@app.job(uses="gateway", policy=Policy(max_retries=3, backoff=Fixed(4)))
async def stumble(ctx: Context) -> int:
    """Fails at first, for a reason that says nothing about the gateway."""
    if ctx.attempt == 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return await ask(ctx.job.id)


@app.job
async def other() -> str:
    return "done"


async def probe() -> None:
    await ask("probe")


@app.on_stop
async def leave() -> None:
    for client in _clients:
        await client.aclose()


declared: dict[str, Any] = json.loads(os.environ.get(DECLARED, "{}"))
if PROBED in os.environ:
    declared["probe"] = probe
if declared:
    app.dependency("gateway", **declared)

"""An app whose jobs call the gateway, plus one that does not. The environment configures it."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import httpx2

from mulligan import Context, Fixed, Mulligan, Policy

GATEWAY_URL = "GATEWAY_URL"
DECLARED = "GATEWAY_DECLARED"  # JSON: options of app.dependency; unset: the defaults
PATIENCE = "GATEWAY_PATIENCE"  # timeout of a call in seconds
PROBED = "GATEWAY_PROBED"  # set: with a custom probe

app = Mulligan()
_clients: list[httpx2.AsyncClient] = []


async def call_gateway(tag: str) -> int:
    """Call the gateway, with one client per runner."""
    if not _clients:
        limits = httpx2.Limits(max_connections=None)
        _clients.append(
            httpx2.AsyncClient(timeout=float(os.environ.get(PATIENCE, "10")), limits=limits)
        )
    url = f"{os.environ[GATEWAY_URL]}/call/{tag}"
    # `by` is the supervisor, which a test knows by its pid.
    answer = await _clients[0].get(url, params={"by": os.getppid()})
    return answer.raise_for_status().status_code


@app.job(uses="gateway")
async def call(ctx: Context, tag: str = "") -> int:
    return await call_gateway(tag or ctx.job.id)


@app.job(uses="gateway", policy=Policy(max_retries=3, backoff=Fixed(0.2)))
async def call_again_soon(ctx: Context, tag: str = "") -> int:
    return await call_gateway(tag or ctx.job.id)


@app.job(uses="gateway", policy=Policy(max_retries=3, backoff=Fixed(4)))
async def stumble(ctx: Context) -> int:
    """Fail first with an error that the gateway did not cause."""
    if ctx.attempt == 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return await call_gateway(ctx.job.id)


@app.job
async def other() -> str:
    return "done"


async def probe() -> None:
    await call_gateway("probe")


@app.on_stop
async def close_clients() -> None:
    for client in _clients:
        await client.aclose()


declared: dict[str, Any] = json.loads(os.environ.get(DECLARED, "{}"))
if PROBED in os.environ:
    declared["probe"] = probe
if declared:
    app.dependency("gateway", **declared)

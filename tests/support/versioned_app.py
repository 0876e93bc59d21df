"""One kind in three payload versions. PAYLOAD_VERSION names the release that runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mulligan import Context, Mulligan

VERSION = int(os.environ.get("PAYLOAD_VERSION", "1"))


def rename_to(payload: dict[str, Any]) -> dict[str, Any]:
    """Return version 2 of a payload: `to` is called `address`."""
    return {"address": payload["to"]}


def add_locale(payload: dict[str, Any]) -> dict[str, Any]:
    """Return version 3 of a payload: the locale has no default."""
    return {**payload, "locale": "en"}


def declare(app: Mulligan, version: int) -> Any:
    """Register the kind as a release with this version does."""
    if version == 1:

        @app.job(name="send")
        def send_1(ctx: Context, to: str) -> list[str]:
            return _send(ctx, to)

        return send_1
    if version == 2:

        @app.job(name="send", version=2, upcast={1: rename_to})
        def send_2(ctx: Context, address: str) -> list[str]:
            return _send(ctx, address)

        return send_2

    @app.job(name="send", version=3, upcast={1: rename_to, 2: add_locale})
    def send_3(ctx: Context, address: str, locale: str) -> list[str]:
        return _send(ctx, address, locale)

    return send_3


def _send(ctx: Context, *parts: str) -> list[str]:
    witness = os.environ.get("WITNESS")
    if witness is not None:
        with Path(witness).open("a") as file:
            file.write(f"start {ctx.job.id} {VERSION}\n")
    return list(parts)


app = Mulligan()
declare(app, VERSION)

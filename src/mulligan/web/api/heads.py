"""HEAD is GET without its body, wherever there is a GET."""

from __future__ import annotations

from typing import Any

from mulligan.web.guard import path_in

STREAM = "/events"  # it has no end, so its HEAD is a route of its own


class Heads:
    """Plain ASGI."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or path_in(scope) == STREAM:
            await self._app(scope, receive, send)
            return

        async def send_head(message: Any) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)

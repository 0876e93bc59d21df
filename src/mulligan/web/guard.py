"""What every answer carries, and who may ask.

A server that listens on this machine alone answers to its names alone, and to that of `web.public_url`: one that
somebody else's DNS points at 127.0.0.1 is refused by its Host header. The API is for whoever has a key, from anywhere;
a browser sends none by itself.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, browsers would call the origin of our own forms null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
API = "/api/v1"
FOR_ALL = (f"{API}/", "/livez", "/readyz", "/startupz", "/metrics", "/openapi.json")
_IN_BRACKETS = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
_RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """Plain ASGI: it must see every answer, also those of other middleware."""

    def __init__(self, app: Any, *, everywhere: bool = False, named: str = "") -> None:
        self._app = app
        self._everywhere = everywhere
        self._named = named.lower()  # by which people reach it through a proxy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                ours = {name for name, _ in _RAW}
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in ours]
                message = {**message, "headers": [*kept, *_RAW]}
            await send(message)

        if _ends_twice(scope):
            await _refuse(send_with_headers, 400, b"This request says twice where it ends.\n", close=True)
        elif path_in(scope).startswith(FOR_ALL) or self._everywhere or self._answers_to(_host(scope)):
            await self._app(scope, receive, send_with_headers)
        else:
            await _refuse(send_with_headers, 421, b"This page answers to localhost only.\n")

    def _answers_to(self, host: str) -> bool:
        return is_local(host) or (bool(host) and host.lower() == self._named)


def path_in(scope: Any) -> str:
    """The path under the prefix where we are mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def is_local(host: str) -> bool:
    if "]" in host and not _IN_BRACKETS.fullmatch(host):
        return False
    try:
        name = host if host.count(":") > 1 and "[" not in host else urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host(scope: Any) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")


def _ends_twice(scope: Any) -> bool:
    """By its length and by its last chunk: a proxy may believe the one and we the other, and see two requests."""
    names = {name for name, _ in scope["headers"]}
    return {b"content-length", b"transfer-encoding"} <= names


async def _refuse(send: Any, status: int, body: bytes, *, close: bool = False) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Middleware of the web server: security headers, host check, timeouts and rate limits.

A server that listens on loopback answers only to loopback host names and to `web.public_url`.
Without this check, another site could point its DNS name at 127.0.0.1 and read the dashboard (DNS
rebinding). The API and the health checks answer to any host name: they need a key, which browsers
never add by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import re
import resource
import time
from collections import OrderedDict
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11
from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": browsers would then send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
API_PREFIX = "/api/v1"
ANY_HOST_PATHS = (f"{API_PREFIX}/", "/livez", "/readyz", "/startupz", "/metrics", "/openapi.json")
_BRACKETED_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_RAW_HEADER_NAMES = frozenset(name for name, _ in _RAW_HEADERS)


# --- Security headers and host check ---


class SecurityMiddleware:
    """Adds the security headers to every response and refuses unknown host names.

    It is an ASGI class, not a Starlette middleware, to cover responses of other middleware too.
    """

    def __init__(self, app: Any, *, any_host: bool = False, public_host: str = "") -> None:
        self._app = app
        self._any_host = any_host
        self._public_host = public_host.lower()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_security_headers(message["headers"])}
            await send(message)

        if _has_two_lengths(scope):
            text = b"This request has both Content-Length and Transfer-Encoding.\n"
            await _refuse(send_with_headers, 400, text, close=True)
        elif self._is_allowed(scope):
            await self._app(scope, receive, send_with_headers)
        else:
            await _refuse(send_with_headers, 421, b"This server answers to localhost only.\n")

    def _is_allowed(self, scope: Any) -> bool:
        if self._any_host or path_below_root(scope).startswith(ANY_HOST_PATHS):
            return True
        host = _host(scope)
        return is_loopback_host(host) or (bool(host) and host.lower() == self._public_host)


def _with_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    others = [(name, value) for name, value in headers if name.lower() not in _RAW_HEADER_NAMES]
    return [*others, *_RAW_HEADERS]


def path_below_root(scope: Any) -> str:
    """Return the request path without the prefix under which the app is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def is_loopback_host(host: str) -> bool:
    """True if a Host header or an address names this machine, with or without a port."""
    if "]" in host and not _BRACKETED_HOST.fullmatch(host):
        return False
    try:
        name = _host_name(host)
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    is_bare_ipv6 = host.count(":") > 1 and "[" not in host
    if is_bare_ipv6:
        return host
    return urlsplit(f"//{host}").hostname or ""


def _host(scope: Any) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            return str(value.decode("latin-1"))
    return ""


def _has_two_lengths(scope: Any) -> bool:
    """True if a request has two length headers.

    A proxy may trust one header and this server the other, and see two requests in one body
    (request smuggling).
    """
    names = {name for name, _ in scope["headers"]}
    return {b"content-length", b"transfer-encoding"} <= names


async def _refuse(send: Any, status: int, body: bytes, *, close: bool = False) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- Slow clients ---

HEAD_TIMEOUT = 15.0  # seconds for the head of a request, from its first byte or from connecting
BODY_TIMEOUT = 60.0  # seconds for the body of a request
WRITE_TIMEOUT = 60.0  # seconds in which a client reads nothing of a response
MAX_OPEN_FILES = 65_536


class SlowClientProtocol(H11Protocol):
    """An HTTP/1.1 protocol that closes connections of clients that send or read too slowly."""

    _read_timer: asyncio.TimerHandle | None = None
    _reading_body = False
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_read_timer(HEAD_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if not self._reading_body:
                self._start_read_timer(BODY_TIMEOUT)
            self._reading_body = True
        elif state is h11.IDLE and not self._reading_body:
            if self._read_timer is None:
                self._start_read_timer(HEAD_TIMEOUT)
        else:
            self._stop_read_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def _start_read_timer(self, seconds: float) -> None:
        self._stop_read_timer()
        self._read_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_read_timer(self) -> None:
        self._reading_body = False
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def raise_file_limit() -> None:
    """Raise the limit of open files: the usual 1,024 are fewer than the streams of one server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES
    if hard != resource.RLIM_INFINITY:
        target = min(target, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


# --- Token buckets ---

MAX_ADDRESS_LENGTH = 64  # characters; a proxy may forward anything
MAX_CLIENTS = 10_000  # buckets in memory; the least recently used is dropped first


class BucketState(NamedTuple):
    """Result of looking at a token bucket."""

    allowed: bool
    left: int
    wait: float  # seconds until the next token


class TokenBuckets:
    """In-memory token buckets by client name: `burst` at once, then `rate` per second.

    A rate of 0 means no limit.
    """

    def __init__(self, rate: float, burst: int, max_clients: int = MAX_CLIENTS) -> None:
        self.rate = rate
        self.burst = burst
        self._max_clients = max_clients
        # name → (tokens, time at which there were so many)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float | None = None) -> BucketState:
        """Take a token if one is left."""
        at = time.monotonic() if now is None else now
        tokens = self._tokens(name, at)
        if self.rate and tokens < 1:
            return BucketState(allowed=False, left=0, wait=(1 - tokens) / self.rate)
        if self.rate:
            self._store(name, tokens - 1, at)
        return BucketState(allowed=True, left=math.floor(tokens - 1), wait=0.0)

    def peek(self, name: str, now: float | None = None) -> BucketState:
        """Return whether a token is left without taking it."""
        if now is None:
            now = time.monotonic()
        tokens = self._tokens(name, now)
        if self.rate and tokens < 1:
            return BucketState(False, math.floor(tokens), (1 - tokens) / self.rate)
        return BucketState(True, math.floor(tokens), 0.0)

    def _tokens(self, name: str, now: float) -> float:
        tokens, at = self._buckets.get(name, (float(self.burst), now))
        return min(float(self.burst), tokens + (now - at) * self.rate)

    def _store(self, name: str, tokens: float, now: float) -> None:
        self._buckets[name] = (tokens, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)


class RecentSet:
    """A set that holds the most recently added items."""

    def __init__(self, size: int = MAX_CLIENTS) -> None:
        self._size = size
        self._items: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, item: bytes) -> bool:
        return item in self._items

    def add(self, item: bytes) -> None:
        self._items[item] = None
        self._items.move_to_end(item)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def discard(self, item: bytes) -> None:
        self._items.pop(item, None)


def client_network(request: Request) -> str:
    """Return the client's IPv4 address, or the /64 network of its IPv6 address.

    A client with one IPv6 address usually controls its whole /64.
    """
    host = ""
    if request.client is not None:
        host = request.client.host[:MAX_ADDRESS_LENGTH]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


# --- HEAD requests ---

STREAM_PATH = "/events"  # has its own HEAD route: its GET never ends


class HeadMiddleware:
    """Answers HEAD requests with the GET route, without the body."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or path_below_root(scope) == STREAM_PATH:
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Any) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


# --- Rate limits of API keys ---


class RateLimitHeaderMiddleware:
    """Adds rate limit headers to every response to a key."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope.setdefault("state", {})

        async def send_with_rate_headers(message: Any) -> None:
            if message["type"] == "http.response.start" and "rate_headers" in state:
                message = {**message, "headers": [*message["headers"], *state["rate_headers"]]}
            await send(message)

        await self._app(scope, receive, send_with_rate_headers)

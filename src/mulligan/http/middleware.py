"""What every answer carries, and who may ask.

A server that listens on this machine alone answers to its names alone, and to that of `web.public_url`: one that
somebody else's DNS points at 127.0.0.1 is refused by its Host header. The API is for whoever has a key, from anywhere;
a browser sends none by itself.
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

from mulligan.config import WebSection
from mulligan.http.api.problems import Problem

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


class SecurityMiddleware:
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
                kept = [
                    (name, value) for name, value in message["headers"] if name.lower() not in ours
                ]
                message = {**message, "headers": [*kept, *_RAW]}
            await send(message)

        if _ends_twice(scope):
            await _refuse(
                send_with_headers, 400, b"This request says twice where it ends.\n", close=True
            )
        elif (
            path_in(scope).startswith(FOR_ALL) or self._everywhere or self._answers_to(_host(scope))
        ):
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
        name = (
            host
            if host.count(":") > 1 and "[" not in host
            else urlsplit(f"//{host}").hostname or ""
        )
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host(scope: Any) -> str:
    return next(
        (value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), ""
    )


def _ends_twice(scope: Any) -> bool:
    """By its length and by its last chunk: a proxy may believe the one and we the other, and see two requests."""
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


# How long a client may take: for the head of a request, for its body, and to take what it asked for.

HEAD = 15.0  # seconds from its first byte, or from connecting
BODY = 60.0  # seconds from the end of its head
TAKEN = 60.0  # seconds in which nothing of an answer is taken
FILES = 65_536  # descriptors that are enough for any number of clients


class SlowClientMiddleware(H11Protocol):
    """A request that does not end in time, and an answer that nobody takes, end the connection."""

    _due: asyncio.TimerHandle | None = None
    _body = False  # is it the body that is waited for?
    _taken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(HEAD)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if not self._body:
                self._wait(BODY)
            self._body = True
        elif state is h11.IDLE and not self._body:
            if self._due is None:
                self._wait(HEAD)
        else:
            self._stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken = self.loop.call_later(TAKEN, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taken is not None:
            self._taken.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._taken is not None:
            self._taken.cancel()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop()
        self._due = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        self._body = False
        if self._due is not None:
            self._due.cancel()
            self._due = None


def room_for_clients() -> None:
    """As many descriptors as this user may have: the usual 1,024 are fewer than the streams of one server."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if least != resource.RLIM_INFINITY and least < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


# How often somebody may ask: token buckets, in the memory of this process, of which there are never too many.

LONGEST = 64  # characters of an address
MOST = 10_000  # names remembered; the one that has asked least recently is forgotten first


class Taken(NamedTuple):
    allowed: bool
    left: int
    wait: float  # seconds until the next one


class Buckets:
    """Each name has `burst` at once and `rate` a second. A rate of 0: as often as they like."""

    def __init__(self, rate: float, burst: int, most: int = MOST) -> None:
        self.rate, self.burst = rate, burst
        self._most = most
        self._full: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # tokens, and when there were so many

    def __len__(self) -> int:
        return len(self._full)

    def take(self, name: str, now: float | None = None) -> Taken:
        """One of them, if one is left."""
        at = time.monotonic() if now is None else now
        tokens = self._tokens(name, at)
        if self.rate and tokens < 1:
            return Taken(allowed=False, left=0, wait=(1 - tokens) / self.rate)
        if self.rate:
            self._keep(name, tokens - 1, at)
        return Taken(allowed=True, left=math.floor(tokens - 1), wait=0.0)

    def look(self, name: str, now: float | None = None) -> Taken:
        """Is one left? None is taken."""
        tokens = self._tokens(name, time.monotonic() if now is None else now)
        empty = bool(self.rate) and tokens < 1
        return Taken(not empty, math.floor(tokens), (1 - tokens) / self.rate if empty else 0.0)

    def _tokens(self, name: str, now: float) -> float:
        tokens, at = self._full.get(name, (float(self.burst), now))
        return min(float(self.burst), tokens + (now - at) * self.rate)

    def _keep(self, name: str, tokens: float, now: float) -> None:
        self._full[name] = (tokens, now)
        self._full.move_to_end(name)
        if len(self._full) > self._most:
            self._full.popitem(last=False)


class Remembered:
    """A few texts that were seen lately."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, text: bytes) -> bool:
        return text in self._seen

    def add(self, text: bytes) -> None:
        self._seen[text] = None
        self._seen.move_to_end(text)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def drop(self, text: bytes) -> None:
        self._seen.pop(text, None)


def place_of(request: Request) -> str:
    """Where somebody asks from. Whoever has one address of IPv6 has the 2⁶⁴ beside it."""
    host = (
        request.client.host[:LONGEST] if request.client is not None else ""
    )  # a proxy may have passed on anything
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


# HEAD is GET without its body, wherever there is a GET.

STREAM = "/events"  # it has no end, so its HEAD is a route of its own


class HeadMiddleware:
    """Plain ASGI."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or path_in(scope) == STREAM:
            await self._app(scope, receive, send)
            return

        async def send_head(message: Any) -> None:
            await send(
                {**message, "body": b""} if message["type"] == "http.response.body" else message
            )

        await self._app({**scope, "method": "GET"}, receive, send_head)


# How often a key may ask, and how often a place may try keys that are none. Each process counts for itself.

GUESSES = 100  # wrong keys from one place at once
GUESSES_AGAIN = 1.0  # and a second


class Rates:
    def __init__(self, said: WebSection) -> None:
        self._calls = Buckets(said.rate, said.burst)
        self._guesses = Buckets(GUESSES_AGAIN, GUESSES)
        self._good = Remembered()

    def admit(self, request: Request, seal: bytes) -> None:
        """Before a key is looked up. Who has come in before is not kept out because of a neighbour."""
        if seal in self._good:
            return
        taken = self._guesses.look(place_of(request))
        if not taken.allowed:
            raise _too_many("too many wrong keys from where you are", taken)

    def wrong(self, request: Request, seal: bytes) -> None:
        self._good.drop(seal)
        self._guesses.take(place_of(request))

    def right(self, request: Request, seal: bytes, name: str) -> None:
        """It counts against the key; `name` also says against what of it."""
        self._good.add(seal)
        taken = self._calls.take(name)
        if not self._calls.rate:
            return
        request.state.rate = self._fields(taken)
        if not taken.allowed:
            words = f"this key asks more often than {self._calls.rate:g} times a second (web.rate, web.burst)"
            raise _too_many(words, taken)

    def _fields(self, taken: Taken) -> list[tuple[bytes, bytes]]:
        """As draft-ietf-httpapi-ratelimit-headers has them."""
        window = math.ceil(self._calls.burst / self._calls.rate)
        policy = f'"key";q={self._calls.burst};w={window}'
        left = f'"key";r={taken.left};t={math.ceil((self._calls.burst - taken.left) / self._calls.rate)}'
        return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]


def _too_many(words: str, taken: Taken) -> Problem:
    headers = {"retry-after": str(max(1, math.ceil(taken.wait)))}
    return Problem(429, "RATE_LIMITED", words, retryable=True, headers=headers)


class RateFields:
    """Plain ASGI: every answer to a key says how many more it may ask for."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope.setdefault("state", {})

        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start" and "rate" in state:
                message = {**message, "headers": [*message["headers"], *state["rate"]]}
            await send(message)

        await self._app(scope, receive, send_with_fields)

"""How often a key may ask, and how often a place may try keys that are none. Each process counts for itself."""

from __future__ import annotations

import math
from typing import Any

from fastapi import Request

from mulligan.config import Web
from mulligan.web.api.problems import Problem
from mulligan.web.rates import Buckets, Remembered, Taken, place_of

GUESSES = 100  # wrong keys from one place at once
GUESSES_AGAIN = 1.0  # and a second


class Rates:
    def __init__(self, said: Web) -> None:
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

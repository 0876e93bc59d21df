"""How often somebody may ask: token buckets, in the memory of this process, of which there are never too many."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from typing import NamedTuple

from fastapi import Request

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
        self._full: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

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
    host = request.client.host[:LONGEST] if request.client is not None else ""  # a proxy may have passed on anything
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))

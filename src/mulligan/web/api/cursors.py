"""Where a list goes on: opaque, and sealed with the caller's key, so that none is made up or carried elsewhere."""

from __future__ import annotations

import base64
import hashlib
import hmac

from mulligan.web.api.auth import Caller
from mulligan.web.api.problems import Problem

_SEAL = 12  # bytes


def sealed(caller: Caller, about: str, position: str) -> str:
    """`about`: the route and the filter; a cursor of another list does not fit."""
    text = position.encode()
    return base64.urlsafe_b64encode(_seal(caller, about, text) + text).decode().rstrip("=")


def opened(caller: Caller, about: str, cursor: str | None) -> str | None:
    if not cursor:
        return None
    try:
        given = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        seal, text = given[:_SEAL], given[_SEAL:]
        position = text.decode()
    except (ValueError, UnicodeError):
        raise _strange() from None
    if not hmac.compare_digest(seal, _seal(caller, about, text)):
        raise _strange()
    return position


def _seal(caller: Caller, about: str, position: bytes) -> bytes:
    said = b"\x00".join((about.encode("utf-8", "surrogatepass"), position))
    return hmac.new(caller.seal, said, hashlib.sha256).digest()[:_SEAL]


def _strange() -> Problem:
    return Problem(422, "CURSOR", "this cursor is not one of this list and this key; begin without one")

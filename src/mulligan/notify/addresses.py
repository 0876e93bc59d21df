"""Addresses of e-mail. What is not plainly one is refused: a header is no place for doubt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.headerregistry import Address
from typing import Any

from mulligan.errors import ConfigError

LONG = 254  # characters
MANY = 100  # recipients of one message
_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_ADDRESS = rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{0,9}}"
_WRITTEN = re.compile(rf"(?:(?P<name>[^<>\"@,;:\\]{{0,100}}?)\s*<(?P<named>{_ADDRESS})>|(?P<bare>{_ADDRESS}))")


def read_address(text: Any) -> Address:
    """`kim@example.com` or `Kim <kim@example.com>`."""
    fit = isinstance(text, str) and len(text) <= LONG and text.isprintable()
    found = _WRITTEN.fullmatch(text.strip(" ")) if fit else None
    user, _, domain = ((found["named"] or found["bare"]) if found else "").rpartition("@")
    try:
        if found and ".." not in user:
            return Address((found["name"] or "").strip(), user, domain.encode("idna").decode("ascii"))
    except UnicodeError:
        pass
    message = f"e-mail: {text!r} is no address" if isinstance(text, str) else "e-mail: an address is a text"
    raise ConfigError(message[:200])


def read_addresses(given: Any) -> list[Address]:
    """One, several or none; each once."""
    several: Iterable[Any] = [given] if given and isinstance(given, str) else given or ()
    found = {address.addr_spec: address for address in map(read_address, several)}
    if len(found) > MANY:
        message = f"e-mail: {len(found)} recipients; at most {MANY} get one message"
        raise ConfigError(message)
    return list(found.values())

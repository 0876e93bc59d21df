"""Data of an event made fit for any channel: bounded in every direction, every text one that any parser can take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mulligan.policy.redact import safe

TEXT = 2000  # characters of one text
NAME = 100  # of a key
MANY = 64  # keys, or items of a list
DEEP = 4
BYTES = 12_000  # of the whole, as JSON
CUT = "cut"  # is true in data of which something was left out


def fit(data: Mapping[str, Any]) -> dict[str, Any]:
    """What is too large in the whole loses its longest values first, and says so."""
    plain: dict[str, Any] = _fitted(data, 0)
    whole = len(plain)
    if len(json.dumps(plain)) > BYTES:
        plain = _lightened(plain)
    return plain if len(plain) == whole and len(data) <= MANY else plain | {CUT: True}


def _lightened(plain: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: len(json.dumps({name: value})) for name, value in plain.items()}
    while sum(sizes.values()) > BYTES:
        del sizes[max(sizes, key=lambda name: sizes[name])]
    return {name: plain[name] for name in sizes}


def _fitted(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return safe(value, TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 2**63 else None  # NaN too: it is smaller than nothing
    if depth >= DEEP:
        return None
    if isinstance(value, Mapping):
        items = list(value.items())[:MANY]
        return {safe(str(name), NAME): _fitted(one, depth + 1) for name, one in items}
    if isinstance(value, list | tuple):
        return [_fitted(one, depth + 1) for one in value[:MANY]]
    return safe(str(value), TEXT)

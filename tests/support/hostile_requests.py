"""Hostile values for requests. None of them may cause a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TEXTS = (
    "",
    " ",
    "a\0b",
    "\u20ac\u202e\u200b\u2028",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "../../../etc/passwd",
    "%00%0d%0aSet-Cookie: a=b",
    "a\r\nX-Injected: 1",
    "{{ 7*7 }}${7*7}",
    "9" * 400,
    "x" * 5_000,
)
NUMBERS = (
    "-1",
    "0",
    "1e400",
    "NaN",
    "Infinity",
    str(2**63),
    str(10**40),
    "-" + str(2**63),
    "1.5",
    "true",
)
IDS = (
    "nothing",
    "0" * 28,
    "%00",
    "a%2fb",
    "..%2f..",
    "%e2%82%ac",
    "%ff%fe",
    "9" * 300,
    "mk_",
    "task_%00",
    "'",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**40,
    1.5,
    [],
    {},
    "",
    "a\0b",
    "\ud800",
    "\u20ac",
    "x" * 5_000,
    [[]],
    {"a": 1},
)
BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"7",
    b'"\xff"',
    b"[" * 20_000,
    b"\0",
    b"a=b",
    b"{" + b'"a":{' * 5_000,
)


def forms(good: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield copies of a form with one field missing or invalid."""
    for name in good:
        yield {key: value for key, value in good.items() if key != name}
        for text in (*TEXTS, *NUMBERS):
            yield {**good, name: text}


def objects(good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield copies of a JSON object with one field missing or invalid."""
    for name in good:
        yield {key: value for key, value in good.items() if key != name}
        for value in VALUES:
            yield {**good, name: value}
    yield from ({**good, name: 1} for name in ("more", "a\0b", "\ud800", "\u20ac", ""))

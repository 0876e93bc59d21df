"""A filter as chips: each part with the address of the list without it, and the states as alternatives."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlencode


class Chip(NamedTuple):
    words: str
    link: str  # for a part: the list without it; for an alternative: the list with it
    here: bool


def parts_of(words: str) -> list[str]:
    """As they were written, quotes and all; what cannot be read apart is one part."""
    try:
        return shlex.split(words, posix=False)
    except ValueError:
        return [words] if words else []


def removable(path: str, words: str) -> list[Chip]:
    parts = parts_of(words)
    return [Chip(part, listed(path, [*parts[:place], *parts[place + 1 :]]), True) for place, part in enumerate(parts)]


def alternatives(path: str, words: str, field: str, values: Iterable[str]) -> list[Chip]:
    """The same filter with another value of one field; the first is none."""
    parts = parts_of(words)
    rest = [part for part in parts if not part.startswith(f"{field}:")]
    now = next((part for part in parts if part.startswith(f"{field}:")), "")
    made = ["", *(f"{field}:{value}" for value in values)]
    return [
        Chip(one.partition(":")[2] or "all", listed(path, [one, *rest] if one else rest), one == now) for one in made
    ]


def listed(path: str, parts: Iterable[str]) -> str:
    words = " ".join(parts)
    return f"{path}?{urlencode({'filter': words})}" if words else path

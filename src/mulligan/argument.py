"""What a filter compares of a payload: the text of a JSON scalar, found by a path (`customer`, `address.city`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

LONGEST = 200  # characters; of a longer text its hash is kept
HASHED = "sha256:"


def text_at(payload: Any, path: str) -> str | None:
    """Texts as they are, everything else as JSON writes it: 42, 1.5, true, null. None: nothing there, or no scalar."""
    value = payload
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    if isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def kept(text: str) -> str:
    """As an index keeps it: itself, or its hash if it is long or no database could hold it."""
    if len(text) <= LONGEST and "\x00" not in text and not text.startswith(HASHED) and _encodes(text):
        return text
    return HASHED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def indexed(payload: Any, paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(path, value) of each that is there."""
    found = ((path, text_at(payload, path)) for path in paths)
    return tuple((path, kept(text)) for path, text in found if text is not None)


def needles(path: str, text: str) -> tuple[str, ...]:
    """One of these is in the JSON of every payload that has this text there; who has one must still be read."""
    name = json.dumps(path.rpartition(".")[2])
    said = [f"{name}:{json.dumps(text)}"]
    if _is_literal(text):
        said += [f"{name}:{text},", f"{name}:{text}}}"]
    return tuple(said)


def _is_literal(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, str | dict | list) and json.dumps(value) == text


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

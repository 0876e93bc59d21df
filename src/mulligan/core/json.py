"""What a filter compares of a payload: the text of a JSON scalar, found by a path (`customer`, `address.city`)."""

from __future__ import annotations

import hashlib
import json
import json.encoder
from collections.abc import Callable, Iterable
from typing import Any

# JSON text of plain values, quickly.


def quick_dump(between: str, after_key: str, *, nan: bool = False) -> Callable[[Any], str]:
    """What `json.dumps` says of plain values, in ASCII; without `nan` only what other readers of JSON know.

    The library makes its encoder anew for each text, which is most of the time of a short one. This one keeps no list
    of what it is inside of, so of a circle it only says that it is too deep.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return json.JSONEncoder(separators=(between, after_key), allow_nan=nan).encode
    pieces = make(
        None,
        _refuse,
        json.encoder.encode_basestring_ascii,
        None,
        after_key,
        between,
        False,
        False,
        nan,
    )
    return lambda value: "".join(pieces(value, 0))


def _refuse(value: Any) -> Any:
    message = f"{type(value).__name__} is no plain value"
    raise TypeError(message)


encode = quick_dump(",", ":", nan=True)

_first_of = json.JSONDecoder().raw_decode


def decode(text: str) -> Any:
    """What `json.loads` reads; where the text is a value from end to end, nothing is looked for around it."""
    try:
        value, end = _first_of(text)
    except json.JSONDecodeError:
        end = -1
    return value if end == len(text) else json.loads(text)


# What a filter compares of a payload: the text of a JSON scalar, found by a path (`customer`, `address.city`).

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
    if (
        len(text) <= LONGEST
        and "\x00" not in text
        and not text.startswith(HASHED)
        and _encodes(text)
    ):
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

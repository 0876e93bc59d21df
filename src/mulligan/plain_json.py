"""JSON text of plain values, quickly."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any


def quick_dump(between: str, after_key: str, *, nan: bool = False) -> Callable[[Any], str]:
    """What `json.dumps` says of plain values, in ASCII; without `nan` only what other readers of JSON know.

    The library makes its encoder anew for each text, which is most of the time of a short one. This one keeps no list
    of what it is inside of, so of a circle it only says that it is too deep.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return json.JSONEncoder(separators=(between, after_key), allow_nan=nan).encode
    pieces = make(None, _refuse, json.encoder.encode_basestring_ascii, None, after_key, between, False, False, nan)
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

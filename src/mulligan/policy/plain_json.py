"""JSON for what is written thousands of times a second: an encoder whose C half is made once, not for each value."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any


def encoder(*, ascii_only: bool = True) -> Callable[[Any], str]:
    """As compact as can be. For values of which no part is inside itself."""
    made = json.JSONEncoder(separators=(",", ":"), ensure_ascii=ascii_only, check_circular=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return made.encode
    texts = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    parts = make(None, made.default, texts, None, made.key_separator, made.item_separator, False, False, True)
    return lambda value: "".join(parts(value, 0))


encode = encoder()

"""Fast JSON encoding and decoding, and the payload values that filters compare."""

from __future__ import annotations

import hashlib
import json
import json.encoder
from collections.abc import Callable, Iterable
from typing import Any

MAX_INDEXED_LENGTH = 200  # characters; a longer value is indexed by its hash
HASH_PREFIX = "sha256:"


# --- Encoding and decoding ---


def make_encoder(
    item_separator: str, key_separator: str, *, nan: bool = False
) -> Callable[[Any], str]:
    """Return a function that encodes JSON values as `json.dumps` does, in ASCII, but faster.

    `json.dumps` builds a new encoder for each call, which is most of its time for a short text.
    This one does not track its path, so a cyclic value ends in a RecursionError.
    """
    encode_chunks = make_chunk_encoder(item_separator, key_separator, nan=nan)
    return lambda value: "".join(encode_chunks(value, 0))


def make_chunk_encoder(
    item_separator: str, key_separator: str, *, nan: bool = False
) -> Callable[[Any, int], Iterable[str]]:
    """Return what `make_encoder` does, but the function returns parts of the text.

    Its second argument, the indentation level, is always 0.
    """
    c_make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
    if c_make_encoder is None:  # an interpreter without the C accelerator
        separators = (item_separator, key_separator)
        encoder = json.JSONEncoder(separators=separators, allow_nan=nan)
        return lambda value, _: encoder.iterencode(value)
    encode_chunks: Callable[[Any, int], Iterable[str]] = c_make_encoder(
        None,  # markers: no check for cycles
        _refuse,
        json.encoder.encode_basestring_ascii,
        None,  # indent
        key_separator,
        item_separator,
        False,  # sort_keys
        False,  # skipkeys
        nan,
    )
    return encode_chunks


def _refuse(value: Any) -> Any:
    message = f"a {type(value).__name__} cannot be encoded as JSON"
    raise TypeError(message)


encode = make_encoder(",", ":", nan=True)

_raw_decode = json.JSONDecoder().raw_decode


def decode(text: str) -> Any:
    """Decode as `json.loads` does. Faster for texts without surrounding white space."""
    try:
        value, end = _raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    return value if end == len(text) else json.loads(text)


# --- Payload values that filters compare ---


def scalar_text(payload: Any, path: str) -> str | None:
    """Return the text of the scalar at a path such as `address.city`, or None if there is none.

    Strings are returned unchanged, other scalars as JSON: 42, 1.5, true, null.
    """
    value = payload
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    if isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def index_value(text: str) -> str:
    """Return the value to index: the text, or its hash if it is long or cannot be stored."""
    storable = "\x00" not in text and not text.startswith(HASH_PREFIX) and _is_utf8(text)
    if len(text) <= MAX_INDEXED_LENGTH and storable:
        return text
    return HASH_PREFIX + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def index_entries(payload: Any, paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (path, index value) for each path at which the payload has a scalar."""
    texts = ((path, scalar_text(payload, path)) for path in paths)
    return tuple((path, index_value(text)) for path, text in texts if text is not None)


def payload_substrings(path: str, text: str) -> tuple[str, ...]:
    """Return substrings of which every payload with this text at this path contains one.

    A payload that contains one may still differ, so each hit must be decoded and compared.
    """
    name = json.dumps(path.rpartition(".")[2])
    substrings = [f"{name}:{json.dumps(text)}"]
    if _is_literal(text):
        substrings += [f"{name}:{text},", f"{name}:{text}}}"]
    return tuple(substrings)


def _is_literal(text: str) -> bool:
    """True if the text is the JSON of a number, true, false or null."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not isinstance(value, str | dict | list) and json.dumps(value) == text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Job ids: text, sortable by time, unguessable.

48 bits of milliseconds, 12 bits of sequence within the process, 80 fresh random bits, in Crockford's
base 32: 28 characters. The sequence keeps a bulk enqueue in its order; the random part is never
derived from a neighbour's, so knowing one id tells nothing about the next.
"""

from __future__ import annotations

import os
import threading
import time

LENGTH = 28
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_SHIFTS = tuple(range(130, -1, -10))
_SEQUENCE_BITS = 12
_RANDOM = 16  # characters, five bits each
_RANDOM_BITS = 5 * _RANDOM
_CHARACTERS = bytes(map(ord, _ALPHABET)) * 8  # of a random byte its low five bits

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """One new id, greater than every id this process made before."""
    first = _tick(1)
    return (
        _head(first >> 10)
        + _PAIRS[first & 1023]
        + os.urandom(_RANDOM).translate(_CHARACTERS).decode("ascii")
    )


def new_ids(count: int) -> list[str]:
    """So many, each greater than the one before."""
    first = _tick(count)
    random = os.urandom(_RANDOM * count).translate(_CHARACTERS).decode("ascii")
    made: list[str] = []
    while (at := len(made)) < count:
        head, low = _head((first + at) >> 10), (first + at) & 1023
        pairs = _PAIRS[low : low + count - at]  # neighbours share what stands before
        ends = range((at + 1) * _RANDOM, (at + len(pairs) + 1) * _RANDOM, _RANDOM)
        made += [
            head + pair + random[end - _RANDOM : end] for pair, end in zip(pairs, ends, strict=True)
        ]
    return made


def _head(part: int) -> str:
    """Milliseconds and sequence as text, but for the last two characters."""
    pairs = _PAIRS
    return (
        pairs[part >> 40]
        + pairs[part >> 30 & 1023]
        + pairs[part >> 20 & 1023]
        + pairs[part >> 10 & 1023]
        + pairs[part & 1023]
    )


def _text(value: int) -> str:
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


def _tick(count: int) -> int:
    """Milliseconds and sequence as one number that only grows, also when the wall clock steps back: the first of so
    many.
    """
    global _last  # noqa: PLW0603 - the one piece of state of this module
    now = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
    with _lock:
        first = now if now > _last else _last + 1
        _last = first + count - 1
        return first


def created_ms(job_id: str) -> int:
    """The millisecond written into an id."""
    value = 0
    for char in job_id:
        value = value * 32 + _ALPHABET.index(char)
    return value >> (_RANDOM_BITS + _SEQUENCE_BITS)


def first_id(ms: int) -> str:
    """Below every id that is made from this millisecond on."""
    return _text(max(0, ms) << (_RANDOM_BITS + _SEQUENCE_BITS))


SKEW = 86_400 * 1_000_000  # by so much the clock of whoever made an id may differ from the store's

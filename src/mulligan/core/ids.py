"""Job ids: text, sortable by time, unguessable.

48 bits of milliseconds, 12 bits of a sequence within the process and 80 random bits, in Crockford's
base 32: 28 characters. The sequence keeps a bulk enqueue in its order. Every id has its own random
bits, so one id does not help to guess the next.
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
_CHARACTERS = bytes(map(ord, _ALPHABET)) * 8  # maps a random byte by its low five bits

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """Return a new id, greater than every id this process made before."""
    number = _reserve(1)
    random = os.urandom(_RANDOM).translate(_CHARACTERS).decode("ascii")
    return _head(number >> 10) + _PAIRS[number & 1023] + random


def new_ids(count: int) -> list[str]:
    """Return `count` new ids in ascending order."""
    first = _reserve(count)
    random = os.urandom(_RANDOM * count).translate(_CHARACTERS).decode("ascii")
    ids: list[str] = []
    while len(ids) < count:
        done = len(ids)
        number = first + done
        # Up to 1024 consecutive ids share their head.
        head = _head(number >> 10)
        low = number & 1023
        pairs = _PAIRS[low : low + count - done]
        starts = range(done * _RANDOM, (done + len(pairs)) * _RANDOM, _RANDOM)
        ids += [
            head + pair + random[start : start + _RANDOM]
            for pair, start in zip(pairs, starts, strict=True)
        ]
    return ids


def _head(part: int) -> str:
    """Encode milliseconds and sequence without their last two characters."""
    pairs = _PAIRS
    return (
        pairs[part >> 40]
        + pairs[part >> 30 & 1023]
        + pairs[part >> 20 & 1023]
        + pairs[part >> 10 & 1023]
        + pairs[part & 1023]
    )


def _encode(value: int) -> str:
    """Encode 140 bits as 28 characters."""
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


def _reserve(count: int) -> int:
    """Reserve `count` consecutive numbers (milliseconds and sequence) and return the first.

    The numbers only grow, even if the wall clock steps back.
    """
    global _last  # noqa: PLW0603 - the one piece of state of this module
    now = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
    with _lock:
        first = now if now > _last else _last + 1
        _last = first + count - 1
        return first


def created_ms(job_id: str) -> int:
    """Return the millisecond in which an id was made."""
    value = 0
    for char in job_id:
        value = value * 32 + _ALPHABET.index(char)
    return value >> (_RANDOM_BITS + _SEQUENCE_BITS)


def first_id(ms: int) -> str:
    """Return an id below every id made in this millisecond or later."""
    return _encode(max(0, ms) << (_RANDOM_BITS + _SEQUENCE_BITS))


# Largest assumed difference between the clock that made an id and the database's clock.
MAX_CLOCK_SKEW = 86_400 * 1_000_000

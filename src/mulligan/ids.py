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

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """One new id, greater than every id this process made before."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (_tick() << 80) | random
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


def _tick() -> int:
    """Milliseconds and sequence as one number that only grows, also when the wall clock steps back."""
    global _last  # noqa: PLW0603 - the one piece of state of this module
    now = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
    with _lock:
        _last = now if now > _last else _last + 1
        return _last


def created_ms(job_id: str) -> int:
    """The millisecond written into an id."""
    value = 0
    for char in job_id:
        value = value * 32 + _ALPHABET.index(char)
    return value >> (80 + _SEQUENCE_BITS)


def first_id(ms: int) -> str:
    """Below every id that is made from this millisecond on."""
    value = max(0, ms) << (80 + _SEQUENCE_BITS)
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])

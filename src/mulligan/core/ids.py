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
SHORT_LENGTH = 6  # characters at the end of an id, which are random, tell the jobs of a page apart
CUT_MARK = "…"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_SHIFTS = tuple(range(130, -1, -10))
_SEQUENCE_BITS = 12
_RANDOM = 16  # characters, five bits each
_RANDOM_BITS = 5 * _RANDOM
_CHARACTERS = bytes(map(ord, _ALPHABET)) * 8  # maps a random byte by its low five bits

_lock = threading.Lock()
_last = 0


def host_worker_id(host: str, name: str) -> str:
    """Return a worker id for an attempt that another job queue ran: "celery:box:h8n2vg"."""
    return f"{host}:{name}"


def is_host_worker(worker: str) -> bool:
    """True for the id of a worker of another job queue, which starts attempts when it wants."""
    return ":" in worker


def shorten_id(job_id: str) -> str:
    """Return a short form for people: "…h8n2vg". Commands accept it."""
    return CUT_MARK + job_id[-SHORT_LENGTH:]


def new_id() -> str:
    """Return a new id, greater than every id this process made before."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """Return `count` new ids in ascending order."""
    first = _reserve(count)
    random = os.urandom(_RANDOM * count).translate(_CHARACTERS).decode("ascii")
    ids = []
    head = ""
    for place in range(count):
        number = first + place
        low = number & 1023
        if not low or not head:  # up to 1024 consecutive ids share their head
            head = ""
            for shift in (50, 40, 30, 20, 10):
                head += _PAIRS[number >> shift & 1023]
        start = place * _RANDOM
        ids.append(head + _PAIRS[low] + random[start : start + _RANDOM])
    return ids


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

"""How much may start now: what a limit leaves, and who gets it in a fair queue.

A rate is paced: it allows one second's worth at once (at least one job) and refills all the time, so "100/h" is one
job every 36 seconds and not a hundred on the hour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from zlib import crc32

from mulligan.core.job import SECOND, Guarded, Limit, LimitRow, Meter, Micros

NO_LIMIT = 1_000_000_000  # an operator's way to lift a declared limit
MOST_RATE = 1_000_000.0
SHARES = 1024  # lanes of one fair queue and kind; two of a thousand owners may share one

STEPPED_BACK = 10 * SECOND

_NAMES = {
    1: ("s", "sec", "second"),
    60: ("m", "min", "minute"),
    3600: ("h", "hour"),
    86_400: ("d", "day"),
}
_UNITS = {name: seconds for seconds, names in _NAMES.items() for name in names}
_RATE = re.compile(rf"(\d+(?:\.\d+)?)(?:/({'|'.join(_UNITS)}))?")


def rate_of(text: str) -> float | None:
    """Starts per second in "5", "5/s", "100/min", "2/h"; None: not a rate."""
    parts = rate_parts(text)
    return None if parts is None else parts[0] / parts[1]


def rate_parts(text: str) -> tuple[float, int] | None:
    """How many, in how many seconds."""
    found = _RATE.fullmatch(text.strip().lower())
    return None if found is None else (float(found[1]), _UNITS[found[2] or "s"])


def effective(
    declared: Mapping[Guarded, Limit], said: Mapping[Guarded, Limit]
) -> dict[Guarded, Limit]:
    """Field by field: what an operator has said, else what code declares. What limits nothing is left out."""
    limits = {
        key: _merged(declared.get(key, Limit()), said.get(key, Limit()))
        for key in {*declared, *said}
    }
    return {key: limit for key, limit in limits.items() if limit != Limit()}


def _merged(declared: Limit, said: Limit) -> Limit:
    concurrency = declared.concurrency if said.concurrency is None else said.concurrency
    rate = declared.rate if said.rate is None else said.rate
    return Limit(
        None if concurrency is None or concurrency >= NO_LIMIT else concurrency,
        None if rate is None or rate >= NO_LIMIT else rate,
    )


def tighter(
    limit: Limit, concurrency: int | None, rate: float | None, burst: float | None
) -> Limit:
    """With a guard's word besides: the smaller of both holds."""
    if rate is not None and (limit.rate is None or rate < limit.rate):
        limit = limit._replace(rate=rate, burst=burst)
    if concurrency is not None and (limit.concurrency is None or concurrency < limit.concurrency):
        limit = limit._replace(concurrency=concurrency)
    return limit


def lasts(row: LimitRow, now: Micros) -> bool:
    return row.until is None or row.until > now


def refilled(meter: Meter, rate: float, now: Micros, burst: float | None = None) -> Meter:
    """What the time since has brought. A clock that went back brings nothing.

    A little behind is somebody who looked earlier, and time must not be counted twice; far behind is a clock that was
    set, and to wait for the old time could take days.
    """
    tokens = meter.tokens + max(0, now - meter.at) / SECOND * rate
    behind = meter.at - now
    return Meter(
        min(max(1.0, rate if burst is None else burst), tokens),
        meter.at if 0 < behind <= STEPPED_BACK else now,
    )


def room(limit: Limit, running: int, meter: Meter) -> int:
    """How many more may start under this limit."""
    slots = NO_LIMIT if limit.concurrency is None else max(0, limit.concurrency - running)
    starts = NO_LIMIT if limit.rate is None else int(meter.tokens + 1e-9)
    return min(slots, starts)


def next_start(limit: Limit, meter: Meter) -> Micros | None:
    """When the rate allows another start; None: it does now, or the rate is not what stands in the way."""
    if not limit.rate or meter.tokens >= 1:
        return None
    return meter.at + round((1 - meter.tokens) / limit.rate * SECOND) + 1


def share_of(owner: str) -> str:
    """The owner's share of a fair queue, as its lanes spell it."""
    return f"~{crc32(owner.encode('utf-8', 'surrogatepass')) % SHARES:03x}"

"""Concurrency and rate limits of queues and dependencies, and owner shares of fair queues.

A rate is paced: one second's worth (at least one job) may start at once, and the bucket refills
continuously. "100/h" is one job every 36 seconds, not a hundred on the hour.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from zlib import crc32

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Lane, Limit, LimitKey, LimitRow, TokenBucket

UNLIMITED = Limit()
NO_LIMIT = 1_000_000_000  # stored if an operator lifts a declared limit
MAX_RATE = 1_000_000.0
OWNER_SHARES = 1024  # lanes of one fair queue and kind; two of a thousand owners may share one

MAX_CLOCK_STEP = 10 * SECOND

_UNIT_NAMES = {
    1: ("s", "sec", "second"),
    60: ("m", "min", "minute"),
    3600: ("h", "hour"),
    86_400: ("d", "day"),
}
_UNITS = {name: seconds for seconds, names in _UNIT_NAMES.items() for name in names}
_RATE = re.compile(rf"(\d+(?:\.\d+)?)(?:/({'|'.join(_UNITS)}))?")

# --- Parsing ---


def parse_rate(text: str) -> float | None:
    """Return the starts per second of "5", "5/s", "100/min" or "2/h"; None for anything else."""
    parts = parse_rate_parts(text)
    if parts is None:
        return None
    count, seconds = parts
    return count / seconds


def parse_rate_parts(text: str) -> tuple[float, int] | None:
    """Return the count and the length of its period in seconds."""
    match = _RATE.fullmatch(text.strip().lower())
    if match is None:
        return None
    return float(match[1]), _UNITS[match[2] or "s"]


# --- Merging ---


def merge_limits(
    declared: Mapping[LimitKey, Limit], overrides: Mapping[LimitKey, Limit]
) -> dict[LimitKey, Limit]:
    """Return the limits in force: field by field the operator's value, else the declared one.

    Keys without any limit are left out.
    """
    merged = {}
    for key in {*declared, *overrides}:
        limit = _merge_limit(declared.get(key, UNLIMITED), overrides.get(key, UNLIMITED))
        if limit != UNLIMITED:
            merged[key] = limit
    return merged


def _merge_limit(declared: Limit, override: Limit) -> Limit:
    concurrency = declared.concurrency if override.concurrency is None else override.concurrency
    rate = declared.rate if override.rate is None else override.rate
    if concurrency is not None and concurrency >= NO_LIMIT:
        concurrency = None
    if rate is not None and rate >= NO_LIMIT:
        rate = None
    return Limit(concurrency, rate)


def tighten_limit(
    limit: Limit, concurrency: int | None, rate: float | None, burst: float | None
) -> Limit:
    """Apply the limits of a guard where they are tighter."""
    if rate is not None and (limit.rate is None or rate < limit.rate):
        limit = limit._replace(rate=rate, burst=burst)
    if concurrency is not None and (limit.concurrency is None or concurrency < limit.concurrency):
        limit = limit._replace(concurrency=concurrency)
    return limit


def is_limit_active(row: LimitRow, now: Micros) -> bool:
    return row.until is None or row.until > now


# --- Token buckets ---


def refill_bucket(
    bucket: TokenBucket, rate: float, now: Micros, burst: float | None = None
) -> TokenBucket:
    """Add the tokens earned since the last refill; none if the clock went back.

    If `now` is a little behind, another worker refilled later: keep its time, so that the same
    seconds are not counted twice. If it is far behind, the clock was set back: take the new time,
    because waiting for the old one could take days.
    """
    if burst is None:
        burst = rate
    size = max(1.0, burst)
    earned = max(0, now - bucket.at) / SECOND * rate
    behind = bucket.at - now
    at = bucket.at if 0 < behind <= MAX_CLOCK_STEP else now
    return TokenBucket(min(size, bucket.tokens + earned), at)


def available_starts(limit: Limit, running: int, bucket: TokenBucket) -> int:
    """Return how many more jobs may start under this limit."""
    by_concurrency = by_rate = NO_LIMIT
    if limit.concurrency is not None:
        by_concurrency = max(0, limit.concurrency - running)
    if limit.rate is not None:
        by_rate = int(bucket.tokens + 1e-9)
    return min(by_concurrency, by_rate)


def next_start_at(limit: Limit, bucket: TokenBucket) -> Micros | None:
    """Return when the rate allows another start; None if it allows one now or is not limited."""
    if not limit.rate or bucket.tokens >= 1:
        return None
    return bucket.at + round((1 - bucket.tokens) / limit.rate * SECOND) + 1


def count_running(running: Iterable[tuple[str, str, int]]) -> Counter[LimitKey]:
    """Return how many jobs run in each queue and use each dependency."""
    counts: Counter[LimitKey] = Counter()
    for queue, uses, count in running:
        for key in limit_keys(queue, uses):
            counts[key] += count
    return counts


def limit_keys(queue: str, uses: str) -> list[LimitKey]:
    """Return the keys of the limits that a job of this queue obeys."""
    return Lane(queue, "", uses, retry=False).limit_keys


# --- Fair queues ---


def owner_share(owner: str) -> str:
    """Return the part of a lane key that separates the owners of a fair queue."""
    return f"~{crc32(owner.encode('utf-8', 'surrogatepass')) % OWNER_SHARES:03x}"

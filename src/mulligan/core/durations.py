"""Times and durations as integer microseconds, and checks of the forms that callers may pass.

Inside Mulligan times are `Micros` since the epoch in UTC, and durations are `Micros` too. Callers
pass seconds, timedelta or datetime; the functions below check and convert them.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from mulligan.core.errors import DurationOrTime, Refused

Micros = int
SECOND: Micros = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DURATION: Micros = 100 * 366 * 86_400 * SECOND
MIN_LOOKBACK: Micros = 60 * SECOND

_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(s|m|min|h|d|)")


# --- Conversions ---


def to_datetime(at: Micros) -> datetime:
    """Convert to a datetime in UTC. Exact for every value, unlike `datetime.fromtimestamp`."""
    return EPOCH + timedelta(0, 0, at)


def optional_datetime(at: Micros | None) -> datetime | None:
    """Convert to a datetime in UTC. Return None for None."""
    return None if at is None else to_datetime(at)


def to_micros(at: datetime) -> Micros:
    """Convert a datetime. Refuse one without a time zone, because its hour would be a guess."""
    if at.tzinfo is None:
        message = (
            f"datetime {at.isoformat()} has no time zone; use datetime.now(UTC) or .astimezone()"
        )
        raise ValueError(message)
    return (at - EPOCH) // _MICROSECOND


def to_duration_micros(value: float | timedelta) -> Micros:
    """Convert seconds or a timedelta to microseconds."""
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    return round(value * SECOND)


def parse_seconds(text: str) -> float | None:
    """Return the seconds of `30`, `30s`, `5m`, `2h` or `1d`; None for anything else."""
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        return None
    number, unit = found.groups()
    return float(number) * _UNITS[unit]


# --- Checks of caller input ---


def check_duration(name: str, value: Any) -> Micros:
    """Return a duration in microseconds. Refuse other types, negative and absurdly long values."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        message = f"{name} must be seconds or a timedelta, not {value!r}"
        raise Refused(message)
    if isinstance(value, float) and not math.isfinite(value * SECOND):
        message = f"{name} must be a finite number of seconds, not {value!r}"
        raise Refused(message)
    micros = to_duration_micros(value)
    if not 0 <= micros <= MAX_DURATION:
        message = f"{name} must be between 0 s and 100 years, not {value!r}"
        raise Refused(message)
    return micros


def check_duration_or_time(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    """Return (duration, None), or (None, time) if the value is a datetime."""
    if not isinstance(value, datetime):
        return check_duration(name, value), None
    try:
        return None, to_micros(value)
    except ValueError as error:
        message = f"{name}: {error}"
        raise Refused(message) from None


def resolve_end(name: str, value: DurationOrTime | None, now: Micros) -> Micros | None:
    """Return the time at which something ends: a duration from now, or a time in the future."""
    if value is None:
        return None
    duration, at = check_duration_or_time(name, value)
    end = at if duration is None else now + duration
    if end is None or end <= now:
        message = f"{name} is not in the future: {value!r}"
        raise Refused(message)
    return end


def resolve_lookback(since: DurationOrTime, now: Micros) -> Micros:
    """Return how far back `since` reaches, in microseconds. Refuse less than a minute."""
    duration, at = check_duration_or_time("since", since)
    lookback = now - (at or 0) if duration is None else duration
    if lookback < MIN_LOOKBACK:
        message = f"since must be at least a minute ago, not {since!r}"
        raise Refused(message)
    return lookback

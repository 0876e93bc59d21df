"""Lengths and moments as people say them."""

from __future__ import annotations

from mulligan.job import Micros, to_datetime

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def duration(seconds: float) -> str:
    """`4 ms`, `0.4 s`, `41 s`, `5 min`, `1.5 h`, `2 d`."""
    if 0 < seconds < 0.095:
        return f"{max(1, round(seconds * 1000))} ms"
    for size, unit in _UNITS:
        if seconds >= 2 * size or seconds == size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def per(rate: float) -> str:
    """A rate in the unit in which it is at least one: `5 a second`, `1.7 a minute`, `2 an hour`."""
    for seconds, unit in ((1, "a second"), (60, "a minute"), (3600, "an hour")):
        if rate * seconds >= 0.9995:
            return f"{_short(round(rate * seconds, 3))} {unit}"
    return f"{_short(round(rate * 86_400, 3))} a day"


def moment(at: Micros) -> str:
    """`2026-01-02 03:04:05 UTC`."""
    try:
        return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "the end of time"


def size(count: int) -> str:
    """`512 B`, `1.9 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} TB"

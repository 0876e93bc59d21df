"""Times as people give them: seconds, timedelta or datetime; checked here, once."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from mulligan.core.errors import Moment, Refused
from mulligan.core.job import SECOND, Micros, span, to_datetime, to_micros

LONGEST: Micros = 100 * 366 * 86_400 * SECOND


def length(name: str, value: Any) -> Micros:
    """A length of time, not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        message = f"{name} must be seconds or a timedelta, not {value!r}"
        raise Refused(message)
    if isinstance(value, float) and not math.isfinite(value * SECOND):
        message = f"{name} must be a finite number of seconds, not {value!r}"
        raise Refused(message)
    micros = span(value)
    if not 0 <= micros <= LONGEST:
        message = f"{name} must be between 0 s and 100 years, not {value!r}"
        raise Refused(message)
    return micros


def length_or_moment(name: str, value: Any) -> tuple[Micros | None, Micros | None]:
    """(length, None) or (None, moment)."""
    if isinstance(value, datetime):
        try:
            return None, to_micros(value)
        except ValueError as error:
            message = f"{name}: {error}"
            raise Refused(message) from None
    return length(name, value), None


# Ends and moments of what an operator says.


def ended_at(name: str, value: Moment | None, now: Micros) -> Micros | None:
    """When it ends: a length from now, or a moment that lies ahead."""
    if value is None:
        return None
    span, at = length_or_moment(name, value)
    end = at if span is None else now + span
    if end is None or end <= now:
        message = f"{name} is not in the future: {value!r}"
        raise Refused(message)
    return end


def moment_of(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)


LEAST: Micros = 60 * SECOND


def span_of(since: Moment, now: Micros) -> Micros:
    length, at = length_or_moment("since", since)
    span = length if length is not None else now - (at or 0)
    if span < LEAST:
        message = f"since must be at least a minute ago, not {since!r}"
        raise Refused(message)
    return span

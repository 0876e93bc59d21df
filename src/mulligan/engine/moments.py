"""Times as people give them: seconds, timedelta or datetime; checked here, once."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from mulligan.errors import Refused
from mulligan.job import SECOND, Micros, span, to_micros

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

"""Ends and moments of what an operator says."""

from __future__ import annotations

from datetime import datetime

from mulligan.engine.moments import length_or_moment
from mulligan.errors import Moment, Refused
from mulligan.job import Micros, to_datetime


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

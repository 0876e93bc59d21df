"""Told to come less often: fewer at a time, for a while, and back again step by step.

Two thresholds, so that it does not swing; a pause between two changes, or it would act on what it has not seen yet; and
an end, so that nobody stays throttled by a guard that is gone.
"""

from __future__ import annotations

from typing import NamedTuple

from mulligan.job import SECOND, Micros

TRIP, CLEAR = 0.05, 0.01  # shares of calls that were told to slow down
ENOUGH = 20  # calls
LESS, MORE = 0.7, 0.05
DWELL = 30 * SECOND
LASTS = 900 * SECOND


class Terms(NamedTuple):
    """When to give way, and when to come back."""

    trip: float = TRIP
    clear: float = CLEAR
    enough: int = ENOUGH


DEFAULT = Terms()


class Reduced(NamedTuple):
    limit: int | None = None  # at a time; None: not reduced
    base: int = 0  # what it was before
    at: Micros = 0  # of the last change
    until: Micros = 0
    limited: int = 0  # since the last change
    calls: int = 0


WHOLE = Reduced()


class Seat(NamedTuple):
    """What is known besides: the declared maximum, how many run now, how long one takes."""

    most: int | None
    running: int
    takes: Micros = 0


def observed(
    reduced: Reduced, limited: int, calls: int, seat: Seat, now: Micros, terms: Terms = DEFAULT
) -> tuple[Reduced, str | None]:
    """With these calls more, and what there is to say about a change."""
    if reduced.limit is not None and not 0 < reduced.until - now <= LASTS:  # or the clock was set back
        reduced = WHOLE
    reduced = reduced._replace(limited=reduced.limited + limited, calls=reduced.calls + calls)
    if reduced.limit is None and reduced.limited == 0:
        return WHOLE, None
    if reduced.calls < terms.enough:
        return reduced, None
    share = reduced.limited / reduced.calls
    rested = reduced.limit is None or not 0 <= now - reduced.at < max(DWELL, 2 * seat.takes)
    if share > terms.trip and rested:
        return _less(reduced, seat, now)
    if share < terms.clear and rested:
        return _more(reduced, seat, now)
    if reduced.limit is None:
        return WHOLE, None
    return (reduced._replace(until=now + LASTS) if share >= terms.clear else reduced), None


def _less(reduced: Reduced, seat: Seat, now: Micros) -> tuple[Reduced, str | None]:
    base = reduced.base or seat.most or max(1, seat.running)
    before = base if reduced.limit is None else reduced.limit
    limit = max(1, int(before * LESS))
    said = f"{reduced.limited} of {reduced.calls} calls were told to slow down: {limit} at a time instead of {before}"
    return Reduced(limit, base, now, now + LASTS), said if limit < before else None


def _more(reduced: Reduced, seat: Seat, now: Micros) -> tuple[Reduced, str | None]:
    if reduced.limit is None:
        return WHOLE, None
    most = seat.most or reduced.base
    limit = reduced.limit + max(1, int(reduced.limit * MORE))
    said = f"{reduced.limited} of {reduced.calls} calls were told to slow down"
    if limit >= most:
        return WHOLE, f"{said}: as many at a time as before"
    return Reduced(limit, reduced.base, now, now + LASTS), f"{said}: {limit} at a time instead of {reduced.limit}"

"""After a breaker has closed: how many jobs a second may start, so that the backlog is no second outage.

The rate begins low, grows while outcomes are good and falls when they are not: quickly far from the rate that hurt
last time, slowly near it, so that most of the time is spent just below what the dependency can bear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.job import SECOND, Micros

FIRST = 0.1  # of normal: where it begins
LEAST = 1.0  # a judgement: never fewer
BLIND = 0.1  # growth by one judgement where nobody knows what is normal, until it hurts
QUICK, RESTING, PROBING = (
    0.05,
    0.0015,
    0.01,
)  # growth by one judgement, of the rate or of normal, whichever is more
REST, PROBE, FREE = (
    0.85,
    0.95,
    1.15,
)  # of the rate that hurt: where resting begins, then probing, then quick again

TOO_MANY = 0.02  # of the outcomes, beyond the usual share
FEW = 3  # failures may be chance
UNSURE = 5  # judgements: who waits longer for certainty about a few failures never gets on
AWAY = 1 / 3  # of the outcomes: who fails so many was not asked too much, it was away for a moment
SOON = 10  # judgements: twice within them is no moment
CALM, LITTLE = (
    30,
    10.0,
)  # judgements without a cut at fewer a second: what it bore then is too little to go by
BELOW, DEEPEST = 0.93, 0.5  # a cut leaves so much, less the share that failed
ECHO = SECOND  # until outcomes are told

LEARN, SAMPLE = 0.03, 30  # how much so many outcomes say about the usual share
MOST_USUAL = 0.5

USED = 0.5  # of the rate: with fewer outcomes it is not the rate that limits
SPARE = 60  # judgements in a row
KNOWN = 10.0  # a second: where nobody knows what is normal, as good as normal
QUIET = 600 * SECOND


class Ramp(NamedTuple):
    """How much may start now, and what was seen since that was said."""

    rate: float  # dispatches a second that are allowed now, in the whole fleet
    normal: float | None  # dispatches a second before the outage; None: nobody knows
    at: Micros  # when it was last judged; after a cut ahead of now, until the outcomes of the old rate are told
    every: Micros = SECOND  # how long one judgement takes: at least as long as most jobs
    ok: int = 0  # outcomes since `at`
    failed: int = 0
    hurt: float | None = None  # the rate at which it was cut last
    usual: float = 0.0  # the share that fails at any rate
    spare: int = 0  # judgements in a row that found the rate not used
    calm: int = SOON  # judgements since the last cut


def begin(normal: float | None, now: Micros, every: Micros = SECOND) -> Ramp:
    first = 2 * _least(every) if normal is None else max(normal * FIRST, _least(every))
    return Ramp(first, normal, now, every)


def _least(every: Micros) -> float:
    return LEAST * SECOND / every


def observed(ramp: Ramp, ok: int, failed: int, now: Micros) -> Ramp:
    """With outcomes that were counted. May be called many times a second, or rarely, or with nothing."""
    at = min(ramp.at, now + _deaf(ramp))  # unless the clock was set back
    if now < at:
        return ramp._replace(at=at)
    seen = ramp._replace(at=at, ok=ramp.ok + ok, failed=ramp.failed + failed)
    whole = now - at >= seen.every
    count = float(seen.ok + seen.failed)
    if not whole:  # failures are told before successes, so they count against all that may come
        count = max(count, seen.rate * seen.every / SECOND)
    beyond = seen.failed - seen.usual * count
    chance = 2 * math.sqrt(seen.usual * (1 - seen.usual) * count)
    if beyond >= max(FEW, TOO_MANY * count) + chance:
        return _cut(seen, count, beyond / count, now)
    unsure = beyond > TOO_MANY * count + chance and now - at < UNSURE * seen.every
    return _grown(seen, count, now) if whole and count and not unsure else seen


def _deaf(ramp: Ramp) -> Micros:
    """How long after a cut outcomes still tell of the rate before it."""
    return ramp.every + ECHO


def _cut(ramp: Ramp, count: float, share: float, now: Micros) -> Ramp:
    rate = max(ramp.rate * max(DEEPEST, BELOW - share), _least(ramp.every))
    hurt = ramp.rate if share < AWAY or ramp.calm < SOON else ramp.hurt
    return _judged(ramp, count, now + _deaf(ramp))._replace(rate=rate, hurt=hurt, spare=0, calm=0)


def _grown(ramp: Ramp, count: float, now: Micros) -> Ramp:
    forgets = ramp.calm >= CALM and ramp.rate < LITTLE
    judged = _judged(ramp, count, now)._replace(
        calm=ramp.calm + 1, hurt=None if forgets else ramp.hurt
    )
    if count < USED * ramp.rate * (now - ramp.at) / SECOND:
        return judged._replace(spare=ramp.spare + 1)
    return judged._replace(rate=ramp.rate + _growth(ramp), spare=0)


def _growth(ramp: Ramp) -> float:
    """Until it has hurt, by one a judgement at least: of what was hardly used nobody knows what it bears."""
    if ramp.hurt is not None:
        return _pace(ramp) * max(ramp.rate, ramp.normal or 0.0)
    return max(
        BLIND * ramp.rate if ramp.normal is None else QUICK * max(ramp.rate, ramp.normal),
        _least(ramp.every),
    )


def _pace(ramp: Ramp) -> float:
    if ramp.hurt is None or not REST <= ramp.rate / ramp.hurt < FREE:
        return QUICK
    return RESTING if ramp.rate / ramp.hurt < PROBE else PROBING


def _judged(ramp: Ramp, count: float, at: Micros) -> Ramp:
    weight = LEARN * min(1.0, count / SAMPLE)
    usual = ramp.usual + weight * (ramp.failed / count - ramp.usual)
    return ramp._replace(at=at, ok=0, failed=0, usual=min(usual, MOST_USUAL))


def over(ramp: Ramp, now: Micros, *, waiting: bool) -> bool:
    """May the limit be removed? `waiting`: due jobs of this dependency still wait."""
    if ramp.spare >= SPARE:
        return True
    return not waiting and (ramp.rate >= _enough(ramp) or now - ramp.at >= QUIET)


def _enough(ramp: Ramp) -> float:
    normal = KNOWN if ramp.normal is None else ramp.normal
    return normal if ramp.hurt is None else min(normal, ramp.hurt * REST)


def to_plain(ramp: Ramp) -> dict[str, Any]:
    return ramp._asdict()


def from_plain(said: Mapping[str, Any]) -> Ramp:
    return Ramp(**{name: said[name] for name in Ramp._fields if name in said})


# Told to come less often: fewer at a time, for a while, and back again step by step.

TRIP, CLEAR = 0.05, 0.01  # shares of calls that were told to slow down
ENOUGH = 20  # calls
LESS, MORE = 0.7, 0.05
DWELL = 30 * SECOND
LASTS = 900 * SECOND


class ThrottleTerms(NamedTuple):
    """When to give way, and when to come back."""

    trip: float = TRIP
    clear: float = CLEAR
    enough: int = ENOUGH


DEFAULT_THROTTLE = ThrottleTerms()


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


def throttle(
    reduced: Reduced,
    limited: int,
    calls: int,
    seat: Seat,
    now: Micros,
    terms: ThrottleTerms = DEFAULT_THROTTLE,
) -> tuple[Reduced, str | None]:
    """With these calls more, and what there is to say about a change."""
    if (
        reduced.limit is not None and not 0 < reduced.until - now <= LASTS
    ):  # or the clock was set back
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
    return Reduced(
        limit, reduced.base, now, now + LASTS
    ), f"{said}: {limit} at a time instead of {reduced.limit}"

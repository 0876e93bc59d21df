"""Cron expressions, and the slots they name: in a zone's local time, in a range, in order.

Daylight saving follows cronsim, which follows Debian's cron. Five fields whose minute and hour both begin with
something else than `*` name a time of day: one that a change skips comes right after it, one that it repeats comes the
first time only. Any other expression follows real time: what is skipped does not come, what is repeated comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any

from cronsim import CronSim, CronSimError

from mulligan.errors import ConfigError
from mulligan.job import SECOND, Micros, to_datetime, to_micros

LONGEST = 200
SOME_DAY: Micros = 946_684_800 * SECOND  # 2000-01-01: any day does, an expression looks 50 years ahead
FIRST_WINDOW: Micros = 3600 * SECOND
HOW = "write minute hour day month weekday, for example '0 3 * * *': at 03:00 every day; six fields begin with seconds"


def checked_cron(expr: Any) -> str:
    """The expression with single spaces, or what to write instead."""
    if not isinstance(expr, str) or len(expr) > LONGEST:
        message = f"cron {expr!r:.80} is no expression; {HOW}"
        raise ConfigError(message)
    plain = " ".join(expr.split())
    try:
        comes = following(plain, UTC, SOME_DAY)
    except CronSimError as error:
        message = f"cron {plain!r}: {str(error).lower()}; {HOW}"
        raise ConfigError(message) from None
    if comes is None:
        message = f"cron {plain!r} names a day that never comes; {HOW}"
        raise ConfigError(message)
    return plain


def slots(expr: str, zone: tzinfo, after: Micros, until: Micros) -> Iterator[Micros]:
    """Every slot with after < slot ≤ until, in order."""
    for at in upcoming(expr, zone, after):
        if at > until:
            return
        yield at


def upcoming(expr: str, zone: tzinfo, after: Micros) -> Iterator[Micros]:
    """Every slot after a moment, without end."""
    last = after
    for local in CronSim(expr, to_datetime(after).astimezone(zone)):
        at = to_micros(local)
        if at > last:  # asked within a repeated hour, cronsim begins with what came the first time
            last = at
            yield at


@lru_cache(maxsize=4096)
def following(expr: str, zone: tzinfo, after: Micros) -> Micros | None:
    """The first slot after a moment. Remembered: every sweep asks again."""
    return next(upcoming(expr, zone, after), None)


def newest(expr: str, zone: tzinfo, after: Micros, until: Micros, most: int) -> list[Micros]:
    """The last slots of a range, in order; what lies before them is not walked through, however long it is."""
    window = FIRST_WINDOW
    while True:
        start = max(after, until - window)
        found = list(slots(expr, zone, start, until))
        if len(found) >= most or start == after:
            return found[-most:]
        window *= 8


def count(expr: str, zone: tzinfo, after: Micros, until: Micros, cap: int) -> int:
    """How many slots a range has, counted up to `cap`."""
    return sum(1 for _ in islice(slots(expr, zone, after, until), cap))

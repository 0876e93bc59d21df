"""Which declarations hold, and what is due of a schedule: which slots get a job, which are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from cronsim import CronSim, CronSimError

from mulligan.core.errors import ConfigError
from mulligan.core.job import SECOND, Micros, to_datetime, to_micros

# Cron expressions, and the slots they name: in a zone's local time, in a range, in order.

LONGEST = 200
SOME_DAY: Micros = (
    946_684_800 * SECOND
)  # 2000-01-01: any day does, an expression looks 50 years ahead
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


# Which declarations hold, and what is due of a schedule: which slots get a job, which are skipped.

LATEST, ALL, SKIP = "latest", "all", "skip"
MISSED = (LATEST, ALL, SKIP)
MOST_MISSED = 1000  # of `all`
MOST_COUNTED = 10_000
STEPPED_BACK: Micros = 900 * SECOND


def checked_missed(value: Any) -> str:
    if value not in MISSED:
        message = (
            f"missed={value!r:.80}: write 'latest' (only the newest missed slot runs), 'all' (each of them, "
            f"the newest {MOST_MISSED} at most) or 'skip' (none)"
        )
        raise ConfigError(message)
    return str(value)


def restart(
    known: tuple[str, str], wanted: tuple[str, str], cursor: Micros, now: Micros
) -> Micros | None:
    """The cursor to begin with when (cron, timezone) changed, or the clock was set back; else None.

    Slots named by another expression are not missed slots of this one. A cursor far ahead of the clock was written
    while the clock was wrong; to wait for it could take years, and slots that have a job keep it.
    """
    if cursor > now + STEPPED_BACK:
        return now
    return max(cursor, now) if known != wanted else None


# -- slots --------------------------------------------------------------------------------------------
class Timing(NamedTuple):
    cron: str
    zone: tzinfo
    missed: str = LATEST


@dataclass(frozen=True)
class Skipped:
    first: Micros
    last: Micros
    count: int  # stops at MOST_COUNTED
    reason: str


class Plan(NamedTuple):
    """What is decided about the slots after a cursor, up to and with the new one."""

    run: tuple[Micros, ...]
    skipped: Skipped | None
    cursor: Micros


class Moments(NamedTuple):
    now: Micros
    until: Micros  # a little ahead, so that a job waits for its slot and not the slot for a sweep
    grace: Micros  # a slot this late is only late: a worker that lives may be that slow


def plan(timing: Timing, cursor: Micros, when: Moments, most: int) -> Plan | None:
    """At most `most` slots to run, oldest first; None: nothing to decide yet."""
    cron, zone, _ = timing
    first = following(cron, zone, cursor)
    if first is None or first > when.until:
        return None
    if first >= when.now - when.grace:
        run = tuple(islice(slots(cron, zone, cursor, when.until), most))
        return Plan(run, None, run[-1])
    kept = _kept(timing, cursor, when)
    skipped = _skipped(timing, cursor, kept[0] - 1 if kept else when.now)
    ahead = slots(cron, zone, when.now, when.until)
    run = (*kept, *islice(ahead, most))[:most]
    return Plan(run, skipped, run[-1] if run else when.now)


def _kept(timing: Timing, cursor: Micros, when: Moments) -> list[Micros]:
    """Nobody was there for a while: which of the slots that have passed still get a job?"""
    if timing.missed == SKIP:
        return list(
            slots(timing.cron, timing.zone, max(cursor, when.now - when.grace - 1), when.now)
        )
    most = MOST_MISSED if timing.missed == ALL else 1
    return newest(timing.cron, timing.zone, cursor, when.now, most)


def _skipped(timing: Timing, cursor: Micros, until: Micros) -> Skipped | None:
    cron, zone, missed = timing
    last = newest(cron, zone, cursor, until, 1)
    first = following(cron, zone, cursor)
    if not last or first is None:
        return None
    return Skipped(
        first, last[0], count(cron, zone, cursor, last[0], MOST_COUNTED), REASONS[missed]
    )


REASONS = {
    LATEST: "no worker was there; of missed slots only the newest runs (missed='latest')",
    ALL: f"no worker was there; of missed slots the newest {MOST_MISSED} run (missed='all')",
    SKIP: "no worker was there; missed slots do not run (missed='skip')",
}

"""Rules of schedules: cron slots, and which of them get a job, are skipped or are missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from cronsim import CronSim, CronSimError

from mulligan.core.durations import SECOND, Micros, to_datetime, to_micros
from mulligan.core.errors import ConfigError

# --- Cron expressions and their slots ---
MAX_CRON_LENGTH = 200
REFERENCE_TIME: Micros = 946_684_800 * SECOND  # 2000-01-01; cronsim looks 50 years ahead from it
FIRST_WINDOW: Micros = 3600 * SECOND  # first range searched for the newest slots
CRON_HELP = (
    "Write minute hour day month weekday, for example '0 3 * * *' for 03:00 every day; "
    "with six fields the first one is seconds."
)


def check_cron(expr: Any) -> str:
    """Return the expression with single spaces; refuse one that is invalid or never comes."""
    if not isinstance(expr, str) or len(expr) > MAX_CRON_LENGTH:
        raise ConfigError(f"cron {expr!r:.80} is not a cron expression. {CRON_HELP}")
    normalised = " ".join(expr.split())
    try:
        first = next_slot(normalised, UTC, REFERENCE_TIME)
    except CronSimError as error:
        raise ConfigError(f"cron {normalised!r}: {str(error).lower()}. {CRON_HELP}") from None
    if first is None:
        raise ConfigError(f"cron {normalised!r} names a day that never comes. {CRON_HELP}")
    return normalised


def slots_between(expr: str, zone: tzinfo, after: Micros, until: Micros) -> Iterator[Micros]:
    """Yield every slot with after < slot ≤ until, in order."""
    for slot in slots_after(expr, zone, after):
        if slot > until:
            return
        yield slot


def slots_after(expr: str, zone: tzinfo, after: Micros) -> Iterator[Micros]:
    """Yield every slot after a time, without end."""
    last = after
    for local in CronSim(expr, to_datetime(after).astimezone(zone)):
        slot = to_micros(local)
        # Within a repeated hour, cronsim begins with slots of its first occurrence.
        if slot > last:
            last = slot
            yield slot


@lru_cache(maxsize=4096)
def next_slot(expr: str, zone: tzinfo, after: Micros) -> Micros | None:
    """Return the first slot after a time. Cached, because every sweep needs it."""
    return next(slots_after(expr, zone, after), None)


def newest_slots(expr: str, zone: tzinfo, after: Micros, until: Micros, limit: int) -> list[Micros]:
    """Return the last slots of a range, in order, without walking through a long range."""
    window = FIRST_WINDOW
    while True:
        start = max(after, until - window)
        found = list(slots_between(expr, zone, start, until))
        if len(found) >= limit or start == after:
            return found[-limit:]
        window *= 8


def count_slots(expr: str, zone: tzinfo, after: Micros, until: Micros, cap: int) -> int:
    """Count the slots of a range, up to `cap`."""
    return sum(1 for _ in islice(slots_between(expr, zone, after, until), cap))


# --- Missed slots and the cursor ---
LATEST = "latest"
ALL = "all"
SKIP = "skip"
MISSED = (LATEST, ALL, SKIP)
MAX_MISSED = 1000  # jobs for missed slots with missed="all"
MAX_COUNTED = 10_000
MAX_CLOCK_LEAD: Micros = 900 * SECOND


def check_missed(value: Any) -> str:
    """Return a checked `missed=` option."""
    if value not in MISSED:
        raise ConfigError(
            f"missed={value!r:.80}: write 'latest' (only the newest missed slot runs), "
            f"'all' (each of them, at most the newest {MAX_MISSED:,}) or 'skip' (none)"
        )
    return str(value)


def restart_cursor(
    known: tuple[str, str], wanted: tuple[str, str], cursor: Micros, now: Micros
) -> Micros | None:
    """Return the new cursor if (cron, timezone) changed or the clock was set back, else None.

    Slots of another expression are not missed slots of this one. A cursor far ahead of the clock
    was written while the clock was wrong; waiting for it could take years. Slots that already
    have a job keep it.
    """
    if cursor > now + MAX_CLOCK_LEAD:
        return now
    if known != wanted:
        return max(cursor, now)
    return None


# --- Plan of due slots ---
class Timing(NamedTuple):
    """When a schedule fires."""

    cron: str
    zone: tzinfo
    missed: str = LATEST


@dataclass(frozen=True)
class SkippedSlots:
    """Missed slots that get no job."""

    first: Micros
    last: Micros
    count: int  # at most MAX_COUNTED
    reason: str


class SlotPlan(NamedTuple):
    """Decision about the slots after a cursor, up to and including the new cursor."""

    run: tuple[Micros, ...]
    skipped: SkippedSlots | None
    cursor: Micros


class FiringWindow(NamedTuple):
    """Times that decide which slots are due."""

    now: Micros
    until: Micros  # a little ahead of now, so that jobs are ready when their slot comes
    grace: Micros  # A slot late by no more than this is not missed: a live worker may be that slow.


def plan_slots(timing: Timing, cursor: Micros, window: FiringWindow, limit: int) -> SlotPlan | None:
    """Decide about the next slots, at most `limit` to run, oldest first; None if none is due."""
    cron, zone, _ = timing
    first = next_slot(cron, zone, cursor)
    if first is None or first > window.until:
        return None
    if first >= window.now - window.grace:
        run = tuple(islice(slots_between(cron, zone, cursor, window.until), limit))
        return SlotPlan(run, None, run[-1])
    missed = _missed_slots_to_run(timing, cursor, window)
    skipped_until = missed[0] - 1 if missed else window.now
    skipped = _skipped_slots(timing, cursor, skipped_until)
    upcoming = islice(slots_between(cron, zone, window.now, window.until), limit)
    run = (*missed, *upcoming)[:limit]
    next_cursor = run[-1] if run else window.now
    return SlotPlan(run, skipped, next_cursor)


def _missed_slots_to_run(timing: Timing, cursor: Micros, window: FiringWindow) -> list[Micros]:
    """Return which past slots still get a job after a time without workers."""
    cron, zone, missed = timing
    if missed == SKIP:
        after = max(cursor, window.now - window.grace - 1)
        return list(slots_between(cron, zone, after, window.now))
    limit = MAX_MISSED if missed == ALL else 1
    return newest_slots(cron, zone, cursor, window.now, limit)


def _skipped_slots(timing: Timing, cursor: Micros, until: Micros) -> SkippedSlots | None:
    cron, zone, missed = timing
    newest = newest_slots(cron, zone, cursor, until, 1)
    first = next_slot(cron, zone, cursor)
    if not newest or first is None:
        return None
    last = newest[0]
    count = count_slots(cron, zone, cursor, last, MAX_COUNTED)
    return SkippedSlots(first, last, count, SKIP_REASONS[missed])


SKIP_REASONS = {
    LATEST: "no worker was running; only the newest missed slot runs (missed='latest')",
    ALL: f"no worker was running; the newest {MAX_MISSED:,} missed slots run (missed='all')",
    SKIP: "no worker was running; missed slots do not run (missed='skip')",
}

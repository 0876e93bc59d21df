"""Which declarations hold, and what is due of a schedule: which slots get a job, which are skipped."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import islice
from typing import Any, NamedTuple

from mulligan.errors import ConfigError
from mulligan.job import SECOND, Micros
from mulligan.policy.cron import count, following, newest, slots

LATEST, ALL, SKIP = "latest", "all", "skip"
MISSED = (LATEST, ALL, SKIP)
MOST_MISSED = 1000  # of `all`
MOST_COUNTED = 10_000
SILENT: Micros = 600 * SECOND  # workers name their manifest every minute
STEPPED_BACK: Micros = 900 * SECOND


def checked_missed(value: Any) -> str:
    if value not in MISSED:
        message = (
            f"missed={value!r:.80}: write 'latest' (only the newest missed slot runs), 'all' (each of them, "
            f"the newest {MOST_MISSED} at most) or 'skip' (none)"
        )
        raise ConfigError(message)
    return str(value)


# -- declarations -------------------------------------------------------------------------------------
def in_force(manifests: Sequence[tuple[str, Micros]], now: Micros, known_for: Micros) -> list[bool]:
    """Of each (app, last named): does what it declares hold?

    For a while after it was last named; but no more once its workers are silent and others of the same app are not:
    then it was replaced, by a newer release or by an older one.
    """
    speaking = {app for app, named in manifests if named > now - SILENT}
    return [named > now - (SILENT if app in speaking else known_for) for app, named in manifests]


def given_up(past: Sequence[tuple[str, Micros, Container[str]]], app: str, names: Iterable[str]) -> set[str]:
    """Of the schedules that an app is about to name: those it went without for longer than a deploy takes.

    `past`: what was named before, as (app, last named, its schedules). A schedule whose app was only away, or that
    another app has kept alive, is not given up.
    """
    return {name for name in names if _ended(past, app, name)}


def _ended(past: Sequence[tuple[str, Micros, Container[str]]], app: str, name: str) -> bool:
    named = max((at for _, at, schedules in past if name in schedules), default=None)
    without = max((at for who, at, schedules in past if who == app and name not in schedules), default=None)
    return named is not None and without is not None and without - named > SILENT


def restart(known: tuple[str, str], wanted: tuple[str, str], cursor: Micros, now: Micros) -> Micros | None:
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
        return list(slots(timing.cron, timing.zone, max(cursor, when.now - when.grace - 1), when.now))
    most = MOST_MISSED if timing.missed == ALL else 1
    return newest(timing.cron, timing.zone, cursor, when.now, most)


def _skipped(timing: Timing, cursor: Micros, until: Micros) -> Skipped | None:
    cron, zone, missed = timing
    last = newest(cron, zone, cursor, until, 1)
    first = following(cron, zone, cursor)
    if not last or first is None:
        return None
    return Skipped(first, last[0], count(cron, zone, cursor, last[0], MOST_COUNTED), REASONS[missed])


REASONS = {
    LATEST: "no worker was there; of missed slots only the newest runs (missed='latest')",
    ALL: f"no worker was there; of missed slots the newest {MOST_MISSED} run (missed='all')",
    SKIP: "no worker was there; missed slots do not run (missed='skip')",
}

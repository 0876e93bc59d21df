"""Which rules have judged what, lately: counted over the newest attempts, so that it never costs more than that."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from mulligan.engine.insight import SKEW, span_of
from mulligan.errors import Moment
from mulligan.ids import first_id
from mulligan.job import Micros
from mulligan.store.base import Store, Unit
from mulligan.store.hindsight import HitRow, JudgedRow

WEEK = timedelta(days=7)
ATTEMPTS = 20_000  # at most so many are looked at, the newest
ROWS = 2_000
NEWEST = 50


@dataclass(frozen=True, slots=True)
class Hits:
    """What rules have judged since then."""

    rows: tuple[HitRow, ...]
    partial: bool  # only the newest attempts were looked at
    now: Micros


class _Range(NamedTuple):
    after: str
    since: Micros
    partial: bool
    now: Micros


def rule_hits(store: Store, *, since: Moment = WEEK, kind: str | None = None) -> Hits:
    with store.read() as unit:
        where = _range(unit, since)
        found = unit.rule_hits(where.after, where.since, kind, ROWS)
    return Hits(tuple(found), where.partial, where.now)


def judged_by(store: Store, rule: str, *, since: Moment = WEEK, kind: str | None = None) -> list[JudgedRow]:
    """The newest of them."""
    with store.read() as unit:
        where = _range(unit, since)
        return unit.judged_by(rule, where.after, where.since, kind, NEWEST)


def _range(unit: Unit, since: Moment) -> _Range:
    now = unit.now()
    length = span_of(since, now)
    low = first_id((time.time_ns() // 1000 - length - SKEW) // 1000)
    begin = unit.past_begins(low, ATTEMPTS)
    return _Range(begin, now - length, begin > low, now)

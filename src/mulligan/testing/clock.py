"""The clock that rules, moved: for this process and for every worker on the same database."""

from __future__ import annotations

from datetime import datetime
from random import Random

from mulligan.app import Mulligan
from mulligan.engine import upkeep
from mulligan.engine.moments import length_or_moment
from mulligan.errors import Moment, Refused
from mulligan.job import Micros, to_datetime
from mulligan.store.base import Store
from mulligan.store.host import boot_id
from mulligan.testing.places import refuse_elsewhere


def now(app: Mulligan) -> datetime:
    """What time it is for the jobs of this app."""
    return to_datetime(_now(app.store))


def advance(app: Mulligan, by: Moment, *, leases: bool = False, anywhere: bool = False) -> datetime:
    """Move time forward, by seconds or a timedelta, or up to a datetime; returns the time it is then.

    Due times, backoffs, schedules, deadlines, retention and the end of a hold follow. Workers that run on this database
    hear of it within half a second. What it does not move: a running attempt's time limit, and what `datetime.now()`
    says in your code. No worker is taken for dead because of it; `leases=True` asks for that: the leases that are
    shorter than the move have run out, and what ran under them is lost.

    It cannot be undone: time in this database stays moved. So it is refused outside of `temporary`, unless `anywhere`
    says that nobody needs the jobs of that database.
    """
    if not anywhere:
        refuse_elsewhere(app, "advance", "moves the time of a database for good")
    store = app.store
    span = _span(store, by)
    store.shift_clock(span)
    if leases:
        _lose_workers(app, span)
    return now(app)


def _span(store: Store, by: Moment) -> Micros:
    span, moment = length_or_moment("advance(by)", by)
    if span is not None:
        return span
    span = (moment or 0) - _now(store)
    if span < 0:
        message = f"advance(by): time does not go back; {by} is {-span / 1e6:g} s ago"
        raise Refused(message)
    return span


def _lose_workers(app: Mulligan, span: Micros) -> None:
    judge = upkeep.Judge("", boot_id(), lambda worker: worker.lease < span)
    upkeep.close_dead(app.store, judge)
    upkeep.settle_orphans(app.store, app.settings.retry, Random())


def _now(store: Store) -> Micros:
    with store.read() as unit:
        return unit.now()

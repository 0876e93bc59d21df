"""Who is told of what: which subscriptions are switched off or fail, and whether the log is read."""

from __future__ import annotations

from shlex import quote

from mulligan.checks.finding import OK, WARN, Check, Checks
from mulligan.config import Settings
from mulligan.engine.declared import declared_subscriptions
from mulligan.notify.dispatch import READER, STRETCH
from mulligan.policy.phrase import span
from mulligan.store.base import Unit
from mulligan.store.notifying import SubscriptionRow

NAME = "subscriptions"


def subscription_checks(unit: Unit, _: Settings) -> Checks:
    declared = declared_subscriptions(unit, unit.now())
    rows = [row for row in unit.subscriptions() if not row.declared or row.id in declared]
    troubled = [check for row in rows for check in _of(unit, row)]
    if rows:
        yield from troubled or [Check(OK, NAME, f"{len(rows)} known, all on, none fails")]
        yield from _behind(unit, min(row.after for row in rows))


def _of(unit: Unit, row: SubscriptionRow) -> Checks:
    if row.state != "on":
        yield Check(WARN, NAME, f"{row.id} is off: {row.reason}", f"mulligan notify enable {quote(row.id)}")
    elif row.failing_since is not None:
        since = f"{row.failures} failures in a row since {span(row.failing_since, unit.now())}"
        yield Check(WARN, NAME, f"{row.id}: {since}", f"mulligan notify deliveries --subscription {quote(row.id)}")


def _behind(unit: Unit, since: int) -> Checks:
    """`since`: the event before the first that any of them hears of."""
    reader = unit.reader_at(READER)
    behind = unit.newest_event() - max(since, 0 if reader is None else reader.cursor)
    if behind > STRETCH:
        yield Check(WARN, NAME, f"{behind} events are not read yet", "mulligan worker APP: any worker reads them")

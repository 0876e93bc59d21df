"""Which subscriptions there are now: those that are stored, and those that the manifests in force declare."""

from __future__ import annotations

import hashlib
import logging

from mulligan.engine.declared import declared_subscriptions
from mulligan.engine.kinds import ENDPOINT, SubscriptionSpec
from mulligan.job import SECOND, Micros
from mulligan.notify.channels import Channel
from mulligan.policy.subscription import Book, Subscription, parsed_filter, types_of
from mulligan.store.base import Unit
from mulligan.store.notifying import Mark, SubscriptionRow

log = logging.getLogger("mulligan.notify")

TRUST = 5 * SECOND  # for which what manifests declare is believed


class Subscribed:
    """Read again when something about them has changed; a declared one that is new is always seen at once."""

    def __init__(self) -> None:
        self._book = Book(())
        self._mark: Mark = (0, 0, 0)
        self._read_at: Micros = 0

    def book(self, unit: Unit, now: Micros) -> Book:
        mark = unit.subscriptions_mark()
        if mark != self._mark or abs(now - self._read_at) > TRUST:
            self._book = read_book(unit, now)
            self._mark, self._read_at = mark, now
        return self._book


def read_book(unit: Unit, now: Micros) -> Book:
    rows = [row for row in unit.subscriptions() if row.state == "on"]
    declared = declared_subscriptions(unit, now) if any(row.declared for row in rows) else {}
    found = [_of_spec(row, declared.get(row.id)) if row.declared else of_row(row) for row in rows]
    return Book(one for one in found if one is not None)


def _of_spec(row: SubscriptionRow, spec: SubscriptionSpec | None) -> Subscription | None:
    if spec is None:
        return None
    return _made(
        row, ",".join(spec.on), spec.filter,
        owner=spec.owner, form=spec.form, channel=spec.channel, endpoint=spec.endpoint, apart=spec.apart, declared=True,
    )  # fmt: skip


def of_row(row: SubscriptionRow) -> Subscription | None:
    said = {"owner": row.owner, "form": row.form, "channel": row.channel, "endpoint": row.endpoint}
    return _made(row, row.patterns, row.filter, batch=row.batch_id, **said)


def _made(row: SubscriptionRow, patterns: str, words: str, **said: object) -> Subscription | None:
    """A newer version may know events and fields that we do not: such a one is left to it."""
    try:
        types, filters = types_of(patterns), parsed_filter(words)
    except Exception:
        log.exception("subscription %s cannot be read, and is passed over", row.id)
        return None
    return Subscription(id=row.id, types=types, filter=filters, after=row.after, **said)  # type: ignore[arg-type]


def endpoint_key(channel: Channel) -> str:
    """The dependency that stands for an address: which channel, but not to where."""
    where = hashlib.sha256(channel.endpoint.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{ENDPOINT}{channel.kind}.{where}"

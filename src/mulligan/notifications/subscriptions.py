"""`app.subscriptions`: who is told of what. Those that code declares are listed too, and can be switched off and on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from mulligan.config import Settings
from mulligan.core.durations import moment_of
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Micros
from mulligan.jobs.enqueue import checked_text
from mulligan.manifest.declared import declared_subscriptions
from mulligan.manifest.specs import ENDPOINT, SubscriptionSpec, checked_name
from mulligan.notifications import deliveries as post
from mulligan.notifications.channel_registry import load_channel
from mulligan.notifications.channels import Channel
from mulligan.notifications.deliveries import Deliveries, Delivery, switch_off
from mulligan.notifications.message import message_id, message_of
from mulligan.notifications.rules import (
    SubscriptionBook,
    SubscriptionMatcher,
    checked_form,
    parsed_filter,
    split,
    types_of,
)
from mulligan.notifications.webhook import Webhook, new_secret
from mulligan.storage.base import Store, Transaction
from mulligan.storage.notification_queries import Mark, SubscriptionRow

# `app.notify`: a subscription as code declares it, checked where it is said.

STORED = "sub_"  # how the ids of stored subscriptions begin
LONGEST = 100  # characters of a name: it becomes part of a kind's


def spec_of(
    on: str | Sequence[str],
    to: Any,
    *,
    owner: str | None,
    name: str | None,
    form: str | None,
    words: str,
) -> SubscriptionSpec:
    channel = checked_channel(to)
    types_of(on)
    parsed_filter(words)
    patterns = tuple(split(on))
    named = name or _usual_name(patterns, owner, words, channel)
    if checked_name("subscription", named).startswith(STORED) or len(named) > LONGEST:
        message = f"subscription {named!r:.120}: a name has at most {LONGEST} characters and does not begin with {STORED}"
        raise ConfigError(message)
    return SubscriptionSpec(
        name=named,
        on=patterns,
        owner=None if owner is None else checked_text("owner", owner),
        filter=words,
        form=checked_form(form, usual_form(channel)),
        channel=channel.kind,
        endpoint=endpoint_key(channel),
        apart=owner is None and told_apart(channel),
    )


def checked_channel(to: Any) -> Channel:
    if not isinstance(to, Channel):
        message = f"to is a channel: Webhook(…), Email(…) or Apprise(…), not {to!r:.80}"
        raise ConfigError(message)
    return to


def usual_form(channel: Channel) -> str:
    """Programs want every event; people one message that grows."""
    return "each" if channel.kind == "webhook" else "incident"


def told_apart(channel: Channel) -> bool:
    """Who is told is a function of the message: owners then have addresses of their own."""
    return callable(getattr(channel, "to", None))


def _usual_name(patterns: Sequence[str], owner: str | None, words: str, channel: Channel) -> str:
    """The same for the same declaration, in every process that makes it."""
    said = "|".join([*patterns, owner or "", words, channel.kind, channel.endpoint])
    first = patterns[0].replace("*", "all")
    return (
        f"{first}-{channel.kind}-{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


# Which subscriptions there are now: those that are stored, and those that the manifests in force declare.

log = logging.getLogger("mulligan.notifications")

TRUST = 5 * SECOND  # for which what manifests declare is believed


class SubscriptionSources:
    """Read again when something about them has changed; a declared one that is new is always seen at once."""

    def __init__(self) -> None:
        self._book = SubscriptionBook(())
        self._mark: Mark = (0, 0, 0)
        self._read_at: Micros = 0

    def book(self, unit: Transaction, now: Micros) -> SubscriptionBook:
        mark = unit.subscriptions_mark()
        if mark != self._mark or abs(now - self._read_at) > TRUST:
            self._book = read_book(unit, now)
            self._mark, self._read_at = mark, now
        return self._book


def read_book(unit: Transaction, now: Micros) -> SubscriptionBook:
    rows = [row for row in unit.subscriptions() if row.state == "on"]
    declared = declared_subscriptions(unit, now) if any(row.declared for row in rows) else {}
    found = [_of_spec(row, declared.get(row.id)) if row.declared else of_row(row) for row in rows]
    return SubscriptionBook(one for one in found if one is not None)


def _of_spec(row: SubscriptionRow, spec: SubscriptionSpec | None) -> SubscriptionMatcher | None:
    if spec is None:
        return None
    return _made(
        row,
        ",".join(spec.on),
        spec.filter,
        owner=spec.owner,
        form=spec.form,
        channel=spec.channel,
        endpoint=spec.endpoint,
        apart=spec.apart,
        declared=True,
    )


def of_row(row: SubscriptionRow) -> SubscriptionMatcher | None:
    said = {"owner": row.owner, "form": row.form, "channel": row.channel, "endpoint": row.endpoint}
    return _made(row, row.patterns, row.filter, batch=row.batch_id, **said)


def _made(
    row: SubscriptionRow, patterns: str, words: str, **said: object
) -> SubscriptionMatcher | None:
    """A newer version may know events and fields that we do not: such a one is left to it."""
    try:
        types, filters = types_of(patterns), parsed_filter(words)
    except Exception:
        log.exception("subscription %s cannot be read, and is passed over", row.id)
        return None
    return SubscriptionMatcher(id=row.id, types=types, filter=filters, after=row.after, **said)  # type: ignore[arg-type]


def endpoint_key(channel: Channel) -> str:
    """The dependency that stands for an address: which channel, but not to where."""
    where = hashlib.sha256(channel.endpoint.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{ENDPOINT}{channel.kind}.{where}"


# `app.subscriptions`: who is told of what. Those that code declares are listed too, and can be switched off and on.

NAMED = 5
MOST = 100  # that one owner may have, beside those that code declares
TEST = "subscription.test"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Who is told of what, at one moment."""

    id: str
    name: str
    declared: bool  # in an app's code; else stored
    on: tuple[str, ...]
    owner: str | None  # None: whoever's
    batch: str | None
    filter: str
    form: str  # each, incident
    channel: str
    to: str  # without anything that is secret
    enabled: bool
    reason: str  # why it is not
    failures: int  # in a row
    failing_since: datetime | None
    created_at: datetime
    created_by: str
    secret: str | None = None  # of a webhook, when it was just made


Some = list[Subscription]  # the class below has a method called list


class Subscriptions:
    """With `owner`, another owner's subscription answers like one that does not exist."""

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python"
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self, *, owner: str | None = None) -> Some:
        """Those of one owner, or all of them."""
        with self._open().read() as unit:
            declared = declared_subscriptions(unit, unit.now())
            rows = [row for row in unit.subscriptions() if owner in (None, row.owner)]
        return [
            _shown(row, declared.get(row.id))
            for row in rows
            if not row.declared or row.id in declared
        ]

    def get(self, subscription: str, *, owner: str | None = None) -> Subscription:
        with self._open().read() as unit:
            return _view(unit, _found(unit, subscription, owner))

    def resolve(self, prefix: str) -> str:
        """A whole id, from as many of its first characters as make it unique."""
        with self._open().read() as unit:
            found = unit.find_subscriptions(prefix, NAMED + 1) if prefix else []
        if prefix in found or len(found) == 1:
            return prefix if prefix in found else found[0]
        if found:
            message = f"{prefix!r} begins more than one subscription: {', '.join(found[:NAMED])}; give more of it"
            raise NotFound(message)
        return prefix

    # -- by hand ----------------------------------------------------------------------------------
    def add(
        self,
        on: str | Sequence[str],
        to: Channel,
        *,
        owner: str | None = None,
        batch: Any = None,
        name: str = "",
        form: str | None = None,
        filter: str = "",  # noqa: A002 - CONTRACT's name
        reason: str = "",
    ) -> Subscription:
        """A stored one, which any worker can deliver. A webhook without a secret gets one: it is shown this once."""
        channel, secret = _with_secret(checked_channel(to))
        types_of(on)
        parsed_filter(filter)
        row = SubscriptionRow(
            id=f"{STORED}{new_id()}",
            declared=False,
            name=checked_text("name", name),
            patterns=",".join(split(on)),
            owner=None if owner is None else checked_text("owner", owner),
            batch_id=None,
            filter=filter,
            form=checked_form(form, usual_form(channel)),
            channel=channel.kind,
            body=json.dumps(channel.to_plain()),
            endpoint=endpoint_key(channel),
            after=0,
            state="on",
            reason="",
            version=1,
            failures=0,
            failing_since=None,
            created_at=0,
            created_by=self._actor,
        )
        with self._open().begin() as unit:
            _check_number(unit, row.owner)
            row = _of_batch(unit, row, batch)
            unit.new_subscription(row._replace(after=unit.newest_event()))
            row = _found(unit, row.id, None)
            self._tell(unit, EventType.SUBSCRIPTION_CREATED, row, {}, _facts(row), reason)
            return replace(_view(unit, row), secret=secret)

    def remove(self, subscription: str, *, owner: str | None = None, reason: str = "") -> None:
        """Messages that wait are not sent any more."""
        with self._open().begin() as unit:
            row = _found(unit, subscription, owner)
            if row.declared:
                message = f"subscription {row.id!r} is declared in code; remove it there, or switch it off here"
                raise Refused(message)
            unit.remove_subscription(row.id)
            self._tell(unit, EventType.SUBSCRIPTION_REMOVED, row, _facts(row), {}, reason)

    def enable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """It hears of what happens from now on."""
        with self._open().begin() as unit:
            row = _found(unit, subscription, owner)
            if row.state == "on":
                return _view(unit, row)
            on = row._replace(
                state="on", reason="", failures=0, failing_since=None, after=unit.newest_event()
            )
            self._change(
                unit, row, on, {"state": "off", "reason": row.reason}, {"state": "on"}, reason
            )
            return _view(unit, _found(unit, row.id, None))

    def disable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """Nothing is sent until `enable`, also nothing of what waits now."""
        with self._open().begin() as unit:
            row = _found(unit, subscription, owner)
            if row.state == "on" and not switch_off(
                unit, row, reason or f"by {self._actor}", self._actor
            ):
                raise Refused(_quicker(row.id))
            return _view(unit, _found(unit, row.id, None))

    def rotate(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """A new secret, shown this once. Messages are signed with it and with the last one, until the next rotation."""
        with self._open().begin() as unit:
            row = _found(unit, subscription, owner)
            if row.declared or row.channel != Webhook.kind:
                message = f"subscription {row.id!r} is no stored webhook: there is no secret here to be changed"
                raise Refused(message)
            webhook, secret = cast("Webhook", load_channel(json.loads(row.body))), new_secret()
            body = json.dumps(replace(webhook, secret=(secret, *webhook.secrets[:1])).to_plain())
            told = {"secret": "rotated"}
            self._change(unit, row, row._replace(body=body), {}, told, reason)
            return replace(_view(unit, _found(unit, row.id, None)), secret=secret)

    def test(self, subscription: str, *, owner: str | None = None) -> Delivery:
        """Send a message that says that it is a test; it takes the way of all others."""
        with self._open().begin() as unit:
            row, now = _found(unit, subscription, owner), unit.now()
            known = read_book(unit, now).by_id.get(row.id)
            if known is None:
                message = f"subscription {row.id!r} is switched off: {row.reason}; enable it first"
                raise Refused(message)
            event = Event(
                0,
                now,
                TEST,
                None,
                None,
                row.owner or "",
                None,
                None,
                self._actor,
                {"subscription": row.id},
            )
            told = replace(
                message_of(event, row.id, self._settings()), id=message_id(row.id, TEST, new_id())
            )
            job = post.delivery(known, told, row.owner or "")
            unit.insert([job], announce=True)
        return Deliveries(self._open, self._settings).get(job.id)

    # -- what changed -----------------------------------------------------------------------------
    def _change(
        self,
        unit: Transaction,
        row: SubscriptionRow,
        changed: SubscriptionRow,
        before: Any,
        after: Any,
        reason: str,
    ) -> None:
        if not unit.write_subscription(changed):
            raise Refused(_quicker(row.id))
        self._tell(unit, EventType.SUBSCRIPTION_CHANGED, row, before, after, reason)

    def _tell(
        self,
        unit: Transaction,
        kind: EventType,
        row: SubscriptionRow,
        before: Any,
        after: Any,
        reason: str,
    ) -> None:
        news = {"subscription": row.id, "name": row.name, "reason": reason}
        said = {name: value for name, value in news.items() if value} | {
            "before": before,
            "after": after,
        }
        event = NewEvent(
            kind, batch_id=row.batch_id, owner=row.owner or "", actor=self._actor, data=said
        )
        unit.write_events([event])


def _check_number(unit: Transaction, owner: str | None) -> None:
    """Every event is held against every subscription: one owner's must not slow down everybody's messages."""
    has = (
        0
        if owner is None
        else sum(row.owner == owner and not row.declared for row in unit.subscriptions())
    )
    if has >= MOST:
        message = f"owner {owner!r:.80} has {has} subscriptions, as many as an owner may have; remove one first"
        raise Refused(message)


def _quicker(subscription: str) -> str:
    return f"subscription {subscription!r} was changed by somebody else just now; look at it, and say it again"


def _with_secret(channel: Channel) -> tuple[Channel, str | None]:
    if not channel.storable:
        message = f"a {channel.kind} channel with functions cannot be stored: declare it in the app's code, with app.notify"
        raise Refused(message)
    if not isinstance(channel, Webhook) or channel.secrets:
        return channel, None
    secret = new_secret()
    return replace(channel, secret=secret), secret


def _of_batch(unit: Transaction, row: SubscriptionRow, batch: Any) -> SubscriptionRow:
    """Of a batch of somebody: its owner's."""
    if batch is None:
        return row
    name = checked_text("batch", getattr(batch, "id", batch), least=1)
    found = unit.batch(name)
    if found is None or row.owner not in (None, found.owner):
        message = f"no batch {name!r}"
        raise NotFound(message)
    return row._replace(batch_id=found.id, owner=found.owner or row.owner)


def _found(unit: Transaction, subscription: str, owner: str | None) -> SubscriptionRow:
    row = unit.subscription(subscription)
    if row is None or owner not in (None, row.owner):
        message = f"no subscription {subscription!r}"
        raise NotFound(message)
    return row


# -- the picture --------------------------------------------------------------------------------------
def _view(unit: Transaction, row: SubscriptionRow) -> Subscription:
    spec = declared_subscriptions(unit, unit.now()).get(row.id) if row.declared else None
    return _shown(row, spec)


def _shown(row: SubscriptionRow, spec: SubscriptionSpec | None) -> Subscription:
    created = moment_of(row.created_at)
    assert created is not None  # noqa: S101 - every row has its time
    return Subscription(
        id=row.id,
        name=row.name,
        declared=row.declared,
        on=tuple(row.patterns.split(",")) if spec is None else spec.on,
        owner=row.owner if spec is None else spec.owner,
        batch=row.batch_id,
        filter=row.filter if spec is None else spec.filter,
        form=row.form if spec is None else spec.form,
        channel=row.channel if spec is None else spec.channel,
        to=where(json.loads(row.body)),
        enabled=row.state == "on",
        reason=row.reason,
        failures=row.failures,
        failing_since=moment_of(row.failing_since),
        created_at=created,
        created_by=row.created_by,
    )


def where(body: Mapping[str, Any]) -> str:
    """To where, without anything that is secret; of a declared one only its app knows."""
    if body.get("channel") == "webhook":
        return Webhook.from_plain(body).endpoint
    if body.get("channel") == "email":
        return ", ".join(body.get("to", ()))
    return ", ".join(sorted({f"{url.partition(':')[0]}://…" for url in body.get("urls", ())}))


def _facts(row: SubscriptionRow) -> dict[str, Any]:
    said = {
        "on": row.patterns,
        "owner": row.owner,
        "batch": row.batch_id,
        "filter": row.filter,
        "form": row.form,
        "channel": row.channel,
        "to": where(json.loads(row.body)),
        "state": row.state,
    }
    return {name: value for name, value in said.items() if value not in (None, "")}


class AsyncSubscriptions:
    """The same, awaitable: each call on a thread."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    async def list(self, *, owner: str | None = None) -> Some:
        return await asyncio.to_thread(self._subscriptions.list, owner=owner)

    async def get(self, subscription: str, *, owner: str | None = None) -> Subscription:
        return await asyncio.to_thread(self._subscriptions.get, subscription, owner=owner)

    async def add(self, on: str | Sequence[str], to: Channel, **said: Any) -> Subscription:
        return await asyncio.to_thread(self._subscriptions.add, on, to, **said)

    async def remove(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> None:
        await asyncio.to_thread(
            self._subscriptions.remove, subscription, owner=owner, reason=reason
        )

    async def enable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        return await asyncio.to_thread(
            self._subscriptions.enable, subscription, owner=owner, reason=reason
        )

    async def disable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        return await asyncio.to_thread(
            self._subscriptions.disable, subscription, owner=owner, reason=reason
        )

    async def rotate(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        return await asyncio.to_thread(
            self._subscriptions.rotate, subscription, owner=owner, reason=reason
        )

    async def test(self, subscription: str, *, owner: str | None = None) -> Delivery:
        return await asyncio.to_thread(self._subscriptions.test, subscription, owner=owner)

"""Subscriptions: which events are sent to which channel.

A subscription is declared in code with `app.notify`, or stored with `app.subscriptions.add`. Both
are listed here and can be disabled and enabled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from mulligan.batches.queries import BatchQueries
from mulligan.config import Settings
from mulligan.core.durations import SECOND, Micros, optional_datetime, to_datetime
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.core.format import check_text
from mulligan.core.ids import new_id
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.declared import load_declared_subscriptions
from mulligan.manifest.specs import ENDPOINT_PREFIX, SubscriptionSpec, check_name
from mulligan.notifications.channels import (
    Channel,
    channel_class,
    check_channel,
    default_form,
    find_obstacle,
    load_channel,
)
from mulligan.notifications.deliveries import (
    Deliveries,
    Delivery,
    build_delivery_job,
    disable_subscription,
)
from mulligan.notifications.message import build_event_message, derive_message_id
from mulligan.notifications.queries import (
    NotificationQueries,
    SubscriptionRow,
    SubscriptionsVersion,
)
from mulligan.notifications.rules import (
    Reaction,
    SubscriptionIndex,
    SubscriptionMatcher,
    check_form,
    expand_patterns,
    parse_filter,
    split_patterns,
)
from mulligan.notifications.webhook import Webhook, new_secret
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.notifications")


# --- Declaring a subscription in code: app.notify ---

STORED_PREFIX = "sub_"  # of the ids of stored subscriptions
MAX_NAME = 100  # characters; the name becomes part of a kind's name


def build_subscription_spec(
    on: str | Sequence[str],
    to: Any,
    *,
    owner: str | None,
    name: str | None,
    form: str | None,
    filter_text: str,
) -> SubscriptionSpec:
    """Check the arguments of `app.notify` and return the subscription for the manifest."""
    channel = check_channel(to)
    expand_patterns(on)
    parse_filter(filter_text)
    patterns = tuple(split_patterns(on))
    name = name or _default_name(patterns, owner, filter_text, channel)
    check_name("subscription", name)
    if name.startswith(STORED_PREFIX) or len(name) > MAX_NAME:
        message = (
            f"invalid subscription name {name!r:.120}. "
            f"Use at most {MAX_NAME} characters that do not start with {STORED_PREFIX}."
        )
        raise ConfigError(message)
    if owner is not None:
        owner = check_text("owner", owner)
    return SubscriptionSpec(
        name=name,
        on=patterns,
        owner=owner,
        filter=filter_text,
        form=check_form(form, default_form(channel)),
        channel=channel.kind,
        endpoint=endpoint_key(channel),
        per_owner=owner is None and has_computed_recipients(channel),
    )


def has_computed_recipients(channel: Channel) -> bool:
    """Return whether recipients depend on the message, so that owners get separate messages."""
    return callable(getattr(channel, "to", None))


def _default_name(
    patterns: Sequence[str], owner: str | None, filter_text: str, channel: Channel
) -> str:
    """Return a name that every process derives from the same declaration."""
    text = "|".join([*patterns, owner or "", filter_text, channel.kind, channel.endpoint])
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    first_pattern = patterns[0].replace("*", "all")
    return f"{first_pattern}-{channel.kind}-{digest}"


def endpoint_key(channel: Channel) -> str:
    """Return the dependency of a channel's endpoint. It reveals the channel, not the address."""
    digest = hashlib.sha256(channel.endpoint.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{ENDPOINT_PREFIX}{channel.kind}.{digest}"


# --- Active subscriptions, as the dispatcher reads them ---

CACHE_TIME = 5 * SECOND  # for declared subscriptions, which disappear without a write


class SubscriptionCache:
    """Active subscriptions, reloaded when one was added or changed and every few seconds."""

    def __init__(self) -> None:
        self._index = SubscriptionIndex(())
        self._version: SubscriptionsVersion = (0, 0, 0)
        self._loaded_at: Micros = 0

    def load(self, tx: Transaction, now: Micros) -> SubscriptionIndex:
        """Return the active subscriptions."""
        version = NotificationQueries(tx).subscriptions_version()
        if version != self._version or abs(now - self._loaded_at) > CACHE_TIME:
            self._index = load_subscriptions(tx, now)
            self._version = version
            self._loaded_at = now
        return self._index


def load_subscriptions(tx: Transaction, now: Micros) -> SubscriptionIndex:
    """Load the enabled subscriptions: stored ones, and those that current manifests declare."""
    rows = [row for row in NotificationQueries(tx).list_subscriptions() if row.state == "on"]
    specs: Mapping[str, SubscriptionSpec] = {}
    if any(row.declared for row in rows):
        specs = load_declared_subscriptions(tx, now)
    matchers = [_build_matcher(row, specs.get(row.id)) for row in rows]
    return SubscriptionIndex(matcher for matcher in matchers if matcher is not None)


def find_obstacles(
    subscriptions: SubscriptionIndex, settings: Settings
) -> Iterator[tuple[SubscriptionMatcher, str]]:
    """Yield the subscriptions whose channel cannot send, and why."""
    for matcher in subscriptions.by_id.values():
        obstacle = find_obstacle(matcher.channel, settings)
        if obstacle:
            yield matcher, obstacle


def _build_matcher(
    row: SubscriptionRow, spec: SubscriptionSpec | None
) -> SubscriptionMatcher | None:
    """Return the matcher of a subscription; None if it is not declared any more or unreadable.

    A newer version may use events and fields that this one does not know.
    """
    if row.declared and spec is None:
        return None
    try:
        return _matcher_of_row(row) if spec is None else _matcher_of_spec(row, spec)
    except Exception:
        log.exception("skipping subscription %s: it cannot be read", row.id)
        return None


def _matcher_of_spec(row: SubscriptionRow, spec: SubscriptionSpec) -> SubscriptionMatcher:
    reaction = None
    if spec.kind:
        reaction = Reaction(spec.kind, spec.queue, spec.priority)
    return SubscriptionMatcher(
        id=row.id,
        types=expand_patterns(",".join(spec.on)),
        owner=spec.owner,
        filter=parse_filter(spec.filter),
        form=spec.form,
        channel=spec.channel,
        endpoint=spec.endpoint,
        per_owner=spec.per_owner,
        after=row.after,
        declared=True,
        reaction=reaction,
    )


def _matcher_of_row(row: SubscriptionRow) -> SubscriptionMatcher:
    return SubscriptionMatcher(
        id=row.id,
        types=expand_patterns(row.patterns),
        owner=row.owner,
        batch=row.batch_id,
        filter=parse_filter(row.filter),
        form=row.form,
        channel=row.channel,
        endpoint=row.endpoint,
        after=row.after,
    )


# --- app.subscriptions ---

MAX_CANDIDATES = 5  # ids that an error names
MAX_PER_OWNER = 100  # stored subscriptions
TEST_EVENT = "subscription.test"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, as of when it was read."""

    id: str
    name: str
    declared: bool  # in an app's code; otherwise stored
    on: tuple[str, ...]
    owner: str | None  # None: every owner
    batch: str | None
    filter: str
    form: str  # each, incident
    channel: str
    to: str  # without secrets
    enabled: bool
    reason: str  # why it is disabled
    failures: int  # in a row
    failing_since: datetime | None
    created_at: datetime
    created_by: str
    secret: str | None = None  # of a webhook, only right after it was created


SubscriptionList = list[Subscription]  # the class below has a method called list


class Subscriptions:
    """Lists and changes subscriptions.

    With `owner`, a subscription of another owner is treated as if it did not exist.
    """

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python"
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    def list(self, *, owner: str | None = None) -> SubscriptionList:
        """List all subscriptions, or those of one owner."""
        with self._open().read() as tx:
            specs = load_declared_subscriptions(tx, tx.now())
            rows = [
                row
                for row in NotificationQueries(tx).list_subscriptions()
                if owner in (None, row.owner)
            ]
        active = [row for row in rows if not row.declared or row.id in specs]
        return [_build_subscription(row, specs.get(row.id)) for row in active]

    def get(self, subscription: str, *, owner: str | None = None) -> Subscription:
        """Return one subscription. Raises `NotFound`."""
        with self._open().read() as tx:
            return _load_subscription(tx, _find_row(tx, subscription, owner))

    def resolve(self, prefix: str) -> str:
        """Return the only id that starts with `prefix`, or `prefix` if there is none."""
        if not prefix:
            return prefix
        with self._open().read() as tx:
            found = NotificationQueries(tx).find_subscriptions(prefix, MAX_CANDIDATES + 1)
        if prefix in found or not found:
            return prefix
        if len(found) == 1:
            return found[0]
        candidates = ", ".join(found[:MAX_CANDIDATES])
        message = (
            f"{prefix!r} is the start of several subscriptions: {candidates}. Type more of it."
        )
        raise NotFound(message)

    def add(
        self,
        on: str | Sequence[str],
        to: Channel,
        *,
        owner: str | None = None,
        batch: Any = None,
        name: str = "",
        form: str | None = None,
        filter: str = "",  # noqa: A002 - the public name
        reason: str = "",
    ) -> Subscription:
        """Store a subscription that any worker can deliver.

        A webhook without a secret gets one, which only this call returns.
        """
        channel, secret = _add_secret(check_channel(to))
        expand_patterns(on)
        parse_filter(filter)
        if owner is not None:
            owner = check_text("owner", owner)
        row = SubscriptionRow(
            id=f"{STORED_PREFIX}{new_id()}",
            declared=False,
            name=check_text("name", name),
            patterns=",".join(split_patterns(on)),
            owner=owner,
            batch_id=None,
            filter=filter,
            form=check_form(form, default_form(channel)),
            channel=channel.kind,
            body=json.dumps(channel.to_dict()),
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
        with self._open().begin() as tx:
            _check_owner_limit(tx, row.owner)
            row = _restrict_to_batch(tx, row, batch)
            NotificationQueries(tx).insert_subscription(
                row._replace(after=EventQueries(tx).newest_event())
            )
            row = _find_row(tx, row.id, None)
            after = _describe_row(row)
            self._write_event(tx, EventType.SUBSCRIPTION_CREATED, row, {}, after, reason)
            return replace(_load_subscription(tx, row), secret=secret)

    def remove(self, subscription: str, *, owner: str | None = None, reason: str = "") -> None:
        """Remove a stored subscription. Its waiting deliveries are cancelled."""
        with self._open().begin() as tx:
            row = _find_row(tx, subscription, owner)
            if row.declared:
                message = (
                    f"subscription {row.id!r} is declared in code. "
                    "Remove it there, or disable it here."
                )
                raise Refused(message)
            NotificationQueries(tx).delete_subscription(row.id)
            before = _describe_row(row)
            self._write_event(tx, EventType.SUBSCRIPTION_REMOVED, row, before, {}, reason)

    def enable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """Enable a subscription. It gets the events from now on."""
        with self._open().begin() as tx:
            row = _find_row(tx, subscription, owner)
            if row.state == "on":
                return _load_subscription(tx, row)
            enabled = row._replace(
                state="on",
                reason="",
                failures=0,
                failing_since=None,
                after=EventQueries(tx).newest_event(),
            )
            before = {"state": "off", "reason": row.reason}
            self._change(tx, row, enabled, before, {"state": "on"}, reason)
            return _load_subscription(tx, _find_row(tx, row.id, None))

    def disable(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """Disable a subscription. Its waiting deliveries are cancelled."""
        with self._open().begin() as tx:
            row = _find_row(tx, subscription, owner)
            if row.state == "on":
                reason = reason or f"by {self._actor}"
                if not disable_subscription(tx, row, reason, self._actor):
                    raise Refused(_conflict_message(row.id))
            return _load_subscription(tx, _find_row(tx, row.id, None))

    def rotate(
        self, subscription: str, *, owner: str | None = None, reason: str = ""
    ) -> Subscription:
        """Give a stored webhook a new secret, which only this call returns.

        Messages are signed with the new and the previous secret until the next rotation.
        """
        with self._open().begin() as tx:
            row = _find_row(tx, subscription, owner)
            if row.declared or row.channel != Webhook.kind:
                message = f"subscription {row.id!r} is not a stored webhook and has no secret here"
                raise Refused(message)
            webhook = cast("Webhook", load_channel(json.loads(row.body)))
            secret = new_secret()
            rotated = replace(webhook, secret=(secret, *webhook.secrets[:1]))
            changed = row._replace(body=json.dumps(rotated.to_dict()))
            self._change(tx, row, changed, {}, {"secret": "rotated"}, reason)
            return replace(_load_subscription(tx, _find_row(tx, row.id, None)), secret=secret)

    def test(self, subscription: str, *, owner: str | None = None) -> Delivery:
        """Send a test message through the normal delivery path."""
        with self._open().begin() as tx:
            row = _find_row(tx, subscription, owner)
            now = tx.now()
            matcher = load_subscriptions(tx, now).by_id.get(row.id)
            if matcher is None:
                message = f"subscription {row.id!r} is disabled: {row.reason}. Enable it first."
                raise Refused(message)
            if matcher.reaction is not None:
                message = f"{row.id!r} is a reaction and sends no message. Call its function."
                raise Refused(message)
            event = self._build_test_event(row, now)
            message_id = derive_message_id(row.id, TEST_EVENT, new_id())
            test_message = build_event_message(event, row.id, self._settings())
            test_message = replace(test_message, id=message_id)
            job = build_delivery_job(matcher, test_message, row.owner or "")
            JobQueries(tx).insert_jobs([job], announce=True)
        return Deliveries(self._open, self._settings).get(job.id)

    def _build_test_event(self, row: SubscriptionRow, now: Micros) -> Event:
        return Event(
            id=0,
            at=now,
            type=TEST_EVENT,
            job_id=None,
            batch_id=None,
            owner=row.owner or "",
            attempt=None,
            token=None,
            actor=self._actor,
            data={"subscription": row.id},
        )

    def _change(
        self,
        tx: Transaction,
        row: SubscriptionRow,
        changed: SubscriptionRow,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        reason: str,
    ) -> None:
        if not NotificationQueries(tx).update_subscription(changed):
            raise Refused(_conflict_message(row.id))
        self._write_event(tx, EventType.SUBSCRIPTION_CHANGED, row, before, after, reason)

    def _write_event(
        self,
        tx: Transaction,
        type_: EventType,
        row: SubscriptionRow,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        reason: str,
    ) -> None:
        data: dict[str, Any] = {"subscription": row.id}
        if row.name:
            data["name"] = row.name
        if reason:
            data["reason"] = reason
        data["before"] = before
        data["after"] = after
        event = NewEvent(
            type_, batch_id=row.batch_id, owner=row.owner or "", actor=self._actor, data=data
        )
        EventQueries(tx).write_events([event])


def _check_owner_limit(tx: Transaction, owner: str | None) -> None:
    """Refuse too many subscriptions of one owner: they would slow down everybody's messages."""
    if owner is None:
        return
    count = sum(
        row.owner == owner and not row.declared
        for row in NotificationQueries(tx).list_subscriptions()
    )
    if count >= MAX_PER_OWNER:
        message = f"owner {owner!r:.80} has {count} subscriptions, the maximum. Remove one first."
        raise Refused(message)


def _conflict_message(subscription: str) -> str:
    return f"subscription {subscription!r} was changed by another request. Check it and try again."


def _add_secret(channel: Channel) -> tuple[Channel, str | None]:
    """Return the channel, with a new secret if it is a webhook without one, and that secret."""
    if not channel.storable:
        message = (
            f"a {channel.kind} channel with functions or allow_private cannot be stored. "
            "Declare it in code with app.notify."
        )
        raise Refused(message)
    if not isinstance(channel, Webhook) or channel.secrets:
        return channel, None
    secret = new_secret()
    return replace(channel, secret=secret), secret


def _restrict_to_batch(tx: Transaction, row: SubscriptionRow, batch: Any) -> SubscriptionRow:
    """Restrict a subscription to a batch and its owner. Raises `NotFound` for another owner's."""
    if batch is None:
        return row
    batch_id = check_text("batch", getattr(batch, "id", batch), min_length=1)
    found = BatchQueries(tx).get_batch(batch_id)
    if found is None or row.owner not in (None, found.owner):
        message = f"unknown batch {batch_id!r}"
        raise NotFound(message)
    return row._replace(batch_id=found.id, owner=found.owner or row.owner)


def _find_row(tx: Transaction, subscription: str, owner: str | None) -> SubscriptionRow:
    row = NotificationQueries(tx).get_subscription(subscription)
    if row is None or owner not in (None, row.owner):
        message = f'unknown subscription {subscription!r}. Run "mulligan notify list" to see them.'
        raise NotFound(message)
    return row


def _load_subscription(tx: Transaction, row: SubscriptionRow) -> Subscription:
    spec = None
    if row.declared:
        spec = load_declared_subscriptions(tx, tx.now()).get(row.id)
    return _build_subscription(row, spec)


def _build_subscription(row: SubscriptionRow, spec: SubscriptionSpec | None) -> Subscription:
    subscription = Subscription(
        id=row.id,
        name=row.name,
        declared=row.declared,
        on=tuple(row.patterns.split(",")),
        owner=row.owner,
        batch=row.batch_id,
        filter=row.filter,
        form=row.form,
        channel=row.channel,
        to=_describe_target(row),
        enabled=row.state == "on",
        reason=row.reason,
        failures=row.failures,
        failing_since=optional_datetime(row.failing_since),
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
    )
    if spec is None:
        return subscription
    return replace(
        subscription,
        on=spec.on,
        owner=spec.owner,
        filter=spec.filter,
        form=spec.form,
        channel=spec.channel,
    )


def _describe_target(row: SubscriptionRow) -> str:
    """Describe where a subscription sends to. Empty for one that is declared in code."""
    body = json.loads(row.body)
    return channel_class(row.channel).describe_target(body) if body else ""


def _describe_row(row: SubscriptionRow) -> dict[str, Any]:
    values = {
        "on": row.patterns,
        "owner": row.owner,
        "batch": row.batch_id,
        "filter": row.filter,
        "form": row.form,
        "channel": row.channel,
        "to": _describe_target(row),
        "state": row.state,
    }
    return {name: value for name, value in values.items() if value not in (None, "")}

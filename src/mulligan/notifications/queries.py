"""Statements about subscriptions, incidents and message counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries

SubscriptionsVersion = tuple[int, int, int]  # changes with every change of a subscription


class SubscriptionRow(NamedTuple):
    """Subscription as stored. The definition of a declared one is in its app's manifest."""

    id: str
    declared: bool
    name: str
    patterns: str  # patterns of event types, comma separated
    owner: str | None  # None: all owners
    batch_id: str | None
    filter: str
    form: str  # each, incident
    channel: str
    body: str  # JSON: the channel, with its secrets
    endpoint: str  # dependency of its deliveries
    after: int  # it receives events after this one
    state: str  # on, off
    reason: str  # why it is off
    version: int
    failures: int  # in a row
    failing_since: Micros | None
    created_at: Micros
    created_by: str


class EarlierDelivery(NamedTuple):
    """Delivery that must end before a later one of its thread starts."""

    state: str
    run_at: Micros


class IncidentRow(NamedTuple):
    """Failures that are reported as one."""

    id: str
    subscription: str
    owner: str
    key: str  # failure group or batch
    batch_id: str  # if each batch has its own incident of the cause; empty otherwise
    body: str  # JSON
    due_at: Micros
    opened_at: Micros
    closed_at: Micros | None


class MessageCountRow(NamedTuple):
    """Number of messages that a subscription sent to an owner within an hour."""

    subscription: str
    owner: str
    since: Micros
    sent: int
    withheld: int


class NotificationQueries(Queries):
    """Statements about notifications, in a transaction."""

    def list_subscriptions(self) -> list[SubscriptionRow]:
        """List all subscriptions."""
        return [_parse_subscription(row) for row in self.tx.rows("list_subscriptions")]

    def subscriptions_version(self) -> SubscriptionsVersion:
        """Return a value that changes with every change of a subscription."""
        count, versions, times = self.tx.rows("subscriptions_version")[0]
        return count, versions, times

    def get_subscription(self, subscription: str) -> SubscriptionRow | None:
        """Read one subscription."""
        found = self.tx.rows("get_subscription", id=subscription)
        return _parse_subscription(found[0]) if found else None

    def find_subscriptions(self, prefix: str, limit: int) -> list[str]:
        """List ids that start with `prefix`."""
        found = self.tx.rows("find_subscriptions", prefix=prefix, upper=f"{prefix}~", limit=limit)
        return [row[0] for row in found]

    def insert_subscription(self, row: SubscriptionRow) -> bool:
        """Insert a subscription. False: the id exists."""
        params = row._asdict()
        del params["created_at"]  # set by the database
        return bool(self.tx.rows("insert_subscription", **params))

    def update_subscription(self, row: SubscriptionRow) -> bool:
        """Store channel and state by compare-and-set on the version."""
        params = {name: getattr(row, name) for name in _UPDATED_FIELDS}
        return bool(self.tx.rows("update_subscription", **params))

    def delete_subscription(self, subscription: str) -> bool:
        """Delete a subscription and close its incidents. False: it does not exist."""
        self.tx.rows("close_incidents", subscription=subscription)
        return bool(self.tx.rows("delete_subscription", id=subscription))

    def record_delivery(self, subscription: str) -> None:
        """Reset the failure count of a subscription."""
        self.tx.rows("record_delivery", id=subscription)

    def record_failed_delivery(self, subscription: str) -> SubscriptionRow | None:
        """Count a failed delivery. Return the subscription. None: it was deleted."""
        found = self.tx.rows("record_failed_delivery", id=subscription)
        return _parse_subscription(found[0]) if found else None

    def find_earlier_delivery(
        self, job_id: str, subscription: str, path: str, thread: str
    ) -> EarlierDelivery | None:
        """Return an unfinished delivery of the thread that was enqueued before this one.

        `path`: the indexed payload field that holds the thread.
        """
        return self.first_row(
            EarlierDelivery,
            "find_earlier_delivery",
            id=job_id,
            subscription=subscription,
            path=path,
            thread=thread,
        )

    def list_open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]:
        """List open incidents of these causes or batches."""
        if not keys:
            return []
        return self.list_rows(IncidentRow, "list_open_incidents", keys=self.tx.array_param(keys))

    def list_due_incidents(self, now: Micros, limit: int) -> list[IncidentRow]:
        """List open incidents that are due."""
        return self.list_rows(IncidentRow, "list_due_incidents", at_time=now, limit=limit)

    def next_incident_due(self) -> Micros | None:
        """Return when the next open incident is due."""
        found: Micros | None = self.tx.rows("next_incident_due")[0][0]
        return found

    def list_incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        """List incidents, newest first."""
        return self.list_rows(IncidentRow, "list_incidents", subscription=subscription, limit=limit)

    def insert_incident(self, row: IncidentRow) -> None:
        """Insert an incident."""
        self.tx.rows("insert_incident", **row._asdict())

    def update_incident(self, row: IncidentRow) -> None:
        """Store an incident."""
        self.tx.rows(
            "update_incident", id=row.id, body=row.body, due_at=row.due_at, closed_at=row.closed_at
        )

    def get_message_count(self, subscription: str, owner: str) -> MessageCountRow | None:
        """Read the message count of a subscription and owner."""
        return self.first_row(
            MessageCountRow, "get_message_count", subscription=subscription, owner=owner
        )

    def list_message_counts(self, before: Micros, limit: int) -> list[MessageCountRow]:
        """List message counts whose hour began before a time."""
        return self.list_rows(MessageCountRow, "list_message_counts", before=before, limit=limit)

    def oldest_message_count(self) -> Micros | None:
        """Return when the oldest hour began."""
        found: Micros | None = self.tx.rows("oldest_message_count")[0][0]
        return found

    def write_message_count(self, row: MessageCountRow) -> None:
        """Store a message count."""
        self.tx.rows("write_message_count", **row._asdict())

    def delete_message_count(self, subscription: str, owner: str) -> None:
        """Delete a message count."""
        self.tx.rows("delete_message_count", subscription=subscription, owner=owner)


_UPDATED_FIELDS = ("id", "version", "body", "after", "state", "reason", "failures", "failing_since")


def _parse_subscription(row: tuple[Any, ...]) -> SubscriptionRow:
    found = SubscriptionRow._make(row)
    return found._replace(declared=bool(found.declared))

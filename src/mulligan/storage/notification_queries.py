"""Statements about readers of the event log, subscriptions, incidents and message counts.

A reader's row is its lease: the worker that has locked it reads, the others skip it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event

SubscriptionsVersion = tuple[int, int, int]  # changes with every change of a subscription


class ReaderRow(NamedTuple):
    """Position of a consumer of the event log."""

    name: str
    cursor: int
    body: str
    updated_at: Micros


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


class IncidentRow(NamedTuple):
    """Failures that are reported as one."""

    id: str
    subscription: str
    owner: str
    key: str  # failure group or batch
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


class NotificationQueries(ABC):
    """Part of `Transaction`."""

    # --- Readers ---
    @abstractmethod
    def lock_reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        """Lock a reader until the commit. None: another worker has locked it.

        The first call creates it: at `start`, or at the newest event.
        """

    @abstractmethod
    def get_reader(self, name: str) -> ReaderRow | None:
        """Read the position of a reader. None: it does not exist."""

    @abstractmethod
    def advance_reader(self, name: str, cursor: int, body: str = "") -> None:
        """Store the position of a locked reader."""

    @abstractmethod
    def list_events_of_types(
        self, types: Sequence[str], cursor: int, top: int, limit: int
    ) -> list[Event]:
        """List events of these types in order. `top` must not be above `newest_event()`."""

    @abstractmethod
    def get_kinds_and_queues(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return (kind, queue) of jobs."""

    # --- Subscriptions ---
    @abstractmethod
    def list_subscriptions(self) -> list[SubscriptionRow]:
        """List all subscriptions."""

    @abstractmethod
    def subscriptions_version(self) -> SubscriptionsVersion:
        """Return a value that changes with every change of a subscription."""

    @abstractmethod
    def get_subscription(self, subscription: str) -> SubscriptionRow | None:
        """Read one subscription."""

    @abstractmethod
    def find_subscriptions(self, prefix: str, limit: int) -> list[str]:
        """List ids that start with `prefix`."""

    @abstractmethod
    def insert_subscription(self, row: SubscriptionRow) -> bool:
        """Insert a subscription. False: the id exists."""

    @abstractmethod
    def update_subscription(self, row: SubscriptionRow) -> bool:
        """Store channel and state by compare-and-set on the version."""

    @abstractmethod
    def delete_subscription(self, subscription: str) -> bool:
        """Delete a subscription and close its incidents. False: it does not exist."""

    @abstractmethod
    def delete_orphaned_subscriptions(self, before: Micros) -> int:
        """Delete subscriptions of batches that were deleted."""

    @abstractmethod
    def record_delivery(self, subscription: str) -> None:
        """Reset the failure count of a subscription."""

    @abstractmethod
    def record_failed_delivery(self, subscription: str) -> SubscriptionRow | None:
        """Count a failed delivery. Return the subscription. None: it was deleted."""

    # --- Incidents ---
    @abstractmethod
    def list_open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]:
        """List open incidents of these causes."""

    @abstractmethod
    def list_due_incidents(self, now: Micros, limit: int) -> list[IncidentRow]:
        """List open incidents that are due."""

    @abstractmethod
    def next_incident_due(self) -> Micros | None:
        """Return when the next open incident is due."""

    @abstractmethod
    def list_incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        """List incidents, newest first."""

    @abstractmethod
    def insert_incident(self, row: IncidentRow) -> None:
        """Insert an incident."""

    @abstractmethod
    def update_incident(self, row: IncidentRow) -> None:
        """Store an incident."""

    @abstractmethod
    def prune_incidents(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` incidents that were closed before a time."""

    # --- Message counts ---
    @abstractmethod
    def get_message_count(self, subscription: str, owner: str) -> MessageCountRow | None:
        """Read the message count of a subscription and owner."""

    @abstractmethod
    def list_message_counts(self, before: Micros, limit: int) -> list[MessageCountRow]:
        """List message counts whose hour began before a time."""

    @abstractmethod
    def oldest_message_count(self) -> Micros | None:
        """Return when the oldest hour began."""

    @abstractmethod
    def write_message_count(self, row: MessageCountRow) -> None:
        """Store a message count."""

    @abstractmethod
    def delete_message_count(self, subscription: str, owner: str) -> None:
        """Delete a message count."""


class SqlNotificationQueries(NotificationQueries):
    """NotificationQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    @abstractmethod
    def newest_event(self, above: int = -1) -> int: ...

    @abstractmethod
    def events_in_range(
        self, statement: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        """List events with ids above `cursor` and not above `top`."""

    def lock_reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        found = self.rows("lock_reader", name=name)
        if not found and not self.rows("get_reader", name=name):
            cursor = self.newest_event() if start is None else start
            self.rows("insert_reader", name=name, cursor=cursor)
            found = self.rows("lock_reader", name=name)
        return ReaderRow._make(found[0][:4]) if found else None

    def get_reader(self, name: str) -> ReaderRow | None:
        found = self.rows("get_reader", name=name)
        return ReaderRow._make(found[0]) if found else None

    def advance_reader(self, name: str, cursor: int, body: str = "") -> None:
        self.rows("advance_reader", name=name, cursor=cursor, body=body)

    def list_events_of_types(
        self, types: Sequence[str], cursor: int, top: int, limit: int
    ) -> list[Event]:
        return self.events_in_range(
            "list_events_of_types", cursor, top, limit, types=self.array_param(types)
        )

    def get_kinds_and_queues(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        found = self.rows("get_kinds_and_queues", ids=self.array_param(ids)) if ids else []
        return {job_id: (kind, queue) for job_id, kind, queue in found}

    def list_subscriptions(self) -> list[SubscriptionRow]:
        return [_parse_subscription(row) for row in self.rows("list_subscriptions")]

    def subscriptions_version(self) -> SubscriptionsVersion:
        count, versions, times = self.rows("subscriptions_version")[0]
        return count, versions, times

    def get_subscription(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("get_subscription", id=subscription)
        return _parse_subscription(found[0]) if found else None

    def find_subscriptions(self, prefix: str, limit: int) -> list[str]:
        found = self.rows("find_subscriptions", prefix=prefix, upper=f"{prefix}~", limit=limit)
        return [row[0] for row in found]

    def insert_subscription(self, row: SubscriptionRow) -> bool:
        params = row._asdict()
        del params["created_at"]  # set by the database
        return bool(self.rows("insert_subscription", **params))

    def update_subscription(self, row: SubscriptionRow) -> bool:
        params = {name: getattr(row, name) for name in _UPDATED_FIELDS}
        return bool(self.rows("update_subscription", **params))

    def delete_subscription(self, subscription: str) -> bool:
        self.rows("close_incidents", subscription=subscription)
        return bool(self.rows("delete_subscription", id=subscription))

    def delete_orphaned_subscriptions(self, before: Micros) -> int:
        return len(self.rows("delete_orphaned_subscriptions", before=before))

    def record_delivery(self, subscription: str) -> None:
        self.rows("record_delivery", id=subscription)

    def record_failed_delivery(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("record_failed_delivery", id=subscription)
        return _parse_subscription(found[0]) if found else None

    def list_open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]:
        found = self.rows("list_open_incidents", keys=self.array_param(keys)) if keys else []
        return [IncidentRow._make(row) for row in found]

    def list_due_incidents(self, now: Micros, limit: int) -> list[IncidentRow]:
        return [
            IncidentRow._make(row)
            for row in self.rows("list_due_incidents", at_time=now, limit=limit)
        ]

    def next_incident_due(self) -> Micros | None:
        found: Micros | None = self.rows("next_incident_due")[0][0]
        return found

    def list_incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        found = self.rows("list_incidents", subscription=subscription, limit=limit)
        return [IncidentRow._make(row) for row in found]

    def insert_incident(self, row: IncidentRow) -> None:
        self.rows("insert_incident", **row._asdict())

    def update_incident(self, row: IncidentRow) -> None:
        self.rows(
            "update_incident", id=row.id, body=row.body, due_at=row.due_at, closed_at=row.closed_at
        )

    def prune_incidents(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_incidents", before=before, limit=limit))

    def get_message_count(self, subscription: str, owner: str) -> MessageCountRow | None:
        found = self.rows("get_message_count", subscription=subscription, owner=owner)
        return MessageCountRow._make(found[0]) if found else None

    def list_message_counts(self, before: Micros, limit: int) -> list[MessageCountRow]:
        return [
            MessageCountRow._make(row)
            for row in self.rows("list_message_counts", before=before, limit=limit)
        ]

    def oldest_message_count(self) -> Micros | None:
        found: Micros | None = self.rows("oldest_message_count")[0][0]
        return found

    def write_message_count(self, row: MessageCountRow) -> None:
        self.rows("write_message_count", **row._asdict())

    def delete_message_count(self, subscription: str, owner: str) -> None:
        self.rows("delete_message_count", subscription=subscription, owner=owner)


_UPDATED_FIELDS = ("id", "version", "body", "after", "state", "reason", "failures", "failing_since")


def _parse_subscription(row: tuple[Any, ...]) -> SubscriptionRow:
    found = SubscriptionRow._make(row)
    return found._replace(declared=bool(found.declared))

"""Verbs of what tells people: readers of the log, subscriptions, incidents.

A reader's row is its lease: who has it locked reads on, everybody else passes by. There is no leader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event

SubscriptionsVersion = tuple[int, int, int]


class ReaderRow(NamedTuple):
    """How far somebody has read the log of events."""

    name: str
    cursor: int
    body: str
    updated_at: Micros


class SubscriptionRow(NamedTuple):
    """Who is told of what. Of a declared one only its state is here; the rest is in its app's manifest."""

    id: str
    declared: bool
    name: str
    patterns: str  # of event types, with commas
    owner: str | None  # None: whoever's
    batch_id: str | None
    filter: str
    form: str  # each, incident
    channel: str
    body: str  # JSON: the channel, with its secrets
    endpoint: str  # the dependency its deliveries use
    after: int  # it hears of what came after this event
    state: str  # on, off
    reason: str  # of off
    version: int
    failures: int  # in a row
    failing_since: Micros | None
    created_at: Micros
    created_by: str


class IncidentRow(NamedTuple):
    """Failures that are told as one thing."""

    id: str
    subscription: str
    owner: str
    key: str  # a failure group or a batch
    body: str  # JSON
    due_at: Micros
    opened_at: Micros
    closed_at: Micros | None


class MessageCountRow(NamedTuple):
    """What one subscription has told one owner within an hour."""

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
        """Locked until the end of this transaction. None: somebody else is at it.

        The first call makes it: from `start` on, else from the newest event on.
        """

    @abstractmethod
    def get_reader(self, name: str) -> ReaderRow | None:
        """A look. None: nobody has read yet."""

    @abstractmethod
    def advance_reader(self, name: str, cursor: int, body: str = "") -> None: ...

    @abstractmethod
    def list_events_of_types(
        self, types: Sequence[str], cursor: int, top: int, limit: int
    ) -> list[Event]:
        """Those of these types, in order; `top` is not above `newest_event()`, so none is still to be committed."""

    @abstractmethod
    def get_kinds_and_queues(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """By job: kind and queue."""

    # --- Subscriptions ---
    @abstractmethod
    def list_subscriptions(self) -> list[SubscriptionRow]: ...

    @abstractmethod
    def subscriptions_version(self) -> SubscriptionsVersion:
        """How many there are, and numbers that are others whenever something about them has changed."""

    @abstractmethod
    def get_subscription(self, subscription: str) -> SubscriptionRow | None: ...

    @abstractmethod
    def find_subscriptions(self, prefix: str, limit: int) -> list[str]: ...

    @abstractmethod
    def insert_subscription(self, row: SubscriptionRow) -> bool:
        """False: there is one of this id."""

    @abstractmethod
    def update_subscription(self, row: SubscriptionRow) -> bool:
        """Its channel and its state. Compare-and-set on the version that was seen."""

    @abstractmethod
    def delete_subscription(self, subscription: str) -> bool:
        """With its open incidents."""

    @abstractmethod
    def delete_orphaned_subscriptions(self, before: Micros) -> int:
        """Delete those of batches that have left."""

    @abstractmethod
    def record_delivery(self, subscription: str) -> None:
        """It is not failing any more."""

    @abstractmethod
    def record_failed_delivery(self, subscription: str) -> SubscriptionRow | None:
        """Once more in a row; as it is then. None: it is gone."""

    # --- Incidents ---
    @abstractmethod
    def list_open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]: ...

    @abstractmethod
    def list_due_incidents(self, now: Micros, limit: int) -> list[IncidentRow]: ...

    @abstractmethod
    def next_incident_due(self) -> Micros | None:
        """When the next open one wants to be looked at."""

    @abstractmethod
    def list_incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        """Newest first."""

    @abstractmethod
    def insert_incident(self, row: IncidentRow) -> None: ...

    @abstractmethod
    def update_incident(self, row: IncidentRow) -> None: ...

    @abstractmethod
    def prune_incidents(self, before: Micros, limit: int) -> int: ...

    # --- How much was told ---
    @abstractmethod
    def get_message_count(self, subscription: str, owner: str) -> MessageCountRow | None: ...

    @abstractmethod
    def list_message_counts(self, before: Micros, limit: int) -> list[MessageCountRow]:
        """Hours that began before then."""

    @abstractmethod
    def oldest_message_count(self) -> Micros | None:
        """When the oldest of these hours began."""

    @abstractmethod
    def write_message_count(self, row: MessageCountRow) -> None: ...

    @abstractmethod
    def delete_message_count(self, subscription: str, owner: str) -> None: ...


class SqlNotificationQueries(NotificationQueries):
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
        """Those that lie above the cursor and not above the top."""

    def lock_reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        found = self.rows("lock_reader", name=name)
        if not found and not self.rows("get_reader", name=name):
            self.rows(
                "insert_reader", name=name, cursor=self.newest_event() if start is None else start
            )
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
        return [_subscription(row) for row in self.rows("list_subscriptions")]

    def subscriptions_version(self) -> SubscriptionsVersion:
        count, versions, times = self.rows("subscriptions_version")[0]
        return count, versions, times

    def get_subscription(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("get_subscription", id=subscription)
        return _subscription(found[0]) if found else None

    def find_subscriptions(self, prefix: str, limit: int) -> list[str]:
        found = self.rows("find_subscriptions", prefix=prefix, upper=f"{prefix}~", limit=limit)
        return [row[0] for row in found]

    def insert_subscription(self, row: SubscriptionRow) -> bool:
        return bool(self.rows("insert_subscription", **_said(row, {"created_at"})))

    def update_subscription(self, row: SubscriptionRow) -> bool:
        return bool(
            self.rows("update_subscription", **{name: getattr(row, name) for name in _CHANGES})
        )

    def delete_subscription(self, subscription: str) -> bool:
        self.rows("close_incidents", subscription=subscription)
        return bool(self.rows("delete_subscription", id=subscription))

    def delete_orphaned_subscriptions(self, before: Micros) -> int:
        return len(self.rows("delete_orphaned_subscriptions", before=before))

    def record_delivery(self, subscription: str) -> None:
        self.rows("record_delivery", id=subscription)

    def record_failed_delivery(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("record_failed_delivery", id=subscription)
        return _subscription(found[0]) if found else None

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


_CHANGES = ("id", "version", "body", "after", "state", "reason", "failures", "failing_since")


def _said(row: SubscriptionRow, without: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in without}


def _subscription(row: tuple[Any, ...]) -> SubscriptionRow:
    found = SubscriptionRow._make(row)
    return found._replace(declared=bool(found.declared))

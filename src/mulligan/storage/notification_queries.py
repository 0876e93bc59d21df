"""Verbs of what tells people: readers of the log, subscriptions, incidents.

A reader's row is its lease: who has it locked reads on, everybody else passes by. There is no leader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.event import Event
from mulligan.core.job import Micros

Mark = tuple[int, int, int]


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


class NotifiedRow(NamedTuple):
    """What one subscription has told one owner within an hour."""

    subscription: str
    owner: str
    since: Micros
    sent: int
    withheld: int


class NotificationQueries(ABC):
    """Part of every `Unit`."""

    # -- readers ----------------------------------------------------------------------------------
    @abstractmethod
    def reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        """Locked until the end of this transaction. None: somebody else is at it.

        The first call makes it: from `start` on, else from the newest event on.
        """

    @abstractmethod
    def reader_at(self, name: str) -> ReaderRow | None:
        """A look. None: nobody has read yet."""

    @abstractmethod
    def move_reader(self, name: str, cursor: int, body: str = "") -> None: ...

    @abstractmethod
    def events_of(self, types: Sequence[str], cursor: int, top: int, limit: int) -> list[Event]:
        """Those of these types, in order; `top` is not above `newest_event()`, so none is still to be committed."""

    @abstractmethod
    def kinds_of(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """By job: kind and queue."""

    # -- subscriptions ----------------------------------------------------------------------------
    @abstractmethod
    def subscriptions(self) -> list[SubscriptionRow]: ...

    @abstractmethod
    def subscriptions_mark(self) -> Mark:
        """How many there are, and numbers that are others whenever something about them has changed."""

    @abstractmethod
    def subscription(self, subscription: str) -> SubscriptionRow | None: ...

    @abstractmethod
    def find_subscriptions(self, prefix: str, limit: int) -> list[str]: ...

    @abstractmethod
    def new_subscription(self, row: SubscriptionRow) -> bool:
        """False: there is one of this id."""

    @abstractmethod
    def write_subscription(self, row: SubscriptionRow) -> bool:
        """Its channel and its state. Compare-and-set on the version that was seen."""

    @abstractmethod
    def remove_subscription(self, subscription: str) -> bool:
        """With its open incidents."""

    @abstractmethod
    def forget_subscriptions(self, before: Micros) -> int:
        """Delete those of batches that have left."""

    @abstractmethod
    def delivered(self, subscription: str) -> None:
        """It is not failing any more."""

    @abstractmethod
    def undelivered(self, subscription: str) -> SubscriptionRow | None:
        """Once more in a row; as it is then. None: it is gone."""

    # -- incidents --------------------------------------------------------------------------------
    @abstractmethod
    def open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]: ...

    @abstractmethod
    def incidents_due(self, now: Micros, limit: int) -> list[IncidentRow]: ...

    @abstractmethod
    def next_incident(self) -> Micros | None:
        """When the next open one wants to be looked at."""

    @abstractmethod
    def incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        """Newest first."""

    @abstractmethod
    def new_incident(self, row: IncidentRow) -> None: ...

    @abstractmethod
    def write_incident(self, row: IncidentRow) -> None: ...

    @abstractmethod
    def prune_incidents(self, before: Micros, limit: int) -> int: ...

    # -- how much was told ------------------------------------------------------------------------
    @abstractmethod
    def notified(self, subscription: str, owner: str) -> NotifiedRow | None: ...

    @abstractmethod
    def notified_before(self, before: Micros, limit: int) -> list[NotifiedRow]:
        """Hours that began before then."""

    @abstractmethod
    def next_notified(self) -> Micros | None:
        """When the oldest of these hours began."""

    @abstractmethod
    def write_notified(self, row: NotifiedRow) -> None: ...

    @abstractmethod
    def forget_notified(self, subscription: str, owner: str) -> None: ...


class SqlNotificationQueries(NotificationQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    @abstractmethod
    def newest_event(self, above: int = -1) -> int: ...

    @abstractmethod
    def events_among(
        self, verb: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        """Those that lie above the cursor and not above the top."""

    def reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        found = self.rows("reader", name=name)
        if not found and not self.rows("reader_at", name=name):
            self.rows(
                "new_reader", name=name, cursor=self.newest_event() if start is None else start
            )
            found = self.rows("reader", name=name)
        return ReaderRow._make(found[0][:4]) if found else None

    def reader_at(self, name: str) -> ReaderRow | None:
        found = self.rows("reader_at", name=name)
        return ReaderRow._make(found[0]) if found else None

    def move_reader(self, name: str, cursor: int, body: str = "") -> None:
        self.rows("move_reader", name=name, cursor=cursor, body=body)

    def events_of(self, types: Sequence[str], cursor: int, top: int, limit: int) -> list[Event]:
        return self.events_among("events_of", cursor, top, limit, types=self.ids(types))

    def kinds_of(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        found = self.rows("kinds_of", ids=self.ids(ids)) if ids else []
        return {job_id: (kind, queue) for job_id, kind, queue in found}

    def subscriptions(self) -> list[SubscriptionRow]:
        return [_subscription(row) for row in self.rows("subscriptions")]

    def subscriptions_mark(self) -> Mark:
        count, versions, times = self.rows("subscriptions_mark")[0]
        return count, versions, times

    def subscription(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("subscription", id=subscription)
        return _subscription(found[0]) if found else None

    def find_subscriptions(self, prefix: str, limit: int) -> list[str]:
        found = self.rows("find_subscriptions", prefix=prefix, beyond=f"{prefix}~", most=limit)
        return [row[0] for row in found]

    def new_subscription(self, row: SubscriptionRow) -> bool:
        return bool(self.rows("new_subscription", **_said(row, {"created_at"})))

    def write_subscription(self, row: SubscriptionRow) -> bool:
        return bool(
            self.rows("write_subscription", **{name: getattr(row, name) for name in _CHANGES})
        )

    def remove_subscription(self, subscription: str) -> bool:
        self.rows("close_incidents", subscription=subscription)
        return bool(self.rows("remove_subscription", id=subscription))

    def forget_subscriptions(self, before: Micros) -> int:
        return len(self.rows("forget_subscriptions", before=before))

    def delivered(self, subscription: str) -> None:
        self.rows("delivered", id=subscription)

    def undelivered(self, subscription: str) -> SubscriptionRow | None:
        found = self.rows("undelivered", id=subscription)
        return _subscription(found[0]) if found else None

    def open_incidents(self, keys: Sequence[str]) -> list[IncidentRow]:
        found = self.rows("open_incidents", keys=self.ids(keys)) if keys else []
        return [IncidentRow._make(row) for row in found]

    def incidents_due(self, now: Micros, limit: int) -> list[IncidentRow]:
        return [
            IncidentRow._make(row) for row in self.rows("incidents_due", moment=now, most=limit)
        ]

    def next_incident(self) -> Micros | None:
        found: Micros | None = self.rows("next_incident")[0][0]
        return found

    def incidents(self, subscription: str | None, limit: int) -> list[IncidentRow]:
        found = self.rows("incidents", subscription=subscription, most=limit)
        return [IncidentRow._make(row) for row in found]

    def new_incident(self, row: IncidentRow) -> None:
        self.rows("new_incident", **row._asdict())

    def write_incident(self, row: IncidentRow) -> None:
        self.rows(
            "write_incident", id=row.id, body=row.body, due_at=row.due_at, closed_at=row.closed_at
        )

    def prune_incidents(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_incidents", before=before, most=limit))

    def notified(self, subscription: str, owner: str) -> NotifiedRow | None:
        found = self.rows("notified", subscription=subscription, owner=owner)
        return NotifiedRow._make(found[0]) if found else None

    def notified_before(self, before: Micros, limit: int) -> list[NotifiedRow]:
        return [
            NotifiedRow._make(row)
            for row in self.rows("notified_before", before=before, most=limit)
        ]

    def next_notified(self) -> Micros | None:
        found: Micros | None = self.rows("next_notified")[0][0]
        return found

    def write_notified(self, row: NotifiedRow) -> None:
        self.rows("write_notified", **row._asdict())

    def forget_notified(self, subscription: str, owner: str) -> None:
        self.rows("forget_notified", subscription=subscription, owner=owner)


_CHANGES = ("id", "version", "body", "after", "state", "reason", "failures", "failing_since")


def _said(row: SubscriptionRow, without: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in without}


def _subscription(row: tuple[Any, ...]) -> SubscriptionRow:
    found = SubscriptionRow._make(row)
    return found._replace(declared=bool(found.declared))

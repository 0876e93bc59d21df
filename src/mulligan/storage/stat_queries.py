"""Statements about statistics (counts by minute, name and labels) and about alerts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType
from mulligan.storage.event_bundles import BUNDLE_LIMIT, unpack_bundle
from mulligan.storage.notification_queries import ReaderRow

MINUTE = 60 * SECOND
HOUR = 60  # minutes
ALL_TIME = 0  # minute of the totals since counting began
MAX_MINUTE = 2**62


class StatRow(NamedTuple):
    """Count of one minute, name and set of labels."""

    minute: int  # since 1970; after a day, the first minute of the hour
    name: str
    labels: str  # JSON, sorted
    n: int
    total: float  # sum of seconds or cost


# Columns of an event that are counted: at, type, attempt, data, and a number of equal events.
CountedEvent = tuple[Any, ...]


class LaneDepthRow(NamedTuple):
    """Number of waiting jobs of a lane at one priority."""

    lane: str
    first: Micros  # when the first job is due
    due: int
    later: int


class StatQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_readers(self) -> list[ReaderRow]:
        """List the consumers of the event log. Locks nothing."""

    @abstractmethod
    def list_events_to_count(self, cursor: int, limit: int) -> tuple[int, list[CountedEvent]]:
        """Return the id up to which events may be counted, and the events up to it.

        Advances by at most `limit` ids.
        """

    @abstractmethod
    def count_waiting_by_lane(self, now: Micros, cap: int, limit: int) -> list[LaneDepthRow]:
        """Count waiting jobs of at most `limit` lanes. Each count stops at `cap`."""

    @abstractmethod
    def list_stats(
        self, names: Sequence[str], since: Micros, until: Micros | None = None
    ) -> list[StatRow]:
        """List counts from the minute of `since` to before that of `until`, in order."""

    @abstractmethod
    def list_stat_totals(self) -> list[StatRow]:
        """List totals since counting began, by name and labels."""

    @abstractmethod
    def add_stats(self, rows: Sequence[StatRow]) -> None:
        """Add to counts and totals. Only for the worker that has locked the counting reader."""

    @abstractmethod
    def roll_up_stats(self, since: int, until: int) -> int:
        """Merge the minutes of the first hour that has any into one row each.

        Return the minute to continue from.
        """

    @abstractmethod
    def delete_stats(self, before: int) -> None:
        """Delete counts before a minute. Totals stay."""


class SqlStatQueries(StatQueries):
    """StatQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    @abstractmethod
    def newest_event(self, above: int = -1) -> int: ...

    @abstractmethod
    def write_stats(self, rows: Sequence[StatRow]) -> None: ...

    def list_readers(self) -> list[ReaderRow]:
        return [ReaderRow._make(row) for row in self.rows("list_readers")]

    def list_events_to_count(self, cursor: int, limit: int) -> tuple[int, list[CountedEvent]]:
        top = min(self.newest_event(cursor), cursor + limit)
        if top <= cursor:
            return cursor, []
        bounds = {"cursor": cursor, "top": top}
        events = [
            *self.rows("count_queued_events", **bounds),
            *self.rows("list_events_to_count", **bounds),
        ]
        for row in self.rows("list_bundles_to_count", **bounds, upper=top + BUNDLE_LIMIT):
            events += _count_bundle(row, cursor, top)
        return top, events

    def count_waiting_by_lane(self, now: Micros, cap: int, limit: int) -> list[LaneDepthRow]:
        return [
            LaneDepthRow._make(row)
            for row in self.rows("count_waiting_by_lane", at_time=now, cap=cap, limit=limit)
        ]

    def list_stats(
        self, names: Sequence[str], since: Micros, until: Micros | None = None
    ) -> list[StatRow]:
        first = max(since // MINUTE, ALL_TIME + 1)
        end = MAX_MINUTE if until is None else until // MINUTE
        rows = self.rows("list_stats", names=self.array_param(names), since=first, until=end)
        return [StatRow._make(row) for row in rows]

    def list_stat_totals(self) -> list[StatRow]:
        return [StatRow._make(row) for row in self.rows("list_stat_totals")]

    def add_stats(self, rows: Sequence[StatRow]) -> None:
        if rows:
            self.write_stats([*rows, *_totals(rows)])

    def roll_up_stats(self, since: int, until: int) -> int:
        first: int | None = self.rows("first_stat_minute", since=max(since, HOUR), until=until)[0][
            0
        ]
        if first is None:
            return until
        hour = first // HOUR * HOUR
        self.rows("roll_up_stats", hour=hour, upper=hour + HOUR)
        self.rows("delete_stats", after=hour, before=hour + HOUR)
        return hour + HOUR

    def delete_stats(self, before: int) -> None:
        self.rows("delete_stats", after=ALL_TIME, before=before)


def _count_bundle(row: Sequence[Any], cursor: int, top: int) -> list[CountedEvent]:
    """Count the events of a bundle with ids in a range, by their data."""
    _, at, event_type, *_ = row
    counts = Counter(data for event_id, _, data in unpack_bundle(row) if cursor < event_id <= top)
    attempt = None if event_type == EventType.JOB_QUEUED else 1
    return [(at, event_type, attempt, data, n) for data, n in counts.items()]


def _totals(rows: Sequence[StatRow]) -> list[StatRow]:
    """Sum counts over all minutes, by name and labels."""
    sums: dict[tuple[str, str], StatRow] = {}
    for row in rows:
        key = (row.name, row.labels)
        total = sums.get(key, row._replace(minute=ALL_TIME, n=0, total=0.0))
        sums[key] = total._replace(n=total.n + row.n, total=total.total + row.total)
    return list(sums.values())


# --- Alerts ---


class AlertRow(NamedTuple):
    """State of an alert rule for one key."""

    rule: str
    key: str
    state: str
    since: Micros
    evaluated_at: Micros
    value: float
    evidence: str  # JSON
    acted: str  # JSON of the action in force, or ""
    until: Micros | None
    actor: str
    reason: str


class AlertQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_alerts(self) -> list[AlertRow]:
        """List the states of all alert rules."""

    @abstractmethod
    def write_alert(self, row: AlertRow) -> None:
        """Store the state of an alert.

        Only the worker that has locked the alerts' reader, or a person, may do so.
        """

    @abstractmethod
    def delete_old_alerts(self, before: Micros) -> int:
        """Delete alerts that were resolved before a time, and silences that had ended."""

    @abstractmethod
    def sum_stats(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        """Return (name, labels, n, total) summed from the minute of `since` on."""


class SqlAlertQueries(AlertQueries):
    """AlertQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    def list_alerts(self) -> list[AlertRow]:
        return [AlertRow._make(row) for row in self.rows("list_alerts")]

    def write_alert(self, row: AlertRow) -> None:
        self.rows("write_alert", **row._asdict())

    def delete_old_alerts(self, before: Micros) -> int:
        return len(self.rows("delete_old_alerts", before=before))

    def sum_stats(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        found = self.rows("sum_stats", names=self.array_param(names), since=max(1, since // MINUTE))
        return [(name, labels, int(n), float(total)) for name, labels, n, total in found]

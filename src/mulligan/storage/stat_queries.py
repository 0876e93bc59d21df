"""Verbs of what was counted: numbers by minute, name and labels, which only grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import EventType
from mulligan.storage.event_bundles import BUNDLE_LIMIT, unpack_bundle
from mulligan.storage.notification_queries import ReaderRow

MINUTE = 60 * SECOND
HOUR = 60  # minutes
ALL_TIME = 0  # the minute of what was counted since counting began
MAX_MINUTE = 2**62


class StatRow(NamedTuple):
    minute: int  # since 1970; of what is older than a day the first minute of its hour
    name: str
    labels: str  # JSON, sorted
    n: int
    total: float  # of what is summed beside the count: seconds, or cost


# As much of an event as is counted: at, type, attempt, data; and how many are like it, where that is known.
CountedEvent = tuple[Any, ...]


class LaneDepthRow(NamedTuple):
    """What waits in a lane at one priority."""

    lane: str
    first: Micros  # when the first of them is due
    due: int
    later: int


class StatQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_readers(self) -> list[ReaderRow]:
        """All who read the events. A look: nobody is kept from going on."""

    @abstractmethod
    def list_events_to_count(self, cursor: int, most: int) -> tuple[int, list[CountedEvent]]:
        """Up to which event one may count, at most so many ids further; and what is counted of those between."""

    @abstractmethod
    def count_waiting_by_lane(self, moment: Micros, cap: int, most: int) -> list[LaneDepthRow]:
        """Of at most so many lanes; each count stops at the cap."""

    @abstractmethod
    def list_stats(
        self, names: Sequence[str], since: Micros, until: Micros | None = None
    ) -> list[StatRow]:
        """What was counted from the minute of `since` to before that of `until`, in order of time."""

    @abstractmethod
    def list_stat_totals(self) -> list[StatRow]:
        """Everything since counting began, one row for each name and its labels."""

    @abstractmethod
    def add_stats(self, rows: Sequence[StatRow]) -> None:
        """Add to what is there, also to what was counted ever. Only for who holds the reader that counts."""

    @abstractmethod
    def roll_up_stats(self, since: int, until: int) -> int:
        """Make one hour of the minutes of the first that has any; returns the minute from which to go on."""

    @abstractmethod
    def delete_stats(self, before: int) -> None:
        """Forget when it was; what was counted ever stays."""


class SqlStatQueries(StatQueries):
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

    def list_events_to_count(self, cursor: int, most: int) -> tuple[int, list[CountedEvent]]:
        top = min(self.newest_event(cursor), cursor + most)
        if top <= cursor:
            return cursor, []
        span = {"cursor": cursor, "top": top}
        alone = (
            *self.rows("count_queued_events", **span),
            *self.rows("list_events_to_count", **span),
        )
        bundled = self.rows("list_bundles_to_count", **span, upper=top + BUNDLE_LIMIT)
        return top, [*alone, *(news for row in bundled for news in _news(row, cursor, top))]

    def count_waiting_by_lane(self, moment: Micros, cap: int, most: int) -> list[LaneDepthRow]:
        return [
            LaneDepthRow._make(row)
            for row in self.rows("count_waiting_by_lane", at_time=moment, cap=cap, limit=most)
        ]

    def list_stats(
        self, names: Sequence[str], since: Micros, until: Micros | None = None
    ) -> list[StatRow]:
        span = {
            "since": max(since // MINUTE, ALL_TIME + 1),
            "until": MAX_MINUTE if until is None else until // MINUTE,
        }
        return [
            StatRow._make(row)
            for row in self.rows("list_stats", names=self.array_param(names), **span)
        ]

    def list_stat_totals(self) -> list[StatRow]:
        return [StatRow._make(row) for row in self.rows("list_stat_totals")]

    def add_stats(self, rows: Sequence[StatRow]) -> None:
        if rows:
            self.write_stats([*rows, *_ever(rows)])

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


def _news(row: Sequence[Any], cursor: int, top: int) -> Iterator[CountedEvent]:
    """What a bundle tells, each text once."""
    _, at, kind, *_ = row
    said = Counter(data for number, _, data in unpack_bundle(row) if cursor < number <= top)
    attempt = None if kind == EventType.JOB_QUEUED else 1
    return ((at, kind, attempt, data, n) for data, n in said.items())


def _ever(rows: Sequence[StatRow]) -> list[StatRow]:
    """The same, whenever it was."""
    sums: dict[tuple[str, str], StatRow] = {}
    for row in rows:
        known = sums.get((row.name, row.labels), row._replace(minute=ALL_TIME, n=0, total=0.0))
        sums[row.name, row.labels] = known._replace(
            n=known.n + row.n, total=known.total + row.total
        )
    return list(sums.values())


# Verbs of the alerts: how each rule stands, and what was counted, summed over a time.


class AlertRow(NamedTuple):
    rule: str
    key: str
    state: str
    since: Micros
    seen_at: Micros
    value: float
    evidence: str  # JSON
    acted: str  # JSON; empty: nothing was done that still holds
    until: Micros | None
    actor: str
    reason: str


class AlertQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_alerts(self) -> list[AlertRow]: ...

    @abstractmethod
    def write_alert(self, row: AlertRow) -> None:
        """As it stands now, whatever it was. Only for who holds the reader of the alerts, or a person."""

    @abstractmethod
    def delete_old_alerts(self, before: Micros) -> int:
        """Delete those that were over before then, and silences that had ended."""

    @abstractmethod
    def sum_stats(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        """What was counted from the minute of `since` on: name, labels, n, total."""


class SqlAlertQueries(AlertQueries):
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

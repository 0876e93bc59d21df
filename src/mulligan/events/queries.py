"""Statements about the event log, its readers, and the statistics counted from it.

A reader's row is its lease: the worker that has locked it reads, the others skip it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.events.bundles import (
    BUNDLE_LIMIT,
    EventBundle,
    PendingEvent,
    Row,
    bundle_rows,
    events_about,
    events_in,
    parse_event,
    unpack_bundle,
)
from mulligan.storage.base import Queries
from mulligan.storage.statements import SqlDialect

# --- Events ---

MAX_ID = 2**62


class AuditFilter(NamedTuple):
    """Filter of audit events. None: any."""

    actor: str | None = None
    owner: str | None = None
    job_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    before: int | None = None  # only ids below this one


class ReaderRow(NamedTuple):
    """Position of a consumer of the event log."""

    name: str
    cursor: int
    body: str
    updated_at: Micros


def _event_params(event: NewEvent) -> dict[str, Any]:
    """Return the parameters of `write_event`."""
    return {
        "type": event.type,
        "job_id": event.job_id,
        "batch_id": event.batch_id,
        "owner": event.owner,
        "attempt": event.attempt,
        "token": event.token,
        "actor": event.actor,
        "data": json.dumps(event.data, separators=(",", ":")),
    }


class EventQueries(Queries):
    """Statements about the event log, in a transaction."""

    # --- Write ---
    def write_events(self, events: Iterable[NewEvent]) -> None:
        """Write events in order."""
        for event in events:
            self.tx.rows("write_event", **_event_params(event))

    def write_row_events(
        self, event_type: str, rows: Sequence[Row], data: Callable[[Row], str]
    ) -> None:
        """Write one event for each claimed or settled row (SQLite)."""
        self.write_pending(*bundle_rows(self.tx.now(), event_type, rows, data))

    def write_pending(
        self, singles: Sequence[PendingEvent], bundles: Sequence[EventBundle]
    ) -> None:
        """Write single events and bundles of jobs (SQLite)."""
        if singles:
            self.tx.run_many("write_job_event", PendingEvent._fields, singles)
        for bundle in bundles:
            self.tx.rows("write_event_bundle", **bundle._asdict())

    # --- Read ---
    def list_events_after(self, cursor: int, limit: int) -> list[Event]:
        """List events in order, starting after `cursor`.

        Stops before the first event that may still be uncommitted, so that no reader skips it.
        """
        # SQLite has one writer, so ids are drawn in commit order.
        top = MAX_ID if self.tx.dialect == SqlDialect.SQLITE else self.newest_event()
        return self._events_in_range("list_events", cursor, top, limit)

    def newest_event(self, above: int = -1) -> int:
        """Return the highest id that `list_events_after` would return, or 0.

        May be inexact if there is nothing above `above`.
        """
        # Read the sequence first. Every transaction that drew an id up to it has set its mark by
        # now, or has ended.
        top = int(self.tx.rows("last_event_id")[0][0])
        if top <= above or self.tx.dialect == SqlDialect.SQLITE:
            return top
        floor: int | None = self.tx.rows("lowest_open_event_mark")[0][0]
        return top if floor is None else min(top, floor)

    def event_lag(self) -> Micros:
        """Return how long the oldest transaction that writes events has been open."""
        if self.tx.dialect == SqlDialect.SQLITE:
            return 0
        return int(self.tx.rows("event_lag")[0][0])

    def list_events_of_job(self, job_id: str) -> list[Event]:
        """List the events of a job in order."""
        return self.list_events_of_jobs([job_id])

    def list_events_of_jobs(self, ids: Sequence[str]) -> list[Event]:
        """List all events of jobs, by job and in order."""
        if not ids:
            return []
        rows = self.tx.rows("list_events_of_jobs", ids=self.tx.array_param(ids))
        events = events_about(rows, frozenset(ids))
        return sorted(events, key=lambda event: (event.job_id or "", event.id))

    def list_events_of_types(
        self, types: Sequence[str], cursor: int, top: int, limit: int
    ) -> list[Event]:
        """List events of these types in order. `top` must not be above `newest_event()`."""
        return self._events_in_range(
            "list_events_of_types", cursor, top, limit, types=self.tx.array_param(types)
        )

    def list_gate_events(self, after: int, before: int, limit: int) -> list[Event]:
        """List gate events among the first and the last `limit` events between two ids."""
        return [
            parse_event(row)
            for row in self.tx.rows("list_gate_events", after=after, before=before, limit=limit)
        ]

    def list_audit_events(
        self, filters: AuditFilter, types: tuple[str, ...], limit: int
    ) -> list[Event]:
        """List actions of people, newest first. `types`: only these, or all if empty."""
        rows = self.tx.rows(
            "list_audit_events",
            **filters._asdict(),
            types=self.tx.array_param(types),
            all_types=not types,
            limit=limit,
        )
        return [parse_event(row) for row in rows]

    def pruned_event_id(self) -> int:
        """Return the id up to which events are pruned, except actions of people. 0: none."""
        found = self.tx.rows("pruned_event_id")
        return int(found[0][0]) if found else 0

    def prune_events(self, before: Micros, limit: int) -> int:
        """Delete old events, except actions of people. `limit`: how many are examined."""
        # Continue where the last call ended, so that actions of people are not examined again.
        floor = self.pruned_event_id()
        oldest = self.tx.rows("list_oldest_events", floor=floor, limit=limit)
        old_ids = [event_id for event_id, at in takewhile(lambda row: row[1] < before, oldest)]
        if not old_ids:
            return 0
        top = old_ids[-1]
        deleted = self.tx.rows("prune_events", floor=floor, top=top)
        self.tx.rows("raise_pruned_event_id", floor=str(top))
        return len(deleted)

    def prune_audit_events(self, before: Micros, limit: int) -> int:
        """Delete old actions of people."""
        return len(self.tx.rows("prune_audit_events", before=before, limit=limit))

    def lock_reader(self, name: str, *, start: int | None = None) -> ReaderRow | None:
        """Lock a reader until the commit. None: another worker has locked it.

        The first call creates it: at `start`, or at the newest event.
        """
        found = self.tx.rows("lock_reader", name=name)
        if not found and not self.tx.rows("get_reader", name=name):
            cursor = self.newest_event() if start is None else start
            self.tx.rows("insert_reader", name=name, cursor=cursor)
            found = self.tx.rows("lock_reader", name=name)
        return ReaderRow._make(found[0][:4]) if found else None

    def get_reader(self, name: str) -> ReaderRow | None:
        """Read the position of a reader. None: it does not exist."""
        found = self.tx.rows("get_reader", name=name)
        return ReaderRow._make(found[0]) if found else None

    def advance_reader(self, name: str, cursor: int, body: str = "") -> None:
        """Store the position of a locked reader."""
        self.tx.rows("advance_reader", name=name, cursor=cursor, body=body)

    def list_readers(self) -> list[ReaderRow]:
        """List the consumers of the event log. Locks nothing."""
        return [ReaderRow._make(row) for row in self.tx.rows("list_readers")]

    def _events_in_range(
        self, statement: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        """List events with ids above `cursor` and not above `top`."""
        # A bundle that ends above `top` may contain events below it.
        bounds = {"cursor": cursor, "top": top, "upper": top + BUNDLE_LIMIT}
        rows = self.tx.rows(statement, **bounds, limit=limit, **params)
        return [*islice(events_in(rows, cursor, top), limit)]


# --- Statistics: counts by minute, name and labels ---


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


class StatQueries(Queries):
    """Statements about statistics, in a transaction."""

    def list_events_to_count(self, cursor: int, limit: int) -> tuple[int, list[CountedEvent]]:
        """Return the id up to which events may be counted, and the events up to it.

        Advances by at most `limit` ids.
        """
        top = min(EventQueries(self.tx).newest_event(cursor), cursor + limit)
        if top <= cursor:
            return cursor, []
        bounds = {"cursor": cursor, "top": top}
        events = [
            *self.tx.rows("count_queued_events", **bounds),
            *self.tx.rows("list_events_to_count", **bounds),
        ]
        for row in self.tx.rows("list_bundles_to_count", **bounds, upper=top + BUNDLE_LIMIT):
            events += _count_bundle(row, cursor, top)
        return top, events

    def list_stats(
        self, names: Sequence[str], since: Micros, until: Micros | None = None
    ) -> list[StatRow]:
        """List counts from the minute of `since` to before that of `until`, in order."""
        first = max(since // MINUTE, ALL_TIME + 1)
        end = MAX_MINUTE if until is None else until // MINUTE
        rows = self.tx.rows("list_stats", names=self.tx.array_param(names), since=first, until=end)
        return [StatRow._make(row) for row in rows]

    def list_stat_totals(self) -> list[StatRow]:
        """List totals since counting began, by name and labels."""
        return [StatRow._make(row) for row in self.tx.rows("list_stat_totals")]

    def sum_stats(self, names: Sequence[str], since: Micros) -> list[tuple[str, str, int, float]]:
        """Return (name, labels, n, total) summed from the minute of `since` on."""
        found = self.tx.rows(
            "sum_stats", names=self.tx.array_param(names), since=max(1, since // MINUTE)
        )
        return [(name, labels, int(n), float(total)) for name, labels, n, total in found]

    def add_stats(self, rows: Sequence[StatRow]) -> None:
        """Add to counts and totals. Only for the worker that has locked the counting reader."""
        if rows:
            self.tx.run_set("write_stats", [*rows, *_totals(rows)])

    def roll_up_stats(self, since: int, until: int) -> int:
        """Merge the minutes of the first hour that has any into one row each.

        Return the minute to continue from.
        """
        first: int | None = self.tx.rows("first_stat_minute", since=max(since, HOUR), until=until)[
            0
        ][0]
        if first is None:
            return until
        hour = first // HOUR * HOUR
        self.tx.rows("roll_up_stats", hour=hour, upper=hour + HOUR)
        self.tx.rows("delete_stats", after=hour, before=hour + HOUR)
        return hour + HOUR

    def delete_stats(self, before: int) -> None:
        """Delete counts before a minute. Totals stay."""
        self.tx.rows("delete_stats", after=ALL_TIME, before=before)


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

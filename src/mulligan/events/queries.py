"""Statements about the event log, its readers, and the statistics counted from it.

A reader's row is its lease: the worker that has locked it reads, the others skip it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event, EventType, NewEvent
from mulligan.storage.base import Queries, RowQueries, replace_unstorable
from mulligan.storage.statements import SqlDialect

# --- Events ---

MAX_ID = 2**62
PAGE_SPAN = 20_000  # ids that one page of an owner's events examines


class AuditFilter(NamedTuple):
    """Filter of audit events. None: any."""

    actor: str | None = None
    owner: str | None = None
    job_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    before: int | None = None  # only ids below this one


class EventPage(NamedTuple):
    """Events of a page, the id up to which the log was read, and whether that was its end."""

    events: list[Event]
    cursor: int
    is_last: bool


class ReaderRow(NamedTuple):
    """Position of a consumer of the event log."""

    name: str
    cursor: int
    body: str
    updated_at: Micros


class EventQueries(Queries):
    """Statements about the event log, in a transaction."""

    # --- Write ---
    def write_events(self, events: Iterable[NewEvent]) -> None:
        """Write events in order."""
        for event in events:
            self.tx.rows(
                "write_event",
                type=event.type,
                job_id=event.job_id,
                batch_id=event.batch_id,
                owner=event.owner,
                attempt=event.attempt,
                token=event.token,
                actor=event.actor,
                data=_encode_data(event.data),
            )

    # --- Read ---
    def list_events_after(self, cursor: int, limit: int) -> list[Event]:
        """List events in order, starting after `cursor`.

        Stops before the first event that may still be uncommitted, so that no reader skips it.
        """
        # SQLite has one writer, so ids are drawn in commit order.
        top = MAX_ID if self.tx.dialect == SqlDialect.SQLITE else self.newest_event()
        return self._events_in_range("list_events", cursor, top, limit)

    def read_page(self, cursor: int, limit: int, owner: str | None = None) -> EventPage:
        """Read events after `cursor` that an owner may see; None: of all owners.

        Examines at most `PAGE_SPAN` ids, so that a page costs little however many events belong to
        other owners.
        """
        if owner is None:
            events = self.list_events_after(cursor, limit)
            reached = events[-1].id if events else cursor
            return EventPage(self.add_kinds(events), reached, is_last=len(events) < limit)
        newest = self.newest_event()
        top = min(newest, cursor + PAGE_SPAN)
        # The database may write characters of a JSON text in another way than this process.
        is_verbatim = owner.isascii() and json.dumps(owner) == f'"{owner}"'
        in_line = f'"{owner}"' if is_verbatim else ""
        found = self._events_in_range(
            "list_events_of_owner", cursor, top, limit, owner=owner, in_line=in_line
        )
        reached = found[-1].id if len(found) == limit else max(cursor, top)
        events = [event for event in found if event.owner == owner]
        return EventPage(self.add_kinds(events), reached, is_last=reached >= newest)

    def add_kinds(self, events: Sequence[Event]) -> list[Event]:
        """Return the events, with kind and queue of the job added to data that lacks them."""
        ids = {event.job_id for event in events if event.job_id and "kind" not in event.data}
        if not ids:
            return list(events)
        found = self.tx.rows("get_kinds_and_queues", ids=self.tx.array_param(sorted(ids)))
        kinds = {job_id: {"kind": kind, "queue": queue} for job_id, kind, queue in found}
        return [_add_data(event, kinds.get(event.job_id or "", {})) for event in events]

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

    def list_idle_transactions(self, seconds: float) -> list[tuple[int, str, str, float]]:
        """List (pid, user, application, idle seconds) of transactions idle for longer than this."""
        if self.tx.dialect == SqlDialect.SQLITE:
            return []
        rows = self.tx.rows("list_idle_transactions", seconds=seconds)
        return [(pid, user, name, float(idle)) for pid, user, name, idle in rows]

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
        top = None
        for event_id, at in self.tx.rows("list_oldest_events", floor=floor, limit=limit):
            if at >= before:
                break
            top = event_id
        if top is None:
            return 0
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
        return self.first_row(ReaderRow, "get_reader", name=name)

    def advance_reader(self, name: str, cursor: int, body: str = "") -> None:
        """Store the position of a locked reader."""
        self.tx.rows("advance_reader", name=name, cursor=cursor, body=body)

    def list_readers(self) -> list[ReaderRow]:
        """List the consumers of the event log. Locks nothing."""
        return self.list_rows(ReaderRow, "list_readers")

    def _events_in_range(
        self, statement: str, cursor: int, top: int, limit: int, /, **params: Any
    ) -> list[Event]:
        """List events with ids above `cursor` and not above `top`."""
        # A bundle that ends above `top` may contain events below it.
        bounds = {"cursor": cursor, "top": top, "upper": top + BUNDLE_LIMIT}
        rows = self.tx.rows(statement, **bounds, limit=limit, **params)
        return [*islice(events_in(rows, cursor, top), limit)]


def _add_data(event: Event, data: Mapping[str, Any]) -> Event:
    """Return the event with more data, unless its own data has the names."""
    return event._replace(data={**data, **event.data}) if data else event


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
        return self.list_rows(
            StatRow, "list_stats", names=self.tx.array_param(names), since=first, until=end
        )

    def list_stat_totals(self) -> list[StatRow]:
        """List totals since counting began, by name and labels."""
        return self.list_rows(StatRow, "list_stat_totals")

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


def _encode_data(data: Any) -> str:
    """Return data as JSON, with the texts that a column of the same row would have."""
    text = json.dumps(data, separators=(",", ":"))
    if "\\u" in text:  # an escaped character may be one that columns cannot store
        return json.dumps(replace_unstorable(data), separators=(",", ":"))
    return text


def _count_bundle(row: Sequence[Any], cursor: int, top: int) -> list[CountedEvent]:
    """Count the events of a bundle with ids in a range, by their data."""
    _, at, event_type, *_ = row
    counts: Counter[str] = Counter()
    for event_id, _, data in unpack_bundle(row):
        if cursor < event_id <= top:
            counts[data] += 1
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


# --- Bundles: many events of the same type and time in one row ---

# When many jobs are claimed, settled or enqueued at once, one row per event, with its two index
# entries, would cost a fifth of what a short job costs.
#
# A bundle has the id of its last event and covers the ids up to it without a gap. Its text has
# lines: `{…}` is the data of the jobs in the lines after it, `[…]` is one job: id, batch, owner,
# attempt, token. JSON escapes newlines, so no value can end a line.
#
# A reader's cursor, and the end of a range, may lie inside a bundle. Readers therefore select the
# rows that reach into the range, and then the events within it.

# Events in one bundle, as in the schema's functions. Readers look this far beyond a range.
BUNDLE_LIMIT = 1000

_encode = json.JSONEncoder(separators=(",", ":")).encode


class EventSource(Protocol):
    """Row of a claimed or settled job, whose event is written."""

    @property
    def id(self) -> str: ...
    @property
    def batch_id(self) -> str | None: ...
    @property
    def owner(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def token(self) -> int: ...


Row = TypeVar("Row", bound=EventSource)


class PendingEvent(NamedTuple):
    """One event of a job about to be written."""

    at: int
    type: str
    job_id: str
    batch_id: str | None
    owner: str
    attempt: int | None
    token: int | None
    data: str


class EventBundle(NamedTuple):
    """Several events about to be written as one row."""

    at: int
    type: str
    bundle: int  # number of events
    data: str


# --- Write ---


class JobEventQueries(RowQueries):
    """Statements that write events of many jobs (SQLite). PostgreSQL writes them with the jobs."""

    def write_row_events(self, event_type: str, rows: Sequence[Row], data: Sequence[str]) -> None:
        """Write one event for each claimed or settled row, with its data."""
        now = self.tx.now()
        for start in range(0, len(rows), BUNDLE_LIMIT):
            part = rows[start : start + BUNDLE_LIMIT]
            texts = data[start : start + BUNDLE_LIMIT]
            if len(part) == 1:
                row = part[0]
                event = PendingEvent(now, event_type, row.id, *tail_fields(row), texts[0])
                self.write_pending([event], [])
            else:
                bundle = EventBundle(now, event_type, len(part), bundle_text(part, texts))
                self.write_pending([], [bundle])

    def write_pending(
        self, singles: Sequence[PendingEvent], bundles: Sequence[EventBundle]
    ) -> None:
        """Write single events and bundles."""
        if singles:
            self.tx.run_many("write_job_event", PendingEvent._fields, singles)
        for bundle in bundles:
            self.tx.rows("write_event_bundle", **bundle._asdict())


def bundle_events(
    events: Sequence[PendingEvent],
) -> tuple[list[PendingEvent], list[EventBundle]]:
    """Bundle consecutive events of the same time and type. Return single events and bundles."""
    if len(events) == 1:
        return [*events], []
    singles: list[PendingEvent] = []
    bundles: list[EventBundle] = []
    for (at, event_type), group in groupby(events, key=attrgetter("at", "type")):
        for part in _split([*group]):
            if len(part) == 1:
                singles += part
            else:
                bundles.append(EventBundle(at, event_type, len(part), "\n".join(_lines(part))))
    return singles, bundles


def _split(items: Sequence[Any]) -> list[Any]:
    """Split a sequence into parts of at most BUNDLE_LIMIT items."""
    return [items[start : start + BUNDLE_LIMIT] for start in range(0, len(items), BUNDLE_LIMIT)]


def _lines(events: Iterable[PendingEvent]) -> Iterator[str]:
    data = ""
    for event in events:
        if event.data != data:
            data = event.data
            yield data
        tail = _line_tail(event.batch_id, event.owner, event.attempt, event.token)
        yield f'["{event.job_id}{tail}'


def _line_tail(batch_id: str | None, owner: str, attempt: int | None, token: int | None) -> str:
    """Return a job's line after its id."""
    batch = "null" if batch_id is None else _encode(batch_id)
    numbers = "null,null" if token is None else f"{attempt},{token}"
    return f'",{batch},{_encode(owner)},{numbers}]'


tail_fields = attrgetter("batch_id", "owner", "attempt", "token")


def bundle_text(rows: Sequence[Row], data: Sequence[str]) -> str:
    """Return the text of a bundle of claimed or settled rows, each with its data.

    Four times as fast as `bundle_events`.
    """
    pairs = groupby(zip(data, rows, strict=True), key=itemgetter(0))
    texts = [_same_data_text(text, [row for _, row in group]) for text, group in pairs]
    return "\n".join(texts)


def _same_data_text(data: str, rows: Sequence[Any]) -> str:
    """Return the lines of rows that share their data."""
    tails = {fields: _line_tail(*fields) for fields in set(map(tail_fields, rows))}
    if len(tails) > 1:
        return data + "".join([f'\n["{row.id}{tails[tail_fields(row)]}' for row in rows])
    (tail,) = tails.values()
    return _uniform_text(data, [row.id for row in rows], tail)


def _uniform_text(data: str, ids: Sequence[str], tail: str) -> str:
    """Return the lines of jobs that differ only in their id."""
    return f'{data}\n["' + f'{tail}\n["'.join(ids) + tail


# --- Read ---


def unpack_bundle(row: Sequence[Any]) -> Iterator[tuple[int, str, str]]:
    """Yield (event id, line of the job, data) for each event of a bundle's row."""
    last_id, *_, text, count = row
    event_id = last_id - count
    data = "{}"
    for line in text.split("\n"):
        if line.startswith("{"):
            data = line
        else:
            event_id += 1
            yield event_id, line, data


def events_in(
    rows: Iterable[Sequence[Any]], cursor: int = 0, top: int | None = None
) -> Iterator[Event]:
    """Yield the events of rows with ids above `cursor` and not above `top`.

    A row has the columns of an Event and the number of events in the bundle, or NULL.
    """
    for row in rows:
        if row[-1] is None:
            if cursor < row[0] and (top is None or row[0] <= top):
                yield _single_event(row)
            continue
        for event_id, line, data in unpack_bundle(row):
            if cursor < event_id and (top is None or event_id <= top):
                yield _bundled_event(row, event_id, line, data)


def events_about(rows: Iterable[Sequence[Any]], jobs: frozenset[str]) -> Iterator[Event]:
    """Yield the events of these jobs. Decodes only their lines of a bundle."""
    for row in rows:
        if row[-1] is None:
            yield _single_event(row)
            continue
        for event_id, line, data in unpack_bundle(row):
            job_id = line[2 : line.index('"', 2)]
            if job_id in jobs:
                yield _bundled_event(row, event_id, line, data)


def parse_event(row: Sequence[Any]) -> Event:
    """Build an Event from a row whose last column is JSON."""
    return Event._make((*row[:-1], json.loads(row[-1])))


def _single_event(row: Sequence[Any]) -> Event:
    return parse_event(row[:-1])


def _bundled_event(row: Sequence[Any], event_id: int, line: str, data: str) -> Event:
    _, at, event_type, *_ = row
    job_id, batch_id, owner, attempt, token = json.loads(line)
    return Event(
        event_id, at, event_type, job_id, batch_id, owner, attempt, token, "", json.loads(data)
    )

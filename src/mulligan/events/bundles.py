"""Bundles: many events of the same type and time in one row of the event table.

When many jobs are claimed, settled or enqueued at once, one row per event, with its two index
entries, would cost a fifth of what a short job costs.

A bundle has the id of its last event and covers the ids up to it without a gap. Its text has
lines: `{…}` is the data of the jobs in the lines after it, `[…]` is one job: id, batch, owner,
attempt, token. JSON escapes newlines, so no value can end a line.

A reader's cursor, and the end of a range, may lie inside a bundle. Readers therefore select the
rows that reach into the range, and then the events within it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from mulligan.core.event import Event

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


_tail_fields = attrgetter("batch_id", "owner", "attempt", "token")


def bundle_rows(
    at: int, event_type: str, rows: Sequence[Row], data: Callable[[Row], str]
) -> tuple[list[PendingEvent], list[EventBundle]]:
    """Bundle one event for each claimed or settled row. Four times as fast as `bundle_events`."""
    singles: list[PendingEvent] = []
    bundles: list[EventBundle] = []
    for part in _split(rows):
        if len(part) == 1:
            row = part[0]
            singles.append(PendingEvent(at, event_type, row.id, *_tail_fields(row), data(row)))
        else:
            bundles.append(EventBundle(at, event_type, len(part), _rows_text(part, data)))
    return singles, bundles


def _rows_text(rows: Iterable[Any], data: Callable[[Any], str]) -> str:
    """Return the text of a bundle of rows."""
    texts = [_same_data_text(text, [*group]) for text, group in groupby(rows, key=data)]
    return "\n".join(texts)


def _same_data_text(data: str, rows: Sequence[Any]) -> str:
    """Return the lines of rows that share their data."""
    tails = {fields: _line_tail(*fields) for fields in set(map(_tail_fields, rows))}
    if len(tails) > 1:
        return data + "".join([f'\n["{row.id}{tails[_tail_fields(row)]}' for row in rows])
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

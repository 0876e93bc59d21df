"""Many events that tell the same at the same moment, in one row: a set of jobs is claimed, finished or enqueued at
once, and a row for each of them, with its two index entries, costs a fifth of what a short job costs.

The row has the id of the last of them; theirs are the numbers up to it, without a gap. Its text has lines: `{…}` is
what is told of the jobs in the lines after it, `[…]` one job: id, batch, owner, attempt, token. Nothing that is told
can end a line: JSON writes that in other letters.

A reader's cursor may stand inside a bundle, and so may the end of what may be read: rows are taken that reach into the
stretch, and of their events those that lie in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from mulligan.core.attempt import Lease
from mulligan.core.event import Event
from mulligan.storage.rows import Finished, Settlement

MOST = 1000  # events in one row; as in told.part.sql, and readers look so far beyond the end of a stretch

Row = TypeVar("Row", Lease, Finished, Settlement)

_encode = json.JSONEncoder(separators=(",", ":")).encode


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


class Bundle(NamedTuple):
    at: int
    type: str
    bundle: int
    data: str


def parted(told: Sequence[PendingEvent]) -> tuple[list[PendingEvent], list[Bundle]]:
    """What stands alone, and bundles of the rest."""
    if len(told) == 1:
        return [*told], []
    alone: list[PendingEvent] = []
    bundles: list[Bundle] = []
    for (at, kind), alike in groupby(told, key=_moment):
        events = list(alike)
        for start in range(0, len(events), MOST):
            some = events[start : start + MOST]
            if len(some) == 1:
                alone += some
            else:
                bundles.append(Bundle(at, kind, len(some), "\n".join(_lines(some))))
    return alone, bundles


def _moment(event: PendingEvent) -> tuple[int, str]:
    return event.at, event.type


def _lines(events: Iterable[PendingEvent]) -> Iterator[str]:
    said = ""
    for event in events:
        if event.data != said:
            said = event.data
            yield said
        yield f'["{event.job_id}{_tail(event.batch_id, event.owner, event.attempt, event.token)}'


def _tail(batch_id: str | None, owner: str, attempt: int | None, token: int | None) -> str:
    """A job's line behind its id."""
    batch = "null" if batch_id is None else _encode(batch_id)
    numbers = "null,null" if token is None else f"{attempt},{token}"
    return f'",{batch},{_encode(owner)},{numbers}]'


_about = attrgetter("batch_id", "owner", "attempt", "token")


def parted_rows(
    at: int, what: str, rows: Sequence[Row], data: Callable[[Row], str]
) -> tuple[list[PendingEvent], list[Bundle]]:
    """`parted` for one thing that happened to many jobs, as a claim or an ending has them: a quarter of its work."""
    parts = [rows[start : start + MOST] for start in range(0, len(rows), MOST)]
    alone = [
        PendingEvent(at, what, part[0].id, *_about(part[0]), data(part[0]))
        for part in parts
        if len(part) == 1
    ]
    return alone, [
        Bundle(at, what, len(part), _text_of(part, data)) for part in parts if len(part) > 1
    ]


def parted_alike(told: PendingEvent, ids: Sequence[str]) -> tuple[list[PendingEvent], list[Bundle]]:
    """The same for many jobs of which everything is told alike, as of one of them."""
    parts = [ids[start : start + MOST] for start in range(0, len(ids), MOST)]
    tail = _tail(told.batch_id, told.owner, told.attempt, told.token)
    bundles = [
        Bundle(told.at, told.type, len(part), _text(told.data, part, tail))
        for part in parts
        if len(part) > 1
    ]
    return [told._replace(job_id=part[0]) for part in parts if len(part) == 1], bundles


def parted_texts(
    told: PendingEvent, texts: Sequence[tuple[str, str]]
) -> tuple[list[PendingEvent], list[Bundle]]:
    """The same where each job, by its id, has a text of its own."""
    parts = [texts[start : start + MOST] for start in range(0, len(texts), MOST)]
    tail = _tail(told.batch_id, told.owner, told.attempt, told.token)
    alone = [told._replace(job_id=part[0][0], data=part[0][1]) for part in parts if len(part) == 1]
    bundles = []
    for part in parts:
        if len(part) > 1:
            lines = [
                _text(said, [one for one, _ in same], tail)
                for said, same in groupby(part, key=itemgetter(1))
            ]
            bundles.append(Bundle(told.at, told.type, len(part), "\n".join(lines)))
    return alone, bundles


def _text_of(rows: Iterable[Any], data: Callable[[Any], str]) -> str:
    return "\n".join([_told_of_all(said, [*same]) for said, same in groupby(rows, key=data)])


def _told_of_all(said: str, rows: Sequence[Any]) -> str:
    tails = {about: _tail(*about) for about in set(map(_about, rows))}
    if len(tails) > 1:
        return said + "".join([f'\n["{row.id}{tails[_about(row)]}' for row in rows])
    (tail,) = tails.values()
    return _text(said, [row.id for row in rows], tail)


def _text(said: str, ids: Sequence[str], tail: str) -> str:
    return f'{said}\n["' + f'{tail}\n["'.join(ids) + tail


def opened(row: Sequence[Any]) -> Iterator[tuple[int, str, str]]:
    """Of a bundle's row, each event: its id, its job's line, what is told of it."""
    last, text, count = row[0], row[-2], row[-1]
    number, said = last - count, "{}"
    for line in text.split("\n"):
        if line.startswith("{"):
            said = line
        else:
            number += 1
            yield number, line, said


def events_in(
    rows: Iterable[Sequence[Any]], cursor: int = 0, top: int | None = None
) -> Iterator[Event]:
    """The events of rows (those of an Event, then how many it is) that lie above the cursor and not above the top."""
    for row in rows:
        if row[-1] is None:
            if cursor < row[0] and (top is None or row[0] <= top):
                yield Event._make((*row[:-2], json.loads(row[-2])))
            continue
        for number, line, said in opened(row):
            if cursor < number and (top is None or number <= top):
                yield _event(row, number, line, said)


def events_about(rows: Iterable[Sequence[Any]], jobs: frozenset[str]) -> Iterator[Event]:
    """The events of these jobs; of a bundle only their lines are read."""
    for row in rows:
        if row[-1] is None:
            yield Event._make((*row[:-2], json.loads(row[-2])))
            continue
        for number, line, said in opened(row):
            if line[2 : line.index('"', 2)] in jobs:
                yield _event(row, number, line, said)


def _event(row: Sequence[Any], number: int, line: str, said: str) -> Event:
    _, at, kind, *_ = row
    job_id, batch_id, owner, attempt, token = json.loads(line)
    return Event(number, at, kind, job_id, batch_id, owner, attempt, token, "", json.loads(said))

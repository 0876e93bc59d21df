"""How values become rows, the same for both stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.event import Event, NewEvent
from mulligan.job import SAID, Alike, Lane, Micros, NewJob, in_columns


class InsertRow(NamedTuple):
    """One row of an insert; times still relative where the store's clock must decide."""

    id: str
    kind: str
    queue: str
    owner: str
    priority: int
    lane: str
    uses: str
    delay: int
    at: int | None
    deadline_span: int | None
    deadline_fixed: int | None
    max_retries: int | None
    policy: str | None
    timeout: int | None
    unique_key: str | None
    unique_hash: str | None
    unique_cover: str | None
    unique_for: int | None
    batch_id: str | None
    must_have: bool
    trace: str | None
    payload: str


class Wanted(NamedTuple):
    """A job somebody wants to take."""

    id: str


class Done(NamedTuple):
    """What a job's row does not know yet of an attempt that returned."""

    id: str
    token: int
    result: str | None
    data: str


class Own(NamedTuple):
    """What is of each alone among attempts that end alike; their jobs' rows know the rest."""

    id: str
    private: str | None
    data: str


# Of a settlement what they may differ in: this, and what the row knows.
OF_ONE = frozenset({*Own._fields, "generation", "attempt", "started_at", "owner", "batch_id"})


class Lying(NamedTuple):
    """The same, and where the row lay."""

    id: str
    token: int
    result: str | None
    data: str
    lies_at: str | None


class Again(NamedTuple):
    """Of an attempt that is tried again what its job's row does not know."""

    id: str
    lies_at: str | None
    said: str
    took: int
    waited: int


def insert_row(job: NewJob, lane: Any) -> InsertRow:
    return InsertRow(
        job.id,
        job.kind,
        job.queue,
        job.owner,
        job.priority,
        lane,
        job.uses,
        job.delay,
        job.run_at,
        job.deadline,
        job.deadline_at,
        job.max_retries,
        job.policy,
        job.timeout,
        job.unique_key,
        job.unique_hash,
        job.unique_cover,
        job.unique_for,
        job.batch_id,
        job.must_have,
        job.trace,
        job.payload,
    )


_unique_hash = attrgetter("unique_hash")


def keyed(jobs: Sequence[NewJob]) -> bool:
    """Has one of them a unique key?"""
    return jobs.like.unique_hash is not None if isinstance(jobs, Alike) else any(map(_unique_hash, jobs))


def arg_rows(jobs: Sequence[NewJob]) -> list[tuple[str, str, str, str]]:
    """What jobs are found by: id, kind, path and value."""
    if isinstance(jobs, Alike) and not jobs.like.args:
        return []
    return [(job.id, job.kind, name, value) for job in jobs for name, value in job.args]


def due(job: NewJob, now: Micros) -> Micros:
    return now + job.delay if job.run_at is None else job.run_at


def lane_of(job: NewJob) -> str:
    return Lane(job.queue, job.kind, job.uses, False, job.share).key


# What stands where nothing was said.
BLANKS: dict[str, Any] = {
    **dict.fromkeys(InsertRow._fields),
    **dict.fromkeys(("id", "kind", "queue", "owner", "lane", "uses", "payload"), ""),
    **dict.fromkeys(("priority", "delay"), 0),
    "must_have": False,
}


class Columns(NamedTuple):
    """Several rows: what is the same in all of them, what of that is blank, and the columns of the rest."""

    alike: dict[str, Any]
    blank: frozenset[str]
    own: dict[str, Sequence[Any]]


def insert_columns(jobs: Sequence[NewJob]) -> Columns:
    if len(jobs) == 1:
        job = jobs[0]
        same, blank = beside(job.kind, job.queue, job[SAID], job.trace)
        return Columns({"id": job.id, "payload": job.payload, **same}, blank, {})
    if (alike := in_columns(jobs)) is not None:
        like = alike.like
        same, blank = beside(like.kind, like.queue, like[SAID], like.trace)
        return Columns(same, blank, {"id": alike.ids, "payload": alike.payloads})
    every: Any = NewJob._make(zip(*jobs, strict=True))
    one_lane = all(map(_is_alike, (every.queue, every.kind, every.uses, every.share)))
    lanes = (lane_of(jobs[0]),) * len(jobs) if one_lane else tuple(map(lane_of, jobs))
    columns = insert_row(every, lanes)._asdict()
    same = {name: column[0] for name, column in columns.items() if name != "id" and _is_alike(column)}
    return _columns(same, {name: column for name, column in columns.items() if name not in same})


@lru_cache(maxsize=512)
def beside(kind: str, queue: str, said: tuple[Any, ...], trace: str | None) -> tuple[dict[str, Any], frozenset[str]]:
    """What is said of a job beside its id and its payload, and what is not: often the same as of the one before."""
    job = NewJob._make(("", kind, queue, "", *said, None, (), trace))
    same, blank, _ = _columns(insert_row(job, lane_of(job))._asdict(), {})
    return same, blank - {"id", "payload"}


def _columns(same: dict[str, Any], own: dict[str, Sequence[Any]]) -> Columns:
    blank = frozenset([name for name, value in same.items() if value == BLANKS[name]])
    return Columns({name: value for name, value in same.items() if name not in blank}, blank, own)


def _is_alike(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)


def event_params(event: NewEvent) -> dict[str, Any]:
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


def event_of(row: Sequence[Any]) -> Event:
    return Event._make((*row[:-1], json.loads(row[-1])))


def array(values: Iterable[Any]) -> str:
    """A column as PostgreSQL writes arrays. The driver would do it too, in ten times the time."""
    column = [*values]
    if {*map(type, column)} == {int}:
        return "{" + str(column)[1:-1] + "}"
    return _texts(column) or "{" + ",".join(map(_element, column)) + "}"


def _texts(column: list[Any]) -> str | None:
    """The same for texts alone, all of them at once; None: there is something else among them."""
    try:
        joined = _BETWEEN.join(column)
    except TypeError:
        return None
    if not column or joined.count(_BETWEEN) != len(column) - 1:
        return None
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_BETWEEN, '","')
    return '{"' + quoted + '"}'


_BETWEEN = "\x1f"  # hardly in any text; where it is, they are written one by one


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)

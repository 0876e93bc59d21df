"""Values that statements take and return, and their conversion to rows.

The field names of many classes are SQL column or parameter names (see `sql/__init__.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueRace, UniqueTaken
from mulligan.core.event import Event, NewEvent
from mulligan.core.job import (
    OPTION_FIELDS,
    Lane,
    NewJob,
    NewJobColumns,
    as_columns,
)

# --- Parameters and results of statements ---


class Inserted(NamedTuple):
    """Result of inserting one job: its id, or that of the job that holds its unique key."""

    id: str
    fresh: bool
    run_at: Micros = 0
    created_at: Micros = 0


class Settlement(NamedTuple):
    """A settlement ready to write: the fence, the job's new columns, the attempt, the event."""

    id: str
    worker: str
    token: int
    state: str
    failures: int
    reason: str
    generation: int
    attempt: int
    settled_by: str
    started_at: int
    ended: str
    verb: str
    event: str
    owner: str
    data: str  # of the event
    run_at: int | None = None
    result: str | None = None
    succeeded_by: str | None = None  # worker of a success that needs no attempt row
    finished: bool = False
    batch_id: str | None = None
    counts: str | None = None
    code: str | None = None
    cls: str | None = None
    rule: str | None = None
    public: str | None = None
    evidence: str | None = None
    private: str | None = None
    fingerprint: str | None = None
    judged: str | None = None
    cancel_known: bool = False
    losses: int = 0
    snoozes: int = 0
    alone: bool = False
    error: str | None = None
    choices: str | None = None
    release_key: bool = False
    cost: float = 0.0
    settings: str | None = None
    queue: str | None = None  # None: unchanged
    lane: str | None = None  # lane in that queue


class RefusalReason(StrEnum):
    """Why a settlement changed nothing."""

    SETTLED = "settled"  # it was written before
    CANCEL = "cancel"  # a cancellation was requested; decide again
    STALE = "stale"  # the lease is lost


class Refusal(NamedTuple):
    """A settlement that changed nothing."""

    id: str
    token: int
    reason: RefusalReason
    cancel_reason: str | None = None


class Move(NamedTuple):
    """Transition outside an attempt, by compare-and-set on (state, generation, token).

    In the fields from `max_retries` on, None leaves the job's value unchanged.
    """

    id: str
    from_state: str
    generation: int
    token: int
    state: str
    run_at: int | None
    new_generation: bool
    finished: bool
    error: str | None
    reason: str
    choice: str | None
    unique_hash: str | None
    max_retries: int | None = None
    queue: str | None = None
    lane: str | None = None  # for the new queue and dependencies
    priority: int | None = None
    timeout: int | None = None
    policy: str | None = None
    payload: str | None = None
    uses: str | None = None
    unique_key: str | None = None
    lane_suffix: str | None = "0"  # "0" fresh, "1" retry
    died_code: str | None = None  # of the failure, if the job dies
    died_class: str | None = None
    died_group: str | None = None


# --- Rows and column sets ---


class InsertRow(NamedTuple):
    """One row of an insert. Relative times are resolved by the database's clock."""

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


class ClaimCandidate(NamedTuple):
    """Job that a worker wants to claim."""

    id: str


class LaneShare(NamedTuple):
    """How many jobs of a lane and priority a worker wants to claim, and where they begin."""

    lane: str
    priority: int
    since: Micros
    jobs: int


def insert_row(job: NewJob, lane: Any) -> InsertRow:
    """Build the row of a job. Also accepts a NewJob of columns, with a column of lanes."""
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


def has_unique_key(jobs: Sequence[NewJob]) -> bool:
    """True if one of the jobs has a unique key."""
    if isinstance(jobs, NewJobColumns):
        return jobs.template.unique_hash is not None
    return any(map(_unique_hash, jobs))


def arg_rows(jobs: Sequence[NewJob]) -> list[tuple[str, str, str, str]]:
    """List (job id, kind, path, value) of all indexed arguments."""
    if isinstance(jobs, NewJobColumns) and not jobs.template.args:
        return []
    return [(job.id, job.kind, name, value) for job in jobs for name, value in job.args]


def due_time(job: NewJob, now: Micros) -> Micros:
    """Return when a job inserted now is due."""
    return now + job.delay if job.run_at is None else job.run_at


def lane_key(job: NewJob) -> str:
    """Return the key of the lane that a fresh job belongs to."""
    return Lane(job.queue, job.kind, job.uses, False, job.share).key


# Values of columns that a job does not set.
DEFAULT_VALUES: dict[str, Any] = {
    **dict.fromkeys(InsertRow._fields),
    **dict.fromkeys(("id", "kind", "queue", "owner", "lane", "uses", "payload"), ""),
    **dict.fromkeys(("priority", "delay"), 0),
    "must_have": False,
}


class InsertColumns(NamedTuple):
    """Several rows by column: shared values, names of defaulted columns, and varying columns."""

    shared: dict[str, Any]
    defaulted: frozenset[str]
    varying: dict[str, Sequence[Any]]


def insert_columns(jobs: Sequence[NewJob]) -> InsertColumns:
    """Split jobs into shared values and columns, so that equal values are sent once."""
    if len(jobs) == 1:
        return _single_row(jobs[0])
    columns = as_columns(jobs)
    if columns is not None:
        template = columns.template
        shared, defaulted = shared_columns(
            template.kind, template.queue, template[OPTION_FIELDS], template.trace
        )
        varying = {"id": columns.ids, "payload": columns.payloads}
        return InsertColumns(shared, defaulted, varying)
    return _transpose(jobs)


def _single_row(job: NewJob) -> InsertColumns:
    shared, defaulted = shared_columns(job.kind, job.queue, job[OPTION_FIELDS], job.trace)
    return InsertColumns({"id": job.id, "payload": job.payload, **shared}, defaulted, {})


def _transpose(jobs: Sequence[NewJob]) -> InsertColumns:
    """Build columns from jobs of different shapes."""
    fields: Any = NewJob._make(zip(*jobs, strict=True))
    one_lane = all(map(_is_constant, (fields.queue, fields.kind, fields.uses, fields.share)))
    lanes = (lane_key(jobs[0]),) * len(jobs) if one_lane else tuple(map(lane_key, jobs))
    columns = insert_row(fields, lanes)._asdict()
    shared = {}
    varying = {}
    for name, column in columns.items():
        if name != "id" and _is_constant(column):
            shared[name] = column[0]
        else:
            varying[name] = column
    return _without_defaults(shared, varying)


@lru_cache(maxsize=512)
def shared_columns(
    kind: str, queue: str, options: tuple[Any, ...], trace: str | None
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the values that jobs with these options share, and the names of defaulted columns."""
    job = NewJob._make(("", kind, queue, "", *options, None, (), trace))
    shared, defaulted, _ = _without_defaults(insert_row(job, lane_key(job))._asdict(), {})
    return shared, defaulted - {"id", "payload"}


def _without_defaults(values: dict[str, Any], varying: dict[str, Sequence[Any]]) -> InsertColumns:
    """Separate shared values from those that equal the default of their column."""
    defaulted = frozenset([name for name, value in values.items() if value == DEFAULT_VALUES[name]])
    shared = {name: value for name, value in values.items() if name not in defaulted}
    return InsertColumns(shared, defaulted, varying)


def _is_constant(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)


def event_params(event: NewEvent) -> dict[str, Any]:
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


def parse_event(row: Sequence[Any]) -> Event:
    """Build an Event from a row whose last column is JSON."""
    return Event._make((*row[:-1], json.loads(row[-1])))


def format_array(values: Iterable[Any]) -> str:
    """Format a column as a PostgreSQL array literal. Ten times faster than the driver."""
    column = [*values]
    if {*map(type, column)} in ({int}, {bool}):
        return "{" + str(column)[1:-1] + "}"
    return _format_text_array(column) or "{" + ",".join(map(_format_element, column)) + "}"


# Rare in text; if a value contains one of them, values are formatted one by one.
_SEPARATOR = "\x1f"
_NULL = "\x1e"


def _format_text_array(column: list[Any]) -> str | None:
    """Format an array of strings and NULLs at once. Return None if there are other values."""
    nulls = column.count(None)
    texts = [_NULL if value is None else value for value in column] if nulls else column
    try:
        joined = _SEPARATOR.join(texts)
    except TypeError:
        return None
    if not column or joined.count(_SEPARATOR) != len(column) - 1 or joined.count(_NULL) != nulls:
        return None
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_SEPARATOR, '","')
    literal = '{"' + quoted + '"}'
    return literal.replace(f'"{_NULL}"', "NULL") if nulls else literal


def _format_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


# --- Errors and text that no database accepts ---

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def unique_taken(job_id: str, detail: str) -> UniqueTaken:
    """Return the error for a unique key that another job holds."""
    return UniqueTaken(f"another job holds the unique key of job {job_id} now ({detail})")


def unique_race(key: str | None) -> UniqueRace:
    """Return the error for a unique key whose holder this transaction cannot see."""
    return UniqueRace(
        f"unique key {key!r} is held by a job this transaction cannot see; "
        "enqueue in a READ COMMITTED transaction, or retry the whole transaction"
    )


def replace_unstorable(value: Any) -> Any:
    """Replace NUL and lone surrogates, which no database accepts, in a parameter."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [replace_unstorable(one) for one in value]
    return value

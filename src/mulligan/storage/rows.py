"""Values that statements take and return, and their conversion to rows.

The field names of many classes are SQL column or parameter names (see `sql/__init__.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueRace, UniqueTaken
from mulligan.core.event import Event, NewEvent

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


class ClaimCandidate(NamedTuple):
    """Job that a worker wants to claim."""

    id: str


class LaneShare(NamedTuple):
    """How many jobs of a lane and priority a worker wants to claim, and where they begin."""

    lane: str
    priority: int
    since: Micros
    jobs: int


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

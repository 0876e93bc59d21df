"""Values that statements take and return, and their conversion to rows.

The field names of many classes are SQL column or parameter names (see `sql/__init__.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.errors import UniqueRace, UniqueTaken
from mulligan.core.event import Event, NewEvent
from mulligan.core.job import Gate, GuardRow, Limit, LimitKey

# --- Parameters and results of statements ---


class Inserted(NamedTuple):
    """Result of inserting one job: its id, or that of the job that holds its unique key."""

    id: str
    fresh: bool
    run_at: Micros = 0
    created_at: Micros = 0


class ClaimState(NamedTuple):
    """State that a claim depends on, read from small tables and one loose index scan."""

    now: Micros
    gates: list[Gate]
    limits: dict[LimitKey, Limit]  # set by operators and in force
    lanes: list[tuple[str, int, Micros]]  # lane key, priority, earliest run_at
    guards: list[GuardRow] = []  # active ones  # noqa: RUF012 - never changed


class UnlimitedLanes(NamedTuple):
    """Lanes without declared limits, and the time for which this is known to be true."""

    lanes: Sequence[str]
    since: Micros
    until: Micros


class ClaimPosition(NamedTuple):
    """Where the last full claim of a lane ended, and the time for which its checks are valid."""

    lane: str
    priority: int
    run_at: Micros
    since: Micros
    until: Micros


class Settlement(NamedTuple):
    """A settlement ready to write: the fence, the job's new columns, the attempt, the event."""

    id: str
    worker: str
    token: int
    cancel_known: bool
    state: str
    run_at: int | None
    failures: int
    losses: int
    snoozes: int
    alone: bool
    result: str | None
    error: str | None
    choices: str | None
    reason: str
    finished: bool
    release_key: bool
    cost: float
    generation: int
    attempt: int
    settled_by: str
    started_at: int
    ended: str
    verb: str
    code: str | None
    cls: str | None
    rule: str | None
    public: str | None
    evidence: str | None
    private: str | None
    fingerprint: str | None
    event: str
    owner: str
    batch_id: str | None
    data: str
    counts: str | None = None
    settings: str | None = None
    judged: str | None = None
    queue: str | None = None  # None: unchanged
    lane: str | None = None  # lane in that queue


class SuccessRow(NamedTuple):
    """Settlement of an attempt that returned and changes nothing but the job's state and result."""

    id: str
    token: int
    generation: int
    attempt: int
    started_at: int
    result: str | None
    owner: str
    batch_id: str | None
    data: str
    row_location: str | None = None  # as in the lease


class RetryRow(NamedTuple):
    """Per-attempt values of a group of retries that share one decision."""

    id: str
    row_location: str | None  # as in the lease
    started_at: int
    message: str  # exception message, escaped for JSON
    duration_ms: int
    waited_ms: int


class SharedRetryTexts(NamedTuple):
    """Shared parts of the texts of a group of retries.

    The private text of an attempt contains its message twice, the event its two durations.
    """

    private_head: str
    private_middle: str
    private_tail: str
    event_head: str
    event_middle: str


class Refusal(NamedTuple):
    """A settlement that changed nothing, and the reason."""

    id: str
    token: int
    # "settled": written before · "cancel": to be decided again · "stale": the lease is lost
    why: str
    cancel_reason: str | None


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


class Renewal(NamedTuple):
    """Result of renewing a worker's lease."""

    alive: bool  # False: the worker's row was closed; it must continue under a new id
    now: Micros
    cancels: list[tuple[str, int, str]]  # job id, token, reason
    drain: str | None = None  # reason of a drain request


class PrunedJobs(NamedTuple):
    """Summary of jobs that retention deleted together."""

    kind: str
    state: str
    owner: str
    code: str
    jobs: int
    first_id: str
    last_id: str


class ScheduleRow(NamedTuple):
    """Stored state of a schedule. Its definition is in the manifest."""

    name: str
    cron: str
    timezone: str
    cursor: Micros  # every slot up to here has been handled
    declared_at: Micros  # when a manifest in use last declared it, to the day
    paused_at: Micros | None = None
    paused_until: Micros | None = None  # None: until it is resumed
    pause_reason: str = ""
    paused_by: str = ""


class NewBatch(NamedTuple):
    """A batch about to be inserted."""

    id: str
    name: str
    owner: str
    tolerance: str
    on_complete: str | None
    unique_key: str | None
    unique_hash: str | None
    expires_span: Micros | None  # duration, from now
    expires_at: Micros | None  # absolute, instead of `expires_span`


class BatchRow(NamedTuple):
    """A batch as stored: its definition, then its progress."""

    id: str
    name: str
    owner: str
    tolerance: str  # number or share of members that may die: "3", "10%"
    on_complete: str | None  # JSON of a prepared NewJob
    unique_key: str | None
    created_at: Micros
    sealed_at: Micros | None
    cancelled_at: Micros | None
    cancel_reason: str | None
    generation: int
    outcome: str | None  # ready, partial or failed
    outcome_at: Micros | None
    previous: str | None  # outcome of the previous generation
    sealed_event_written: bool  # the event batch.sealed is written
    expires_at: Micros | None
    expired_at: Micros | None
    being_pruned: bool  # retention has started to delete it


# --- Rows and column sets ---


class ClaimCandidate(NamedTuple):
    """Job that a worker wants to claim."""

    id: str


class SuccessColumns(NamedTuple):
    """Columns of a success that are not in the job's row."""

    id: str
    token: int
    result: str | None
    data: str


class PerAttemptColumns(NamedTuple):
    """Columns that differ between settlements that share one decision."""

    id: str
    private: str | None
    data: str


# Fields in which settlements may differ and still share one decision. The statement reads those
# that are not in PerAttemptColumns from the job's row.
PER_ATTEMPT_FIELDS = frozenset(
    {*PerAttemptColumns._fields, "generation", "attempt", "started_at", "owner", "batch_id"}
)


class LocatedSuccessColumns(NamedTuple):
    """SuccessColumns with the location of the row at the claim."""

    id: str
    token: int
    result: str | None
    data: str
    row_location: str | None


class RetryColumns(NamedTuple):
    """Columns of a retry that are not in the job's row."""

    id: str
    row_location: str | None
    message: str
    duration_ms: int
    waited_ms: int


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
    if {*map(type, column)} == {int}:
        return "{" + str(column)[1:-1] + "}"
    return _format_text_array(column) or "{" + ",".join(map(_format_element, column)) + "}"


_SEPARATOR = "\x1f"  # rare in text; if a value contains it, values are formatted one by one


def _format_text_array(column: list[Any]) -> str | None:
    """Format an array of strings at once. Return None if there are other values."""
    try:
        joined = _SEPARATOR.join(column)
    except TypeError:
        return None
    if not column or joined.count(_SEPARATOR) != len(column) - 1:
        return None
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace(_SEPARATOR, '","')
    return '{"' + quoted + '"}'


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

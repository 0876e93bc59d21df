"""How values become rows, the same for both stores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.core.errors import UniqueRace, UniqueTaken
from mulligan.core.event import Event, NewEvent
from mulligan.core.job import (
    SAID,
    Gate,
    Guarded,
    GuardRow,
    Lane,
    Limit,
    Micros,
    NewJob,
    NewJobColumns,
    in_columns,
)

# What verbs take and answer.


class Inserted(NamedTuple):
    """The answer to one NewJob: its own id, or the id of the twin that holds its unique key."""

    id: str
    fresh: bool
    run_at: Micros = 0
    created_at: Micros = 0


class Look(NamedTuple):
    """What a claim must know first, from small tables and one loose index scan."""

    now: Micros
    gates: list[Gate]
    limits: dict[Guarded, Limit]  # as operators have set them, while they last
    lanes: list[tuple[str, int, Micros]]  # lane key, priority, earliest run_at
    guards: list[GuardRow] = []  # those at work  # noqa: RUF012 - never changed


class UnlimitedLanes(NamedTuple):
    """Lanes that a worker knows and nothing that code declares limits, and from when to when it may believe so."""

    lanes: Sequence[str]
    since: Micros
    until: Micros


class ClaimMark(NamedTuple):
    """Where a claim of one lane ended that took all it wanted, and from when to when what was seen then is believed."""

    lane: str
    priority: int
    run_at: Micros
    since: Micros
    until: Micros


class Settlement(NamedTuple):
    """One ending, ready to write: the fence, the job's new columns, the attempt row, the event."""

    id: str
    worker: str
    token: int
    saw_cancel: bool
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
    free_key: bool
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
    queue: str | None = None  # None: the one it is in
    lane: str | None = None  # of that queue


class Finished(NamedTuple):
    """A settlement of which there is only this to say: it returned, and nothing but its state changes."""

    id: str
    token: int
    generation: int
    attempt: int
    started_at: int
    result: str | None
    owner: str
    batch_id: str | None
    data: str
    lies_at: str | None = None  # as its lease has it


class RetriedAttempt(NamedTuple):
    """What is of each alone among attempts that failed alike and are tried again."""

    id: str
    lies_at: str | None  # as its lease has it
    started_at: int
    said: str  # its words, as they stand in a text in JSON
    took: int  # milliseconds
    waited: int


class Around(NamedTuple):
    """The texts of such attempts but for what is of each alone: of the private half, which has its words twice, and of
    the event, which has its two numbers.
    """

    before: str
    between: str
    after: str
    news_before: str
    news_between: str


class Refusal(NamedTuple):
    """A settlement that changed nothing, and why."""

    id: str
    token: int
    why: str  # "settled": this very ending is already written · "cancel": decide again · "stale": the lease is lost
    cancel_reason: str | None


class Move(NamedTuple):
    """A move outside an attempt (by a person or by upkeep), compare-and-set on (state, generation, token)."""

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
    max_retries: int | None = None  # None, as of all that follow: as it was
    queue: str | None = None
    lane: str | None = None  # of that queue, and of what it uses
    priority: int | None = None
    timeout: int | None = None
    policy: str | None = None
    payload: str | None = None
    uses: str | None = None
    unique_key: str | None = None
    sign: str | None = "0"  # the last of its lane: "0" fresh, "1" retry; None: as it is
    died_code: str | None = None  # of what it dies, if it does
    died_class: str | None = None
    died_group: str | None = None


class Renewal(NamedTuple):
    alive: bool  # False: this worker's row was closed by somebody; it must go on under a new id
    now: Micros
    cancels: list[tuple[str, int, str]]  # job id, token, reason
    drain: str | None = None  # somebody wants this worker to finish what it runs and leave; why


class Pruned(NamedTuple):
    kind: str
    state: str
    owner: str
    code: str
    jobs: int
    first_id: str
    last_id: str


class ScheduleRow(NamedTuple):
    """What is remembered of a schedule; everything else about it is in the manifest."""

    name: str
    cron: str
    timezone: str
    cursor: Micros  # every slot up to here is decided
    named_at: Micros  # when a manifest in force was last seen to name it, to the day
    paused_at: Micros | None = None
    paused_until: Micros | None = None  # None: until somebody resumes it
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
    expires_span: Micros | None  # length, from now
    expires_at: Micros | None  # absolute, instead of `expires_span`


class BatchRow(NamedTuple):
    """A batch as stored: its definition, then its progress."""

    id: str
    name: str
    owner: str
    tolerance: str  # how many members may die: "3", or a share, "10%"
    on_complete: str | None  # JSON of a prepared NewJob
    unique_key: str | None
    created_at: Micros
    sealed_at: Micros | None
    cancelled_at: Micros | None
    cancel_reason: str | None
    generation: int
    outcome: str | None  # of this generation: ready, partial, failed
    outcome_at: Micros | None
    previous: str | None  # the outcome of the generation before
    told: bool  # `batch.sealed` is written
    expires_at: Micros | None
    expired_at: Micros | None
    leaving: bool  # retention has begun to remove it


# How values become rows, the same for both stores.


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


class ClaimCandidate(NamedTuple):
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
    return (
        jobs.like.unique_hash is not None
        if isinstance(jobs, NewJobColumns)
        else any(map(_unique_hash, jobs))
    )


def arg_rows(jobs: Sequence[NewJob]) -> list[tuple[str, str, str, str]]:
    """What jobs are found by: id, kind, path and value."""
    if isinstance(jobs, NewJobColumns) and not jobs.like.args:
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


class InsertColumns(NamedTuple):
    """Several rows: what is the same in all of them, what of that is blank, and the columns of the rest."""

    alike: dict[str, Any]
    blank: frozenset[str]
    own: dict[str, Sequence[Any]]


def insert_columns(jobs: Sequence[NewJob]) -> InsertColumns:
    if len(jobs) == 1:
        job = jobs[0]
        same, blank = beside(job.kind, job.queue, job[SAID], job.trace)
        return InsertColumns({"id": job.id, "payload": job.payload, **same}, blank, {})
    if (alike := in_columns(jobs)) is not None:
        like = alike.like
        same, blank = beside(like.kind, like.queue, like[SAID], like.trace)
        return InsertColumns(same, blank, {"id": alike.ids, "payload": alike.payloads})
    every: Any = NewJob._make(zip(*jobs, strict=True))
    one_lane = all(map(_is_alike, (every.queue, every.kind, every.uses, every.share)))
    lanes = (lane_of(jobs[0]),) * len(jobs) if one_lane else tuple(map(lane_of, jobs))
    columns = insert_row(every, lanes)._asdict()
    same = {
        name: column[0] for name, column in columns.items() if name != "id" and _is_alike(column)
    }
    return _columns(same, {name: column for name, column in columns.items() if name not in same})


@lru_cache(maxsize=512)
def beside(
    kind: str, queue: str, said: tuple[Any, ...], trace: str | None
) -> tuple[dict[str, Any], frozenset[str]]:
    """What is said of a job beside its id and its payload, and what is not: often the same as of the one before."""
    job = NewJob._make(("", kind, queue, "", *said, None, (), trace))
    same, blank, _ = _columns(insert_row(job, lane_of(job))._asdict(), {})
    return same, blank - {"id", "payload"}


def _columns(same: dict[str, Any], own: dict[str, Sequence[Any]]) -> InsertColumns:
    blank = frozenset([name for name, value in same.items() if value == BLANKS[name]])
    return InsertColumns(
        {name: value for name, value in same.items() if name not in blank}, blank, own
    )


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


# Sentences both stores say, and text neither takes.

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def taken(job_id: str, detail: str) -> UniqueTaken:
    return UniqueTaken(f"another job holds the unique key of job {job_id} now ({detail})")


def unique_race(key: str | None) -> UniqueRace:
    return UniqueRace(
        f"unique key {key!r} is held by a job this transaction cannot see; "
        "enqueue in a READ COMMITTED transaction, or retry the whole transaction"
    )


def fit(value: Any) -> Any:
    """A parameter without what no database takes as text: NUL and lone surrogates."""
    if isinstance(value, str):
        return _UNFIT.sub("\ufffd", value)
    return [fit(one) for one in value] if isinstance(value, list) else value

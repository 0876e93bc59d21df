"""Value types of a job and of its stored rows. All are immutable and know nothing of a database.

Times are integer microseconds since the epoch (`Micros`); only the public `Job` has datetimes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, overload

Micros = int
SECOND: Micros = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class State(StrEnum):
    """The six states that are stored. What people want to see beyond them is derived (`phase`)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    PARKED = "parked"


class PreviousAttempts(NamedTuple):
    """What a later attempt may know of earlier ones."""

    checkpoints: Mapping[str, str]  # name → JSON text
    previous: Mapping[str, Any] | None  # code, class, attempt of the last failure


class NewJob(NamedTuple):
    """A job about to be inserted."""

    id: str
    kind: str
    queue: str
    payload: str
    owner: str = ""
    priority: int = 0
    uses: str = ""
    delay: Micros = 0
    run_at: Micros | None = None  # absolute, instead of delay
    max_retries: int | None = None
    policy: str | None = None
    timeout: Micros | None = None
    deadline: Micros | None = None  # length, from now
    deadline_at: Micros | None = None  # absolute, instead of `deadline`
    unique_key: str | None = None
    unique_hash: str | None = None
    unique_cover: str | None = None
    unique_for: Micros | None = None
    share: str = ""  # of the owner, in a fair queue
    unique_exact: bool = False  # explicit key: another payload is refused
    batch_id: str | None = None
    must_have: bool = False  # without it the batch has failed
    added_by: tuple[str, str, int] | None = (
        None  # the running member that adds it: job, worker, token
    )
    args: tuple[
        tuple[str, str], ...
    ] = ()  # what filters find it by: path and value of each indexed argument
    trace: str | None = None  # W3C: traceparent, and tracestate behind a space


class NewJobColumns(Sequence[NewJob]):
    """Several jobs about to be inserted that differ in id and payload alone: what is said of all, and two columns. A
    row is made of each when somebody asks for it.
    """

    __slots__ = ("ids", "like", "payloads", "values")

    def __init__(
        self,
        like: NewJob,
        ids: Sequence[str],
        payloads: Sequence[str],
        values: Sequence[Any] | None = None,
    ) -> None:
        """`values`: what the payloads say, where nobody else has it."""
        self.like = like
        self.ids = ids
        self.payloads = payloads
        self.values = values

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> NewJobColumns: ...
    def __getitem__(self, at: int | slice) -> NewJob | NewJobColumns:
        if isinstance(at, slice):
            return NewJobColumns(self.like, self.ids[at], self.payloads[at])
        return self.like._replace(id=self.ids[at], payload=self.payloads[at])

    def __iter__(self) -> Iterator[NewJob]:
        _, kind, queue, _, *rest = self.like
        return (
            NewJob._make((id_, kind, queue, text, *rest))
            for id_, text in zip(self.ids, self.payloads, strict=True)
        )


def in_columns(jobs: Sequence[NewJob]) -> NewJobColumns | None:
    """The same jobs, if they differ in id and payload alone."""
    if isinstance(jobs, NewJobColumns):
        return jobs
    _, kind, queue, _, *_ = first = jobs[0]
    rest = first[BEHIND_PAYLOAD:]
    # Row by row: columns of all of them at once would call the collector.
    if not all(job[1] == kind and job[2] == queue and job[BEHIND_PAYLOAD:] == rest for job in jobs):
        return None
    return NewJobColumns(first, [job.id for job in jobs], [job.payload for job in jobs])


def is_plain(job: NewJob) -> bool:
    """Nothing can stand in its way: it has no unique key, and joins no batch."""
    return job.unique_hash is None and job.batch_id is None


def all_plain(jobs: Sequence[NewJob]) -> bool:
    return is_plain(jobs.like) if isinstance(jobs, NewJobColumns) else all(map(is_plain, jobs))


BEHIND_PAYLOAD = NewJob._fields.index("payload") + 1
SAID = slice(
    BEHIND_PAYLOAD, NewJob._fields.index("added_by")
)  # what its row holds beside what stands before and a trace


class JobRow(NamedTuple):
    """A job as stored, for readers."""

    id: str
    kind: str
    queue: str
    owner: str
    state: str
    priority: int
    payload: str
    result: str | None
    error: str | None  # JSON, only when dead
    uses: str
    run_at: Micros
    created_at: Micros
    started_at: Micros | None
    first_started_at: Micros | None
    finished_at: Micros | None
    deadline_at: Micros | None
    worker: str | None
    token: int
    generation: int
    attempt: int
    failures: int
    losses: int
    snoozes: int
    max_retries: int | None
    alone: bool
    unique_key: str | None
    unique_hash: str | None
    unique_cover: str | None
    batch_id: str | None
    cancel_reason: str | None
    choice: str | None
    choices: str | None  # JSON list, only when parked
    reason: str  # of the last move
    progress: float | None
    progress_message: str
    cost: float
    policy: str | None = None  # JSON of a Policy given with the job
    timeout: Micros | None = None
    counts: str | None = None  # JSON: counted failures of this generation, by class and by code
    settings: str | None = None  # JSON: what an escalation gave the next attempts


class AttemptRow(NamedTuple):
    """One finished attempt, kept for ever beside its job."""

    job_id: str
    token: int
    generation: int
    attempt: int
    worker: str
    settled_by: str  # the worker itself, or who found it lost
    started_at: Micros
    ended_at: Micros
    ended: str
    verb: str
    code: str | None
    cls: str | None
    rule: str | None
    public: str | None
    evidence: str | None  # JSON
    private: str | None  # JSON
    fingerprint: str | None
    next_run_at: Micros | None
    reason: str
    cost: float
    judged: str | None = None  # JSON: rule table, ground, retry_count, terms, then, shadow verdicts


class WorkerRow(NamedTuple):
    """A worker as stored: its lease is one row for all its jobs."""

    id: str
    host: str
    pid: int
    boot_id: str
    lease: Micros
    started_at: Micros
    renewed_at: Micros
    renewed_mono: Micros  # CLOCK_MONOTONIC of `boot_id`
    closed_at: Micros | None
    close_reason: str
    life_path: str
    life_dev: int
    life_ino: int
    kinds: str  # JSON list
    queues: str  # JSON list, empty: all
    concurrency: int
    release: str
    draining: bool
    drain_reason: str | None = None  # somebody wants it to finish what it runs, and leave


class Gate(NamedTuple):
    """A closed door: a queue by a person, a kind or a dependency by a guard or a person."""

    scope: str  # queue, kind, dependency
    key: str
    since: Micros
    until: Micros | None  # None: until opened by hand
    reason: str
    actor: str
    probe_at: Micros | None = None  # when a guard looks whether it can open it again


class GuardRow(NamedTuple):
    """What a guard remembers, as stored: whoever changes it names the version that was seen."""

    scope: str  # dependency, kind
    key: str
    version: int
    active: bool  # claims must ask it
    body: str  # JSON; empty: nothing yet


class MarkRow(NamedTuple):
    """What somebody has said about a failure group."""

    fingerprint: str
    scope: str  # "*": all owners together, else one of them
    state: str  # open, muted, resolved
    until: Micros | None  # of muted; None: until somebody says otherwise
    note: str
    actor: str
    at: Micros
    resolved_at: Micros | None


_NAME = re.compile(r"[^\s|,\x00-\x1f\x7f\ud800-\udfff]{1,200}")
NAME_RULE = "a name is 1 to 200 characters without spaces, '|' or ','"


def is_name(value: object) -> bool:
    """Fit for a lane's key, which has "|" and "," between names."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


class Lane(NamedTuple):
    """The unit a claim takes from: queue, kind, sorted dependencies (in a fair queue a share), fresh or retry."""

    queue: str
    kind: str
    uses: str
    retry: bool
    share: str = ""

    @property
    def key(self) -> str:
        """The last sign alone says fresh or retry: a job that fails changes nothing else of it."""
        share = f"{self.share}|" if self.share else ""
        return f"{self.queue}|{self.kind}|{self.uses}|{share}{int(self.retry)}"

    @classmethod
    def parse(cls, key: str) -> Lane:
        queue, kind, uses, *share, retry = key.split("|")
        return cls(queue, kind, uses, retry == "1", *share)

    @property
    def guards(self) -> list[Guarded]:
        """What may be limited on its way."""
        return [
            ("queue", self.queue),
            *(("dependency", key) for key in self.uses.split(",") if key),
        ]


Guarded = tuple[str, str]  # scope (queue, dependency), key


class Limit(NamedTuple):
    """How much of something may go on at once, and how many may start in a second; None: nothing was said."""

    concurrency: int | None = None
    rate: float | None = None
    burst: float | None = None  # how many of a rate may start at once; None: a second's worth


class LimitRow(NamedTuple):
    """A limit as an operator has set it: wins over what code declares until it ends or is cleared."""

    scope: str  # queue, dependency
    key: str
    concurrency: int | None
    rate: float | None
    since: Micros
    until: Micros | None
    reason: str
    actor: str


class Meter(NamedTuple):
    """How many starts a rate still allowed, and when that was."""

    tokens: float
    at: Micros


@dataclass(
    frozen=True
)  # without slots: a bulk enqueue answers with thousands, and copies what they share
class Job:
    """A job as people see it: read-only, a picture of one moment; `refresh()` takes a new one."""

    id: str
    kind: str
    queue: str
    owner: str
    state: State
    phase: str
    why: str
    payload: Any
    result: Any
    priority: int
    progress: float | None
    attempt: int
    attempts: int
    failures: int
    losses: int
    max_retries: int | None
    generation: int
    token: int
    batch_id: str | None
    unique_key: str | None
    uses: tuple[str, ...]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    error: Mapping[str, Any] | None
    next_retry_at: datetime | None
    deduplicated: bool
    cost: float
    _again: Callable[[str], Job] | None = field(default=None, repr=False, compare=False)

    def refresh(self) -> Job:
        """The same job as it is now."""
        if self._again is None:
            message = "this Job was not read from a store; use app.jobs.get(id)"
            raise RuntimeError(message)
        return self._again(self.id)


def to_datetime(at: Micros) -> datetime:
    """Exact, unlike `fromtimestamp`, and legal far outside the platform's range of seconds."""
    return EPOCH + timedelta(0, 0, at)


def to_micros(at: datetime) -> Micros:
    """A datetime without a zone is refused: nobody can know which hour was meant."""
    if at.tzinfo is None:
        message = (
            f"datetime {at.isoformat()} has no time zone; use datetime.now(UTC) or .astimezone()"
        )
        raise ValueError(message)
    return (at - EPOCH) // timedelta(microseconds=1)


def span(value: float | timedelta) -> Micros:
    """Seconds or timedelta as microseconds."""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return round(value * SECOND)

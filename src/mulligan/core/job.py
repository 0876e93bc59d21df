"""Value types of a job and of the rows stored about it. All are immutable.

Times are integer microseconds (`Micros`). Only the public `Job` has datetimes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, check_duration
from mulligan.core.errors import ConfigError, Duration


class State(StrEnum):
    """The six stored states. Finer distinctions, such as `backing_off`, are derived on read."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    PARKED = "parked"


class PreviousAttempts(NamedTuple):
    """State that earlier attempts left for the next one."""

    checkpoints: Mapping[str, str]  # name → JSON text
    previous: Mapping[str, Any] | None  # code, class, attempt of the last failure


class NewJob(NamedTuple):
    """A job about to be inserted. Its fields are the parameters of the insert statements."""

    id: str
    payload: str
    kind: str
    queue: str
    owner: str = ""
    priority: int = 0
    uses: str = ""
    share: str = ""  # share of its owner in a fair queue
    delay: Micros = 0
    run_at: Micros | None = None  # absolute, instead of `delay`
    deadline: Micros | None = None  # duration, from now
    deadline_at: Micros | None = None  # absolute, instead of `deadline`
    max_retries: int | None = None
    policy: str | None = None
    timeout: Micros | None = None
    unique_key: str | None = None
    unique_hash: str | None = None
    unique_cover: str | None = None
    unique_for: Micros | None = None
    unique_exact: bool = False  # the key was passed explicitly: refuse another payload
    batch_id: str | None = None
    must_have: bool = False  # the batch fails if this member dies
    trace: str | None = None  # W3C: traceparent, a space, tracestate
    # Job id, worker and token of the running batch member that adds this job.
    added_by: tuple[str, str, int] | None = None
    args: tuple[tuple[str, str], ...] = ()  # (path, value) of each indexed payload field


class JobRow(NamedTuple):
    """A job as stored."""

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
    reason: str  # of the last transition
    progress: float | None
    progress_message: str
    cost: float
    policy: str | None = None  # JSON of a Policy passed with the job
    timeout: Micros | None = None
    counts: str | None = None  # JSON: counted failures of this generation, by class and by code
    settings: str | None = None  # JSON: settings for the next attempts, from an escalation step


class AttemptRow(NamedTuple):
    """A finished attempt, stored as long as its job."""

    job_id: str
    token: int
    generation: int
    attempt: int
    worker: str
    settled_by: str  # its worker, or the worker that found it lost
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
    """A worker as stored. This row is the lease of all jobs it runs."""

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
    lock_path: str
    lock_dev: int
    lock_ino: int
    kinds: str  # JSON list
    queues: str  # JSON list, empty: all
    concurrency: int
    release: str
    draining: bool
    drain_reason: str | None = None  # None: no drain was requested


class Gate(NamedTuple):
    """A closed queue, kind or dependency: claims skip its jobs."""

    scope: str  # queue, kind, dependency
    key: str
    since: Micros
    until: Micros | None  # None: until it is opened manually
    reason: str
    actor: str
    probe_at: Micros | None = None  # when a guard checks whether it can be opened


class GuardRow(NamedTuple):
    """Stored state of a guard. Updates are compare-and-set on `version`."""

    scope: str  # dependency, kind
    key: str
    version: int
    active: bool  # claims must consult it
    body: str  # JSON; "" before the first update


class FailureGroupRow(NamedTuple):
    """Status of a failure group as set by a person: muted, resolved or open again."""

    fingerprint: str
    scope: str  # an owner, or "*" for all owners
    state: str  # open, muted, resolved
    until: Micros | None  # end of the mute; None: no end
    note: str
    actor: str
    at: Micros
    resolved_at: Micros | None


ALL_OWNERS = "*"  # the scope of keys and marks that are not about one owner
COUNT_CAP = 10_000  # counts of jobs stop here
_NAME = re.compile(r"[^\s|,\x00-\x1f\x7f\ud800-\udfff]{1,200}")
NAME_RULE = "a name is 1 to 200 characters without spaces, '|' or ','"


def is_name(value: object) -> bool:
    """True if the value can be part of a lane key, which separates names by "|" and ","."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


class Lane(NamedTuple):
    """The unit that a claim takes from: queue, kind, dependencies, fresh or retry.

    `uses` is sorted. In a fair queue a lane also has a share of the queue.
    """

    queue: str
    kind: str
    uses: str
    retry: bool
    share: str = ""

    @property
    def key(self) -> str:
        """Key as stored. Its last character is 0 (fresh) or 1 (retry), so SQL can switch it."""
        share = f"{self.share}|" if self.share else ""
        return f"{self.queue}|{self.kind}|{self.uses}|{share}{int(self.retry)}"

    @staticmethod
    def parse(key: str) -> Lane:
        """Split a stored key."""
        return _parse_lane(key)

    @property
    def dependencies(self) -> list[str]:
        return self.uses.split(",") if self.uses else []

    @property
    def limit_keys(self) -> list[LimitKey]:
        """Keys of the limits that apply to its jobs: its queue and its dependencies."""
        return [("queue", self.queue), *(("dependency", key) for key in self.dependencies)]


@lru_cache(maxsize=4096)  # a claim reads every lane with jobs
def _parse_lane(key: str) -> Lane:
    queue, kind, uses, *share, retry = key.split("|")
    return Lane(queue, kind, uses, retry == "1", *share)


LimitKey = tuple[str, str]  # scope ("queue" or "dependency"), name


class Limit(NamedTuple):
    """Concurrency and start rate of a queue or dependency. None: not limited."""

    concurrency: int | None = None
    rate: float | None = None  # starts per second
    burst: float | None = None  # starts at once; None: as many as `rate` allows in a second


LaneRef = tuple[str, int]  # lane key, priority


class Candidate(NamedTuple):
    """A due job that a claim may take. Candidates sort in the order of claims."""

    priority: int
    run_at: Micros
    id: str
    lane: str


class ClaimState(NamedTuple):
    """State that a claim depends on, read from small tables and one loose index scan."""

    now: Micros
    gates: list[Gate]
    limits: dict[LimitKey, Limit]  # set by operators and in force
    lanes: list[tuple[str, int, Micros]]  # lane key, priority, earliest run_at
    guards: list[GuardRow] = []  # active ones  # noqa: RUF012 - never changed
    candidates: list[Candidate] = []  # of the expected lanes  # noqa: RUF012 - never changed


class LimitRow(NamedTuple):
    """A limit set by an operator. It overrides the declared one until it ends or is cleared."""

    scope: str  # queue, dependency
    key: str
    concurrency: int | None
    rate: float | None
    since: Micros
    until: Micros | None
    reason: str
    actor: str


class TokenBucket(NamedTuple):
    """State of a rate limit: the starts that were left at a time."""

    tokens: float
    at: Micros


# Without slots: a bulk enqueue returns thousands of jobs and copies a shared `__dict__`.
@dataclass(frozen=True)
class Job:
    """Snapshot of a job. `refresh()` reads the job again."""

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
    _reload: Callable[[str], Job] | None = field(default=None, repr=False, compare=False)

    def refresh(self) -> Job:
        """Return a new snapshot of this job."""
        if self._reload is None:
            message = "this Job was not read from a database; use app.jobs.get(id)"
            raise RuntimeError(message)
        return self._reload(self.id)


# --- Uniqueness ---

DEFAULT_COVER = (State.QUEUED, State.RUNNING, State.PARKED, State.SUCCEEDED)


@dataclass(frozen=True)
class Unique:
    """Return an existing job instead of enqueuing a second one with the same key.

    `by` names the parts of the key: "owner", "queue", "payload" or "payload.field.field".
    `while_` lists the states in which the first job reserves its key, `for_` limits how long.
    """

    by: str | tuple[str, ...] = ("payload",)
    while_: str | tuple[str, ...] = DEFAULT_COVER
    for_: Duration | None = None

    def __post_init__(self) -> None:
        by = (self.by,) if isinstance(self.by, str) else tuple(self.by)
        cover = (self.while_,) if isinstance(self.while_, str) else tuple(self.while_)
        for name in by:
            if name.split(".")[0] not in ("owner", "queue", "payload"):
                message = (
                    f"Unique(by={name!r}): unknown part. "
                    "Use owner, queue, payload or payload.field."
                )
                raise ConfigError(message)
        for state in cover:
            if state not in list(State):
                message = f"Unique(while_={state!r}): unknown state. Use {', '.join(State)}."
                raise ConfigError(message)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "while_", cover)

    @property
    def period(self) -> Micros | None:
        """How long the key is reserved. None: while the job is in a covered state."""
        return None if self.for_ is None else check_duration("for_", self.for_)

    @property
    def covered_states(self) -> str:
        """States in which the key is reserved, comma separated, as stored."""
        return ",".join(str(State(state)) for state in self.while_)

    def key(self, owner: str, queue: str, payload: Any) -> str:
        """Build the key of a job: JSON of the values that `by` names."""
        source = {"owner": owner, "queue": queue, "payload": payload}
        parts = [_value_at(source, path) for path in self.by]
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def unique_hash(owner: str, kind: str, key: str) -> str:
    """Hash a key. Owners and kinds have separate keys."""
    text = f"{owner}\x00{kind}\x00{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _value_at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


class ArgRow(NamedTuple):
    """Indexed argument of a job."""

    job_id: str
    kind: str
    name: str
    value: str

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
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from mulligan.core import other_libraries
from mulligan.core.durations import Micros, check_duration
from mulligan.core.errors import ConfigError, Duration, DurationOrTime
from mulligan.core.other_libraries import refuse_attribute
from mulligan.core.suggest import name_unknown_options


class State(StrEnum):
    """The six stored states. Finer distinctions, such as `backing_off`, are derived on read."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    PARKED = "parked"


class RecordedStep(NamedTuple):
    """A step or checkpoint that an earlier attempt recorded."""

    kind: str
    state: str
    number: int  # order in which the steps ended
    value: str | None  # JSON text
    detail: str
    token: int  # of that attempt


class PreviousAttempts(NamedTuple):
    """State that earlier attempts left for the next one."""

    steps: Mapping[str, RecordedStep]  # by name
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
    version: int = 1  # of the payload, as its kind declared it
    args: tuple[tuple[str, str], ...] = ()  # (path, value) of each indexed payload field

    def due_at(self, now: Micros) -> Micros:
        """Return when the job may start if it is inserted now."""
        return now + self.delay if self.run_at is None else self.run_at


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
    version: int = 1  # of the payload
    waits: str | None = None  # JSON: what it waits for without a slot


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
    release: str = ""  # that its worker ran

    @property
    def has_run(self) -> bool:
        """False if the job was only claimed and returned before its code was called."""
        return self.judged is None or '"unstarted"' not in self.judged


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
    renewing: Micros = 0  # how long it has renewed without a gap, by its monotonic clock
    memory: int = 0  # resident bytes of the worker and its runners at the last renewal; 0: unknown


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
    in_release: str = ""  # that has the fix, or "next"; empty: every one
    regressed_at: Micros | None = None  # when a job died although the cause was resolved
    assignee: str = ""  # the person who works on it


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
    @lru_cache(maxsize=4096)  # a claim reads every lane with jobs
    def parse(key: str) -> Lane:
        """Split a stored key."""
        queue, kind, uses, *share, retry = key.split("|")
        return Lane(queue, kind, uses, retry == "1", *share)

    @property
    def dependencies(self) -> list[str]:
        return split_uses(self.uses)

    @property
    def limit_keys(self) -> list[LimitKey]:
        """Keys of the limits that apply to its jobs: its queue and its dependencies."""
        return [("queue", self.queue), *(("dependency", key) for key in self.dependencies)]


def split_uses(uses: str) -> list[str]:
    """Return the keys of dependencies that a job, lane or kind has in one text."""
    return uses.split(",") if uses else []


LimitKey = tuple[str, str]  # scope ("queue" or "dependency"), name


class Limit(NamedTuple):
    """Concurrency and start rate of a queue or dependency. None: not limited."""

    concurrency: int | None = None
    rate: float | None = None  # starts per second
    burst: float | None = None  # starts at once; None: as many as `rate` allows in a second


LaneRef = tuple[str, int]  # lane key, priority
LaneEntry = tuple[str, int, Micros]  # lane key, priority, when its first job is due


FIRST_LANE: LaneRef = ("", -10)  # sorts before every lane


class LaneWindow(NamedTuple):
    """Lanes that are read with the state of a claim."""

    after: LaneRef = FIRST_LANE  # read the lanes that sort behind this one
    max_lanes: int = 2000 * 19


ALL_LANES = LaneWindow()


class ReadyWindow(NamedTuple):
    """Lanes that are read in addition, if a window does not hold all lanes."""

    known: list[LaneRef]  # read these too
    since: Micros  # read those of jobs that have become ready since then
    max_ready: int
    max_upcoming: int  # jobs that will be ready next


class Candidate(NamedTuple):
    """A due job that a claim may take. Candidates sort in the order of claims."""

    priority: int
    run_at: Micros
    id: str
    lane: str


class ClaimState(NamedTuple):
    """State that a claim depends on, read from small tables and one loose index scan.

    If there are too many lanes, `lanes` are some of them, and the last three fields are read too.
    """

    now: Micros
    gates: list[Gate]
    limits: dict[LimitKey, Limit]  # set by operators and in force
    lanes: list[LaneEntry]
    guards: list[GuardRow] = []  # active ones  # noqa: RUF012 - never changed
    candidates: list[Candidate] = []  # of the expected lanes  # noqa: RUF012 - never changed
    known: list[LaneEntry] = []  # lanes that the caller named  # noqa: RUF012 - never changed
    ready: list[LaneEntry] = []  # of jobs that became ready  # noqa: RUF012 - never changed
    upcoming: list[LaneEntry] = []  # of jobs that will be ready next  # noqa: RUF012 - never changed


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


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar  # commands start faster without typing_extensions

    R_co = TypeVar("R_co", covariant=True)


class JobService(Protocol):
    """The calls of `app.jobs` that a `Job` makes for itself."""

    def get(self, job_id: str) -> Job: ...
    def value(self, job: Job) -> Any: ...
    def wait(self, job_id: str, timeout: Duration | None = None) -> Job: ...
    async def wait_async(self, job_id: str, timeout: Duration | None = None) -> Job: ...  # noqa: ASYNC109
    async def _on_thread(self, call: Callable[[], Job]) -> Job: ...
    def cancel(self, job_id: str, *, reason: str = "") -> Job: ...
    def retry(
        self,
        job_id: str,
        *,
        reason: str = "",
        overrides: Mapping[str, Any] | None = None,
        at: DurationOrTime | None = None,
    ) -> Job: ...


# Without slots: jobs of a bulk enqueue copy a `__dict__` that lacks the fields with defaults.
@dataclass(frozen=True, kw_only=True, repr=False)
class Job(Generic[R_co]):
    """Snapshot of a job; `refresh()` reads it again. `Job[R]`: its handler returns R.

    The defaults are those of a new job.
    """

    id: str
    kind: str
    queue: str
    owner: str
    state: State = State.QUEUED
    phase: str = "ready"
    why: str = "waiting for a free worker"
    payload: Any
    result: R_co = None  # type: ignore[assignment]  # JSON as stored; None until it has succeeded
    priority: int
    progress: float | None = None
    progress_message: str = ""
    attempt: int = 0
    attempts: int = 0
    retries: int = 0  # charged failures of this generation after which a retry was scheduled
    failures: int = 0
    losses: int = 0
    max_retries: int | None
    generation: int = 1
    token: int = 0
    batch_id: str | None
    unique_key: str | None
    uses: tuple[str, ...] = ()
    created_at: datetime
    run_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    error: Mapping[str, Any] | None = None
    next_retry_at: datetime | None = None
    deduplicated: bool = False
    cost: float = 0.0
    release: str = ""  # of the app, in its latest attempt
    version: int = 1  # of the payload
    _service: JobService | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        phase = "" if self.phase == self.state else f" ({self.phase})"
        code = f" {self.error['code']}" if self.error else ""
        return f"<Job {self.id} {self.kind} {self.state}{phase}{code} {self.payload!r:.200}>"

    def refresh(self) -> Job[R_co]:
        """Return a new snapshot of this job."""
        return self._jobs.get(self.id)

    def value(self) -> R_co:
        """Return the result as the handler returned it: a model or dataclass again, not JSON.

        Raises NoResult unless this snapshot has succeeded, and ResultMismatch if the result does
        not fit the handler's annotation. The app must have the handler.
        """
        result: R_co = self._jobs.value(self)
        return result

    if not TYPE_CHECKING:  # checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute; name what one of another library is called here."""
            return refuse_attribute(self, name, other_libraries.JOB)

    def wait(self, timeout: Duration | None = None) -> Job[R_co]:
        """Wait until the job has ended or is parked, and return it. Raises WaitTimeout."""
        return self._jobs.wait(self.id, timeout)

    def cancel(self, reason: str = "") -> Job[R_co]:
        """Cancel a queued or parked job at once; ask a running job to stop."""
        return self._jobs.cancel(self.id, reason=reason)

    def retry(
        self,
        reason: str = "",
        *,
        overrides: Mapping[str, Any] | None = None,
        at: DurationOrTime | None = None,
    ) -> Job[R_co]:
        """Start a new generation of a dead, parked or cancelled job, as `app.jobs.retry` does."""
        return self._jobs.retry(self.id, reason=reason, overrides=overrides, at=at)

    async def refresh_async(self) -> Job[R_co]:
        """Return a new snapshot of this job, from a coroutine."""
        return await self._on_thread(self.refresh)

    async def wait_async(self, timeout: Duration | None = None) -> Job[R_co]:  # noqa: ASYNC109
        """Wait like `wait`, from a coroutine. Thousands may wait."""
        return await self._jobs.wait_async(self.id, timeout)

    async def cancel_async(self, reason: str = "") -> Job[R_co]:
        """Cancel the job like `cancel`, from a coroutine."""
        return await self._on_thread(partial(self.cancel, reason))

    async def retry_async(
        self,
        reason: str = "",
        *,
        overrides: Mapping[str, Any] | None = None,
        at: DurationOrTime | None = None,
    ) -> Job[R_co]:
        """Start a new generation like `retry`, from a coroutine."""
        return await self._on_thread(partial(self.retry, reason, overrides=overrides, at=at))

    async def _on_thread(self, call: Callable[[], Job]) -> Job[R_co]:
        """Call on a thread. The service does it: rules use this module, and rules are pure."""
        return await self._jobs._on_thread(call)  # noqa: SLF001 - not a call for users

    @property
    def _jobs(self) -> JobService:
        if self._service is None:
            message = "this Job was not read from a database; use app.jobs.get(id)"
            raise RuntimeError(message)
        return self._service


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


Unique.__init__ = name_unknown_options(Unique.__init__)  # type: ignore[method-assign]


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


def parse_job_settings(settings: str | None) -> dict[str, Any]:
    """Parse the settings column of a job. Unreadable settings are treated as none."""
    if not settings:
        return {}
    try:
        parsed = json.loads(settings)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}

"""What verbs take and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mulligan.job import Gate, Guarded, GuardRow, Limit, Micros


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


class Plain(NamedTuple):
    """Lanes that a worker knows and nothing that code declares limits, and from when to when it may believe so."""

    lanes: Sequence[str]
    since: Micros
    until: Micros


class Mark(NamedTuple):
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


class Retried(NamedTuple):
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

"""Value types of one attempt: its lease, how it ended, what went wrong and what was decided.

All are immutable. Times are `Micros`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.attempt_log import AttemptLog
from mulligan.core.durations import Micros
from mulligan.core.job import State
from mulligan.core.waits import RequestedWait


class Cls(StrEnum):
    """Failure class. Whether a failure may be retried depends on its class or its rule alone."""

    TRANSIENT = "transient"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    RESOURCE = "resource"
    QUOTA = "quota"
    AUTH = "auth"
    INVALID_INPUT = "invalid_input"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class Alarm(StrEnum):
    """How loud the death of a job is for operators, as its rule says."""

    PAGE = "page"  # at once, and marked as urgent
    NOTIFY = "notify"
    NONE = "none"  # expected: no incident, no alert, nothing in an error tracker


RETRYABLE = frozenset({Cls.TRANSIENT, Cls.TIMEOUT, Cls.RATE_LIMITED, Cls.RESOURCE, Cls.UNKNOWN})


class Ended(StrEnum):
    """How an attempt ended, before any rule decides what follows from it."""

    RETURNED = "returned"  # the handler returned a result
    FAILED = "failed"  # it raised, returned Fail, timed out, or returned an unusable result
    RETRY = "retry"  # the handler returned Retry
    SNOOZED = "snoozed"
    PARKED = "parked"
    HELD = "held"
    CANCELLED = "cancelled"  # the handler returned Cancel, or stopped on request
    LOST = "lost"  # its process or its worker died
    RELEASED = "released"  # put back uncharged: shutdown, drain, or another job's failure
    WAITING = "waiting"  # for a time, an answer or child jobs, without a slot
    REFUSED = "refused"  # a manual retry that the app's can_retry= did not allow


class Verb(StrEnum):
    """Transition of a job. `core/lifecycle.py` lists the states from which each one is legal."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    RETRY = "retry"
    SNOOZE = "snooze"
    WAIT = "wait"
    HOLD = "hold"
    LOSE = "lose"
    GIVE_BACK = "give back"
    DIE = "die"
    PARK = "park"
    STOP = "stop"
    UNDO = "undo"  # undo the finished steps before the job ends
    CANCEL = "cancel"
    EXPIRE = "expire"
    RELEASE = "release"
    RETRY_BY_HAND = "retry by hand"
    DISCARD = "discard"
    UNDISCARD = "undo discard"  # of a job that was dead
    UNDISCARD_PARKED = "undo discard of a parked job"
    MOVE = "move"  # to another queue


class Ground(StrEnum):
    """Why a decision was made. Stored with the attempt; the sentence is in `Decision.reason`."""

    # The attempt finished the job.
    RETURNED = "returned"
    RETURNED_BEFORE_STOP = "returned_before_stop"  # a cancellation was requested too late
    SKIPPED = "skipped"  # done= found the result
    STOP_REQUESTED = "stop_requested"
    CANCELLED_BY_HANDLER = "cancelled_by_handler"
    PARKED_BY_HANDLER = "parked_by_handler"
    FATE_UNKNOWN = "fate_unknown"  # once=True, and the attempt was lost or stopped after its start
    UNDO_FAILED = "undo_failed"  # the undo of a step failed for good: a person must decide
    # The job is queued again.
    RETRY = "retry"
    RETRY_REQUESTED = "retry_requested"  # the handler returned Retry
    LOST = "lost"
    SNOOZED = "snoozed"
    WAITING = "waiting"  # not charged
    HELD = "held"  # the handler returned Hold
    RELEASED = "released"
    DEPENDENCY_DOWN = "dependency_down"  # not charged
    KIND_HELD = "kind_held"  # not charged
    QUOTA_USED_UP = "quota_used_up"  # not charged
    SYSTEM_ERROR = "system_error"  # an error of Mulligan itself; not charged
    UNDOING = "undoing"  # the steps are undone before the job ends
    OTHER_RELEASE = "other_release"  # only another release accepts the payload; not charged
    # The job is dead.
    FINAL = "final"  # the handler declared the failure final
    HOST_GAVE_UP = "host_gave_up"  # another job queue ran it and does not run it again
    RETRIES_DISABLED = "retries_disabled"  # retry.enabled
    CLASS_EXCLUDED = "class_excluded"  # retry.only
    CLASS_NOT_RETRYABLE = "class_not_retryable"
    UNKNOWN_NOT_RETRIED = "unknown_not_retried"  # retry_unknown=False
    MAX_RETRIES = "max_retries"
    CLASS_LIMIT = "class_limit"  # max_retries of a class
    RULE_LIMIT = "rule_limit"  # max_retries of a rule
    MAX_AGE = "max_age"
    MAX_LOSSES = "max_losses"
    MAX_SNOOZES = "max_snoozes"
    DEADLINE = "deadline"
    MANUAL_RETRY_REFUSED = "manual_retry_refused"  # can_retry=


SYSTEM_RULES = "mulligan."  # prefix of the rule ids of ends that have no exception
RENAMED = "renamed"  # field of `judged`: the rule of Mulligan that an app's rule has replaced


def system_rule(code: str) -> str:
    """Return the rule id of failures that Mulligan itself declares with this code."""
    return f"{SYSTEM_RULES}{code.lower().replace('_', '-')}"


def is_system_rule(rule: str) -> bool:
    """True for the rule id of an end that Mulligan observed itself, such as a time limit."""
    return rule.startswith(SYSTEM_RULES)


@dataclass(frozen=True, slots=True)
class Failure:
    """Record of what went wrong. Owners may see `public` and `evidence`, never `private`."""

    code: str
    cls: Cls
    public: str
    rule: str
    retryable: bool
    retry_after: float | None = None
    evidence: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    private: Mapping[str, Any] = field(default_factory=dict)  # message, trace, stderr, raw facts
    fingerprint: str = ""
    terms: Mapping[str, Any] = field(default_factory=dict)  # overrides of its rule: max_retries, …
    judged: Mapping[str, Any] = field(default_factory=dict)  # table version, rules that disagreed

    @property
    def origin(self) -> str:
        """The rule of Mulligan that a rule of the app has renamed, else the rule itself."""
        return str(self.judged.get(RENAMED, self.rule))

    @property
    def by_system(self) -> bool:
        """True if there was no exception to classify: a time limit, a dead process, a deadline."""
        return is_system_rule(self.origin)


class StepFailure(NamedTuple):
    """The step in which an attempt failed."""

    name: str
    number: int = 0  # place among the steps of the job
    policy: str | None = None  # JSON of the step's own policy; None: the job's counts
    uses: str = ""  # its dependencies, sorted, comma separated; empty: those of the job
    took: Micros = 0
    in_doubt: bool = False  # it was marked, and interrupted: it may have happened


class Outcome(NamedTuple):
    """How one attempt ended, with everything a decision depends on."""

    ended: Ended
    result: str | None = None  # JSON text; the runner checks its size
    failure: Failure | None = None
    after: Micros | None = None  # delay that the handler requested
    until: Micros | None = None  # time that the handler requested, instead of `after`
    reason: str = ""
    choices: tuple[str, ...] = ()
    dependency: str = ""
    final: bool = False  # the handler declared the failure final
    alone: bool = False  # run the next attempt in a runner process of its own
    cost: float = 0.0
    ended_at: Micros | None = None  # by the store's clock; None: when it is settled
    skipped: bool = False  # done= found the result, so the handler was not called
    interrupted: bool = False  # released after the handler was called: what it did is unknown
    suspect: bool = True  # if the process was lost: this attempt may have caused it
    queue: str = ""  # the handler moves the job to this queue
    host: str = ""  # another job queue ran the attempt and has decided
    log: AttemptLog | None = None  # no decision depends on it
    step: StepFailure | None = None
    unused_steps: tuple[str, ...] = ()  # recorded, and not called by an attempt that returned
    wait: RequestedWait | None = None  # what the job waits for, without a slot


class Lease(NamedTuple):
    """Claimed job: the right of one worker to run one attempt, fenced by (id, token)."""

    id: str
    kind: str
    queue: str
    owner: str
    worker: str
    token: int
    attempt: int
    generation: int
    priority: int
    payload: str
    uses: str  # dependency keys, sorted, comma separated
    failures: int
    losses: int
    snoozes: int
    max_retries: int | None
    policy: str | None  # JSON of a Policy passed with the job
    timeout: Micros | None
    deadline_at: Micros | None
    created_at: Micros
    run_at: Micros
    started_at: Micros
    first_started_at: Micros
    alone: bool
    batch_id: str | None
    choice: str | None
    unique_key: str | None
    unique_cover: str | None  # states, comma separated, in which the key is reserved
    cancel_reason: str | None  # None: no cancellation was requested
    counts: str | None = None  # JSON: counted failures of this generation, by class and by code
    settings: str | None = None  # JSON: what an escalation step changed; None: nothing
    trace: str | None = None  # W3C trace context of the enqueue
    version: int = 1  # of the payload

    @property
    def fence(self) -> tuple[str, int]:
        """Identity of this attempt: (job id, token)."""
        return (self.id, self.token)


class Decision(NamedTuple):
    """Answer of the pure rules to an outcome: the job's next state, and why."""

    verb: Verb
    state: State
    ground: Ground
    reason: str  # sentence for people, made in retries/reasons.py together with the ground
    run_at: Micros | None = None  # when queued again
    failures: int = 0
    losses: int = 0
    snoozes: int = 0
    alone: bool = False
    result: str | None = None
    failure: Failure | None = None
    choices: tuple[str, ...] = ()
    hold: tuple[str, Micros, str] | None = None  # dependency to close, until when, why
    cost: float = 0.0
    counts: str | None = None  # as in the lease, including this failure
    settings: str | None = None  # as in the lease, or as changed by an escalation step
    then: Mapping[str, Any] | None = None  # that step, if it changed anything
    skipped: bool = False  # as in the outcome
    retry_count: str = ""  # of a retry: "2 of 5", or "2 of 5 (1 of 1 for its class)"


class Ending(NamedTuple):
    """Finished attempt that has not been settled yet."""

    lease: Lease
    outcome: Outcome
    duration_ms: int | None = None


class Verdict(NamedTuple):
    """Result of settling an ending. `decision` is None if the lease had been taken over."""

    lease: Lease
    decision: Decision | None

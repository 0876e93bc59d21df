"""Exceptions of Mulligan, and the outcomes that a handler may return or raise.

MulliganError
├── ConfigError            a setting is missing, unknown or out of range
│   ├── UnknownOption          a call names an option that does not exist; also a TypeError
│   └── InvalidPolicy          a policy or backoff has a value out of range; also a ValueError
├── Refused                invalid input; nothing was written
│   ├── PayloadRefused         not JSON, too large, or not what the handler accepts
│   ├── UnknownKind            neither a handler nor a manifest declares this kind
│   ├── QueueRefused           owners may not use this queue: it is not declared
│   ├── UniqueMismatch         an explicit unique key is reserved by a job with another payload
│   ├── UniqueTaken            another job holds the unique key that this job needs
│   ├── OverrideRefused        a manual retry would change a field that cannot be changed
│   ├── RetryRefused           the app's can_retry= does not allow a manual retry of this job
│   ├── RetryLimited           this owner has used up its manual retries for now
│   ├── DependencyOpen         a dependency of the job is down, so the job would fail at once
│   ├── DeadlineFirst          the job's deadline is earlier than the requested time
│   ├── ChoiceRefused          a parked job does not offer this choice
│   ├── ReasonMissing          this action requires a reason
│   ├── KeyMismatch            an operation's key was used before with another request
│   ├── IllegalMove            the current state does not allow this action
│   │   ├── BatchSealed            the batch accepts no more members
│   │   ├── BatchCancelled         the batch was cancelled
│   │   ├── BatchExpired           the batch has expired
│   │   ├── NothingFailed          the batch has no dead member to retry
│   │   └── AnswerRefused          a wait was answered before, or its time is over
│   ├── BatchOwner             the job and its batch have different owners
│   ├── ConnectionRefused      the caller's connection cannot be used safely
│   └── TwoLibraries           the process uses two SQLite libraries on one file
├── NotFound               no such job, batch, operation, queue or dependency
├── UniqueRace             the caller's snapshot cannot see the job that holds the unique key
├── StoreUnavailable       the database does not respond; try again
│   └── AccessDenied           the database refuses the credentials
├── SchemaError            the schema is missing, too old, too new, or was changed manually
├── WaitTimeout            `wait` timed out; the job or batch continues
├── NoResult               the job has not succeeded, so it has no result
├── ResultMismatch         a result does not fit the annotation of its handler
└── ProcessFailed          a program started by `ctx.run` failed
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Never

# Defined here and not in durations.py, which imports this module.
Duration = float | int | timedelta  # numbers are seconds
DurationOrTime = Duration | datetime


class MulliganError(Exception):
    """Base class of all errors of Mulligan. `code` is stable, the message is for people."""

    code: ClassVar[str] = "ERROR"
    retryable: ClassVar[bool] = False


class ConfigError(MulliganError):
    """A setting is missing, unknown or out of range."""

    code = "CONFIG"


class UnknownOption(ConfigError, TypeError):
    """A call names an option that does not exist. A TypeError, as Python itself would raise."""


class InvalidPolicy(ConfigError, ValueError):
    """A policy, backoff or escalation step has an unknown field or a value out of range."""


class Refused(MulliganError):
    """Invalid input. Nothing was written."""

    code = "REFUSED"


class PayloadRefused(Refused):
    """Not JSON, too large, or not what the handler accepts."""

    code = "PAYLOAD_REFUSED"


class UnknownKind(Refused):
    """Neither a handler nor a manifest declares this kind."""

    code = "UNKNOWN_KIND"


class QueueRefused(Refused):
    """Owners may not use this queue: neither the app nor an operator has declared it."""

    code = "QUEUE_REFUSED"


class UniqueMismatch(Refused):
    """An explicit unique key is reserved by a job with another payload."""

    code = "UNIQUE_MISMATCH"


class UniqueTaken(Refused):
    """Another job holds the unique key that this job needs."""

    code = "UNIQUE_TAKEN"


class KeyMismatch(Refused):
    """An operation's key was used before with another request."""

    code = "KEY_MISMATCH"


class IllegalMove(Refused):
    """The current state does not allow this action."""

    code = "ILLEGAL_MOVE"


class OverrideRefused(Refused):
    """A manual retry would change a field that cannot be changed."""

    code = "OVERRIDE_REFUSED"


class RetryRefused(Refused):
    """The app's can_retry= does not allow a manual retry of this job."""

    code = "RETRY_REFUSED"


class RetryLimited(Refused):
    """This owner has used up its manual retries. The next one is possible at `at`."""

    code = "RETRY_LIMITED"
    retryable = True

    def __init__(self, message: str, at: datetime | None = None) -> None:
        self.at = at
        super().__init__(message)


class DependencyOpen(Refused):
    """A dependency of the job is down, so the job would fail at once."""

    code = "DEPENDENCY_OPEN"
    retryable = True


class DeadlineFirst(Refused):
    """The job's deadline is earlier than the requested time."""

    code = "DEADLINE_FIRST"


class ChoiceRefused(Refused):
    """A parked job does not offer this choice."""

    code = "CHOICE_REFUSED"


class ReasonMissing(Refused):
    """This action requires a reason."""

    code = "REASON_MISSING"


class BatchSealed(IllegalMove):
    """The batch accepts no more members."""

    code = "BATCH_SEALED"


class BatchCancelled(IllegalMove):
    """The batch was cancelled."""

    code = "BATCH_CANCELLED"


class BatchExpired(IllegalMove):
    """The batch has expired."""

    code = "BATCH_EXPIRED"


class NothingFailed(IllegalMove):
    """The batch has no dead member to retry."""

    code = "NOTHING_FAILED"


class AnswerRefused(IllegalMove):
    """A wait was answered before, or its time is over."""

    code = "ANSWER_REFUSED"


class BatchOwner(Refused):
    """The job and its batch have different owners."""

    code = "BATCH_OWNER"


class ConnectionRefused(Refused):
    """The caller's connection cannot be used safely."""

    code = "CONNECTION_REFUSED"


class TwoLibraries(Refused):
    """The process uses two SQLite libraries on one file."""

    code = "SQLITE_TWO_LIBRARIES"


class NotFound(MulliganError):
    """No such job, batch, operation, queue or dependency."""

    code = "NOT_FOUND"


def unknown_job(job_id: str) -> NotFound:
    """Return the error for an id that no job has."""
    return NotFound(f'unknown job {job_id!r:.80}. Run "mulligan jobs list" to see the jobs.')


def no_such_batch(batch_id: str) -> NotFound:
    """Return the error for an id that no batch has."""
    return NotFound(f'no batch {batch_id!r}. Run "mulligan batches list" to see them.')


class UniqueRace(MulliganError):
    """The caller's snapshot cannot see the job that holds the unique key."""

    code = "UNIQUE_RACE"
    retryable = True


class LeaseLost(MulliganError):
    """Another attempt holds this job now; whatever this one still does is refused."""

    code = "LEASE_LOST"


class StoreUnavailable(MulliganError):
    """The database does not respond; try again."""

    code = "STORE_UNAVAILABLE"
    retryable = True


class StatementAborted(StoreUnavailable):
    """The database ended one statement: it took too long, waited for a lock or needed memory."""

    code = "STATEMENT_ABORTED"


class StatementRefused(MulliganError):
    """The database will never run this statement: it exceeds one of its limits."""

    code = "STATEMENT_REFUSED"


class AccessDenied(StoreUnavailable):
    """The database refuses the credentials."""

    code = "ACCESS_DENIED"
    retryable = False


class SchemaError(MulliganError):
    """The schema is missing, too old, too new, or was changed manually."""

    code = "SCHEMA"


class WaitTimeout(MulliganError):
    """`wait` timed out; the job or batch continues."""

    code = "WAIT_TIMEOUT"
    retryable = True


class NoResult(MulliganError):
    """The job has not succeeded, so it has no result. `job` is its snapshot."""

    code = "NO_RESULT"

    def __init__(self, message: str, job: Any) -> None:
        self.job = job  # a Job, which is defined above this module
        super().__init__(message, job)

    def __str__(self) -> str:
        return str(self.args[0])


class ResultMismatch(MulliganError):
    """A result does not fit the annotation of its handler."""

    code = "RESULT_MISMATCH"


class ProcessFailed(MulliganError):
    """A program started by `ctx.run` exited non-zero, was killed by a signal or timed out."""

    code = "PROCESS_FAILED"

    def __init__(
        self,
        program: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        timed_out: bool = False,
        stderr: str = "",
    ) -> None:
        self.program = program
        self.exit_code = exit_code
        self.signal = signal
        self.timed_out = timed_out
        self.stderr = stderr
        super().__init__(program, exit_code, signal, timed_out, stderr)

    def __str__(self) -> str:
        if self.timed_out:
            how = "timed out"
        elif self.signal is not None:
            how = f"was killed by signal {self.signal}"
        else:
            how = f"exited with {self.exit_code}"
        last_line = self.stderr.strip().rsplit("\n", 1)[-1]
        if not last_line:
            return f"{self.program} {how}"
        return f"{self.program} {how}: {last_line}"


class OutcomeRequest(Exception):
    """Request of a handler for what happens next. Return it (preferred) or raise it."""


class Stopped(OutcomeRequest):
    """The attempt must stop. `ctx.run` raises it after ending its program; do not catch it."""


class Retry(OutcomeRequest):
    """Retry the job, counted as a failure. `after` overrides the backoff."""

    def __init__(
        self, after: DurationOrTime | None = None, reason: str = "", **unknown: Never
    ) -> None:
        if unknown:
            message = f"Retry() has no option {next(iter(unknown))!r}. Write Retry(after=60)"
            raise UnknownOption(message)
        self.after = after
        self.reason = reason
        super().__init__(after, reason)

    def __str__(self) -> str:
        return str(self.reason)


class HandedOver(OutcomeRequest):
    """Another queue runs the job now, and a bridge records the outcome. Not charged.

    `wait`: seconds until the handler is called again, if no outcome was recorded before.
    """

    def __init__(self, wait: float, reason: str) -> None:
        self.wait = wait
        self.reason = reason
        super().__init__(wait, reason)


class Snooze(OutcomeRequest):
    """Run the job later (at least a second), not counted as a failure.

    `queue`: the job moves to this queue, for example to one with larger machines.
    """

    def __init__(
        self, seconds: DurationOrTime, reason: str = "", *, queue: str | None = None
    ) -> None:
        self.seconds = seconds
        self.reason = reason
        self.queue = queue
        super().__init__(seconds, reason)

    def __str__(self) -> str:
        return str(self.reason)


class Cancel(OutcomeRequest):
    """Cancel the job: its work is no longer needed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(OutcomeRequest):
    """Fail the attempt with these facts. The failure rules decide on a retry unless `final`."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        detail: str | None = None,
        public: str | None = None,
        retry_after: DurationOrTime | None = None,
        final: bool = False,  # noqa: FBT001, FBT002 - part of the public API
    ) -> None:
        self.failure_code = code
        self.message = message
        self.detail = detail
        self.public = public
        self.retry_after = retry_after
        self.final = final
        super().__init__(code, message, detail, public, retry_after, final)

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.failure_code, self.message) if part)


class ChildFailed(Fail):
    """Child jobs died that must not die. `children`: how each one ended."""

    def __init__(self, name: str, children: list[dict[str, Any]]) -> None:
        self.name = name
        self.children = children
        failed = [child for child in children if child["state"] != "succeeded"]
        errors = [child.get("error") or {} for child in failed]
        first = next((error for error in errors if error), {})
        message = f"{len(failed)} of {len(children)} child jobs of {name!r} failed"
        if first:
            message += f": {first.get('code')}, {first.get('message')}"
        public = "A part of this job failed."
        if len(children) > 1:
            public = f"{len(failed)} of {len(children)} parts of this job failed."
        super().__init__("CHILD_FAILED", message, public=public, final=True)

    def __reduce__(self) -> Any:
        return (ChildFailed, (self.name, self.children))


class Park(OutcomeRequest):
    """Park the job until a person decides, optionally between `choices`."""

    def __init__(self, reason: str, choices: tuple[str, ...] | list[str] = ()) -> None:
        self.reason = reason
        self.choices = tuple(choices)
        super().__init__(reason, self.choices)

    def __str__(self) -> str:
        return str(self.reason)


class StepInDoubt(Park):
    """A step was called and its result was not recorded: a person must decide."""

    def __init__(self, step: str, choices: tuple[str, ...]) -> None:
        self.step = step
        reason = f"step {step} was called, and its result was not recorded: it may have happened"
        super().__init__(reason, choices)


class StepDelayed(OutcomeRequest):
    """A step cannot be called now, because a dependency that it uses is down. Not charged."""

    def __init__(self, step: str, dependency: str, reason: str) -> None:
        self.dependency = dependency
        self.reason = f"step {step} waits for {dependency}, which is down"
        if reason:
            self.reason += f": {reason}"
        super().__init__(self.reason)


class Hold(OutcomeRequest):
    """Hold all jobs that use a dependency, because it is down. Not counted as a failure."""

    def __init__(
        self, dependency: str, until: DurationOrTime | None = None, reason: str = ""
    ) -> None:
        self.dependency = dependency
        self.until = until
        self.reason = reason
        super().__init__(dependency, until, reason)

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.dependency, self.reason) if part)

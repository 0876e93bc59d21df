"""The exception tree, and the outcomes a handler may return or raise.

MulliganError
├── ConfigError            a setting is missing, unknown or out of range
├── Refused                bad input: nothing was written
│   ├── PayloadRefused         not JSON, too large, or not what the handler takes
│   ├── UnknownKind            no handler and no manifest knows this kind
│   ├── UniqueMismatch         an explicit unique key with another payload
│   ├── UniqueTaken            another job holds the key this move needs
│   ├── OverrideRefused        a retry by hand would change what must not be changed, or to what it cannot be
│   ├── RetryRefused           the app says that this job must not run again, and why
│   ├── RetryLimited           this owner has retried enough by hand for now
│   ├── DependencyOpen         what the job uses is down, and it would end at once
│   ├── DeadlineFirst          its deadline would pass before the time that was named
│   ├── ChoiceRefused          a parked job does not offer this choice
│   ├── ReasonMissing          this cannot be done without saying why
│   ├── KeyMismatch            an operation's key with another content
│   ├── IllegalMove            the state of a job, a batch, an operation or a dependency forbids it
│   │   ├── BatchSealed            no more members
│   │   ├── BatchCancelled         somebody has cancelled it
│   │   ├── BatchExpired           its time is over, for good
│   │   └── NothingFailed          no member is dead
│   ├── BatchOwner             a member of another owner than its batch
│   ├── ConnectionRefused      a caller's connection we must not write through
│   └── TwoLibraries           one SQLite file, two SQLite libraries, one process
├── NotFound               no such job, batch, operation, queue or dependency
├── UniqueRace             the caller's snapshot cannot see the winner
├── StoreUnavailable       the database does not answer; try again
│   └── AccessDenied           it answers, and does not let us in
├── SchemaError            the schema is missing, newer, or was changed by hand
├── WaitTimeout            `jobs.wait` gave up; the job goes on
└── ProcessFailed          `ctx.run`: the program did not end well
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

Seconds = float | int | timedelta
Moment = Seconds | datetime


class MulliganError(Exception):
    """The root of everything Mulligan raises; `code` is stable, the text is for people."""

    code: ClassVar[str] = "ERROR"
    retryable: ClassVar[bool] = False


class ConfigError(MulliganError):
    code = "CONFIG"


class Refused(MulliganError):
    """Bad input. Nothing was written."""

    code = "REFUSED"


class PayloadRefused(Refused):
    code = "PAYLOAD_REFUSED"


class UnknownKind(Refused):
    code = "UNKNOWN_KIND"


class UniqueMismatch(Refused):
    code = "UNIQUE_MISMATCH"


class UniqueTaken(Refused):
    code = "UNIQUE_TAKEN"


class KeyMismatch(Refused):
    code = "KEY_MISMATCH"


class IllegalMove(Refused):
    code = "ILLEGAL_MOVE"


class OverrideRefused(Refused):
    code = "OVERRIDE_REFUSED"


class RetryRefused(Refused):
    code = "RETRY_REFUSED"


class RetryLimited(Refused):
    """`at`: when the next one is possible."""

    code = "RETRY_LIMITED"
    retryable = True

    def __init__(self, message: str, at: datetime | None = None) -> None:
        self.at = at
        super().__init__(message)


class DependencyOpen(Refused):
    code = "DEPENDENCY_OPEN"
    retryable = True


class DeadlineFirst(Refused):
    code = "DEADLINE_FIRST"


class ChoiceRefused(Refused):
    code = "CHOICE_REFUSED"


class ReasonMissing(Refused):
    code = "REASON_MISSING"


class BatchSealed(IllegalMove):
    code = "BATCH_SEALED"


class BatchCancelled(IllegalMove):
    code = "BATCH_CANCELLED"


class BatchExpired(IllegalMove):
    code = "BATCH_EXPIRED"


class NothingFailed(IllegalMove):
    code = "NOTHING_FAILED"


class BatchOwner(Refused):
    code = "BATCH_OWNER"


class ConnectionRefused(Refused):
    code = "CONNECTION_REFUSED"


class TwoLibraries(Refused):
    code = "SQLITE_TWO_LIBRARIES"


class NotFound(MulliganError):
    code = "NOT_FOUND"


class UniqueRace(MulliganError):
    code = "UNIQUE_RACE"
    retryable = True


class StoreUnavailable(MulliganError):
    code = "STORE_UNAVAILABLE"
    retryable = True


class AccessDenied(StoreUnavailable):
    code = "ACCESS_DENIED"
    retryable = False


class SchemaError(MulliganError):
    code = "SCHEMA"


class WaitTimeout(MulliganError):
    code = "WAIT_TIMEOUT"
    retryable = True


class ProcessFailed(MulliganError):
    """A program started by `ctx.run` exited non-zero, died of a signal or ran out of time."""

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
            how = "ran out of time"
        elif self.signal is not None:
            how = f"was killed by signal {self.signal}"
        else:
            how = f"exited with {self.exit_code}"
        last = self.stderr.strip().rsplit("\n", 1)[-1]
        return f"{self.program} {how}" + (f": {last}" if last else "")


class OutcomeRequest(Exception):
    """What a handler wants to happen next. Return it (preferred) or raise it."""


class Stopped(OutcomeRequest):
    """This attempt was asked to stop (`ctx.run` raises it after ending its program). Let it pass."""


class Retry(OutcomeRequest):
    """Try again, counted as a failure; `after` overrides the backoff."""

    def __init__(self, after: Moment | None = None, reason: str = "") -> None:
        self.after = after
        self.reason = reason
        super().__init__(after, reason)


class Snooze(OutcomeRequest):
    """Not yet: come back later, in a second at least; not counted as a failure."""

    def __init__(self, seconds: Moment, reason: str = "") -> None:
        self.seconds = seconds
        self.reason = reason
        super().__init__(seconds, reason)


class Cancel(OutcomeRequest):
    """The work is no longer wanted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(OutcomeRequest):
    """It failed, and here are the facts; the failure table decides unless `final`."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        detail: str | None = None,
        public: str | None = None,
        retry_after: Moment | None = None,
        final: bool = False,  # noqa: FBT001, FBT002 - a fact among facts
    ) -> None:
        self.code_given = code
        self.message = message
        self.detail = detail
        self.public = public
        self.retry_after = retry_after
        self.final = final
        super().__init__(code, message, detail, public, retry_after, final)


class Park(OutcomeRequest):
    """A person must decide, perhaps between `choices`."""

    def __init__(self, reason: str, choices: tuple[str, ...] | list[str] = ()) -> None:
        self.reason = reason
        self.choices = tuple(choices)
        super().__init__(reason, self.choices)


class Hold(OutcomeRequest):
    """A dependency this job uses is down: wait for it, uncharged, with everybody else who uses it."""

    def __init__(self, dependency: str, until: Moment | None = None, reason: str = "") -> None:
        self.dependency = dependency
        self.until = until
        self.reason = reason
        super().__init__(dependency, until, reason)

"""Failure codes with class and public sentence, and failures that have no exception.

The owner of a job reads the public sentence, so it names no internals.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Failure, system_rule
from mulligan.core.format import format_duration, format_size
from mulligan.failures.facts import Facts
from mulligan.failures.fingerprint import compute_fingerprint, fingerprint_end
from mulligan.failures.step_evidence import STEP_EVIDENCE, base_name

# A policy with retry_unknown=True retries failures that this rule matched.
PROGRAMMING_ERROR_RULE = "py.programming-error"


class FailureCode(NamedTuple):
    """A code of the registry: its class and the sentence that the owner of a job reads."""

    name: str
    cls: Cls
    public: str

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE


def _codes(cls: Cls, **sentences: str) -> dict[str, FailureCode]:
    return {name: FailureCode(name, cls, public) for name, public in sentences.items()}


# Rules of errors that Mulligan itself caused: the job is given back uncharged.
SCHEMA_RULE = "mulligan.schema"
UNAVAILABLE_RULE = "mulligan.unavailable"
PAYLOAD_REFUSED_RULE = system_rule("PAYLOAD_REFUSED")
SYSTEM_ERROR_RULES = frozenset({SCHEMA_RULE, UNAVAILABLE_RULE})

CODES: dict[str, FailureCode] = {
    **_codes(
        Cls.TRANSIENT,
        DEPENDENCY_UNAVAILABLE="A service that the job needs is unavailable.",
        CONNECTION="A network connection failed.",
        HTTP_5XX="A remote service is unavailable.",
        BUSY="A resource that the job needs was busy.",
        IO_ERROR="Reading or writing data failed.",
        DATABASE_UNAVAILABLE="A database did not respond.",
        DATABASE_CONFLICT="A change conflicted with another change to the same data.",
        BAD_TRANSFER="A file or a response arrived damaged or incomplete.",
        NOT_READY="A resource that the job needs is not ready yet.",
        MAIL_DEFERRED="The mail server asked to try again later.",
        RECEIVER_REFUSED="The receiver rejected a message.",
        STORE_UNAVAILABLE="The job database did not respond.",
        SCHEMA="The job system is being upgraded.",
        WORKER_LOST="The worker that was running this job stopped responding.",
        RETRY_REQUESTED="The job requested a retry.",
        TEMPORARY_ERROR="The job failed with an error that may pass.",
    ),
    **_codes(
        Cls.TIMEOUT,
        TIMEOUT="An operation took too long.",
        STALLED="The job made no progress for too long and was stopped.",
    ),
    **_codes(
        Cls.RATE_LIMITED,
        RATE_LIMITED="A service is limiting the rate of requests.",
    ),
    **_codes(
        Cls.RESOURCE,
        MEMORY="There was not enough memory.",
        MEMORY_LIMIT="The job exceeded its memory limit.",
        DISK_FULL="The disk is full.",
        TOO_MANY_FILES="Too many files or connections are open.",
        DEVICE_BUSY="The graphics or encoding device has no free capacity.",
        SERVICE_FULL="A service has no capacity left.",
        NO_CAPACITY="Something that the job needs has no free capacity.",
        PROCESS_KILLED="A program was killed before it finished.",
    ),
    **_codes(
        Cls.QUOTA,
        QUOTA="A quota is used up. It must be raised, paid for or reset.",
    ),
    **_codes(
        Cls.AUTH,
        AUTH="Credentials are missing or were rejected.",
        ACCESS_DENIED="A service denied access.",
    ),
    **_codes(
        Cls.INVALID_INPUT,
        INVALID_INPUT="A value that the job works with is not valid.",
        BAD_FILE="The file is damaged or its format cannot be read.",
        HTTP_4XX="A service rejected the request.",
        MISSING="An item that the job requested does not exist.",
        UNAVAILABLE_CONTENT="The content is private, removed or not available in this region.",
        REFUSED_CONTENT="A service rejected the content because of its content rules.",
        TOO_LARGE="A value or a file is larger than allowed.",
        DATA_REFUSED="The database rejected the data.",
        BAD_ADDRESS="The address does not exist or does not accept mail.",
        PAYLOAD_REFUSED="The job's payload does not match its handler's parameters.",
    ),
    **_codes(
        Cls.PERMANENT,
        PROGRAMMING_ERROR="The job's code has an error. A retry would not help.",
        PERMANENT_ERROR="The job failed with an error that a retry would not fix.",
        CERTIFICATE="The certificate of a server was not accepted.",
        PERMISSION="The job has no permission for an operation.",
        NOT_FOUND="A file that the job needs does not exist.",
        PROGRAM_MISSING="A program could not be started.",
        PROGRAM_CRASHED="A program crashed on this input.",
        MISCONFIGURED="The configuration is incorrect.",
        UNSUPPORTED="The requested operation is not supported.",
        HTTP_IMPOSSIBLE="A service cannot perform the request.",
        ALREADY_EXISTS="An item that the job tried to create already exists.",
        DATABASE_BROKEN="The database file is damaged.",
        DATABASE_SCHEMA="The database schema is not the one that the job expects.",
        MAIL_REFUSED="The mail server rejected the message.",
        ADDRESS_REFUSED="Messages to this address are not allowed.",
        RECEIVER_GONE="The receiver of a message no longer exists.",
        REFUSED="An operation that the job requested was refused.",
        KIND_UNKNOWN="No worker has a handler for this kind of job.",
        DEADLINE_PASSED="The job's deadline passed.",
        RESULT_NOT_JSON="The job's result could not be stored: it is not JSON.",
        RESULT_TOO_LARGE="The job's result could not be stored: it is too large.",
        BAD_OUTCOME="The job's code requested an invalid outcome.",
        HOLD_UNKNOWN_DEPENDENCY="The job's code held a dependency that the job does not use.",
        SNOOZE_LIMIT="The job snoozed too often.",
        OUTCOME_REFUSED="The job ended, but its outcome could not be recorded.",
    ),
    **_codes(
        Cls.CANCELLED,
        CANCELLED="The job was cancelled.",
        STOPPED="The work was stopped on request.",
        TASK_CANCELLED="The job's code was cancelled from within.",
    ),
    **_codes(
        Cls.UNKNOWN,
        UNKNOWN_ERROR="The job failed for an unknown reason.",
        PROCESS_FAILED="A program failed.",
        PROCESS_CRASHED="A program crashed.",
        PROCESS_DIED="The process of this job died.",
        HANDLER_EXIT="The job's code tried to exit its process.",
        REMOTE_ERROR="A service failed without giving a reason.",
        UNREPORTED="The job failed without giving a reason.",
        STEP_IN_DOUBT="A step of the job may have happened. A person must find out.",
    ),
}


# --- Failures without an exception ---

DEPENDENCY_UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
RETRY_REQUESTED = "RETRY_REQUESTED"
Evidence = dict[str, str | int | float | bool]


def _failure(
    code: str,
    public: str = "",
    *,
    cls: Cls | None = None,
    evidence: Evidence | None = None,
    private: Mapping[str, str] | None = None,
    place: Sequence[str] = (),
) -> Failure:
    """Build a failure. The registry supplies the class and the sentence that are not passed.

    `place` tells causes of one code apart: the kind, and where or how its attempt ended.
    """
    cls = cls or CODES[code].cls
    fingerprint = compute_fingerprint(Facts(ended_by=code), code, cls)
    if place:
        fingerprint = fingerprint_end(code, place)
    return Failure(
        code=code,
        cls=cls,
        public=public or CODES[code].public,
        rule=system_rule(code),
        retryable=cls in RETRYABLE,
        evidence=evidence or {},
        private=private or {},
        fingerprint=fingerprint,
    )


def timed_out(
    limit_s: float, kind: str = "", frames: Sequence[str] = (), *, step: str = ""
) -> Failure:
    """Build the failure of an attempt that was stopped at its time limit.

    `frames`: the innermost functions of the app that it was in. `step`: whose limit it was.
    """
    limit = format_duration(limit_s)
    what = f"Step {step}" if step else "The job"
    public = f"{what} ran longer than its limit of {limit} and was stopped."
    evidence: Evidence = {"limit_s": limit_s}
    private = {"message": f"Over its limit of {limit}"}
    place = (kind, *frames)
    return _failure("TIMEOUT", public, evidence=evidence, private=private, place=place)


def stalled(limit_s: float, kind: str = "", frames: Sequence[str] = ()) -> Failure:
    """Build the failure of an attempt that was stopped because it made no progress."""
    limit = format_duration(limit_s)
    public = f"The job made no progress for {limit} and was stopped."
    evidence: Evidence = {"stall_s": limit_s}
    private = {"message": f"No progress for {limit}"}
    place = (kind, *frames)
    return _failure("STALLED", public, evidence=evidence, private=private, place=place)


def process_died(
    kind: str = "",
    *,
    signal: int | None = None,
    exit_code: int | None = None,
    peak_rss: int | None = None,
    oom: bool = False,
    shared: bool = False,
) -> Failure:
    """Build the failure of an attempt whose process died.

    `oom` is set only when the kernel reported it. `shared`: other jobs ran in the same process.
    """
    known = {"signal": signal, "exit_code": exit_code, "peak_rss": peak_rss}
    evidence: Evidence = {name: value for name, value in known.items() if value is not None}
    public = f"The process of this job {_describe_death(signal, exit_code, oom=oom)}"
    if peak_rss is not None:
        public += f", peak memory {format_size(peak_rss)}"
    if oom:
        evidence["oom"] = True
    if shared:
        evidence["shared"] = True
        public += "; other jobs ran in the same process"
    cls = Cls.RESOURCE if oom else Cls.UNKNOWN
    private = {"message": _title_death(signal, exit_code, oom=oom)}
    place = (kind, _death_name(signal, exit_code, oom=oom))
    return _failure(
        "PROCESS_DIED", f"{public}.", cls=cls, evidence=evidence, private=private, place=place
    )


def _title_death(signal: int | None, exit_code: int | None, *, oom: bool) -> str:
    """Return how a process died as operators read it in lists: Killed by SIGKILL."""
    if oom:
        return "Killed: memory ran out (OOM)"
    if signal is not None:
        return f"Killed by {_signal_name(signal) or f'signal {signal}'}"
    if exit_code is not None:
        return f"Exited with {exit_code}"
    return "Its process died"


def _death_name(signal: int | None, exit_code: int | None, *, oom: bool) -> str:
    """Return what tells deaths apart: memory, the signal or the exit code."""
    if oom:
        return "oom"
    return f"exit {exit_code}" if signal is None else f"signal {signal}"


def _describe_death(signal: int | None, exit_code: int | None, *, oom: bool) -> str:
    if oom:
        return "was killed because memory ran out (OOM)"
    if signal is not None:
        name = _signal_name(signal)
        return (
            f"was killed by signal {signal} ({name})" if name else f"was killed by signal {signal}"
        )
    if exit_code is not None:
        return f"exited with {exit_code}"
    return "died"


def _signal_name(signal: int) -> str:
    try:
        return signals.Signals(signal).name
    except ValueError:
        return ""


def worker_lost(worker: str) -> Failure:
    """Build the failure of an attempt whose worker was declared lost."""
    return _failure("WORKER_LOST", private={"worker": worker})


def memory_limit_exceeded(limit: int, peak: int, kind: str = "") -> Failure:
    """Build the failure of an attempt that was stopped at its memory limit."""
    public = (
        f"The job used {format_size(peak)} of memory, more than its limit of"
        f" {format_size(limit)}, and was stopped."
    )
    evidence: Evidence = {"limit": limit, "peak_rss": peak}
    return _failure("MEMORY_LIMIT", public, evidence=evidence, place=(kind,))


def unknown_kind(kind: str) -> Failure:
    """Build the failure of a job whose kind no worker has registered."""
    public = f"No worker has a handler for jobs of kind {kind}."
    return _failure("KIND_UNKNOWN", public, evidence={"kind": kind})


def deadline_passed(after: Failure | str | None = None) -> Failure:
    """Build the failure of a job whose deadline passed.

    `after` is the failure or the code that the job would otherwise have been retried for. Its
    evidence stays on the record, so that the real cause can still be found.
    """
    if isinstance(after, Failure):
        evidence: Evidence = {**after.evidence, "after": after.code}
        return _failure("DEADLINE_PASSED", evidence=evidence, private=after.private)
    if after:
        return _failure("DEADLINE_PASSED", evidence={"after": str(after)})
    return _failure("DEADLINE_PASSED")


def result_refused(code: str, why: str) -> Failure:
    """Build RESULT_NOT_JSON or RESULT_TOO_LARGE: the handler returned something not storable."""
    return _failure(code, private={"message": why})


def payload_refused(why: str) -> Failure:
    """Build the failure of a job whose payload does not fit its handler."""
    return _failure("PAYLOAD_REFUSED", private={"message": why})


def bad_outcome(why: str) -> Failure:
    """Build the failure of a handler that requested an invalid outcome."""
    return _failure("BAD_OUTCOME", private={"message": why})


def hold_unknown_dependency(dependency: str, uses: str) -> Failure:
    """Build the failure of a handler that raised Hold for a dependency its job does not use."""
    why = f"Hold({dependency!r}), but the job uses {uses or 'no dependency'}"
    return _failure("HOLD_UNKNOWN_DEPENDENCY", private={"message": why})


def dependency_unavailable(key: str, reason: str) -> Failure:
    """Build the failure of a job refused by an open circuit breaker in `fail_fast` mode.

    It never carries the dependency's own error, because this job did not receive one.
    """
    public = f"Not started: {key}, which this job needs, is unavailable."
    evidence: Evidence = {"dependency": key}
    return _failure(DEPENDENCY_UNAVAILABLE, public, evidence=evidence, private={"message": reason})


def retry_refused(why: str) -> Failure:
    """Build the failure of a manual retry that the app's `can_retry` refused."""
    public = why or "This job cannot be run again."
    return _failure("RETRY_REFUSED", public, cls=Cls.PERMANENT)


def snooze_limit(limit: int) -> Failure:
    """Build the failure of a job that snoozed more often than allowed."""
    public = f"The job snoozed more than {limit:,} times."
    return _failure("SNOOZE_LIMIT", public, evidence={"limit": limit})


def retry_requested(reason: str) -> Failure:
    """Build the failure of an attempt whose handler raised Retry."""
    private = {"message": reason} if reason else {}
    return _failure(RETRY_REQUESTED, private=private)


def step_in_doubt(step: str) -> Failure:
    """Build the failure of an attempt that found a step in doubt."""
    public = f"Step {step} was called, and its result was not recorded: it may have happened."
    evidence: Evidence = {STEP_EVIDENCE: step}
    return _failure("STEP_IN_DOUBT", public, evidence=evidence, place=(base_name(step),))


def outcome_refused(why: str) -> Failure:
    """Build the replacement for an ending that the database refused to store."""
    return _failure("OUTCOME_REFUSED", private={"message": why})


def unreported() -> Failure:
    """Build the failure of a failed attempt that came without one: recording it must not fail."""
    return _failure("UNREPORTED")

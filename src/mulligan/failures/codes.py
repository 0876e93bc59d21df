"""Ends that have no exception: we saw them happen, or made them happen. One constructor each."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from typing import NamedTuple

from mulligan.core.attempt import RETRYABLE, SYSTEM_RULES, Cls, Failure
from mulligan.core.format import duration, size
from mulligan.failures.facts import Facts
from mulligan.failures.fingerprint import fingerprint

# The registry of codes: what each means for a person, and its class. One sentence per code, in one place.

PROGRAMMING_ERROR = "py.programming-error"  # the rule a policy may overrule with retry_unknown=True


class Code(NamedTuple):
    name: str
    cls: Cls
    public: str

    @property
    def retryable(self) -> bool:
        return self.cls in RETRYABLE


def _codes(cls: Cls, **sentences: str) -> dict[str, Code]:
    return {name: Code(name, cls, public) for name, public in sentences.items()}


CODES: dict[str, Code] = {
    **_codes(
        Cls.TRANSIENT,
        DEPENDENCY_UNAVAILABLE="Something that the job needs is not available right now.",
        CONNECTION="A connection failed.",
        HTTP_5XX="A service is not available.",
        BUSY="Something the job needs was busy.",
        IO_ERROR="Reading or writing failed.",
        DATABASE_UNAVAILABLE="A database did not answer.",
        DATABASE_CONFLICT="Two changes to the same data met; one of them has to start again.",
        BAD_TRANSFER="A file or an answer arrived damaged.",
        NOT_READY="Something the job needs is not ready yet.",
        MAIL_DEFERRED="The mail server asked us to come back later.",
        RECEIVER_REFUSED="The receiver of a message refused it.",
        STORE_UNAVAILABLE="The job database did not answer.",
        WORKER_LOST="The worker that ran this job went away.",
        RETRY_REQUESTED="The job asked for another try.",
    ),
    **_codes(
        Cls.TIMEOUT,
        TIMEOUT="Something the job waited for took too long.",
    ),
    **_codes(
        Cls.RATE_LIMITED,
        RATE_LIMITED="A service asked us to slow down.",
    ),
    **_codes(
        Cls.RESOURCE,
        MEMORY="There was not enough memory.",
        MEMORY_LIMIT="The job used more memory than it may.",
        DISK_FULL="The disk is full.",
        TOO_MANY_FILES="Too many files or connections are open.",
        DEVICE_BUSY="The graphics or encoding device has no room.",
        SERVICE_FULL="A service has no room left.",
        PROCESS_KILLED="A program was killed from outside.",
    ),
    **_codes(
        Cls.QUOTA,
        QUOTA="A service's quota is used up; it has to be raised, paid or waited for.",
    ),
    **_codes(
        Cls.AUTH,
        AUTH="A service did not accept our credentials.",
        ACCESS_DENIED="A service did not allow what was asked.",
    ),
    **_codes(
        Cls.INVALID_INPUT,
        INVALID_INPUT="The job's input is not valid.",
        BAD_FILE="The file is damaged or of a kind that cannot be read.",
        HTTP_4XX="A service refused the request.",
        MISSING="What the job asked for does not exist.",
        UNAVAILABLE_CONTENT="The content is private, removed or not available here.",
        REFUSED_CONTENT="The content was refused by a service's rules.",
        TOO_LARGE="The input is larger than allowed.",
        DATA_REFUSED="The database refused the data.",
        BAD_ADDRESS="The address does not exist or does not accept mail.",
        PAYLOAD_REFUSED="The job's payload is not what its handler takes.",
    ),
    **_codes(
        Cls.PERMANENT,
        PROGRAMMING_ERROR="The job's code has an error; trying again would not help.",
        CERTIFICATE="The certificate of a server was not accepted.",
        PERMISSION="The job may not do that here.",
        NOT_FOUND="A file the job needs is not there.",
        PROGRAM_MISSING="A program could not be run.",
        PROGRAM_CRASHED="A program crashed on this input.",
        MISCONFIGURED="Something is set up in a way that cannot work.",
        UNSUPPORTED="What was asked for is not supported.",
        HTTP_IMPOSSIBLE="A service cannot do what was asked.",
        ALREADY_EXISTS="What the job wanted to make is already there.",
        DATABASE_BROKEN="The database's file is damaged.",
        DATABASE_SCHEMA="The database has another shape than the job expects.",
        MAIL_REFUSED="The mail server refused the message.",
        ADDRESS_REFUSED="Messages must not be sent to this address.",
        RECEIVER_GONE="The receiver of a message is gone for good.",
        REFUSED="The job asked for something that was refused.",
        KIND_UNKNOWN="No worker knows jobs of this kind.",
        DEADLINE_PASSED="The job's deadline passed.",
        RESULT_NOT_JSON="The job's result could not be stored.",
        RESULT_TOO_LARGE="The job's result could not be stored.",
        BAD_OUTCOME="The job's code asked for something impossible.",
        HOLD_UNKNOWN_DEPENDENCY="The job's code tried to hold a dependency that the job does not use.",
        SNOOZE_LIMIT="The job put itself off too often.",
        OUTCOME_REFUSED="The job ended, but its outcome could not be recorded.",
    ),
    **_codes(
        Cls.CANCELLED,
        CANCELLED="The job was cancelled.",
        STOPPED="The work was stopped because somebody asked for it.",
        TASK_CANCELLED="The job's code was cancelled from within.",
    ),
    **_codes(
        Cls.UNKNOWN,
        UNKNOWN_ERROR="The job failed for a reason that is not known yet.",
        PROCESS_FAILED="A program failed.",
        PROCESS_CRASHED="A program crashed.",
        PROCESS_DIED="The process of this job died.",
        HANDLER_EXIT="The job's code asked its process to exit.",
        REMOTE_ERROR="A service failed without saying why.",
        UNREPORTED="The job failed without saying why.",
    ),
}


# Ends that have no exception: we saw them happen, or made them happen. One constructor each.

UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
REQUESTED = "RETRY_REQUESTED"
Evidence = dict[str, str | int | float | bool]


def _failure(
    code: str,
    cls: Cls,
    public: str,
    *,
    evidence: Evidence | None = None,
    private: Mapping[str, str] | None = None,
) -> Failure:
    rule = f"{SYSTEM_RULES}{code.lower().replace('_', '-')}"
    name = fingerprint(Facts(ended_by=code), code, cls)
    return Failure(
        code, cls, public, rule, cls in RETRYABLE, None, evidence or {}, private or {}, name
    )


def timed_out(limit_s: float) -> Failure:
    public = f"The job ran longer than its limit of {duration(limit_s)} and was stopped."
    return _failure("TIMEOUT", Cls.TIMEOUT, public, evidence={"limit_s": limit_s})


def process_died(
    *,
    signal: int | None = None,
    exit_code: int | None = None,
    peak_rss: int | None = None,
    oom: bool = False,
    shared: bool = False,
) -> Failure:
    """Its process died under it. Out of memory is claimed only when the kernel said so."""
    facts = {"signal": signal, "exit_code": exit_code, "peak_rss": peak_rss}
    evidence: Evidence = {name: value for name, value in facts.items() if value is not None}
    evidence |= {name: True for name, value in (("oom", oom), ("shared", shared)) if value}
    peak = f", peak memory {size(peak_rss)}" if peak_rss is not None else ""
    company = "; other jobs ran in the same process" if shared else ""
    public = f"The process of this job {_how(signal, exit_code, oom=oom)}{peak}{company}."
    return _failure("PROCESS_DIED", Cls.RESOURCE if oom else Cls.UNKNOWN, public, evidence=evidence)


def _how(signal: int | None, exit_code: int | None, *, oom: bool) -> str:
    if oom:
        return "was killed because memory ran out (OOM)"
    if signal is not None:
        return f"was killed by signal {signal}{_name(signal)}"
    return "died" if exit_code is None else f"exited with {exit_code}"


def _name(signal: int) -> str:
    try:
        return f" ({signals.Signals(signal).name})"
    except ValueError:
        return ""


def worker_lost(worker: str) -> Failure:
    public = "The worker that ran this job went away."
    return _failure("WORKER_LOST", Cls.TRANSIENT, public, private={"worker": worker})


def memory_limit(limit: int, peak: int) -> Failure:
    public = f"The job used {size(peak)} of memory, more than its limit of {size(limit)}, and was stopped."
    return _failure(
        "MEMORY_LIMIT", Cls.RESOURCE, public, evidence={"limit": limit, "peak_rss": peak}
    )


def unknown_kind(kind: str) -> Failure:
    return _failure(
        "KIND_UNKNOWN",
        Cls.PERMANENT,
        f"No worker knows jobs of kind {kind}.",
        evidence={"kind": kind},
    )


def deadline_passed(after: Failure | str | None = None) -> Failure:
    """`after`: what the job would have been put back for; its facts are kept."""
    public = "The job's deadline passed."
    if not isinstance(after, Failure):
        evidence: Evidence = {"after": str(after)} if after else {}
        return _failure("DEADLINE_PASSED", Cls.PERMANENT, public, evidence=evidence)
    kept: Evidence = {**after.evidence, "after": after.code}
    return _failure("DEADLINE_PASSED", Cls.PERMANENT, public, evidence=kept, private=after.private)


def result_refused(code: str, why: str) -> Failure:
    """RESULT_NOT_JSON or RESULT_TOO_LARGE: the work may be done, but its result cannot be kept."""
    return _failure(
        code, Cls.PERMANENT, "The job's result could not be stored.", private={"message": why}
    )


def payload_refused(why: str) -> Failure:
    public = "The job's payload is not what its handler takes."
    return _failure("PAYLOAD_REFUSED", Cls.INVALID_INPUT, public, private={"message": why})


def bad_outcome(why: str) -> Failure:
    public = "The job's code asked for something impossible."
    return _failure("BAD_OUTCOME", Cls.PERMANENT, public, private={"message": why})


def hold_unknown_dependency(dependency: str, uses: str) -> Failure:
    public = "The job's code tried to hold a dependency that the job does not use."
    why = f"Hold({dependency!r}), but the job uses {uses or 'nothing'}"
    return _failure("HOLD_UNKNOWN_DEPENDENCY", Cls.PERMANENT, public, private={"message": why})


def dependency_unavailable(key: str, reason: str) -> Failure:
    """Its breaker is open and says: fail at once. Never the dependency's own error, which this job has not seen."""
    public = f"Not started: {key}, which this job needs, is not available right now."
    return _failure(
        UNAVAILABLE,
        Cls.TRANSIENT,
        public,
        evidence={"dependency": key},
        private={"message": reason},
    )


def retry_refused(why: str) -> Failure:
    """Retried by hand, and its app says that it must not run again."""
    public = why or "This job cannot be run again."
    return _failure("RETRY_REFUSED", Cls.PERMANENT, public)


def snooze_limit(limit: int) -> Failure:
    public = f"The job put itself off more than {limit} times."
    return _failure("SNOOZE_LIMIT", Cls.PERMANENT, public, evidence={"limit": limit})


def retry_requested(reason: str) -> Failure:
    """The handler asked for another try: hopeful by its own word."""
    private = {"message": reason} if reason else {}
    public = "The job asked for another try."
    return _failure(REQUESTED, Cls.TRANSIENT, public, private=private)


def unrecordable(why: str) -> Failure:
    """The store refused to write this ending as it was; this one says so and nothing else."""
    public = "The job ended, but its outcome could not be recorded."
    return _failure("OUTCOME_REFUSED", Cls.PERMANENT, public, private={"message": why})


def unreported() -> Failure:
    """A failed attempt that brought no failure; recording it must not fail."""
    return _failure("UNREPORTED", Cls.UNKNOWN, "The job failed without saying why.")

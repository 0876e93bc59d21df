"""Ends that have no exception: we saw them happen, or made them happen. One constructor each."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping

from mulligan.core.attempt import RETRYABLE, SYSTEM_RULES, Cls, Failure
from mulligan.policy.facts import Facts
from mulligan.policy.fingerprint import fingerprint
from mulligan.policy.phrase import duration, size

UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
REQUESTED = "RETRY_REQUESTED"
Evidence = dict[str, str | int | float | bool]


def _failure(
    code: str, cls: Cls, public: str, *, evidence: Evidence | None = None, private: Mapping[str, str] | None = None
) -> Failure:
    rule = f"{SYSTEM_RULES}{code.lower().replace('_', '-')}"
    name = fingerprint(Facts(ended_by=code), code, cls)
    return Failure(code, cls, public, rule, cls in RETRYABLE, None, evidence or {}, private or {}, name)


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
    return _failure("MEMORY_LIMIT", Cls.RESOURCE, public, evidence={"limit": limit, "peak_rss": peak})


def unknown_kind(kind: str) -> Failure:
    return _failure("KIND_UNKNOWN", Cls.PERMANENT, f"No worker knows jobs of kind {kind}.", evidence={"kind": kind})


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
    return _failure(code, Cls.PERMANENT, "The job's result could not be stored.", private={"message": why})


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
    return _failure(UNAVAILABLE, Cls.TRANSIENT, public, evidence={"dependency": key}, private={"message": reason})


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

"""Log lines about jobs: failures, retries, endings, claims, manual actions and sweeps.

Lines are written after the commit, never inside a transaction. The text is for people; the fields
in `extra` are stable. A job that succeeds costs nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from mulligan.core.attempt import Decision, Failure, Lease, Verb, Verdict
from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import format_duration
from mulligan.core.job import JobRow, State
from mulligan.jobs.sentences import explain_wait
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy

log = logging.getLogger("mulligan.jobs")
_sweep_log = logging.getLogger("mulligan.upkeep")

MAX_PER_SECOND = 20  # lines of one group
MAX_GROUPS = 1000  # groups that are counted; lines of further groups are all logged

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class LogSampler(Generic[Key]):
    """Limits how many equal lines are logged per second, and counts the others."""

    def __init__(self, most: int = MAX_PER_SECOND) -> None:
        self._most = most
        self._second = 0
        self._counts: dict[Key, int] = {}

    def should_log(self, key: Key) -> bool:
        """Count one line. False if enough lines of this group were logged in this second."""
        count = self._counts.get(key, 0) + 1
        if count == 1 and len(self._counts) >= MAX_GROUPS:
            return True
        self._counts[key] = count
        return count <= self._most

    def sample(self, key: Key, items: Sequence[Item]) -> Sequence[Item]:
        """Count all items of one group. Return those that may be logged."""
        before = self._counts.get(key, 0)
        if before == 0 and len(self._counts) >= MAX_GROUPS:
            return items
        self._counts[key] = before + len(items)
        return items[: max(0, self._most - before)]

    def pop_suppressed(self, now: Micros) -> list[tuple[Key, int]]:
        """Return, once a second is over, how many lines of each group were not logged in it."""
        second = now // SECOND
        if second == self._second or not self._counts:
            self._second = second
            return []
        suppressed = [
            (key, count - self._most) for key, count in self._counts.items() if count > self._most
        ]
        self._second = second
        self._counts = {}
        return suppressed


class LogGroup(NamedTuple):
    """Endings whose log lines are counted together."""

    kind: str
    verb: Verb
    code: str


# Fields of the private part of a failure that are logged as `error_…`.
_PRIVATE_FIELDS = ("exception", "message", "detail", "stderr", "trace")
_END_PHRASES = {
    State.DEAD: "ended for good",
    State.PARKED: "waits for a person",
    State.CANCELLED: "cancelled",
}


def log_verdicts(
    verdicts: Sequence[Verdict],
    policies: EffectivePolicies,
    now: Micros,
    sampler: LogSampler[LogGroup] | None = None,
) -> None:
    """Log how attempts ended. With a sampler, equal endings are limited and counted."""
    if sampler is not None:
        _log_suppressed(sampler, now)
    unsuccessful = [
        (lease, decision)
        for lease, decision in verdicts
        if decision is not None and decision.verb is not Verb.SUCCEED
    ]
    for group, same in groupby(unsuccessful, key=_log_group):
        items: Sequence[tuple[Lease, Decision]] = [*same]
        if sampler is not None:
            items = sampler.sample(group, items)
        for lease, decision in items:
            _log_ending(lease, decision, policies, now)
    if log.isEnabledFor(logging.DEBUG):
        _log_successes(verdicts)


def _log_ending(
    lease: Lease,
    decision: Decision,
    policies: EffectivePolicies,
    now: Micros,
) -> None:
    if decision.failure is not None and log.isEnabledFor(logging.ERROR):
        _log_failure(lease, decision.failure)
    if decision.verb is Verb.RETRY and log.isEnabledFor(logging.INFO):
        _log_retry(lease, decision, policies.for_job(lease), now)
    elif decision.state in _END_PHRASES and log.isEnabledFor(logging.WARNING):
        _log_end(lease, decision)


def _log_group(ending: tuple[Lease, Decision]) -> LogGroup:
    lease, decision = ending
    code = "" if decision.failure is None else decision.failure.code
    return LogGroup(lease.kind, decision.verb, code)


def _log_suppressed(sampler: LogSampler[LogGroup], now: Micros) -> None:
    for group, count in sampler.pop_suppressed(now):
        what = f"{group.code} failures" if group.code else "endings"
        log.warning(
            "%s more %s of kind %s in the last second (not logged individually): %s",
            f"{count:,}",
            what,
            group.kind,
            group.verb.value,
            extra={
                "kind": group.kind,
                "code": group.code,
                "verb": group.verb.value,
                "suppressed": count,
            },
        )


def _log_successes(verdicts: Iterable[Verdict]) -> None:
    """Log attempts that succeeded, at level debug."""
    for lease, decision in verdicts:
        if decision is not None and decision.verb is Verb.SUCCEED:
            log.debug("attempt %d of %s succeeded", lease.attempt, lease.kind, extra=_ids(lease))


def _log_failure(lease: Lease, failure: Failure) -> None:
    private = failure.private
    error = private.get("message") or failure.public
    extra = {
        **_ids(lease),
        "code": failure.code,
        "error_class": failure.cls.value,
        "rule": failure.rule,
        "error": error,
        "group": failure.fingerprint,
        "evidence": dict(failure.evidence),
    }
    extra |= {f"error_{name}": private[name] for name in _PRIVATE_FIELDS if private.get(name)}
    log.error(
        "attempt %d of %s failed with %s (%s): %s",
        lease.attempt,
        lease.kind,
        failure.code,
        failure.cls.value,
        _name_exception(private.get("exception"), error),
        extra=extra,
    )


def _name_exception(exception: str | None, error: str) -> str:
    """Return `KeyError: 'zz'`: a message alone is often unreadable. `Fail` says nothing more."""
    if not exception or exception.startswith("mulligan."):
        return error
    return f"{exception.rpartition('.')[2]}: {error}"


def _log_retry(lease: Lease, decision: Decision, policy: EffectivePolicy, now: Micros) -> None:
    delay = max(0, (decision.run_at or now) - now) / SECOND
    computed = explain_wait(policy, decision, now)
    log.info(
        "attempt %d of %s in %s: %s; %s",
        lease.attempt + 1,
        lease.kind,
        format_duration(delay),
        decision.reason,
        computed,
        extra={
            **_ids(lease),
            "code": _failure_code(decision),
            "retry": decision.failures,
            "next_attempt": lease.attempt + 1,
            "delay": round(delay, 3),
            "computed": computed,
        },
    )


def _failure_code(decision: Decision) -> str:
    return decision.failure.code if decision.failure else ""


def _log_end(lease: Lease, decision: Decision) -> None:
    """Log that a job is dead, parked or cancelled: nothing retries it automatically."""
    permanent = decision.state is State.DEAD
    level = logging.WARNING if permanent else logging.INFO
    log.log(
        level,
        "%s %s: %s",
        lease.kind,
        _END_PHRASES[decision.state],
        decision.reason,
        extra={
            **_ids(lease),
            "state": decision.state.value,
            "reason": decision.reason,
            "permanent": permanent,
            "code": _failure_code(decision),
        },
    )


def log_claimed(leases: Sequence[Lease], worker: str) -> None:
    """Log how many retries were claimed; claims of fresh jobs alone only at level debug."""
    if not leases or not log.isEnabledFor(logging.INFO):
        return
    retries = sum(1 for lease in leases if lease.failures)
    extra = {"due": len(leases), "retries": retries, "worker": worker}
    if retries:
        noun = "retry" if retries == 1 else "retries"
        log.info("%d %s found due", retries, noun, extra=extra)
    elif log.isEnabledFor(logging.DEBUG):
        noun = "job" if len(leases) == 1 else "jobs"
        log.debug("%d %s found due", len(leases), noun, extra=extra)


def log_manual_action(verb: Verb, row: JobRow, actor: str, reason: str) -> None:
    """Log a manual retry, cancellation, release or other action on one job."""
    if not log.isEnabledFor(logging.INFO):
        return
    action = "manual retry" if verb is Verb.RETRY_BY_HAND else verb.value.replace("_", " ")
    log.info(
        "%s of %s requested by %s%s",
        action,
        row.kind,
        actor or "unknown",
        f": {reason}" if reason else "",
        extra={
            "job": row.id,
            "kind": row.kind,
            "queue": row.queue,
            "actor": actor,
            "reason": reason,
            "generation": row.generation,
            "action": verb.value,
        },
    )


class SweepResult(StrEnum):
    """Result of a sweep. The value completes the log line "12 …"."""

    LOST = "jobs of lost workers settled"
    DEADLINES = "jobs past their deadline ended"
    UNKNOWN_KINDS = "jobs of unknown kinds ended"
    SCHEDULED = "jobs of schedules enqueued"
    PRUNED = "rows removed by retention"


_WARNINGS = frozenset({SweepResult.LOST, SweepResult.DEADLINES, SweepResult.UNKNOWN_KINDS})


def log_sweep(counts: Mapping[SweepResult, int]) -> None:
    """Log what a sweep changed, if anything."""
    for result, count in counts.items():
        if count:
            level = logging.WARNING if result in _WARNINGS else logging.INFO
            extra = {"swept": result.value, "count": count}
            _sweep_log.log(level, "%s %s", f"{count:,}", result.value, extra=extra)


def _ids(lease: Lease) -> dict[str, Any]:
    return {
        "job": lease.id,
        "kind": lease.kind,
        "queue": lease.queue,
        "attempt": lease.attempt,
        "token": lease.token,
        "worker": lease.worker,
    }

"""Reasons of decisions: one function or constant per `Ground`, with its sentence for people.

Programs compare the ground and never parse the sentence.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mulligan.core.attempt import Cls, Ground
from mulligan.core.format import format_duration


class Reason(NamedTuple):
    """Ground of a decision and its sentence."""

    ground: Ground
    text: str
    retry_count: str = ""  # "2 of 5", as in Decision


RETURNED = Reason(Ground.RETURNED, "returned")
RETURNED_BEFORE_STOP = Reason(Ground.RETURNED_BEFORE_STOP, "returned before it could be stopped")
FINAL = Reason(Ground.FINAL, "not retried: the handler declared the failure final")
RETRIES_DISABLED = Reason(
    Ground.RETRIES_DISABLED, "not retried: retries are switched off (retry.enabled)"
)
ALREADY_DONE = "skipped: the result already existed"


def skipped(*, stop_requested: bool) -> Reason:
    if stop_requested:
        return Reason(Ground.SKIPPED, f"{ALREADY_DONE} before it could be stopped")
    return Reason(Ground.SKIPPED, ALREADY_DONE)


def stop_requested(reason: str) -> Reason:
    return Reason(Ground.STOP_REQUESTED, _because("stopped on request", reason))


def cancelled(reason: str) -> Reason:
    return Reason(Ground.CANCELLED_BY_HANDLER, reason or "cancelled by the handler")


def parked(reason: str) -> Reason:
    return Reason(Ground.PARKED_BY_HANDLER, reason or "a person must decide")


RUN_AGAIN = "run again"
IT_HAPPENED = "it happened"  # a job released with it succeeds without a call of its handler


def fate_unknown(ended: str) -> Reason:
    """Explain why a job of a kind with once=True is parked. `ended` says how the attempt ended."""
    text = f"{ended}; it may have done its work, and once=True allows no second run"
    return Reason(Ground.FATE_UNKNOWN, text)


def in_step(name: str, reason: str) -> str:
    """Add the step in which the attempt failed."""
    return f"step {name}: {reason}"


def undo_failed(reason: str) -> Reason:
    """Explain why a job is parked whose steps could not be undone."""
    return Reason(Ground.UNDO_FAILED, f"a step could not be undone: {reason}")


# --- Queued again ---


def retry(count: str, wait: float, cls: Cls, hint: float | None = None) -> Reason:
    """Explain a retry after `wait` seconds, of which a service requested `hint`."""
    text = f"retry {count} in {format_duration(wait)}: {cls}"
    if hint is not None and 0 < hint <= wait:
        text = f"{text}; the service asked for {format_duration(hint)}"
    return Reason(Ground.RETRY, text, count)


def host_gave_up(host: str) -> Reason:
    return Reason(Ground.HOST_GAVE_UP, f"not retried: {host} does not run the task again")


def retry_requested(count: str, wait: float, reason: str, host: str = "") -> Reason:
    text = f"retry {count} in {format_duration(wait)}: requested by {host or 'the handler'}"
    text = _because(text, reason)
    return Reason(Ground.RETRY_REQUESTED, text, count)


def lost(losses: int, limit: int, *, alone: bool) -> Reason:
    text = f"lost {losses} of at most {limit} times"
    if alone:
        text += "; the next attempt runs alone in its process"
    return Reason(Ground.LOST, text)


def snoozed(wait: float, reason: str) -> Reason:
    return Reason(Ground.SNOOZED, _because(f"snoozed for {format_duration(wait)}", reason))


def sleeping(name: str, wait: float) -> Reason:
    return Reason(Ground.WAITING, f"sleeps for {format_duration(wait)} ({name})")


def waiting(what: str, wait: float | None) -> Reason:
    """Explain a wait that something else ends, at the latest after `wait` seconds."""
    text = f"waits for {what}"
    if wait is not None:
        text = f"{text}, for at most {format_duration(wait)}"
    return Reason(Ground.WAITING, text)


def held(dependency: str, wait: float, reason: str) -> Reason:
    text = f"waits for {dependency}, held for {format_duration(wait)}"
    return Reason(Ground.HELD, _because(text, reason))


def released(reason: str) -> Reason:
    return Reason(Ground.RELEASED, reason or "released, not charged")


def dependency_down(dependency: str) -> Reason:
    text = f"no retry charged: {dependency} is down; the job waits until it recovers"
    return Reason(Ground.DEPENDENCY_DOWN, text)


def kind_held(kind: str) -> Reason:
    text = f"no retry charged: kind {kind} is on hold; the job waits until the kind is released"
    return Reason(Ground.KIND_HELD, text)


def quota_used_up(dependency: str) -> Reason:
    text = f"no retry charged: the quota of {dependency} is used up"
    return Reason(Ground.QUOTA_USED_UP, text)


def system_error(code: str) -> Reason:
    """Explain a job that is given back because Mulligan itself could not work."""
    text = f"no retry charged: the worker got {code}, an error of Mulligan and not of the job"
    return Reason(Ground.SYSTEM_ERROR, text)


def other_release(release: str) -> Reason:
    """Explain a payload that is left to the release that accepts it."""
    text = (
        "no retry charged: this worker's release does not accept the payload; "
        f"left to {release}, which does"
    )
    return Reason(Ground.OTHER_RELEASE, text)


# --- Dead ---


def class_excluded(cls: Cls, allowed: frozenset[Cls]) -> Reason:
    listed = ", ".join(sorted(allowed))
    text = f"not retried: class {cls} is not in retry.only ({listed})"
    return Reason(Ground.CLASS_EXCLUDED, text)


def class_not_retryable(cls: str, rule: str, advice: str = "") -> Reason:
    text = f"not retried: class {cls} by rule {rule}"
    if advice:
        text = f"{text}; {advice}"
    return Reason(Ground.CLASS_NOT_RETRYABLE, text)


def unknown_not_retried(scope: str) -> Reason:
    text = f"not retried: class unknown, and the {scope} sets retry_unknown=False"
    return Reason(Ground.UNKNOWN_NOT_RETRIED, text)


def max_retries(limit: int, scope: str) -> Reason:
    if limit:
        return Reason(Ground.MAX_RETRIES, f"{limit} of {limit} retries used")
    return Reason(Ground.MAX_RETRIES, f"not retried: the {scope} allows no retries")


def class_limit(limit: int, cls: Cls, origin: str) -> Reason:
    """Explain the limit of a class. `origin` is the scope or the setting that sets it."""
    return Reason(Ground.CLASS_LIMIT, _describe_limit(limit, f"class {cls}", origin))


def rule_limit(limit: int, code: str, rule: str) -> Reason:
    return Reason(Ground.RULE_LIMIT, _describe_limit(limit, f"code {code}", f"rule {rule}"))


def _describe_limit(limit: int, what: str, origin: str) -> str:
    if limit:
        return f"{limit} of {limit} retries for {what} used (limit set by {origin})"
    return f"not retried: {origin} allows no retries for {what}"


def max_age(age: float) -> Reason:
    limit = format_duration(age)
    text = f"not retried: the next attempt would start more than {limit} after the first (max_age)"
    return Reason(Ground.MAX_AGE, text)


def max_losses(losses: int, limit: int, failure: str) -> Reason:
    return Reason(Ground.MAX_LOSSES, f"lost {losses} times, {limit} allowed: {failure}")


def max_snoozes(limit: int) -> Reason:
    return Reason(Ground.MAX_SNOOZES, f"{limit} of {limit} snoozes used")


def deadline(without_deadline: str) -> Reason:
    """Explain a missed deadline. The argument is the decision that it overruled."""
    text = f"the deadline passes before the next attempt ({without_deadline})"
    return Reason(Ground.DEADLINE, text)


def manual_retry_refused(failure: str) -> Reason:
    return Reason(Ground.MANUAL_RETRY_REFUSED, f"not run again: {failure}")


# --- Reasons of closed gates ---


def rate_limited_for(wait: float) -> str:
    """Explain why a dependency is closed after a rate limit with a hint."""
    return f"it asked callers to wait {format_duration(wait)}"


QUOTA_GATE = "its quota is used up"
HANDLER_GATE = "a handler reported that it is down"


# --- Stored grounds ---

_GROUNDS = {ground.value: ground for ground in Ground}


def read_ground(judged: str | None) -> Ground | None:
    """Read the ground from the `judged` column of an attempt; None if it has none."""
    record = json.loads(judged) if judged else {}
    return _GROUNDS.get(record.get("ground", ""))


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text

"""Reasons of decisions: for every `Ground` the sentence that people read, built from its numbers.

Programs compare the ground and never read the sentence.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mulligan.core.attempt import Cls, Ground
from mulligan.core.format import duration


class Reason(NamedTuple):
    """Ground of a decision with its sentence."""

    ground: Ground
    text: str
    retry_count: str = ""  # as in Decision


RETURNED = Reason(Ground.RETURNED, "returned")
RETURNED_BEFORE_STOP = Reason(Ground.RETURNED_BEFORE_STOP, "returned before it could be stopped")
FINAL = Reason(Ground.FINAL, "not retried: the handler declared the failure final")
RETRIES_DISABLED = Reason(
    Ground.RETRIES_DISABLED, "not retried: retries are switched off (retry.enabled)"
)
ALREADY_DONE = "skipped: the result already existed"


def skipped(*, stop_requested: bool) -> Reason:
    late = " before it could be stopped" if stop_requested else ""
    return Reason(Ground.SKIPPED, f"{ALREADY_DONE}{late}")


def stop_requested(reason: str) -> Reason:
    return Reason(Ground.STOP_REQUESTED, _because("stopped on request", reason))


def cancelled(reason: str) -> Reason:
    return Reason(Ground.CANCELLED_BY_HANDLER, reason or "cancelled by the handler")


def parked(reason: str) -> Reason:
    return Reason(Ground.PARKED_BY_HANDLER, reason or "a person must decide")


# -- queued again -----------------------------------------------------------------------------------
def retry(count: str, wait: float, cls: Cls) -> Reason:
    """Explain a retry after `wait` seconds."""
    return Reason(Ground.RETRY, f"retry {count} in {duration(wait)}: {cls}", count)


def retry_requested(count: str, wait: float, reason: str) -> Reason:
    text = _because(f"retry {count} in {duration(wait)}: requested by the handler", reason)
    return Reason(Ground.RETRY_REQUESTED, text, count)


def lost(losses: int, limit: int) -> Reason:
    text = f"lost, {losses} of {limit} allowed; the next attempt runs alone in its process"
    return Reason(Ground.LOST, text)


def snoozed(wait: float, reason: str) -> Reason:
    return Reason(Ground.SNOOZED, _because(f"snoozed for {duration(wait)}", reason))


def held(dependency: str, wait: float, reason: str) -> Reason:
    text = f"waits for {dependency}, held for {duration(wait)}"
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


# -- dead -------------------------------------------------------------------------------------------
def class_excluded(cls: Cls, allowed: frozenset[Cls]) -> Reason:
    listed = ", ".join(sorted(allowed))
    text = f"not retried: class {cls} is not in retry.only ({listed})"
    return Reason(Ground.CLASS_EXCLUDED, text)


def class_not_retryable(cls: str, rule: str, advice: str = "") -> Reason:
    more = f"; {advice}" if advice else ""
    return Reason(Ground.CLASS_NOT_RETRYABLE, f"not retried: class {cls} by rule {rule}{more}")


def unknown_not_retried(scope: str) -> Reason:
    text = f"not retried: class unknown, and the {scope} sets retry_unknown=False"
    return Reason(Ground.UNKNOWN_NOT_RETRIED, text)


def max_retries(limit: int, scope: str) -> Reason:
    if limit:
        return Reason(Ground.MAX_RETRIES, f"{limit} of {limit} retries used")
    return Reason(Ground.MAX_RETRIES, f"not retried: the {scope} allows no retries")


def class_limit(limit: int, cls: Cls, origin: str) -> Reason:
    """`origin`: the scope or the setting that sets the limit."""
    return Reason(Ground.CLASS_LIMIT, _limit(limit, f"class {cls}", origin))


def rule_limit(limit: int, code: str, rule: str) -> Reason:
    return Reason(Ground.RULE_LIMIT, _limit(limit, f"code {code}", f"rule {rule}"))


def _limit(limit: int, what: str, origin: str) -> str:
    if limit:
        return f"{limit} of {limit} retries for {what} used (limit set by {origin})"
    return f"not retried: {origin} allows no retries for {what}"


def max_age(age: float) -> Reason:
    text = f"not retried: the next attempt would start more than {duration(age)} after the first (max_age)"
    return Reason(Ground.MAX_AGE, text)


def max_losses(losses: int, limit: int, failure: str) -> Reason:
    return Reason(Ground.MAX_LOSSES, f"lost {losses} times, {limit} allowed: {failure}")


def max_snoozes(limit: int) -> Reason:
    return Reason(Ground.MAX_SNOOZES, f"{limit} of {limit} snoozes used")


def deadline(otherwise: str) -> Reason:
    """`otherwise`: what had been decided without the deadline."""
    return Reason(Ground.DEADLINE, f"the deadline passes before the next attempt ({otherwise})")


def manual_retry_refused(failure: str) -> Reason:
    return Reason(Ground.MANUAL_RETRY_REFUSED, f"not run again: {failure}")


# -- of a closed dependency -------------------------------------------------------------------------
def rate_limited_for(wait: float) -> str:
    """Explain why a dependency is closed after a rate limit with a hint."""
    return f"it asked callers to wait {duration(wait)}"


QUOTA_GATE = "its quota is used up"


# -- stored -----------------------------------------------------------------------------------------
_GROUNDS = {ground.value: ground for ground in Ground}


def read_ground(judged: str | None) -> Ground | None:
    """Read the ground from the `judged` column of an attempt. None: there is none, as of a success."""
    found = json.loads(judged) if judged else {}
    return _GROUNDS.get(found.get("ground", ""))


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text

"""Previews of a policy: for each class whether, how often and when a failing job is retried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Failure
from mulligan.failures.redact import scrub
from mulligan.retries.backoff import Backoff
from mulligan.retries.decide import HINT_JITTER, MAX_HINT_JITTER
from mulligan.retries.limits import (
    NO_COUNTS,
    ChargedFailure,
    RuleTerms,
    find_refusal,
    read_terms,
    select_backoff,
)
from mulligan.retries.policy import EffectivePolicy, Scope, Then
from mulligan.retries.reasons import max_age

DELAY_FIELDS = ("base_delay", "factor", "max_delay", "jitter")
MAX_PLANNED_ATTEMPTS = 30  # a limit may be a million retries; a preview of 30 rows is enough

# --- One class ---


class PlannedAttempt(NamedTuple):
    """When an attempt would start if every earlier attempt failed at once. All values in seconds.

    Hints of a server are not part of it.
    """

    attempt: int
    wait: float  # before jitter
    earliest: float
    latest: float
    at_earliest: float  # since the first attempt
    at: float
    at_latest: float


FIRST_ATTEMPT = PlannedAttempt(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ClassPreview:
    """Effect of a policy on the failures of one class."""

    cls: Cls
    retried: bool
    why: str  # sentence
    limit: int  # retries, if all failures are of this class
    limit_from: Scope
    limit_origin: str
    backoff: Backoff
    backoff_from: Scope
    backoff_origin: str
    counts: str  # failures that advance the backoff: "class" or "all failures"
    then: tuple[Then, ...]
    then_from: Scope | None
    calendar: tuple[PlannedAttempt, ...]  # starts with the first attempt
    more: bool  # the calendar was cut


# Describes where a value comes from. For the system scope it gets the names of the settings.
Origin = Callable[[Scope, Sequence[str]], str]


def preview_class(policy: EffectivePolicy, cls: Cls, origin: Origin) -> ClassPreview:
    """Describe how failures of one class are retried, and where each number comes from."""
    for_class = policy.by_class[cls]
    limit, limit_from, limit_setting = _effective_limit(policy, cls)
    refusal = _explain_refusal(policy, cls)
    retries = 0 if refusal else limit
    attempts = plan_attempts(for_class.backoff, retries, policy.max_age)
    delay_settings = _delay_settings(cls, for_class=for_class.backoff_is_for_class)
    counts = "class" if for_class.backoff_is_for_class else "all failures"
    then_from = for_class.then_from if for_class.then else None
    return ClassPreview(
        cls=cls,
        retried=not refusal,
        why=refusal or _format_limit(limit),
        limit=retries,
        limit_from=limit_from,
        limit_origin=origin(limit_from, [limit_setting]),
        backoff=for_class.backoff,
        backoff_from=for_class.backoff_from,
        backoff_origin=origin(for_class.backoff_from, delay_settings),
        counts=counts,
        then=for_class.then,
        then_from=then_from,
        calendar=attempts,
        more=retries >= MAX_PLANNED_ATTEMPTS and len(attempts) == MAX_PLANNED_ATTEMPTS,
    )


def _format_limit(limit: int) -> str:
    noun = "retry" if limit == 1 else "retries"
    return f"at most {limit:,} {noun}"


def _effective_limit(policy: EffectivePolicy, cls: Cls) -> tuple[int, Scope, str]:
    """Return the tighter limit, the scope that sets it, and the setting if that is the system."""
    limit = policy.class_limit(cls)
    scope = policy.class_limit_scope(cls)
    if limit is not None and scope is not None and limit < policy.max_retries:
        return limit, scope, policy.class_limit_setting(cls)
    return policy.max_retries, policy.max_retries_from, "retry.max_retries"


def _delay_settings(cls: Cls, *, for_class: bool) -> list[str]:
    general = [f"retry.{name}" for name in DELAY_FIELDS]
    if not for_class:
        return general
    return [f"retry.classes.{cls}.{name}" for name in DELAY_FIELDS] + general


def _explain_refusal(policy: EffectivePolicy, cls: Cls) -> str:
    """Return why failures of this class are never retried, or an empty string if they are."""
    if cls not in RETRYABLE:
        return f"a retry does not fix failures of class {cls}"
    if not policy.enabled:
        return "retries are switched off (retry.enabled)"
    if not policy.allows_class(cls):
        allowed = ", ".join(sorted(policy.only or ()))
        return f"only {allowed} may be retried (retry.only)"
    if cls is Cls.UNKNOWN and policy.retry_unknown is False:
        return f"the {policy.retry_unknown_from} sets retry_unknown=False"
    limit, scope, setting = _effective_limit(policy, cls)
    if limit:
        return ""
    origin = setting if scope == "system" else f"the {scope}"
    return f"{origin} allows no retries"


def plan_attempts(
    backoff: Backoff, retries: int, max_age: float | None = None
) -> tuple[PlannedAttempt, ...]:
    """Return the first attempt and its retries, if every failure advances this backoff."""
    attempts = [FIRST_ATTEMPT]
    for n in range(min(retries, MAX_PLANNED_ATTEMPTS - 1)):
        low, high = backoff.bounds(n)
        attempt = _plan_next(attempts[-1], backoff.nominal(n), low, high)
        if max_age is not None and attempt.at_earliest > max_age:
            break
        attempts.append(attempt)
    return tuple(attempts)


def _plan_next(last: PlannedAttempt, wait: float, low: float, high: float) -> PlannedAttempt:
    return PlannedAttempt(
        attempt=last.attempt + 1,
        wait=wait,
        earliest=low,
        latest=high,
        at_earliest=last.at_earliest + low,
        at=last.at + wait,
        at_latest=last.at_latest + high,
    )


def redact_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the settings of an escalation step whose name or value looks like a secret."""
    redacted = dict(settings)
    for name, value in settings.items():
        if _looks_secret(name, value):
            redacted[name] = "[redacted]"
    return redacted


def _looks_secret(name: str, value: Any) -> bool:
    text = f"{name}={value}"
    return scrub(text) != text


# --- One failure ---


class RetrySimulation(NamedTuple):
    """Attempts of a job whose every attempt fails with the same failure."""

    attempts: tuple[PlannedAttempt, ...]  # starts with the first attempt
    end: str  # why there is no further attempt; empty if the list was cut

    @property
    def retried(self) -> bool:
        return len(self.attempts) > 1


def simulate_retries(policy: EffectivePolicy, failure: Failure) -> RetrySimulation:
    """Apply the retry limits to a failure that repeats until the job is dead."""
    terms = read_terms(failure)
    counts = NO_COUNTS
    attempts = [FIRST_ATTEMPT]
    while len(attempts) < MAX_PLANNED_ATTEMPTS:
        counts = counts.add(failure)
        charge = ChargedFailure(failure, terms, len(attempts), counts)
        refusal = find_refusal(policy, charge)
        if refusal is not None:
            return RetrySimulation(tuple(attempts), refusal.text)
        attempt = _simulate_next(policy, charge, attempts[-1])
        if policy.max_age is not None and attempt.at_earliest > policy.max_age:
            return RetrySimulation(tuple(attempts), max_age(policy.max_age).text)
        attempts.append(attempt)
    return RetrySimulation(tuple(attempts), "")


def _simulate_next(
    policy: EffectivePolicy, charge: ChargedFailure, last: PlannedAttempt
) -> PlannedAttempt:
    backoff, n = select_backoff(policy, charge)
    hint, jitter = _hint(charge.failure, charge.terms)
    low, high = backoff.bounds(n)
    wait = max(backoff.nominal(n), hint)
    return _plan_next(last, wait, max(low, hint), max(high, hint) + jitter)


def _hint(failure: Failure, terms: RuleTerms) -> tuple[float, float]:
    """Return the seconds that the server asked to wait, and the largest jitter added to them."""
    hint = failure.retry_after
    if hint is None or not math.isfinite(hint) or hint <= 0 or not terms.wait_for_hint:
        return 0.0, 0.0
    return hint, min(HINT_JITTER * hint, MAX_HINT_JITTER)

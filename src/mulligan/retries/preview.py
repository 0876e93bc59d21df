"""What a policy means for a job that keeps failing: per class whether, how often, when, and how differently."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mulligan.core.attempt import RETRYABLE, Cls, Failure
from mulligan.core.format import duration
from mulligan.failures.redact import scrub
from mulligan.retries.backoff import Fixed, Table, bounds, nominal
from mulligan.retries.decide import backoff_of
from mulligan.retries.limits import NO_COUNTS, Charge, RuleTerms, refused, terms_of
from mulligan.retries.policy import AnyBackoff, EffectivePolicy, Scope, Then
from mulligan.retries.reasons import max_age

DELAYS = ("base_delay", "factor", "max_delay", "jitter")
MOST_TRIES = 30  # nobody reads further, and a limit may be a million


class Try(NamedTuple):
    """One attempt of a job whose every attempt before it failed at once; seconds, a server's hint apart."""

    attempt: int
    wait: float  # nominal, before the draw
    earliest: float
    latest: float
    at_earliest: float  # since the first attempt
    at: float
    at_latest: float


@dataclass(frozen=True, slots=True)
class ClassOutlook:
    """What follows failures of one class."""

    cls: Cls
    retried: bool
    why: str  # in words
    limit: int  # retries, if all failures are of this class
    limit_from: Scope
    limit_origin: str
    backoff: AnyBackoff
    backoff_from: Scope
    backoff_origin: str
    counts: str  # what moves its backoff on: "class" or "all failures"
    then: tuple[Then, ...]
    then_from: Scope | None
    calendar: tuple[Try, ...]  # begins with the first attempt
    more: bool  # the calendar goes on


Origin = Callable[
    [Scope, Sequence[str]], str
]  # where exactly: of the system, by the names of its settings


def outlook(policy: EffectivePolicy, cls: Cls, origin: Origin) -> ClassOutlook:
    own = policy.by_class[cls]
    limit, limit_from, limit_setting = _limit(policy, cls)
    limit_origin = origin(limit_from, [limit_setting])
    refusal = _refusal(policy, cls)
    tries = calendar(own.backoff, 0 if refusal else limit, policy.max_age)
    return ClassOutlook(
        cls=cls,
        retried=not refusal,
        why=refusal or f"at most {limit} {'retry' if limit == 1 else 'retries'}",
        limit=0 if refusal else limit,
        limit_from=limit_from,
        limit_origin=limit_origin,
        backoff=own.backoff,
        backoff_from=own.backoff_from,
        backoff_origin=origin(
            own.backoff_from, _delay_settings(cls, of_class=own.backoff_of_class)
        ),
        counts="class" if own.backoff_of_class else "all failures",
        then=own.then,
        then_from=own.then_from if own.then else None,
        calendar=tries,
        more=not refusal and limit >= MOST_TRIES and len(tries) == MOST_TRIES,
    )


def _limit(policy: EffectivePolicy, cls: Cls) -> tuple[int, Scope, str]:
    """The tighter of the two, who names it, and by which setting if it is the system."""
    cap, cap_from = policy.cap_for(cls), policy.cap_from(cls)
    if cap is not None and cap_from is not None and cap < policy.max_retries:
        return cap, cap_from, policy.cap_setting(cls)
    return policy.max_retries, policy.max_retries_from, "retry.max_retries"


def _delay_settings(cls: Cls, *, of_class: bool) -> list[str]:
    general = [f"retry.{name}" for name in DELAYS]
    return [f"retry.classes.{cls}.{name}" for name in DELAYS] + general if of_class else general


def _refusal(policy: EffectivePolicy, cls: Cls) -> str:
    """Why failures of this class are never retried; empty if they are."""
    if cls not in RETRYABLE:
        return "such failures do not go away by themselves"
    if not policy.enabled:
        return "retries are switched off (retry.enabled)"
    if not policy.allows(cls):
        return f"only {', '.join(sorted(policy.only or ()))} may be retried (retry.only)"
    if cls is Cls.UNKNOWN and policy.retry_unknown is False:
        return f"the {policy.retry_unknown_from} says retry_unknown=False"
    limit, scope, setting = _limit(policy, cls)
    if limit:
        return ""
    return f"{setting if scope == 'system' else f'the {scope}'} allows none"


def calendar(backoff: AnyBackoff, retries: int, max_age: float | None = None) -> tuple[Try, ...]:
    """The first attempt and what follows it, if all failures are of the kind this backoff counts."""
    tries = [Try(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    for n in range(min(retries, MOST_TRIES - 1)):
        wait, (low, high), last = nominal(backoff, n), bounds(backoff, n), tries[-1]
        found = Try(
            n + 2, wait, low, high, last.at_earliest + low, last.at + wait, last.at_latest + high
        )
        if max_age is not None and found.at_earliest > max_age:
            break
        tries.append(found)
    return tuple(tries)


def harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a step's settings, as anybody may see them: hidden are those that look or are called like a secret."""
    written = {name: f"{name}={value}" for name, value in settings.items()}
    return {
        name: "[redacted]" if scrub(written[name]) != written[name] else settings[name]
        for name in settings
    }


def described(backoff: AnyBackoff) -> str:
    """`5 s × 3, at most 15 min, ± 20 %`, `1 min, 5 min, 15 min`, `always 10 s`."""
    if isinstance(backoff, Fixed):
        return f"always {duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        return ", ".join(duration(wait) for wait in backoff.seconds)
    spread = (
        f"± {backoff.jitter * 100:g} %"
        if isinstance(backoff.jitter, float)
        else f"{backoff.jitter} jitter"
    )
    return (
        f"{duration(backoff.base)} × {backoff.factor:g}, at most {duration(backoff.cap)}, {spread}"
    )


# What would become of a job whose every attempt failed of the same: when it is tried again, and why it ends.

SPREAD, SPREAD_MOST = 0.1, 60.0  # of a server's hint


class SimulatedLife(NamedTuple):
    """`tries` begins with the first attempt."""

    tries: tuple[Try, ...]
    end: str  # why there is no further one; empty: there are more than anybody reads

    @property
    def retried(self) -> bool:
        return len(self.tries) > 1


def simulate_life(policy: EffectivePolicy, failure: Failure) -> SimulatedLife:
    """By the very rules that decide about a job."""
    terms, counts = terms_of(failure), NO_COUNTS
    tries = [Try(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    while len(tries) < MOST_TRIES:
        counts = counts.plus(failure)
        charge = Charge(failure, terms, len(tries), counts)
        refusal = refused(policy, charge)
        if refusal is not None:
            return SimulatedLife(tuple(tries), refusal.text)
        found = _next(policy, charge, tries[-1])
        if policy.max_age is not None and found.at_earliest > policy.max_age:
            return SimulatedLife(tuple(tries), max_age(policy.max_age).text)
        tries.append(found)
    return SimulatedLife(tuple(tries), "")


def _next(policy: EffectivePolicy, charge: Charge, last: Try) -> Try:
    backoff, before = backoff_of(policy, charge)
    hint, spread = _hint(charge.failure, charge.terms)
    low, high = bounds(backoff, before)
    wait, low, high = max(nominal(backoff, before), hint), max(low, hint), max(high, hint) + spread
    return Try(
        last.attempt + 1,
        wait,
        low,
        high,
        last.at_earliest + low,
        last.at + wait,
        last.at_latest + high,
    )


def _hint(failure: Failure, terms: RuleTerms) -> tuple[float, float]:
    """How long the other side wants to be left alone, and by how much that is spread."""
    asked = failure.retry_after
    if asked is None or not math.isfinite(asked) or asked <= 0 or not terms.wait_for_hint:
        return 0.0, 0.0
    return asked, min(SPREAD * asked, SPREAD_MOST)

"""Why a counted failure is not retried. Whether comes before how often, and no count widens it."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.policy.codes import PROGRAMMING_ERROR
from mulligan.policy.counts import Counts
from mulligan.policy.retry import EffectivePolicy
from mulligan.policy.terms import Terms


class Charge(NamedTuple):
    """A counted failure: what it was, what its rule changes, and the counts with it."""

    failure: Failure
    terms: Terms
    failures: int
    counts: Counts
    written: str | None = None  # the counts, where that was done already

    @property
    def of_class(self) -> int:
        return self.counts.of_class(self.failure.cls)

    @property
    def of_code(self) -> int:
        return self.counts.of_code(self.failure.code)


def refused(policy: EffectivePolicy, charge: Charge) -> str:
    """In words; empty if it is retried."""
    failure = charge.failure
    if not failure.retryable and not _excused(policy, failure):
        return f"not retried: rule {failure.rule} says the class is {failure.cls}{_advice(failure)}"
    if policy.retry_unknown is False and failure.cls == Cls.UNKNOWN:
        return f"not retried: the class is unknown and the {policy.retry_unknown_from} says retry_unknown=False"
    return (
        switched_off(policy, failure)
        or refused_by_total(policy, charge)
        or _refused_by_class(policy, charge)
        or _refused_by_rule(charge)
    )


def _excused(policy: EffectivePolicy, failure: Failure) -> bool:
    """`retry_unknown=True` also means: a KeyError of ours is no proof that it will always be one."""
    return policy.retry_unknown is True and failure.rule == PROGRAMMING_ERROR


def _advice(failure: Failure) -> str:
    if failure.rule == PROGRAMMING_ERROR:
        return "; to retry such errors, use Policy(retry_unknown=True)"
    if failure.rule.startswith("mulligan."):
        return ""  # our own verdict about a fact; no rule of theirs can change it
    return "; to retry it all the same, return Retry() from the handler"


def switched_off(policy: EffectivePolicy, failure: Failure) -> str:
    if not policy.enabled:
        return "not retried: retries are switched off (retry.enabled)"
    if policy.only is not None and failure.cls not in policy.only:
        named = ", ".join(sorted(policy.only))
        return f"not retried: only {named} may be retried (retry.only), and the class is {failure.cls}"
    return ""


def refused_by_total(policy: EffectivePolicy, charge: Charge) -> str:
    most = policy.max_retries
    if charge.failures <= most:
        return ""
    return f"{most} of {most} retries used" if most else f"not retried: the {policy.max_retries_from} allows none"


def _refused_by_class(policy: EffectivePolicy, charge: Charge) -> str:
    cls = charge.failure.cls
    cap = policy.cap_for(cls)
    if cap is None or charge.of_class <= cap:
        return ""
    whose = _whose(policy, cls)
    if not cap:
        return f"not retried: {whose} allows none for class {cls}"
    return f"{cap} of {cap} retries used that {whose} allows for class {cls}"


def _whose(policy: EffectivePolicy, cls: Cls) -> str:
    """Of the system, the very setting: somebody will want to change it."""
    scope = policy.cap_from(cls)
    return f"the {scope}" if scope != "system" else policy.cap_setting(cls)


def _refused_by_rule(charge: Charge) -> str:
    most, failure = charge.terms.max_retries, charge.failure
    if most is None or charge.of_code <= most:
        return ""
    if not most:
        return f"not retried: rule {failure.rule} allows none for code {failure.code}"
    return f"{most} of {most} retries used that rule {failure.rule} allows for code {failure.code}"

"""Limits of retries: whether a counted failure may be retried, then how often."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.policy import reasons
from mulligan.policy.codes import PROGRAMMING_ERROR
from mulligan.policy.counts import Counts
from mulligan.policy.reasons import Reason
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


def refused(policy: EffectivePolicy, charge: Charge) -> Reason | None:
    """Return why the failure is not retried, or None if it is."""
    failure = charge.failure
    if not failure.retryable and not _excused(policy, failure):
        return reasons.class_not_retryable(failure.cls, failure.rule, _advice(failure))
    if policy.retry_unknown is False and failure.cls is Cls.UNKNOWN:
        return reasons.unknown_not_retried(policy.retry_unknown_from)
    return (
        switched_off(policy, failure)
        or refused_by_total(policy, charge)
        or _refused_by_class(policy, charge)
        or _refused_by_rule(charge)
    )


def _excused(policy: EffectivePolicy, failure: Failure) -> bool:
    """True for a programming error under `retry_unknown=True`, which covers these too."""
    return policy.retry_unknown is True and failure.rule == PROGRAMMING_ERROR


def _advice(failure: Failure) -> str:
    if failure.rule == PROGRAMMING_ERROR:
        return "to retry such errors, use Policy(retry_unknown=True)"
    if failure.by_system:
        return ""  # no rule or handler of the app can change it
    return "to retry it all the same, return Retry() from the handler"


def switched_off(policy: EffectivePolicy, failure: Failure) -> Reason | None:
    """Return the setting that forbids this retry: retry.enabled or retry.only."""
    if not policy.enabled:
        return reasons.RETRIES_DISABLED
    if policy.only is not None and failure.cls not in policy.only:
        return reasons.class_excluded(failure.cls, policy.only)
    return None


def refused_by_total(policy: EffectivePolicy, charge: Charge) -> Reason | None:
    limit = policy.max_retries
    if charge.failures <= limit:
        return None
    return reasons.max_retries(limit, policy.max_retries_from)


def _refused_by_class(policy: EffectivePolicy, charge: Charge) -> Reason | None:
    cls = charge.failure.cls
    limit = policy.cap_for(cls)
    if limit is None or charge.of_class <= limit:
        return None
    return reasons.class_limit(limit, cls, _origin(policy, cls))


def _origin(policy: EffectivePolicy, cls: Cls) -> str:
    """Name what sets the limit of a class; for the system the setting, which people can change."""
    scope = policy.cap_from(cls)
    return f"the {scope}" if scope != "system" else policy.cap_setting(cls)


def _refused_by_rule(charge: Charge) -> Reason | None:
    limit, failure = charge.terms.max_retries, charge.failure
    if limit is None or charge.of_code <= limit:
        return None
    return reasons.rule_limit(limit, failure.code, failure.rule)

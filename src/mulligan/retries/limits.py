"""Limits of retries: whether a counted failure may be retried, then how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.core.job import Micros
from mulligan.core.json import encode
from mulligan.failures.codes import PROGRAMMING_ERROR
from mulligan.retries import reasons
from mulligan.retries.policy import AnyBackoff, EffectivePolicy, Policy, Then
from mulligan.retries.reasons import Reason

# How often a job has failed in this generation, by class and by code. Stored beside it as JSON; None: never.

# A handler may make up codes as it goes. Beyond this many only those a rule has terms for are counted: rules are few.
MOST_CODES = 100


_TEXT = {cls: cls.value for cls in Cls}  # until Python 3.12 `value` is a function's work


class Counts(NamedTuple):
    classes: Mapping[str, int]
    codes: Mapping[str, int]
    spared: int = 0  # failures that were charged to a dependency that was down
    waited: Micros = 0  # while it was due and did not run: held, or without a place

    def plus(self, failure: Failure) -> Counts:
        """With one failure more."""
        cls, code = failure.cls, failure.code
        classes = {**self.classes, _TEXT[cls]: self.of_class(cls) + 1}
        if code not in self.codes and len(self.codes) >= MOST_CODES and not failure.terms:
            return Counts(classes, self.codes, self.spared, self.waited)
        return Counts(
            classes, {**self.codes, code: self.codes.get(code, 0) + 1}, self.spared, self.waited
        )

    def of_class(self, cls: Cls) -> int:
        return self.classes.get(cls, 0)

    def of_code(self, code: str) -> int:
        return self.codes.get(code, 0)

    def to_json(self) -> str | None:
        if self == NO_COUNTS:
            return None
        said: dict[str, Any] = {"classes": self.classes, "codes": self.codes}
        if self.spared:
            said["spared"] = self.spared
        if self.waited:
            said["waited"] = self.waited
        return encode(said)


NO_COUNTS = Counts({}, {})


def read_counts(text: str | None) -> Counts:
    """What cannot be read counts as nothing: the total, which has a column of its own, still holds."""
    if not text:
        return NO_COUNTS
    try:
        said = json.loads(text)
        more = _numbers({name: said.get(name) for name in ("spared", "waited")})
        return Counts(_numbers(said.get("classes")), _numbers(said.get("codes")), **more)
    except (AttributeError, ValueError):
        return NO_COUNTS


def _numbers(value: Any) -> dict[str, int]:
    return {
        str(name): count
        for name, count in (value or {}).items()
        if type(count) is int and count > 0
    }


# What the rule that judged a failure changes about its retries: a limit, a backoff, a ladder, the hint, a promise.


class RuleTerms(NamedTuple):
    max_retries: int | None = None
    backoff: AnyBackoff | None = None
    then: tuple[Then, ...] = ()
    wait_for_hint: bool = True
    promise: str = ""


NO_TERMS = RuleTerms()


MOST_KNOWN = 1000
_known: dict[str, RuleTerms] = {}  # by how they are written: the same few come again and again


def terms_of(failure: Failure) -> RuleTerms:
    """Most rules have none."""
    if not failure.terms:
        return NO_TERMS
    written = repr(failure.terms)
    found = _known.get(written)
    if found is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        found = _known[written] = _read(failure.terms)
    return found


def _read(said: Mapping[str, Any]) -> RuleTerms:
    """What a newer version wrote and we cannot read counts as unsaid."""
    waits, promise = said.get("wait_for_hint") is not False, str(said.get("promise", ""))
    try:
        policy = Policy.from_plain(
            {name: said[name] for name in ("max_retries", "backoff", "then") if name in said}
        )
    except ValueError:
        return RuleTerms(wait_for_hint=waits, promise=promise)
    return RuleTerms(policy.max_retries, policy.backoff, policy.ladder, waits, promise)


# Limits of retries: whether a counted failure may be retried, then how often.


class Charge(NamedTuple):
    """A counted failure: what it was, what its rule changes, and the counts with it."""

    failure: Failure
    terms: RuleTerms
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

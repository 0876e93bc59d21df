"""Retry limits: whether a failure may be retried, how often, and with which backoff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Failure
from mulligan.core.durations import Micros
from mulligan.core.json import encode
from mulligan.failures.codes import PROGRAMMING_ERROR_RULE
from mulligan.retries import reasons
from mulligan.retries.backoff import Backoff
from mulligan.retries.policy import EffectivePolicy, Policy, Then, select_step
from mulligan.retries.reasons import Reason

CALL_SCOPES = frozenset({"step", "job"})  # more specific than the rule of a failure

# --- Failure counts ---

# Handlers can invent any number of codes. Above this many, only codes whose rule has terms are
# counted: there are few rules.
MAX_COUNTED_CODES = 100

# `StrEnum.value` is a slow property before Python 3.12.
_CLASS_TEXT = {cls: cls.value for cls in Cls}


class FailureCounts(NamedTuple):
    """Failures of a job in this generation, by class and by code. Stored with the job as JSON."""

    classes: Mapping[str, int]
    codes: Mapping[str, int]
    uncharged: int = 0  # failures attributed to a dependency or kind instead of this job
    waited: Micros = 0  # time in which the job was due but could not run

    def add(self, failure: Failure) -> FailureCounts:
        """Return the counts including this failure."""
        cls = failure.cls
        code = failure.code
        classes = {**self.classes, _CLASS_TEXT[cls]: self.for_class(cls) + 1}
        codes = self.codes
        if code in codes or len(codes) < MAX_COUNTED_CODES or failure.terms:
            codes = {**codes, code: codes.get(code, 0) + 1}
        return FailureCounts(classes, codes, self.uncharged, self.waited)

    def for_class(self, cls: Cls) -> int:
        return self.classes.get(cls, 0)

    def for_code(self, code: str) -> int:
        return self.codes.get(code, 0)

    def to_json(self) -> str | None:
        """Return the stored form. None if nothing was counted."""
        if self == NO_COUNTS:
            return None
        record: dict[str, Any] = {"classes": self.classes, "codes": self.codes}
        if self.uncharged:
            record["spared"] = self.uncharged
        if self.waited:
            record["waited"] = self.waited
        return encode(record)


NO_COUNTS = FailureCounts({}, {})


def parse_counts(text: str | None) -> FailureCounts:
    """Parse stored counts. Unreadable counts are empty: the total has a column of its own."""
    if not text:
        return NO_COUNTS
    try:
        record = json.loads(text)
        totals = _positive_ints({name: record.get(name) for name in ("spared", "waited")})
        return FailureCounts(
            _positive_ints(record.get("classes")),
            _positive_ints(record.get("codes")),
            totals.get("spared", 0),
            totals.get("waited", 0),
        )
    except (AttributeError, ValueError):
        return NO_COUNTS


def _positive_ints(value: Any) -> dict[str, int]:
    return {
        str(name): count
        for name, count in (value or {}).items()
        if type(count) is int and count > 0
    }


# --- Terms of a rule ---


class RuleTerms(NamedTuple):
    """Retry settings that a failure rule sets for its code."""

    max_retries: int | None = None
    backoff: Backoff | None = None
    then: tuple[Then, ...] = ()
    wait_for_hint: bool = True
    promise: str = ""  # added to the public message while the job is retried


NO_TERMS = RuleTerms()

MAX_CACHED_TERMS = 1000
_cached_terms: dict[str, RuleTerms] = {}  # by repr of the stored terms


def read_terms(failure: Failure) -> RuleTerms:
    """Return the terms of the rule that classified a failure; most rules have none."""
    if not failure.terms:
        return NO_TERMS
    key = repr(failure.terms)
    terms = _cached_terms.get(key)
    if terms is None:
        if len(_cached_terms) >= MAX_CACHED_TERMS:
            _cached_terms.clear()
        terms = _parse_terms(failure.terms)
        _cached_terms[key] = terms
    return terms


def _parse_terms(stored: Mapping[str, Any]) -> RuleTerms:
    """Parse stored terms. Limits that a newer version wrote and this one cannot read are unset."""
    wait_for_hint = stored.get("wait_for_hint") is not False
    promise = str(stored.get("promise", ""))
    overrides = {
        name: stored[name] for name in ("max_retries", "backoff", "then") if name in stored
    }
    try:
        policy = Policy.from_dict(overrides)
    except ValueError:
        return RuleTerms(wait_for_hint=wait_for_hint, promise=promise)
    return RuleTerms(policy.max_retries, policy.backoff, policy.steps, wait_for_hint, promise)


# --- Limits ---


class ChargedFailure(NamedTuple):
    """A counted failure, the terms of its rule, and the counts that include it."""

    failure: Failure
    terms: RuleTerms
    failures: int
    counts: FailureCounts
    counts_json: str | None = None  # the counts, if already encoded

    @property
    def class_count(self) -> int:
        return self.counts.for_class(self.failure.cls)

    @property
    def code_count(self) -> int:
        return self.counts.for_code(self.failure.code)


def find_refusal(policy: EffectivePolicy, charge: ChargedFailure) -> Reason | None:
    """Return why the failure is not retried, or None if it is."""
    failure = charge.failure
    if not failure.retryable and not _is_allowed_programming_error(policy, failure):
        return reasons.class_not_retryable(failure.cls, failure.rule, _advice(failure))
    if policy.retry_unknown is False and failure.cls is Cls.UNKNOWN:
        return reasons.unknown_not_retried(policy.retry_unknown_from)
    return (
        check_switches(policy, failure)
        or check_max_retries(policy, charge)
        or _check_class_limit(policy, charge)
        or _check_rule_limit(charge)
    )


def _is_allowed_programming_error(policy: EffectivePolicy, failure: Failure) -> bool:
    """Return True for a programming error under `retry_unknown=True`, which covers these too."""
    return policy.retry_unknown is True and failure.rule == PROGRAMMING_ERROR_RULE


def _advice(failure: Failure) -> str:
    if failure.rule == PROGRAMMING_ERROR_RULE:
        return "to retry such errors, use Policy(retry_unknown=True)"
    if failure.by_system:
        return ""  # no rule or handler of the app can change it
    return "to retry it anyway, return Retry() from the handler"


def check_switches(policy: EffectivePolicy, failure: Failure) -> Reason | None:
    """Return the setting that forbids this retry: retry.enabled or retry.only."""
    if not policy.enabled:
        return reasons.RETRIES_DISABLED
    if policy.only is not None and failure.cls not in policy.only:
        return reasons.class_excluded(failure.cls, policy.only)
    return None


def check_max_retries(policy: EffectivePolicy, charge: ChargedFailure) -> Reason | None:
    """Return a refusal if the job has used all its retries."""
    limit = policy.max_retries
    if charge.failures <= limit:
        return None
    return reasons.max_retries(limit, policy.max_retries_from)


def _check_class_limit(policy: EffectivePolicy, charge: ChargedFailure) -> Reason | None:
    cls = charge.failure.cls
    limit = policy.class_limit(cls)
    if limit is None or charge.class_count <= limit:
        return None
    return reasons.class_limit(limit, cls, _class_limit_origin(policy, cls))


def _class_limit_origin(policy: EffectivePolicy, cls: Cls) -> str:
    """Name the scope that sets the limit of a class; for the system, name the setting."""
    scope = policy.class_limit_scope(cls)
    if scope == "system":
        return policy.class_limit_setting(cls)
    return f"the {scope}"


def _check_rule_limit(charge: ChargedFailure) -> Reason | None:
    limit = charge.terms.max_retries
    failure = charge.failure
    if limit is None or charge.code_count <= limit:
        return None
    return reasons.rule_limit(limit, failure.code, failure.rule)


# --- Terms of a retry: what equal failures share ---


class RetryTerms(NamedTuple):
    """Part of a decision that all failures of one code, rule and count share.

    The random draw, the time and the message are not part of it.
    """

    charge: ChargedFailure
    refusal: Reason | None
    retry_count: str
    backoff: Backoff
    backoff_index: int
    step: Then | None


@lru_cache(maxsize=1024)
def cached_retry_terms(  # noqa: PLR0913, PLR0917 - the key of the cache
    policy: EffectivePolicy,
    failures: int,
    counts: str | None,
    waited: Micros,
    terms: RuleTerms,
    code: str,
    cls: Cls,
    rule: str,
    retryable: bool,  # noqa: FBT001 - part of a cache key
    has_terms: bool,  # noqa: FBT001 - part of a cache key
) -> RetryTerms:
    """Return the terms of a failure with these counts, from a cache."""
    # Counting a failure only looks at whether it has terms, so any non-empty mapping serves.
    failure_terms = {"some": True} if has_terms else {}
    failure = Failure(code, cls, "", rule, retryable, terms=failure_terms)
    before = parse_counts(counts)
    after = before._replace(waited=before.waited + waited).add(failure)
    charge = ChargedFailure(failure, terms, failures, after, after.to_json())
    backoff, backoff_index = select_backoff(policy, charge)
    return RetryTerms(
        charge=charge,
        refusal=find_refusal(policy, charge),
        retry_count=format_retry_count(policy, charge),
        backoff=backoff,
        backoff_index=backoff_index,
        step=next_step(policy, charge),
    )


def select_backoff(policy: EffectivePolicy, charge: ChargedFailure) -> tuple[Backoff, int]:
    """Return the most specific backoff and how many earlier failures advanced it.

    The order is: step, job, rule, kind, queue, system.
    """
    for_class = policy.by_class[charge.failure.cls]
    if charge.terms.backoff is not None and for_class.backoff_from not in CALL_SCOPES:
        return charge.terms.backoff, charge.code_count - 1
    if for_class.backoff_is_for_class:
        return for_class.backoff, charge.class_count - 1
    return for_class.backoff, charge.failures - 1


def next_step(policy: EffectivePolicy, charge: ChargedFailure, losses: int = 0) -> Then | None:
    """Return the escalation step after this failure; `losses` are added to its count."""
    for_class = policy.by_class[charge.failure.cls]
    if charge.terms.then and for_class.then_from not in CALL_SCOPES:
        return select_step(charge.terms.then, charge.code_count + losses)
    count = charge.class_count if for_class.then_is_for_class else charge.failures
    return select_step(for_class.then, count + losses)


def format_retry_count(policy: EffectivePolicy, charge: ChargedFailure) -> str:
    """Return `2 of 5`, or with tighter limits `2 of 5 (1 of 1 for its class)`."""
    total = f"{charge.failures} of {policy.max_retries}"
    class_limit = policy.class_limit(charge.failure.cls)
    code_limit = charge.terms.max_retries
    tighter = []
    if class_limit is not None and class_limit < policy.max_retries:
        tighter.append(f"{charge.class_count} of {class_limit} for its class")
    if code_limit is not None and code_limit < policy.max_retries:
        tighter.append(f"{charge.code_count} of {code_limit} for its code")
    return f"{total} ({', '.join(tighter)})" if tighter else total

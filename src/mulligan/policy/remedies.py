"""A job that was not tried again: what would have to be said, and where, for it to be tried next time."""

from __future__ import annotations

from mulligan.job import RETRYABLE, AttemptRow, Cls
from mulligan.policy.codes import PROGRAMMING_ERROR
from mulligan.policy.retry import EffectivePolicy

# Verdicts of our own about a fact: no rule about an error text can change them.
_FACTS = {
    "mulligan.unknown-kind": "Start a worker whose app has this kind, then retry it by hand.",
    "mulligan.kind-unknown": "Start a worker whose app has this kind, then retry it by hand.",
    "mulligan.deadline-passed": "Give such jobs a longer deadline=; a retry by hand begins it anew.",
    "mulligan.payload-refused": "The payload does not fit the handler: correct one of them.",
    "mulligan.result-not-json": "The handler must return what can be written as JSON.",
    "mulligan.result-too-large": "Return less, or raise the setting limits.result.",
    "mulligan.snooze-limit": "Allow more with Policy(max_snoozes=…).",
    "mulligan.hold-unknown-dependency": "Name the dependency in uses= of the kind.",
    "mulligan.bad-outcome": "Correct what the handler returns.",
}


def remedy(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    """One sentence; empty: there is nothing to change, or nothing is known."""
    if "it is final" in attempt.reason:
        return "The handler itself said so (final=True): to have such failures tried again, leave that out."
    if not policy.enabled or "switched off" in attempt.reason:
        return "Retries are switched off by the setting retry.enabled (MULLIGAN_RETRY__ENABLED)."
    if attempt.ended == "lost":
        return f"To allow more than {policy.max_losses} losses: Policy(max_losses=…)."
    if attempt.rule in _FACTS:
        return _FACTS[attempt.rule]
    if attempt.cls is not None and attempt.cls not in RETRYABLE and "retries used" not in attempt.reason:
        return _by_verdict(attempt)
    return _by_count(attempt, policy)


def _by_verdict(attempt: AttemptRow) -> str:
    rule = attempt.rule or ""
    if rule == PROGRAMMING_ERROR:
        return (
            "To have such errors tried again: Policy(retry_unknown=True) for the kind, "
            f"or a rule of your own before it. {_own_rule(attempt)}"
        )
    if rule.startswith("mulligan."):
        return ""
    if rule == "handler.declared":
        return (
            f"The handler declared {attempt.code}. To have it tried again, return Retry() there instead of Fail(), "
            f"or say what the code means. {_own_rule(attempt)}"
        )
    return (
        "To have it tried again: a rule of your own, which comes before the built-in ones, or Retry() returned by "
        f"the handler. {_own_rule(attempt)}"
    )


def _own_rule(attempt: AttemptRow) -> str:
    name = (attempt.code or "this").lower().replace("_", "-")
    return f'Such a rule: Rule("retry-{name}", verdict="{attempt.code}", code="{attempt.code}", cls="{Cls.TRANSIENT}").'


def _by_count(attempt: AttemptRow, policy: EffectivePolicy) -> str:
    if "max_age" in attempt.reason:
        return "To allow later tries: a longer Policy(max_age=…)."
    if "retry_unknown" in attempt.reason:
        return "To have unknown errors tried again: leave retry_unknown=False out of the policy."
    cls = attempt.cls
    if cls is not None and policy.limit_for(Cls(cls)) < policy.max_retries:
        return (
            f'To allow more for this class: Policy(classes={{"{cls}": Policy(max_retries=…)}}), '
            "or a retry by hand with --max-retries."
        )
    return "To allow more: Policy(max_retries=…) for the kind, or a retry by hand with --max-retries."

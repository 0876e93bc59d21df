"""A job that was not tried again: what would have to be said, and where, for it to be tried next time."""

from __future__ import annotations

from mulligan.core.attempt import RETRYABLE, Cls, Ground, is_system_rule
from mulligan.job import AttemptRow
from mulligan.policy.codes import PROGRAMMING_ERROR
from mulligan.policy.reasons import read_ground
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
    ground = read_ground(attempt.judged)
    if ground is Ground.FINAL:
        return "The handler itself said so (final=True): to have such failures tried again, leave that out."
    if not policy.enabled or ground is Ground.RETRIES_DISABLED:
        return "Retries are switched off by the setting retry.enabled (MULLIGAN_RETRY__ENABLED)."
    if ground is Ground.MAX_LOSSES:
        return f"To allow more than {policy.max_losses} losses: Policy(max_losses=…)."
    if attempt.rule in _FACTS:
        return _FACTS[attempt.rule]
    if ground in _BY_GROUND:
        return _BY_GROUND[ground].format(rule=attempt.rule, code=attempt.code, cls=attempt.cls)
    if attempt.cls is not None and attempt.cls not in RETRYABLE and ground not in _COUNTED:
        return _by_verdict(attempt)
    return _by_count(attempt, policy)


_COUNTED = frozenset({Ground.MAX_RETRIES, Ground.CLASS_LIMIT})
_BY_GROUND = {
    Ground.CLASS_EXCLUDED: "To have it tried again: add {cls} to the setting retry.only (MULLIGAN_RETRY__ONLY).",
    Ground.UNKNOWN_NOT_RETRIED: "To have unknown errors tried again: leave retry_unknown=False out of the policy.",
    Ground.RULE_LIMIT: "Rule {rule} allows no more for code {code}: give it a larger max_retries=.",
    Ground.MAX_AGE: "To allow later tries: a longer Policy(max_age=…).",
}


def _by_verdict(attempt: AttemptRow) -> str:
    rule = attempt.rule or ""
    if rule == PROGRAMMING_ERROR:
        return (
            "To have such errors tried again: Policy(retry_unknown=True) for the kind, "
            f"or a rule of your own before it. {_own_rule(attempt)}"
        )
    if is_system_rule(rule):
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
    cls = attempt.cls
    if cls is not None and policy.limit_for(Cls(cls)) < policy.max_retries:
        return (
            f'To allow more for this class: Policy(classes={{"{cls}": Policy(max_retries=…)}}), '
            "or a retry by hand with --max-retries."
        )
    return "To allow more: Policy(max_retries=…) for the kind, or a retry by hand with --max-retries."

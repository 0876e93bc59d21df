"""Alert rules: when an alert fires, when it is resolved, and the sentence about it. Pure.

Two thresholds prevent flapping, a minimum volume prevents an alert about one failure of one job,
and a rule may have to hold for some time before it fires. Without new samples an alert stays as it
is, and is resolved after 15 minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.format import format_duration

UNMEASURED_LIMIT = 900 * SECOND  # an alert without samples for so long is resolved
ACTION_DURATION = 900 * SECOND  # of an alert's action; renewed while the alert fires
REFRESH_INTERVAL = 60 * SECOND  # an unchanged value is written again after this time
WHOLE_RULE = "*"  # key of a silence: it applies to all keys of the rule

PENDING = "pending"
FIRING = "firing"
RESOLVED = "resolved"
SILENCED = "silenced"

FIRED = "fired"  # transitions that are reported; the other is RESOLVED


@dataclass(frozen=True, slots=True)
class AlertDefinition:
    """A rule: what is measured, from which value on it fires, and what it does then."""

    name: str
    measure: str
    above: float
    summary: str  # with {} for the value
    window: float = 300.0  # seconds that are measured
    and_window: float | None = None  # shorter window that must exceed `above` too: still going on
    least: float = 0.0  # minimum volume in `window`
    clear: float | None = None  # resolved at or below; None: four fifths of `above`
    for_: float = 0.0  # seconds above the threshold before it fires
    severity: str = "ticket"  # page, ticket, info
    action: str = ""  # reduce, open, pause
    runbook: str = ""
    once: bool = False  # fires only once per key
    unless: str = (
        ""  # comma-separated rules: while one of them fires for the key, this one does not
    )
    enabled: bool = True

    @property
    def clear_at(self) -> float:
        """Value at or below which the alert is resolved."""
        return self.above * 0.8 if self.clear is None else self.clear

    @property
    def anchor(self) -> str:
        """Anchor of the rule's entry in the runbook."""
        return self.runbook or self.name


class Sample(NamedTuple):
    """A measured value of one key."""

    key: str
    value: float
    volume: float = 0.0
    evidence: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Alert:
    """State of a rule for one key, as stored."""

    rule: str
    key: str
    state: str
    since: Micros  # of this state
    measured_at: Micros
    value: float
    evidence: Mapping[str, Any] = field(default_factory=dict)
    action_state: Mapping[str, Any] = field(default_factory=dict)  # of an action in effect
    until: Micros | None = None  # end of the action, or of a silence
    actor: str = ""
    reason: str = ""


class AlertChange(NamedTuple):
    """A transition that is reported: `fired` or `resolved`."""

    transition: str
    alert: Alert


Firing = Mapping[str, Collection[str]]  # rule: the keys for which it fires


# --- Rules that cover others ---


def is_covered(rule: AlertDefinition, key: str, firing: Firing) -> bool:
    """Return whether another rule already fires for the same key.

    An alert about everything (an empty key) covers every key, and every key covers it.
    """
    for name in _covering_names(rule):
        for other_key in firing.get(name, ()):
            if not key or other_key in {"", key}:
                return True
    return False


def order_rules(rules: Sequence[AlertDefinition]) -> list[AlertDefinition]:
    """Sort rules so that each comes after the rules that cover it. Cycles keep their order."""
    by_name = {rule.name: rule for rule in rules}

    def depth(rule: AlertDefinition, path: tuple[str, ...] = ()) -> int:
        names = [name for name in _covering_names(rule) if name in by_name and name not in path]
        depths = [1 + depth(by_name[name], (*path, rule.name)) for name in names]
        return max(depths, default=0)

    return sorted(rules, key=depth)


def _covering_names(rule: AlertDefinition) -> list[str]:
    return [name.strip() for name in rule.unless.split(",")]


# --- Evaluation ---


def evaluate(
    rule: AlertDefinition,
    samples: Sequence[Sample],
    stored: Mapping[str, Alert],
    now: Micros,
    *,
    silenced: bool = False,
    firing: Firing | None = None,
) -> tuple[list[Alert], list[AlertChange]]:
    """Return the alerts of a rule that must be written, and the transitions to report."""
    written: list[Alert] = []
    changes: list[AlertChange] = []
    samples_by_key = {sample.key: sample for sample in samples}
    unmeasured = [key for key in stored if key not in samples_by_key and key != WHOLE_RULE]
    for key in [*samples_by_key, *unmeasured]:
        before = stored.get(key)
        quiet = silenced or is_covered(rule, key, firing or {})
        sample = samples_by_key.get(key)
        after, transition = _evaluate_key(rule, sample, before, now, silenced=quiet)
        if after is not None and after != before:
            written.append(after)
        if after is not None and transition:
            changes.append(AlertChange(transition, after))
    return written, changes


def _evaluate_key(
    rule: AlertDefinition,
    sample: Sample | None,
    before: Alert | None,
    now: Micros,
    *,
    silenced: bool,
) -> tuple[Alert | None, str]:
    if sample is None:
        return _evaluate_unmeasured(rule, before, now)
    if before is not None and before.state == FIRING:
        return _evaluate_firing(rule, sample, before, now)
    exceeds = sample.value > rule.above and sample.volume >= rule.least
    has_fired = before is not None and before.state == RESOLVED
    if not exceeds or (rule.once and has_fired):
        return _drop_pending(before, now), ""
    alert = _build_pending(rule, sample, before, now)
    if silenced or now - alert.since < rule.for_ * SECOND:
        return alert, ""
    return _set_state(alert, FIRING, now), FIRED


def _build_pending(
    rule: AlertDefinition, sample: Sample, before: Alert | None, now: Micros
) -> Alert:
    is_pending = before is not None and before.state == PENDING
    return Alert(
        rule=rule.name,
        key=sample.key,
        state=PENDING,
        since=before.since if before is not None and is_pending else now,
        measured_at=now,
        value=sample.value,
        evidence=dict(sample.evidence),
        action_state={} if before is None else before.action_state,
    )


def _evaluate_firing(
    rule: AlertDefinition, sample: Sample, before: Alert, now: Micros
) -> tuple[Alert, str]:
    alert = _update_value(before, sample, now)
    if sample.value <= rule.clear_at and sample.volume >= min(rule.least, 1.0):
        return _set_state(alert, RESOLVED, now), _resolved_transition(rule)
    return alert, ""


def _evaluate_unmeasured(
    rule: AlertDefinition, before: Alert | None, now: Micros
) -> tuple[Alert | None, str]:
    if before is None or before.state == RESOLVED or not _is_outdated(before, now):
        return before, ""
    transition = _resolved_transition(rule) if before.state == FIRING else ""
    return _set_state(before, RESOLVED, now), transition


def _drop_pending(before: Alert | None, now: Micros) -> Alert | None:
    if before is not None and before.state == PENDING:
        return _set_state(before, RESOLVED, now)
    return before


def _resolved_transition(rule: AlertDefinition) -> str:
    """Return the transition to report; nothing for a rule that fires only once."""
    return "" if rule.once else RESOLVED


def _is_outdated(alert: Alert, now: Micros) -> bool:
    age = now - alert.measured_at
    clock_was_set_back = age < 0
    return clock_was_set_back or age >= UNMEASURED_LIMIT


def _update_value(before: Alert, sample: Sample, now: Micros) -> Alert:
    """Return the alert with a new value. An equal value is written only once a minute."""
    if sample.value == before.value and now - before.measured_at < REFRESH_INTERVAL:
        return before
    return replace(before, measured_at=now, value=sample.value, evidence=dict(sample.evidence))


def _set_state(alert: Alert, state: str, now: Micros) -> Alert:
    return replace(alert, state=state, since=now)


# --- Sentences ---


def describe_alert(rule: AlertDefinition, alert: Alert) -> str:
    """Return `gateway: 12 % of calls were rate limited (5 min, alert above 5 %)`."""
    text = _fill_summary(rule, alert.value)
    if alert.key:
        text = f"{alert.key}: {text}"
    if UNITS.get(rule.measure) == "flag":
        return text
    threshold = f"alert above {format_value(rule, rule.above)}"
    if rule.measure not in GAUGES:
        threshold = f"{format_duration(rule.window)}, {threshold}"
    return f"{text} ({threshold})"


def _fill_summary(rule: AlertDefinition, value: float) -> str:
    if UNITS.get(rule.measure) == "flag":
        return rule.summary
    text = format_value(rule, value)
    if "{}" not in rule.summary:
        return f"{rule.summary}: {text}"
    summary = rule.summary
    if text == "1":
        summary = summary.replace("{} jobs", "{} job")
    return summary.replace("{}", text)


def format_value(rule: AlertDefinition, value: float) -> str:
    """Format a value of the rule's measure with its unit: `28.8 %`, `5 min`, `11×`, `1,234`."""
    unit = UNITS.get(rule.measure, "")
    if unit == "seconds":
        return format_duration(value)
    if unit == "share":
        return f"{_format_number(value * 100)} %"
    if unit == "factor":
        return f"{_format_number(value)}×"
    return _format_number(value)


def _format_number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# Measures with a unit; all others are numbers. A flag has no value worth showing.
UNITS = {
    "dead_share": "share",
    "dead_share_by_kind": "share",
    "dead_share_by_queue": "share",
    "failed_share": "share",
    "failed_share_by_dependency": "share",
    "failed_share_by_queue": "share",
    "rate_limited_share": "share",
    "rate_limited_share_by_queue": "share",
    "unknown_share": "share",
    "dead_jump": "factor",
    "duration_p95": "seconds",
    "queue_age": "seconds",
    "breaker_open": "seconds",
    "heartbeat_age": "seconds",
    "unserved": "seconds",
    "at_floor": "flag",
}
# Measures of the current state instead of a window.
GAUGES = frozenset({"queue_age", "breaker_open", "heartbeat_age", "unserved", "at_floor"})

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
    and_window: float | None = None  # shorter window that must exceed `above` too
    least: float = 0.0  # minimum volume in `window`
    clear: float | None = None  # resolved at or below; None: four fifths of `above`
    for_: float = 0.0  # seconds above the threshold before it fires
    severity: str = "ticket"  # page, ticket, info
    action: str = ""  # reduce, open, pause, hold_release
    runbook: str = ""
    once: bool = False  # fires only once per key
    unless: str = ""  # comma-separated rules: silent for a key for which one of them fires
    enabled: bool = True
    of_limit: float = 0.0  # share of the kind's time limit; replaces `above` if it is more

    @property
    def clear_at(self) -> float:
        """Value at or below which the alert is resolved."""
        return self.above * 0.8 if self.clear is None else self.clear

    @property
    def runbook_entry(self) -> str:
        """Address of the rule's runbook, or its anchor in the common one."""
        if "://" in self.runbook:
            return self.runbook
        return f"alert-{self.runbook or self.name}"


class Sample(NamedTuple):
    """A measured value of one key."""

    key: str
    value: float
    volume: float = 0.0
    evidence: Mapping[str, Any] = {}
    above: float | None = None  # threshold of this key; None: the rule's


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

    @property
    def reduced_limit(self) -> int | None:
        """Concurrency to which the action has reduced the key; None: it has not."""
        throttle = self.action_state.get("reduced")  # a ThrottleState as a list
        if not throttle:
            return None
        limit: int | None = throttle[0]
        return limit


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
        deepest = 0
        for name in _covering_names(rule):
            if name in by_name and name not in path:
                deepest = max(deepest, 1 + depth(by_name[name], (*path, rule.name)))
        return deepest

    return sorted(rules, key=depth)


def _covering_names(rule: AlertDefinition) -> list[str]:
    return [name.strip() for name in rule.unless.split(",")]


# --- Thresholds by kind ---

THRESHOLD = "threshold"  # in the evidence of a sample whose key has its own


def apply_time_limit(rule: AlertDefinition, sample: Sample, limit: float | None) -> Sample:
    """Return the sample with the threshold of its kind, whose attempts may take `limit` seconds.

    Four minutes are long for a job that may take five, and short for one that may take two hours.
    """
    above = rule.of_limit * (limit or 0.0)
    if above <= rule.above:
        return sample
    return sample._replace(above=above, evidence={**sample.evidence, THRESHOLD: above})


def threshold_of(rule: AlertDefinition, alert: Alert) -> float:
    """Return the threshold that an alert has exceeded."""
    return float(alert.evidence.get(THRESHOLD, rule.above))


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
        key_rule = rule
        if sample is not None and sample.above is not None:
            key_rule = replace(rule, above=sample.above)
        after, transition = _evaluate_key(key_rule, sample, before, now, silenced=quiet)
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
    since = now
    action_state: Mapping[str, Any] = {}
    if before is not None:
        action_state = before.action_state
        if before.state == PENDING:
            since = before.since
    return Alert(
        rule=rule.name,
        key=sample.key,
        state=PENDING,
        since=since,
        measured_at=now,
        value=sample.value,
        evidence=dict(sample.evidence),
        action_state=action_state,
    )


def _evaluate_firing(
    rule: AlertDefinition, sample: Sample, before: Alert, now: Micros
) -> tuple[Alert, str]:
    alert = _update_value(before, sample, now)
    # A share of 0 is measured too: no call failed, but some were made.
    is_measured = sample.volume >= min(rule.least, 1.0) or sample.evidence.get("of", 0) > 0
    if sample.value <= rule.clear_at and is_measured:
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
    if rule.measure == "release_worse" and "release" in alert.evidence:
        return _describe_worse_release(alert.evidence)
    text = _fill_summary(rule, alert.value)
    kind = str(alert.evidence.get("kind", ""))
    if rule.measure in GROUP_MEASURES and kind:
        text = f"New error in {kind} ({alert.evidence.get('code')}): {text}"
    elif alert.key:
        text = f"{alert.key}: {text}"
    if UNITS.get(rule.measure) == "flag" or (rule.once and not rule.above):
        return text
    limit = f"alert above {format_measure(rule.measure, threshold_of(rule, alert))}"
    if alert.state == FIRING and alert.value <= threshold_of(rule, alert):
        limit = f"clears at {format_measure(rule.measure, rule.clear_at)}"
    if rule.measure not in GAUGES:
        limit = f"{format_duration(rule.window)}, {limit}"
    return f"{text} ({limit})"


def _describe_worse_release(evidence: Mapping[str, Any]) -> str:
    """Return `charge fails more since release r42: 31 of 90 first attempts, 0 of 1,240 before`."""
    now, before = (
        f"{evidence[bad]:,} of {evidence[of]:,}"
        for bad, of in (("bad", "of"), ("bad_before", "of_before"))
    )
    where = f"{evidence['kind']} fails more since release {evidence['release']}"
    return f"{where}: {now} first attempts, {before} before"


def _fill_summary(rule: AlertDefinition, value: float) -> str:
    if UNITS.get(rule.measure) == "flag":
        return rule.summary
    text = format_measure(rule.measure, value)
    if "{}" not in rule.summary:
        return f"{rule.summary}: {text}"
    summary = rule.summary
    if text == "1":
        summary = summary.replace("{} jobs", "{} job")
    return summary.replace("{}", text)


def format_measure(measure: str, value: float) -> str:
    """Format a value of a measure with its unit: `28 %`, `5 min`, `11×`, `1,234`."""
    unit = UNITS.get(measure, "")
    if unit == "seconds":
        return format_duration(value)
    if unit == "share":
        return f"{_format_number(value * 100)} %"
    if unit == "factor":
        return f"{_format_number(value)}×"
    if unit == "flag":
        return "-"
    return _format_number(value)


def _format_number(value: float) -> str:
    """Format a number for people: `1,234`, `54`, `3.8`, `0.25`."""
    if abs(value) >= 10:
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2g}"


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
    "release_worse": "share",
}
GROUP_MEASURES = frozenset({"new_group", "new_unknown_group"})
# Measures of the current state instead of a window.
GAUGES = frozenset(
    {"queue_age", "breaker_open", "heartbeat_age", "unserved", "at_floor", "release_worse"}
)

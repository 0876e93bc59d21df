"""Alerts: when something is worth a person's attention, and when it is over. Pure; `now` is an argument.

Two thresholds, so that an alert does not flap; a least volume, so that one failure of one job is no share; a time for
which it must hold. What nobody has measured changes nothing: an alert whose subject fell silent ends after a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.core.format import duration
from mulligan.core.job import SECOND, Micros

SILENT = 900 * SECOND  # not measured for so long: over
LASTS = 900 * SECOND  # of what an alert does, renewed while it holds
EVERYTHING = "*"  # instead of a key: the whole rule

PENDING, FIRING, RESOLVED, SILENCED = "pending", "firing", "resolved", "silenced"


@dataclass(frozen=True, slots=True)
class AlertDefinition:
    name: str
    measure: str
    above: float
    summary: str
    window: float = 300.0  # seconds that are looked at
    and_window: float | None = (
        None  # it must hold over this shorter one too: then it is still going on
    )
    least: float = 0.0  # of what is counted, in `window`: below it nothing is said
    clear: float | None = None  # at or below it the alert is over; None: four fifths of `above`
    for_: float = 0.0  # seconds it must hold before it is told
    severity: str = "ticket"  # page, ticket, info
    action: str = ""  # reduce, open, pause
    runbook: str = ""
    once: bool = False  # of one key told a single time
    unless: str = ""  # other rules, with commas: while one of them fires for the same, this one has nothing to add
    enabled: bool = True

    @property
    def cleared(self) -> float:
        return self.above * 0.8 if self.clear is None else self.clear

    @property
    def anchor(self) -> str:
        """Of its entry in the runbook."""
        return self.runbook or self.name


class Sample(NamedTuple):
    """What was measured of one key."""

    key: str
    value: float
    volume: float = 0.0
    evidence: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Alert:
    """How a rule stands for one key, as stored."""

    rule: str
    key: str
    state: str
    since: Micros  # of this state
    seen_at: Micros  # last measured
    value: float
    evidence: Mapping[str, Any] = field(default_factory=dict)
    acted: Mapping[str, Any] = field(default_factory=dict)  # what was done about it and still holds
    until: Micros | None = None  # of what was done, or of a silence
    actor: str = ""
    reason: str = ""


class AlertChange(NamedTuple):
    what: str  # fired, resolved
    alert: Alert


Firing = Mapping[str, Collection[str]]  # by rule: the keys for which it fires


def covered(rule: AlertDefinition, key: str, firing: Firing) -> bool:
    """Is somebody told of the same by another rule? What is about everything is about every key too."""
    return any(
        not key or other in {"", key} for name in _names(rule) for other in firing.get(name, ())
    )


def in_order(rules: Sequence[AlertDefinition]) -> list[AlertDefinition]:
    """Those that cover others before them; of those that cover each other, as they come."""
    known = {rule.name: rule for rule in rules}

    def depth(rule: AlertDefinition, above: tuple[str, ...] = ()) -> int:
        others = [known[name] for name in _names(rule) if name in known and name not in above]
        return max((1 + depth(other, (*above, rule.name)) for other in others), default=0)

    return sorted(rules, key=depth)


def _names(rule: AlertDefinition) -> list[str]:
    return [name.strip() for name in rule.unless.split(",")]


def judged(
    rule: AlertDefinition,
    samples: Sequence[Sample],
    stood: Mapping[str, Alert],
    now: Micros,
    *,
    silenced: bool = False,
    firing: Firing | None = None,
) -> tuple[list[Alert], list[AlertChange]]:
    """Every alert of this rule as it stands now, and what there is to tell. What is as it was is left out."""
    written: list[Alert] = []
    changes: list[AlertChange] = []
    measured = {sample.key: sample for sample in samples}
    for key in [*measured, *(key for key in stood if key not in measured and key != EVERYTHING)]:
        before = stood.get(key)
        quiet = silenced or covered(rule, key, firing or {})
        after, what = _one(rule, key, measured.get(key), before, now, silenced=quiet)
        if after is not None and after != before:
            written.append(after)
        if what and after is not None:
            changes.append(AlertChange(what, after))
    return written, changes


def _one(
    rule: AlertDefinition,
    key: str,
    sample: Sample | None,
    before: Alert | None,
    now: Micros,
    *,
    silenced: bool,
) -> tuple[Alert | None, str]:
    state = RESOLVED if before is None else before.state
    if sample is None:
        return _unmeasured(rule, before, now)
    if state == FIRING and before is not None:
        return _held(rule, sample, before, now)
    holds = sample.value > rule.above and sample.volume >= rule.least
    if not holds or (rule.once and before is not None and state == RESOLVED):
        return _calm(before, now)
    began = before.since if before is not None and state == PENDING else now
    alert = Alert(
        rule.name,
        key,
        PENDING,
        began,
        now,
        sample.value,
        dict(sample.evidence),
        acted=_acted(before),
    )
    if silenced or now - began < rule.for_ * SECOND:
        return alert, ""
    return _moved(alert, FIRING, now), "fired"


def _held(rule: AlertDefinition, sample: Sample, before: Alert, now: Micros) -> tuple[Alert, str]:
    alert = _seen(before, sample, now)
    if sample.value <= rule.cleared and sample.volume >= min(rule.least, 1.0):
        return _moved(alert, RESOLVED, now), _over(rule)
    return alert, ""


def _over(rule: AlertDefinition) -> str:
    """What is told a single time has no end worth telling."""
    return "" if rule.once else "resolved"


def _calm(before: Alert | None, now: Micros) -> tuple[Alert | None, str]:
    """Not above: what was about to fire is forgotten."""
    if before is not None and before.state == PENDING:
        return _moved(before, RESOLVED, now), ""
    return before, ""


def _unmeasured(
    rule: AlertDefinition, before: Alert | None, now: Micros
) -> tuple[Alert | None, str]:
    if before is None or before.state == RESOLVED or not _long_ago(before.seen_at, now):
        return before, ""
    return _moved(before, RESOLVED, now), _over(rule) if before.state == FIRING else ""


def _long_ago(at: Micros, now: Micros) -> bool:
    return not 0 <= now - at < SILENT  # or the clock was set back


def _seen(before: Alert, sample: Sample, now: Micros) -> Alert:
    """Written again only when it says something new: an alert that goes on must not cost a write every time."""
    if sample.value == before.value and now - before.seen_at < 60 * SECOND:
        return before
    return Alert(
        before.rule,
        before.key,
        before.state,
        before.since,
        now,
        sample.value,
        dict(sample.evidence),
        before.acted,
        before.until,
        before.actor,
        before.reason,
    )


def _moved(alert: Alert, state: str, now: Micros) -> Alert:
    return Alert(
        alert.rule,
        alert.key,
        state,
        now,
        alert.seen_at,
        alert.value,
        alert.evidence,
        alert.acted,
        alert.until,
        alert.actor,
        alert.reason,
    )


def _acted(before: Alert | None) -> Mapping[str, Any]:
    return {} if before is None else before.acted


def sentence(rule: AlertDefinition, alert: Alert) -> str:
    """`gateway: 12 % of its calls were told to slow down (above 5 %, in 5 min)`."""
    about = f"{alert.key}: " if alert.key else ""
    window = "" if rule.measure in GAUGES else f", in {duration(rule.window)}"
    value = shown(rule, alert.value)
    summary = rule.summary.replace("{} jobs", "{} job") if value == "1" else rule.summary
    said = summary.replace("{}", value) if "{}" in summary else f"{summary}: {value}"
    return f"{about}{said} (above {shown(rule, rule.above)}{window})"


def shown(rule: AlertDefinition, value: float) -> str:
    unit = UNITS.get(rule.measure, "")
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "seconds":
        return duration(value)
    return f"{value:.4g}"


# What is a share, and what is a length; all else is a number. Of what is now, not of a window: the gauges.
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
    "retry_ratio": "share",
    "duration_p95": "seconds",
    "queue_age": "seconds",
    "breaker_open": "seconds",
    "heartbeat_age": "seconds",
    "unserved": "seconds",
}
GAUGES = frozenset({"queue_age", "breaker_open", "heartbeat_age", "unserved", "at_floor"})

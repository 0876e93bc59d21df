"""`app.alerts`: active alerts, effective rules, and silences."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mulligan.alerts.chore import load_alerts, load_rules, to_row
from mulligan.alerts.queries import AlertQueries
from mulligan.alerts.rules import (
    FIRING,
    PENDING,
    RESOLVED,
    SILENCED,
    WHOLE_RULE,
    Alert,
    AlertDefinition,
    describe_alert,
    threshold_of,
)
from mulligan.config import AlertSection
from mulligan.core.durations import Micros, optional_datetime, resolve_end, to_datetime
from mulligan.core.errors import DurationOrTime, NotFound
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.guards.kind_observer import KIND_BREAKER_ACTOR
from mulligan.guards.lanes import is_closed
from mulligan.guards.queries import GuardQueries
from mulligan.storage.base import Store, Transaction

# Name of the alert about a held kind. It has no rule: the kind breaker fires it.
SAME_CAUSE = "same_cause"


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """State of one alert."""

    rule: str
    key: str  # queue, dependency, kind or failure group; empty: everything
    state: str  # pending, firing, resolved
    severity: str
    summary: str
    since: datetime
    value: float
    threshold: float
    action: str
    limit: int | None  # concurrency, if the alert has reduced it
    until: datetime | None  # end of its action
    silenced_until: datetime | None
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An effective rule: built in, changed or added by the settings."""

    name: str
    enabled: bool
    measure: str
    above: float
    clear: float
    window: float
    and_window: float | None
    least: float
    holds_for: float
    severity: str
    action: str
    summary: str
    silenced_until: datetime | None


AlertList = list[AlertStatus]  # the classes below have a method called list
RuleList = list[AlertRule]


class Alerts:
    """Lists alerts and rules, and silences rules."""

    def __init__(
        self,
        store: Callable[[], Store],
        settings: Callable[[], AlertSection],
        actor: str = "python",
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    def list(self, *, all: bool = False) -> AlertList:  # noqa: A002 - the public name
        """List firing alerts, then pending ones; with `all`, also resolved ones."""
        rules = {rule.name: rule for rule in load_rules(self._settings())}
        states = (FIRING, PENDING, RESOLVED) if all else (FIRING, PENDING)
        with self._open().read() as tx:
            stored = load_alerts(tx)
            now = tx.now()
            found = _held_kinds(tx, now)
        for name, alerts in stored.items():
            silenced_until = _silenced_until(alerts, now)
            for alert in alerts.values():
                if alert.state in states:
                    rule = rules.get(name) or _unknown_rule(alert)
                    found.append(_build_status(rule, alert, silenced_until))
        return sorted(found, key=lambda one: (states.index(one.state), one.rule, one.key))

    def rules(self) -> RuleList:
        """List all effective rules."""
        with self._open().read() as tx:
            stored = load_alerts(tx)
            now = tx.now()
        rules = load_rules(self._settings())
        found = []
        for rule in rules:
            silenced_until = _silenced_until(stored.get(rule.name, {}), now)
            found.append(_build_rule(rule, silenced_until))
        return found

    def silence(self, name: str, until: DurationOrTime, *, reason: str = "") -> AlertRule:
        """Silence a rule: no events and no actions. If its condition still holds then, it fires."""
        rule = self._find_rule(name)
        with self._open().begin() as tx:
            now = tx.now()
            end = resolve_end("until", until, now)
            silence = Alert(name, WHOLE_RULE, SILENCED, now, now, 0.0, until=end, reason=reason)
            self._write_silence(tx, silence, now)
        return _build_rule(rule, end)

    def unsilence(self, name: str, *, reason: str = "") -> AlertRule:
        """End the silence of a rule, if there is one."""
        rule = self._find_rule(name)
        with self._open().begin() as tx:
            now = tx.now()
            silence = load_alerts(tx).get(name, {}).get(WHOLE_RULE)
            if silence is not None and (silence.until or 0) > now:
                ended = replace(silence, since=now, until=now, reason=reason)
                self._write_silence(tx, ended, now)
        return _build_rule(rule, None)

    def _find_rule(self, name: str) -> AlertDefinition:
        rules = {rule.name: rule for rule in load_rules(self._settings())}
        if name not in rules:
            similar = difflib.get_close_matches(name, rules, n=1)
            hint = f"Did you mean {similar[0]}?" if similar else f"Alerts: {', '.join(rules)}."
            message = f"unknown alert {name!r}. {hint}"
            raise NotFound(message)
        return rules[name]

    def _write_silence(self, tx: Transaction, silence: Alert, now: Micros) -> None:
        before = _silenced_until(load_alerts(tx).get(silence.rule, {}), now)
        AlertQueries(tx).write_alert(to_row(replace(silence, actor=self._actor)))
        after = silence.until if (silence.until or 0) > now else None
        data: dict[str, Any] = {"rule": silence.rule}
        if after is not None:
            data["until"] = after
        if silence.reason:
            data["reason"] = silence.reason
        data["before"] = {"silenced_until": before}
        data["after"] = {"silenced_until": after}
        EventQueries(tx).write_events(
            [NewEvent(EventType.ALERT_SILENCED, actor=self._actor, data=data)]
        )


def _silenced_until(alerts: Mapping[str, Alert], now: Micros) -> Micros | None:
    silence = alerts.get(WHOLE_RULE)
    if silence is None or (silence.until or 0) <= now:
        return None
    return silence.until


def _build_status(
    rule: AlertDefinition, alert: Alert, silenced_until: Micros | None
) -> AlertStatus:
    return AlertStatus(
        rule=rule.name,
        key=alert.key,
        state=alert.state,
        severity=rule.severity,
        summary=describe_alert(rule, alert),
        since=to_datetime(alert.since),
        value=alert.value,
        threshold=threshold_of(rule, alert),
        action=str(alert.action_state.get("action", "")),
        limit=alert.reduced_limit,
        until=optional_datetime(alert.until),
        silenced_until=optional_datetime(silenced_until),
        evidence=alert.evidence,
    )


def _unknown_rule(alert: Alert) -> AlertDefinition:
    """Return a stand-in for a rule that only another worker's settings have."""
    return AlertDefinition(alert.rule, "", 0.0, "a rule of another worker's settings: {}")


def _build_rule(rule: AlertDefinition, silenced_until: Micros | None) -> AlertRule:
    return AlertRule(
        name=rule.name,
        enabled=rule.enabled,
        measure=rule.measure,
        above=rule.above,
        clear=rule.clear_at,
        window=rule.window,
        and_window=rule.and_window,
        least=rule.least,
        holds_for=rule.for_,
        severity=rule.severity,
        action=rule.action,
        summary=rule.summary,
        silenced_until=optional_datetime(silenced_until),
    )


def _held_kinds(tx: Transaction, now: Micros) -> AlertList:
    """Return an alert for each kind that the kind breaker holds."""
    found = []
    for gate in GuardQueries(tx).list_gates():
        if gate.scope != "kind" or gate.actor != KIND_BREAKER_ACTOR or not is_closed(gate, now):
            continue
        status = AlertStatus(
            rule=SAME_CAUSE,
            key=gate.key,
            state=FIRING,
            severity="page",
            summary=f"{gate.key} is held: {gate.reason}",
            since=to_datetime(gate.since),
            value=1.0,
            threshold=0.0,
            action="hold",
            limit=None,
            until=optional_datetime(gate.until),
            silenced_until=None,
            evidence={"reason": gate.reason},
        )
        found.append(status)
    return found

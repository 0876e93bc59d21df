"""`app.alerts`: what is worth attention now, by which rules, and who does not want to hear of it for a while."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mulligan.alerts.chore import checked_rules, standing, to_row
from mulligan.alerts.rules import (
    EVERYTHING,
    FIRING,
    PENDING,
    RESOLVED,
    SILENCED,
    Alert,
    AlertDefinition,
    sentence,
)
from mulligan.config import AlertSection as Settings
from mulligan.core.durations import ended_at, moment_of
from mulligan.core.errors import Moment, NotFound
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Micros, to_datetime
from mulligan.guards.lanes import is_closed
from mulligan.guards.observer import KIND_GUARD
from mulligan.storage.base import Store, Transaction

SAME_CAUSE = "same_cause"  # not a rule of ours: the guard of kinds fires it itself


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """How one alert stands."""

    rule: str
    key: str  # what it is about: a queue, a dependency, a kind, a cause; empty: everything
    state: str  # pending, firing, resolved
    severity: str
    summary: str
    since: datetime
    value: float
    threshold: float
    action: str
    limit: int | None  # at a time, where it has reduced something
    until: datetime | None  # when what it has done ends
    silenced_until: datetime | None
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AlertRule:
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
    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Settings], actor: str = "python"
    ) -> None:
        self._open = store
        self._settings = settings
        self._actor = actor

    def list(self, *, all: bool = False) -> AlertList:  # noqa: A002 - the plain word
        """What fires, then what is about to; `all`: also what is over."""
        rules = {rule.name: rule for rule in checked_rules(self._settings())}
        wanted = (FIRING, PENDING, RESOLVED) if all else (FIRING, PENDING)
        with self._open().read() as unit:
            stood, now = standing(unit), unit.now()
            held = _held(unit, now)
        found = [
            _status(rules.get(name) or _unknown(alert), alert, _silence(alerts, now))
            for name, alerts in stood.items()
            for alert in alerts.values()
            if alert.state in wanted
        ]
        return sorted([*held, *found], key=lambda one: (wanted.index(one.state), one.rule, one.key))

    def rules(self) -> RuleList:
        """Every rule as it holds: built in, as the settings have changed it, or added by them."""
        with self._open().read() as unit:
            stood, now = standing(unit), unit.now()
        return [
            _rule(rule, _silence(stood.get(rule.name, {}), now))
            for rule in checked_rules(self._settings())
        ]

    def silence(self, name: str, until: Moment, *, reason: str = "") -> AlertRule:
        """It neither tells nor acts until then; if it still holds afterwards, it fires."""
        rule = self._known(name)
        with self._open().begin() as unit:
            now = unit.now()
            end = ended_at("until", until, now)
            self._say(
                unit,
                Alert(name, EVERYTHING, SILENCED, now, now, 0.0, until=end, reason=reason),
                now,
            )
        return _rule(rule, end)

    def unsilence(self, name: str, *, reason: str = "") -> AlertRule:
        """One that is not silenced stays as it is."""
        rule = self._known(name)
        with self._open().begin() as unit:
            now, before = unit.now(), standing(unit).get(name, {}).get(EVERYTHING)
            if before is not None and (before.until or 0) > now:
                self._say(unit, replace(before, since=now, until=now, reason=reason), now)
        return _rule(rule, None)

    def _known(self, name: str) -> AlertDefinition:
        rules = {rule.name: rule for rule in checked_rules(self._settings())}
        if name not in rules:
            near = difflib.get_close_matches(name, rules, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(rules)}"
            message = f"no alert {name!r}{hint}"
            raise NotFound(message)
        return rules[name]

    def _say(self, unit: Transaction, alert: Alert, now: Micros) -> None:
        before = _silence(standing(unit).get(alert.rule, {}), now)
        unit.write_alert(to_row(replace(alert, actor=self._actor)))
        silenced = alert.until if (alert.until or 0) > now else None
        seen = {"before": {"silenced_until": before}, "after": {"silenced_until": silenced}}
        news = {"rule": alert.rule, "until": silenced, "reason": alert.reason, **seen}
        told = {name: value for name, value in news.items() if value not in (None, "")}
        unit.write_events([NewEvent(EventType.ALERT_SILENCED, actor=self._actor, data=told)])


class AsyncAlerts:
    """The same, awaitable: each call on a thread."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts

    async def list(self, *, all: bool = False) -> AlertList:  # noqa: A002 - same
        return await asyncio.to_thread(self._alerts.list, all=all)

    async def rules(self) -> RuleList:
        return await asyncio.to_thread(self._alerts.rules)

    async def silence(self, name: str, until: Moment, *, reason: str = "") -> AlertRule:
        return await asyncio.to_thread(self._alerts.silence, name, until, reason=reason)

    async def unsilence(self, name: str, *, reason: str = "") -> AlertRule:
        return await asyncio.to_thread(self._alerts.unsilence, name, reason=reason)


def _silence(alerts: Mapping[str, Alert], now: Micros) -> Micros | None:
    said = alerts.get(EVERYTHING)
    return said.until if said is not None and (said.until or 0) > now else None


def _status(rule: AlertDefinition, alert: Alert, silenced: Micros | None) -> AlertStatus:
    reduced = alert.acted.get("reduced")
    return AlertStatus(
        rule=rule.name,
        key=alert.key,
        state=alert.state,
        severity=rule.severity,
        summary=sentence(rule, alert),
        since=to_datetime(alert.since),
        value=alert.value,
        threshold=rule.above,
        action=str(alert.acted.get("action", "")),
        limit=reduced[0] if reduced else None,
        until=moment_of(alert.until),
        silenced_until=moment_of(silenced),
        evidence=alert.evidence,
    )


def _unknown(alert: Alert) -> AlertDefinition:
    """Another worker's settings have it, ours do not."""
    return AlertDefinition(alert.rule, "", 0.0, "a rule that these settings do not have: {}")


def _rule(rule: AlertDefinition, silenced: Micros | None) -> AlertRule:
    return AlertRule(
        rule.name,
        rule.enabled,
        rule.measure,
        rule.above,
        rule.cleared,
        rule.window,
        rule.and_window,
        rule.least,
        rule.for_,
        rule.severity,
        rule.action,
        rule.summary,
        moment_of(silenced),
    )


def _held(unit: Transaction, now: Micros) -> AlertList:
    """Kinds that are held because their jobs die of one cause: that alert is the guard's own."""
    gates = [
        gate
        for gate in unit.gates()
        if gate.scope == "kind" and gate.actor == KIND_GUARD and is_closed(gate, now)
    ]
    return [
        AlertStatus(
            SAME_CAUSE,
            gate.key,
            FIRING,
            "page",
            f"{gate.key} is held: {gate.reason}",
            to_datetime(gate.since),
            1.0,
            0.0,
            "hold",
            None,
            moment_of(gate.until),
            None,
            {"reason": gate.reason},
        )
        for gate in gates
    ]

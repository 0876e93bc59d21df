"""The look for alerts: an outlet that measures, judges, acts and tells, in one transaction, on one worker at a time.

It reads before it holds anything. Whoever has the row of its reader is at it; the others see that it was done.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mulligan.config import Alerts as Settings
from mulligan.engine.acting import act
from mulligan.engine.gauging import Gauges, tallies_for
from mulligan.engine.limiting import ALERT
from mulligan.errors import ConfigError
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, Micros
from mulligan.policy.alert import EVERYTHING, FIRING, SILENCED, Alert, Change, Rule, Sample, in_order, judged, sentence
from mulligan.policy.alert_rules import BadRule, rules_of
from mulligan.store.alerting import AlertRow
from mulligan.store.base import Store, Unit

log = logging.getLogger("mulligan.alerts")

READER = "alerts"
MOST_KEYS = 200  # of one rule
KEPT = 30 * 86_400 * SECOND  # how long it is remembered that something was told

Stood = dict[str, dict[str, Alert]]


def checked_rules(settings: Settings) -> tuple[Rule, ...]:
    try:
        return rules_of(settings.rules)
    except BadRule as bad:
        raise ConfigError(str(bad)) from None


class Alerting:
    """The outlet."""

    name = READER

    def __init__(self, settings: Settings) -> None:
        self.every = settings.every
        self._rules = [rule for rule in checked_rules(settings) if rule.enabled] if settings.enabled else []
        self._act = settings.act
        self._tallies = tallies_for(self._rules)

    def turn(self, store: Store) -> bool:
        if not self._rules:
            return False
        with store.read() as unit:
            now, seen = unit.now(), next((row for row in unit.readers() if row.name == READER), None)
            if seen is not None and 0 <= now - seen.updated_at < self.every * 0.9 * SECOND:
                return False
            gauges = Gauges(unit, now, self._tallies, standing(unit))
            measured = [(rule, gauges.samples(rule)[:MOST_KEYS]) for rule in self._rules]
            using = gauges.using
        with store.begin() as unit:
            mine = unit.reader(READER)
            if mine is not None and (seen is None or mine.updated_at == seen.updated_at):
                gauges = Gauges(unit, now, self._tallies, standing(unit))
                gauges.using = using
                self._step(unit, measured, gauges)
                unit.move_reader(READER, mine.cursor)
        return False

    def _step(self, unit: Unit, measured: Sequence[tuple[Rule, Sequence[Sample]]], gauges: Gauges) -> None:
        firing = {name: _firing(alerts.values()) for name, alerts in gauges.stood.items()}
        sampled = {rule.name: samples for rule, samples in measured}
        for rule in in_order([rule for rule, _ in measured]):
            samples, stood = sampled[rule.name], gauges.stood.get(rule.name, {})
            silence = stood.get(EVERYTHING)
            silenced = silence is not None and (silence.until is None or silence.until > gauges.now)
            written, changes = judged(rule, samples, stood, gauges.now, silenced=silenced, firing=firing)
            stands = {**stood, **{alert.key: alert for alert in written}}
            firing[rule.name] = _firing(stands.values())
            self._settle(unit, rule, stands, changes, gauges)
        unit.forget_alerts(gauges.now - KEPT)

    def _settle(
        self, unit: Unit, rule: Rule, stands: Mapping[str, Alert], changes: Sequence[Change], gauges: Gauges
    ) -> None:
        """Act where it should, write what is new, tell what there is to tell."""
        what = {change.alert.key: change.what for change in changes}
        stood = gauges.stood.get(rule.name, {})
        for key, alert in stands.items():
            if alert.state == SILENCED:
                continue
            now_is, did = alert, ""
            if rule.action and (alert.state == FIRING or alert.acted):
                now_is, did = self._acted(unit, rule, alert, gauges, fired=what.get(key) == "fired")
            if now_is != stood.get(key):
                unit.write_alert(to_row(now_is))
            if key in what:
                _tell(unit, rule, now_is, what[key], did, gauges.now)

    def _acted(self, unit: Unit, rule: Rule, alert: Alert, gauges: Gauges, *, fired: bool) -> tuple[Alert, str]:
        if not self._act:
            return replace(alert, acted={}, until=None), f"{rule.action}: not done, alerts.act is off"
        deed = act(unit, rule, alert, gauges, fired=fired)
        if deed.said:
            log.warning(
                "alert %s acts on %s: %s", rule.name, alert.key, deed.said,
                extra={"rule": rule.name, "key": alert.key, "action": rule.action, "did": deed.said},
            )  # fmt: skip
        return deed.alert, deed.said


def _tell(unit: Unit, rule: Rule, alert: Alert, what: str, did: str, now: Micros) -> None:
    fired = what == "fired"
    news: dict[str, Any] = {
        "rule": rule.name, "key": alert.key, "value": round(alert.value, 6), "threshold": rule.above,
        "window": rule.window, "severity": rule.severity, "reason": sentence(rule, alert),
        "evidence": dict(alert.evidence), "runbook": f"alert-{rule.anchor}",
    }  # fmt: skip
    more = {"action": rule.action, "did": did, "until": alert.until, "limit": (alert.acted.get("reduced") or [None])[0]}
    news |= {name: value for name, value in more.items() if value not in (None, "")}
    kind = EventType.ALERT_FIRED if fired else EventType.ALERT_RESOLVED
    unit.write_events([NewEvent(kind, actor=ALERT, data=news)])
    log.log(
        logging.WARNING if fired else logging.INFO, "alert %s %s: %s", rule.name, what, news["reason"],
        extra={"rule": rule.name, "key": alert.key, "value": alert.value, "change": what, "at": now},
    )  # fmt: skip


def _firing(alerts: Iterable[Alert]) -> set[str]:
    return {alert.key for alert in alerts if alert.state == FIRING}


def standing(unit: Unit) -> Stood:
    found: Stood = defaultdict(dict)
    for row in unit.alerts():
        found[row.rule][row.key] = from_row(row)
    return found


def from_row(row: AlertRow) -> Alert:
    acted = json.loads(row.acted) if row.acted else {}
    return Alert(*row[:6], json.loads(row.evidence), acted, row.until, row.actor, row.reason)


def to_row(alert: Alert) -> AlertRow:
    acted = json.dumps(dict(alert.acted), separators=(",", ":")) if alert.acted else ""
    evidence = json.dumps(dict(alert.evidence), separators=(",", ":"))
    return AlertRow(
        alert.rule, alert.key, alert.state, alert.since, alert.seen_at, alert.value, evidence, acted, alert.until,
        alert.actor, alert.reason,
    )  # fmt: skip

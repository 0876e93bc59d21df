"""What alerts do by themselves: fewer at a time, a queue paused, a breaker opened. By the doors people use, and each
with an end: nothing that an alert has done outlasts it for more than a quarter of an hour.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.alerts.measures import (
    KEYED_BY,
    MEASURES,
    BadRule,
    Duration,
    Portion,
    portions,
    read_counts,
    rules_of,
)
from mulligan.alerts.readings import REDUCED, Gauges, tallies_for
from mulligan.alerts.rules import (
    EVERYTHING,
    FIRING,
    LASTS,
    SILENCED,
    Alert,
    AlertChange,
    AlertDefinition,
    Sample,
    in_order,
    judged,
    sentence,
)
from mulligan.config import AlertSection as Settings
from mulligan.core.errors import ConfigError
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, Gate, LimitRow, Micros, WorkerRow
from mulligan.guards import dependencies
from mulligan.guards import gates as queues
from mulligan.guards import ramp as reduce
from mulligan.guards.capacity import running_under
from mulligan.guards.gates import ALERT, LimitChange, clear_limit, set_limit
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import lasts
from mulligan.guards.observer import DependencyObserver, read_guard_state
from mulligan.guards.ramp import WHOLE, Reduced, Seat, ThrottleTerms
from mulligan.manifest.declared import declared_limits, holding_manifests, terms_of_all
from mulligan.storage.base import Store, Transaction
from mulligan.storage.stat_queries import MINUTE, AlertRow

RENEWED = 60 * SECOND  # an end is moved no oftener than this
REBASED = 12 * 60  # minutes; after a day minutes become hours
_RUN = Duration("run", "queue")


class Deed(NamedTuple):
    """What became of an alert's action: the alert with what is remembered of it, and what there is to say."""

    alert: Alert
    said: str = ""


def act(
    unit: Transaction, rule: AlertDefinition, alert: Alert, gauges: Gauges, *, fired: bool
) -> Deed:
    """One turn of one alert's action."""
    scope = KEYED_BY[rule.measure]
    if rule.action == "reduce":
        return _reduce(unit, rule, alert, gauges, scope)
    if alert.until is not None and alert.until <= gauges.now:
        alert = replace(alert, acted={}, until=None)  # it has ended by itself
    if not (fired or (alert.state == FIRING and alert.acted.get("busy"))):
        return Deed(alert)
    end = gauges.now + LASTS
    gate = Gate(scope, alert.key, gauges.now, end, sentence(rule, alert), ALERT)
    done = _pause(unit, gate) if rule.action == "pause" else _open(unit, gate)
    return Deed(replace(alert, acted=done.facts, until=end if done.acted else None), done.said)


class _Done(NamedTuple):
    acted: bool
    said: str
    facts: Mapping[str, Any]


def _closed_by(unit: Transaction, gate: Gate) -> str | None:
    """Who has closed it already; a shorter end of ours would only open it too soon."""
    found = (
        one
        for one in unit.gates()
        if one[:2] == gate[:2] and is_closed(one, gate.since) and one.actor != ALERT
    )
    return next((one.actor for one in found), None)


def _pause(unit: Transaction, gate: Gate) -> _Done:
    by = _closed_by(unit, gate)
    if by is not None:
        return _Done(acted=False, said=f"it is paused already, by {by}", facts={})
    queues.pause_in(unit, gate)
    return _Done(acted=True, said="paused for 15 min", facts={"action": "pause", "scope": "queue"})


def _open(unit: Transaction, gate: Gate) -> _Done:
    by = _closed_by(unit, gate)
    if by is not None:
        return _Done(acted=False, said=f"it is held already, by {by}", facts={})
    row = unit.guard(("dependency", gate.key))
    if row is None:  # a worker has it in hand, for the length of a turn
        return _Done(acted=False, said="", facts={"busy": True})
    watch = DependencyObserver(others=terms_of_all(holding_manifests(unit, gate.since)))
    dependencies.open_in(unit, watch, row, read_guard_state(row.body), gate)
    return _Done(
        acted=True, said="held for 15 min", facts={"action": "open", "scope": "dependency"}
    )


# -- fewer at a time --------------------------------------------------------------------------------
def _reduce(
    unit: Transaction, rule: AlertDefinition, alert: Alert, gauges: Gauges, scope: str
) -> Deed:
    now = gauges.now
    before = Reduced(*alert.acted["reduced"]) if "reduced" in alert.acted else WHOLE
    if before.limit is None and alert.state != FIRING:
        return Deed(alert if not alert.acted else replace(alert, acted={}, until=None))
    hand = _by_hand(unit, scope, alert.key, now)
    if hand is not None:
        stands = f"{hand.actor or 'somebody'} has set its limit, and that stands"
        known = alert.acted.get("by_hand") == hand.actor
        acted = {"scope": scope, "by_hand": hand.actor}
        return Deed(replace(alert, acted=acted, until=None), "" if known else stands)
    since, seen = _base(alert, now)
    total = _portion(unit, rule, alert.key, since, gauges)
    fresh = _fresh(alert, before, Portion(total.bad - seen.bad, total.of - seen.of))
    seat = Seat(
        _most(unit, scope, alert.key, now),
        _running(unit, scope, alert.key),
        _takes(gauges, scope, alert.key),
    )
    terms = ThrottleTerms(rule.above, rule.cleared)
    after, said = reduce.throttle(before, fresh.bad, fresh.of, seat, now, terms)
    state = {
        "scope": scope,
        "action": "reduce",
        "reduced": list(after),
        "since": since,
        "seen": list(total),
    }
    told = _apply(unit, (scope, alert.key), before, after, said, now)
    kept = state if after != WHOLE else {}
    return Deed(
        replace(alert, acted=kept, until=after.until or None if after.limit is not None else None),
        told,
    )


def _base(alert: Alert, now: Micros) -> tuple[int, Portion]:
    """From which minute on it is counted, and how much of that was seen before."""
    minute = now // MINUTE
    if "seen" in alert.acted and minute - alert.acted["since"] < REBASED:
        return alert.acted["since"], Portion(*alert.acted["seen"])
    return minute, Portion(0, 0)


def _fresh(alert: Alert, before: Reduced, lately: Portion) -> Portion:
    """What was called since the last look; at first all that made the alert fire."""
    if before == WHOLE and "seen" not in alert.acted:
        return Portion(int(alert.evidence.get("bad", 0)), int(alert.evidence.get("of", 0)))
    return Portion(max(0, lately.bad), max(0, lately.of))


def _portion(
    unit: Transaction, rule: AlertDefinition, key: str, since: int, gauges: Gauges
) -> Portion:
    share = MEASURES[rule.measure]
    counts = read_counts(unit.stat_sums([share.name], since * MINUTE))
    ours = [
        count
        for count in counts
        if count.labels.get("kind") not in gauges.using or share.by != "queue"
    ]
    return portions(ours, share).get(key, Portion(0, 0))


def _apply(
    unit: Transaction,
    key: tuple[str, str],
    before: Reduced,
    after: Reduced,
    said: str | None,
    now: Micros,
) -> str:
    if after.limit is None:
        return (
            _give_back(unit, key, said or "nothing was called for a while")
            if before.limit is not None
            else ""
        )
    if after.limit != before.limit:
        news = set_limit(
            unit,
            key,
            LimitChange(after.limit, until=(after.until - now) / SECOND, reason=said or ""),
            ALERT,
        )
        _write_change_event(unit, key, news)
        return said or ""
    if after.until - before.until >= RENEWED:
        row = next((one for one in unit.limits() if one[:2] == key), None)
        if row is not None and row.actor == ALERT:
            unit.set_limit(row._replace(until=after.until))
    return ""


def _give_back(unit: Transaction, key: tuple[str, str], said: str) -> str:
    row = next((one for one in unit.limits() if one[:2] == key), None)
    if row is not None and row.actor == ALERT:
        news = clear_limit(unit, key, said)
        if news is not None:
            _write_change_event(unit, key, news)
    return said


def _write_change_event(unit: Transaction, key: tuple[str, str], news: Mapping[str, Any]) -> None:
    if key[0] == "queue":
        queues.write_queue_event(unit, EventType.QUEUE_CHANGED, key[1], ALERT, news)
    else:
        dependencies.tell(unit, EventType.DEPENDENCY_CHANGED, key[1], ALERT, news)


def _by_hand(unit: Transaction, scope: str, key: str, now: Micros) -> LimitRow | None:
    """A person's limit wins."""
    said = (
        row
        for row in unit.limits()
        if row[:2] == (scope, key) and row.actor != ALERT and lasts(row, now)
    )
    return next(said, None)


def _most(unit: Transaction, scope: str, key: str, now: Micros) -> int | None:
    """Never more than what is declared; where nothing is, than all workers together can run."""
    limit = declared_limits(unit, now).get((scope, key))
    if limit is not None and limit.concurrency is not None:
        return limit.concurrency
    serving = [
        worker for worker in unit.workers(closed=False) if scope != "queue" or _serves(worker, key)
    ]
    return sum(worker.concurrency for worker in serving) or None


def _serves(worker: WorkerRow, queue: str) -> bool:
    return worker.queues in {"", "[]"} or f'"{queue}"' in worker.queues


def _running(unit: Transaction, scope: str, key: str) -> int:
    return running_under(unit.running())[scope, key]


def _takes(gauges: Gauges, scope: str, key: str) -> Micros:
    """How long an attempt takes: what it sees of a change it cannot tell sooner."""
    if scope != "queue":
        return 0
    found = (
        sample
        for sample in _RUN.samples(gauges.tallies.of(gauges.unit, REDUCED, gauges.now))
        if sample.key == key
    )
    return round(next((sample.value for sample in found), 0.0) * SECOND)


# The look for alerts: an outlet that measures, judges, acts and tells, in one transaction, on one worker at a time.

log = logging.getLogger("mulligan.alerts")

READER = "alerts"
MOST_KEYS = 200  # of one rule
KEPT = 30 * 86_400 * SECOND  # how long it is remembered that something was told

Stood = dict[str, dict[str, Alert]]


def checked_rules(settings: Settings) -> tuple[AlertDefinition, ...]:
    try:
        return rules_of(settings.rules)
    except BadRule as bad:
        raise ConfigError(str(bad)) from None


class AlertChecker:
    """The outlet."""

    name = READER

    def __init__(self, settings: Settings) -> None:
        self.every = settings.every
        self._rules = (
            [rule for rule in checked_rules(settings) if rule.enabled] if settings.enabled else []
        )
        self._act = settings.act
        self._tallies = tallies_for(self._rules)

    def turn(self, store: Store) -> bool:
        if not self._rules:
            return False
        with store.read() as unit:
            now, seen = (
                unit.now(),
                next((row for row in unit.readers() if row.name == READER), None),
            )
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

    def _step(
        self,
        unit: Transaction,
        measured: Sequence[tuple[AlertDefinition, Sequence[Sample]]],
        gauges: Gauges,
    ) -> None:
        firing = {name: _firing(alerts.values()) for name, alerts in gauges.stood.items()}
        sampled = {rule.name: samples for rule, samples in measured}
        for rule in in_order([rule for rule, _ in measured]):
            samples, stood = sampled[rule.name], gauges.stood.get(rule.name, {})
            silence = stood.get(EVERYTHING)
            silenced = silence is not None and (silence.until is None or silence.until > gauges.now)
            written, changes = judged(
                rule, samples, stood, gauges.now, silenced=silenced, firing=firing
            )
            stands = {**stood, **{alert.key: alert for alert in written}}
            firing[rule.name] = _firing(stands.values())
            self._settle(unit, rule, stands, changes, gauges)
        unit.forget_alerts(gauges.now - KEPT)

    def _settle(
        self,
        unit: Transaction,
        rule: AlertDefinition,
        stands: Mapping[str, Alert],
        changes: Sequence[AlertChange],
        gauges: Gauges,
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
                _write_alert_event(unit, rule, now_is, what[key], did, gauges.now)

    def _acted(
        self, unit: Transaction, rule: AlertDefinition, alert: Alert, gauges: Gauges, *, fired: bool
    ) -> tuple[Alert, str]:
        if not self._act:
            return replace(
                alert, acted={}, until=None
            ), f"{rule.action}: not done, alerts.act is off"
        deed = act(unit, rule, alert, gauges, fired=fired)
        if deed.said:
            log.warning(
                "alert %s acts on %s: %s",
                rule.name,
                alert.key,
                deed.said,
                extra={
                    "rule": rule.name,
                    "key": alert.key,
                    "action": rule.action,
                    "did": deed.said,
                },
            )
        return deed.alert, deed.said


def _write_alert_event(
    unit: Transaction, rule: AlertDefinition, alert: Alert, what: str, did: str, now: Micros
) -> None:
    fired = what == "fired"
    news: dict[str, Any] = {
        "rule": rule.name,
        "key": alert.key,
        "value": round(alert.value, 6),
        "threshold": rule.above,
        "window": rule.window,
        "severity": rule.severity,
        "reason": sentence(rule, alert),
        "evidence": dict(alert.evidence),
        "runbook": f"alert-{rule.anchor}",
    }
    more = {
        "action": rule.action,
        "did": did,
        "until": alert.until,
        "limit": (alert.acted.get("reduced") or [None])[0],
    }
    news |= {name: value for name, value in more.items() if value not in (None, "")}
    kind = EventType.ALERT_FIRED if fired else EventType.ALERT_RESOLVED
    unit.write_events([NewEvent(kind, actor=ALERT, data=news)])
    log.log(
        logging.WARNING if fired else logging.INFO,
        "alert %s %s: %s",
        rule.name,
        what,
        news["reason"],
        extra={
            "rule": rule.name,
            "key": alert.key,
            "value": alert.value,
            "change": what,
            "at": now,
        },
    )


def _firing(alerts: Iterable[Alert]) -> set[str]:
    return {alert.key for alert in alerts if alert.state == FIRING}


def standing(unit: Transaction) -> Stood:
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
        alert.rule,
        alert.key,
        alert.state,
        alert.since,
        alert.seen_at,
        alert.value,
        evidence,
        acted,
        alert.until,
        alert.actor,
        alert.reason,
    )

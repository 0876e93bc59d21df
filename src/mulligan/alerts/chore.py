"""Periodic evaluation of alerts: measure, evaluate, act, and write events.

One worker at a time does this, in one transaction. Actions use the same functions as people do
(limits, pauses, breakers), and each has an end: nothing that an alert did outlasts the alert by
more than 15 minutes.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.alerts.builtin import InvalidAlertRule, parse_rules
from mulligan.alerts.measures import (
    KEYED_BY,
    SHARES,
    DurationMeasure,
    ShareCount,
    count_bad,
    read_counts,
)
from mulligan.alerts.queries import AlertQueries, AlertRow
from mulligan.alerts.readings import RUN_TIME_WINDOW, Readings, build_count_cache
from mulligan.alerts.rules import (
    ACTION_DURATION,
    FIRED,
    FIRING,
    SILENCED,
    WHOLE_RULE,
    Alert,
    AlertChange,
    AlertDefinition,
    Sample,
    describe_alert,
    evaluate,
    order_rules,
    threshold_of,
)
from mulligan.config import AlertSection
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import Gate, LimitKey, LimitRow, WorkerRow
from mulligan.events.queries import MINUTE, EventQueries, StatQueries
from mulligan.guards.gates import close_gate, open_dependency, write_change_event
from mulligan.guards.lanes import RELEASE_SCOPE, hold_key, is_closed
from mulligan.guards.limits import count_running, is_limit_active
from mulligan.guards.operator_limits import ALERT_ACTOR, LimitChange, clear_limit, set_limit
from mulligan.guards.queries import GuardQueries
from mulligan.guards.ramp import (
    UNTHROTTLED,
    DependencyLoad,
    ThrottleConfig,
    ThrottleState,
    update_throttle,
)
from mulligan.manifest.declared import load_declared_limits
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.service import hold_release
from mulligan.storage.base import Store, Transaction
from mulligan.worker.queries import WorkerQueries

log = logging.getLogger("mulligan.alerts")

READER = "alerts"
MAX_KEYS = 200  # of one rule
HISTORY = 30 * 86_400 * SECOND  # how long resolved alerts are stored

AlertsByRule = dict[str, dict[str, Alert]]
Samples = Sequence[tuple[AlertDefinition, Sequence[Sample]]]


# --- The periodic task ---


def load_rules(settings: AlertSection) -> tuple[AlertDefinition, ...]:
    """Return all rules of the settings. Raises `ConfigError` for an invalid one."""
    try:
        return parse_rules(settings.rules)
    except InvalidAlertRule as error:
        raise ConfigError(str(error)) from None


class AlertChecker:
    """Periodic task of every worker; one worker at a time runs it."""

    name = READER

    def __init__(self, settings: AlertSection) -> None:
        self.every = settings.every
        self._rules: list[AlertDefinition] = []
        if settings.enabled:
            self._rules = [rule for rule in load_rules(settings) if rule.enabled]
        self._actions_enabled = settings.act
        self._counts = build_count_cache(self._rules)

    def run_once(self, store: Store) -> bool:
        """Evaluate all rules unless another worker did so recently. Returns False."""
        if not self._rules:
            return False
        with store.read() as tx:
            now = tx.now()
            reader = EventQueries(tx).get_reader(READER)
            last_run = None if reader is None else reader.updated_at
            if last_run is not None and 0 <= now - last_run < self.every * 0.9 * SECOND:
                return False
            readings = Readings(tx, now, self._counts, load_alerts(tx))
            samples = [(rule, readings.samples(rule)[:MAX_KEYS]) for rule in self._rules]
            kinds_with_dependencies = readings.kinds_with_dependencies
        with store.begin() as tx:
            reader = EventQueries(tx).lock_reader(READER)
            if reader is None or last_run not in (None, reader.updated_at):
                return False  # another worker was faster
            readings = Readings(tx, now, self._counts, load_alerts(tx))
            readings.kinds_with_dependencies = kinds_with_dependencies
            self._evaluate(tx, samples, readings)
            EventQueries(tx).advance_reader(READER, reader.cursor)
        return False

    def _evaluate(self, tx: Transaction, samples: Samples, readings: Readings) -> None:
        firing = {name: _firing_keys(alerts.values()) for name, alerts in readings.alerts.items()}
        samples_by_rule = {rule.name: rule_samples for rule, rule_samples in samples}
        for rule in order_rules([rule for rule, _ in samples]):
            stored = readings.alerts.get(rule.name, {})
            written, changes = evaluate(
                rule,
                samples_by_rule[rule.name],
                stored,
                readings.now,
                silenced=_is_silenced(stored, readings.now),
                firing=firing,
            )
            alerts = {**stored, **{alert.key: alert for alert in written}}
            firing[rule.name] = _firing_keys(alerts.values())
            self._apply(tx, rule, alerts, changes, readings)
        AlertQueries(tx).delete_old_alerts(readings.now - HISTORY)

    def _apply(
        self,
        tx: Transaction,
        rule: AlertDefinition,
        alerts: Mapping[str, Alert],
        changes: Sequence[AlertChange],
        readings: Readings,
    ) -> None:
        """Run the actions of a rule's alerts, then write changed alerts and their events."""
        transitions = {change.alert.key: change.transition for change in changes}
        stored = readings.alerts.get(rule.name, {})
        for key, alert in alerts.items():
            if alert.state == SILENCED:
                continue
            transition = transitions.get(key)
            result = ActionResult(alert)
            if rule.action and (alert.state == FIRING or alert.action_state):
                result = self._act(tx, rule, alert, readings, fired=transition == FIRED)
            if result.alert != stored.get(key):
                AlertQueries(tx).write_alert(to_row(result.alert))
            if transition is not None:
                _write_alert_event(tx, rule, result, transition, readings.now)

    def _act(
        self,
        tx: Transaction,
        rule: AlertDefinition,
        alert: Alert,
        readings: Readings,
        *,
        fired: bool,
    ) -> ActionResult:
        if not self._actions_enabled:
            inactive = replace(alert, action_state={}, until=None)
            return ActionResult(inactive, f"none ({rule.action} is disabled by alerts.act)")
        result = run_action(tx, rule, alert, readings, fired=fired)
        if result.description:
            fields = {
                "rule": rule.name,
                "key": alert.key,
                "action": rule.action,
                "did": result.description,
            }
            log.warning(
                "alert %s acts on %s: %s", rule.name, alert.key, result.description, extra=fields
            )
        return result


def _firing_keys(alerts: Iterable[Alert]) -> set[str]:
    return {alert.key for alert in alerts if alert.state == FIRING}


def _is_silenced(alerts: Mapping[str, Alert], now: Micros) -> bool:
    silence = alerts.get(WHOLE_RULE)
    return silence is not None and (silence.until is None or silence.until > now)


def _write_alert_event(
    tx: Transaction, rule: AlertDefinition, result: ActionResult, transition: str, now: Micros
) -> None:
    alert = result.alert
    reason = describe_alert(rule, alert)
    data: dict[str, Any] = {
        "rule": rule.name,
        "key": alert.key,
        "value": round(alert.value, 6),
        "threshold": threshold_of(rule, alert),
        "window": rule.window,
        "severity": rule.severity,
        "reason": reason,
        "evidence": dict(alert.evidence),
        "runbook": alert.evidence.get("runbook") or rule.runbook_entry,
    }
    if rule.action:
        data["action"] = rule.action
    if result.description:
        data["did"] = result.description
    if alert.until is not None:
        data["until"] = alert.until
    if alert.reduced_limit is not None:
        data["limit"] = alert.reduced_limit
    event_type = EventType.ALERT_RESOLVED
    level = logging.INFO
    if transition == FIRED:
        event_type = EventType.ALERT_FIRED
        level = logging.WARNING
    EventQueries(tx).write_events([NewEvent(event_type, actor=ALERT_ACTOR, data=data)])
    fields = {
        "rule": rule.name,
        "key": alert.key,
        "value": alert.value,
        "change": transition,
        "at": now,
    }
    log.log(level, "alert %s %s: %s", rule.name, transition, reason, extra=fields)


# --- Stored alerts ---


def load_alerts(tx: Transaction) -> AlertsByRule:
    """Load all stored alerts, by rule and key."""
    found: AlertsByRule = defaultdict(dict)
    for row in AlertQueries(tx).list_alerts():
        found[row.rule][row.key] = from_row(row)
    return found


def from_row(row: AlertRow) -> Alert:
    """Read an alert from its row."""
    return Alert(
        rule=row.rule,
        key=row.key,
        state=row.state,
        since=row.since,
        measured_at=row.evaluated_at,
        value=row.value,
        evidence=json.loads(row.evidence),
        action_state=json.loads(row.acted or "{}"),
        until=row.until,
        actor=row.actor,
        reason=row.reason,
    )


def to_row(alert: Alert) -> AlertRow:
    """Return the row of an alert."""
    action_state = ""
    if alert.action_state:
        action_state = json.dumps(dict(alert.action_state), separators=(",", ":"))
    return AlertRow(
        rule=alert.rule,
        key=alert.key,
        state=alert.state,
        since=alert.since,
        evaluated_at=alert.measured_at,
        value=alert.value,
        evidence=json.dumps(dict(alert.evidence), separators=(",", ":")),
        acted=action_state,
        until=alert.until,
        actor=alert.actor,
        reason=alert.reason,
    )


# --- Actions: pause a queue, open a breaker ---

ACTION_MINUTES = ACTION_DURATION // (60 * SECOND)


class ActionResult(NamedTuple):
    """An alert with the state of its action, and what the action did; empty: nothing new."""

    alert: Alert
    description: str = ""


def run_action(
    tx: Transaction, rule: AlertDefinition, alert: Alert, readings: Readings, *, fired: bool
) -> ActionResult:
    """Start or continue the action of one alert."""
    if rule.action == "reduce":
        return _reduce(tx, rule, alert, readings)
    if rule.action == "hold_release":
        return _hold_release(tx, rule, alert, readings.now)
    if alert.until is not None and alert.until <= readings.now:
        alert = replace(alert, action_state={}, until=None)  # the action has expired
    must_retry = alert.state == FIRING and alert.action_state.get("busy")
    if not fired and not must_retry:
        return ActionResult(alert)
    gate = Gate(
        KEYED_BY[rule.measure],
        alert.key,
        readings.now,
        readings.now + ACTION_DURATION,
        describe_alert(rule, alert),
        ALERT_ACTOR,
    )
    if rule.action == "pause":
        return _pause(tx, alert, gate)
    return _open_breaker(tx, alert, gate)


def _pause(tx: Transaction, alert: Alert, gate: Gate) -> ActionResult:
    actor = _closed_by(tx, gate)
    if actor is not None:
        inactive = replace(alert, action_state={}, until=None)
        return ActionResult(inactive, f"none (already paused by {actor})")
    close_gate(tx, gate)
    state = {"action": "pause", "scope": "queue"}
    paused = replace(alert, action_state=state, until=gate.until)
    return ActionResult(paused, f"paused for {ACTION_MINUTES} min")


def _open_breaker(tx: Transaction, alert: Alert, gate: Gate) -> ActionResult:
    inactive = replace(alert, action_state={}, until=None)
    actor = _closed_by(tx, gate)
    if actor is not None:
        return ActionResult(inactive, f"none (already on hold by {actor})")
    row = GuardQueries(tx).lock_guard(("dependency", gate.key))
    if row is None:  # a worker holds its lock: try again in the next run
        return ActionResult(replace(inactive, action_state={"busy": True}))
    open_dependency(tx, row, gate)
    state = {"action": "open", "scope": "dependency"}
    opened = replace(alert, action_state=state, until=gate.until)
    return ActionResult(opened, f"on hold for {ACTION_MINUTES} min")


def _hold_release(
    tx: Transaction, rule: AlertDefinition, alert: Alert, now: Micros
) -> ActionResult:
    """Hold a kind under the release of an alert, and extend the hold while the alert fires.

    Only while workers of another release run the kind: the hold must not stop it. A person who
    ends the hold decides for as long as the alert fires.
    """
    idle = ActionResult(replace(alert, action_state={}, until=None))
    if alert.state != FIRING:
        return idle
    if alert.action_state.get("ended"):
        return ActionResult(alert)
    release, kind = str(alert.evidence["release"]), str(alert.evidence["kind"])
    gate = Gate(
        RELEASE_SCOPE,
        hold_key(release, kind),
        now,
        now + ACTION_DURATION,
        describe_alert(rule, alert),
        ALERT_ACTOR,
    )
    actor = _closed_by(tx, gate)
    if actor is not None:
        return idle._replace(description=_first(alert, f"none (already held by {actor})"))
    if not _has_other_release(tx, release, kind):
        return idle._replace(description=_first(alert, "none (no other release runs the kind)"))
    state = {"action": "hold_release", "scope": RELEASE_SCOPE}
    held = replace(alert, action_state=state, until=gate.until)
    if alert.until is None or alert.until <= now:
        hold_release(tx, gate)
        return ActionResult(held, f"held for {ACTION_MINUTES} min, extended while this alert fires")
    if not _is_held_by_alert(tx, gate):
        return ActionResult(replace(alert, action_state={"ended": True}, until=None))
    if alert.until - now > ACTION_DURATION // 2:
        return ActionResult(alert)
    GuardQueries(tx).close_gate(gate)
    return ActionResult(held)


def _first(alert: Alert, description: str) -> str:
    """Describe what was not done only once."""
    return "" if alert.since < alert.measured_at else description


def _has_other_release(tx: Transaction, release: str, kind: str) -> bool:
    live = ReleaseQueries(tx).list_live_kinds()
    return any(name != release and kind in json.loads(kinds) for name, kinds in live)


def _is_held_by_alert(tx: Transaction, gate: Gate) -> bool:
    gates = GuardQueries(tx).list_gates()
    return any((other.scope, other.key) == (gate.scope, gate.key) for other in gates)


def _closed_by(tx: Transaction, gate: Gate) -> str | None:
    """Return who has already closed the gate. The alert's end, perhaps earlier, must not win."""
    for other in GuardQueries(tx).list_gates():
        is_same = (other.scope, other.key) == (gate.scope, gate.key)
        if is_same and is_closed(other, gate.since) and other.actor != ALERT_ACTOR:
            return other.actor
    return None


# --- Action: reduce the concurrency ---

RENEW_INTERVAL = 60 * SECOND  # the end of a limit is moved at most this often
MAX_COUNTING_MINUTES = 12 * 60  # counters of single minutes are merged into hours after a day
_RUN_TIME = DurationMeasure("run", "queue")


def _reduce(
    tx: Transaction, rule: AlertDefinition, alert: Alert, readings: Readings
) -> ActionResult:
    """Adapt the concurrency to the share of failures since the last run."""
    scope = KEYED_BY[rule.measure]
    key = (scope, alert.key)
    now = readings.now
    before = UNTHROTTLED
    if "reduced" in alert.action_state:
        before = ThrottleState(*alert.action_state["reduced"])
    if before.limit is None and alert.state != FIRING:
        if not alert.action_state:
            return ActionResult(alert)
        return ActionResult(replace(alert, action_state={}, until=None))
    manual = _manual_limit(tx, key, now)
    if manual is not None:
        return _yield_to_manual_limit(alert, scope, manual)
    start_minute, counted = _counted_so_far(alert, now)
    total = _count_since(tx, rule, alert.key, start_minute, readings)
    recent = _count_recent(alert, before, total, counted)
    load = DependencyLoad(
        max_concurrency=_max_concurrency(tx, key, now),
        running=count_running(GuardQueries(tx).count_running())[key],
        duration=_run_time(readings, key),
    )
    config = ThrottleConfig(rule.above, rule.clear_at)
    after, reason = update_throttle(before, recent.bad, recent.total, load, now, config)
    description = _apply_throttle(tx, key, before, after, reason or "", now)
    state: dict[str, Any] = {}
    if after != UNTHROTTLED:
        state = {
            "scope": scope,
            "action": "reduce",
            "reduced": list(after),
            "since": start_minute,
            "counted": list(total),
        }
    until = None if after.limit is None else after.until or None
    return ActionResult(replace(alert, action_state=state, until=until), description)


def _manual_limit(tx: Transaction, key: LimitKey, now: Micros) -> LimitRow | None:
    """Return the limit that a person has set. It wins over the alert."""
    row = _find_limit(tx, key)
    if row is None or row.actor == ALERT_ACTOR or not is_limit_active(row, now):
        return None
    return row


def _find_limit(tx: Transaction, key: LimitKey) -> LimitRow | None:
    for row in GuardQueries(tx).list_limits():
        if row[:2] == key:
            return row
    return None


def _yield_to_manual_limit(alert: Alert, scope: str, manual: LimitRow) -> ActionResult:
    was_reported = alert.action_state.get("manual_limit_by") == manual.actor
    state = {"scope": scope, "manual_limit_by": manual.actor}
    inactive = replace(alert, action_state=state, until=None)
    if was_reported:
        return ActionResult(inactive)
    actor = manual.actor or "an unknown user"
    return ActionResult(inactive, f"none (limit set by {actor} stays in effect)")


def _counted_so_far(alert: Alert, now: Micros) -> tuple[int, ShareCount]:
    """Return the minute from which calls are counted, and how many were counted already."""
    minute = now // MINUTE
    state = alert.action_state
    if "counted" in state and minute - state["since"] < MAX_COUNTING_MINUTES:
        return state["since"], ShareCount(*state["counted"])
    return minute, ShareCount(0, 0)


def _count_since(
    tx: Transaction, rule: AlertDefinition, key: str, start_minute: int, readings: Readings
) -> ShareCount:
    measure = SHARES[rule.measure]
    counts = read_counts(StatQueries(tx).sum_stats([measure.name], start_minute * MINUTE))
    if measure.by == "queue":
        # Kinds with dependencies are throttled by the guards of their dependencies.
        others = readings.kinds_with_dependencies
        counts = [count for count in counts if count.labels.get("kind") not in others]
    return count_bad(counts, measure).get(key, ShareCount(0, 0))


def _count_recent(
    alert: Alert, before: ThrottleState, total: ShareCount, counted: ShareCount
) -> ShareCount:
    """Return the calls since the last run; in the first run those that made the alert fire."""
    if before == UNTHROTTLED and "counted" not in alert.action_state:
        evidence = alert.evidence
        return ShareCount(int(evidence.get("bad", 0)), int(evidence.get("of", 0)))
    bad = total.bad - counted.bad
    all_calls = total.total - counted.total
    return ShareCount(max(0, bad), max(0, all_calls))


def _apply_throttle(
    tx: Transaction,
    key: LimitKey,
    before: ThrottleState,
    after: ThrottleState,
    reason: str,
    now: Micros,
) -> str:
    """Write the new limit if it changed. Return what was done; empty: nothing new."""
    if after.limit is None:
        if before.limit is None:
            return ""
        return _remove_limit(tx, key, reason or "no calls for a while")
    if after.limit != before.limit:
        seconds = (after.until - now) / SECOND
        change = LimitChange(after.limit, until=seconds, reason=reason)
        write_change_event(tx, key, ALERT_ACTOR, set_limit(tx, key, change, ALERT_ACTOR))
        return reason
    if after.until - before.until >= RENEW_INTERVAL:
        row = _find_limit(tx, key)
        if row is not None and row.actor == ALERT_ACTOR:
            GuardQueries(tx).set_limit(row._replace(until=after.until))
    return ""


def _remove_limit(tx: Transaction, key: LimitKey, reason: str) -> str:
    row = _find_limit(tx, key)
    if row is not None and row.actor == ALERT_ACTOR:
        data = clear_limit(tx, key, reason)
        if data is not None:
            write_change_event(tx, key, ALERT_ACTOR, data)
    return reason


def _max_concurrency(tx: Transaction, key: LimitKey, now: Micros) -> int | None:
    """Return the declared limit, or the slots of all workers that serve the key."""
    scope, name = key
    limit = load_declared_limits(tx, now).get(key)
    if limit is not None and limit.concurrency is not None:
        return limit.concurrency
    workers = WorkerQueries(tx).list_workers(closed=False)
    if scope == "queue":
        workers = [worker for worker in workers if _serves_queue(worker, name)]
    return sum(worker.concurrency for worker in workers) or None


def _serves_queue(worker: WorkerRow, queue: str) -> bool:
    return worker.queues in {"", "[]"} or f'"{queue}"' in worker.queues


def _run_time(readings: Readings, key: LimitKey) -> Micros:
    """Return how long an attempt of a queue takes: a change shows its effect only after that."""
    scope, name = key
    if scope != "queue":
        return 0
    counts = readings.counts.load(readings.tx, RUN_TIME_WINDOW, readings.now)
    for sample in _RUN_TIME.samples(counts):
        if sample.key == name:
            return round(sample.value * SECOND)
    return 0

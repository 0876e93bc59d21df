"""What alerts do by themselves: fewer at a time, a queue paused, a breaker opened. By the doors people use, and each
with an end: nothing that an alert has done outlasts it for more than a quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.engine import dependencies, queues
from mulligan.engine.declared import declared_limits, holding_manifests, terms_of_all
from mulligan.engine.gauging import REDUCED, Gauges
from mulligan.engine.limiting import ALERT, Said, clear_limit, set_limit
from mulligan.engine.rooms import running_under
from mulligan.engine.watch import Watch, remembered
from mulligan.event import EventType
from mulligan.job import SECOND, Gate, LimitRow, Micros, WorkerRow
from mulligan.policy import reduce
from mulligan.policy.alert import FIRING, LASTS, Alert, Rule, sentence
from mulligan.policy.lanes import is_closed
from mulligan.policy.limits import lasts
from mulligan.policy.measures import KEYED_BY, MEASURES, Duration, Portion, portions, read_counts
from mulligan.policy.reduce import WHOLE, Reduced, Seat, Terms
from mulligan.store.alerting import MINUTE
from mulligan.store.base import Unit

RENEWED = 60 * SECOND  # an end is moved no oftener than this
REBASED = 12 * 60  # minutes; after a day minutes become hours
_RUN = Duration("run", "queue")


class Deed(NamedTuple):
    """What became of an alert's action: the alert with what is remembered of it, and what there is to say."""

    alert: Alert
    said: str = ""


def act(unit: Unit, rule: Rule, alert: Alert, gauges: Gauges, *, fired: bool) -> Deed:
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


def _closed_by(unit: Unit, gate: Gate) -> str | None:
    """Who has closed it already; a shorter end of ours would only open it too soon."""
    found = (one for one in unit.gates() if one[:2] == gate[:2] and is_closed(one, gate.since) and one.actor != ALERT)
    return next((one.actor for one in found), None)


def _pause(unit: Unit, gate: Gate) -> _Done:
    by = _closed_by(unit, gate)
    if by is not None:
        return _Done(acted=False, said=f"it is paused already, by {by}", facts={})
    queues.pause_in(unit, gate)
    return _Done(acted=True, said="paused for 15 min", facts={"action": "pause", "scope": "queue"})


def _open(unit: Unit, gate: Gate) -> _Done:
    by = _closed_by(unit, gate)
    if by is not None:
        return _Done(acted=False, said=f"it is held already, by {by}", facts={})
    row = unit.guard(("dependency", gate.key))
    if row is None:  # a worker has it in hand, for the length of a turn
        return _Done(acted=False, said="", facts={"busy": True})
    watch = Watch(others=terms_of_all(holding_manifests(unit, gate.since)))
    dependencies.open_in(unit, watch, row, remembered(row.body), gate)
    return _Done(acted=True, said="held for 15 min", facts={"action": "open", "scope": "dependency"})


# -- fewer at a time --------------------------------------------------------------------------------
def _reduce(unit: Unit, rule: Rule, alert: Alert, gauges: Gauges, scope: str) -> Deed:
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
    seat = Seat(_most(unit, scope, alert.key, now), _running(unit, scope, alert.key), _takes(gauges, scope, alert.key))
    terms = Terms(rule.above, rule.cleared)
    after, said = reduce.observed(before, fresh.bad, fresh.of, seat, now, terms)
    state = {"scope": scope, "action": "reduce", "reduced": list(after), "since": since, "seen": list(total)}
    told = _apply(unit, (scope, alert.key), before, after, said, now)
    kept = state if after != WHOLE else {}
    return Deed(replace(alert, acted=kept, until=after.until or None if after.limit is not None else None), told)


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


def _portion(unit: Unit, rule: Rule, key: str, since: int, gauges: Gauges) -> Portion:
    share = MEASURES[rule.measure]
    counts = read_counts(unit.stat_sums([share.name], since * MINUTE))
    ours = [count for count in counts if count.labels.get("kind") not in gauges.using or share.by != "queue"]
    return portions(ours, share).get(key, Portion(0, 0))


def _apply(unit: Unit, key: tuple[str, str], before: Reduced, after: Reduced, said: str | None, now: Micros) -> str:
    if after.limit is None:
        return _give_back(unit, key, said or "nothing was called for a while") if before.limit is not None else ""
    if after.limit != before.limit:
        news = set_limit(unit, key, Said(after.limit, until=(after.until - now) / SECOND, reason=said or ""), ALERT)
        _tell(unit, key, news)
        return said or ""
    if after.until - before.until >= RENEWED:
        row = next((one for one in unit.limits() if one[:2] == key), None)
        if row is not None and row.actor == ALERT:
            unit.set_limit(row._replace(until=after.until))
    return ""


def _give_back(unit: Unit, key: tuple[str, str], said: str) -> str:
    row = next((one for one in unit.limits() if one[:2] == key), None)
    if row is not None and row.actor == ALERT:
        news = clear_limit(unit, key, said)
        if news is not None:
            _tell(unit, key, news)
    return said


def _tell(unit: Unit, key: tuple[str, str], news: Mapping[str, Any]) -> None:
    if key[0] == "queue":
        queues.tell(unit, EventType.QUEUE_CHANGED, key[1], ALERT, news)
    else:
        dependencies.tell(unit, EventType.DEPENDENCY_CHANGED, key[1], ALERT, news)


def _by_hand(unit: Unit, scope: str, key: str, now: Micros) -> LimitRow | None:
    """A person's limit wins."""
    said = (row for row in unit.limits() if row[:2] == (scope, key) and row.actor != ALERT and lasts(row, now))
    return next(said, None)


def _most(unit: Unit, scope: str, key: str, now: Micros) -> int | None:
    """Never more than what is declared; where nothing is, than all workers together can run."""
    limit = declared_limits(unit, now).get((scope, key))
    if limit is not None and limit.concurrency is not None:
        return limit.concurrency
    serving = [worker for worker in unit.workers(closed=False) if scope != "queue" or _serves(worker, key)]
    return sum(worker.concurrency for worker in serving) or None


def _serves(worker: WorkerRow, queue: str) -> bool:
    return worker.queues in {"", "[]"} or f'"{queue}"' in worker.queues


def _running(unit: Unit, scope: str, key: str) -> int:
    return running_under(unit.running())[scope, key]


def _takes(gauges: Gauges, scope: str, key: str) -> Micros:
    """How long an attempt takes: what it sees of a change it cannot tell sooner."""
    if scope != "queue":
        return 0
    found = (
        sample for sample in _RUN.samples(gauges.tallies.of(gauges.unit, REDUCED, gauges.now)) if sample.key == key
    )
    return round(next((sample.value for sample in found), 0.0) * SECOND)

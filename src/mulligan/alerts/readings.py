"""What alerts look at that is not counted: how things stand now, from small tables and bounded looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mulligan.alerts.measures import MEASURES, StatCount, jump, names_of, read_counts
from mulligan.alerts.rules import EVERYTHING, Alert, AlertDefinition, Sample
from mulligan.core.job import SECOND, Lane, Micros
from mulligan.guards.lanes import is_closed
from mulligan.guards.observer import read_guard_state
from mulligan.manifest.declared import recent_manifests
from mulligan.manifest.specs import OURS
from mulligan.storage.base import Transaction
from mulligan.worker.upkeep import live_kinds

DEPTH = 1000  # jobs of a queue that are counted
GROUPS = 50  # of the causes of which jobs died last
DEATHS = 200
FRESH = 5 * SECOND  # how old what was counted over a short time may be
STALE = 600 * SECOND
SPIKE_SPAN = 3600.0
REDUCED = 300.0  # over which time it is looked how long an attempt takes
BY_QUEUE = "rate_limited_share_by_queue"


@dataclass
class Tallies:
    """What was counted, by window. Of a long one that is not read anew each time: it moves slowly."""

    names: Mapping[float, Sequence[str]]  # that are needed, by window
    _known: dict[float, tuple[Micros, list[StatCount]]] = field(default_factory=dict)

    def of(self, unit: Transaction, window: float, now: Micros) -> list[StatCount]:
        at, counts = self._known.get(window, (0, []))
        old = min(STALE, max(FRESH, round(window * SECOND) // 60)) - SECOND
        if not 0 <= now - at < old:
            counts = read_counts(
                unit.stat_sums(self.names.get(window, ()), now - round(window * SECOND))
            )
            self._known[window] = (now, counts)
        return counts


def tallies_for(rules: Iterable[AlertDefinition]) -> Tallies:
    needed: defaultdict[float, set[str]] = defaultdict(set)
    needed[REDUCED] = {"run"}
    for rule in rules:
        needed[rule.window].update(names_of(rule.measure))
        if rule.and_window is not None:
            needed[rule.and_window].update(names_of(rule.measure))
        if rule.measure == "dead_jump":
            needed[SPIKE_SPAN].update(names_of(rule.measure))
    return Tallies({window: sorted(names) for window, names in needed.items() if names})


@dataclass
class Gauges:
    """One look; each part is read when a rule asks for it."""

    unit: Transaction
    now: Micros
    tallies: Tallies
    stood: Mapping[str, Mapping[str, Alert]]

    def samples(self, rule: AlertDefinition) -> list[Sample]:
        gauge = _GAUGES.get(rule.measure)
        if gauge is not None:
            found = list(gauge(self, rule))
            seen = {sample.key for sample in found}
            gone = (
                []
                if rule.once
                else [
                    key for key in self.stood.get(rule.name, {}) if key not in {*seen, EVERYTHING}
                ]
            )
            return found + [Sample(key, 0.0, max(1.0, rule.least)) for key in gone]
        if rule.measure == "dead_jump":
            return jump(
                self._counts(rule.window), self._counts(SPIKE_SPAN), rule.window, SPIKE_SPAN
            )
        return self._counted(rule)

    def _counted(self, rule: AlertDefinition) -> list[Sample]:
        measure = MEASURES[rule.measure]
        found: list[Sample] = list(measure.samples(self._for(rule, rule.window)))
        if rule.and_window is None:
            return found
        lately = {
            sample.key: sample.value for sample in measure.samples(self._for(rule, rule.and_window))
        }
        return [
            sample._replace(value=min(sample.value, lately.get(sample.key, 0.0)))
            for sample in found
        ]

    def _for(self, rule: AlertDefinition, window: float) -> list[StatCount]:
        counts = self._counts(window)
        if rule.measure == BY_QUEUE:  # what uses a dependency has a guard that sees to it
            return [count for count in counts if count.labels.get("kind") not in self.using]
        return counts

    def _counts(self, window: float) -> list[StatCount]:
        return self.tallies.of(self.unit, window, self.now)

    @cached_property
    def using(self) -> frozenset[str]:
        """Kinds whose jobs use something."""
        return frozenset(
            spec.name
            for manifest in recent_manifests(self.unit, self.now)
            for spec in manifest.kinds.values()
            if spec.uses or spec.uses_by_payload
        )

    # -- now ----------------------------------------------------------------------------------------
    @cached_property
    def _due(self) -> list[tuple[Lane, str, int, Micros]]:
        """Lanes with due jobs that nothing holds: lane, its key, priority, since when."""
        look = self.unit.look()
        closed = {(gate.scope, gate.key) for gate in look.gates if is_closed(gate, look.now)}
        found = [
            (Lane.parse(key), key, priority, at)
            for key, priority, at in look.lanes
            if at <= look.now
        ]
        return [
            (lane, key, priority, at)
            for lane, key, priority, at in found
            if not lane.kind.startswith(OURS)
            and closed.isdisjoint({*lane.guards, ("kind", lane.kind)})
        ]

    def queue_age(self, rule: AlertDefinition) -> Iterator[Sample]:
        oldest: dict[str, Micros] = {}
        for lane, _, _, at in self._due:
            oldest[lane.queue] = min(at, oldest.get(lane.queue, at))
        for queue, at in oldest.items():
            age = max(0, self.now - at) / SECOND
            depth = self._depth(queue) if age > rule.above else 0
            yield Sample(queue, age, depth, {"depth": depth, "oldest": at})

    def _depth(self, queue: str) -> int:
        depth = 0
        for lane, key, priority, _ in self._due:
            if lane.queue == queue and depth < DEPTH:
                depth += self.unit.depth(key, priority, self.now, DEPTH)[0]
        return depth

    def unserved(self, rule: AlertDefinition) -> Iterator[Sample]:
        del rule
        served = live_kinds(self.unit)
        oldest: dict[str, Micros] = {}
        for lane, _, _, at in self._due:
            if lane.kind not in served:
                oldest[lane.kind] = min(at, oldest.get(lane.kind, at))
        for kind, at in oldest.items():
            yield Sample(kind, max(0, self.now - at) / SECOND, 1.0, {"oldest": at})

    def breaker_open(self, _: AlertDefinition) -> Iterator[Sample]:
        for gate in self.unit.gates():
            if (
                gate.scope == "dependency"
                and is_closed(gate, self.now)
                and not gate.key.startswith(OURS)
            ):
                told = {"reason": gate.reason, "actor": gate.actor}
                yield Sample(gate.key, max(0, self.now - gate.since) / SECOND, 1.0, told)

    def heartbeat_age(self, _: AlertDefinition) -> Iterator[Sample]:
        for worker in self.unit.workers(closed=False):
            age = max(0, self.now - worker.renewed_at) / SECOND
            if age > worker.lease / SECOND:
                yield Sample(worker.id, age, 1.0, {"host": worker.host, "pid": worker.pid})

    def at_floor(self, _: AlertDefinition) -> Iterator[Sample]:
        for row in self.unit.guards(at_work=True):
            ours = row.scope != "dependency" or row.key.startswith(OURS)
            if not ours and read_guard_state(row.body).reduced.limit == 1:
                yield Sample(f"dependency {row.key}", 1.0, 1.0, {"limit": 1})
        for alerts in self.stood.values():
            for alert in alerts.values():
                reduced = alert.acted.get("reduced")
                if reduced and reduced[0] == 1:
                    yield Sample(f"{alert.acted['scope']} {alert.key}", 1.0, 1.0, {"limit": 1})

    # -- causes -------------------------------------------------------------------------------------
    def new_group(self, rule: AlertDefinition) -> Iterator[Sample]:
        since = self.now - round(rule.window * SECOND)
        told = self.stood.get(rule.name, {})
        late = [
            name
            for name, last in self.unit.group_names(None, GROUPS)
            if last >= since and name not in told
        ]
        firsts = {
            name: first
            for name, (first, _) in self.unit.group_ends(late, {}).items()
            if first >= since
        }
        for name, deaths in self.unit.group_deaths(list(firsts), {}, self.now, 1, DEATHS).items():
            counted = [
                one
                for one in deaths.counts
                if one.cls == "unknown" or rule.measure != "new_unknown_group"
            ]
            if counted:
                jobs = sum(one.jobs for one in counted)
                about = {"kind": counted[0].kind, "code": counted[0].code, "class": counted[0].cls}
                yield Sample(name, float(jobs), jobs, {**about, "first": firsts[name]})


_GAUGES: dict[str, Callable[[Gauges, AlertDefinition], Iterator[Sample]]] = {
    "queue_age": Gauges.queue_age,
    "unserved": Gauges.unserved,
    "breaker_open": Gauges.breaker_open,
    "heartbeat_age": Gauges.heartbeat_age,
    "at_floor": Gauges.at_floor,
    "new_group": Gauges.new_group,
    "new_unknown_group": Gauges.new_group,
}

"""How many workers the due jobs need: the signal for autoscalers.

Held and scheduled jobs do not count, because more workers would not start them sooner. Neither do
jobs that a limit of their queue or of a dependency keeps from starting.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import COUNT_CAP, Gate, Lane, Limit, LimitKey, WorkerRow
from mulligan.events.queries import StatQueries
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import count_running, merge_limits
from mulligan.guards.queries import GuardQueries, LaneDepthRow, RunningGroup
from mulligan.manifest.declared import load_declared_limits
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries

DEFAULT_TARGET = 30.0  # seconds that a due job may wait
DEFAULT_SLOTS = 10.0  # of a worker, if none is live; the default of worker.concurrency
UNMEASURED_SECONDS = 1.0  # duration of a kind, if no kind was measured in the last hour
MEASURED_PERIOD: Micros = 3600 * SECOND
MAX_LANES = 2_000
MAX_WAITING = 200_000  # waiting jobs counted over all lanes
MAX_GROUPS = 10_000


class Load(NamedTuple):
    """Everything that the number of workers depends on."""

    now: Micros
    depths: Sequence[LaneDepthRow]
    gates: Sequence[Gate]
    limits: Mapping[LimitKey, Limit]
    limited: Mapping[LimitKey, int]  # running jobs by queue and dependency
    running: Sequence[RunningGroup]
    durations: Mapping[str, float]  # mean seconds of an attempt, by kind
    workers: Sequence[WorkerRow]


@dataclass(frozen=True, slots=True)
class Scale:
    """The workers that are wanted now, and what the number was made of."""

    queues: tuple[str, ...]  # empty: all
    workers: int
    slots: int  # jobs that these workers run at once
    target: float  # seconds that a due job may wait
    ready: int  # due, and nothing holds them
    held: int
    scheduled: int
    running: int
    seconds_of_work: float  # of the ready jobs
    slots_per_worker: float
    live_workers: int
    unmeasured: tuple[str, ...]  # kinds with waiting jobs and no attempt in the last hour


def read_load(tx: Transaction) -> Load:
    """Read the waiting and running jobs, the limits and the measured durations."""
    queries = GuardQueries(tx)
    state = queries.read_claim_state()
    cap = max(100, min(COUNT_CAP, MAX_WAITING // max(1, len(state.lanes))))
    return Load(
        now=state.now,
        depths=queries.count_waiting_by_lane(state.now, cap, MAX_LANES),
        gates=state.gates,
        limits=merge_limits(load_declared_limits(tx, state.now), state.limits),
        limited=count_running(queries.count_running()),
        running=queries.list_running_groups(MAX_GROUPS),
        durations=_mean_durations(tx, state.now),
        workers=WorkerQueries(tx).list_workers(closed=False),
    )


def _mean_durations(tx: Transaction, now: Micros) -> dict[str, float]:
    """Return the mean seconds of an attempt of each kind in the last hour."""
    attempts: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for _, labels, n, total in StatQueries(tx).sum_stats(["run"], now - MEASURED_PERIOD):
        kind = json.loads(labels)["kind"]
        attempts[kind] += n
        seconds[kind] += total
    return {kind: seconds[kind] / n for kind, n in attempts.items() if n > 0}


# --- Rules ---


def compute_scale(
    load: Load,
    queues: Collection[str] = (),
    target: float = DEFAULT_TARGET,
    slots_per_worker: float | None = None,
) -> Scale:
    """Return the workers that start every ready job of these queues within `target` seconds.

    A job needs a slot for its mean duration. One that is longer than the target needs a slot of
    its own. Slots that are in use stay wanted, so that a steady load keeps its workers.
    """
    lanes = _select_lanes(load, queues)
    running = _count_running(load, queues)
    needed = sum(_slots_of_lanes(load, lanes.ready, target).values())
    for kind, count in running.items():
        needed += count * min(_duration(load, kind) / 2, target) / target
    in_use = running.total()
    slots = max(in_use, math.ceil(round(needed, 6)))
    workers = _workers_of(load.workers, queues)
    if slots_per_worker is None:
        slots_per_worker = _mean_slots(workers or load.workers)
    ready = [(Lane.parse(row.lane).kind, row.due) for row in lanes.ready]
    waiting = {kind for kind, _ in ready}
    return Scale(
        queues=tuple(sorted(queues)),
        workers=math.ceil(slots / slots_per_worker),
        slots=slots,
        target=target,
        ready=sum(due for _, due in ready),
        held=lanes.held,
        scheduled=lanes.scheduled,
        running=in_use,
        seconds_of_work=sum(due * _duration(load, kind) for kind, due in ready),
        slots_per_worker=slots_per_worker,
        live_workers=len(workers),
        unmeasured=tuple(sorted(waiting - load.durations.keys())),
    )


def queue_names(load: Load) -> list[str]:
    """Return the queues that have waiting or running jobs."""
    names = {Lane.parse(row.lane).queue for row in load.depths}
    names |= {group.queue for group in load.running}
    return sorted(name for name in names if not name.startswith(SYSTEM_PREFIX))


class _Lanes(NamedTuple):
    ready: list[LaneDepthRow]  # with due jobs that nothing holds
    held: int
    scheduled: int


def _select_lanes(load: Load, queues: Collection[str]) -> _Lanes:
    closed = {(gate.scope, gate.key) for gate in load.gates if is_closed(gate, load.now)}
    ready = []
    held = scheduled = 0
    for row in load.depths:
        lane = Lane.parse(row.lane)
        if not _is_selected(lane.queue, lane.kind, queues):
            continue
        scheduled += row.later
        if not closed.isdisjoint([*lane.limit_keys, ("kind", lane.kind)]):
            held += row.due
        elif row.due:
            ready.append(row)
    return _Lanes(ready, held, scheduled)


def _is_selected(queue: str, kind: str, queues: Collection[str]) -> bool:
    if kind.startswith(SYSTEM_PREFIX):
        return False
    return not queues or queue in queues


def _count_running(load: Load, queues: Collection[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for group in load.running:
        if _is_selected(group.queue, group.kind, queues):
            counts[group.kind] += group.jobs
    return counts


def _slots_of_lanes(
    load: Load, rows: Iterable[LaneDepthRow], target: float
) -> dict[LaneDepthRow, float]:
    """Return the slots that each lane needs, within the limits of its queue and dependencies."""
    slots: dict[LaneDepthRow, float] = {}
    by_limit: defaultdict[LimitKey, list[LaneDepthRow]] = defaultdict(list)
    for row in rows:
        lane = Lane.parse(row.lane)
        slots[row] = row.due * min(_duration(load, lane.kind), target) / target
        for key in lane.limit_keys:
            if key in load.limits:
                by_limit[key].append(row)
    for key, limited in by_limit.items():
        limit = load.limits[key]
        if limit.concurrency is not None:
            free = max(0, limit.concurrency - load.limited.get(key, 0))
            _scale_down(slots, limited, free / (sum(slots[row] for row in limited) or 1.0))
        if limit.rate is not None:
            starts = limit.rate * target
            _scale_down(slots, limited, starts / sum(row.due for row in limited))
    return slots


def _scale_down(
    slots: dict[LaneDepthRow, float], rows: Iterable[LaneDepthRow], share: float
) -> None:
    for row in rows:
        slots[row] *= min(1.0, share)


def _duration(load: Load, kind: str) -> float:
    """Return the seconds of an attempt of a kind; of the average kind, if it was not measured."""
    if kind in load.durations:
        return load.durations[kind]
    if not load.durations:
        return UNMEASURED_SECONDS
    return sum(load.durations.values()) / len(load.durations)


def _workers_of(workers: Iterable[WorkerRow], queues: Collection[str]) -> list[WorkerRow]:
    """Return the workers that take jobs of one of these queues and are not draining."""
    found = []
    for row in workers:
        taken = json.loads(row.queues)
        is_selected = not queues or not taken or not set(taken).isdisjoint(queues)
        if is_selected and not row.draining and row.drain_reason is None:
            found.append(row)
    return found


def _mean_slots(workers: Sequence[WorkerRow]) -> float:
    if not workers:
        return DEFAULT_SLOTS
    return sum(row.concurrency for row in workers) / len(workers)

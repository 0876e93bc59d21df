"""Lanes: which are open, and in which order a claim takes their jobs.

Retry lanes get 10 to 30 % of the slots for which fresh jobs also wait. A failing kind cannot crowd
out fresh jobs, and fresh jobs cannot starve retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Candidate, ClaimState, Gate, Lane, LaneRef, LimitKey
from mulligan.guards.state import GuardState

MIN_RETRY_SHARE = 0.1
MAX_RETRY_SHARE = 0.3
MIN_CANDIDATES = 200  # due jobs that a claim may read, however few it takes
_ONE_SLOT = 1 - 1e-9  # ten times 0.1 is slightly less than 1

# --- Capacity: what limits the jobs that a claim may take ---

SLOTS: LimitKey = ("slots", "")


@lru_cache(maxsize=4096)
def lane_limit_keys(lane: str) -> tuple[LimitKey, ...]:
    """Return the keys of everything that can run out for jobs of this lane.

    These are the limits of its queue and dependencies, this worker's slots for jobs with
    dependencies in total and for each dependency, and the retry budgets.
    """
    parsed = Lane.parse(lane)
    keys = parsed.limit_keys
    if parsed.uses:
        keys.append(SLOTS)
        keys += [("here", key) for key in parsed.dependencies]
    if parsed.retry:
        keys += [("budget", key) for key in parsed.dependencies]
    return tuple(keys)


class Capacity:
    """Remaining starts by key, see `lane_limit_keys`. A key without an entry is not limited."""

    def __init__(self, left: Mapping[LimitKey, int]) -> None:
        self._left = dict(left)

    def fits(self, lane: str) -> bool:
        """Return True if one more job of this lane may start."""
        left = self._left
        return not left or all(left.get(key, 1) > 0 for key in lane_limit_keys(lane))

    def take(self, lane: str) -> None:
        """Count a job of this lane that starts."""
        if self._left:
            for key in lane_limit_keys(lane):
                if key in self._left:
                    self._left[key] -= 1

    def admit(self, candidates: Sequence[Candidate], n: int) -> list[Candidate]:
        """Take, in order, at most `n` of the candidates that fit."""
        if not self._left:
            return list(candidates[:n])
        admitted: list[Candidate] = []
        for candidate in candidates:
            if len(admitted) >= n:
                break
            if self.fits(candidate.lane):
                self.take(candidate.lane)
                admitted.append(candidate)
        return admitted


# --- Order of claims ---


def pick(
    fresh: Sequence[Candidate],
    retries: Sequence[Candidate],
    n: int,
    credit: float,
    capacity: Capacity,
) -> tuple[list[Candidate], float]:
    """Return the next `n` jobs that fit, in order, and the credit to pass to the next call.

    Both sequences are sorted. For every slot that both want, retries earn a share of a slot: the
    maximum if the order would choose a retry, else the minimum. Retries take every whole slot that
    they have earned. Over any series of calls their share lies between both limits, even if each
    call takes a single job.
    """
    credit = min(max(credit, 0.0), 1.0)
    picked: list[Candidate] = []
    f = r = 0
    while len(picked) < n and f < len(fresh) and r < len(retries):
        if not capacity.fits(fresh[f].lane):
            f += 1
            continue
        if not capacity.fits(retries[r].lane):
            r += 1
            continue
        credit += MAX_RETRY_SHARE if retries[r] < fresh[f] else MIN_RETRY_SHARE
        if credit >= _ONE_SLOT:
            credit = max(0.0, credit - 1)
            candidate = retries[r]
            r += 1
        else:
            candidate = fresh[f]
            f += 1
        capacity.take(candidate.lane)
        picked.append(candidate)
    picked += capacity.admit(fresh[f:] or retries[r:], max(n, 0) - len(picked))
    return picked, credit


class DueJobs:
    """Due jobs of lanes. Each lane is read only as deep as a claim needs it."""

    def __init__(self, list_due: Callable[[Sequence[LaneRef], int], list[Candidate]]) -> None:
        """`list_due` lists the first due jobs of lanes, at most a number of each."""
        self._list_due = list_due
        self._jobs: dict[LaneRef, list[Candidate]] = {}
        self._depths: dict[LaneRef, int] = {}

    def add(self, lanes: Sequence[LaneRef], depth: int, jobs: Iterable[Candidate]) -> None:
        """Store the jobs of lanes that were read up to `depth`."""
        for lane in lanes:
            self._jobs[lane] = []
            self._depths[lane] = depth
        for job in jobs:
            self._jobs[job.lane, job.priority].append(job)

    def read(self, lanes: Iterable[LaneRef], depth: int) -> None:
        """Read lanes up to `depth`, except those whose jobs are known that far."""
        unread = [lane for lane in lanes if self._may_have_more(lane, depth)]
        if unread:
            self.add(unread, depth, self._list_due(unread, depth))

    def _may_have_more(self, lane: LaneRef, depth: int) -> bool:
        known = self._depths.get(lane, 0)
        return known < depth and len(self._jobs.get(lane, ())) >= known

    def find_used_up(self, picked: Iterable[Candidate], depth: int) -> list[LaneRef]:
        """Return lanes of which every job that was read is picked, and that may have more.

        Their next jobs could come before other picked ones. In fair queues owners take turns, so
        the next jobs of one owner do not.
        """
        counts = Counter((job.lane, job.priority) for job in picked)
        return [
            lane
            for lane, count in counts.items()
            if count == len(self._jobs[lane])
            and self._may_have_more(lane, depth)
            and not Lane.parse(lane[0]).share
        ]

    def in_order(
        self, lanes: Sequence[LaneRef], served: Mapping[str, str], first: str
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return fresh jobs and retries of lanes, each in order; see `interleave_owners`."""
        jobs: dict[bool, list[Candidate]] = {False: [], True: []}
        for lane in lanes:
            jobs[Lane.parse(lane[0]).retry] += self._jobs[lane]
        fresh, retries = sorted(jobs[False]), sorted(jobs[True])
        if any(Lane.parse(lane).share for lane, _ in lanes):
            fresh = interleave_owners(fresh, served, first)
            retries = interleave_owners(retries, served, first)
        return fresh, retries


def read_depth(lanes: int, slots: int) -> int:
    """Return how many due jobs of each lane to read: twice its share of the slots, or more."""
    return min(slots, max(2, (2 * slots + MIN_CANDIDATES) // max(lanes, 1)))


def interleave_owners(
    candidates: Sequence[Candidate], served: Mapping[str, str], first: str = ""
) -> list[Candidate]:
    """Let the owners of a fair queue take turns.

    `served` is the owner share that each queue served last; `first` stands in for a queue that has
    served none. Each position keeps its queue and priority; only the owner that fills it changes.
    """
    lanes = [Lane.parse(candidate.lane) for candidate in candidates]
    queues: dict[tuple[int, str], dict[str, list[Candidate]]] = {}
    for candidate, lane in zip(candidates, lanes, strict=True):
        if lane.share:
            shares = queues.setdefault((candidate.priority, lane.queue), {})
            shares.setdefault(lane.share, []).append(candidate)
    turns = {
        (priority, queue): _round_robin(shares, served.get(queue, first))
        for (priority, queue), shares in queues.items()
    }
    return [
        next(turns[candidate.priority, lane.queue]) if lane.share else candidate
        for candidate, lane in zip(candidates, lanes, strict=True)
    ]


def _round_robin(shares: Mapping[str, Sequence[Candidate]], last: str) -> Iterator[Candidate]:
    order = sorted(shares, key=lambda share: (share <= last, share))
    for turn in zip_longest(*(shares[share] for share in order)):
        for candidate in turn:
            if candidate is not None:
                yield candidate


# --- Open lanes ---


class ClosedKeys(NamedTuple):
    """Names of closed queues, kinds and dependencies."""

    queues: frozenset[str]
    kinds: frozenset[str]
    dependencies: frozenset[str]

    def hold(self, lane: Lane) -> bool:
        """Return True if the lane's queue, its kind or one of its dependencies is closed."""
        if lane.queue in self.queues or lane.kind in self.kinds:
            return True
        return bool(self.dependencies) and not self.dependencies.isdisjoint(lane.dependencies)


def find_closed_keys(gates: Iterable[Gate], now: Micros) -> ClosedKeys:
    """Return the closed queues, kinds and dependencies."""
    closed: dict[str, set[str]] = {"queue": set(), "kind": set(), "dependency": set()}
    for gate in gates:
        if is_closed(gate, now):
            closed.setdefault(gate.scope, set()).add(gate.key)
    return ClosedKeys(*(frozenset(closed[scope]) for scope in ("queue", "kind", "dependency")))


def is_closed(gate: Gate, now: Micros) -> bool:
    return gate.until is None or gate.until > now


@dataclass
class LaneView:
    """Lanes that wait for one worker: which are open, which a dependency holds, and until when."""

    state: ClaimState
    closed_gates: Sequence[Gate]
    queues: frozenset[str] | None  # None: the worker serves all queues
    kinds: frozenset[str]

    def __post_init__(self) -> None:
        self._closed = find_closed_keys(self.closed_gates, self.state.now)

    def _serves(self, lane: Lane) -> bool:
        return lane.kind in self.kinds and (self.queues is None or lane.queue in self.queues)

    @cached_property
    def _open_lanes(self) -> list[tuple[str, int, Micros]]:
        found = ((Lane.parse(entry[0]), entry) for entry in self.state.lanes)
        return [
            entry for lane, entry in found if self._serves(lane) and not self._closed.hold(lane)
        ]

    @cached_property
    def due(self) -> list[LaneRef]:
        """Lanes with due jobs that this worker may claim."""
        now = self.state.now
        return [(key, priority) for key, priority, run_at in self._open_lanes if run_at <= now]

    def due_in(self, queue: str) -> list[LaneRef]:
        """Return the due lanes of one queue."""
        return [lane for lane in self.due if Lane.parse(lane[0]).queue == queue]

    def due_lanes_behind(self, key: str, others: AbstractSet[str] | None = None) -> list[LaneRef]:
        """Return due lanes that `key` holds, and besides it only dependencies in `others`.

        `others=None`: any other dependency may be closed too.
        """
        held = self._held_lanes.get(key, ())
        if others is None:
            return [lane for lane, _ in held]
        allowed = others | {key}
        return [lane for lane, down in held if down <= allowed]

    @cached_property
    def _held_lanes(self) -> dict[str, list[tuple[LaneRef, AbstractSet[str]]]]:
        """Due lanes by each closed dependency that holds them, with all that hold the lane."""
        held: dict[str, list[tuple[LaneRef, AbstractSet[str]]]] = {}
        others = self._closed._replace(dependencies=frozenset())
        for key, priority, run_at in self.state.lanes:
            lane = Lane.parse(key)
            if run_at > self.state.now or not self._serves(lane) or others.hold(lane):
                continue
            down = self._closed.dependencies.intersection(lane.dependencies)
            for dependency in down:
                held.setdefault(dependency, []).append(((key, priority), down))
        return held

    def waiting_dependencies(self) -> frozenset[str]:
        """Return dependencies of jobs of any kind that are overdue and that nothing holds.

        A ramp waits for them. It must not wait for jobs of a paused queue.
        """
        overdue_before = self.state.now - SECOND
        overdue = [Lane.parse(key) for key, _, at in self.state.lanes if at < overdue_before]
        claimable = [lane for lane in overdue if lane.uses and not self._closed.hold(lane)]
        return frozenset(key for lane in claimable for key in lane.dependencies)

    def wake_times(self, guards: Mapping[str, GuardState]) -> list[Micros]:
        """Return when the next jobs become due, gates open and probes are allowed."""
        times = [run_at for _, _, run_at in self._open_lanes]
        times += [gate.until for gate in self.closed_gates if gate.until is not None]
        times += [guard.probe_at for guard in guards.values() if guard.open]
        return [at for at in times if at > self.state.now]

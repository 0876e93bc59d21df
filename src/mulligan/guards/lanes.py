"""Lanes: which are open, which a claim reads, and in which order it takes their jobs.

Retry lanes get 10 to 30 % of the slots for which fresh jobs also wait. A failing kind cannot crowd
out fresh jobs, and fresh jobs cannot starve retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, zip_longest
from operator import itemgetter
from typing import NamedTuple, Protocol

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import (
    FIRST_LANE,
    Candidate,
    ClaimState,
    Gate,
    Lane,
    LaneEntry,
    LaneRef,
    LaneWindow,
    LimitKey,
    ReadyWindow,
)
from mulligan.core.waits import NEVER
from mulligan.guards.limits import owner_share
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

    These are the limits of its queue and dependencies, the share of its kind that a canary may
    take, this worker's slots for jobs with
    dependencies in total and for each dependency, and the retry budgets.
    """
    parsed = Lane.parse(lane)
    keys = parsed.limit_keys
    keys.append(("canary", parsed.kind))
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
        if not self._left:
            return True
        return all(self._left.get(key, 1) > 0 for key in lane_limit_keys(lane))

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
        retry_is_first = retries[r] < fresh[f]
        credit += MAX_RETRY_SHARE if retry_is_first else MIN_RETRY_SHARE
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
        used_up = []
        for lane, count in counts.items():
            key, _ = lane
            all_are_picked = count == len(self._jobs[lane])
            is_fair = bool(Lane.parse(key).share)
            if all_are_picked and self._may_have_more(lane, depth) and not is_fair:
                used_up.append(lane)
        return used_up

    def in_order(
        self, lanes: Sequence[LaneRef], served: Mapping[str, str], worker: str
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return fresh jobs and retries of lanes, each in order; see `interleave_owners`."""
        fresh: list[Candidate] = []
        retries: list[Candidate] = []
        has_fair_queue = False
        for lane in lanes:
            parsed = Lane.parse(lane[0])
            has_fair_queue |= bool(parsed.share)
            if parsed.retry:
                retries += self._jobs[lane]
            else:
                fresh += self._jobs[lane]
        fresh.sort()
        retries.sort()
        if has_fair_queue:
            # The share of the worker's id comes first: workers start with different owners.
            first = owner_share(worker)
            fresh = interleave_owners(fresh, served, first)
            retries = interleave_owners(retries, served, first)
        return fresh, retries


def take_turns(lanes: Iterable[LaneEntry]) -> list[LaneRef]:
    """Order lanes by priority. Within one, queues and their owners take turns, by due time.

    A part of this order holds lanes of every queue and owner, however many lanes one of them has.
    """
    turns: Counter[tuple[object, ...]] = Counter()
    ranked = []
    for key, priority, run_at in sorted(lanes, key=itemgetter(1, 2)):
        lane = Lane.parse(key)
        group = (priority, lane.queue, lane.share, lane.retry)
        ranked.append((priority, turns[group], run_at, key))
        turns[group] += 1
    return [(key, priority) for priority, _, _, key in sorted(ranked)]


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
    ordered = []
    for candidate, lane in zip(candidates, lanes, strict=True):
        if lane.share:
            ordered.append(next(turns[candidate.priority, lane.queue]))
        else:
            ordered.append(candidate)
    return ordered


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
    return ClosedKeys(
        queues=frozenset(closed["queue"]),
        kinds=frozenset(closed["kind"]),
        dependencies=frozenset(closed["dependency"]),
    )


RELEASE_SCOPE = "release"  # of a gate that holds a kind under one release


def hold_key(release: str, kind: str) -> str:
    """Return the key of the gate that holds a kind under a release; without a kind, all kinds."""
    return f"{release}|{kind}"


def parse_hold_key(key: str) -> tuple[str, str]:
    """Return the release and the kind of a gate's key."""
    release, _, kind = key.rpartition("|")
    return release, kind


def find_held_kinds(gates: Iterable[Gate], release: str, kinds: frozenset[str]) -> frozenset[str]:
    """Return the kinds that workers of a release must not claim."""
    held: set[str] = set()
    for gate in gates:
        if gate.scope == RELEASE_SCOPE:
            name, kind = parse_hold_key(gate.key)
            if name == release:
                held |= {kind} if kind else kinds
    return frozenset(held)


def is_closed(gate: Gate, now: Micros) -> bool:
    return gate.until is None or gate.until > now


class HeldLane(NamedTuple):
    """A due lane behind closed dependencies, and the names of all that hold it."""

    lane: LaneRef
    down: AbstractSet[str]


@dataclass
class LaneView:
    """Lanes that wait for one worker: which are open, which a dependency holds, and until when."""

    state: ClaimState
    closed_gates: Sequence[Gate]
    queues: frozenset[str] | None  # None: the worker serves all queues
    kinds: frozenset[str]
    release: str = ""  # of the worker; some of its kinds may be held

    def __post_init__(self) -> None:
        self._closed = find_closed_keys(self.closed_gates, self.state.now)
        self.kinds -= find_held_kinds(self.closed_gates, self.release, self.kinds)

    def _serves(self, lane: Lane) -> bool:
        return lane.kind in self.kinds and (self.queues is None or lane.queue in self.queues)

    def may_try(self, lane: str) -> bool:
        """True if this worker serves a lane that nothing but its kind holds."""
        parsed = Lane.parse(lane)
        others = self._closed._replace(kinds=self._closed.kinds - {parsed.kind})
        return self._serves(parsed) and not others.hold(parsed)

    @cached_property
    def _open_lanes(self) -> list[LaneEntry]:
        open_lanes = []
        for entry in self.state.lanes:
            key, _, _ = entry
            lane = Lane.parse(key)
            if self._serves(lane) and not self._closed.hold(lane):
                open_lanes.append(entry)
        return open_lanes

    @cached_property
    def due(self) -> list[LaneRef]:
        """Lanes with due jobs that this worker may claim."""
        now = self.state.now
        return [(key, priority) for key, priority, run_at in self._open_lanes if run_at <= now]

    def due_in_turn(self) -> list[LaneRef]:
        """Return the due lanes, so that a part of them holds lanes of every queue and owner."""
        now = self.state.now
        due = [(key, priority, at) for key, priority, at in self._open_lanes if at <= now]
        return take_turns(due)

    def held_in_turn(self) -> list[LaneRef]:
        """Return the due lanes behind closed dependencies, the first one of each first."""
        lanes: dict[LaneRef, None] = {}  # without duplicates, in order
        for turn in zip_longest(*self._held_lanes.values()):
            for held in turn:
                if held is not None:
                    lanes[held.lane] = None
        return list(lanes)

    @cached_property
    def closed_keys(self) -> frozenset[LimitKey]:
        """Scopes and names of the closed gates."""
        return frozenset((gate.scope, gate.key) for gate in self.closed_gates)

    def due_in(self, queue: str) -> list[LaneRef]:
        """Return the due lanes of one queue."""
        return [lane for lane in self.due if Lane.parse(lane[0]).queue == queue]

    def due_lanes_behind(self, key: str, others: AbstractSet[str] | None = None) -> list[LaneRef]:
        """Return due lanes that `key` holds, and besides it only dependencies in `others`.

        `others=None`: any other dependency may be closed too.
        """
        found = self._held_lanes.get(key, ())
        if others is None:
            return [held.lane for held in found]
        allowed = others | {key}
        return [held.lane for held in found if held.down <= allowed]

    @cached_property
    def _held_lanes(self) -> dict[str, list[HeldLane]]:
        """Due lanes by each closed dependency that holds them."""
        held: dict[str, list[HeldLane]] = {}
        if not self._closed.dependencies:
            return held
        others = self._closed._replace(dependencies=frozenset())
        for key, priority, run_at in self.state.lanes:
            lane = Lane.parse(key)
            if run_at > self.state.now or not self._serves(lane) or others.hold(lane):
                continue
            down = self._closed.dependencies.intersection(lane.dependencies)
            for dependency in down:
                held.setdefault(dependency, []).append(HeldLane((key, priority), down))
        return held

    def waiting_dependencies(self) -> frozenset[str]:
        """Return dependencies of jobs of any kind that are overdue and that nothing holds.

        A ramp waits for them. It must not wait for jobs of a paused queue.
        """
        overdue_before = self.state.now - SECOND
        waiting: set[str] = set()
        for key, _, run_at in self.state.lanes:
            lane = Lane.parse(key)
            if lane.uses and run_at < overdue_before and not self._closed.hold(lane):
                waiting.update(lane.dependencies)
        return frozenset(waiting)

    def wake_times(self, guards: Mapping[str, GuardState]) -> list[Micros]:
        """Return when the next jobs become due, gates open and probes are allowed."""
        times = [run_at for _, _, run_at in self._open_lanes]
        times += [gate.until for gate in self.closed_gates if gate.until is not None]
        times += [guard.probe_at for guard in guards.values() if guard.open]
        return [at for at in times if self.state.now < at < NEVER]


# --- Lanes that a claim reads ---
#
# Up to `MAX_LANES` lanes every claim reads all of them. If there are more, a claim reads the lanes
# that it knows to have due jobs, and the lanes of jobs that have become ready since the last claim.
# A round through all lanes, some in each claim, finds what these two do not show: lanes that were
# due before the worker started or before a gate opened, and those that became ready in great
# number or in transactions that were open for long.

MAX_LANES = 200  # lanes up to which a claim reads all
STEP = 50  # lanes that a claim reads of a round
MAX_KNOWN = 50  # open lanes with due jobs that are known between claims
MIN_CHOICE = 10  # lanes that a claim chooses from, however few slots are free
MAX_KNOWN_HELD = 20  # lanes behind closed dependencies that are known: they give probes
MAX_READY = 500  # jobs that became ready, whose lanes a claim reads
MAX_UPCOMING = 10  # jobs that will be ready next
ROUND_INTERVAL = 60 * SECOND  # from the end of a round to the next
COMMIT_DELAY = SECOND  # how long after their time jobs may be committed without waiting for a round


class LaneReader(Protocol):
    """Reads the state of a claim, with all lanes or some of them."""

    def read_claim_state(
        self, expected: Sequence[LaneRef], depth: int, window: LaneWindow
    ) -> ClaimState: ...

    def read_claim_state_partly(
        self, expected: Sequence[LaneRef], depth: int, window: LaneWindow, ready: ReadyWindow
    ) -> ClaimState: ...


@dataclass
class LaneScan:
    """Lanes that one worker knows between claims, and its position in all others."""

    expected: Sequence[LaneRef] = ()  # open lanes that were due: their jobs are read with the state
    reads_on: bool = False  # lanes are left to read: claim again at once
    _is_partial: bool = False  # there are too many lanes to read all of them
    _held: Sequence[LaneRef] = ()  # known lanes behind closed dependencies
    _slots: int = 0  # of the current claim
    _position: LaneRef | None = None  # where the round is; None: no round is running
    _lanes_in_round: int = 0
    _round_ended: Micros = 0
    _round_requested: bool = False
    _lanes_dropped: bool = False  # more lanes were due than may be known
    _ready_since: Micros = 0  # jobs that became ready before were read
    _unread_at: Micros | None = None  # when jobs become ready behind those that were read
    _closed: frozenset[LimitKey] = frozenset()

    def request_round(self) -> None:
        """Read all lanes again: this worker may serve some that it skipped."""
        self._round_requested = True

    def read(self, queries: LaneReader, due_jobs: DueJobs, slots: int) -> ClaimState:
        """Read the state of a claim for some slots, with the lanes that the claim must know.

        Also read the due jobs of the expected lanes.
        """
        self._slots = slots
        read = self._read_all
        lanes = self.expected
        if self._is_partial:
            read = self._read_part
            lanes = self._first_choice(self.expected)
        if slots <= 0:
            lanes = ()
        depth = read_depth(len(lanes), slots)
        state = read(queries, lanes, depth)
        due_jobs.add(lanes, depth, state.candidates)
        return state

    def _read_all(self, queries: LaneReader, lanes: Sequence[LaneRef], depth: int) -> ClaimState:
        window = LaneWindow(max_lanes=max(MAX_LANES, self._slots))
        state = queries.read_claim_state(lanes, depth, window)
        if len(state.lanes) >= window.max_lanes:
            self._is_partial = True
            self._lanes_in_round = 0
            self._advance_round(window, state)
            self._ready_since = state.now - COMMIT_DELAY
            self._unread_at = state.now
        return state

    def _read_part(self, queries: LaneReader, lanes: Sequence[LaneRef], depth: int) -> ClaimState:
        step = 0 if self._position is None else max(STEP, self._slots)
        window = LaneWindow(self._position or FIRST_LANE, step)
        known = [*self.expected[len(lanes) :], *self._held]
        ready = ReadyWindow(known, self._ready_since, MAX_READY, MAX_UPCOMING)
        state = queries.read_claim_state_partly(lanes, depth, window, ready)
        self._advance_ready(state)
        if self._position is not None:
            self._advance_round(window, state)
        return state._replace(
            lanes=_merge(chain(state.lanes, state.known, state.ready, state.upcoming))
        )

    def _advance_ready(self, state: ClaimState) -> None:
        """Move the time behind the jobs that were read."""
        self._ready_since = state.now - COMMIT_DELAY
        if len(state.ready) >= MAX_READY:
            *_, self._ready_since = state.ready[-1]
            # More jobs may have become ready at the same time as the last one.
            self._round_requested = True
        self._unread_at = None
        if len(state.upcoming) >= MAX_UPCOMING:
            *_, self._unread_at = state.upcoming[-1]

    def _advance_round(self, window: LaneWindow, state: ClaimState) -> None:
        """Move the round behind the lanes that were read, or end it."""
        self._lanes_in_round += len(state.lanes)
        if len(state.lanes) >= window.max_lanes:
            lane, priority, _ = state.lanes[-1]
            self._position = (lane, priority)
            return
        self._position = None
        self._round_ended = state.now
        self._is_partial = self._lanes_in_round >= MAX_LANES

    def remember(self, view: LaneView) -> None:
        """Keep the due lanes for the next claim. Start a round if lanes may be missing."""
        opened = self._closed - view.closed_keys
        self._closed = view.closed_keys
        self._round_requested |= bool(opened)
        self.reads_on = False
        if self._is_partial:
            self._remember_some(view)
        else:
            self.expected = view.due[:MAX_LANES] or self.expected

    def _remember_some(self, view: LaneView) -> None:
        now = view.state.now
        due = view.due_in_turn()
        view.due = self._first_choice(due)
        max_known = max(MAX_KNOWN, self._slots)
        self.expected = due[:max_known]
        self._held = view.held_in_turn()[:MAX_KNOWN_HELD]
        self._lanes_dropped |= len(due) > max_known
        has_few = len(due) < max_known // 2
        if self._position is None and self._needs_round(now, has_few=has_few):
            self._position = FIRST_LANE
            self._lanes_in_round = 0
            self._round_requested = False
            self._lanes_dropped = False
        is_behind = self._ready_since < now - COMMIT_DELAY
        self.reads_on = is_behind or (has_few and self._position is not None)
        if self.reads_on:
            self._unread_at = now

    def _first_choice(self, lanes: Sequence[LaneRef]) -> list[LaneRef]:
        """Return the lanes that a claim chooses from: more than it has slots."""
        return [*lanes[: MIN_CHOICE + 2 * self._slots]]

    def _needs_round(self, now: Micros, *, has_few: bool) -> bool:
        if self._round_requested or (has_few and self._lanes_dropped):
            return True
        return abs(now - self._round_ended) >= ROUND_INTERVAL  # a clock may be set back

    def wake_times(self) -> list[Micros]:
        """Return when to claim again because of lanes that were not read."""
        if not self._is_partial or self._unread_at is None:
            return []
        return [self._unread_at]


def _merge(found: Iterable[LaneEntry]) -> list[LaneEntry]:
    """Return each lane once, with the earliest time found."""
    earliest: dict[LaneRef, Micros] = {}
    for lane, priority, at in found:
        earliest[lane, priority] = min(at, earliest.get((lane, priority), at))
    return [(lane, priority, at) for (lane, priority), at in earliest.items()]

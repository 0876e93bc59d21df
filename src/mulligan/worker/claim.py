"""Claim due jobs for one worker: choose open lanes, respect limits, and take leases.

`Claimer.claim` runs inside the caller's transaction. It reads which lanes are due, opens or probes
what a circuit breaker holds, and then takes jobs. `guards/lanes.pick` decides between lanes; within
one lane the statement orders by run_at and id. Two shortcuts avoid reading every lane: a claim that
took everything it wanted remembers where it stopped (`_resume_positions`), and lanes without any
limit can be read and claimed in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Gate, Lane, Limit, LimitKey, PreviousAttempts
from mulligan.failures.codes import dependency_unavailable
from mulligan.guards.breaker import is_probe_due
from mulligan.guards.capacity import LOCK_RETRY, SLOTS, Capacity
from mulligan.guards.lanes import (
    Candidate,
    allot_retry_slots,
    find_closed_keys,
    find_open_lanes,
    interleave_owners,
    is_closed,
    pick,
)
from mulligan.guards.limits import merge_limits, owner_share, tighten_limit
from mulligan.guards.observer import ENDPOINT_BREAKER, DependencyObserver
from mulligan.guards.probes import Prober, expire_hold
from mulligan.guards.state import GuardState
from mulligan.manifest.declared import (
    breaker_configs,
    load_active_manifests,
    manifest_limits,
    merge_breaker_configs,
    merge_declared_limits,
)
from mulligan.manifest.specs import DELIVERY_QUEUE, ENDPOINT_PREFIX, Manifest
from mulligan.storage.base import ClaimPosition, ClaimState, Transaction, UnlimitedLanes
from mulligan.worker.queries import WorkerQueries

MAX_CANDIDATES = 2000  # candidates of fair or limited lanes in one claim
MAX_UNLIMITED_LANES = 50  # lanes to read and claim in one statement
MAX_FAIL_FAST = 100  # jobs of one lane that a fail-fast breaker ends in one claim
RAMP_TICK = 0.1  # seconds over which the starts of a ramp are spread
MIN_BULK_CLAIM = 100  # smaller claims read all lanes again instead of resuming
RESUME_FOR = SECOND // 4  # how long a claim may resume from a position without reading other lanes
DECLARED_LIMITS_TTL = 5 * SECOND  # how long limits from stored manifests are cached

LaneRef = tuple[str, int]  # lane key, priority


@dataclass
class Claimer:
    """Claims jobs for one worker. Remembers fairness between claims."""

    worker: str
    kinds: frozenset[str]
    queues: frozenset[str] | None = None
    history_kinds: frozenset[str] = frozenset()  # kinds that read their previous attempts
    app_limits: Mapping[LimitKey, Limit] = field(default_factory=dict)  # from this worker's app
    observer: DependencyObserver = field(default_factory=DependencyObserver)
    settle_endings: Callable[[Transaction, Sequence[Ending]], None] = lambda *_: None
    retry_credit: float = field(default=0.0)  # slots that retries have earned and not used
    _last_share: dict[str, str] = field(default_factory=dict)  # fair queue → share served last
    _declared: Mapping[LimitKey, Limit] = field(default_factory=dict)
    _declared_at: Micros = 0
    # Lanes that were due alone, or as a pair of fresh work and retries, and that no declaration
    # limits; newest first. Valid only for the kinds and declarations in `_unlimited_basis`.
    _unlimited: tuple[str, ...] = ()
    _unlimited_basis: tuple[object, object] = ((), ())
    claimed_all: bool = False  # the last claim filled every free slot
    # Where the last claim stopped in its lane, or in its two lanes: fresh work, then retries.
    _resume_positions: tuple[ClaimPosition, ...] = ()
    _resume_state: ClaimState | None = None  # lanes as they were when nothing else was due
    _reached: tuple[Micros, ...] = ()  # `run_at` of the last job taken, fresh work then retries

    def __post_init__(self) -> None:
        self._prober = Prober(self.worker, self.observer, {})

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds, limits and breaker terms of the app as it is now."""
        self.kinds = frozenset(manifest.kinds)
        self.history_kinds = frozenset(
            name for name, spec in manifest.kinds.items() if spec.needs_history
        )
        self.app_limits = manifest_limits(manifest)
        self.observer.declared = breaker_configs(manifest)
        self._prober.timeouts = {name: spec.timeout for name, spec in manifest.kinds.items()}

    def claim(
        self, unit: Transaction, free: int, *, hinted: bool = False, slots: SlotLimits | None = None
    ) -> ClaimResult:
        """Claim up to `free` jobs, and deliveries in the slots reserved for them.

        `hinted`: a job was probably enqueued just now, so try to claim with the first statement.
        """
        self._reached = ()
        state, leases, rest = self._read_lanes(
            unit, free, slots, hopeful=hinted or self.claimed_all
        )
        # A claim that combines a resumed part with newly read lanes cannot be resumed.
        resumable = not leases or rest == 0
        # After a hint a job is waiting, so refresh the cache early in claims that are not hinted.
        cache_ttl = DECLARED_LIMITS_TTL if hinted else DECLARED_LIMITS_TTL - SECOND
        self._refresh_declared(unit, state.now, cache_ttl)
        guards = self.observer.load_guards(state.guards)
        view = LaneView(state, self._closed_gates(unit, state, free), self.queues, self.kinds)
        self.observer.waiting = view.waiting_dependencies()
        deliveries, due = _split_if_reserved(view.due, slots)
        rate_allows_at = None
        if rest > 0 and (state.guards or due):
            probes = self._serve_breakers(unit, view, guards)
            leases = leases + probes
            rest -= len(probes)
            if due and rest > 0:
                taken, rate_allows_at = self._take(unit, due, rest, state, guards, slots)
                leases = leases + taken
        self.claimed_all = 0 < free <= len(leases)
        can_resume = self.claimed_all and resumable
        self._resume_positions = self._next_positions(state, due, leases) if can_resume else ()
        if slots is not None and slots.deliveries > 0:
            leases = leases + self._take_deliveries(
                unit, view, deliveries, guards, slots, idle=free > 0
            )
        return self._result(unit, view, guards, leases, rate_allows_at)

    def _result(
        self,
        unit: Transaction,
        view: LaneView,
        guards: Mapping[str, GuardState],
        leases: list[Lease],
        rate_allows_at: Micros | None,
    ) -> ClaimResult:
        wake_times = view.wake_times(guards)
        if rate_allows_at is not None:
            wake_times.append(rate_allows_at)
        actionable = [key for key in guards if self._has_breaker_work(unit, view, key, guards)]
        deliveries_due = bool(split_deliveries(view.due)[0]) or any(
            key.startswith(ENDPOINT_PREFIX) for key in actionable
        )
        return ClaimResult(
            leases,
            view.state.now,
            min(wake_times, default=None),
            bool(view.due or actionable),
            deliveries_due,
        )

    def _take_deliveries(
        self,
        unit: Transaction,
        view: LaneView,
        due: Sequence[LaneRef],
        guards: Mapping[str, GuardState],
        slots: SlotLimits,
        *,
        idle: bool,
    ) -> list[Lease]:
        """Claim deliveries in their reserved slots.

        While all other slots are taken, probes of delivery endpoints run in these slots too.
        """
        endpoints: dict[str, GuardState] = {}
        if not idle:
            endpoints = {
                key: guard for key, guard in guards.items() if key.startswith(ENDPOINT_PREFIX)
            }
        leases = self._serve_breakers(unit, view, endpoints)
        rest = slots.deliveries - len(leases)
        if not due or rest <= 0:
            return leases
        reserved = slots._replace(
            free=rest, per_dependency=ENDPOINT_BREAKER.max_concurrency or rest
        )
        return leases + self._take(unit, due, rest, view.state, guards, reserved)[0]

    def _closed_gates(self, unit: Transaction, state: ClaimState, free: int) -> list[Gate]:
        """Return the closed gates. End the expired hold of a dependency by starting its ramp.

        An expired hold that another worker is ending at the same time counts as closed for now.
        """
        closed = [gate for gate in state.gates if is_closed(gate, state.now)]
        if free <= 0:
            return closed
        for gate in state.gates:
            if gate.scope != "dependency" or is_closed(gate, state.now):
                continue
            if not expire_hold(unit, self.observer, gate, state.now):
                closed.append(gate._replace(until=state.now + LOCK_RETRY))
        return closed

    # --- Circuit breakers: probes and fail-fast endings ---

    def _serve_breakers(
        self, unit: Transaction, view: LaneView, guards: Mapping[str, GuardState]
    ) -> list[Lease]:
        """Start due probes of dependencies that are down, and end jobs that must fail fast."""
        probes = []
        for key, guard in guards.items():
            if not self._has_breaker_work(unit, view, key, guards):
                continue
            lanes = self._probe_lanes(view, key, guards)
            probe = self._prober.claim_probe(unit, key, lanes, view.state.now)
            if probe is not None:
                probes.append(probe)
            if self._fails_fast(key):
                self._fail_fast(unit, key, guard, view.due_lanes_behind(key))
        return probes

    def _has_breaker_work(
        self, unit: Transaction, view: LaneView, key: str, guards: Mapping[str, GuardState]
    ) -> bool:
        """True if a dependency is down and can be probed now, or has jobs that must fail fast."""
        guard = guards[key]
        now = view.state.now
        if not guard.is_down(now):
            return False
        if self._fails_fast(key) and view.due_lanes_behind(key):
            return True
        if not is_probe_due(guard, now):
            return False
        if not self._has_probe_function(key) and not self._probe_lanes(view, key, guards):
            return False
        return self._prober.is_probe_due(unit, guard, now)

    def _probe_lanes(
        self, view: LaneView, key: str, guards: Mapping[str, GuardState]
    ) -> list[LaneRef]:
        """Return due lanes whose jobs can probe `key`.

        Nothing else may hold such a lane, except dependencies that jobs may probe now as well.
        """
        now = view.state.now
        also_probed = {
            other
            for other, guard in guards.items()
            if is_probe_due(guard, now) and not self._probes_by_function(other)
        }
        return view.due_lanes_behind(key, also_probed)

    def _probes_by_function(self, key: str) -> bool:
        return self.observer.config_for(key).probe

    def _fails_fast(self, key: str) -> bool:
        return self.observer.config_for(key).mode == "fail_fast"

    def _has_probe_function(self, key: str) -> bool:
        """True if this worker's app declares a probe function for the dependency."""
        terms = self.observer.declared.get(key)
        return terms is not None and terms.probe

    def _fail_fast(
        self, unit: Transaction, key: str, guard: GuardState, lanes: Sequence[LaneRef]
    ) -> None:
        """Claim the due jobs behind a fail-fast breaker and end them at once."""
        failure = dependency_unavailable(key, guard.reason)
        outcome = Outcome(Ended.FAILED, failure=failure, final=True)
        with unit.atomically():
            endings = [
                Ending(lease, outcome)
                for lane in lanes
                for lease in unit.claim_from_lane(self.worker, *lane, MAX_FAIL_FAST)
            ]
            self.settle_endings(unit, endings)

    # --- Reading the lanes, and claiming with the same statement where that is likely to pay ---

    def _read_lanes(
        self, unit: Transaction, free: int, slots: SlotLimits | None, *, hopeful: bool
    ) -> tuple[ClaimState, list[Lease], int]:
        """Return the lanes, the leases already taken, and how many more are wanted.

        Claiming with the first statement costs more than reading, so it is tried only if `hopeful`.
        """
        if not hopeful or free <= 0 or self._unlimited_basis != (self.kinds, self._declared):
            return unit.read_claim_state(), [], free
        lanes = [
            lane
            for lane in self._unlimited
            if slots is None or not self._slot_bounds([Lane.parse(lane)], free, slots)
        ]
        if not lanes:
            return unit.read_claim_state(), [], free
        can_resume = all(position.lane in lanes for position in self._resume_positions)
        if self._resume_state is not None and self._resume_positions and can_resume:
            leases = self._resume(unit, free)
            if len(leases) == free:
                return self._resume_state._replace(now=leases[0].started_at), leases, 0
            if leases:
                return unit.read_claim_state(), leases, free - len(leases)
        unlimited = UnlimitedLanes(
            lanes,
            self._declared_at - DECLARED_LIMITS_TTL,
            self._declared_at + DECLARED_LIMITS_TTL,
        )
        if not self.claimed_all:  # an idle worker was hinted: most likely about one job
            state, leases = unit.read_state_and_claim_one(self.worker, unlimited)
            return state, leases, free - len(leases)
        state, leases = unit.read_state_and_claim(self.worker, unlimited, free)
        return state, leases, 0 if leases else free

    def _resume(self, unit: Transaction, free: int) -> list[Lease]:
        """Continue where the last claim stopped."""

        def take(position: ClaimPosition, most: int) -> list[Lease]:
            return unit.claim_from_position(self.worker, position, most)

        if len(self._resume_positions) == 1:
            return take(self._resume_positions[0], free)
        return self._take_by_share(self._resume_positions, free, take)

    def _take_by_share(
        self,
        pair: Sequence[ClaimPosition],
        free: int,
        take: Callable[[ClaimPosition, int], list[Lease]],
    ) -> list[Lease]:
        """Take from a lane of fresh work and a lane of retries, each its share.

        Compares no single jobs. Returns less than `free` if one of the lanes runs out.
        """
        fresh, retries = pair
        retries_first = (retries.priority, retries.run_at) < (fresh.priority, fresh.run_at)
        retry_slots, credit = allot_retry_slots(free, self.retry_credit, first=retries_first)
        retried = take(retries, retry_slots) if retry_slots else []
        started = take(fresh, free - len(retried))
        if started or retried:
            both_full = len(retried) == retry_slots and len(started) == free - retry_slots
            self.retry_credit = credit if both_full else 0.0
        self._reached = (
            max([fresh.run_at, *[lease.run_at for lease in started]]),
            max([retries.run_at, *[lease.run_at for lease in retried]]),
        )
        return started + retried

    def _next_positions(
        self, state: ClaimState, due: Sequence[LaneRef], leases: Sequence[Lease]
    ) -> tuple[ClaimPosition, ...]:
        """Return where the next claim may resume; empty if it must read all lanes.

        Other lanes are read again after `RESUME_FOR`. So are jobs that became due before the
        position: one that was released, or one that was enqueued in a slow transaction.
        """
        lanes = due if len(due) == 1 else _fresh_and_retry_pair(due)
        reached = self._reached if len(lanes) > 1 else (max([lease.run_at for lease in leases]),)
        if len(leases) < MIN_BULK_CLAIM or not lanes or not reached:
            return ()
        if any(lane not in self._unlimited for lane, _ in lanes):
            return ()
        if not _nothing_held(state):
            return ()
        same = [(position.lane, position.priority) for position in self._resume_positions] == [
            *lanes
        ]
        if not same or self._resume_state is None or state.lanes is not self._resume_state.lanes:
            self._resume_state = state
            self._resume_positions = self._head_positions(state, lanes)
        return tuple(
            position._replace(run_at=at)
            for position, at in zip(self._resume_positions, reached, strict=True)
        )

    def _head_positions(
        self, state: ClaimState, lanes: Sequence[LaneRef]
    ) -> tuple[ClaimPosition, ...]:
        """Return positions at the first due job of each lane."""
        until = min(state.now + RESUME_FOR, self._declared_at + DECLARED_LIMITS_TTL)
        heads = {(lane, priority): run_at for lane, priority, run_at in state.lanes}
        return tuple(ClaimPosition(*lane, heads[lane], state.now, until) for lane in lanes)

    def _remember_unlimited(self, lane: str) -> None:
        """Remember a lane that was due alone, or as one of a pair, if no declaration limits it.

        A lane with a declared limit never qualifies, even while an operator has lifted the limit.
        """
        parsed = Lane.parse(lane)
        limited = merge_limits(self._declared, {})
        if any(key in limited for key in parsed.limit_keys) or _endpoint_limits(parsed.limit_keys):
            return
        if parsed.retry and parsed.uses:  # the retry budget of a dependency limits it
            return
        basis = (self.kinds, self._declared)
        others: list[str] = []
        if self._unlimited_basis == basis:
            others = [other for other in self._unlimited if other != lane]
        self._unlimited = (lane, *others[: MAX_UNLIMITED_LANES - 1])
        self._unlimited_basis = basis

    def _refresh_declared(self, unit: Transaction, now: Micros, ttl: Micros) -> None:
        """Read the limits and breaker terms of all stored manifests, at most once per `ttl`."""
        if abs(now - self._declared_at) > ttl:
            manifests = load_active_manifests(unit, now)
            self._declared = {**self.app_limits, **merge_declared_limits(manifests)}
            self.observer.declared_elsewhere = merge_breaker_configs(manifests)
            self._declared_at = now

    # --- Taking jobs from due lanes ---

    def _take(
        self,
        unit: Transaction,
        due: Sequence[LaneRef],
        free: int,
        state: ClaimState,
        guards: Mapping[str, GuardState],
        slots: SlotLimits | None,
    ) -> tuple[list[Lease], Micros | None]:
        """Return the leases, and when a rate limit that stopped the claim allows more."""
        lanes = [Lane.parse(lane) for lane, _ in due]
        limits = self._limits_on(lanes, state, guards)
        budgets = self._budget_bounds(lanes, free, state.now)
        bounds = self._slot_bounds(lanes, free, slots) | budgets
        if limits or bounds:
            with unit.atomically():
                capacity = Capacity(unit, limits, state.now, bounds)
                leases, rate_allows_at = self._take_within(unit, due, free, capacity)
            wake_times = [self.observer.next_retry_at(key, state.now) for _, key in budgets]
            wake_times.append(rate_allows_at)
            return leases, min((at for at in wake_times if at is not None), default=None)
        leases = self._take_unlimited(unit, due, free, state)
        self.observer.count_started(leases)
        return leases, None

    def _limits_on(
        self, lanes: Sequence[Lane], state: ClaimState, guards: Mapping[str, GuardState]
    ) -> dict[LimitKey, Limit]:
        """Return the limits that apply to these lanes: declared, set by operators, and guards'."""
        keys = {key for lane in lanes for key in lane.limit_keys}
        limits = {**_endpoint_limits(keys), **merge_limits(self._declared, state.limits)}
        all_limits = with_guard_limits(limits, guards)
        return {key: limit for key, limit in all_limits.items() if key in keys}

    def _take_unlimited(
        self, unit: Transaction, due: Sequence[LaneRef], free: int, state: ClaimState
    ) -> list[Lease]:
        if len(due) == 1:
            self._remember_unlimited(due[0][0])
            return unit.claim_from_lane(self.worker, *due[0], free)
        pair = _fresh_and_retry_pair(due) if free >= MIN_BULK_CLAIM else []
        if pair:
            return self._take_pair(unit, pair, free, state)
        fresh, retries = self._candidates(unit, due, free * unit.candidates_per_slot)
        chosen, _ = pick(fresh, retries, free * unit.candidates_per_slot, self.retry_credit)
        leases = unit.claim_jobs(self.worker, chosen, free)
        self._record_fairness(fresh, retries, leases)
        return leases

    def _take_pair(
        self, unit: Transaction, pair: Sequence[LaneRef], free: int, state: ClaimState
    ) -> list[Lease]:
        """Take many jobs from fresh work and retries by share, without ordering single jobs."""
        for lane, _ in pair:
            self._remember_unlimited(lane)

        def take(position: ClaimPosition, most: int) -> list[Lease]:
            return unit.claim_from_lane(self.worker, position.lane, position.priority, most)

        leases = self._take_by_share(self._head_positions(state, pair), free, take)
        short = free - len(leases)
        if short:
            leases = leases + unit.claim_from_lane(self.worker, *pair[1], short)
        return leases

    def _slot_bounds(
        self, lanes: Sequence[Lane], free: int, slots: SlotLimits | None
    ) -> dict[LimitKey, int]:
        """Return how many jobs with dependencies this worker may start.

        They are never claimed ahead of a free slot: they would start after the dependency went
        down. No dependency gets all slots: one that hangs would stop every other job.
        """
        used = {key for lane in lanes if lane.uses for key in lane.uses.split(",")}
        if not used or slots is None:
            return {}
        bounds = {}
        for key in used - slots.used_by_all:
            left = slots.per_dependency - slots.in_use.get(key, 0)
            if left < free:
                bounds["here", key] = left
        if slots.free < free:
            bounds[SLOTS] = slots.free
        return bounds

    def _budget_bounds(self, lanes: Sequence[Lane], free: int, now: Micros) -> dict[LimitKey, int]:
        """Return how many retries the budget of each dependency allows, where that is few."""
        used = {key for lane in lanes if lane.retry and lane.uses for key in lane.uses.split(",")}
        bounds = {}
        for key in used:
            left = self.observer.retries_left(key, now)
            if left is not None and left < free:
                bounds["budget", key] = left
        return bounds

    def _take_within(
        self, unit: Transaction, due: Sequence[LaneRef], free: int, capacity: Capacity
    ) -> tuple[list[Lease], Micros | None]:
        """Take jobs that every limit on their way admits."""
        startable = [lane for lane in due if capacity.available(lane[0]) != 0]
        fresh, retries = self._candidates(
            unit, startable, free * unit.candidates_per_slot, capacity
        )
        by_id = {candidate[2]: candidate for candidate in (*fresh, *retries)}
        chosen, _ = pick(fresh, retries, len(by_id), self.retry_credit)
        admitted = capacity.admit(by_id[job_id] for job_id in chosen)
        leases = unit.claim_jobs(self.worker, [candidate[2] for candidate in admitted], free)
        capacity.spend(unit, leases)
        self.observer.count_started(leases)
        self._record_fairness(fresh, retries, leases)
        return leases, capacity.next_start_at()

    def _candidates(
        self,
        unit: Transaction,
        due: Sequence[LaneRef],
        wanted: int,
        capacity: Capacity | None = None,
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return candidates of fresh work and of retries, each in order; fair queues by owner."""
        groups = self._group_by_quota(due, wanted, capacity)
        fresh = self._read_candidates(unit, groups, "|0", wanted)
        retries = self._read_candidates(unit, groups, "|1", wanted)
        return fresh, retries

    def _group_by_quota(
        self, due: Sequence[LaneRef], wanted: int, capacity: Capacity | None
    ) -> dict[int | None, list[LaneRef]]:
        """Group lanes by how many candidates of each to read at most; None: no quota.

        A quota keeps a lane with many jobs from hiding the others.
        """
        fair_lanes = sum(1 for lane, _ in due if Lane.parse(lane).share)
        fair_quota = max(2, min(wanted, MAX_CANDIDATES // fair_lanes)) if fair_lanes else None
        groups: dict[int | None, list[LaneRef]] = {}
        for lane in due:
            quotas = []
            if fair_quota is not None and Lane.parse(lane[0]).share:
                quotas.append(fair_quota)
            allowed = None if capacity is None else capacity.available(lane[0])
            if allowed is not None:
                quotas.append(allowed)
            quota = min(*quotas, wanted) if quotas else None
            groups.setdefault(quota, []).append(lane)
        return groups

    def _read_candidates(
        self,
        unit: Transaction,
        groups: Mapping[int | None, Sequence[LaneRef]],
        suffix: str,
        wanted: int,
    ) -> list[Candidate]:
        """Read candidates of the lanes whose key ends with `suffix` (fresh `|0`, retries `|1`)."""
        found: list[Candidate] = []
        for quota, lanes in groups.items():
            most = wanted if quota is None else 2 * MAX_CANDIDATES
            matching = [lane for lane in lanes if lane[0].endswith(suffix)]
            found += unit.list_due_jobs(matching, most, each=quota)
        if list(groups) == [None]:
            return found
        # Workers start with different owners: a share of their own id.
        return interleave_owners(sorted(found), self._last_share, owner_share(self.worker))

    def _record_fairness(
        self, fresh: Sequence[Candidate], retries: Sequence[Candidate], leases: Sequence[Lease]
    ) -> None:
        """Update the credit of retries and the last served share, counting only taken jobs."""
        _, self.retry_credit = pick(fresh, retries, len(leases), self.retry_credit)
        lanes = {candidate[2]: candidate[3] for candidate in (*fresh, *retries)}
        taken = [Lane.parse(lanes[lease.id]) for lease in leases if lease.id in lanes]
        self._last_share |= {lane.queue: lane.share for lane in taken if lane.share}


def create_claimer(
    worker: str, manifest: Manifest, queues: frozenset[str] | None = None
) -> Claimer:
    """Create the claimer of a worker.

    Every worker also serves the delivery queue: if all workers were limited to other queues,
    nobody would send notifications.
    """
    served = None if queues is None else queues | {DELIVERY_QUEUE}
    claimer = Claimer(worker, frozenset(), served)
    claimer.apply_manifest(manifest)
    return claimer


def _nothing_held(state: ClaimState) -> bool:
    """True if no guard, limit or gate holds anything, so that a claim can be resumed."""
    if state.guards or state.limits:
        return False
    return not any(gate.scope == "dependency" or is_closed(gate, state.now) for gate in state.gates)


def _fresh_and_retry_pair(due: Sequence[LaneRef]) -> list[LaneRef]:
    """Return fresh work and retries if exactly these two lanes are due and neither is fair."""
    if len(due) != 2:
        return []
    pair = sorted(due, key=lambda lane: lane[0][-1])
    fresh = Lane.parse(pair[0][0])
    retries = Lane.parse(pair[1][0])
    if fresh.retry or not retries.retry or fresh.share or retries.share:
        return []
    return pair


def split_deliveries(due: Sequence[LaneRef]) -> tuple[list[LaneRef], list[LaneRef]]:
    """Split due lanes into those of the delivery queue and all others."""
    deliveries = [lane for lane in due if lane[0].startswith(f"{DELIVERY_QUEUE}|")]
    if not deliveries:
        return [], list(due)
    return deliveries, [lane for lane in due if lane not in deliveries]


def _split_if_reserved(
    due: list[LaneRef], slots: SlotLimits | None
) -> tuple[list[LaneRef], list[LaneRef]]:
    """Split off deliveries if they have slots of their own."""
    return ([], due) if slots is None else split_deliveries(due)


class SlotLimits(NamedTuple):
    """Slots of this worker for jobs that use dependencies, and for deliveries."""

    free: int  # free slots, without prefetched jobs
    per_dependency: int  # most slots for jobs that use the same dependency
    in_use: Mapping[str, int]  # taken slots by dependency
    used_by_all: AbstractSet[str] = frozenset()  # dependencies of every kind: may take all slots
    deliveries: int = 0  # slots reserved for deliveries, in addition to all others


@dataclass
class LaneView:
    """Lanes that wait for one worker, seen through the closed gates."""

    state: ClaimState
    closed_gates: Sequence[Gate]
    queues: frozenset[str] | None
    kinds: frozenset[str]

    def __post_init__(self) -> None:
        self._lanes = [
            (Lane.parse(key), priority, run_at) for key, priority, run_at in self.state.lanes
        ]
        self._down = find_closed_keys(self.closed_gates, self.state.now)["dependency"]
        self._claimable = self._open_lanes(self.closed_gates)
        now = self.state.now
        self.due = [(key, priority) for key, priority, run_at in self._claimable if run_at <= now]

    def _open_lanes(self, closed_gates: Sequence[Gate]) -> list[tuple[str, int, Micros]]:
        lanes = ((lane, priority) for lane, priority, _ in self._lanes)
        is_open = set(find_open_lanes(lanes, closed_gates, self.state.now, self.queues, self.kinds))
        return [
            (lane.key, priority, run_at)
            for lane, priority, run_at in self._lanes
            if (lane.key, priority) in is_open
        ]

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
        other_gates = [gate for gate in self.closed_gates if gate.scope != "dependency"]
        for lane, priority, run_at in self._open_lanes(other_gates):
            if run_at > self.state.now:
                continue
            down = frozenset(self._down.intersection(Lane.parse(lane).uses.split(",")))
            for key in down:
                held.setdefault(key, []).append(((lane, priority), down))
        return held

    def waiting_dependencies(self) -> frozenset[str]:
        """Return dependencies of jobs of any kind that are overdue and that nothing holds.

        A ramp waits for them. It must not wait for jobs of a paused queue.
        """
        overdue_before = self.state.now - SECOND
        overdue = [
            (lane, priority)
            for lane, priority, run_at in self._lanes
            if lane.uses and run_at < overdue_before
        ]
        if not overdue:
            return frozenset()
        kinds = frozenset(lane.kind for lane, _, _ in self._lanes)
        claimable = find_open_lanes(overdue, self.closed_gates, self.state.now, None, kinds)
        return frozenset(key for lane, _ in claimable for key in Lane.parse(lane).uses.split(","))

    def wake_times(self, guards: Mapping[str, GuardState]) -> list[Micros]:
        """Return when the next jobs become due, gates open and probes are allowed."""
        now = self.state.now
        times = [run_at for _, _, run_at in self._claimable if run_at > now]
        times += [
            gate.until for gate in self.closed_gates if gate.until is not None and gate.until > now
        ]
        times += [
            guard.probe_at for guard in guards.values() if guard.open and guard.probe_at > now
        ]
        return times


def _endpoint_limits(keys: Iterable[LimitKey]) -> dict[LimitKey, Limit]:
    """Limit concurrent deliveries per endpoint, so that one that hangs holds only some slots."""
    return {
        key: Limit(ENDPOINT_BREAKER.max_concurrency)
        for key in keys
        if key[1].startswith(ENDPOINT_PREFIX)
    }


def with_guard_limits(
    limits: Mapping[LimitKey, Limit], guards: Mapping[str, GuardState]
) -> dict[LimitKey, Limit]:
    """Tighten limits by what guards say: the rate of a ramp, and a reduced concurrency."""
    tightened = dict(limits)
    for key, guard in guards.items():
        rate = None if guard.ramp is None else guard.ramp.rate
        limit = tighten_limit(
            tightened.get(("dependency", key), Limit()),
            guard.throttle.limit,
            rate,
            1 + (rate or 0.0) * RAMP_TICK,
        )
        if limit != Limit():
            tightened["dependency", key] = limit
    return tightened


class ClaimResult(NamedTuple):
    """Leases of one claim, and when to claim again."""

    leases: list[Lease]
    now: Micros
    next_due: Micros | None  # when a job becomes due, a gate opens or a rate allows more
    more_due: bool  # lanes were due: there may be more than was taken
    deliveries_due: bool = False  # some of them are deliveries


def load_previous_attempts(
    unit: Transaction, leases: Sequence[Lease], history_kinds: frozenset[str] | None = None
) -> dict[str, PreviousAttempts]:
    """Read checkpoints and the last outcome of jobs that ran before, by job id.

    `history_kinds`: kinds whose handlers can read them; None: all kinds.
    """
    ids = [
        lease.id
        for lease in leases
        if lease.token > 1 and (history_kinds is None or lease.kind in history_kinds)
    ]
    return WorkerQueries(unit).get_previous_attempts(ids) if ids else {}

"""Claim due jobs for one worker: choose open lanes, respect limits, and take leases.

A claim makes two round trips. `read_claim_state` reads the clock, gates, guards, limits and lanes,
and with them the due jobs of the lanes that this worker expects to be due. `guards/lanes.pick`
chooses among these jobs, and `claim_candidates` locks them, checks them again and takes them. More
statements are needed only if other lanes are due than expected, a limit applies to them, or a
breaker needs a probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Candidate, ClaimState, Lane, LaneRef, Limit, LimitKey
from mulligan.guards.capacity import (
    Demand,
    LockedLimits,
    SlotLimits,
    limits_in_force,
    retry_bounds,
    split_demand,
)
from mulligan.guards.lanes import Capacity, DueJobs, LaneScan, LaneView, is_closed, pick, read_depth
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.queries import GuardQueries
from mulligan.guards.state import GuardState
from mulligan.manifest.declared import DeclarationCache, breaker_configs, manifest_limits
from mulligan.manifest.specs import DELIVERY_QUEUE, ENDPOINT_PREFIX, Manifest
from mulligan.releases.canary import Canary
from mulligan.storage.base import Transaction
from mulligan.worker.probes import Prober, claim_trials, open_expired_holds
from mulligan.worker.queries import LeaseQueries

DECLARATIONS_TTL = 5 * SECOND  # how long limits from stored manifests are cached


class ClaimResult(NamedTuple):
    """Leases of one claim, and when to claim again."""

    leases: list[Lease]
    now: Micros
    next_due: Micros | None  # when a job becomes due, a gate opens or a rate allows more
    more_due: bool  # lanes were due: there may be more than was taken
    deliveries_due: bool = False  # some of them are deliveries


@dataclass
class Claimer:
    """Claims jobs for one worker. Remembers fairness between claims."""

    worker: str
    kinds: frozenset[str]
    queues: frozenset[str] | None = None
    history_kinds: frozenset[str] = frozenset()  # kinds that read their previous attempts
    app_limits: Mapping[LimitKey, Limit] = field(default_factory=dict)  # from this worker's app
    observer: DependencyObserver = field(default_factory=DependencyObserver)
    release: str = ""
    canary: Canary | None = None
    claimed_all: bool = False  # the last claim filled every free slot
    scan: LaneScan = field(default_factory=LaneScan)
    _retry_credit: float = 0.0  # slots that retries have earned and not used
    _last_share: dict[str, str] = field(default_factory=dict)  # fair queue → share served last
    _declared: DeclarationCache = field(default_factory=DeclarationCache)

    def __post_init__(self) -> None:
        self.prober = Prober(self.worker, self.observer)

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds, limits and breaker terms of the app as it is now."""
        self.kinds = frozenset(manifest.kinds)
        self.history_kinds = frozenset(
            name for name, spec in manifest.kinds.items() if spec.needs_history
        )
        self.app_limits = manifest_limits(manifest)
        self.observer.declared = breaker_configs(manifest)
        self.prober.apply_manifest(manifest)
        self.scan.request_round()

    def claim(self, tx: Transaction, free: int, *, slots: SlotLimits | None = None) -> ClaimResult:
        """Claim up to `free` jobs, and deliveries in the slots reserved for them."""
        reserved = 0 if slots is None else slots.deliveries
        due_jobs = DueJobs(GuardQueries(tx).list_due_jobs)
        state = self.scan.read(GuardQueries(tx), due_jobs, max(free, 0) + reserved)
        guards = self.observer.load_guards(state.guards)
        view = self._view_lanes(tx, state, free)
        self.scan.remember(view)
        self._refresh_declarations(tx, view)
        may_probe = self.canary is None or not self.canary.is_limiting
        breaker_keys = self.prober.find_work(tx, view, guards) if guards and may_probe else []
        endpoints = [key for key in breaker_keys if key.startswith(ENDPOINT_PREFIX)]
        probes: list[Lease] = []
        if free > 0 and view.state.guards and may_probe:
            probes = claim_trials(tx, self.worker, view)
        if free > len(probes) and breaker_keys:
            probes += self.prober.serve(tx, view, guards, breaker_keys)
        elif reserved > 0 and endpoints:  # all other slots are taken: probe in those of deliveries
            probes = self.prober.serve(tx, view, guards, endpoints)
            reserved -= len(probes)
        demands = split_demand(view, free - len(probes), reserved, slots)
        taken, limited_until = self._take(tx, demands, state, guards, due_jobs)
        self.claimed_all = 0 < free <= len(probes) + len(taken)
        return ClaimResult(
            probes + taken,
            state.now,
            min([*view.wake_times(guards), *limited_until, *self.scan.wake_times()], default=None),
            more_due=bool(view.due or breaker_keys),
            deliveries_due=bool(view.due_in(DELIVERY_QUEUE) or endpoints),
        )

    def _view_lanes(self, tx: Transaction, state: ClaimState, free: int) -> LaneView:
        """Return the lanes behind the closed gates. A claim ends the holds that have expired."""
        closed = [gate for gate in state.gates if is_closed(gate, state.now)]
        if free > 0 and len(closed) < len(state.gates):
            closed += open_expired_holds(tx, self.observer, state.gates, state.now)
        view = LaneView(state, closed, self.queues, self.kinds, self.release)
        self.observer.waiting = view.waiting_dependencies()
        return view

    def _refresh_declarations(self, tx: Transaction, view: LaneView) -> None:
        """Read what all apps declare, if possible in a claim for which no job waits."""
        max_age = DECLARATIONS_TTL if view.due else DECLARATIONS_TTL - SECOND
        now = view.state.now
        if abs(now - self._declared.read_at) > max_age:
            self._declared.refresh(tx, now)
            self.observer.declared_elsewhere = self._declared.breakers

    def _take(
        self,
        tx: Transaction,
        demands: Sequence[Demand],
        state: ClaimState,
        guards: Mapping[str, GuardState],
        due_jobs: DueJobs,
    ) -> tuple[list[Lease], list[Micros]]:
        """Return the leases, and when limits that stopped the claim allow more."""
        lanes = [Lane.parse(lane) for demand in demands for lane, _ in demand.lanes]
        keys = {key for lane in lanes for key in lane.limit_keys}
        declared = {**self.app_limits, **self._declared.limits}
        limits = limits_in_force(keys, declared, state.limits, guards)
        budgets = retry_bounds(lanes, self.observer, state.now)
        with tx.atomically() if limits or self.canary else nullcontext():
            locked = LockedLimits(tx, limits, state.now)
            left = locked.left | budgets
            if self.canary is not None:
                left |= self.canary.lock(tx, {lane.kind for lane in lanes})
            picked: list[Candidate] = []
            for demand in demands:
                picked += self._pick(due_jobs, demand, left)
            leases = LeaseQueries(tx).claim_candidates(self.worker, picked)
            locked.spend(tx, leases)
            if self.canary is not None:
                self.canary.spend(tx, leases)
        self.observer.count_started(leases)
        limited_until = [self.observer.next_retry_at(key, state.now) for _, key in budgets]
        limited_until.append(locked.next_start_at())
        return leases, [at for at in limited_until if at is not None]

    def _pick(
        self, due_jobs: DueJobs, demand: Demand, left: Mapping[LimitKey, int]
    ) -> list[Candidate]:
        """Choose jobs for the free slots. Read a lane deeper if all of its jobs were chosen."""
        left = {**left, **demand.bounds()}
        capacity = Capacity(left)
        lanes = [lane for lane in demand.lanes if capacity.fits(lane[0])]
        due_jobs.read(lanes, read_depth(len(lanes), demand.slots))
        picked, credit = self._pick_from(due_jobs, lanes, demand.slots, capacity)
        used_up = due_jobs.find_used_up(picked, demand.slots)
        if used_up:
            due_jobs.read(used_up, demand.slots)
            picked, credit = self._pick_from(due_jobs, lanes, demand.slots, Capacity(left))
        self._retry_credit = credit
        shares = (Lane.parse(job.lane) for job in picked)
        self._last_share |= {lane.queue: lane.share for lane in shares if lane.share}
        return picked

    def _pick_from(
        self, due_jobs: DueJobs, lanes: Sequence[LaneRef], slots: int, capacity: Capacity
    ) -> tuple[list[Candidate], float]:
        fresh, retries = due_jobs.in_order(lanes, self._last_share, self.worker)
        return pick(fresh, retries, slots, self._retry_credit, capacity)


def create_claimer(
    worker: str,
    manifest: Manifest,
    queues: frozenset[str] | None = None,
    canary_share: float | None = None,
) -> Claimer:
    """Create the claimer of a worker. `canary_share`: of each kind until its release is judged.

    Every worker also serves the delivery queue: if all workers were limited to other queues,
    no notification would be sent.
    """
    served = None if queues is None else queues | {DELIVERY_QUEUE}
    claimer = Claimer(worker, frozenset(), served, release=manifest.release)
    if canary_share is not None:
        claimer.canary = Canary(manifest.release, canary_share)
    claimer.apply_manifest(manifest)
    return claimer

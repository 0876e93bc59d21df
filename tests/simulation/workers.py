"""Simulated worker: the supervisor's transactions and chores, without processes.

It repeats the logic of the supervisor's loop in its simplest form: endings are kept until they are
durable, after a lost answer the worker queries which leases it holds, and a worker that was declared
lost continues under a new name.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from mulligan.core.attempt import Ending, Lease, Verdict
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.guards.capacity import SlotLimits
from mulligan.guards.kind_observer import build_kind_observer
from mulligan.manifest.specs import Manifest
from mulligan.retries.effective import EffectivePolicies
from mulligan.steps.queries import step_write
from mulligan.steps.rules import StepKind, StepRecord, StepState
from mulligan.worker.claim import create_claimer
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions
from simulation.invariants import check_invariant
from simulation.outcomes import outcome_for
from simulation.stores import SimStore
from support.store import a_worker

SLOTS = 4
NOWHERE = Path("/nowhere/mulligan-simulated")
Fence = tuple[str, int]


class Worker:
    """One simulated worker process."""

    def __init__(self, store: SimStore, settings, manifest: Manifest) -> None:
        self.store = store
        self.settings = settings
        self.manifest = manifest
        self.frozen = False
        self.leases: list[Lease] = []  # all leases it ever had, under all its names
        self.open()

    def open(self) -> None:
        """Register under a new name."""
        self.id = f"w_{new_id()}"
        self.flights: dict[Fence, Lease] = {}
        self.cancel_requests: set[Fence] = set()
        self.endings: list[Ending] = []
        self.has_lost_answer = False
        self.stopping = self.closing = False
        layers = EffectivePolicies(
            self.settings.retry, self.manifest.kinds_with_rules, self.manifest.queues
        )
        self.turns = LoopTransactions(
            self.store,
            layers,
            create_claimer(self.id, self.manifest),
            build_kind_observer(self.settings.guards),
        )
        self.chores = Chores(self.store, self.settings, NOWHERE)
        try:
            self.enter()
        except StoreUnavailable:  # the row may have been written, although the answer was lost
            self.enter()

    def enter(self) -> None:
        kinds = f"[{','.join(f'{chr(34)}{kind}{chr(34)}' for kind in sorted(self.manifest.kinds))}]"
        lease = round(self.settings.worker.lease * 1e6)
        row = a_worker(self.id, kinds=kinds, lease=lease, renewed_mono=self.store.clock.mono, pid=1)
        self.chores.register(row, self.manifest)
        self.renewed_at = self.store.clock.mono

    def seed_random(self, seed: int) -> None:
        for drawer in (self.turns, self.chores):
            drawer._rng = Random(seed)
        self.turns._observer.rng = Random(seed)

    # --- Attempts ---
    def end(self, place: int, name: str) -> None:
        """End one of the running attempts; the database does not know yet."""
        if self.flights:
            fence = list(self.flights)[place % len(self.flights)]
            lease = self.flights.pop(fence)
            self.endings.append(
                Ending(
                    lease, outcome_for(name, cancel_requested=fence in self.cancel_requests), 120
                )
            )

    def turn(self, free: int, *, hinted: bool) -> tuple[list[Verdict], list[Lease]]:
        """Settle and claim. Repeats endings that were not written; after a lost answer, adopts leases."""
        free_slots = max(0, SLOTS - len(self.flights) - len(self.endings))
        free = 0 if self.stopping or self.chores.must_not_claim() else min(free, free_slots)
        # Sorted, so that both stores write the events in the same order.
        endings, self.endings = sorted(self.endings, key=lambda ending: ending.lease.fence), []
        known = (
            set(self.flights) | {ending.lease.fence for ending in endings}
            if self.has_lost_answer
            else None
        )
        slots = SlotLimits(free, SLOTS - 1, {}, frozenset(), 2)
        try:
            turn = self.turns.settle_and_claim(
                endings,
                free,
                self.store.clock.wall,
                known,
                hinted=hinted,
                slots=slots if free else None,
            )
        except StoreUnavailable:
            self.endings, self.has_lost_answer = endings + self.endings, True
            raise
        self.has_lost_answer = False
        self.flights |= {lease.fence: lease for lease in turn.leases}
        self.leases += turn.leases
        return turn.verdicts, turn.leases

    # --- Lifetime ---
    def renew(self) -> bool:
        """Renew the lease. Return False if the worker was declared lost; it then has a new name."""
        renewal = self.chores.renew(self.id, self.stopping)
        silent = self.store.clock.mono - self.renewed_at
        if not renewal.alive:
            lease = round(self.settings.worker.lease * SECOND)
            was_lost = silent > lease or self.closing
            check_invariant(was_lost, "W1 no living worker is declared lost", self.id, silent)
            self.open()
            return False
        self.renewed_at = self.store.clock.mono
        self.cancel_requests |= {(job_id, token) for job_id, token, _ in renewal.cancels}
        self.stopping = self.stopping or renewal.drain is not None
        return True

    def save_checkpoint(self, lease: Lease, name: str) -> bool:
        record = StepRecord(name, StepKind.CHECKPOINT, StepState.DONE, 0, str(lease.token))
        held = bool(self.chores.save_steps([step_write(lease, record)]))
        if held and lease.fence in self.flights:
            self.flights[lease.fence] = self.flights[lease.fence]._replace(losses=0)
        return held

    def leave(self) -> None:
        """Shut down: settle ended attempts, release the others, close the worker."""
        self.turns.release_all(self.endings, self.store.clock.wall)
        self.endings, self.flights = [], {}
        self.closing = True  # the answer of the next transaction may be lost after its commit
        self.chores.close_worker(self.id)

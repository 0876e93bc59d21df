"""A worker as the store sees it: the supervisor's own turns and chores, without its processes.

What the supervisor's loop does with an answer is here in its plainest form: endings are kept until they are durable,
after an answer that was lost it asks what it holds, who was declared lost goes on under a new name.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from mulligan.core.attempt import Ending, Lease, Verdict
from mulligan.core.errors import StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.guards.observer import build_kind_observer
from mulligan.manifest.specs import Manifest
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.claim import SlotLimits, create_claimer
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions
from simulation.outcomes import outcome_for
from simulation.stores import SimStore
from support.store import a_worker

PLACES = 4
NOWHERE = Path("/nowhere/mulligan-simulated")
Fence = tuple[str, int]


class Worker:
    def __init__(self, store: SimStore, settings, manifest: Manifest) -> None:
        self.store, self.settings, self.manifest = store, settings, manifest
        self.frozen = False
        self.leases: list[Lease] = []  # every one it ever had, under all its names
        self.open()

    def open(self) -> None:
        """Under a name that nobody had before. Its row may have been written though the answer was lost."""
        self.id = f"w_{new_id()}"
        self.flights: dict[Fence, Lease] = {}
        self.asked: set[Fence] = set()  # to stop
        self.endings: list[Ending] = []
        self.doubt = self.stopping = False
        layers = EffectivePolicies(self.settings.retry, self.manifest.kinds_with_rules, self.manifest.queues)
        self.turns = LoopTransactions(
            self.store, layers, create_claimer(self.id, self.manifest), build_kind_observer(self.settings.guards)
        )
        self.chores = Chores(self.store, self.settings, NOWHERE)
        try:
            self.enter()
        except (
            StoreUnavailable
        ):  # whoever begins has nothing else to do: it tries until there is an answer
            self.enter()

    def enter(self) -> None:
        kinds = f"[{','.join(f'{chr(34)}{kind}{chr(34)}' for kind in sorted(self.manifest.kinds))}]"
        lease = round(self.settings.worker.lease * 1e6)
        row = a_worker(self.id, kinds=kinds, lease=lease, renewed_mono=self.store.clock.mono, pid=1)
        self.chores.register(row, self.manifest)

    def draw_from(self, seed: int) -> None:
        for drawer in (self.turns, self.chores):
            drawer._rng = Random(seed)
        self.turns._observer.rng = Random(seed)

    # -- what runs --------------------------------------------------------------------------------
    def end(self, place: int, name: str) -> None:
        """One of the attempts it runs comes to an end; nobody knows of it yet."""
        if self.flights:
            fence = list(self.flights)[place % len(self.flights)]
            lease = self.flights.pop(fence)
            self.endings.append(Ending(lease, outcome_for(name, asked=fence in self.asked), 120))

    def turn(self, free: int, *, hinted: bool) -> tuple[list[Verdict], list[Lease]]:
        """Endings that could not be told are told again; what it may hold without knowing is asked for."""
        room = max(0, PLACES - len(self.flights) - len(self.endings))
        free = 0 if self.stopping or self.chores.must_not_claim() else min(free, room)
        # By id, as PostgreSQL writes a set: in which order a turn tells of what ended between two turns means nothing.
        endings, self.endings = sorted(self.endings, key=lambda ending: ending.lease.fence), []
        known = (
            set(self.flights) | {ending.lease.fence for ending in endings} if self.doubt else None
        )
        places = SlotLimits(free, PLACES - 1, {}, frozenset(), 2)
        try:
            turn = self.turns.settle_and_claim(
                endings,
                free,
                self.store.clock.wall,
                known,
                hinted=hinted,
                slots=places if free else None,
            )
        except StoreUnavailable:
            self.endings, self.doubt = endings + self.endings, True
            raise
        self.doubt = False
        self.flights |= {lease.fence: lease for lease in turn.leases}
        self.leases += turn.leases
        return turn.verdicts, turn.leases

    # -- its life ---------------------------------------------------------------------------------
    def renew(self) -> bool:
        """False: somebody has closed its row. What it ran is lost, and it goes on under a new name."""
        renewal = self.chores.renew(self.id, self.stopping)
        if not renewal.alive:
            self.open()
            return False
        self.asked |= {(job_id, token) for job_id, token, _ in renewal.cancels}
        self.stopping = self.stopping or renewal.drain is not None
        return True

    def keep(self, lease: Lease, name: str) -> bool:
        held = self.chores.write_checkpoint(lease.id, lease.worker, lease.token, name, str(lease.token))
        if held and lease.fence in self.flights:
            self.flights[lease.fence] = self.flights[lease.fence]._replace(losses=0)
        return held

    def leave(self) -> None:
        """In order: writes what ended, gives back the rest, closes its row."""
        self.turns.release_all(self.endings, self.store.clock.wall)
        self.endings, self.flights = [], {}
        self.chores.close_worker(self.id)

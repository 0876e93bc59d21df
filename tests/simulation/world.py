"""One run of a script on one store: who works there, what was given out, and what everybody was told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mulligan.cli.worker import periodic_tasks
from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.core.job import Job
from simulation.invariants import Ledger
from simulation.shop import settings_for, shop
from simulation.stores import SimStore, emptied, tables_of
from simulation.workers import Worker

WORKERS = 3
NOBODY = "0" * 28


class Home:
    """A store and the app on it, used for one script after the other."""

    def __init__(self, store: SimStore, url: str) -> None:
        self.store = store
        self.tables = tables_of(store)
        self.settings = settings_for(url)
        self.app = shop(self.settings)
        self.app._store = store
        self.manifest = self.app.manifest("shop")


class World:
    def __init__(self, home: Home) -> None:
        self.store, self.app, self.clock = home.store, home.app, home.store.clock
        self.settings = home.settings
        self.store.arm(None)
        emptied(self.store, home.tables)
        self.store.tell_time()
        self.manifest = home.manifest
        self.outlets = periodic_tasks(self.settings)
        self.jobs: list[str] = []
        self.batches: list[str] = []
        self.operations: list[str] = []
        self.gone: list[Worker] = []
        self.set_back = False  # the wall clock
        self.ledger = Ledger(self)
        self.workers = [Worker(self.store, self.settings, self.manifest) for _ in range(WORKERS)]
        for outlet in self.outlets:
            outlet.run_once(self.store)

    def turn_over(self, step: int) -> None:
        self.clock.turn_over(step)
        for place, worker in enumerate(self.workers):
            worker.draw_from(step * WORKERS + place)

    # -- what a number of a script means ----------------------------------------------------------
    def worker(self, number: int) -> Worker:
        return self.workers[number % WORKERS]

    def job(self, number: int) -> str:
        return self.jobs[number % len(self.jobs)] if self.jobs else NOBODY

    def batch(self, number: int) -> str:
        return self.batches[number % len(self.batches)] if self.batches else NOBODY

    def operation(self, number: int) -> str:
        return self.operations[number % len(self.operations)] if self.operations else NOBODY

    # -- what was answered ------------------------------------------------------------------------
    def added(self, jobs: Iterable[Job]) -> list[Any]:
        answers = [(job.id, job.deduplicated) for job in jobs]
        self.ledger.promised(job_id for job_id, _ in answers)
        return answers

    def undone(self, ids: Iterable[str]) -> None:
        self.ledger.never(ids)

    def began(self, batch: Any) -> str:
        self.batches.append(batch.id)
        return str(batch.id)

    def operated(self, operation: Any) -> Any:
        if operation.id not in self.operations:
            self.operations.append(operation.id)
        return operation.id, operation.state

    def open_to_claims(self) -> Any:
        return self.ledger.gates()

    def claimed(self, leases: Sequence[Lease], before: Any) -> None:
        self.ledger.claimed(leases, before)

    # -- workers and time -------------------------------------------------------------------------
    def replace(self, worker: Worker) -> None:
        self.gone.append(worker)
        self.workers[self.workers.index(worker)] = Worker(self.store, self.settings, self.manifest)

    def passes(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.pass_by(round(seconds * SECOND))
            self.store.tell_time()

    def beat(self) -> None:
        """A heartbeat of all who live: each renews, and the first of them looks whether the others do."""
        judge = next((worker for worker in self.workers if not worker.frozen), None)
        for worker in self.workers:
            if worker.frozen:
                continue
            try:
                if worker.renew() and worker is judge:
                    worker.chores.recover(worker.id)
            except StoreUnavailable:
                continue

"""One run of a script on one store: its workers, its jobs and the answers of every call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mulligan.cli.worker import periodic_tasks
from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from mulligan.core.job import Job
from simulation.invariants import Ledger
from simulation.shop import create_shop, settings_for
from simulation.stores import SimStore, empty_tables, list_tables
from simulation.workers import Worker

WORKERS = 3
MISSING_ID = "0" * 28


class Home:
    """A store and the app on it, reused for many scripts."""

    def __init__(self, store: SimStore, url: str) -> None:
        self.store = store
        self.tables = list_tables(store)
        self.settings = settings_for(url)
        self.app = create_shop(self.settings)
        self.app.store = store
        self.manifest = self.app.manifest("shop")


class World:
    """The state of one run."""

    def __init__(self, home: Home) -> None:
        self.store = home.store
        self.app = home.app
        self.clock = home.store.clock
        self.settings = home.settings
        self.store.arm(None)
        empty_tables(self.store, home.tables)
        self.store.set_database_time()
        self.manifest = home.manifest
        self.periodic_tasks = periodic_tasks(self.settings)
        self.jobs: list[str] = []
        self.batches: list[str] = []
        self.operations: list[str] = []
        self.replaced: list[Worker] = []
        self.clock_set_back = False
        self.ledger = Ledger(self)
        self.workers = [Worker(self.store, self.settings, self.manifest) for _ in range(WORKERS)]
        for task in self.periodic_tasks:
            task.run_once(self.store)

    def start_step(self, step: int) -> None:
        self.clock.start_step(step)
        for place, worker in enumerate(self.workers):
            worker.seed_random(step * WORKERS + place)

    # --- A script names things by any number; it stands for one of those that exist ---
    def worker(self, number: int) -> Worker:
        return self.workers[number % WORKERS]

    def job(self, number: int) -> str:
        return self.jobs[number % len(self.jobs)] if self.jobs else MISSING_ID

    def batch(self, number: int) -> str:
        return self.batches[number % len(self.batches)] if self.batches else MISSING_ID

    def operation(self, number: int) -> str:
        return self.operations[number % len(self.operations)] if self.operations else MISSING_ID

    # --- Answers of calls ---
    def record_jobs(self, jobs: Iterable[Job]) -> list[Any]:
        answers = [(job.id, job.deduplicated) for job in jobs]
        self.ledger.add_accepted(job_id for job_id, _ in answers)
        return answers

    def record_rollback(self, ids: Iterable[str]) -> None:
        self.ledger.add_rolled_back(ids)

    def record_batch(self, batch: Any) -> str:
        self.batches.append(batch.id)
        return str(batch.id)

    def record_operation(self, operation: Any) -> Any:
        if operation.id not in self.operations:
            self.operations.append(operation.id)
        return operation.id, operation.state

    def open_to_claims(self) -> Any:
        return self.ledger.gates()

    def claimed(self, leases: Sequence[Lease], before: Any) -> None:
        self.ledger.claimed(leases, before)

    # --- Workers and time ---
    def replace(self, worker: Worker) -> None:
        self.replaced.append(worker)
        self.workers[self.workers.index(worker)] = Worker(self.store, self.settings, self.manifest)

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.advance(round(seconds * SECOND))
            self.store.set_database_time()

    def beat(self) -> None:
        """Renew the leases of all live workers; the first one also sweeps for lost workers."""
        live = [worker for worker in self.workers if not worker.frozen]
        for worker in live:
            try:
                if worker.renew() and worker is live[0]:
                    worker.chores.recover(worker.id)
            except StoreUnavailable:
                continue

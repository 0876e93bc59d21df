"""Periodic duties of a worker: renew its lease, sweep for lost workers, prune old rows.

Each call of `Chores` is one short transaction or a few, on the supervisor's chore or renewal
thread. `PeriodicTasks` runs the tasks of other features on a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Protocol

from mulligan.batches import cancel as batches
from mulligan.config import Settings
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import WorkerRow
from mulligan.events.queries import EventQueries
from mulligan.manifest.declared import (
    find_conflicts,
    load_running_manifests,
    publish_manifest,
)
from mulligan.manifest.specs import Manifest
from mulligan.operations import chore as operations
from mulligan.schedules.chore import Scheduler
from mulligan.steps.gates import find_closed_gate
from mulligan.steps.queries import StepQueries, StepWrite
from mulligan.steps.rules import ClosedGate
from mulligan.storage.base import Store
from mulligan.worker import liveness, upkeep
from mulligan.worker.job_log import SweepResult, log_sweep
from mulligan.worker.liveness import tree_memory
from mulligan.worker.protocol import HookFault
from mulligan.worker.queries import Renewal, WorkerQueries, boot_id

log = logging.getLogger("mulligan.worker")

FULL_SWEEP_INTERVAL = 60.0  # seconds between sweeps that also prune and publish the manifest
NEVER = float("-inf")
CHORE_BUDGET = 2.0  # seconds of one sweep for one kind of upkeep


class Chores:
    """Duties of one worker, and what it knows about the renewals of the others."""

    def __init__(self, store: Store, settings: Settings, folder: Path) -> None:
        self._store = store
        self.settings = settings
        self._folder = folder
        self._rng = Random(SystemRandom().getrandbits(64))
        self._boot = boot_id()
        self._renewed = time.monotonic()
        self._unbroken_since = self._renewed  # since when renewals have succeeded without a gap
        # By worker: the last renewal that we have read, and when we first read it.
        self._last_renewals: dict[str, tuple[Micros, float]] = {}
        self._pruned = NEVER
        self._scheduler = Scheduler(store, settings.worker)
        self._full_sweep_requested = False
        self._old_clock: Micros | None = None  # its time when it was set
        self._manifest: Manifest | None = None  # None until this worker is registered

    def record_runner_death(self, worker: str, evidence: Mapping[str, Any]) -> None:
        """Write the event of a runner's death."""
        event = NewEvent(EventType.WORKER_RUNNER_DIED, data={"worker": worker, **evidence})
        with self._store.begin() as tx:
            EventQueries(tx).write_events([event])

    def record_hook_faults(self, worker: str, faults: Sequence[HookFault]) -> None:
        """Write the errors of hooks. During an outage they are only in the log."""
        with contextlib.suppress(StoreUnavailable), self._store.begin() as tx:
            WorkerQueries(tx).record_hook_faults(worker, faults)

    # --- Start ---

    def recover_at_start(self, worker: str) -> int:
        """Recover jobs that dead siblings left, while the runners still load the app."""
        self._refuse_second_machine()
        return self.recover(worker)

    def register(self, row: WorkerRow, manifest: Manifest) -> None:
        """Write our row and our manifest."""
        self._manifest = manifest
        with self._store.begin() as tx:
            publish_manifest(tx, manifest)
            WorkerQueries(tx).insert_worker(row)
            conflicts = find_conflicts(load_running_manifests(tx, tx.now()))
        self._renewed = self._unbroken_since = time.monotonic()
        for conflict in conflicts:
            log.warning("%s: each takes what belongs to the other", conflict)

    def _publish_manifest(self, manifest: Manifest) -> None:
        """Write the manifest again: kinds and schedules count as known for only one day."""
        with self._store.begin() as tx:
            publish_manifest(tx, manifest)

    def _refuse_second_machine(self) -> None:
        """Raise ConfigError if a worker on another machine uses this SQLite file.

        Leases on SQLite use the monotonic clock, which differs between machines.
        """
        if not self._store.lock_directory:
            return
        for _ in range(2):
            with self._store.read() as tx:
                workers = WorkerQueries(tx).list_workers(closed=False)
                foreign = [worker for worker in workers if worker.boot_id != self._boot]
                live = [worker for worker in foreign if not WorkerQueries(tx).is_expired(worker)]
            if not live:
                return
            renewals = {worker.id: worker.renewed_at for worker in foreign}
            # Long enough for one more heartbeat.
            time.sleep(max(worker.lease for worker in live) / 1e6 / 3)
            self._refuse_renewed(renewals)

    def _refuse_renewed(self, renewals: Mapping[str, Micros]) -> None:
        with self._store.read() as tx:
            workers = WorkerQueries(tx).list_workers(closed=False)
        for worker in workers:
            if worker.id in renewals and worker.renewed_at > renewals[worker.id]:
                message = (
                    f"worker {worker.id} on {worker.host} uses this SQLite file from another "
                    "machine. Use PostgreSQL to run workers on several machines."
                )
                raise ConfigError(message)

    # --- Lease ---

    def renew(self, worker: str, draining: bool) -> Renewal:  # noqa: FBT001 - called through an executor
        """Renew the lease of all jobs of this worker."""
        renewing = round((self._renewed - self._unbroken_since) * SECOND)  # up to the last one
        memory = tree_memory(os.getpid())
        with self._store.begin() as tx:
            renewal = WorkerQueries(tx).renew_worker(
                worker, draining=draining, renewing=renewing, memory=memory
            )
        now = time.monotonic()
        if now - self._renewed > self.settings.worker.lease / 2:
            self._unbroken_since = now
        self._renewed = now
        return renewal

    def cancel_requests(self, worker: str) -> tuple[Micros, list[tuple[str, int, str]]]:
        """Return the store's time, and (job, token, reason) of jobs to cancel.

        Reads only: a hint leads to this call, and a write would cause the next hint.
        """
        with self._store.read() as tx:
            return tx.now(), WorkerQueries(tx).list_cancel_requests(worker)

    def must_not_claim(self) -> bool:
        """True if no renewal has succeeded for half a lease."""
        return time.monotonic() - self._renewed > self.settings.worker.lease / 2

    def _may_declare_lost(self) -> bool:
        """True if this worker has renewed without a gap for one full lease.

        After a database outage, do not declare other workers lost before that: none of them could
        renew during the outage.
        """
        unbroken = self._renewed - self._unbroken_since
        return not self.must_not_claim() and unbroken >= self.settings.worker.lease

    def _is_silent_for_a_lease(self, other: WorkerRow) -> bool:
        """True if a worker's row has not changed for a full lease while we could renew.

        Measured with our monotonic clock. A wall clock, even the database's, can be set, and would
        then declare a whole fleet lost.
        """
        now = time.monotonic()
        renewed_at, since = self._last_renewals.get(other.id, (other.renewed_at, now))
        if renewed_at != other.renewed_at:
            since = now
        self._last_renewals[other.id] = (other.renewed_at, since)
        silent = now - since
        if self._may_declare_lost() and silent > other.lease / SECOND:
            return True
        # A live worker renews at every heartbeat, wherever a clock that was set puts the others.
        if self.must_not_claim() or silent <= self.settings.worker.heartbeat:
            return False
        return self._is_outlived(other)

    def _is_outlived(self, other: WorkerRow) -> bool:
        """True if workers that started after its last renewal have renewed for a full lease.

        No single worker of a crash loop lives that long, but together they do.
        """
        with self._store.read() as tx:
            rows = WorkerQueries(tx).list_workers(closed=True)
            now = tx.now()
        return upkeep.renewed_time_after(rows, other.renewed_at, now) >= other.lease

    # --- Sweep ---

    def sweep(self, worker: str) -> int:
        """Do all upkeep that is due. Return how many jobs were queued."""
        if self._old_clock is not None:
            upkeep.advance_ready_jobs(self._store, self._old_clock)
            self._old_clock = None
        manifest = self._manifest if self._is_full_sweep_due() else None
        self._full_sweep_requested = False
        if manifest is not None:
            self._publish_manifest(manifest)
        fired = self._scheduler.fire()
        requeued = self.recover(worker)
        upkeep.announce_inserted(self._store)
        late = self._repeat_while_full(lambda: upkeep.expire_deadlines(self._store))
        unknown = upkeep.expire_unknown_kinds(self._store, self.settings.worker.unknown_kind_after)
        self._repeat_while_full(lambda: batches.run_upkeep(self._store))
        removed = self._prune(manifest) if manifest is not None else 0
        log_sweep(
            {
                SweepResult.DEADLINES: late,
                SweepResult.UNKNOWN_KINDS: unknown,
                SweepResult.SCHEDULED: fired,
                SweepResult.PRUNED: removed,
            }
        )
        return requeued + fired

    def _is_full_sweep_due(self) -> bool:
        since_pruned = time.monotonic() - self._pruned
        return self._full_sweep_requested or since_pruned > FULL_SWEEP_INTERVAL

    def note_clock_jump(self, old_clock: Micros) -> None:
        """Let the next sweep repair due times. `old_clock`: the time if it had not been set."""
        self._old_clock = old_clock

    def request_full_sweep(self) -> None:
        """Let the next sweep also prune and publish the manifest."""
        self._full_sweep_requested = True

    def recover(self, worker: str) -> int:
        """Close lost workers and settle their jobs. Return how many jobs."""
        detector = upkeep.LossDetector(worker, self._boot, self._is_silent_for_a_lease)
        retry = self.settings.retry
        upkeep.close_lost_workers(self._store, detector, retry, self._rng)
        lost = upkeep.settle_all_orphans(self._store, retry, self._rng)
        log_sweep({SweepResult.LOST: lost})
        self._forget_closed_workers(worker)
        return lost

    def _forget_closed_workers(self, worker: str) -> None:
        """Remove the folders of closed workers, and what we know of their renewals."""
        with self._store.read() as tx:
            open_workers = {row.id for row in WorkerQueries(tx).list_workers(closed=False)}
        liveness.remove_dead_folders(self._folder, {worker, *open_workers})
        for gone in self._last_renewals.keys() - open_workers:
            del self._last_renewals[gone]

    def _prune(self, manifest: Manifest) -> int:
        end = time.monotonic() + CHORE_BUDGET
        removed = self._repeat_while_full(
            lambda: upkeep.prune(
                self._store, self.settings, manifest.kinds, lambda: time.monotonic() > end
            )
        )
        self._store.reclaim_space()
        # If anything was removed there may be more: prune again with the next sweep.
        self._pruned = NEVER if removed else time.monotonic()
        return removed

    def _repeat_while_full(self, step: Callable[[], int]) -> int:
        """Repeat a step while it fills its batch, for a limited time. Return the total count."""
        end = time.monotonic() + CHORE_BUDGET
        total = 0
        while True:
            count = step()
            total += count
            if count < upkeep.BATCH_SIZE or time.monotonic() > end:
                return total

    def run_operations(self) -> tuple[int, bool]:
        """Return how many jobs operations have moved, and whether there is more to do."""
        return operations.run_operations(self._store), operations.any_active(self._store)

    # --- Writes for running jobs ---

    def write_progress(
        self, worker: str, progress: Sequence[tuple[str, int, float | None, str]]
    ) -> None:
        """Write the progress of running jobs."""
        with self._store.begin() as tx:
            WorkerQueries(tx).update_progress(worker, progress)

    def save_steps(self, writes: Sequence[StepWrite]) -> set[tuple[str, str]]:
        """Save steps of running attempts. The others have lost their lease."""
        with self._store.begin() as tx:
            return StepQueries(tx).save(writes)

    def find_closed_gate(self, keys: Sequence[str]) -> ClosedGate | None:
        """Return a dependency that is down, for a step that uses it."""
        with self._store.read() as tx:
            return find_closed_gate(tx, keys)

    # --- Exit ---

    def close_worker(self, worker: str) -> None:
        """Close our row."""
        with self._store.begin() as tx:
            WorkerQueries(tx).close_worker(worker, "shut down", last_renewed=None)

    def remove_folders(self, worker: str) -> None:
        """Remove the work directories of our attempts."""
        shutil.rmtree(liveness.work_folder(self._folder, worker), ignore_errors=True)


# --- Periodic tasks (notifications, alerts, metrics), on their own thread ---

# Tasks that are due at about the same time run together: waking a thread costs an idle worker more
# than the check itself.

REST_FACTOR = 2  # a busy task rests twice as long as it ran, so that it cannot crowd out jobs
EARLY = 0.05  # seconds that a task may run early, together with others
THREAD_RETRY_DELAY = 1.0  # seconds


class PeriodicTask(Protocol):
    """Task that every worker runs from time to time."""

    name: str
    every: float  # seconds between runs while there is nothing to do

    def run_once(self, store: Store) -> bool:
        """Do one short step of at most about 20 ms. True: there is more to do.

        Several workers run this at the same time. If another one is doing the work, return False
        without waiting.
        """
        ...


class Waker:
    """Task that only checks a condition, and calls `wake` if it is true."""

    def __init__(
        self, name: str, every: float, check: Callable[[Store], bool], wake: Callable[[], None]
    ) -> None:
        self.name = name
        self.every = every
        self._check = check
        self._wake = wake

    def run_once(self, store: Store) -> bool:
        """Check the condition once."""
        if self._check(store):
            self._wake()
        return False


class PeriodicTasks:
    """The thread that runs the tasks."""

    def __init__(self, tasks: Sequence[PeriodicTask], store: Store) -> None:
        self._tasks = tasks
        self._due = [0.0] * len(tasks)
        self._store = store
        self._stop = threading.Event()

    async def run(self) -> None:
        """Run the tasks until cancelled. Does not wait for a task that is running then.

        Raises RuntimeError if the thread ends by itself.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while self._tasks and not self._start_thread(failed):  # noqa: ASYNC110 - a retry
                await asyncio.sleep(THREAD_RETRY_DELAY)
            await failed
        finally:
            self._stop.set()

    def _start_thread(self, failed: asyncio.Future[None]) -> bool:
        thread = threading.Thread(target=self._run_thread, args=(failed,), name="mulligan-periodic")
        try:
            thread.start()
        except RuntimeError:
            log.exception("cannot start the thread for periodic tasks; trying again")
            return False
        return True

    def _run_thread(self, failed: asyncio.Future[None]) -> None:
        try:
            self._run_until_stopped()
        except BaseException as error:  # noqa: BLE001 - the supervisor must hear of any error
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                failed.get_loop().call_soon_threadsafe(_set_failed, failed, repr(error))

    def _run_until_stopped(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            for index, due in enumerate(list(self._due)):
                if due - now < EARLY:
                    pause = self._run_task(self._tasks[index])
                    self._due[index] = time.monotonic() + pause
            self._stop.wait(max(0.0, min(self._due) - time.monotonic()))

    def _run_task(self, task: PeriodicTask) -> float:
        """Run a task and return how long it rests. An error is logged and does not stop others."""
        began = time.monotonic()
        more = False
        try:
            if not self._stop.is_set():  # otherwise the store may be closed already
                more = task.run_once(self._store)
        except StoreUnavailable:
            pass
        except Exception:
            log.exception("periodic task %s failed; it will be tried again", task.name)
        if more:
            return REST_FACTOR * (time.monotonic() - began)
        return task.every


def _set_failed(failed: asyncio.Future[None], error: str) -> None:
    if not failed.done():
        failed.set_exception(RuntimeError(f"the thread for periodic tasks has ended: {error}"))

"""Run jobs in the current process, one at a time: for scripts and tests.

Claims, leases, classification, decisions, settling and history are the same as in a worker. Hard
time limits, memory limits and survival of a handler that kills its process need `mulligan worker`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from mulligan.batches import completion as batching
from mulligan.config import Settings
from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.core.durations import Micros
from mulligan.core.errors import Refused, StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import Lane, PreviousAttempts
from mulligan.guards.observer import build_kind_observer, fold_guards
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.declared import publish_manifest
from mulligan.manifest.specs import Handler, Manifest, Registry
from mulligan.operations import chore as operations
from mulligan.retries.effective import EffectivePolicies
from mulligan.schedules.chore import Scheduler
from mulligan.storage.base import Store, Transaction
from mulligan.worker import upkeep
from mulligan.worker.claim import create_claimer
from mulligan.worker.job_log import log_claimed, log_verdicts
from mulligan.worker.liveness import (
    LivenessFile,
    make_workdir,
    remove_workdir,
    state_folder,
    work_folder,
)
from mulligan.worker.queries import WorkerQueries, boot_id, load_previous_attempts
from mulligan.worker.registry import worker_row
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, execute_async, execute_sync, run_process_hooks
from mulligan.worker.settle import SettleContext, settle
from mulligan.worker.supervisor.periodic import PeriodicTask


class InlineWorker:
    """A worker without runner processes. Implements `AttemptHost` for its contexts."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        registry: Registry,
        manifest: Manifest,
        rng: Random,
        periodic_tasks: Sequence[PeriodicTask] = (),
    ) -> None:
        self.state: Any = SimpleNamespace()
        self._store = store
        self._settings = settings
        self._registry = registry
        self._manifest = manifest
        self.policies = EffectivePolicies(
            settings.retry, manifest.kinds_with_rules, manifest.queues
        )
        self.result_limit = settings.limits.result
        self.tracer = registry.tracer
        self._rng = rng
        self._periodic_tasks = periodic_tasks
        self.worker = f"w_{new_id()}"
        self._claimer = create_claimer(self.worker, manifest)
        self._claimer.prober.settle_endings = self._settle_fail_fast
        self._kind_observer = build_kind_observer(settings.guards)
        self._context: Context | None = None  # of the running attempt
        self._task: asyncio.Task[Any] | None = None
        self._interrupt_handler = _InterruptHandler()
        self._next_due: Micros | None = None
        self._folder = state_folder(settings.worker.state_dir, store.lock_directory, store.identity)

    def run(self, *, until_idle: bool) -> int:
        """Run one due job, or with `until_idle` all. Return how many attempts ran."""
        ran = 0
        with self.session() as step:
            while step() is not None:
                ran += 1
                if not until_idle:
                    break
        return ran

    @contextmanager
    def session(self) -> Iterator[Callable[[], Lease | None]]:
        """Register a worker. Yields a function that runs the next due job; None if none is due."""
        _refuse_on_event_loop()
        with ExitStack() as stack:
            loop = stack.enter_context(asyncio.Runner())
            liveness_file = LivenessFile(self._folder, self.worker)
            stack.callback(liveness_file.close)
            self._register(liveness_file)
            stack.callback(self._close_worker)
            stack.enter_context(
                _RenewalThread(
                    self._store, self.worker, self._settings.worker.heartbeat, self._cancel
                )
            )
            stack.enter_context(self._interrupt_handler)
            self.state = loop.run(run_process_hooks(self._registry.on_start, self.state))
            stack.callback(lambda: loop.run(run_process_hooks(self._registry.on_stop, self.state)))
            yield lambda: self._run_next(loop)

    def next_due(self) -> Micros | None:
        """Return when the next waiting job may start, as the last claim found it."""
        with self._store.read() as tx:
            waits = any(
                Lane.parse(key).kind in self._claimer.kinds
                for key, _, _ in GuardQueries(tx).read_claim_state().lanes
            )
        return self._next_due if waits else None

    def _register(self, liveness_file: LivenessFile) -> None:
        row = worker_row(self.worker, liveness_file, self._manifest, self._settings, frozenset(), 1)
        with self._store.begin() as tx:
            WorkerQueries(tx).insert_worker(row)
        self.run_upkeep()

    def run_upkeep(self) -> None:
        """Do what a worker does before it claims: recover jobs, fire schedules, fold guards."""
        with self._store.begin() as tx:
            publish_manifest(tx, self._manifest)
        detector = upkeep.LossDetector(self.worker, boot_id(), lambda _: False)
        upkeep.close_lost_workers(self._store, detector)
        upkeep.settle_orphans(self._store, self._settings.retry, self._rng)
        upkeep.announce_inserted(self._store)
        upkeep.expire_deadlines(self._store)
        batching.sweep_batches(self._store)
        fold_guards(self._store, self._claimer.observer, self._kind_observer)
        Scheduler(self._store, self._settings.worker).fire(ahead=False)

    def _close_worker(self) -> None:
        with self._store.begin() as tx:
            WorkerQueries(tx).close_worker(self.worker, "shut down", last_renewed=None)

    def _claim(self) -> tuple[list[Lease], dict[str, PreviousAttempts]]:
        with self._store.begin() as tx:
            claimed = self._claimer.claim(tx, 1)
            previous = load_previous_attempts(tx, claimed.leases)
        self._next_due = claimed.next_due
        self._claimer.observer.commit()
        log_claimed(claimed.leases, self.worker)
        return claimed.leases, previous

    def _run_next(self, loop: asyncio.Runner) -> Lease | None:
        leases, previous = self._claim()
        if not leases and (
            operations.run_operations(self._store, paced=False) or self._run_periodic_tasks()
        ):
            leases, previous = self._claim()
        for lease in leases:
            handler = self._registry.resolve_handler(lease)
            context = Context(self, 0, lease, previous.get(lease.id, PreviousAttempts({}, None)))
            began = time.monotonic()
            self._context = context
            if isinstance(handler, Outcome):  # a test replaced the handler by an outcome
                outcome = handler
            else:
                outcome = self._execute(loop, handler, context)
            self._context = None
            took = round((time.monotonic() - began) * 1000)
            self._settle(Ending(lease, outcome, took))
            if self._interrupt_handler.interrupted:
                raise KeyboardInterrupt
        return leases[0] if leases else None

    def _run_periodic_tasks(self) -> bool:
        """Run all periodic tasks until they are done. True: they may have enqueued jobs."""
        more = True
        while more:
            results = [task.run_once(self._store) for task in self._periodic_tasks]
            more = any(results)
        return bool(self._periodic_tasks)

    def _execute(self, loop: asyncio.Runner, handler: Handler, context: Context) -> Outcome:
        outcome = STOPPED
        try:
            if handler.is_async:
                outcome = loop.run(self._execute_as_task(handler, context))
            else:
                outcome = execute_sync(handler, context, self.result_limit)
        except KeyboardInterrupt:
            if not self._interrupt_handler.interrupted:
                raise
        if outcome is STOPPED or self._interrupt_handler.interrupted:
            return Outcome(Ended.RELEASED, reason="stopped")
        return outcome

    async def _execute_as_task(self, handler: Handler, context: Context) -> Outcome | None:
        self._task = asyncio.current_task()
        try:
            return await execute_async(handler, context, self.result_limit)
        finally:
            self._task = None

    def _cancel(self, job_id: str, token: int) -> None:
        """Stop the running attempt if its job was cancelled. Runs on the renewal thread."""
        context, task = self._context, self._task
        if context is None or context.lease.fence != (job_id, token) or context.stop_requested:
            return
        context.request_stop()
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _settle(self, ending: Ending) -> None:
        watch = self._claimer.observer
        with self._store.begin() as tx:
            now = tx.now()
            context = SettleContext(
                self.policies,
                now,
                self._rng,
                observer=watch,
                kind_observer=self._kind_observer,
            )
            verdicts = settle(tx, [ending], context)
        watch.commit()
        log_verdicts(verdicts, self.policies, now)

    def _settle_fail_fast(self, tx: Transaction, endings: Sequence[Ending]) -> None:
        context = SettleContext(self.policies, tx.now(), self._rng, wait_for_batches=False)
        settle(tx, endings, context)

    # --- AttemptHost: what contexts need ---

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        lease = context.lease
        with self._store.begin() as tx:
            WorkerQueries(tx).update_progress(
                self.worker, [(lease.id, lease.token, fraction, message)]
            )

    def save_checkpoint(self, context: Context, name: str, value: str) -> bool:
        lease: Lease = context.lease
        with self._store.begin() as tx:
            return WorkerQueries(tx).save_checkpoint(
                lease.id, self.worker, lease.token, name, value
            )

    async def save_checkpoint_async(self, context: Context, name: str, value: str) -> bool:
        return await asyncio.to_thread(self.save_checkpoint, context, name, value)

    def _work_folder(self) -> Path:
        return work_folder(self._folder, self.worker)

    def workdir(self, context: Context) -> Path:
        return make_workdir(self._work_folder(), context.lease)

    def remove_workdir(self, context: Context) -> None:
        remove_workdir(self._work_folder(), context.lease)

    def mark(self, context: Context) -> str:
        return f"{self.worker}/inline/{context.lease.id}/{context.lease.token}"


class _RenewalThread:
    """Thread that renews the lease while a job runs, and reports cancellations."""

    def __init__(
        self, store: Store, worker: str, every: float, cancel: Callable[[str, int], None]
    ) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(store, worker, every, cancel), daemon=True
        )

    def _run(
        self, store: Store, worker: str, every: float, cancel: Callable[[str, int], None]
    ) -> None:
        while not self._stop.wait(every):
            try:
                with store.begin() as tx:
                    renewal = WorkerQueries(tx).renew_worker(worker, draining=False)
            except StoreUnavailable:
                continue
            for job_id, token, _ in renewal.cancels:
                cancel(job_id, token)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _InterruptHandler:
    """Handler of Ctrl-C: it ends the run, and the running job is released uncharged."""

    interrupted = False

    def _on_interrupt(self, *_: object) -> None:
        self.interrupted = True
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _refuse_on_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = (
        "run_inline() runs its own event loop. "
        "From async code use: await asyncio.to_thread(app.run_inline)"
    )
    raise Refused(message)

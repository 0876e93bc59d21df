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
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from mulligan.batches import cancel as batching
from mulligan.config import Settings
from mulligan.core.attempt import Ended, Ending, Lease, Outcome, StepFailure
from mulligan.core.durations import Micros
from mulligan.core.errors import Refused, StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import Lane, PreviousAttempts
from mulligan.guards.kind_observer import build_kind_observer
from mulligan.guards.observer import fold_guards
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.declared import publish_manifest
from mulligan.manifest.specs import Handler, Manifest, Registry
from mulligan.operations import chore as operations
from mulligan.releases.chore import ReleaseCounter
from mulligan.retries.effective import EffectivePolicies
from mulligan.schedules.chore import Scheduler
from mulligan.steps.gates import find_closed_gate
from mulligan.steps.queries import StepQueries, lease_after, step_write
from mulligan.steps.rules import ClosedGate, StepRecord
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
from mulligan.worker.queries import WorkerQueries, boot_id, new_worker_row
from mulligan.worker.recording import (
    Recording,
    RecordRing,
    build_log,
    encode_records,
    ring_size,
)
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, execute_async, execute_sync, run_process_hooks
from mulligan.worker.runner.flight_recorder import recording_into
from mulligan.worker.runner.hooks import (
    HookRun,
    Hooks,
    execute_async_with_hooks,
    execute_sync_with_hooks,
)
from mulligan.worker.settle import SettleContext, settle
from mulligan.worker.supervisor.chores import PeriodicTask


class InlineWorker:
    """A worker without runner processes. Implements `AttemptHost` for its contexts."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        registry: Registry,
        manifest: Manifest,
        rng: Random,
        dispatcher: PeriodicTask,
    ) -> None:
        self.state: Any = SimpleNamespace()
        self.rng = rng
        self._store = store
        self._settings = settings
        self._registry = registry
        self._manifest = manifest
        self._manifest_id = manifest.id
        self.policies = EffectivePolicies(
            settings.retry, manifest.kinds_with_rules, manifest.queues
        )
        self.result_limit = settings.limits.result
        self.tracer = registry.tracer
        self._hooks = Hooks(registry)
        self._dispatcher = dispatcher
        self.worker = f"w_{new_id()}"
        self._claimer = create_claimer(self.worker, manifest)
        self._claimer.prober.settle_endings = self._settle_fail_fast
        self._kind_observer = build_kind_observer(settings.guards)
        self._release_counter = ReleaseCounter()
        self._release_counter.release = manifest.release
        self._scheduler = Scheduler(store, settings.worker)
        self._context: Context | None = None  # of the running attempt
        self._recording: Recording | None = None  # of the running attempt, from its first record
        self._log_limit = 0
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
            stack.enter_context(recording_into(self._find_recording))
            self.state = SimpleNamespace()
            self._run_hooks(loop, self._registry.on_start)
            stack.callback(self._run_hooks, loop, self._registry.on_stop)
            yield partial(self._run_next, loop)

    def _run_hooks(self, loop: asyncio.Runner, hooks: Sequence[Callable[..., Any]]) -> None:
        if hooks:
            self.state = loop.run(run_process_hooks(hooks, self.state))

    def next_due(self) -> Micros | None:
        """Return when the next waiting job may start, as the last claim found it."""
        with self._store.read() as tx:
            waits = any(
                Lane.parse(key).kind in self._claimer.kinds
                for key, _, _ in GuardQueries(tx).read_claim_state().lanes
            )
        return self._next_due if waits else None

    def _register(self, liveness_file: LivenessFile) -> None:
        row = new_worker_row(
            self.worker, liveness_file, self._manifest, self._settings, frozenset(), 1
        )
        with self._store.begin() as tx:
            WorkerQueries(tx).insert_worker(row)
        self.run_upkeep()

    def run_upkeep(self) -> None:
        """Do what a worker does before it claims: recover jobs, fire schedules, fold guards."""
        due = self._find_due_upkeep()
        if "manifest" in due:
            with self._store.begin() as tx:
                publish_manifest(tx, self._manifest)
        if "workers" in due:
            detector = upkeep.LossDetector(self.worker, boot_id(), lambda _: False)
            upkeep.close_lost_workers(self._store, detector, self._settings.retry, self.rng)
            upkeep.settle_orphans(self._store, self._settings.retry, self.rng)
        if "announcements" in due:
            upkeep.announce_inserted(self._store)
        if "deadlines" in due:
            upkeep.expire_deadlines(self._store)
        if "batches" in due:
            batching.run_upkeep(self._store)
        if "guards" in due or self._claimer.observer.has_pending:
            fold_guards(self._store, self._claimer.observer, self._kind_observer)
        if "schedules" in due or self._manifest.schedules:
            self._scheduler.fire(ahead=False)

    def _find_due_upkeep(self) -> frozenset[str]:
        with self._store.read() as tx:
            return WorkerQueries(tx).find_due_upkeep(self.worker, self._manifest_id)

    def _close_worker(self) -> None:
        """Write what is counted and close the worker's row. Its id is never used again."""
        self._release_counter.run_once(self._store)
        with self._store.begin() as tx:
            WorkerQueries(tx).close_worker(self.worker, "shut down", last_renewed=None)
        self.worker = f"w_{new_id()}"
        self._claimer.worker = self._claimer.prober.worker = self.worker

    def _claim(self) -> tuple[list[Lease], dict[str, PreviousAttempts]]:
        with self._store.begin() as tx:
            claimed = self._claimer.claim(tx, 1)
            previous = WorkerQueries(tx).previous_attempts_of(
                claimed.leases, self._claimer.history_kinds
            )
        self._next_due = claimed.next_due
        self._claimer.observer.commit()
        log_claimed(claimed.leases, self.worker)
        return claimed.leases, previous

    def _claim_next(self) -> tuple[list[Lease], dict[str, PreviousAttempts]]:
        """Claim a job. If there are very many lanes, one claim does not read all of them."""
        leases, previous = self._claim()
        while not leases and self._claimer.scan.reads_on:
            leases, previous = self._claim()
        return leases, previous

    def _run_next(self, loop: asyncio.Runner) -> Lease | None:
        leases, previous = self._claim_next()
        if not leases and self._run_idle_tasks():
            leases, previous = self._claim_next()
        for lease in leases:
            handler = self._find_handler(lease)
            context = Context(self, 0, lease, previous.get(lease.id))
            self._recording = None
            self._log_limit = self._registry.handlers[lease.kind].spec.log
            began = time.monotonic()
            self._context = context
            if isinstance(handler, Outcome):  # a test replaced the handler by an outcome
                outcome = handler
            else:
                outcome = self._execute(loop, handler, context)
            self._context = None
            outcome = self._with_log(outcome)
            took = round((time.monotonic() - began) * 1000)
            self._settle(Ending(context.lease, outcome, took))
            if self._hooks.has_faults:
                self._record_hook_faults()
            if self._interrupt_handler.interrupted:
                raise KeyboardInterrupt
        return leases[0] if leases else None

    def _find_handler(self, lease: Lease) -> Handler | Outcome:
        """Return the handler of an attempt, or what a test put in its place."""
        handler = self._registry.handlers[lease.kind]
        for override in reversed(self._registry.overrides):
            replacement = override(handler, lease)
            if replacement is not None:
                return replacement
        return handler

    def _run_idle_tasks(self) -> bool:
        """Continue operations and dispatch notifications. True: they may have enqueued jobs."""
        due = self._find_due_upkeep()
        if "operations" in due and operations.run_operations(self._store, paced=False):
            return True
        if "notifications" not in due:
            return False
        while self._dispatcher.run_once(self._store):
            pass
        return True

    def _execute(self, loop: asyncio.Runner, handler: Handler, context: Context) -> Outcome:
        outcome = STOPPED
        try:
            if handler.is_async:
                outcome = loop.run(self._execute_as_task(handler, context))
            elif self._hooks.apply_to(handler):
                outcome = self._execute_sync_with_hooks(loop, handler, context)
            else:
                outcome = execute_sync(handler, context, self.result_limit)
        except KeyboardInterrupt:
            if not self._interrupt_handler.interrupted:
                raise
        if outcome is STOPPED or self._interrupt_handler.interrupted:
            return Outcome(Ended.RELEASED, reason="stopped", interrupted=True)
        return outcome

    def _find_recording(self, lease: Lease | None) -> Recording | None:
        """Return the recording of the running attempt, for what was logged in its context."""
        context = self._context
        if context is None or context.lease is not lease or not self._log_limit:
            return None
        if self._recording is None:
            ring = RecordRing(memoryview(bytearray(ring_size(1))))
            self._recording = Recording(ring, 1, self._log_limit)
        return self._recording

    def _with_log(self, outcome: Outcome) -> Outcome:
        """Add the last records of an attempt that has failed."""
        if self._recording is None or outcome.failure is None:
            return outcome
        return outcome._replace(log=build_log(encode_records(self._recording.end()), ""))

    async def _execute_as_task(self, handler: Handler, context: Context) -> Outcome | None:
        self._task = asyncio.current_task()
        try:
            if self._hooks.apply_to(handler):
                run = HookRun(self._hooks, context)
                return await execute_async_with_hooks(handler, run, self.result_limit)
            return await execute_async(handler, context, self.result_limit)
        finally:
            self._task = None

    def _execute_sync_with_hooks(
        self, loop: asyncio.Runner, handler: Handler, context: Context
    ) -> Outcome | None:
        """Run a sync handler with hooks; on a thread if the event loop must run async ones."""
        limit = self.result_limit
        if not self._hooks.any_async:
            return execute_sync_with_hooks(handler, HookRun(self._hooks, context), limit)
        run = HookRun(self._hooks, context, loop.get_loop())
        return loop.run(asyncio.to_thread(execute_sync_with_hooks, handler, run, limit))

    def _record_hook_faults(self) -> None:
        faults = self._hooks.take_faults()
        with self._store.begin() as tx:
            WorkerQueries(tx).record_hook_faults(self.worker, faults)

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
                self.rng,
                observer=watch,
                kind_observer=self._kind_observer,
            )
            verdicts = settle(tx, [ending], context)
        watch.commit()
        self._release_counter.count(verdicts)
        log_verdicts(verdicts, self.policies, now)

    def _settle_fail_fast(self, tx: Transaction, endings: Sequence[Ending]) -> None:
        context = SettleContext(self.policies, tx.now(), self.rng, wait_for_batches=False)
        settle(tx, endings, context)

    # --- AttemptHost: what contexts need ---

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        lease = context.lease
        with self._store.begin() as tx:
            WorkerQueries(tx).update_progress(
                self.worker, [(lease.id, lease.token, fraction, message)]
            )

    def save_step(self, context: Context, record: StepRecord) -> bool:
        write = step_write(context.lease, record)
        with self._store.begin() as tx:
            saved = bool(StepQueries(tx).save([write]))
        if saved:
            context.lease = lease_after(context.lease, write)
        return saved

    async def save_step_async(self, context: Context, record: StepRecord) -> bool:
        return await asyncio.to_thread(self.save_step, context, record)

    def find_closed_gate(self, context: Context, keys: Sequence[str]) -> ClosedGate | None:
        probed = self._claimer.observer.probes.get(context.lease.fence, ())
        with self._store.read() as tx:
            return find_closed_gate(tx, [key for key in keys if key not in probed])

    async def find_closed_gate_async(
        self, context: Context, keys: Sequence[str]
    ) -> ClosedGate | None:
        return await asyncio.to_thread(self.find_closed_gate, context, keys)

    def step_began(self, context: Context, step: StepFailure, timeout: Micros | None) -> None:
        """Do nothing: the limits of a worker do not apply here."""

    def step_ended(self, context: Context, name: str) -> None:
        """Do nothing: the limits of a worker do not apply here."""

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
        self.interrupted = False
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

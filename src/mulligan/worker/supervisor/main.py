"""The supervisor: claims, renews, settles and sweeps. It imports no handler and runs no user code.

One event loop on the main thread watches the runners. Other threads talk to the database:
transactions, renewals, chores and periodic tasks. Nothing that a handler does can stop a renewal,
and nothing that the database does can stop a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mulligan.config import Settings, read_settings
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import StatementAborted, StoreUnavailable
from mulligan.core.format import mask_password
from mulligan.core.ids import new_id
from mulligan.core.job import WorkerRow
from mulligan.failures.redact import remove_secrets
from mulligan.guards.kind_observer import build_kind_observer
from mulligan.manifest.specs import SYSTEM_PREFIX, Manifest
from mulligan.operations import chore as operations
from mulligan.releases.chore import ReleaseCounter
from mulligan.retries.effective import EffectivePolicies
from mulligan.steps.rules import ClosedGate
from mulligan.storage import same_database
from mulligan.storage.base import Store
from mulligan.worker.claim import create_claimer
from mulligan.worker.liveness import LivenessFile, state_folder, work_folder
from mulligan.worker.protocol import HookFault
from mulligan.worker.queries import new_worker_row, warm_up
from mulligan.worker.startup import finish_loading
from mulligan.worker.supervisor.chores import Chores, PeriodicTask, PeriodicTasks, Waker
from mulligan.worker.supervisor.deaths import oom_count_rose
from mulligan.worker.supervisor.loop import WorkLoop
from mulligan.worker.supervisor.runner_process import (
    ActiveAttempt,
    KillReason,
    RunnerCommand,
    StopReason,
    stderr_forwarder,
)
from mulligan.worker.supervisor.runners import TICK, AppLoadFailed, Runners
from mulligan.worker.supervisor.step_writer import StepWriter
from mulligan.worker.supervisor.transactions import LoopTransactions

log = logging.getLogger("mulligan.worker")

NO_FILE = Path(os.devnull)
OPERATIONS_INTERVAL = 1.0  # seconds between steps of operations
OPERATIONS_IDLE_INTERVAL = 5.0  # seconds between checks for new operations
STATEMENT_LIMIT = 10.0  # seconds; then the connection counts as broken
FIRST_SWEEP = 1.0  # seconds after the start
TOUCH_INTERVAL = 5.0  # seconds between touches of the liveness file
IDLE_TICK = 2.0  # seconds between checks of limits while nothing runs
CLOCK_JUMP = 5 * SECOND  # change of the store's clock that starts a full sweep


class DatabaseMismatch(AppLoadFailed):
    """The app uses another database than this worker."""


@dataclass
class WorkerOptions:
    """Options of the command line that are not settings."""

    app: str
    queues: frozenset[str] | None = None
    canary: float | None = None  # share of each kind until the release is judged
    runner_module: str = "mulligan.worker.runner"
    periodic_tasks: tuple[PeriodicTask, ...] = ()  # notifications, alerts, metrics


class Supervisor:
    """One worker from start to exit."""

    def __init__(self, store: Store, settings: Settings, options: WorkerOptions) -> None:
        self._store = store
        self._settings = settings
        self._options = options
        self._hinted = False  # something was written: perhaps a cancellation
        self._registered = False  # the row of this worker may exist
        # Difference of the store's clock and the monotonic clock; a guess until the store answers.
        self._clock_offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._release_counter = ReleaseCounter()
        self._operating = False
        self._guards_folded = time.monotonic()

    # --- The store's clock ---

    def clock(self) -> Micros:
        """Return the time of the store's clock, estimated from its last answer."""
        return time.monotonic_ns() // 1000 + self._clock_offset

    def _set_clock(self, now: Micros) -> None:
        before = self._clock_offset
        self._clock_offset = now - time.monotonic_ns() // 1000
        if abs(self._clock_offset - before) > CLOCK_JUMP:
            # The clock was set: deadlines and retention may be due now.
            self._chores.note_clock_jump(time.monotonic_ns() // 1000 + before)
            self._chores.request_full_sweep()
            self._sweep_now.set()

    # --- Start ---

    async def run(self) -> int:
        """Run the worker until it is stopped. Return its exit code."""
        self._loop = asyncio.get_running_loop()
        self._sweep_now = asyncio.Event()
        self._operations_due = asyncio.Event()
        self._signals = 0
        self._wait_for_jobs = False  # stopping, but without a time limit for running jobs
        self._stopping = asyncio.Event()
        self._exit_now = asyncio.Event()  # a second signal
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        oom_count_rose()
        self._create_threads()
        for store in (self._store, self._store.dedicated()):
            store.limit_statements(STATEMENT_LIMIT)
        self._work_loop = WorkLoop(
            self._settings.worker,
            self.clock,
            self._set_clock,
            self._may_claim,
            self._store.open_listener,
            self._on_hint,
            concurrent_writers=self._store.concurrent_writers,
        )
        self._work_loop.start()
        try:
            if not await self._start_unless_stopped():
                return 0
        except AppLoadFailed as error:
            return await self._exit_load_failed(error)
        finish_loading()
        return await self._run_until_stopped(self._start_tasks())

    def _create_threads(self) -> None:
        self._chore_thread = ThreadPoolExecutor(1, "mulligan-chores")
        # Renewals have their own thread, so that a long sweep cannot delay one.
        self._renew_thread = ThreadPoolExecutor(1, "mulligan-renewals")

    def _start_tasks(self) -> list[asyncio.Task[None]]:
        """Start all loops; the claim/settle loop first."""
        periodic = PeriodicTasks(
            (*self._options.periodic_tasks, self._release_counter, self._operations_waker()),
            self._store,
        )
        loops = (
            self._work_loop.run(),
            self._renew_loop(),
            self._sweep_loop(),
            self._operations_loop(),
            self._tick_loop(),
            periodic.run(),
        )
        return [self._loop.create_task(loop) for loop in loops]

    async def _exit_load_failed(self, error: AppLoadFailed) -> int:
        log.error("cannot load %s: %s", self._options.app, error)
        await self._runners.close(KillReason.LOAD_FAILED)
        self._work_loop.stop()
        self._liveness_file.close()
        stderr_forwarder.flush()
        return 2 if isinstance(error, DatabaseMismatch) else 1

    async def _start_unless_stopped(self) -> bool:
        """Start the worker. False if a signal stopped it before it was ready."""
        starting = self._loop.create_task(self._start())
        stopping = self._loop.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await self._runners.close(KillReason.SHUTDOWN)
        if self._registered:
            # The chore thread may still be writing our row. This runs after it, on the same thread.
            with contextlib.suppress(StoreUnavailable):
                await self._loop.run_in_executor(
                    self._chore_thread, self._chores.close_worker, self.worker
                )
        self._liveness_file.close()
        self._work_loop.stop()
        self._close_threads()
        return False

    async def _start(self) -> None:
        """Start runners, recover jobs of dead siblings, load the app and register this worker."""
        self.worker = f"w_{new_id()}"
        folder = state_folder(
            self._settings.worker.state_dir, self._store.lock_directory, self._store.identity
        )
        self._liveness_file = LivenessFile(folder, self.worker)
        self._chores = Chores(self._store, self._settings, folder)
        self._runners = self._create_runners(work_folder(folder, self.worker))
        self._runners.start()
        await self._chore_until_done(partial(self._chores.recover_at_start, self.worker))
        warming_up = self._work_loop.submit(partial(warm_up, self._store.dedicated()))
        warming_up.add_done_callback(_ignore_error)  # the first transaction will report any error
        manifest = await self._runners.wait_for_manifest()
        self._use_app_settings(self._runners.app_settings)
        self._create_transactions(manifest)
        self._registered = True
        await self._chore_until_done(partial(self._chores.register, self._row(manifest), manifest))
        self._work_loop.attach(self._runners, self._transactions, manifest)
        kinds = sum(not name.startswith(SYSTEM_PREFIX) for name in manifest.kinds)
        noun = "kind" if kinds == 1 else "kinds"
        log.info(
            "worker %s: %d %s, concurrency %d, %s",
            self.worker,
            kinds,
            noun,
            self._settings.worker.concurrency,
            self._store.url,
        )
        if not kinds:
            log.warning(
                "%s has no kinds, so this worker will run nothing: import the modules with "
                "@app.job where the app is loaded, for example at the end of its module",
                self._options.app,
            )
        self._warn_of_unknown_queues(manifest)

    def _warn_of_unknown_queues(self, manifest: Manifest) -> None:
        """Log the queues of --queues that no kind uses: probably a typo."""
        known = manifest.queue_names
        for queue in sorted((self._options.queues or frozenset()) - known):
            log.warning(
                "no kind of %s uses the queue %s of --queues. It uses %s",
                self._options.app,
                queue,
                ", ".join(sorted(known)),
            )

    def _create_runners(self, folder: Path) -> Runners:
        command = RunnerCommand(
            self._options.app, self.worker, folder, self._settings.log, self._options.runner_module
        )
        runners = Runners(command, self._settings.worker, self._work_loop.add_endings, self.clock)
        runners.on_progress = self._on_progress
        runners.on_step = StepWriter(self._chores.save_steps, self._work_loop.submit).save
        runners.on_gates = self._find_closed_gate
        runners.on_death = self._on_runner_death
        runners.on_recall = self._work_loop.stop_prefetch
        runners.hook_watch.on_faults = self._on_hook_faults
        return runners

    def _find_closed_gate(
        self, attempt: ActiveAttempt, keys: list[str]
    ) -> asyncio.Future[ClosedGate | None]:
        """Find a dependency of a step that is down. A probe of it may call it."""
        probed = self._observer.probes.get(attempt.lease.fence, ())
        wanted = [key for key in keys if key not in probed]
        return self._work_loop.submit(partial(self._chores.find_closed_gate, wanted))

    def _create_transactions(self, manifest: Manifest) -> None:
        policies = EffectivePolicies(
            self._settings.retry, manifest.kinds_with_rules, manifest.queues
        )
        canary = self._options.canary
        if canary is not None and not manifest.release:
            message = "--canary needs a release. Set MULLIGAN_RELEASE."
            raise AppLoadFailed(message)
        claimer = create_claimer(self.worker, manifest, self._options.queues, canary)
        self._observer = claimer.observer
        self._release_counter.release = manifest.release
        self._runners.on_manifest = self._work_loop.apply_manifest
        self._runners.all_written = lambda: self._work_loop.all_written
        self._transactions = LoopTransactions(
            self._store.dedicated(),
            policies,
            claimer,
            build_kind_observer(self._settings.guards),
            self._release_counter,
        )
        self._runners.is_suspect = self._transactions.is_suspect

    def _use_app_settings(self, values: dict[str, Any]) -> None:
        """Use the settings that the app has set in its code. Refuse another database."""
        app = read_settings(values, environ={}, file=NO_FILE)
        if not same_database(app.database_url, self._settings.database_url):
            ours = remove_secrets(mask_password(self._settings.database_url))
            theirs = remove_secrets(mask_password(app.database_url))
            message = (
                f"two databases: {self._options.app} uses {theirs} in its code, "
                f"{self._settings.origin_of('database_url')} names {ours}. "
                "Jobs that handlers enqueue would go to the first. "
                "Write Mulligan() without a URL in the code, or remove the other setting."
            )
            raise DatabaseMismatch(message)
        changed = {"retry": app.retry, "retention": app.retention, "guards": app.guards}
        self._settings = self._settings.model_copy(update=changed)
        self._chores.settings = self._settings

    def _row(self, manifest: Manifest) -> WorkerRow:
        queues = self._options.queues or frozenset()
        concurrency = self._settings.worker.concurrency
        return new_worker_row(
            self.worker, self._liveness_file, manifest, self._settings, queues, concurrency
        )

    async def _chore_until_done(self, chore: Any) -> Any:
        """Run a chore, and again each second while the database is unavailable."""
        while True:
            try:
                return await self._loop.run_in_executor(self._chore_thread, chore)
            except StoreUnavailable as outage:
                log.warning("%s; trying again", outage)
                await asyncio.sleep(1.0)

    # --- Signals, drain requests and hints ---

    def _on_signal(self) -> None:
        self._signals += 1
        self._wait_for_jobs = False
        if self._signals == 1:
            log.info(
                "stopping: no new jobs, %g s for running ones",
                self._settings.worker.shutdown_grace,
            )
            self._stopping.set()
        else:
            self._exit_now.set()
        self._work_loop.wake()

    def _on_drain_request(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.info("draining: no new jobs; exit when all running jobs have ended (%s)", reason)
            self._wait_for_jobs = True
            self._stopping.set()
            self._work_loop.wake()

    def _may_claim(self) -> bool:
        """True if jobs may be claimed now. Called on the transaction thread."""
        if self._stopping.is_set() or self._chores.must_not_claim():
            return False
        return self._runners.can_accept

    def _on_hint(self) -> None:
        self._hinted = True

    # --- Limits and progress ---

    async def _tick_loop(self) -> None:
        """Check the limits of running attempts; rarely while nothing runs.

        Every few seconds touch the liveness file: its time shows that this loop runs, whatever the
        database does.
        """
        touched = 0.0
        while True:
            if not self._runners.count:
                self._runners.activity.clear()
                timer = self._loop.call_later(IDLE_TICK, self._runners.activity.set)
                await self._runners.activity.wait()
                timer.cancel()
            await asyncio.sleep(TICK)
            self._runners.tick()
            if time.monotonic() - touched >= TOUCH_INTERVAL:
                touched = time.monotonic()
                self._liveness_file.touch()

    def _on_progress(self, attempt: ActiveAttempt, fraction: float | None, message: str) -> None:
        self._work_loop.progress[attempt.lease.fence] = (fraction, message)

    # --- Chores ---

    async def _renew_loop(self) -> None:
        heartbeat = self._settings.worker.heartbeat
        pause = min(0.5, heartbeat / 4)
        renewed = 0.0
        while True:
            now = time.monotonic()
            if now - renewed >= heartbeat:
                renewed = now
                await self._run_chore(self._renew())
            elif self._hinted and self._runners.count:
                # The hint may be about a cancellation or a changed clock.
                self._hinted = False
                await self._run_chore(self._read_cancel_requests())
            if self._work_loop.progress:
                await self._run_chore(self._write_progress())
            await self._run_chore(self._check_dependencies())
            await asyncio.sleep(pause)
            if not (self._runners.count or self._work_loop.progress):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._runners.activity.wait(), 3 * pause)

    async def _sweep_loop(self) -> None:
        """Sweep for lost workers every `worker.sweep` seconds.

        The first sweep comes early and finds little: jobs of dead siblings were recovered at
        start-up.
        """
        pause = min(FIRST_SWEEP, self._settings.worker.sweep)
        while True:
            timer = self._loop.call_later(pause, self._sweep_now.set)
            await self._sweep_now.wait()
            timer.cancel()
            self._sweep_now.clear()
            await self._run_chore(self._sweep())
            pause = self._settings.worker.sweep

    def _operations_waker(self) -> Waker:
        """Return a task that wakes the operations loop, checked by the periodic task thread."""

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._operations_due.set)

        return Waker("operations", OPERATIONS_INTERVAL, operations.any_active, wake)

    async def _operations_loop(self) -> None:
        while True:
            timer = self._loop.call_later(OPERATIONS_IDLE_INTERVAL, self._operations_due.set)
            await self._operations_due.wait()
            timer.cancel()
            self._operations_due.clear()
            self._operating = True
            while self._operating:
                self._operating = False
                await self._run_chore(self._run_operations())
                await asyncio.sleep(OPERATIONS_INTERVAL)

    async def _run_chore(self, chore: Coroutine[Any, Any, None]) -> None:
        """Run a chore and log its error: it is tried again next time, and must not stop others."""
        try:
            await chore
        except StatementAborted as error:
            log.warning("a chore failed; it will be tried again: %s", error)
        except StoreUnavailable:
            return
        except AppLoadFailed:
            raise
        except Exception:
            log.exception("a chore failed; it will be tried again")

    async def _renew(self) -> None:
        draining = self._stopping.is_set()
        renewal = await self._loop.run_in_executor(
            self._renew_thread, self._chores.renew, self.worker, draining
        )
        self._set_clock(renewal.now)
        if not renewal.alive:
            await self._restart_as_new_worker()
            return
        self._cancel(renewal.cancels)
        if renewal.drain is not None:
            self._on_drain_request(renewal.drain)

    async def _read_cancel_requests(self) -> None:
        now, requests = await self._loop.run_in_executor(
            self._renew_thread, self._chores.cancel_requests, self.worker
        )
        self._set_clock(now)
        self._cancel(requests)

    def _cancel(self, requests: list[tuple[str, int, str]]) -> None:
        for job_id, token, reason in requests:
            self._runners.cancel(job_id, token, reason)

    async def _restart_as_new_worker(self) -> None:
        """Kill all attempts and register under a new id: another worker declared this one lost."""
        log.warning("worker %s was declared lost; continuing under a new id", self.worker)
        await self._runners.close(KillReason.WORKER_LOST)
        self._liveness_file.close()
        await self._start()

    def _on_runner_death(self, evidence: dict[str, Any]) -> None:
        """Record the death as an event, if the database is available."""
        self._chore_thread.submit(self._chores.record_runner_death, self.worker, evidence)

    def _on_hook_faults(self, faults: list[HookFault]) -> None:
        self._chore_thread.submit(self._chores.record_hook_faults, self.worker, faults)

    async def _write_progress(self) -> None:
        progress = self._work_loop.progress
        self._work_loop.progress = {}
        rows = [
            (job_id, token, fraction, message)
            for (job_id, token), (fraction, message) in progress.items()
        ]
        await self._loop.run_in_executor(
            self._renew_thread, self._chores.write_progress, self.worker, rows
        )

    async def _check_dependencies(self) -> None:
        """Count overdue calls, and fold guards from time to time.

        Whether there is anything to fold is read here, so that it delays no claim.
        """
        now = time.monotonic()
        fold = now - self._guards_folded >= self._settings.worker.sweep
        if fold:
            self._guards_folded = now
            find = self._transactions.has_guards_to_fold
            fold = await self._loop.run_in_executor(self._renew_thread, find, self._store)
        running = self._runners.dependency_runtimes()
        if running or fold:
            check = partial(self._transactions.check_dependencies, running, fold=fold)
            await self._work_loop.submit(check)

    async def _sweep(self) -> None:
        if await self._loop.run_in_executor(self._chore_thread, self._chores.sweep, self.worker):
            self._work_loop.wake()

    async def _run_operations(self) -> None:
        moved, self._operating = await self._loop.run_in_executor(
            self._chore_thread, self._chores.run_operations
        )
        if moved:
            self._work_loop.wake()

    # --- Exit ---

    async def _run_until_stopped(self, tasks: list[asyncio.Task[None]]) -> int:
        stopping = self._loop.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in done if task is not stopping]
        for task in failed:  # a loop ends only by a bug: report it, and shut down in order
            log.critical(
                "a part of the supervisor failed; shutting down", exc_info=task.exception()
            )
            self._stopping.set()
            self._exit_now.set()
        stopping.cancel()
        await self._drain()
        await self._end_tasks(*tasks)
        await self._exit()
        return 1 if failed else 0

    async def _end_tasks(self, work_loop: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
        """End all loops. The claim/settle loop holds endings and is never cancelled."""
        self._work_loop.stop()
        await asyncio.gather(work_loop, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _drain(self) -> None:
        """Wait for running jobs, then request them to stop, then kill them; within the grace."""
        grace = self._settings.worker.shutdown_grace
        self._runners.release_unstarted()
        while self._wait_for_jobs and self._has_jobs():  # noqa: ASYNC110 - a count, once per worker
            await asyncio.sleep(0.05)
        end = time.monotonic() + grace
        await self._wait_until_empty(end - min(3.0, grace * 0.3))
        self._runners.request_stop_all(StopReason.RELEASE)
        await self._wait_until_empty(end - min(1.5, grace * 0.15))
        if self._runners.count:
            await self._runners.close(KillReason.SHUTDOWN)
        else:
            await self._runners.drain()

    def _has_jobs(self) -> bool:
        return bool(self._runners.count or self._work_loop.unwritten)

    async def _wait_until_empty(self, deadline: float) -> None:
        while (  # noqa: ASYNC110 - a count, once per worker
            self._has_jobs() and time.monotonic() < deadline and not self._exit_now.is_set()
        ):
            await asyncio.sleep(0.02)

    async def _exit(self) -> None:
        """Write the last endings and close our row.

        If the database is unavailable, other workers will find the lease expired.
        """
        await self._runners.close(KillReason.SHUTDOWN)
        for _ in range(3):
            try:
                endings = self._work_loop.unwritten
                await self._loop.run_in_executor(
                    self._renew_thread,
                    self._transactions.release_all,
                    endings,
                    self.clock(),
                )
                await self._loop.run_in_executor(
                    self._renew_thread, self._release_counter.run_once, self._store
                )
                await self._loop.run_in_executor(
                    self._renew_thread, self._chores.close_worker, self.worker
                )
                break
            except StoreUnavailable as outage:
                log.warning("%s; trying again before exit", outage)
                await asyncio.sleep(0.3)
        await self._loop.run_in_executor(None, self._chores.remove_folders, self.worker)
        await self._loop.run_in_executor(None, stderr_forwarder.flush)
        self._liveness_file.close()
        self._close_threads()

    def _close_threads(self) -> None:
        for thread in (self._chore_thread, self._renew_thread):
            thread.shutdown(wait=False)


def _ignore_error(call: asyncio.Future[None]) -> None:
    if not call.cancelled():
        call.exception()

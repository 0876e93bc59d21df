"""The same walk in one process, one job at a time: for scripts and tests.

Kept here: claims, leases, classification, decisions, the one door, history. Not kept: hard time limits, memory
limits, survival of a handler that kills its process. For those there is `mulligan worker`.
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
from mulligan.core.errors import Refused, StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import Lane, Micros, PreviousAttempts
from mulligan.guards.observer import causes_of, tend
from mulligan.manifest.declared import speak
from mulligan.manifest.specs import Handler, Manifest, Registry
from mulligan.operations import chore as operate
from mulligan.retries.effective import EffectivePolicies
from mulligan.schedules.chore import Timekeeper
from mulligan.storage.base import Store, Transaction
from mulligan.storage.url import boot_id
from mulligan.worker import liveness as life
from mulligan.worker import upkeep
from mulligan.worker.claim import claimer_of, memories
from mulligan.worker.job_log import tell_due, tell_verdicts
from mulligan.worker.liveness import make_workdir, remove_workdir, worker_row
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, call_hooks, execute_async, execute_sync
from mulligan.worker.settle import settle
from mulligan.worker.supervisor.periodic import PeriodicTask


class Inline:
    """A worker without children. Implements `Link` for the contexts it makes."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        registry: Registry,
        manifest: Manifest,
        rng: Random,
        outlets: Sequence[PeriodicTask] = (),
    ) -> None:
        self.state: Any = SimpleNamespace()
        self._store = store
        self._settings = settings
        self._registry = registry
        self._manifest = manifest
        self.policies = EffectivePolicies(settings.retry, manifest.ruled, manifest.queues)
        self.result_limit = settings.limits.result
        self.tracer = registry.tracer
        self._rng = rng
        self._outlets = outlets
        self.worker = f"w_{new_id()}"
        self._claimer = claimer_of(self.worker, manifest)
        self._claimer.end = self._end
        self._causes = causes_of(settings.guards)
        self._context: Context | None = None  # of the attempt that runs
        self._task: asyncio.Task[Any] | None = None
        self._interrupts = _Interrupts()
        self._next_due: Micros | None = None
        self._folder = life.state_folder(settings.worker.state_dir, store.place, store.identity)

    def run(self, *, until_idle: bool) -> int:
        """Run what is due; with `until_idle` until nothing is due any more. Returns how many attempts ran."""
        ran = 0
        with self.session() as step:
            while step() is not None:
                ran += 1
                if not until_idle:
                    break
        return ran

    @contextmanager
    def session(self) -> Iterator[Callable[[], Lease | None]]:
        """A worker's whole life. What it yields runs the next job that is due; None: there is none."""
        _not_on_a_loop()
        with ExitStack() as stack:
            loop = stack.enter_context(asyncio.Runner())
            life_file = life.LivenessFile(self._folder, self.worker)
            stack.callback(life_file.close)
            self._open(life_file)
            stack.callback(self._leave)
            stack.enter_context(
                _Renewals(self._store, self.worker, self._settings.worker.heartbeat, self._cancel)
            )
            stack.enter_context(self._interrupts)
            self.state = loop.run(call_hooks(self._registry.on_start, self.state))
            stack.callback(lambda: loop.run(call_hooks(self._registry.on_stop, self.state)))
            yield lambda: self._one(loop)

    def next_due(self) -> Micros | None:
        """When the next of the jobs that wait here may start, as the last look for one has found."""
        with self._store.read() as unit:
            waits = any(
                Lane.parse(key).kind in self._claimer.kinds for key, _, _ in unit.look().lanes
            )
        return self._next_due if waits else None

    def _open(self, life_file: life.LivenessFile) -> None:
        with self._store.begin() as unit:
            unit.open_worker(
                worker_row(self.worker, life_file, self._manifest, self._settings, frozenset(), 1)
            )
        self.tend()

    def tend(self) -> None:
        """What a worker does before it looks for work."""
        with self._store.begin() as unit:
            speak(unit, self._manifest)
        upkeep.close_dead(self._store, upkeep.Judge(self.worker, boot_id(), lambda _: False))
        upkeep.settle_orphans(self._store, self._settings.retry, self._rng)
        upkeep.announce(self._store)
        upkeep.expire_deadlines(self._store)
        batching.sweep(self._store)
        tend(self._store, self._claimer.watch, self._causes)
        Timekeeper(self._store, self._settings.worker).fire(ahead=False)

    def _leave(self) -> None:
        with self._store.begin() as unit:
            unit.close_worker(self.worker, "left in order", seen=None)

    def _claim(self) -> tuple[list[Lease], dict[str, PreviousAttempts]]:
        with self._store.begin() as unit:
            leases, _, self._next_due, *_ = self._claimer.claim(unit, 1)
            kept = memories(unit, leases)
        self._claimer.watch.commit()
        tell_due(leases, self.worker)
        return leases, kept

    def _one(self, loop: asyncio.Runner) -> Lease | None:
        leases, kept = self._claim()
        if not leases and (operate.turn(self._store, paced=False) or self._tell()):
            leases, kept = self._claim()
        for lease in leases:
            handler = self._registry.stand_in(lease)
            context = Context(self, 0, lease, kept.get(lease.id, PreviousAttempts({}, None)))
            began = time.monotonic()
            self._context = context
            outcome = (
                handler if isinstance(handler, Outcome) else self._execute(loop, handler, context)
            )
            self._context = None
            took = round((time.monotonic() - began) * 1000)
            self._settle(Ending(lease, outcome, took))
            if self._interrupts.heard:
                raise KeyboardInterrupt
        return leases[0] if leases else None

    def _tell(self) -> bool:
        """Whatever works beside the engine, until it has nothing to do. True: it may have enqueued something."""
        turns = [outlet.turn(self._store) for outlet in self._outlets]
        while any(turns):
            turns = [outlet.turn(self._store) for outlet in self._outlets]
        return bool(turns)

    def _execute(self, loop: asyncio.Runner, handler: Handler, context: Context) -> Outcome:
        outcome = STOPPED
        try:
            if handler.is_async:
                outcome = loop.run(self._as_task(handler, context))
            else:
                outcome = execute_sync(handler, context, self.result_limit)
        except KeyboardInterrupt:
            if not self._interrupts.heard:
                raise
        if outcome is STOPPED or self._interrupts.heard:
            return Outcome(Ended.RELEASED, reason="stopped")
        return outcome

    async def _as_task(self, handler: Handler, context: Context) -> Outcome | None:
        self._task = asyncio.current_task()
        try:
            return await execute_async(handler, context, self.result_limit)
        finally:
            self._task = None

    def _cancel(self, job_id: str, token: int) -> None:
        """On the thread of the renewals: somebody wants this attempt to stop."""
        context, task = self._context, self._task
        if context is None or context.lease.fence != (job_id, token) or context.stop_asked:
            return
        context.ask_to_stop()
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _settle(self, ending: Ending) -> None:
        watch = self._claimer.watch
        with self._store.begin() as unit:
            now = unit.now()
            verdicts = settle(
                unit, [ending], self.policies, now, self._rng, watch=watch, causes=self._causes
            )
        watch.commit()
        tell_verdicts(verdicts, self.policies, now)

    def _end(self, unit: Transaction, endings: Sequence[Ending]) -> None:
        settle(unit, endings, self.policies, unit.now(), self._rng, wait=False)

    # -- what contexts need -------------------------------------------------------------------------
    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        lease = context.lease
        with self._store.begin() as unit:
            unit.progress(self.worker, [(lease.id, lease.token, fraction, message)])

    def keep(self, context: Context, name: str, value: str) -> bool:
        lease: Lease = context.lease
        with self._store.begin() as unit:
            return unit.checkpoint(lease.id, self.worker, lease.token, name, value)

    async def keep_async(self, context: Context, name: str, value: str) -> bool:
        return await asyncio.to_thread(self.keep, context, name, value)

    def _work(self) -> Path:
        return life.work_folder(self._folder, self.worker)

    def workdir(self, context: Context) -> Path:
        return make_workdir(self._work(), context.lease)

    def remove_workdir(self, context: Context) -> None:
        remove_workdir(self._work(), context.lease)

    def mark(self, context: Context) -> str:
        return f"{self.worker}/inline/{context.lease.id}/{context.lease.token}"


class _Renewals:
    """A thread that keeps the lease while a long job runs, and hears who wants it to stop."""

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
                with store.begin() as unit:
                    renewal = unit.renew(worker, draining=False)
            except StoreUnavailable:
                continue
            for job_id, token, _ in renewal.cancels:
                cancel(job_id, token)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _Interrupts:
    """Ctrl-C means the person at the keyboard, not the job: it ends the run, and the job goes back unharmed."""

    heard = False

    def _hear(self, *_: object) -> None:
        self.heard = True
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _not_on_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = "run_inline() runs a loop of its own; from async code use: await asyncio.to_thread(app.run_inline)"
    raise Refused(message)

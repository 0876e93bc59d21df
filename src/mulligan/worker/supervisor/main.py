"""The supervisor: claims, renews, settles, sweeps. It runs no user code and imports no handler.

One loop on the main thread watches the runners; other threads talk to the database (turns, renewals, chores, hints).
Nothing a handler does can stop a renewal, and nothing the database does can stop a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mulligan.config import Settings, read_settings
from mulligan.core.errors import StoreUnavailable
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, Micros, WorkerRow
from mulligan.failures.redact import without_secrets
from mulligan.guards.observer import causes_of
from mulligan.manifest.specs import OURS, Manifest
from mulligan.operations import chore as operate
from mulligan.retries.effective import EffectivePolicies
from mulligan.storage.base import Store
from mulligan.storage.url import same_database, shown_url
from mulligan.worker import liveness as life
from mulligan.worker.claim import claimer_of
from mulligan.worker.liveness import worker_row
from mulligan.worker.startup import settle_down
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.deaths import oom_killed
from mulligan.worker.supervisor.loop import OUTAGE_WAIT, WorkLoop
from mulligan.worker.supervisor.periodic import PeriodicTask, PeriodicTasks, Waker
from mulligan.worker.supervisor.runner_process import Flight, RunnerCommand, StopReason
from mulligan.worker.supervisor.runners import TICK, AppLoadFailed, Runners
from mulligan.worker.supervisor.stderr import relay
from mulligan.worker.supervisor.transactions import LoopTransactions

log = logging.getLogger("mulligan.worker")

NO_FILE = Path(os.devnull)
OPERATE_EVERY = 1.0  # seconds
OPERATE_SELDOM = 5.0  # where nobody can tell that there is one
FIRST_SWEEP = 1.0  # after the start
IDLE_TICK = 2.0
LEAP = 5 * SECOND  # how far the store's clock must jump to be noticed


class DatabaseMismatch(AppLoadFailed):
    """The app's own database is not this worker's."""


@dataclass
class WorkerOptions:
    """What the command line adds to the settings."""

    app: str
    queues: frozenset[str] | None = None
    runner: str = "mulligan.worker.runner"  # the module its runners begin with
    outlets: tuple[PeriodicTask, ...] = ()  # what works beside the engine


class Supervisor:
    def __init__(self, store: Store, settings: Settings, options: WorkerOptions) -> None:
        self._store = store
        self._settings = settings
        self._options = options
        self._hinted = False  # something was written by somebody: cancels?
        self._entered = False  # our row may be there
        self._offset = (
            time.time_ns() // 1000 - time.monotonic_ns() // 1000
        )  # until the store tells its clock
        self._operating = False  # operations are under way
        self._tended = time.monotonic()  # when guards were last looked after
        self._stop_watch = threading.Event()

    # -- the store's clock --------------------------------------------------------------------------
    def clock(self) -> Micros:
        return time.monotonic_ns() // 1000 + self._offset

    def _heard_clock(self, now: Micros) -> None:
        before, self._offset = self._offset, now - time.monotonic_ns() // 1000
        if (
            abs(self._offset - before) > LEAP
        ):  # set, or moved by a test: deadlines and retention may be due
            self._chores.hurry()
            self._sweep_now.set()

    # -- life -------------------------------------------------------------------------------------
    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._sweep_now = asyncio.Event()
        self._operate_now = asyncio.Event()
        self._signals = 0
        self._patient = False  # stopping, and what runs may take as long as it takes
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()  # a second signal: at once
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)
        oom_killed()
        self._turn_thread = ThreadPoolExecutor(1, "mulligan-turns")
        self._chore_thread = ThreadPoolExecutor(1, "mulligan-chores")
        self._renew_thread = ThreadPoolExecutor(
            1, "mulligan-renewals"
        )  # nothing a sweep does may delay a renewal
        self._beside_thread = (
            ThreadPoolExecutor(1, "mulligan-beside") if self._store.side_by_side else None
        )
        self._desk = WorkLoop(
            self._settings.worker,
            self._turn_thread,
            self.clock,
            self._heard_clock,
            self._may_claim,
            self._beside_thread,
        )
        try:
            if not await self._opened():
                return 0
        except AppLoadFailed as broken:
            log.error(  # noqa: TRY400 - the runner has shown the trace
                "cannot load %s: %s", self._options.app, broken
            )
            await self._fleet.close("broken")
            self._life.close()
            relay.flush()
            return 2 if isinstance(broken, DatabaseMismatch) else 1
        settle_down()
        parts = (
            self._desk.loop(),
            self._renew_loop(),
            self._sweep_loop(),
            self._operate_loop(),
            self._tick_loop(),
            PeriodicTasks((*self._options.outlets, self._operations()), self._store).loop(),
        )
        tasks = [self._loop.create_task(part) for part in parts]
        threading.Thread(target=self._watch, name="mulligan-watch", daemon=True).start()
        try:
            return await self._until_stopped(tasks)
        finally:
            self._stop_watch.set()

    async def _opened(self) -> bool:
        """False: somebody wants us to stop before we have begun."""
        opening = self._loop.create_task(self._open())
        stopping = self._loop.create_task(self._stopping.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if opening.done():
            opening.result()
            return True
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await self._fleet.close("shutdown")
        if (
            self._entered
        ):  # its thread cannot be stopped: after it, the row is closed if it was written
            with contextlib.suppress(StoreUnavailable):
                await self._loop.run_in_executor(
                    self._chore_thread, self._chores.close, self.worker
                )
        self._life.close()
        self._close_threads()
        return False

    async def _open(self) -> None:
        self.worker = f"w_{new_id()}"
        folder = life.state_folder(
            self._settings.worker.state_dir, self._store.place, self._store.identity
        )
        self._life = life.LivenessFile(folder, self.worker)
        work = life.work_folder(folder, self.worker)
        recipe = RunnerCommand(
            self._options.app, self.worker, work, self._settings.log, self._options.runner
        )
        self._chores = Chores(self._store, self._settings, folder)
        self._fleet = Runners(recipe, self._settings.worker, self._desk.ended, self.clock)
        self._fleet.on_progress = self._progress
        self._fleet.on_keep = self._keep
        self._fleet.on_death = self._runner_died
        self._fleet.start()
        await self._chore_until_done(partial(self._chores.look_around, self.worker))
        self._rehearse()
        manifest = await self._fleet.loaded()
        self._adopt(self._fleet.app_settings)
        self._policies = EffectivePolicies(self._settings.retry, manifest.ruled, manifest.queues)
        self._claimer = claimer_of(self.worker, manifest, self._options.queues)
        self._fleet.on_learn = self._learned
        self._fleet.is_suspect = lambda lease: lease.losses >= self._policies.of(lease).max_losses
        self._fleet.all_written = lambda: self._desk.all_written
        self._turns = LoopTransactions(
            self._store.apart(), self._policies, self._claimer, causes_of(self._settings.guards)
        )
        self._desk.serve(self._fleet, self._turns)
        self._entered = True
        await self._chore_until_done(partial(self._chores.open, self._row(manifest), manifest))
        log.info(
            "worker %s: %d kinds, concurrency %d, %s",
            self.worker,
            sum(not name.startswith(OURS) for name in manifest.kinds),
            self._settings.worker.concurrency,
            self._store.url,
        )

    def _rehearse(self) -> None:
        """While the app is being loaded. A thread each: they will want a connection each."""
        store = self._store.apart()
        for thread in (self._turn_thread, self._beside_thread):
            with contextlib.suppress(
                RuntimeError
            ):  # no thread can be started: not now, perhaps later
                if thread is not None:
                    thread.submit(store.rehearse)  # whatever goes wrong, the first turn tells it

    def _adopt(self, values: dict[str, Any]) -> None:
        """What the app sets in its code holds for its jobs here too. Two databases would not."""
        app = read_settings(values, environ={}, file=NO_FILE)
        if not same_database(app.database_url, self._settings.database_url):
            here, elsewhere = (
                without_secrets(shown_url(one.database_url)) for one in (self._settings, app)
            )
            message = (
                f"two databases: {self._options.app} names {elsewhere} in its code, "
                f"{self._settings.origin_of('database_url')} names {here}; "
                "jobs its handlers enqueue would go to the first. Write Mulligan() without a URL in the code, "
                "or drop the other"
            )
            raise DatabaseMismatch(message)
        own = {"retry": app.retry, "retention": app.retention, "guards": app.guards}
        self._settings = self._settings.model_copy(update=own)
        self._chores.settings = self._settings

    def _learned(self, manifest: Manifest) -> None:
        self._claimer.learn(manifest)

    def _row(self, manifest: Manifest) -> WorkerRow:
        queues = self._options.queues or frozenset()
        concurrency = self._settings.worker.concurrency
        return worker_row(self.worker, self._life, manifest, self._settings, queues, concurrency)

    async def _chore_until_done(self, chore: Any) -> Any:
        """At the start and the end there is nothing else to do but to wait for the database."""
        while True:
            try:
                return await self._loop.run_in_executor(self._chore_thread, chore)
            except StoreUnavailable as away:
                log.warning("%s; trying again", away)
                await asyncio.sleep(1.0)

    def _signalled(self) -> None:
        self._signals += 1
        self._patient = False
        if self._signals == 1:
            log.info(
                "stopping: no new jobs, %g s for those that run",
                self._settings.worker.shutdown_grace,
            )
            self._stopping.set()
        else:
            self._now.set()
        self._desk.wake.set()

    def _drain_asked(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.info("draining: no new jobs; leaves when those that run have ended (%s)", reason)
            self._patient = True
            self._stopping.set()
            self._desk.wake.set()

    def _may_claim(self) -> bool:
        return not self._stopping.is_set() and not self._chores.must_not_claim()

    def _watch(self) -> None:
        def hint() -> None:
            self._hinted = True
            self._desk.hint()

        while not self._stop_watch.is_set():
            try:
                self._store.watch(
                    hint, self._stop_watch, lambda: self._desk.turning, self._desk.quiet
                )
            except Exception:
                log.exception("no wake-ups for now; polling goes on")
                self._desk.hint()
                self._stop_watch.wait(10)

    # -- limits, progress, checkpoints ----------------------------------------------------------------
    async def _tick_loop(self) -> None:
        """While nothing runs there is little to look at."""
        while True:
            if not self._fleet.count:
                self._fleet.stirred.clear()
                timer = self._loop.call_later(IDLE_TICK, self._fleet.stirred.set)
                await self._fleet.stirred.wait()
                timer.cancel()
            await asyncio.sleep(TICK)
            self._fleet.tick()

    def _progress(self, flight: Flight, fraction: float | None, message: str) -> None:
        self._desk.news[flight.lease.fence] = (fraction, message)

    async def _keep(self, flight: Flight, name: str, value: str) -> bool:
        """A checkpoint: returns when it is durable, however long the database is away."""
        lease = flight.lease
        call = partial(self._chores.keep, lease.id, lease.worker, lease.token, name, value)
        while True:
            try:
                held = bool(await self._loop.run_in_executor(self._turn_thread, call))
            except StoreUnavailable:
                await asyncio.sleep(OUTAGE_WAIT[1])
                continue
            except Exception:
                log.exception("job %s: checkpoint %r was refused by the store", lease.id, name)
                return False
            if held:  # the store has set losses to zero; the decision must know
                flight.lease = flight.lease._replace(losses=0)
            return held

    # -- chores -----------------------------------------------------------------------------------
    async def _renew_loop(self) -> None:
        beat = self._settings.worker.heartbeat
        renewed = 0.0
        while True:
            now = time.monotonic()
            if now - renewed >= beat:
                renewed = now
                await self._chore(self._renew())
            elif self._hinted and self._fleet.count:
                self._hinted = (
                    False  # a hint may be somebody's wish to cancel, or a clock that was moved
                )
                await self._chore(self._look_for_cancels())
            if self._desk.news:
                await self._chore(self._tell_news())
            await self._chore(self._watch_dependencies())
            pause = min(0.5, beat / 4)
            await asyncio.sleep(pause)
            if not (
                self._fleet.count or self._desk.news
            ):  # nothing to watch or to cancel: longer, until there is
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._fleet.stirred.wait(), 3 * pause)

    async def _sweep_loop(self) -> None:
        """First the jobs, then the house: whom others left behind we have asked at the very beginning."""
        pause = min(FIRST_SWEEP, self._settings.worker.sweep)
        while True:
            timer = self._loop.call_later(pause, self._sweep_now.set)
            await self._sweep_now.wait()
            timer.cancel()
            self._sweep_now.clear()
            await self._chore(self._sweep())
            pause = self._settings.worker.sweep

    def _operations(self) -> Waker:
        """Whether there are any is seen by a thread that is awake anyhow."""

        def ring() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._operate_now.set)

        return Waker("operations", OPERATE_EVERY, operate.under_way, ring)

    async def _operate_loop(self) -> None:
        while True:
            timer = self._loop.call_later(OPERATE_SELDOM, self._operate_now.set)
            await self._operate_now.wait()
            timer.cancel()
            self._operate_now.clear()
            self._operating = True
            while self._operating:
                self._operating = False
                await self._chore(self._operate())
                await asyncio.sleep(OPERATE_EVERY)

    async def _chore(self, chore: Coroutine[Any, Any, None]) -> None:
        """A chore that fails is tried again with the next round; the others are not its concern."""
        try:
            await chore
        except StoreUnavailable:
            return
        except AppLoadFailed:
            raise
        except Exception:
            log.exception("a chore failed")

    async def _renew(self) -> None:
        draining = self._stopping.is_set()
        renewal = await self._loop.run_in_executor(
            self._renew_thread, self._chores.renew, self.worker, draining
        )
        self._heard_clock(renewal.now)
        if not renewal.alive:
            await self._begin_again()
            return
        self._cancel(renewal.cancels)
        if renewal.drain is not None:
            self._drain_asked(renewal.drain)

    async def _look_for_cancels(self) -> None:
        now, wishes = await self._loop.run_in_executor(
            self._renew_thread, self._chores.cancels, self.worker
        )
        self._heard_clock(now)
        self._cancel(wishes)

    def _cancel(self, wishes: list[tuple[str, int, str]]) -> None:
        for job_id, token, reason in wishes:
            self._fleet.cancel(job_id, token, reason)

    async def _begin_again(self) -> None:
        """Somebody closed our row: our leases are lost. End what runs, go on under a new name."""
        log.warning("worker %s was declared lost; going on under a new id", self.worker)
        await self._fleet.close("closed")
        self._life.close()
        self._desk.doubt = False  # whatever the old name holds is not ours any more
        await self._open()
        self._desk.wake.set()

    def _runner_died(self, facts: dict[str, Any]) -> None:
        """Nobody waits for it: it is told if the database is there."""
        self._chore_thread.submit(self._chores.tell_death, self.worker, facts)

    async def _tell_news(self) -> None:
        news, self._desk.news = self._desk.news, {}
        rows = [
            (job_id, token, fraction, text) for (job_id, token), (fraction, text) in news.items()
        ]
        await self._loop.run_in_executor(
            self._renew_thread, self._chores.progress, self.worker, rows
        )

    async def _watch_dependencies(self) -> None:
        now = time.monotonic()
        idle = now - self._tended >= self._settings.worker.sweep
        running = self._fleet.running_for()
        if running or idle:
            self._tended = now if idle else self._tended
            await self._loop.run_in_executor(
                self._turn_thread, partial(self._turns.watch, running, idle=idle)
            )

    async def _sweep(self) -> None:
        if await self._loop.run_in_executor(self._chore_thread, self._chores.sweep, self.worker):
            self._desk.wake.set()

    async def _operate(self) -> None:
        moved, self._operating = await self._loop.run_in_executor(
            self._chore_thread, self._chores.operate
        )
        if moved:
            self._desk.wake.set()

    # -- the end ----------------------------------------------------------------------------------
    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> int:
        stopping = self._loop.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in done if task is not stopping]
        for task in (
            broken
        ):  # a loop never ends but by a defect: let it be seen, and leave in order all the same
            log.critical("a part of the supervisor has failed; leaving", exc_info=task.exception())
            self._stopping.set()
            self._now.set()
        stopping.cancel()
        await self._drain()
        await self._finish(*tasks)
        await self._leave()
        return 1 if broken else 0

    async def _finish(self, turns: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
        """The turn under way holds endings nobody else has: it is never cut off."""
        self._desk.leaving = True
        self._desk.wake.set()
        await asyncio.gather(turns, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _drain(self) -> None:
        """Short jobs finish, long ones are asked, then ended and given back; all within the grace."""
        grace = self._settings.worker.shutdown_grace
        self._fleet.release_waiting()
        while self._patient and (self._fleet.count or self._desk.unwritten):  # noqa: ASYNC110 - a count, for once in a life
            await asyncio.sleep(0.05)
        ends = time.monotonic() + grace
        await self._empty_until(ends - min(3.0, grace * 0.3))
        self._fleet.ask_all(StopReason.RELEASE)
        await self._empty_until(ends - min(1.5, grace * 0.15))
        await self._fleet.close("shutdown") if self._fleet.count else await self._fleet.drain()

    async def _empty_until(self, deadline: float) -> None:
        # A count, looked at for a few seconds at the end of a life.
        while (  # noqa: ASYNC110
            (self._fleet.count or self._desk.unwritten)
            and time.monotonic() < deadline
            and not self._now.is_set()
        ):
            await asyncio.sleep(0.02)

    async def _leave(self) -> None:
        """Write the last endings, close our row. If the database is away, others will find the lease expired."""
        await self._fleet.close("shutdown")
        for _ in range(3):
            try:
                endings = self._desk.unwritten
                await self._loop.run_in_executor(
                    self._turn_thread, self._turns.leave, endings, self.clock()
                )
                await self._loop.run_in_executor(
                    self._renew_thread, self._chores.close, self.worker
                )
                break
            except StoreUnavailable as away:
                log.warning("%s; trying once more before leaving", away)
                await asyncio.sleep(0.3)
        await self._loop.run_in_executor(None, self._chores.remove_folders, self.worker)
        await self._loop.run_in_executor(None, relay.flush)
        self._life.close()
        self._close_threads()

    def _close_threads(self) -> None:
        threads = (self._turn_thread, self._chore_thread, self._renew_thread, self._beside_thread)
        for thread in threads:
            if thread is not None:
                thread.shutdown(wait=False)

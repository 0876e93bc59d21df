"""The supervisor: claims, renews, settles, sweeps. It runs no user code and imports no handler.

One loop on the main thread watches the runners; three threads talk to the database (turns, renewals, chores).
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
from mulligan.engine import life
from mulligan.engine.claims import Claimer
from mulligan.engine.declared import limits_of
from mulligan.engine.kinds import Manifest
from mulligan.engine.layers import Layers
from mulligan.engine.settle import Ending
from mulligan.engine.supervisor.child import Asked, Flight, Recipe
from mulligan.engine.supervisor.chores import Chores
from mulligan.engine.supervisor.fleet import TICK, AppBroken, Fleet
from mulligan.engine.supervisor.memory import oom_killed
from mulligan.engine.supervisor.pace import Pace
from mulligan.engine.supervisor.relay import relay
from mulligan.engine.supervisor.turns import News, Turn, Turns
from mulligan.engine.workers import worker_row
from mulligan.errors import StoreUnavailable
from mulligan.ids import new_id
from mulligan.job import SECOND, Micros, WorkerRow
from mulligan.policy.redact import without_secrets
from mulligan.store.base import Store
from mulligan.store.urls import same_database

log = logging.getLogger("mulligan.worker")

NO_FILE = Path(os.devnull)
HEAVY = 4 * 1024 * 1024  # characters of payload in one claim: no more of them in line
LEAP = 5 * SECOND  # how far the store's clock must jump to be noticed
OUTAGE_WAIT = (0.1, 2.0)  # seconds between tries while the database does not answer


class TwoDatabases(AppBroken):
    """The app's own database is not this worker's."""


@dataclass
class Options:
    """What the command line adds to the settings."""

    app: str
    queues: frozenset[str] | None = None
    log_level: str = "INFO"


class Supervisor:
    def __init__(self, store: Store, settings: Settings, options: Options) -> None:
        self._store = store
        self._settings = settings
        self._options = options
        self._endings: list[Ending] = []
        self._news: dict[tuple[str, int], tuple[float | None, str]] = {}
        self._hinted = self._woken = False  # something was written by somebody: cancels? new work?
        self._doubt = False  # a turn's answer was lost: look for leases we do not know of
        self._outage = 0.0
        self._entered = False  # our row may be there
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000  # until the store tells its clock
        self._stop_watch = threading.Event()
        self._pace = Pace(settings.worker.concurrency)

    # -- the store's clock --------------------------------------------------------------------------
    def clock(self) -> Micros:
        return time.monotonic_ns() // 1000 + self._offset

    def _heard_clock(self, now: Micros) -> None:
        before, self._offset = self._offset, now - time.monotonic_ns() // 1000
        if abs(self._offset - before) > LEAP:  # set, or moved by a test: deadlines and retention may be due
            self._chores.hurry()
            self._sweep_now.set()

    # -- life -------------------------------------------------------------------------------------
    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._sweep_now = asyncio.Event()
        self._signals = 0
        self._patient = False  # stopping, and what runs may take as long as it takes
        self._stopping = asyncio.Event()
        self._leaving = False
        self._now = asyncio.Event()  # a second signal: at once
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)
        oom_killed()
        self._turn_thread = ThreadPoolExecutor(1, "mulligan-turns")
        self._chore_thread = ThreadPoolExecutor(1, "mulligan-chores")
        self._renew_thread = ThreadPoolExecutor(1, "mulligan-renewals")  # nothing a sweep does may delay a renewal
        try:
            if not await self._opened():
                return 0
        except AppBroken as broken:
            log.error(  # noqa: TRY400 - the runner has shown the trace
                "cannot load %s: %s", self._options.app, broken
            )
            await self._fleet.close("broken")
            self._life.close()
            relay.flush()
            return 2 if isinstance(broken, TwoDatabases) else 1
        parts = (self._turn_loop(), self._renew_loop(), self._sweep_loop(), self._tick_loop())
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
        if self._entered:  # its thread cannot be stopped: after it, the row is closed if it was written
            with contextlib.suppress(StoreUnavailable):
                await self._loop.run_in_executor(self._chore_thread, self._chores.close, self.worker)
        self._life.close()
        self._close_threads()
        return False

    async def _open(self) -> None:
        self.worker = f"w_{new_id()}"
        folder = life.state_folder(self._settings.worker.state_dir, self._store.place, self._store.identity)
        self._life = life.LifeFile(folder, self.worker)
        recipe = Recipe(self._options.app, self.worker, life.work_folder(folder, self.worker), self._options.log_level)
        self._chores = Chores(self._store, self._settings, folder)
        self._fleet = Fleet(recipe, self._settings.worker, self._ended, self.clock)
        self._fleet.on_progress = self._progress
        self._fleet.on_keep = self._keep
        self._fleet.start()
        await self._chore_until_done(partial(self._chores.look_around, self.worker))
        manifest = await self._fleet.loaded()
        self._adopt(self._fleet.app_settings)
        self._policies = Layers(self._settings.retry, manifest.ruled, manifest.queues)
        self._claimer = Claimer(self.worker, frozenset(manifest.kinds), self._options.queues, limits_of(manifest))
        self._fleet.on_learn = self._learned
        self._turns = Turns(self._store, self._policies, self._claimer)
        self._entered = True
        await self._chore_until_done(partial(self._chores.open, self._row(manifest), manifest))
        log.info(
            "worker %s: %d kinds, concurrency %d, %s",
            self.worker,
            len(manifest.kinds),
            self._settings.worker.concurrency,
            self._store.url,
        )

    def _adopt(self, values: dict[str, Any]) -> None:
        """What the app sets in its code holds for its jobs here too. Two databases would not."""
        app = read_settings(values, environ={}, file=NO_FILE)
        if not same_database(app.database_url, self._settings.database_url):
            message = (
                f"two databases: {self._options.app} names {without_secrets(app.database_url)} in its code, "
                f"{self._settings.origin_of('database_url')} names {without_secrets(self._settings.database_url)}; "
                "jobs its handlers enqueue would go to the first. Write Mulligan() without a URL in the code, "
                "or drop the other"
            )
            raise TwoDatabases(message)
        self._settings = self._settings.model_copy(update={"retry": app.retry, "retention": app.retention})
        self._chores.settings = self._settings

    def _learned(self, manifest: Manifest) -> None:
        self._claimer.kinds = frozenset(manifest.kinds)
        self._claimer.own = limits_of(manifest)

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
            log.info("stopping: no new jobs, %g s for those that run", self._settings.worker.shutdown_grace)
            self._stopping.set()
        else:
            self._now.set()
        self._wake.set()

    def _drain_asked(self, reason: str) -> None:
        if not self._stopping.is_set():
            log.info("draining: no new jobs; leaves when those that run have ended (%s)", reason)
            self._patient = True
            self._stopping.set()
            self._wake.set()

    def _watch(self) -> None:
        def hint() -> None:
            self._hinted = self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._wake.set)

        while not self._stop_watch.is_set():
            try:
                self._store.watch(hint, self._stop_watch)
            except Exception:
                log.exception("no wake-ups for now; polling goes on")
                self._stop_watch.wait(10)

    # -- turns ------------------------------------------------------------------------------------
    def _ended(self, endings: list[Ending]) -> None:
        self._endings += endings
        self._wake.set()

    async def _turn_loop(self) -> None:
        pause = self._settings.worker.poll
        while not self._leaving:
            timer = self._loop.call_later(pause, self._wake.set)  # `wait_for` would cost each job a task
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            pause = await self._one_turn()

    async def _one_turn(self) -> float:
        """Returns how long to wait for the next one when nothing happens."""
        endings, self._endings = self._endings, []
        free = self._free()
        if not endings and free <= 0 and not self._doubt:
            return self._settings.worker.poll
        known = self._known(endings) if self._doubt else None
        news, hinted, self._woken = self._last_news(endings), self._woken, False
        take = partial(self._turns.take, endings, free, self.clock(), known, news, hinted=hinted)
        try:
            turn: Turn = await self._loop.run_in_executor(self._turn_thread, take)
        except StoreUnavailable as away:
            self._endings = endings + self._endings
            return self._away(away)
        except Exception:
            log.exception("a turn failed")
            return await self._one_by_one(endings)
        self._outage, self._doubt = 0.0, False
        self._heard_clock(turn.now)
        self._learn_pace(free, endings, turn)
        if turn.leases:
            self._fleet.dispatch(turn.leases, turn.memories)
        if self._endings or (turn.more and self._free() > 0 and len(turn.leases) >= free > 0):
            self._wake.set()
        return self._pause(turn)

    def _learn_pace(self, free: int, endings: list[Ending], turn: Turn) -> None:
        heavy = sum(len(lease.payload) for lease in turn.leases) > HEAVY
        if heavy or self._fleet.line_stuck or any(self._fleet.is_alone(lease) for lease in turn.leases):
            self._fleet.line_stuck = False
            self._pace.hold_back()
            return
        ran = [e.duration_ms for e in endings if e.duration_ms is not None and not self._fleet.is_alone(e.lease)]
        self._pace.turned(free, len(turn.leases), ran)

    async def _one_by_one(self, endings: list[Ending]) -> float:
        """Something in this turn is refused by the store; it must not take the others with it."""
        self._doubt = True
        try:
            await self._loop.run_in_executor(self._turn_thread, self._turns.settle_each, endings, self.clock())
        except StoreUnavailable as away:
            self._endings = endings + self._endings
            return self._away(away)
        except Exception:
            log.exception("endings could not be recorded one by one either")
        return OUTAGE_WAIT[1]

    def _last_news(self, endings: list[Ending]) -> list[News]:
        """What a job said last is written with its ending; afterwards nobody would take it."""
        if not self._news:
            return []
        fences = [ending.lease.fence for ending in endings if ending.lease.fence in self._news]
        return [(*fence, *self._news.pop(fence)) for fence in fences]

    def _free(self) -> int:
        """Room for new jobs. A slot is free once its job's ending is durable: with this turn, or before."""
        if self._stopping.is_set() or not self._fleet.can_take or self._chores.must_not_claim():
            return 0
        return self._pace.room(self._fleet.count + len(self._endings))

    def _known(self, endings: list[Ending]) -> set[tuple[str, int]]:
        flights = {flight.lease.fence for flight in self._fleet.flights()} | self._turns.given_up
        return flights | {ending.lease.fence for ending in (*endings, *self._endings)}

    def _away(self, away: StoreUnavailable) -> float:
        """Keep everything, wait a little longer each time, look for lost answers afterwards."""
        if not self._outage:
            log.warning("%s; running jobs go on, their outcomes are kept", away)
        self._doubt = True
        least, most = OUTAGE_WAIT
        self._outage = min(most, max(least, self._outage * 2))
        return self._outage

    def _pause(self, turn: Turn) -> float:
        poll = self._settings.worker.poll
        if turn.next_due is None:
            return poll
        return min(poll, max(0.001, (turn.next_due - self.clock()) / SECOND))

    # -- limits, progress, checkpoints ----------------------------------------------------------------
    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK if self._fleet.count else TICK * 5)
            self._fleet.tick()

    def _progress(self, flight: Flight, fraction: float | None, message: str) -> None:
        self._news[flight.lease.fence] = (fraction, message)

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
                self._hinted = False  # a hint may be somebody's wish to cancel, or a clock that was moved
                await self._chore(self._look_for_cancels())
            if self._news:
                await self._chore(self._tell_news())
            await asyncio.sleep(min(0.5, beat / 4))

    async def _sweep_loop(self) -> None:
        while True:
            self._sweep_now.clear()
            await self._chore(self._sweep())
            timer = self._loop.call_later(self._settings.worker.sweep, self._sweep_now.set)
            await self._sweep_now.wait()
            timer.cancel()

    async def _chore(self, chore: Coroutine[Any, Any, None]) -> None:
        """A chore that fails is tried again with the next round; the others are not its concern."""
        try:
            await chore
        except StoreUnavailable:
            return
        except AppBroken:
            raise
        except Exception:
            log.exception("a chore failed")

    async def _renew(self) -> None:
        draining = self._stopping.is_set()
        renewal = await self._loop.run_in_executor(self._renew_thread, self._chores.renew, self.worker, draining)
        self._heard_clock(renewal.now)
        if not renewal.alive:
            await self._begin_again()
            return
        self._cancel(renewal.cancels)
        if renewal.drain is not None:
            self._drain_asked(renewal.drain)

    async def _look_for_cancels(self) -> None:
        now, wishes = await self._loop.run_in_executor(self._renew_thread, self._chores.cancels, self.worker)
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
        self._doubt = False  # whatever the old name holds is not ours any more
        await self._open()
        self._wake.set()

    async def _tell_news(self) -> None:
        news, self._news = self._news, {}
        rows = [(job_id, token, fraction, text) for (job_id, token), (fraction, text) in news.items()]
        await self._loop.run_in_executor(self._renew_thread, self._chores.progress, self.worker, rows)

    async def _sweep(self) -> None:
        if await self._loop.run_in_executor(self._chore_thread, self._chores.sweep, self.worker):
            self._wake.set()

    # -- the end ----------------------------------------------------------------------------------
    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> int:
        stopping = self._loop.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        broken = [task for task in done if task is not stopping]
        for task in broken:  # a loop never ends but by a defect: let it be seen, and leave in order all the same
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
        self._leaving = True
        self._wake.set()
        await asyncio.gather(turns, return_exceptions=True)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _drain(self) -> None:
        """Short jobs finish, long ones are asked, then ended and given back; all within the grace."""
        grace = self._settings.worker.shutdown_grace
        self._fleet.release_waiting()
        while self._patient and (self._fleet.count or self._endings):  # noqa: ASYNC110 - a count, for once in a life
            await asyncio.sleep(0.05)
        ends = time.monotonic() + grace
        await self._empty_until(ends - min(3.0, grace * 0.3))
        self._fleet.ask_all(Asked.RELEASE)
        await self._empty_until(ends - min(1.5, grace * 0.15))
        await self._fleet.close("shutdown") if self._fleet.count else await self._fleet.drain()

    async def _empty_until(self, deadline: float) -> None:
        # A count, looked at for a few seconds at the end of a life.
        while (  # noqa: ASYNC110
            (self._fleet.count or self._endings) and time.monotonic() < deadline and not self._now.is_set()
        ):
            await asyncio.sleep(0.02)

    async def _leave(self) -> None:
        """Write the last endings, close our row. If the database is away, others will find the lease expired."""
        await self._fleet.close("shutdown")
        for _ in range(3):
            try:
                endings = self._endings
                await self._loop.run_in_executor(self._turn_thread, self._turns.leave, endings, self.clock())
                await self._loop.run_in_executor(self._renew_thread, self._chores.close, self.worker)
                break
            except StoreUnavailable as away:
                log.warning("%s; trying once more before leaving", away)
                await asyncio.sleep(0.3)
        await self._loop.run_in_executor(None, self._chores.remove_folders, self.worker)
        await self._loop.run_in_executor(None, relay.flush)
        self._life.close()
        self._close_threads()

    def _close_threads(self) -> None:
        for thread in (self._turn_thread, self._chore_thread, self._renew_thread):
            thread.shutdown(wait=False)

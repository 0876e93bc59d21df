"""All runners of one worker: who runs what, who has run too long, what a death means.

Shared runners take many jobs side by side. A job of an isolated kind, and one whose last runner died under
it, gets a runner of its own; a warm spare hides most of the wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from mulligan.config import WorkerSection
from mulligan.core.attempt import Ending, Lease, Outcome
from mulligan.core.job import Micros, PreviousAttempts
from mulligan.manifest.specs import DELIVERY_QUEUE, OURS, KindSpec, Manifest
from mulligan.worker.fast.lease_batch import LeaseBatch, is_alone, tellers
from mulligan.worker.liveness import session_memory
from mulligan.worker.protocol import (
    JUST_RETURNED,
    STOPPED,
    Common,
    outcome_from_wire,
    returned_from_wire,
    took_from_wire,
    words_from_wire,
)
from mulligan.worker.supervisor.deaths import after_death, when_refused, when_stopped
from mulligan.worker.supervisor.fork_server import ForkServer
from mulligan.worker.supervisor.runner_process import (
    Flight,
    RunnerCommand,
    RunnerDeath,
    RunnerProcess,
    StopReason,
    clean,
    facts,
    how,
    left_over,
)

log = logging.getLogger("mulligan.worker")

TICK = 0.1
MEMORY_TICK_NS = 250_000_000
STUCK_NS = 2_000_000_000  # a job that waits longer in a runner's line goes back to the queue
RESPAWN_MOST = 5.0
LOAD_PATIENCE = 30.0
NURSERY_PATIENCE = 5.0  # for which the first runners wait for it
REAP_AGAIN = 0.5  # seconds
EARLY_DEATHS = 5  # one that is killed while it loads the app says nothing about the app; so many do
QUEUE_PATIENCE_NS = 60_000_000_000
QUIET_PATIENCE_NS = 10_000_000_000  # for which a suspect waits until nothing else runs here


class AppLoadFailed(Exception):
    """The app cannot be loaded."""


class Runners:
    def __init__(
        self,
        recipe: RunnerCommand,
        settings: WorkerSection,
        on_end: Callable[[list[Ending]], None],
        clock: Callable[[], Micros],
    ) -> None:
        self.recipe = recipe
        self.manifest: Manifest | None = None
        self.lonely: frozenset[str] = frozenset()  # kinds that want a runner for each job
        self.used_by_all: frozenset[str] = (
            frozenset()
        )  # by every kind: there is nothing else to keep a place for
        self.app_settings: dict[str, Any] = {}  # as the app itself has them, in its own process
        self._settings = settings
        self._on_end = on_end
        self._clock = clock  # the store's clock as last heard
        self._children: list[RunnerProcess] = []
        self._nursery = ForkServer(recipe.runner, recipe.worker, self._nursery_changed, self._pids)
        self._names = count(1)
        self._seqs = count(1)
        self._loop = asyncio.get_running_loop()
        self._common = Common()
        self._queue: list[
            tuple[Flight, PreviousAttempts | None]
        ] = []  # waiting for a runner of their own
        self._changed = asyncio.Event()
        self.stirred = asyncio.Event()  # there is something to do
        self._memory_ns = 0
        self._respawn = 0.0
        self._early = 0  # runners killed before the app was loaded
        self._next_round: asyncio.TimerHandle | None = (
            None  # when those that could not be started are tried again
        )
        self._cleaning: set[asyncio.Task[None]] = set()
        self._burying: list[Flight] = []  # of dead runners, until their endings are known
        self.line_stuck = False  # jobs had to be called back from a runner's line
        self._closing = False
        self.is_suspect: Callable[[Lease], bool] = lambda _: (
            False
        )  # is this its last chance after losses?
        self.all_written: Callable[[], bool] = lambda: (
            True
        )  # is every ending durable, and no turn under way?
        self.on_learn: Callable[[Manifest], None] = lambda _: None
        self.on_progress: Callable[[Flight, float | None, str], None] = lambda *_: None
        self.on_keep: Callable[[Flight, str, str], Any] = lambda *_: None
        self.on_death: Callable[[dict[str, Any]], None] = lambda _: None

    # -- life -------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the shared runners, once there is what they come from."""
        if self._nursery.open(
            self.recipe.environ(), self.recipe.command("r1", self._settings.concurrency, 1)
        ):
            self._next_round = self._loop.call_later(NURSERY_PATIENCE, self._refill_again)
        else:
            self._refill()

    def _pids(self) -> set[int]:
        return {child.pid for child in self._children}

    def _nursery_changed(self) -> None:
        if self._next_round is not None:
            self._next_round.cancel()
            self._refill_again()

    def _refill(self) -> None:
        """As many shared runners as were asked for, however the others went."""
        if self._closing:
            return
        sound = [
            child for child in self._children if not (child.solo or child.doomed_ns or child.killed)
        ]
        for _ in range(self._settings.runners - len(sound)):
            self._spawn(solo=False)
        if self.manifest is not None:
            self._serve_alone()

    async def loaded(self) -> Manifest:
        """The first runner that is ready tells what the app is."""
        while self.manifest is None:
            broken = next((child.broken for child in self._children if child.broken), "")
            if broken:
                raise AppLoadFailed(broken)
            if not self._children and self._next_round is None:
                message = "the runner died before the app was loaded; its output is above"
                raise AppLoadFailed(message)
            if not await self._change(LOAD_PATIENCE):
                log.warning("still waiting for %s to be imported", self.recipe.app)
        return self.manifest

    async def _change(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    async def close(self, why: str) -> None:
        """Everything ends now; what still runs is given back unharmed."""
        self._closing = True
        self._nursery.close()
        self._release_queue()
        for child in list(self._children):
            child.kill(why)
        while self._children or self._cleaning:
            await self._change(1.0)

    async def drain(self) -> None:
        """Runners without work leave in their own time, with their `on_stop`."""
        self._closing = True
        self._nursery.close()
        self._release_queue()
        for child in self._children:
            child.drain()
        deadline = time.monotonic() + 2.0
        while self._children and time.monotonic() < deadline:
            await self._change(0.2)

    def _spawn(self, *, solo: bool) -> None:
        settings = self._settings
        slots = 1 if solo else max(1, -(-settings.concurrency // settings.runners))
        told = 0 if solo else -(-tellers(settings.concurrency) // settings.runners)
        try:
            child = RunnerProcess(
                self.recipe, f"r{next(self._names)}", slots, told, solo=solo, nursery=self._nursery
            )
            child.attach(self._loop, self._heard, self._exited)
        except (
            OSError
        ) as error:  # no memory, no descriptors, no interpreter: perhaps a little later
            log.error("cannot start a runner: %s; trying again", error)  # noqa: TRY400 - one line says it
            self._refill_later()
            return
        self._children.append(child)

    def _refill_later(self) -> None:
        """One round, however many could not be started: a round each would soon be millions."""
        if self._next_round is None:
            self._respawn = min(RESPAWN_MOST, max(0.1, self._respawn * 2))
            self._next_round = self._loop.call_later(self._respawn, self._refill_again)

    def _refill_again(self) -> None:
        self._next_round = None
        self._refill()

    # -- room -------------------------------------------------------------------------------------
    def flights(self) -> list[Flight]:
        waiting = [flight for flight, _ in self._queue]
        return (
            waiting
            + self._burying
            + [flight for child in self._children for flight in child.flights.values()]
        )

    @property
    def count(self) -> int:
        return (
            len(self._queue)
            + len(self._burying)
            + sum(len(child.flights) for child in self._children)
        )

    def in_use(self) -> dict[str, int]:
        """How many jobs use each dependency. Also asked by a thread that hears a hint: lists are copied whole."""
        under_way = [
            flight for child in list(self._children) for flight in list(child.users.values())
        ]
        waiting = [flight for flight, _ in list(self._queue)]
        leases = [flight.lease for flight in (*waiting, *list(self._burying), *under_way)]
        return (
            Counter([key for lease in leases if lease.uses for key in lease.uses.split(",")])
            if leases
            else {}
        )

    @property
    def telling(self) -> int:
        """How many messages are under way; they use something, all of them."""
        under_way = [
            flight for child in list(self._children) for flight in list(child.users.values())
        ]
        return sum(1 for flight in under_way if flight.lease.queue == DELIVERY_QUEUE)

    def running_for(self) -> list[tuple[Lease, float]]:
        """What is under way and uses something, and for how many milliseconds."""
        now = time.monotonic_ns()
        flights = [flight for child in self._children for flight in child.users.values()]
        return [(flight.lease, (now - flight.sent_ns) / 1e6) for flight in flights]

    @property
    def can_take(self) -> bool:
        if self._closing or self._has_suspect():
            return False
        return any(child.open and not child.solo for child in self._children)

    def _has_suspect(self) -> bool:
        """Nothing new while one is here: what kills a whole worker takes with it whatever the worker holds."""
        alone = [
            flight
            for child in list(self._children)
            if child.solo
            for flight in list(child.flights.values())
        ]
        return any(
            flight.suspect for flight in (*alone, *(flight for flight, _ in list(self._queue)))
        )

    # -- dispatch ---------------------------------------------------------------------------------
    def dispatch(self, lot: LeaseBatch, memories: Mapping[str, PreviousAttempts]) -> None:
        self.stirred.set()
        kinds = {} if self.manifest is None else self.manifest.kinds
        runners = self._runners()
        if len(runners) == 1 and lot.is_plain(self.lonely, self.recipe.worker, kinds):
            now = time.monotonic_ns()
            flights = [
                Flight(seq, lease, kinds[lease.kind], now)
                for lease, seq in zip(lot, self._seqs, strict=False)
            ]
            runners[0].run(flights, lot, memories)
        else:
            self._sort_out(lot, memories)
        self._serve_alone()

    def _runners(self) -> list[RunnerProcess]:
        """Those that run many jobs."""
        return [child for child in self._children if child.open and not child.solo]

    def _sort_out(self, leases: Sequence[Lease], memories: Mapping[str, PreviousAttempts]) -> None:
        shared: list[tuple[Flight, PreviousAttempts | None]] = []
        now, kinds = time.monotonic_ns(), {} if self.manifest is None else self.manifest.kinds
        worker = self.recipe.worker
        for lease in leases:
            spec = kinds.get(lease.kind)
            flight = Flight(next(self._seqs), lease, spec or KindSpec(lease.kind), now)
            flight.suspect = lease.losses > 0 and self.is_suspect(lease)
            changed = spec is None or lease.worker != worker  # the app or our name, meanwhile
            if changed or (flight.suspect and self._has_suspect()):  # one at a time
                self._give_back([flight])
            else:
                (self._queue if is_alone(lease, self.lonely) else shared).append(
                    (flight, memories.get(lease.id))
                )
        self._share_out(shared)

    def _share_out(self, work: list[tuple[Flight, PreviousAttempts | None]]) -> None:
        runners = self._runners()
        if len(runners) < 2:
            if work:
                runners[0].run_some(work) if runners else self._give_back(
                    [flight for flight, _ in work]
                )
            return
        parcels: dict[str, list[tuple[Flight, PreviousAttempts | None]]] = {}
        load = {child.name: len(child.flights) for child in runners}
        for item in work:
            name = min(load, key=load.__getitem__)
            load[name] += 1
            parcels.setdefault(name, []).append(item)
        for child in runners:
            if child.name in parcels:
                child.run_some(parcels[child.name])

    def _serve_alone(self) -> None:
        """Give each waiting job a runner of its own: an idle one if there is one, else a new one."""
        if self._closing:
            return
        idle = [c for c in self._children if c.solo and not (c.flights or c.killed or c.doomed_ns)]
        idle.sort(key=lambda child: not child.ready)
        for item in [item for item in self._queue if self._may_start(item[0])]:
            if not idle or not idle[0].ready:
                break
            self._queue.remove(item)
            idle.pop(0).run_some([item])
        spare = 1 if self._wants_spare() else 0
        room = (
            self._settings.concurrency + 1 - len([child for child in self._children if child.solo])
        )
        for _ in range(min(len(self._queue) + spare - len(idle), room)):
            self._spawn(solo=True)

    def _may_start(self, flight: Flight) -> bool:
        """A suspect waits until it is all this worker holds, and runs beside the others only if that takes too long."""
        if not flight.suspect or (self.count == 1 and self.all_written()):
            return True
        if time.monotonic_ns() - flight.sent_ns > QUIET_PATIENCE_NS:
            flight.suspect = False
            return True
        return False

    def _wants_spare(self) -> bool:
        return bool(self.lonely)

    def _give_back(self, flights: Sequence[Flight]) -> None:
        self._on_end(
            [when_stopped(flight, StopReason.RELEASE, self._clock()) for flight in flights]
        )

    def release_waiting(self) -> None:
        """Give back everything that has not started."""
        self._release_queue()
        for child in self._children:
            self._recall_waiting(child)

    def _release_queue(self) -> None:
        waiting, self._queue = [flight for flight, _ in self._queue], []
        if waiting:
            self._give_back(waiting)

    def _recall_waiting(self, child: RunnerProcess) -> None:
        self.line_stuck = True
        started = child.started()
        for flight in list(child.flights.values()):
            if flight.seq not in started:
                child.recall(flight)

    def ask_all(self, why: StopReason) -> None:
        for child in self._children:
            for flight in list(child.flights.values()):
                child.ask(flight, why)

    def cancel(self, job_id: str, token: int, reason: str) -> None:
        for item in list(self._queue):
            if item[0].lease.fence == (job_id, token):
                self._queue.remove(item)
                item[0].lease = item[0].lease._replace(cancel_reason=reason)
                self._on_end([when_stopped(item[0], StopReason.CANCEL, self._clock())])
        for child in self._children:
            for flight in child.flights.values():
                if flight.lease.fence == (job_id, token) and flight.asked is None:
                    flight.lease = flight.lease._replace(cancel_reason=reason)
                    child.ask(flight, StopReason.CANCEL)
                    return

    # -- hear -------------------------------------------------------------------------------------
    def _heard(self, child: RunnerProcess, message: list[Any]) -> None:
        match message:
            case ["returned", told]:
                self._returned(child, told)
            case ["failed", *common, told]:
                self._failed(child, self._common.outcome(common), told)
            case ["ended", items]:
                self._ended(child, items)
            case ["progress", items]:
                self._progressed(child, items)
            case ["keep", request, seq, name, value]:
                self._keep(child, request, seq, name, value)
            case ["settings", values]:
                self.app_settings = values
            case ["ready", manifest]:
                child.ready = True
                self._respawn = 0.0
                self._learn(Manifest.from_json(manifest))
                self._serve_alone()
                self._changed.set()
                self._on_end([])  # there is room now
            case ["broken", why]:
                child.broken = why
                self._changed.set()

    def _progressed(self, child: RunnerProcess, items: list[list[Any]]) -> None:
        for seq, fraction, text in items:
            if seq in child.flights:
                self.on_progress(child.flights[seq], fraction, text)

    def _learn(self, manifest: Manifest) -> None:
        """A runner started after a deploy may hold another app: run only what all of them know."""
        if self.manifest is not None and manifest.id != self.manifest.id:
            log.warning("the app has changed on disk; restart this worker to run it as it is now")
            kinds = {
                name: spec for name, spec in self.manifest.kinds.items() if name in manifest.kinds
            }
            manifest = replace(self.manifest, kinds=kinds)
        first = self.manifest is None
        self.manifest = manifest
        self.lonely = frozenset(name for name, spec in manifest.kinds.items() if spec.alone)
        self.used_by_all = _used_by_all(manifest)
        self.on_learn(manifest)
        if first:
            self._refill()

    def _ended(self, child: RunnerProcess, items: list[list[Any]]) -> None:
        """All of them are read before any is believed: what cannot be read must leave its job where it is."""
        told: dict[int, list[Any]] = {}
        for item in items:
            # The first word counts: who is asked to stop just after its end is told to have stopped, too.
            if item[0] in child.flights:
                told.setdefault(item[0], item)
        endings = [self._ending(child.flights[seq], item) for seq, item in told.items()]
        child.land([*told])
        self._on_end(endings)
        self._drain_if_over(child)

    def _returned(self, child: RunnerProcess, told: list[int]) -> None:
        """The same for the many of which nothing else is said."""
        seqs, times = returned_from_wire(told)
        landed = zip(child.land(seqs), times, strict=True)
        self._on_end(
            [
                Ending(flight.lease, JUST_RETURNED, took)
                for flight, took in landed
                if flight is not None
            ]
        )
        self._drain_if_over(child)

    def _failed(self, child: RunnerProcess, outcome: Outcome, told: list[Any]) -> None:
        """The same for those that failed alike, each with words of its own."""
        seqs, times, words = words_from_wire(told)
        landed = zip(child.land(seqs), times, words, strict=True)
        self._on_end(
            [
                Ending(flight.lease, outcome, took, own)
                for flight, took, own in landed
                if flight is not None
            ]
        )
        self._drain_if_over(child)

    def _drain_if_over(self, child: RunnerProcess) -> None:
        if (child.solo or child.doomed_ns) and not child.flights:
            child.doomed_ns = time.monotonic_ns()
            child.drain()

    def _ending(self, flight: Flight, item: list[Any]) -> Ending:
        took = took_from_wire(item)
        if item[1] != STOPPED:
            return Ending(flight.lease, outcome_from_wire(item), took)
        if flight.asked is None and not flight.recalled:
            return when_refused(flight, self._clock())
        ending = when_stopped(
            flight, flight.asked or StopReason.RELEASE, self._clock(), cost=item[3]
        )
        never_started = flight.asked is None
        return ending if never_started else ending._replace(duration_ms=took)

    def _keep(self, child: RunnerProcess, request: int, seq: int, name: str, value: str) -> None:
        flight = child.flights.get(seq)
        if flight is None:
            child.send(["kept", request, False])
            return
        task = self._loop.create_task(self.on_keep(flight, name, value))
        task.add_done_callback(
            lambda done: child.send(["kept", request, not done.cancelled() and bool(done.result())])
        )

    # -- limits -----------------------------------------------------------------------------------
    def tick(self) -> None:
        """Look at every running attempt: past its limit, past its grace, too large, stuck in line."""
        now = time.monotonic_ns()
        weigh = now - self._memory_ns >= MEMORY_TICK_NS
        if weigh:
            self._memory_ns = now
        self._check_queue(now)
        if any(flight.suspect for flight, _ in self._queue):
            self._serve_alone()
        for child in list(self._children):
            if child.killed:
                continue
            if left_over(child, now):
                child.kill("left over")
                continue
            started = child.started()
            for seq, since in started.items():
                self._check_limit(child, child.flights[seq], since, now)
            self._check_line(child, started, now)
            if weigh and child.solo:
                self._check_memory(child)
            self._check_grace(child, now)

    def _check_queue(self, now_ns: int) -> None:
        """Waiting for a runner of its own that does not come: somebody else may have one."""
        late = [item for item in self._queue if now_ns - item[0].sent_ns > QUEUE_PATIENCE_NS]
        if late:
            self._queue = [item for item in self._queue if item not in late]
            self._give_back([flight for flight, _ in late])

    def _check_limit(
        self, child: RunnerProcess, flight: Flight, since_ns: int, now_ns: int
    ) -> None:
        if flight.asked is not None:
            return
        ran_us = (now_ns - max(since_ns, flight.sent_ns)) // 1000
        if ran_us >= flight.timeout:
            child.ask(flight, StopReason.TIMEOUT)
        elif flight.lease.deadline_at is not None and self._clock() >= flight.lease.deadline_at:
            child.ask(flight, StopReason.DEADLINE)

    def _check_line(self, child: RunnerProcess, started: Mapping[int, int], now_ns: int) -> None:
        """Claimed ahead of time, but its turn does not come: another worker may have room."""
        for flight in list(child.flights.values()):
            if flight.seq not in started and now_ns - flight.sent_ns > STUCK_NS and not child.solo:
                self.line_stuck = True
                child.recall(flight)

    def _check_memory(self, child: RunnerProcess) -> None:
        for flight in child.flights.values():
            if flight.memory_limit is None:
                continue
            flight.peak = max(flight.peak, session_memory(child.pid))
            if flight.peak > flight.memory_limit:
                flight.asked = StopReason.MEMORY
                child.kill("memory")

    def _check_grace(self, child: RunnerProcess, now_ns: int) -> None:
        """Who was asked and did not stop costs the runner its life; its neighbours get time to finish first."""
        grace_ns = int(self._settings.kill_grace * 1e9)
        over = [
            f
            for f in child.flights.values()
            if f.asked is not None and now_ns - f.asked_ns > grace_ns
        ]
        started = child.started()
        if not any(flight.seq in started for flight in over):
            return
        neighbours = [seq for seq in started if child.flights[seq].asked is None]
        if not neighbours or not child.answers():
            child.kill("limit" if child.answers() or len(started) == 1 else "unresponsive")
        elif not child.doomed_ns:
            self._doom(child, now_ns)
        elif now_ns - child.doomed_ns > int(self._settings.neighbour_grace * 1e9):
            child.kill("limit")

    def _doom(self, child: RunnerProcess, now_ns: int) -> None:
        """It takes no more jobs; another runner takes its place already."""
        child.doomed_ns = now_ns
        self._recall_waiting(child)
        self._refill()

    # -- death ------------------------------------------------------------------------------------
    def _exited(self, child: RunnerProcess) -> None:
        if child not in self._children:
            return
        try:
            death = child.reap()
        except (
            OSError
        ):  # no descriptor, no memory: its jobs must not wait for ever for somebody to bury it
            self._loop.call_later(REAP_AGAIN, self._exited, child)
            return
        self._children.remove(child)
        task = self._loop.create_task(self._bury(child, death))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaned)

    def _cleaned(self, task: asyncio.Task[None]) -> None:
        self._cleaning.discard(task)
        self._nursery.bury_strangers()
        self._changed.set()

    async def _bury(self, child: RunnerProcess, death: RunnerDeath) -> None:
        """Kill what is left of its processes, then say what became of its jobs."""
        lost = list(child.flights.values())
        self._burying += lost
        endings = [when_stopped(flight, StopReason.RELEASE, self._clock()) for flight in lost]
        try:
            endings = after_death(lost, child.begun(), death, child, self._clock())
            self._replace(child, death)
            await self._loop.run_in_executor(None, clean, self.recipe, child.mark, lost)
            child.detach()
        finally:
            self._burying = [flight for flight in self._burying if flight not in lost]
            self._on_end(endings)
        if not (child.killed or child.doomed_ns or self._closing):
            self.on_death({"runner": child.name, "jobs": len(lost), **facts(death)})
        if lost:
            log.warning(
                "runner %s ended (%s) with %d jobs",
                child.name,
                child.killed or how(death),
                len(lost),
            )
        elif not child.doomed_ns and not child.killed and not self._closing:
            log.warning("runner %s ended (%s)", child.name, how(death))

    def _replace(self, child: RunnerProcess, death: RunnerDeath) -> None:
        """Somebody takes its place: at once if it had ever been ready, else after a growing pause."""
        if self._closing or (
            self.manifest is None and (death.signal is None or self._early >= EARLY_DEATHS)
        ):
            return
        self._early += self.manifest is None
        if child.ready:
            self._refill()
        else:
            self._refill_later()


def _used_by_all(manifest: Manifest) -> frozenset[str]:
    used = [
        frozenset(spec.uses.split(","))
        for name, spec in manifest.kinds.items()
        if not name.startswith(OURS)
    ]
    return used[0].intersection(*used[1:]) - {""} if used else frozenset()

"""All runners of one worker: start them, give them jobs, enforce limits, handle their deaths.

Shared runners run many jobs concurrently. A job of an isolated kind, and a job whose last runner
died, gets a single-use runner. A spare single-use runner is kept ready where kinds are isolated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, count
from pathlib import Path
from typing import Any

from mulligan.config import WorkerSection
from mulligan.core.attempt import Ending, Lease
from mulligan.core.durations import Micros
from mulligan.core.job import PreviousAttempts
from mulligan.manifest.specs import KindSpec, Manifest
from mulligan.steps.rules import ClosedGate, StepRecord
from mulligan.worker.liveness import ensure_private_folder
from mulligan.worker.protocol import (
    JUST_RETURNED,
    STOPPED,
    duration_from_wire,
    outcome_from_wire,
    records_from_wire,
    returned_from_wire,
    step_failure_from_wire,
    step_from_wire,
)
from mulligan.worker.stacks import stacks_from_wire
from mulligan.worker.status_page import PAGES_MARK
from mulligan.worker.supervisor.deaths import (
    endings_after_death,
    refused_ending,
    stopped_ending,
    with_log,
)
from mulligan.worker.supervisor.fork_server import ForkServer
from mulligan.worker.supervisor.hook_watch import HookWatch
from mulligan.worker.supervisor.limits import PREFETCH_LIMIT_NS, RunnerLimits
from mulligan.worker.supervisor.recycling import Recycling
from mulligan.worker.supervisor.runner_process import (
    ActiveAttempt,
    KillReason,
    RunnerCommand,
    RunnerDeath,
    RunnerProcess,
    RunningStep,
    StopReason,
    clean_up,
    death_evidence,
    describe_death,
)
from mulligan.worker.supervisor.slots import (
    delivery_slots,
    isolated_kinds,
    needs_single_use_runner,
)

log = logging.getLogger("mulligan.worker")

TICK = 0.1  # seconds between checks of limits
MEMORY_TICK_NS = 250_000_000
MAX_RESPAWN_DELAY = 5.0  # seconds
LOAD_WARNING = 30.0  # seconds of importing the app until a warning
FORK_SERVER_WAIT = 5.0  # seconds that the first runners wait for the fork server
PAGE_RETENTION = 10.0  # seconds that the page of a dead runner stays readable
REAP_RETRY = 0.5  # seconds
MAX_EARLY_KILLS = 5  # runners killed by a signal while they load the app, until the worker gives up
QUEUE_LIMIT_NS = 60_000_000_000  # a job that waits longer for a single-use runner is released
SUSPECT_WAIT_NS = 10_000_000_000  # how long a suspect waits until nothing else runs here

Work = tuple[ActiveAttempt, PreviousAttempts | None]


class AppLoadFailed(Exception):
    """The app cannot be loaded."""


class Runners:
    """All runner processes of one worker."""

    def __init__(
        self,
        command: RunnerCommand,
        settings: WorkerSection,
        on_end: Callable[[list[Ending]], None],
        clock: Callable[[], Micros],
    ) -> None:
        self.command = command
        self.manifest: Manifest | None = None
        self.isolated_kinds: frozenset[str] = frozenset()  # each job gets a single-use runner
        self.app_settings: dict[str, Any] = {}  # as the app sets them in its own process
        self.activity = asyncio.Event()  # jobs were dispatched
        self._settings = settings
        self._on_end = on_end
        self._clock = clock  # the store's clock, estimated
        self._loop = asyncio.get_running_loop()
        self._processes: list[RunnerProcess] = []
        self._fork_server = ForkServer(
            command.runner, command.worker, self._fork_server_changed, self._pids
        )
        self._names = count(1)
        self._seqs = count(1)
        self._queue: list[Work] = []  # waiting for a single-use runner, or a successor
        self._recycling = Recycling.from_settings(settings)
        self._limits = RunnerLimits(settings, clock, self._recall, self._retire)
        self._changed = asyncio.Event()
        self._memory_checked_ns = 0
        self._respawn_delay = 0.0
        self._early_kills = 0
        # Set while runners that could not be started wait for the next try.
        self._refill_timer: asyncio.TimerHandle | None = None
        self._cleaning: set[asyncio.Task[None]] = set()
        self._unsettled: list[ActiveAttempt] = []  # of dead runners, until their endings are known
        self._closing = False
        self.hook_watch = HookWatch(command, self._processes)
        # Callbacks of the supervisor.
        self.is_suspect: Callable[[Lease], bool] = lambda _: False
        self.all_written: Callable[[], bool] = lambda: True
        self.on_manifest: Callable[[Manifest], None] = lambda _: None
        self.on_progress: Callable[[ActiveAttempt, float | None, str], None] = lambda *_: None
        self.on_step: Callable[[ActiveAttempt, StepRecord], asyncio.Future[bool]]
        self.on_gates: Callable[[ActiveAttempt, list[str]], asyncio.Future[ClosedGate | None]]
        self.on_death: Callable[[dict[str, Any]], None] = lambda _: None
        self.on_recall: Callable[[], None] = lambda: None  # jobs did not start in a runner

    # --- Starting and stopping runners ---

    def start(self) -> None:
        """Start the fork server, and the shared runners once it is ready."""
        with contextlib.suppress(OSError):
            ensure_private_folder(self.command.folder)
            (self.command.folder / PAGES_MARK).touch(0o600)
        example = self.command.build("r1", self._settings.concurrency, 1)
        if self._fork_server.open(self.command.environment(), example):
            self._refill_timer = self._loop.call_later(FORK_SERVER_WAIT, self._retry_refill)
        else:
            self._refill()

    def _pids(self) -> set[int]:
        return {runner.pid for runner in self._processes}

    def _fork_server_changed(self) -> None:
        if self._refill_timer is not None:
            self._refill_timer.cancel()
            self._retry_refill()

    def _refill(self) -> None:
        """Start shared runners until there are as many as configured."""
        if self._closing:
            return
        healthy = [
            runner
            for runner in self._processes
            if not (runner.single_use or runner.is_retiring or runner.needs_successor)
        ]
        for _ in range(self._settings.runners - len(healthy)):
            self._start_runner(single_use=False)
        if self.manifest is not None:
            self._serve_queue()

    async def wait_for_manifest(self) -> Manifest:
        """Return the manifest that the first ready runner reports."""
        while self.manifest is None:
            for runner in self._processes:
                if runner.load_error:
                    raise AppLoadFailed(runner.load_error)
            if not self._processes and self._refill_timer is None:
                message = "the runner died before the app was loaded; its output is above"
                raise AppLoadFailed(message)
            if not await self._wait_for_change(LOAD_WARNING):
                log.warning("still waiting for %s to be imported", self.command.app)
        return self.manifest

    async def _wait_for_change(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    async def close(self, reason: KillReason) -> None:
        """Kill all runners. Attempts that still run are released uncharged."""
        self._closing = True
        self._fork_server.close()
        self._release_queue()
        for runner in list(self._processes):
            runner.kill(reason)
        while self._processes or self._cleaning:
            await self._wait_for_change(1.0)

    async def drain(self) -> None:
        """Let idle runners run their `on_stop` hooks and exit, for up to two seconds."""
        self._closing = True
        self._fork_server.close()
        self._release_queue()
        for runner in self._processes:
            runner.drain()
        deadline = time.monotonic() + 2.0
        while self._processes and time.monotonic() < deadline:
            await self._wait_for_change(0.2)

    def _start_runner(self, *, single_use: bool) -> None:
        slots = 1
        reserved = 0
        if not single_use:
            runners = self._settings.runners
            slots = max(1, math.ceil(self._settings.concurrency / runners))
            reserved = math.ceil(delivery_slots(self._settings.concurrency) / runners)
        try:
            runner = RunnerProcess(
                self.command,
                f"r{next(self._names)}",
                slots,
                reserved,
                single_use=single_use,
                fork_server=self._fork_server,
            )
            runner.attach(self._loop, self._on_message, self._on_exit)
        except OSError as error:  # no memory, descriptors or interpreter
            log.error("cannot start a runner: %s; trying again", error)  # noqa: TRY400 - one line is enough
            self._refill_later()
            return
        self._processes.append(runner)

    def _refill_later(self) -> None:
        """Try again after a growing delay. One timer for all runners that could not be started."""
        if self._refill_timer is None:
            self._respawn_delay = min(MAX_RESPAWN_DELAY, max(0.1, self._respawn_delay * 2))
            self._refill_timer = self._loop.call_later(self._respawn_delay, self._retry_refill)

    def _retry_refill(self) -> None:
        self._refill_timer = None
        self._refill()

    # --- What is running ---

    def active_attempts(self) -> list[ActiveAttempt]:
        """Return all attempts of this worker: queued, running, and of dead runners."""
        queued = [attempt for attempt, _ in self._queue]
        sent = [attempt for runner in self._processes for attempt in runner.attempts.values()]
        return queued + self._unsettled + sent

    @property
    def count(self) -> int:
        """How many attempts this worker has."""
        sent = sum(len(runner.attempts) for runner in self._processes)
        return len(self._queue) + len(self._unsettled) + sent

    def dependency_runtimes(self) -> list[tuple[Lease, float]]:
        """Return running attempts that use a dependency, and since how many milliseconds."""
        now = time.monotonic_ns()
        return [
            (attempt.lease, (now - attempt.sent_ns) / 1e6)
            for runner in self._processes
            for attempt in runner.dependency_users.values()
        ]

    @property
    def can_accept(self) -> bool:
        """True if new jobs may be claimed for these runners. Also read by other threads."""
        if self._closing:
            return False
        processes = list(self._processes)
        return any(runner.is_available and not runner.single_use for runner in processes)

    def _has_suspect(self) -> bool:
        """True if this worker has a job that may kill the whole worker."""
        if any(attempt.suspect for attempt, _ in self._queue):
            return True
        return any(
            attempt.suspect
            for runner in self._processes
            if runner.single_use
            for attempt in runner.attempts.values()
        )

    # --- Dispatch ---

    def dispatch(
        self, leases: Sequence[Lease], previous_attempts: Mapping[str, PreviousAttempts]
    ) -> None:
        """Send claimed jobs to runners, or queue them for a single-use runner."""
        self.activity.set()
        self._assign(leases, previous_attempts)
        self._serve_queue()

    def _shared_runners(self) -> list[RunnerProcess]:
        return [
            runner for runner in self._processes if runner.is_available and not runner.single_use
        ]

    def _assign(
        self, leases: Sequence[Lease], previous_attempts: Mapping[str, PreviousAttempts]
    ) -> None:
        """Decide for each lease: shared runner, single-use runner, or release."""
        shared: list[Work] = []
        now = time.monotonic_ns()
        kinds = {} if self.manifest is None else self.manifest.kinds
        for lease in leases:
            spec = kinds.get(lease.kind)
            attempt = ActiveAttempt(next(self._seqs), lease, spec or KindSpec(lease.kind), now)
            attempt.suspect = lease.losses > 0 and self.is_suspect(lease)
            # The app or this worker's id may have changed since the claim.
            outdated = spec is None or lease.worker != self.command.worker
            if outdated or (attempt.suspect and self._has_suspect()):
                self._release([attempt])
                continue
            work = (attempt, previous_attempts.get(lease.id))
            if needs_single_use_runner(lease, self.isolated_kinds):
                self._queue.append(work)
            else:
                shared.append(work)
        self._distribute(shared)

    def _distribute(self, work: list[Work]) -> None:
        """Give each job to the shared runner with the fewest jobs."""
        if not work:
            return
        runners = self._shared_runners()
        if self._recycling.max_jobs:
            self._distribute_up_to_limit(work, runners)
            return
        if not runners:
            self._release([attempt for attempt, _ in work])
            return
        if len(runners) == 1:
            runners[0].run(work)
            return
        assigned: dict[str, list[Work]] = {}
        load = {runner.name: len(runner.attempts) for runner in runners}
        for item in work:
            name = min(load, key=load.__getitem__)
            load[name] += 1
            assigned.setdefault(name, []).append(item)
        for runner in runners:
            if runner.name in assigned:
                runner.run(assigned[runner.name])

    # --- Recycling: runners that reached a limit are replaced ---

    def _distribute_up_to_limit(self, work: list[Work], runners: list[RunnerProcess]) -> None:
        """Give no runner more jobs than the limit. The rest waits for a runner that is loading."""
        free = {runner.name: self._recycling.free_jobs(runner) for runner in runners}
        load = {runner.name: len(runner.attempts) for runner in runners}
        assigned: dict[str, list[Work]] = {name: [] for name in free}
        rest: list[Work] = []
        for item in work:
            open_runners = [name for name in free if len(assigned[name]) < free[name]]
            if not open_runners:
                rest.append(item)
                continue
            name = min(open_runners, key=lambda name: load[name] + len(assigned[name]))
            assigned[name].append(item)
        for runner in runners:
            if assigned[runner.name]:
                runner.run(assigned[runner.name])
        self._recycle_exhausted(runners)
        self._wait_for_successor(rest)

    def _recycle_exhausted(self, runners: list[RunnerProcess]) -> None:
        """Give no more jobs to runners at the limit, and start successors of those near it."""
        for runner in runners:
            runner.needs_successor = runner.needs_successor or self._recycling.is_near(runner)
            if not self._recycling.free_jobs(runner):
                self._recycle(runner, f"it has run {runner.jobs_given:,} jobs")
        self._refill()

    def _recycle(self, runner: RunnerProcess, reason: str) -> None:
        """Give a runner no more jobs. It finishes those it has and exits."""
        log.info("runner %s is replaced: %s", runner.name, reason)
        runner.needs_successor = runner.recycled = True
        self._drain_if_done(runner)

    def _wait_for_successor(self, work: list[Work]) -> None:
        """Keep jobs until a runner is ready that is loading now; release them if there is none."""
        if any(not (runner.ready or runner.single_use) for runner in self._processes):
            for attempt, _ in work:
                attempt.shared = True
            self._queue += work
        else:
            self._release([attempt for attempt, _ in work])

    def _use_successor(self) -> None:
        """Give a new shared runner the jobs that wait, and recycle one whose place it takes."""
        waiting = [work for work in self._queue if work[0].shared]
        if waiting:
            self._queue = [work for work in self._queue if not work[0].shared]
            self._distribute(waiting)
        large = [runner for runner in self._shared_runners() if runner.memory_excess]
        for runner in large[:1]:
            self._recycle(runner, runner.memory_excess)

    def _check_runner_memory(self, runner: RunnerProcess) -> None:
        """Start a successor for a runner that uses too much memory. Until then it goes on."""
        if runner.is_available and not runner.memory_excess:
            runner.memory_excess = self._recycling.find_memory_excess(runner)
            if runner.memory_excess:
                runner.needs_successor = True
                self._refill()

    def _serve_queue(self) -> None:
        """Give each queued job a single-use runner: an idle one, or else a new one."""
        if self._closing:
            return
        single_use = [runner for runner in self._processes if runner.single_use]
        idle = [runner for runner in single_use if not (runner.attempts or runner.is_retiring)]
        idle.sort(key=lambda runner: not runner.ready)
        queue = [work for work in self._queue if not work[0].shared]
        for work in [work for work in queue if self._may_start(work[0])]:
            if not idle or not idle[0].ready:
                break
            self._queue.remove(work)
            queue.remove(work)
            idle.pop(0).run([work])
        spare = 1 if self.isolated_kinds else 0
        missing = len(queue) + spare - len(idle)
        allowed = self._settings.concurrency + 1 - len(single_use)
        for _ in range(min(missing, allowed)):
            self._start_runner(single_use=True)

    def _may_start(self, attempt: ActiveAttempt) -> bool:
        """True unless a suspect must wait until it is all that this worker has.

        If that takes too long, it runs concurrently with the others and is no suspect any more.
        """
        if not attempt.suspect or (self.count == 1 and self.all_written()):
            return True
        if time.monotonic_ns() - attempt.sent_ns > SUSPECT_WAIT_NS:
            attempt.suspect = False
            return True
        return False

    def _release(self, attempts: Sequence[ActiveAttempt]) -> None:
        now = self._clock()
        self._on_end([stopped_ending(attempt, StopReason.RELEASE, now) for attempt in attempts])

    def release_unstarted(self) -> None:
        """Release everything that has not started."""
        self._release_queue()
        for runner in self._processes:
            self._recall_prefetched(runner)

    def _release_queue(self) -> None:
        queued = [attempt for attempt, _ in self._queue]
        self._queue = []
        if queued:
            self._release(queued)

    def _recall_prefetched(self, runner: RunnerProcess) -> None:
        self.on_recall()
        started = runner.running()
        for attempt in list(runner.attempts.values()):
            if attempt.seq not in started:
                runner.recall(attempt)

    def request_stop_all(self, reason: StopReason) -> None:
        """Request every attempt to stop."""
        for runner in self._processes:
            for attempt in list(runner.attempts.values()):
                runner.request_stop(attempt, reason)

    def cancel(self, job_id: str, token: int, reason: str) -> None:
        """Stop an attempt because its job was cancelled."""
        fence = (job_id, token)
        for work in list(self._queue):
            attempt = work[0]
            if attempt.lease.fence == fence:
                self._queue.remove(work)
                attempt.lease = attempt.lease._replace(cancel_reason=reason)
                self._on_end([stopped_ending(attempt, StopReason.CANCEL, self._clock())])
        for runner in self._processes:
            for attempt in runner.attempts.values():
                if attempt.lease.fence == fence and attempt.stop_reason is None:
                    attempt.lease = attempt.lease._replace(cancel_reason=reason)
                    runner.request_stop(attempt, StopReason.CANCEL)
                    return

    # --- Messages of runners ---

    def _on_message(self, runner: RunnerProcess, message: list[Any]) -> None:
        match message:
            case ["returned", ends]:
                self._on_returned(runner, ends)
            case ["ended", items]:
                self._on_ended(runner, items)
            case ["progress", items]:
                self._on_progress(runner, items)
            case ["step" | "step_began" | "step_ended" | "gates", *_]:
                self._on_step_message(runner, message)
            case ["stacks", seq, stacks]:
                runner.set_stacks(seq, stacks_from_wire(stacks))
            case ["settings", values]:
                self.app_settings = values
            case ["hooks" | "hook_faults", *_]:
                self.hook_watch.on_message(runner, message)
            case ["ready", manifest]:
                self._on_ready(runner, Manifest.from_json(manifest))
            case ["load_failed", error]:
                runner.load_error = error
                self._changed.set()

    def _on_ready(self, runner: RunnerProcess, manifest: Manifest) -> None:
        runner.ready = True
        self._respawn_delay = 0.0
        self._use_manifest(manifest)
        self._recycling.note_ready(runner)
        if not runner.single_use:
            self._use_successor()
        self._serve_queue()
        self.hook_watch.send_pending()
        self._changed.set()
        self._on_end([])  # wakes the loop: there are free slots now

    def _on_progress(self, runner: RunnerProcess, items: list[list[Any]]) -> None:
        for seq, fraction, text in items:
            if seq in runner.attempts:
                self.on_progress(runner.attempts[seq], fraction, text)

    def _use_manifest(self, manifest: Manifest) -> None:
        """Use a runner's manifest. If the app has changed, run only kinds that all runners have.

        A runner that was started after a deploy may have loaded another version of the app.
        """
        is_first = self.manifest is None
        if self.manifest is not None and manifest.id != self.manifest.id:
            log.warning("the app has changed on disk; restart this worker to run the new version")
            kinds = {
                name: spec for name, spec in self.manifest.kinds.items() if name in manifest.kinds
            }
            manifest = replace(self.manifest, kinds=kinds)
        self.manifest = manifest
        self.isolated_kinds = isolated_kinds(manifest)
        self.on_manifest(manifest)
        if is_first:
            self._refill()

    def _on_ended(self, runner: RunnerProcess, items: list[list[Any]]) -> None:
        """Handle endings. All are decoded first: one that is garbled must not remove an attempt."""
        ends: dict[int, list[Any]] = {}
        for item in items:
            # The first end of an attempt counts: a stop request that arrives just after the end
            # is answered with a second one.
            if item[0] in runner.attempts:
                ends.setdefault(item[0], item)
        endings = [self._ending(runner.attempts[seq], item) for seq, item in ends.items()]
        runner.remove_attempts([*ends])
        self._on_end(endings)
        if runner.needs_failures:
            stopped = [item[1] == STOPPED for item in ends.values()]
            self.hook_watch.notify([*compress(endings, stopped)])
        self._drain_if_done(runner)

    def _on_returned(self, runner: RunnerProcess, ends: list[int]) -> None:
        """Handle attempts that returned None, without cost."""
        seqs, times = returned_from_wire(ends)
        ended = zip(runner.remove_attempts(seqs), times, strict=True)
        self._on_end(
            [
                Ending(attempt.lease, JUST_RETURNED, took)
                for attempt, took in ended
                if attempt is not None
            ]
        )
        self._drain_if_done(runner)

    def _drain_if_done(self, runner: RunnerProcess) -> None:
        is_done = runner.single_use or runner.recycled or runner.retiring_since_ns
        if is_done and not runner.attempts:
            runner.retiring_since_ns = time.monotonic_ns()
            runner.drain()

    def _ending(self, attempt: ActiveAttempt, item: list[Any]) -> Ending:
        took = duration_from_wire(item)
        records = records_from_wire(item)
        if item[1] != STOPPED:
            return with_log(attempt, Ending(attempt.lease, outcome_from_wire(item), took), records)
        if attempt.stop_reason is not None:
            ending = stopped_ending(
                attempt,
                attempt.stop_reason,
                self._clock(),
                cost=item[3],
                started=not attempt.recalled,
            )
            return with_log(attempt, ending._replace(duration_ms=took), records)
        if attempt.recalled:  # it never started
            return stopped_ending(attempt, StopReason.RELEASE, self._clock(), cost=item[3])
        return refused_ending(attempt, self._clock())

    def _save_step(self, runner: RunnerProcess, request: int, seq: int, record: StepRecord) -> None:
        """Save a step and answer whether the attempt still held its lease."""
        attempt = runner.attempts.get(seq)
        if attempt is None:
            runner.send(["step_saved", request, False])
            return

        def answer(saved: asyncio.Future[bool]) -> None:
            runner.send(["step_saved", request, not saved.cancelled() and saved.result()])

        attempt.end_step(record.name)
        self.on_step(attempt, record).add_done_callback(answer)

    def _on_step_message(self, runner: RunnerProcess, message: list[Any]) -> None:
        match message:
            case ["step", request, seq, record]:
                self._save_step(runner, request, seq, step_from_wire(record))
            case ["step_began", seq, step, timeout] if seq in runner.attempts:
                limit = timeout if type(timeout) is int else None
                running = RunningStep(step_failure_from_wire(step), limit, time.monotonic_ns())
                runner.attempts[seq].begin_step(running)
            case ["step_ended", seq, name] if seq in runner.attempts:
                runner.attempts[seq].end_step(name)
            case ["gates", request, seq, keys]:
                self._find_closed_gate(runner, request, seq, [*map(str, keys)])

    def _find_closed_gate(
        self, runner: RunnerProcess, request: int, seq: int, keys: list[str]
    ) -> None:
        """Answer which of the dependencies of a step is down."""
        attempt = runner.attempts.get(seq)
        if attempt is None:
            runner.send(["gate", request, None])
            return

        def answer(found: asyncio.Future[ClosedGate | None]) -> None:
            # If the database is away, the step is called: only the breaker could have stopped it.
            failed = found.cancelled() or found.exception() is not None
            gate = None if failed else found.result()
            runner.send(["gate", request, None if gate is None else [*gate]])

        self.on_gates(attempt, keys).add_done_callback(answer)

    # --- Limits ---

    def tick(self) -> None:
        """Check every attempt: time limit, grace period, memory, and waiting too long."""
        now = time.monotonic_ns()
        check_memory = now - self._memory_checked_ns >= MEMORY_TICK_NS
        if check_memory:
            self._memory_checked_ns = now
        self._fork_server.reap_orphans()
        self._check_queue(now)
        if any(attempt.suspect for attempt, _ in self._queue):
            self._serve_queue()
        for runner in list(self._processes):
            self._limits.enforce(runner, now, check_memory=check_memory)
            is_watched = runner.kill_reason is None and not runner.single_use
            if check_memory and self._recycling.max_memory and is_watched:
                self._check_runner_memory(runner)

    def _check_queue(self, now_ns: int) -> None:
        """Release jobs that wait too long for a runner; another worker may have one."""
        late = [work for work in self._queue if now_ns - work[0].sent_ns > _wait_limit(work[0])]
        if late:
            self._queue = [work for work in self._queue if work not in late]
            self._release([attempt for attempt, _ in late])

    def _recall(self, runner: RunnerProcess, attempt: ActiveAttempt) -> None:
        """Take back a job that waits too long for a slot; another worker may have a free one."""
        self.on_recall()
        runner.recall(attempt)

    def _retire(self, runner: RunnerProcess, now_ns: int) -> None:
        """Give a runner no more jobs, and start another one in its place."""
        runner.retiring_since_ns = now_ns
        self._recall_prefetched(runner)
        self._refill()

    # --- Deaths ---

    def _on_exit(self, runner: RunnerProcess) -> None:
        if runner not in self._processes:
            return
        try:
            death = runner.reap()
        except OSError:  # no descriptor or memory; its jobs must still be settled
            self._loop.call_later(REAP_RETRY, self._on_exit, runner)
            return
        self._processes.remove(runner)
        task = self._loop.create_task(self._settle_death(runner, death))
        self._cleaning.add(task)
        task.add_done_callback(self._on_cleaned)

    def _on_cleaned(self, task: asyncio.Task[None]) -> None:
        self._cleaning.discard(task)
        self._fork_server.reap_orphans()
        self._changed.set()

    async def _settle_death(self, runner: RunnerProcess, death: RunnerDeath) -> None:
        """Replace a dead runner, kill what is left of its processes, then end its attempts."""
        lost = list(runner.attempts.values())
        self._unsettled += lost
        now = self._clock()
        endings = [stopped_ending(attempt, StopReason.RELEASE, now) for attempt in lost]
        try:
            suspects = [] if self._closing else self.hook_watch.suspects(runner, death)
            endings = endings_after_death(
                lost, runner.ever_started(), death, runner, now, in_hook=bool(suspects)
            )
            self._replace(runner, death)
            await self._loop.run_in_executor(None, clean_up, self.command, runner.mark, lost)
            runner.detach()
            self._remove_page_later(runner.page_file)
        finally:
            self._unsettled = [attempt for attempt in self._unsettled if attempt not in lost]
            self._on_end(endings)
        self.hook_watch.notify(endings, killed_at=self._clock())
        self._report_death(runner, death, len(lost))

    def _remove_page_later(self, page: Path) -> None:
        """Remove the page of a dead runner once the endings of its attempts are durable."""
        self._loop.call_later(PAGE_RETENTION, self._remove_page, page)

    def _remove_page(self, page: Path) -> None:
        if not self.all_written():
            self._remove_page_later(page)
            return
        with contextlib.suppress(OSError):
            page.unlink()

    def _report_death(self, runner: RunnerProcess, death: RunnerDeath, lost: int) -> None:
        unexpected = not (runner.is_retiring or self._closing)
        if unexpected:
            self.on_death({"runner": runner.name, "jobs": lost, **death_evidence(death)})
        how = runner.kill_reason or describe_death(death)
        if lost:
            log.warning("runner %s ended (%s) with %d jobs", runner.name, how, lost)
        elif unexpected:
            log.warning("runner %s ended (%s)", runner.name, how)

    def _replace(self, runner: RunnerProcess, death: RunnerDeath) -> None:
        """Start another runner: at once if this one had loaded the app, else after a delay.

        If the app has never been loaded, an exit code means that it cannot be, and a few kills
        by a signal mean the same.
        """
        if self._closing:
            return
        if self.manifest is None:
            if death.signal is None or self._early_kills >= MAX_EARLY_KILLS:
                return
            self._early_kills += 1
        if runner.ready:
            self._refill()
        else:
            self._refill_later()


def _wait_limit(attempt: ActiveAttempt) -> int:
    """Return how long an attempt may wait for a runner, in nanoseconds."""
    return PREFETCH_LIMIT_NS if attempt.shared else QUEUE_LIMIT_NS

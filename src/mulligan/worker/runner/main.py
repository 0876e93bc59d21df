"""A runner: a child process that holds the user's app, runs jobs and reports how they ended.

Async handlers run on the event loop, sync handlers on threads. Before the first line of a handler
runs, its attempt is on the status page, where the supervisor reads it even if this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from mulligan.config import Settings
from mulligan.core.attempt import Failure, Lease, Outcome, StepFailure
from mulligan.core.durations import Micros
from mulligan.core.job import PreviousAttempts
from mulligan.core.tracing import OPENTELEMETRY
from mulligan.manifest.hooks import Hook
from mulligan.manifest.specs import DELIVERY_QUEUE, Handler, Registry
from mulligan.retries.effective import EffectivePolicies
from mulligan.steps.rules import ClosedGate, StepRecord
from mulligan.worker.liveness import make_workdir, remove_workdir
from mulligan.worker.protocol import (
    JUST_RETURNED,
    Wire,
    WireClosed,
    ended_messages,
    failure_from_wire,
    leases_from_wire,
    outcome_to_wire,
    previous_from_wire,
    stopped_to_wire,
)
from mulligan.worker.recording import Recording, encode_records
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, execute_async, execute_sync, run_process_hooks
from mulligan.worker.runner.flight_recorder import capture_stacks, recording_into
from mulligan.worker.runner.hooks import (
    HookAbandoned,
    HookRun,
    Hooks,
    call_failure_hooks,
    execute_async_with_hooks,
    execute_sync_with_hooks,
)
from mulligan.worker.startup import collect_after, finish_loading
from mulligan.worker.status_page import StatusPage

log = logging.getLogger("mulligan.runner")

HEARTBEAT_INTERVAL = 0.5  # seconds
PROGRESS_INTERVAL = 0.5  # seconds
FLUSH_INTERVAL = 0.005  # seconds
FLUSH_SIZE = 250  # endings that are sent without waiting for more
NS_PER_MS = 1_000_000
NO_SLOT = -1
REPORT_LIMIT = 10.0  # seconds that hooks wait until an outcome is sent
FAR_FUTURE_NS = 2**63


class ThreadPool:
    """Threads for sync handlers. Starts a thread when one is needed, at most one per slot.

    `run` and `done` are called on the event loop only, so the count needs no lock.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._stuck = 0  # threads in a hook that was given up

    def run(self, task: Callable[[], None]) -> None:
        """Run a task on a free thread."""
        self._busy += 1
        needed = self._busy + self._stuck
        if needed > len(self._threads) and len(self._threads) < self._max_threads + self._stuck:
            name = f"mulligan-job-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

    def done(self) -> None:
        """Note that a task has ended."""
        self._busy -= 1

    def give_up(self) -> None:
        """Replace the thread of a task that may never end."""
        self._busy -= 1
        self._stuck += 1

    def recovered(self) -> None:
        """Note that a task that was given up has ended."""
        self._stuck -= 1

    def _work(self) -> None:
        while True:
            # In a copy of the context, so that variables set by one job do not reach the next.
            copy_context().run(self._tasks.get())


class AttemptTask:
    """One attempt in this process."""

    __slots__ = (
        "began_ns",
        "context",
        "handler",
        "has_hooks",
        "recording",
        "reported",
        "slot",
        "started_task",
        "task",
        "thread",
    )

    def __init__(self, handler: Handler, context: Context, *, has_hooks: bool = False) -> None:
        self.handler = handler
        self.has_hooks = has_hooks
        self.context = context
        self.slot = NO_SLOT
        self.began_ns = 0
        self.reported = False  # its outcome is sent; only hooks still run
        self.task: asyncio.Task[None] | None = None
        self.started_task: asyncio.Task[None] | None = None  # `task`, once it has begun to run
        self.thread: int | None = None  # identifier of the thread that runs a sync handler
        self.recording: Recording | None = None  # from its first record on


class Runner:
    """Runs attempts. Implements `AttemptHost` for their contexts."""

    def __init__(
        self,
        registry: Registry,
        wire: Wire,
        status_page: StatusPage,
        *,
        mark: str,
        folder: Path,
        settings: Settings,
        delivery_slots: int = 0,
        hooks_off: Sequence[str] = (),
    ) -> None:
        """Create a runner. `delivery_slots`: the last slots of the page, for deliveries only.

        `hooks_off`: hooks that have ended other runners.
        """
        self.policies = EffectivePolicies(
            settings.retry, registry.manifest("", "").kinds, registry.queues
        )
        self.result_limit = settings.limits.result
        self.tracer = registry.tracer
        self.state: Any = SimpleNamespace()
        self._registry = registry
        self._wire = wire
        self._status_page = status_page
        self._mark = mark
        self._folder = folder
        self.hooks = Hooks(registry, off=hooks_off)
        self._failure_turn = asyncio.Lock()
        self._failure_tasks: set[asyncio.Task[None]] = set()
        self._hook_runs: set[RunnerHookRun] = set()  # of sync handlers
        self._threads = ThreadPool(status_page.slots)
        self._first_delivery_slot = status_page.slots - delivery_slots
        self._free_slots = list(range(self._first_delivery_slot))
        self._free_delivery_slots = list(range(self._first_delivery_slot, status_page.slots))
        self._waiting: deque[AttemptTask] = deque()
        self._attempts: dict[int, AttemptTask] = {}
        self._in_slots: list[AttemptTask | None] = [None] * status_page.slots  # the last ones
        # Endings that have not been sent yet.
        self._returned: list[int] = []  # attempts that returned None: seq, ms, seq, ms, …
        self._ended: list[list[Any]] = []  # all others
        self._unsent = 0
        self._from_threads: list[tuple[AttemptTask, Outcome | None]] = []
        self._progress: dict[int, list[Any]] = {}
        self._step_requests: dict[int, Future[Any]] = {}
        self._last_request = 0
        self._flush_scheduled = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._closing = False
        self._lock = threading.Lock()

    # --- Life of the process ---

    async def serve(self, manifest: str) -> None:
        """Run attempts until the supervisor closes the connection or drains this runner."""
        self.loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._closed: asyncio.Future[None] = self.loop.create_future()
        self._status_page.write_heartbeat()
        self.state = await run_process_hooks(self._registry.on_start, self.state)
        finish_loading()
        self.loop.add_reader(self._wire.fileno(), self._readable)
        traces = OPENTELEMETRY in sys.modules
        if self.hooks.limits or traces:
            self._wire.send(["hooks", self.hooks.limits, traces])
        self._wire.send(["ready", manifest])
        heartbeat = self.loop.create_task(self._heartbeat())
        try:
            with recording_into(self._find_recording):
                await self._closed
        finally:
            self._closing = True
            heartbeat.cancel()
            self.loop.remove_reader(self._wire.fileno())
            await run_process_hooks(self._registry.on_stop, self.state)

    async def _heartbeat(self) -> None:
        wire = _file_identity(self._wire.fileno())
        while True:
            self._status_page.write_heartbeat()
            self._give_up_late_hooks()
            self._send_hook_faults()
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            if _file_identity(self._wire.fileno()) != wire:
                self._close()  # a handler has closed the descriptor of our connection

    def _readable(self) -> None:
        try:
            for message in self._wire.receive():
                self._on_message(message)
        except WireClosed:
            self._close()

    def _close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_message(self, message: list[Any]) -> None:
        match message:
            case ["run", seqs, shared, columns, previous_attempts]:
                self._accept_all(seqs, shared, columns, previous_attempts)
            case ["stop", seq, with_stacks]:
                if with_stacks:
                    self._send_stacks(seq)
                self._stop(seq)
            case ["recall", seq]:
                self._recall(seq)
            case ["step_saved" | "gate" as name, request, answer]:
                self._on_step_answer(name, request, answer)
            case ["hooks_off", names]:
                self.hooks.turn_off(names)
            case ["failed", lease, failure, killed_at]:
                self._on_failed(lease, failure, killed_at)
            case ["drain"]:
                self._draining = True
                self._close_if_drained()

    def _on_step_answer(self, name: str, request: int, answer: Any) -> None:
        future: Future[Any] = self._step_requests.pop(request)
        if future.cancelled():  # its attempt was stopped meanwhile
            return
        is_gate = name == "gate" and answer is not None
        future.set_result(ClosedGate(*answer) if is_gate else answer)

    def _close_if_drained(self) -> None:
        if not self._draining or self._attempts:
            return
        self._send_hook_faults()
        if not self._wire.pending:
            self._close()

    # --- Attempts ---

    def _accept_all(
        self,
        seqs: list[int],
        shared: dict[int, Any],
        columns: dict[int, Any],
        previous_attempts: dict[int, Any],
    ) -> None:
        try:
            leases = [*leases_from_wire(len(seqs), shared, columns)]
        except (KeyError, TypeError, ValueError):
            log.exception("jobs from the supervisor could not be decoded; returning them")
            for seq in seqs:
                self._report_stopped(seq)
            return
        for seq, lease in zip(seqs, leases, strict=True):
            self._accept_safely(seq, lease, previous_attempts.get(seq))

    def _accept_safely(self, seq: int, lease: Lease, previous: list[Any] | None) -> None:
        """Accept one job. An error must not stop the others."""
        try:
            attempts = None
            if previous is not None:
                attempts = previous_from_wire(previous)
            self._accept(seq, lease, attempts)
        except Exception:
            log.exception("job %s could not be accepted; returning it", lease.id)
            self._attempts.pop(seq, None)
            self._report_stopped(seq)

    def _report_stopped(self, seq: int) -> None:
        self._ended.append(stopped_to_wire(seq, 0, 0.0))
        self._schedule_flush()

    def _accept(self, seq: int, lease: Lease, previous: PreviousAttempts | None) -> None:
        handler = self._registry.handlers.get(lease.kind)
        if handler is None:  # this process loaded a newer app that does not have the kind
            self._report_stopped(seq)
            return
        has_hooks = self.hooks.apply_to(handler)
        attempt = AttemptTask(handler, Context(self, seq, lease, previous), has_hooks=has_hooks)
        self._attempts[seq] = attempt
        if self._free_delivery_slots and lease.queue == DELIVERY_QUEUE:
            self._start(attempt, self._free_delivery_slots)
        elif self._free_slots:
            self._start(attempt, self._free_slots)
        else:
            self._waiting.append(attempt)

    def _start(self, attempt: AttemptTask, free_slots: list[int]) -> None:
        slot = attempt.slot = free_slots.pop()
        attempt.began_ns = time.monotonic_ns()
        self._in_slots[slot] = attempt
        if attempt.has_hooks:
            self._status_page.enter_hooks(slot, attempt.context.seq)
        else:
            self._show_start(attempt)
        if attempt.handler.is_async:
            self._status_page.set_thread(slot, self._loop_thread)
            attempt.task = self._create_task(self._run_async(attempt))
        else:
            self._threads.run(lambda: self._run_sync(attempt))

    def _show_start(self, attempt: AttemptTask) -> None:
        context = attempt.context
        self._status_page.start(attempt.slot, context.seq, attempt.began_ns, context.lease.fence)

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Create a task directly where the loop has no task factory: faster for short jobs."""
        if self.loop.get_task_factory() is None:
            return asyncio.Task(coroutine, loop=self.loop)
        return self.loop.create_task(coroutine)

    async def _run_async(self, attempt: AttemptTask) -> None:
        # From here on a cancellation of the task arrives inside `execute_async`.
        attempt.started_task = attempt.task or asyncio.current_task()
        if attempt.context.stop_requested:
            self._finish(attempt, STOPPED)
            return
        if attempt.has_hooks:
            run = RunnerHookRun(self, attempt)
            outcome = await execute_async_with_hooks(attempt.handler, run, self.result_limit)
        else:
            outcome = await execute_async(attempt.handler, attempt.context, self.result_limit)
            if await self.is_shutting_down(attempt):
                return
        self._finish(attempt, outcome)

    async def is_shutting_down(self, attempt: AttemptTask) -> bool:
        """True if the handler did not end: the loop cancels it because this process exits."""
        task = attempt.started_task
        if task is not None and task.cancelling() and not attempt.context.stop_requested:
            # If the loop is shutting down it cancels all tasks: let `serve` notice it first. Then
            # report nothing, because the handler did not end: the supervisor will see us die.
            await asyncio.sleep(0)
            return self._closing
        return False

    def _run_sync(self, attempt: AttemptTask, skipped: Sequence[Hook] = ()) -> None:
        """Run a sync handler on a thread of the pool. `skipped`: hooks that were given up."""
        attempt.thread = threading.get_ident()
        self._status_page.set_thread(attempt.slot, attempt.thread)
        if attempt.has_hooks:
            run = RunnerHookRun(self, attempt, skipped)
            self._hook_runs.add(run)
            try:
                outcome = execute_sync_with_hooks(attempt.handler, run, self.result_limit)
            except HookAbandoned:
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    self.loop.call_soon_threadsafe(self._threads.recovered)
                return
            finally:
                self._hook_runs.discard(run)
        else:
            outcome = execute_sync(attempt.handler, attempt.context, self.result_limit)
        with self._lock:
            is_first = not self._from_threads
            self._from_threads.append((attempt, outcome))
        if is_first:  # otherwise the loop has been woken already
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self.loop.call_soon_threadsafe(self._collect_from_threads)

    def _collect_from_threads(self) -> None:
        with self._lock:
            ended = self._from_threads
            self._from_threads = []
        for attempt, outcome in ended:
            self._threads.done()
            self._finish(attempt, outcome)

    def _finish(self, attempt: AttemptTask, outcome: Outcome | None) -> None:
        if not attempt.reported:
            self._add_outcome(attempt, outcome)
        self._free_slot(attempt)
        self._schedule_flush()
        collect_after((time.monotonic_ns() - attempt.began_ns) / 1e9)

    def _add_outcome(self, attempt: AttemptTask, outcome: Outcome | None) -> None:
        seq = attempt.context.seq
        took_ns = time.monotonic_ns() - attempt.began_ns
        took_ms = (took_ns + NS_PER_MS // 2) // NS_PER_MS
        if outcome == JUST_RETURNED:
            self._returned += (seq, took_ms)
        elif outcome is STOPPED:
            records = _last_records(attempt)
            self._ended.append(stopped_to_wire(seq, took_ms, attempt.context.spent, records))
        else:
            records = "" if outcome.failure is None else _last_records(attempt)
            self._ended.append(outcome_to_wire(seq, outcome, took_ms, records))

    def _free_slot(self, attempt: AttemptTask) -> None:
        slot = attempt.slot
        if attempt.recording is not None:
            attempt.recording.close()
        del self._attempts[attempt.context.seq]
        self._status_page.stop(slot)
        if attempt.has_hooks:
            self._status_page.leave_hooks(slot)
        if slot < self._first_delivery_slot:
            self._free_slots.append(slot)
        else:
            self._free_delivery_slots.append(slot)
        if self._waiting and self._free_slots:
            self._start(self._waiting.popleft(), self._free_slots)

    def _stop(self, seq: int) -> None:
        attempt = self._attempts.get(seq)
        if attempt is None or attempt.reported:  # ended; the supervisor uses the first answer
            self._report_stopped(seq)
            return
        attempt.context.request_stop()
        if not self._recall(seq) and attempt.started_task is not None:
            attempt.started_task.cancel()

    def _send_stacks(self, seq: int) -> None:
        """Send the stacks of an attempt, before the request to stop changes them."""
        attempt = self._attempts.get(seq)
        if attempt is not None and attempt.slot >= 0:
            lease = attempt.context.lease
            self._send(["stacks", seq, capture_stacks(lease, attempt.thread, attempt.started_task)])

    def _recall(self, seq: int) -> bool:
        """Return a job that has not started. False if it has started."""
        attempt = self._attempts.get(seq)
        if attempt is not None and attempt not in self._waiting:
            return False
        if attempt is not None:
            self._waiting.remove(attempt)
            del self._attempts[seq]
        self._report_stopped(seq)
        return True

    # --- Hooks ---

    def report_early(
        self, attempt: AttemptTask, outcome: Outcome | None, on_sent: Callable[[], object]
    ) -> None:
        """Send an outcome before hooks run that may end this process. Then call `on_sent`."""
        attempt.reported = True
        self._add_outcome(attempt, outcome)
        self._status_page.stop(attempt.slot)
        self._flush()
        self._call_when_sent(on_sent)

    def _call_when_sent(self, on_sent: Callable[[], object]) -> None:
        if self._wire.pending and not self._closed.done():
            self.loop.call_later(FLUSH_INTERVAL, self._call_when_sent, on_sent)
        else:
            on_sent()

    def show_hook(self, attempt: AttemptTask, hook: Hook | None) -> None:
        """Show on the status page which hook of an attempt runs."""
        slot = attempt.slot if attempt.slot != NO_SLOT else None
        if hook is None:
            self._status_page.end_hook(slot)
        else:
            self._status_page.begin_hook(slot, self.hooks.number(hook), time.monotonic_ns())

    def show_handler_start(self, attempt: AttemptTask) -> None:
        """Show on the status page that a handler starts."""
        attempt.began_ns = time.monotonic_ns()
        self._show_start(attempt)
        self._status_page.leave_hooks(attempt.slot)

    def _give_up_late_hooks(self) -> None:
        """Continue attempts without a hook that has exceeded its time limit on their thread."""
        for run in list(self._hook_runs):
            hook = run.give_up_if_late()
            if hook is None:
                continue
            self.hooks.record_hang(hook, run.context)
            self._threads.give_up()
            self._status_page.end_hook(run.attempt.slot)
            if run.attempt.reported:
                self._free_slot(run.attempt)
                self._schedule_flush()
            else:
                again = partial(self._run_sync, run.attempt, [*run.skipped, hook])
                self._threads.run(again)

    def _on_failed(
        self, columns: dict[int, Any], encoded: list[Any], killed_at: Micros | None
    ) -> None:
        """Call hooks and record a span for a failure that the supervisor has found.

        `killed_at`: when the attempt's process was killed, which could record no span itself.
        """
        [lease] = leases_from_wire(1, columns, {})
        failure = failure_from_wire(encoded)
        handler = self._registry.handlers.get(lease.kind)
        if handler is None or failure is None:
            return
        if killed_at is not None:
            self.tracer.trace_killed(lease, failure, killed_at)
        run = RunnerHookRun(self, AttemptTask(handler, Context(self, 0, lease)))
        task = self.loop.create_task(self._call_next(run, failure))
        self._failure_tasks.add(task)
        task.add_done_callback(self._failure_tasks.discard)

    async def _call_next(self, run: RunnerHookRun, failure: Failure | None) -> None:
        async with self._failure_turn:  # the status page shows one hook outside of the slots
            await call_failure_hooks(run, failure)

    def _send_hook_faults(self) -> None:
        faults = self.hooks.take_faults()
        if faults:
            self._send(["hook_faults", faults])

    # --- Sending ---

    def _schedule_flush(self) -> None:
        """Send endings together: those of one loop iteration, or of 5 ms while more jobs wait."""
        self._unsent += 1
        if self._waiting and self._unsent < FLUSH_SIZE:
            if self._flush_timer is None:
                self._flush_timer = self.loop.call_later(FLUSH_INTERVAL, self._flush)
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        # `ended` comes last: it may contain a second, late end of an attempt ("stopped"), and the
        # supervisor uses the first one.
        messages: list[list[Any]] = []
        if self._returned:
            messages.append(["returned", self._returned])
        messages += ended_messages(self._ended)
        if messages:
            self._send_progress()  # the last progress of a job comes before its end
            self._returned = []
            self._ended = []
            self._unsent = 0
            self._send(*messages)
        self._close_if_drained()

    def _send(self, *messages: list[Any]) -> None:
        try:
            self._wire.send(*messages)
            if self._wire.pending:
                self.loop.add_writer(self._wire.fileno(), self._writable)
        except WireClosed:
            self._close()

    def _writable(self) -> None:
        try:
            if self._wire.flush():
                self.loop.remove_writer(self._wire.fileno())
                self._close_if_drained()
        except WireClosed:
            self.loop.remove_writer(self._wire.fileno())
            self._close()

    # --- Records ---

    def _find_recording(self, lease: Lease | None) -> Recording | None:
        """Return the recording of a running attempt; without a lease, of the only one."""
        if lease is None and len(self._attempts) - len(self._waiting) != 1:
            return None
        for attempt in self._in_slots:
            if attempt is None or attempt.context.seq not in self._attempts:
                continue
            if lease is None or attempt.context.lease is lease:
                return self._recording_of(attempt)
        return None

    def _recording_of(self, attempt: AttemptTask) -> Recording | None:
        limit = attempt.handler.spec.log
        if attempt.recording is None and limit:
            ring = self._status_page.ring(attempt.slot)
            attempt.recording = Recording(ring, attempt.context.seq, limit)
        return attempt.recording

    # --- AttemptHost: what contexts need ---

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        """Send the progress of an attempt soon; of several within half a second, the last."""
        self._note_progress(context, time.monotonic_ns())
        with self._lock:
            is_scheduled = bool(self._progress)
            self._progress[context.seq] = [context.seq, fraction, message]
        if not is_scheduled:
            self._call_on_loop(lambda: self.loop.call_later(PROGRESS_INTERVAL, self._send_progress))

    def _send_progress(self) -> None:
        with self._lock:
            progress = self._progress
            self._progress = {}
        if progress:
            self._send(["progress", list(progress.values())])

    def save_step(self, context: Context, record: StepRecord) -> bool:
        """Request that a step is saved and block until it is durable. False: the lease is lost."""
        answer: Future[bool] = Future()
        with self._waiting_for_database(context):
            self._call_on_loop(lambda: self._request_step(context, record, answer))
            return answer.result()

    async def save_step_async(self, context: Context, record: StepRecord) -> bool:
        """Request that a step is saved and wait until it is durable. False: the lease is lost."""
        answer: Future[bool] = Future()
        with self._waiting_for_database(context):
            self._request_step(context, record, answer)
            return await asyncio.wrap_future(answer)

    def find_closed_gate(self, context: Context, keys: Sequence[str]) -> ClosedGate | None:
        """Return a dependency that is down, and block until that is known."""
        answer: Future[ClosedGate | None] = Future()
        with self._waiting_for_database(context):
            self._call_on_loop(lambda: self._request_gate(context, keys, answer))
            return answer.result()

    async def find_closed_gate_async(
        self, context: Context, keys: Sequence[str]
    ) -> ClosedGate | None:
        """Return a dependency that is down."""
        answer: Future[ClosedGate | None] = Future()
        with self._waiting_for_database(context):
            self._request_gate(context, keys, answer)
            return await asyncio.wrap_future(answer)

    def step_began(self, context: Context, step: StepFailure, timeout: Micros | None) -> None:
        """Report the step in which an attempt is, for the case that it is stopped or dies.

        On a thread, return only when it is sent: the call may end this process at once.
        """
        message = ["step_began", context.seq, list(step), timeout]
        if threading.get_ident() == self._loop_thread:
            self._send(message)
            return
        sent: Future[None] = Future()

        def send() -> None:
            self._send(message)
            sent.set_result(None)

        self._call_on_loop(send)
        sent.result()

    def step_ended(self, context: Context, name: str) -> None:
        """Report that a step ended without a result."""
        self._call_on_loop(lambda: self._send(["step_ended", context.seq, name]))

    def _request_gate(
        self, context: Context, keys: Sequence[str], answer: Future[ClosedGate | None]
    ) -> None:
        self._last_request += 1
        self._step_requests[self._last_request] = answer
        self._send(["gates", self._last_request, context.seq, [*keys]])

    @contextlib.contextmanager
    def _waiting_for_database(self, context: Context) -> Iterator[None]:
        """Count the block as progress: a database that is away does not stall an attempt."""
        self._note_progress(context, FAR_FUTURE_NS)
        try:
            yield
        finally:
            self._note_progress(context, time.monotonic_ns())

    def _note_progress(self, context: Context, now_ns: int) -> None:
        attempt = self._attempts.get(context.seq)
        if attempt is not None and attempt.slot >= 0:
            self._status_page.set_progress(attempt.slot, now_ns)

    def _request_step(self, context: Context, record: StepRecord, answer: Future[bool]) -> None:
        self._last_request += 1
        self._step_requests[self._last_request] = answer
        self._send(["step", self._last_request, context.seq, [*record]])

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(callback)

    def workdir(self, context: Context) -> Path:
        """Create the work directory of an attempt."""
        return make_workdir(self._folder, context.lease)

    def remove_workdir(self, context: Context) -> None:
        """Remove the work directory of an attempt."""
        remove_workdir(self._folder, context.lease)

    def mark(self, context: Context) -> str:
        """Return the mark of the processes that an attempt starts."""
        return f"{self._mark}/{context.lease.id}/{context.lease.token}"


class RunnerHookRun(HookRun):
    """One attempt with hooks in a runner. The status page shows the hook that runs."""

    def __init__(self, runner: Runner, attempt: AttemptTask, skipped: Sequence[Hook] = ()) -> None:
        super().__init__(runner.hooks, attempt.context, runner.loop)
        self.attempt = attempt
        self.skipped = skipped
        self.around = [hook for hook in self.around if hook not in skipped]
        self._runner = runner
        self._hook: Hook | None = None  # that runs
        self._since = 0.0
        self._is_abandoned = False
        self._lock = threading.Lock()

    def begin(self, hook: Hook) -> None:
        """Note that a hook is called."""
        with self._lock:
            self._hook = hook
            self._since = time.monotonic()
        self._runner.show_hook(self.attempt, hook)

    def end(self) -> None:
        """Note that a hook has returned. Raise HookAbandoned if that was too late."""
        with self._lock:
            self._hook = None
            if self._is_abandoned:
                raise HookAbandoned
        self._runner.show_hook(self.attempt, None)

    def give_up_if_late(self) -> Hook | None:
        """Give up a hook that has exceeded its time limit. Return it."""
        with self._lock:
            hook = self._hook
            if hook is None or self._is_abandoned:
                return None
            if time.monotonic() - self._since <= hook.timeout:
                return None
            self._is_abandoned = True
            return hook

    def handler_starts(self) -> None:
        """Start the time of the attempt."""
        self._runner.show_handler_start(self.attempt)

    def report(self, outcome: Outcome | None) -> None:
        """Send the outcome of the handler. Returns when it is sent."""
        sent = threading.Event()
        try:
            self._runner.loop.call_soon_threadsafe(
                self._runner.report_early, self.attempt, outcome, sent.set
            )
        except RuntimeError:  # the event loop is closed
            return
        sent.wait(REPORT_LIMIT)

    async def report_async(self, outcome: Outcome | None) -> None:
        """Send the outcome of the handler. Returns when it is sent."""
        if await self._runner.is_shutting_down(self.attempt):
            raise asyncio.CancelledError
        sent = asyncio.Event()
        self._runner.report_early(self.attempt, outcome, sent.set)
        if not sent.is_set():
            await asyncio.wait_for(sent.wait(), REPORT_LIMIT)


def _last_records(attempt: AttemptTask) -> str:
    """Return the last records of an attempt as JSON; empty if it has none."""
    return "" if attempt.recording is None else encode_records(attempt.recording.end())


def _file_identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino

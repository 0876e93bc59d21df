"""A runner: a child process that holds the user's app, runs jobs and reports how they ended.

Async handlers run on the event loop, sync handlers on threads. Before the first line of a handler
runs, its attempt is on the status page, where the supervisor reads it even if this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from mulligan.config import Settings
from mulligan.core.attempt import Lease, Outcome
from mulligan.core.job import PreviousAttempts
from mulligan.manifest.specs import DELIVERY_QUEUE, Handler, Registry
from mulligan.retries.effective import EffectivePolicies
from mulligan.worker.liveness import make_workdir, remove_workdir
from mulligan.worker.protocol import (
    JUST_RETURNED,
    StatusPage,
    Wire,
    WireClosed,
    leases_from_wire,
    outcome_to_wire,
    stopped_to_wire,
)
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, execute_async, execute_sync, run_process_hooks
from mulligan.worker.startup import collect_after, finish_loading

log = logging.getLogger("mulligan.runner")

HEARTBEAT_INTERVAL = 0.5  # seconds
PROGRESS_INTERVAL = 0.5  # seconds
FLUSH_INTERVAL = 0.005  # seconds
FLUSH_SIZE = 250  # endings that are sent without waiting for more
NS_PER_MS = 1_000_000


class ThreadPool:
    """Threads for sync handlers. Starts a thread when one is needed, at most one per slot.

    `run` and `done` are called on the event loop only, so the count needs no lock.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def run(self, task: Callable[[], None]) -> None:
        """Run a task on a free thread."""
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._max_threads:
            name = f"mulligan-job-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

    def done(self) -> None:
        """Note that a task has ended."""
        self._busy -= 1

    def _work(self) -> None:
        while True:
            # In a copy of the context, so that variables set by one job do not reach the next.
            copy_context().run(self._tasks.get())


class AttemptTask:
    """One attempt in this process."""

    __slots__ = ("began_ns", "context", "handler", "slot", "started_task", "task")

    def __init__(self, handler: Handler, context: Context) -> None:
        self.handler = handler
        self.context = context
        self.slot = -1
        self.began_ns = 0
        self.task: asyncio.Task[None] | None = None
        self.started_task: asyncio.Task[None] | None = None  # `task`, once it has begun to run


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
    ) -> None:
        """Create a runner. `delivery_slots`: the last slots of the page, for deliveries only."""
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
        self._threads = ThreadPool(status_page.slots)
        self._first_delivery_slot = status_page.slots - delivery_slots
        self._free_slots = list(range(self._first_delivery_slot))
        self._free_delivery_slots = list(range(self._first_delivery_slot, status_page.slots))
        self._waiting: deque[AttemptTask] = deque()
        self._attempts: dict[int, AttemptTask] = {}
        # Endings that have not been sent yet.
        self._returned: list[int] = []  # attempts that returned None: seq, ms, seq, ms, …
        self._ended: list[list[Any]] = []  # all others
        self._unsent = 0
        self._from_threads: list[tuple[AttemptTask, Outcome | None]] = []
        self._progress: dict[int, list[Any]] = {}
        self._checkpoint_requests: dict[int, Future[bool]] = {}
        self._last_request = 0
        self._flush_scheduled = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._closing = False
        self._lock = threading.Lock()

    # --- Life of the process ---

    async def serve(self, manifest: str) -> None:
        """Run attempts until the supervisor closes the connection or drains this runner."""
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._status_page.write_heartbeat()
        self.state = await run_process_hooks(self._registry.on_start, self.state)
        finish_loading()
        self._loop.add_reader(self._wire.fileno(), self._readable)
        self._wire.send(["ready", manifest])
        heartbeat = self._loop.create_task(self._heartbeat())
        try:
            await self._closed
        finally:
            self._closing = True
            heartbeat.cancel()
            self._loop.remove_reader(self._wire.fileno())
            await run_process_hooks(self._registry.on_stop, self.state)

    async def _heartbeat(self) -> None:
        wire = _file_identity(self._wire.fileno())
        while True:
            self._status_page.write_heartbeat()
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
            case ["stop", seq]:
                self._stop(seq)
            case ["recall", seq]:
                self._recall(seq)
            case ["checkpoint_written", request, written]:
                answer = self._checkpoint_requests.pop(request)
                if not answer.cancelled():  # its attempt may have been stopped meanwhile
                    answer.set_result(written)
            case ["drain"]:
                self._draining = True
                self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._draining and not self._attempts and not self._wire.pending:
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
            self._accept(seq, lease, None if previous is None else PreviousAttempts(*previous))
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
        attempt = AttemptTask(handler, Context(self, seq, lease, previous))
        self._attempts[seq] = attempt
        if self._free_delivery_slots and lease.queue == DELIVERY_QUEUE:
            self._start(attempt, self._free_delivery_slots)
        elif self._free_slots:
            self._start(attempt, self._free_slots)
        else:
            self._waiting.append(attempt)

    def _start(self, attempt: AttemptTask, free_slots: list[int]) -> None:
        attempt.slot = free_slots.pop()
        attempt.began_ns = time.monotonic_ns()
        self._status_page.start(attempt.slot, attempt.context.seq, attempt.began_ns)
        if attempt.handler.is_async:
            attempt.task = self._create_task(self._run_async(attempt))
        else:
            self._threads.run(lambda: self._run_sync(attempt))

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Create a task directly where the loop has no task factory: faster for short jobs."""
        if self._loop.get_task_factory() is None:
            return asyncio.Task(coroutine, loop=self._loop)
        return self._loop.create_task(coroutine)

    async def _run_async(self, attempt: AttemptTask) -> None:
        # From here on a cancellation of the task arrives inside `execute_async`.
        attempt.started_task = attempt.task or asyncio.current_task()
        if attempt.context.stop_requested:
            self._finish(attempt, STOPPED)
            return
        outcome = await execute_async(attempt.handler, attempt.context, self.result_limit)
        task = attempt.started_task
        if task is not None and task.cancelling() and not attempt.context.stop_requested:
            # If the loop is shutting down it cancels all tasks: let `serve` notice it first. Then
            # report nothing, because the handler did not end: the supervisor will see us die.
            await asyncio.sleep(0)
            if self._closing:
                return
        self._finish(attempt, outcome)

    def _run_sync(self, attempt: AttemptTask) -> None:
        """Run a sync handler on a thread of the pool."""
        outcome = execute_sync(attempt.handler, attempt.context, self.result_limit)
        with self._lock:
            is_first = not self._from_threads
            self._from_threads.append((attempt, outcome))
        if is_first:  # otherwise the loop has been woken already
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._collect_from_threads)

    def _collect_from_threads(self) -> None:
        with self._lock:
            ended = self._from_threads
            self._from_threads = []
        for attempt, outcome in ended:
            self._threads.done()
            self._finish(attempt, outcome)

    def _finish(self, attempt: AttemptTask, outcome: Outcome | None) -> None:
        seq = attempt.context.seq
        slot = attempt.slot
        took_ns = time.monotonic_ns() - attempt.began_ns
        took_ms = (took_ns + NS_PER_MS // 2) // NS_PER_MS
        if outcome == JUST_RETURNED:
            self._returned += (seq, took_ms)
        elif outcome is STOPPED:
            self._ended.append(stopped_to_wire(seq, took_ms, attempt.context.spent))
        else:
            self._ended.append(outcome_to_wire(seq, outcome, took_ms))
        del self._attempts[seq]
        self._status_page.stop(slot)
        if slot < self._first_delivery_slot:
            self._free_slots.append(slot)
        else:
            self._free_delivery_slots.append(slot)
        if self._waiting and self._free_slots:
            self._start(self._waiting.popleft(), self._free_slots)
        self._schedule_flush()
        collect_after(took_ns / 1e9)

    def _stop(self, seq: int) -> None:
        attempt = self._attempts.get(seq)
        if attempt is None:  # it has ended; the supervisor uses the first answer
            self._report_stopped(seq)
            return
        attempt.context.request_stop()
        if not self._recall(seq) and attempt.started_task is not None:
            attempt.started_task.cancel()

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

    # --- Sending ---

    def _schedule_flush(self) -> None:
        """Send endings together: those of one loop iteration, or of 5 ms while more jobs wait."""
        self._unsent += 1
        if self._waiting and self._unsent < FLUSH_SIZE:
            if self._flush_timer is None:
                self._flush_timer = self._loop.call_later(FLUSH_INTERVAL, self._flush)
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

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
        if self._ended:
            messages.append(["ended", self._ended])
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
                self._loop.add_writer(self._wire.fileno(), self._writable)
        except WireClosed:
            self._close()

    def _writable(self) -> None:
        try:
            if self._wire.flush():
                self._loop.remove_writer(self._wire.fileno())
                self._close_if_drained()
        except WireClosed:
            self._loop.remove_writer(self._wire.fileno())
            self._close()

    # --- AttemptHost: what contexts need ---

    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        """Send the progress of an attempt soon; of several within half a second, the last."""
        with self._lock:
            is_scheduled = bool(self._progress)
            self._progress[context.seq] = [context.seq, fraction, message]
        if not is_scheduled:
            self._call_on_loop(
                lambda: self._loop.call_later(PROGRESS_INTERVAL, self._send_progress)
            )

    def _send_progress(self) -> None:
        with self._lock:
            progress = self._progress
            self._progress = {}
        if progress:
            self._send(["progress", list(progress.values())])

    def save_checkpoint(self, context: Context, name: str, value: str) -> bool:
        """Request a checkpoint and block until it is durable. False: the lease is lost."""
        answer: Future[bool] = Future()
        self._call_on_loop(lambda: self._request_checkpoint(context, name, value, answer))
        return answer.result()

    async def save_checkpoint_async(self, context: Context, name: str, value: str) -> bool:
        """Request a checkpoint and wait until it is durable. False: the lease is lost."""
        answer: Future[bool] = Future()
        self._request_checkpoint(context, name, value, answer)
        return await asyncio.wrap_future(answer)

    def _request_checkpoint(
        self, context: Context, name: str, value: str, answer: Future[bool]
    ) -> None:
        self._last_request += 1
        self._checkpoint_requests[self._last_request] = answer
        self._send(["checkpoint", self._last_request, context.seq, name, value])

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def workdir(self, context: Context) -> Path:
        """Create the work directory of an attempt."""
        return make_workdir(self._folder, context.lease)

    def remove_workdir(self, context: Context) -> None:
        """Remove the work directory of an attempt."""
        remove_workdir(self._folder, context.lease)

    def mark(self, context: Context) -> str:
        """Return the mark of the processes that an attempt starts."""
        return f"{self._mark}/{context.lease.id}/{context.lease.token}"


def _file_identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino

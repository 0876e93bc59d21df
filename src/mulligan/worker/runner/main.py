"""A runner: a child process that holds the user's app, runs what it is given and reports how it ended.

Async handlers run on the loop, sync handlers on threads. Before a handler's first line runs, its dispatch is
on the board, where the supervisor can read it even if this process never speaks again.
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
from mulligan.worker.fast.failure_cache import Likeness, Worded
from mulligan.worker.liveness import make_workdir, remove_workdir
from mulligan.worker.protocol import (
    JUST_RETURNED,
    StatusPage,
    Wire,
    WireClosed,
    alike_to_wire,
    leases_from_wire,
    outcome_to_wire,
    stopped_to_wire,
)
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, call_hooks, execute_async, execute_sync
from mulligan.worker.startup import clear_after, settle_down

# Threads for handlers that block. One per slot in use, made when first needed, never more than slots.


class ThreadPool:
    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def run(self, task: Callable[[], None]) -> None:
        """Called on the loop only; `done` too, so the count needs no lock."""
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(
                target=self._work, name=f"mulligan-job-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

    def done(self) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while True:
            copy_context().run(
                self._tasks.get()
            )  # what one job sets in its context is not the next one's


# A runner: a child process that holds the user's app, runs what it is given and reports how it ended.

log = logging.getLogger("mulligan.runner")

BEAT = 0.5  # seconds between proofs that the loop is alive
PROGRESS_EVERY = 0.5  # seconds
FLUSH_EVERY = 0.005  # seconds
MANY = 250  # endings that are worth a message of their own
MS = 1_000_000  # nanoseconds


class Work:
    """One dispatch on its way through this process."""

    __slots__ = ("began_ns", "context", "handler", "made", "slot", "task")

    def __init__(self, handler: Handler, context: Context) -> None:
        self.handler = handler
        self.context = context
        self.slot = -1
        self.began_ns = 0
        self.made: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None  # once it has begun


class Runner:
    """Implements `Link` for the contexts it makes."""

    def __init__(
        self,
        registry: Registry,
        wire: Wire,
        board: StatusPage,
        *,
        mark: str,
        folder: Path,
        settings: Settings,
        tellers: int = 0,
    ) -> None:
        """`tellers`: the last of the board's slots, which are for messages alone."""
        self.policies = EffectivePolicies(
            settings.retry, registry.manifest("", "").kinds, registry.queues
        )
        self.result_limit = settings.limits.result
        self.tracer = registry.tracer
        self.state: Any = SimpleNamespace()
        self._registry = registry
        self._wire = wire
        self._board = board
        self._mark = mark
        self._folder = folder
        self._crew = ThreadPool(board.slots)
        self._first_teller = board.slots - tellers
        self._free = list(range(self._first_teller))
        self._tellers = list(range(self._first_teller, board.slots))
        self._waiting: deque[Work] = deque()
        self._works: dict[int, Work] = {}
        self._ended: list[list[Any]] = []
        self._returned: list[
            int
        ] = []  # those of which there is nothing else to say: seq, ms, seq, ms, …
        self._failed: dict[
            int, tuple[Likeness, list[Any]]
        ] = {}  # nothing but their words: seq, ms, words, …
        self._untold = 0  # how many all of these are
        self._from_threads: list[tuple[Work, Outcome | None]] = []
        self._news: dict[int, list[Any]] = {}
        self._keeps: dict[int, Future[bool]] = {}
        self._next_keep = 0
        self._flush_planned = False
        self._flush_at: asyncio.TimerHandle | None = None
        self._draining = False
        self._leaving = False
        self._lock = threading.Lock()

    # -- life -------------------------------------------------------------------------------------
    async def serve(self, manifest: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._board.beat()
        self.state = await call_hooks(self._registry.on_start, self.state)
        settle_down()
        self._loop.add_reader(self._wire.fileno(), self._readable)
        self._wire.send(["ready", manifest])
        beat = self._loop.create_task(self._beat())
        try:
            await self._closed
        finally:
            self._leaving = True
            beat.cancel()
            self._loop.remove_reader(self._wire.fileno())
            await call_hooks(self._registry.on_stop, self.state)

    async def _beat(self) -> None:
        wire = _identity(self._wire.fileno())
        while True:
            self._board.beat()
            await asyncio.sleep(BEAT)
            if (
                _identity(self._wire.fileno()) != wire
            ):  # a handler closed it under us: nobody hears us any more
                self._close()

    def _readable(self) -> None:
        try:
            for message in self._wire.receive():
                self._handle(message)
        except WireClosed:
            self._close()

    def _close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _handle(self, message: list[Any]) -> None:
        match message:
            case ["run", seqs, same, own, memories]:
                self._accept_all(seqs, same, own, memories)
            case ["stop", seq]:
                self._stop(seq)
            case ["recall", seq]:
                self._recall(seq)
            case ["kept", request, held]:
                answer = self._keeps.pop(request)
                if not answer.cancelled():  # its asker may have been stopped meanwhile
                    answer.set_result(held)
            case ["drain"]:
                self._draining = True
                self._close_when_empty()

    def _close_when_empty(self) -> None:
        if self._draining and not self._works and not self._wire.pending:
            self._close()

    # -- run --------------------------------------------------------------------------------------
    def _accept_all(
        self, seqs: list[int], same: dict[int, Any], own: dict[int, Any], memories: dict[int, Any]
    ) -> None:
        try:
            leases = [*leases_from_wire(len(seqs), same, own)]
        except (KeyError, TypeError, ValueError):
            log.exception("jobs could not be read")
            for seq in seqs:
                self._answer_stopped(seq)
            return
        for seq, lease in zip(seqs, leases, strict=True):
            self._accept_safely(seq, lease, memories.get(seq))

    def _accept_safely(self, seq: int, lease: Lease, memory: list[Any] | None) -> None:
        """One that cannot even be read must not keep the others waiting."""
        try:
            self._accept(seq, lease, None if memory is None else PreviousAttempts(*memory))
        except Exception:
            log.exception("a job could not be accepted")
            self._works.pop(seq, None)
            self._answer_stopped(seq)

    def _answer_stopped(self, seq: int) -> None:
        self._ended.append(stopped_to_wire(seq, 0, 0.0))
        self._plan_flush()

    def _accept(self, seq: int, lease: Lease, memory: PreviousAttempts | None) -> None:
        handler = self._registry.handlers.get(lease.kind)
        if handler is None:  # this process was started from a newer app that no longer has it
            self._answer_stopped(seq)
            return
        work = Work(handler, Context(self, seq, lease, memory))
        self._works[seq] = work
        if self._tellers and lease.queue == DELIVERY_QUEUE:
            self._start(work, self._tellers)
        elif self._free:
            self._start(work, self._free)
        else:
            self._waiting.append(work)

    def _start(self, work: Work, slots: list[int]) -> None:
        work.slot = slots.pop()
        work.began_ns = time.monotonic_ns()
        self._board.start(work.slot, work.context.seq, work.began_ns)
        if work.handler.is_async:
            work.made = self._task(self._run_async(work))
        else:
            self._crew.run(lambda: self._run_sync(work))

    def _task(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As the loop makes one, without its detour where nobody wants to have a say."""
        if self._loop.get_task_factory() is None:
            return asyncio.Task(running, loop=self._loop)
        return self._loop.create_task(running)

    async def _run_async(self, work: Work) -> None:
        work.task = (
            work.made or asyncio.current_task()
        )  # from here on a cancellation arrives inside `execute`
        if work.context.stop_asked:
            self._finish(work, STOPPED)
            return
        outcome = await execute_async(work.handler, work.context, self.result_limit)
        if work.task is not None and work.task.cancelling() and not work.context.stop_asked:
            await asyncio.sleep(0)  # who ends the loop cancels us all: let `serve` see it first
            if self._leaving:
                return  # not its own doing: the board still shows it, and the supervisor will see us die
        self._finish(work, outcome)

    def _run_sync(self, work: Work) -> None:
        """On a thread of the crew."""
        outcome = execute_sync(work.handler, work.context, self.result_limit)
        with self._lock:
            first = not self._from_threads
            self._from_threads.append((work, outcome))
        if first:  # otherwise a wake-up is on its way
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with self._lock:
            ended, self._from_threads = self._from_threads, []
        for work, outcome in ended:
            self._crew.done()
            self._finish(work, outcome)

    def _finish(self, work: Work, outcome: Outcome | None) -> None:
        seq, slot, ns = work.context.seq, work.slot, time.monotonic_ns() - work.began_ns
        took = (ns + MS // 2) // MS
        if outcome == JUST_RETURNED:
            self._returned += (seq, took)
        elif outcome is STOPPED:
            self._ended.append(stopped_to_wire(seq, took, work.context.spent))
        else:
            self._tell_end(seq, outcome, took)
        del self._works[seq]
        self._board.stop(slot)
        (self._free if slot < self._first_teller else self._tellers).append(slot)
        if self._waiting and self._free:
            self._start(self._waiting.popleft(), self._free)
        self._plan_flush()
        clear_after(ns / 1e9)

    def _tell_end(self, seq: int, outcome: Outcome, took: int) -> None:
        if isinstance(outcome, Worded):
            self._failed.setdefault(outcome.like.number, (outcome.like, []))[1].extend(
                (seq, took, outcome.words)
            )
        else:
            self._ended.append(outcome_to_wire(seq, outcome, took))

    def _stop(self, seq: int) -> None:
        work = self._works.get(seq)
        if work is None:
            self._answer_stopped(seq)  # it has ended, or we never knew it; the supervisor can tell
            return
        work.context.ask_to_stop()
        if not self._recall(seq) and work.task is not None:
            work.task.cancel()

    def _recall(self, seq: int) -> bool:
        """Give a job back that still waits in line; False: it has started."""
        work = self._works.get(seq)
        if work is not None and work not in self._waiting:
            return False
        if work is not None:
            self._waiting.remove(work)
            del self._works[seq]
        self._answer_stopped(seq)
        return True

    # -- speak ------------------------------------------------------------------------------------
    def _plan_flush(self) -> None:
        """One message for all that ended in this turn of the loop; while more wait in line, of the next ones too."""
        self._untold += 1
        if self._waiting and self._untold < MANY:
            if self._flush_at is None:
                self._flush_at = self._loop.call_later(FLUSH_EVERY, self._flush)
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        # Who was asked to stop just after its end is told to have stopped, too: the first word counts.
        ends = [["returned", self._returned]] if self._returned else []
        ends += [
            alike_to_wire(like.failure, like.wording, told) for like, told in self._failed.values()
        ]
        ends += [["ended", self._ended]] if self._ended else []
        if ends:
            self._tell_news()  # what a job said last comes before its end
            self._returned, self._failed, self._ended, self._untold = [], {}, [], 0
            self._send(*ends)
        self._close_when_empty()

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
                self._close_when_empty()
        except WireClosed:
            self._loop.remove_writer(self._wire.fileno())
            self._close()

    # -- what contexts need -------------------------------------------------------------------------
    def progress(self, context: Context, fraction: float | None, message: str) -> None:
        with self._lock:
            planned = bool(self._news)
            self._news[context.seq] = [context.seq, fraction, message]
        if not planned:
            self._soon(lambda: self._loop.call_later(PROGRESS_EVERY, self._tell_news))

    def _tell_news(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        if news:
            self._send(["progress", list(news.values())])

    def keep(self, context: Context, name: str, value: str) -> bool:
        answer: Future[bool] = Future()
        self._soon(lambda: self._ask(context, name, value, answer))
        return answer.result()

    async def keep_async(self, context: Context, name: str, value: str) -> bool:
        answer: Future[bool] = Future()
        self._ask(context, name, value, answer)
        return await asyncio.wrap_future(answer)

    def _ask(self, context: Context, name: str, value: str, answer: Future[bool]) -> None:
        self._next_keep += 1
        self._keeps[self._next_keep] = answer
        self._send(["keep", self._next_keep, context.seq, name, value])

    def _soon(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def workdir(self, context: Context) -> Path:
        return make_workdir(self._folder, context.lease)

    def remove_workdir(self, context: Context) -> None:
        remove_workdir(self._folder, context.lease)

    def mark(self, context: Context) -> str:
        return f"{self._mark}/{context.lease.id}/{context.lease.token}"


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""The claim/settle loop of a worker.

One thread owns the database work: it settles what ended, claims what is due, and knows which slots
are taken. It waits for a hint of the database, for the event loop, and for the next poll. A poll
needs no hint, so a listening connection that is lost or hangs delays a job by at most one poll.
The event loop puts what it has for the thread into a mailbox, and dispatches the leases that the
thread posts to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mulligan.config import WorkerSection
from mulligan.core.attempt import Ending, Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import StatementAborted, StoreUnavailable
from mulligan.guards.capacity import SlotLimits
from mulligan.manifest.specs import Manifest
from mulligan.storage.base import HintListener
from mulligan.worker.protocol import split_by_size
from mulligan.worker.supervisor.runners import Runners
from mulligan.worker.supervisor.second_writer import SecondWriter
from mulligan.worker.supervisor.slots import HeldSlots, count_without_deliveries
from mulligan.worker.supervisor.transactions import (
    LoopTransactions,
    ProgressUpdate,
    TransactionResult,
)

log = logging.getLogger("mulligan.worker")

CLOCK_JUMP = SECOND  # change of the store's clock that the event loop must know
MIN_PAUSE = 0.001  # seconds until a job that is almost due
DEFERRED_WAIT = 5.0  # seconds until an ending whose statement was aborted is tried again
OUTAGE_WAIT = (0.1, 2.0)  # seconds between tries while the database does not answer
GATHER = 0.05  # seconds between transactions while the runners have work for twice as long
MAX_RESULTS = 1 << 25  # characters of results in one transaction, unless one is larger
NO_SLOTS = SlotLimits(free=0, per_dependency=0, in_use={}, deliveries=0)

T = TypeVar("T")
Call = Callable[[], None]


# --- Mailbox ---


@dataclass
class Mail:
    """Messages of the event loop to the transaction thread."""

    endings: list[Ending] = field(default_factory=list)
    settled: list[Ending] = field(default_factory=list)  # by the second writer; durable
    progress: list[ProgressUpdate] = field(default_factory=list)  # of jobs that ended
    calls: list[Call] = field(default_factory=list)
    undispatched: list[Lease] = field(default_factory=list)  # no runner has got them
    jobs_may_be_due: bool = False
    prefetch_stuck: bool = False  # jobs did not start in their runner
    stopping: bool = False


class Mailbox:
    """Mail for the transaction thread. Every attribute is guarded by one lock.

    Endings and progress stay in the mailbox until they are durable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mail = Mail()
        self._thread_is_busy = False
        self._in_transit = 0  # results that the thread has posted and the event loop not handled
        self._is_signalled = False
        self.wake_fd, self._signal_fd = os.pipe()  # readable while there is mail
        for fd in (self.wake_fd, self._signal_fd):
            os.set_blocking(fd, False)

    def close(self) -> None:
        """Close the descriptors. Mail that comes later is not read."""
        with self._lock:
            self._is_signalled = True
            for fd in (self.wake_fd, self._signal_fd):
                if fd >= 0:
                    os.close(fd)
            self.wake_fd = self._signal_fd = -1

    # --- Event loop ---

    @contextlib.contextmanager
    def write(self) -> Any:
        """Change the mail in a block, then wake the thread."""
        with self._lock:
            yield self._mail
            self._signal()

    def _signal(self) -> None:
        if not self._is_signalled:
            self._is_signalled = True
            os.write(self._signal_fd, b"\0")

    def unwritten(self) -> list[Ending]:
        """Return the endings in the mailbox: they are not durable yet."""
        with self._lock:
            return list(self._mail.endings)

    def is_quiet(self) -> bool:
        """True if all endings are durable, no transaction runs, and all leases are dispatched."""
        with self._lock:
            return not (self._mail.endings or self._thread_is_busy or self._in_transit)

    def handled(self) -> None:
        """Count a result as handled by the event loop."""
        with self._lock:
            self._in_transit -= 1

    # --- Transaction thread ---

    def is_stopping(self) -> bool:
        """True if the thread must end."""
        with self._lock:
            return self._mail.stopping

    def take(self) -> Mail:
        """Return the mail. The thread counts as busy until `rest`.

        Of many large results only the first: a statement has a limit of size and of time.
        """
        with self._lock:
            self._thread_is_busy = True
            mail, last = self._mail, self._mail
            self._mail = Mail(last.endings, progress=last.progress, stopping=last.stopping)
            if self._is_signalled:
                os.read(self.wake_fd, 1)
                self._is_signalled = False
            mail.endings = first_chunk(last.endings)
            mail.progress = list(last.progress)
            return mail

    def add_endings(self, endings: list[Ending]) -> None:
        """Add endings that the second writer has given back."""
        with self._lock:
            self._mail.endings += endings

    def remove_durable(self, mail: Mail) -> None:
        """Remove endings and progress that are durable now."""
        with self._lock:
            del self._mail.endings[: len(mail.endings)]
            del self._mail.progress[: len(mail.progress)]
            if self._mail.endings:
                self._signal()

    def posted(self) -> None:
        """Count a result that the event loop must handle."""
        with self._lock:
            self._in_transit += 1

    def rest(self) -> None:
        """Record that the thread waits for mail."""
        with self._lock:
            self._thread_is_busy = False


# --- Loop ---


class WorkLoop:
    """Settles what ended, claims what is due, and dispatches leases to runners."""

    def __init__(
        self,
        settings: WorkerSection,
        clock: Callable[[], Micros],
        on_clock: Callable[[Micros], None],
        may_claim: Callable[[], bool],
        open_listener: Callable[[], HintListener],
        on_hint: Callable[[], None] = lambda: None,
        *,
        concurrent_writers: bool = False,
    ) -> None:
        """Create a loop. The transaction thread calls `clock`, `may_claim` and `on_hint`.

        `concurrent_writers`: the store lets several transactions write at once.
        """
        # State of the event loop.
        self.progress: dict[tuple[str, int], tuple[float | None, str]] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._on_clock = on_clock
        self._runners: Runners | None = None
        # Shared state.
        self._mailbox = Mailbox()
        self._second_writer: SecondWriter | None = None
        if concurrent_writers and settings.fast:
            self._second_writer = SecondWriter(
                self._settle_in_parallel, self._add_settled, self._add_failed
            )
        # State of the transaction thread.
        self._settings = settings
        self._clock = clock
        self._may_claim = may_claim
        self._open_listener = open_listener
        self._on_hint = on_hint
        self._transactions: LoopTransactions | None = None
        self._slots = HeldSlots(settings.concurrency)
        self._hinted = False  # a hint came since the last claim
        self._next_poll = 0.0
        self._gather_until = 0.0  # the next transaction begins no earlier
        self._retry_at = 0.0  # end of the wait after an outage
        self._outage_wait = 0.0
        self._deferred: list[Ending] = []  # their statements were aborted; oldest first
        self._deferred_until = 0.0
        # The result of a transaction was lost: the next one looks for leases we do not know of.
        self._must_reconcile = False

    # --- Event loop: start, stop, messages to the thread ---

    def start(self) -> None:
        """Start the transaction thread. It claims nothing before `attach`."""
        if self._second_writer is not None:
            self._second_writer.start()
        threading.Thread(target=self._run, name="mulligan-transactions", daemon=True).start()

    async def run(self) -> None:
        """Wait until the thread has ended. Raises its error."""
        try:
            await self._ended
        finally:
            self._mailbox.close()

    def attach(self, runners: Runners, transactions: LoopTransactions, manifest: Manifest) -> None:
        """Begin to work for these runners; again after a new registration."""
        self._runners = runners
        self.submit(partial(self._attach, transactions, manifest))

    def apply_manifest(self, manifest: Manifest) -> None:
        """Use the kinds of the app as it is now."""
        self.submit(partial(self._apply_manifest, manifest))

    def stop(self) -> None:
        """Let the thread write all endings once more and end."""
        with self._mailbox.write() as mail:
            mail.stopping = True

    def wake(self) -> None:
        """Look for due jobs now."""
        with self._mailbox.write() as mail:
            mail.jobs_may_be_due = True

    def add_endings(self, endings: list[Ending]) -> None:
        """Settle finished attempts. Their last progress is written first: later it is refused."""
        fences = [ending.lease.fence for ending in endings] if self.progress else []
        progress = [
            (*fence, *self.progress.pop(fence)) for fence in fences if fence in self.progress
        ]
        rest = endings
        if self._second_writer is not None and not progress:
            rest = self._second_writer.accept(endings)
        with self._mailbox.write() as mail:
            mail.endings += rest
            mail.progress += progress
            mail.jobs_may_be_due = mail.jobs_may_be_due or not endings

    def stop_prefetch(self) -> None:
        """Claim nothing ahead until jobs have proven to be short again."""
        with self._mailbox.write() as mail:
            mail.prefetch_stuck = True

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on the transaction thread, before its next transaction."""
        future: Future[T] = Future()
        with self._mailbox.write() as mail:
            mail.calls.append(partial(_run_call, function, future))
        return asyncio.wrap_future(future)

    @property
    def all_written(self) -> bool:
        """True if all endings are durable, no transaction runs, and all leases are dispatched."""
        return self._mailbox.is_quiet() and not self.unwritten

    @property
    def unwritten(self) -> list[Ending]:
        """Endings that are not durable yet. They exist only in this process."""
        return self._deferred + self._unwritten_on_time()

    def _unwritten_on_time(self) -> list[Ending]:
        if self._second_writer is None:
            return self._mailbox.unwritten()
        # In this order: the second writer puts a failed batch into the mailbox before it lets go.
        unwritten = self._second_writer.unwritten()
        known = {ending.lease.fence for ending in unwritten}
        in_mail = self._mailbox.unwritten()
        return unwritten + [ending for ending in in_mail if ending.lease.fence not in known]

    # --- Event loop: results of the thread ---

    def _on_result(self, result: TransactionResult) -> None:
        self._on_clock(result.now)
        try:
            if result.leases and self._runners is not None:
                self._dispatch(self._runners, result)
        finally:
            self._mailbox.handled()

    def _dispatch(self, runners: Runners, result: TransactionResult) -> None:
        try:
            runners.dispatch(result.leases, result.previous_attempts)
        except Exception:
            log.exception(
                "%d jobs could not be sent to a runner; the next transaction reads them again",
                len(result.leases),
            )
            sent = {attempt.lease.fence for attempt in runners.active_attempts()}
            with self._mailbox.write() as mail:
                mail.undispatched += [lease for lease in result.leases if lease.fence not in sent]

    # --- Transaction thread ---

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with closing(self._open_listener()) as listener:
                while self._run_step(listener):
                    pass
        except BaseException as raised:  # noqa: BLE001 - the supervisor reports it
            error = raised
        self._mailbox.rest()
        self._post(partial(_set_ended, self._ended, error))

    def _post(self, callback: Call) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _run_step(self, listener: HintListener) -> bool:
        """Wait for something to do, and do it. False: the loop has ended."""
        self._mailbox.rest()
        self._gather()
        if listener.wait(max(0.0, self._next_poll - time.monotonic()), self._mailbox.wake_fd):
            self._hinted = True
            self._on_hint()
        stopping = self._mailbox.is_stopping()
        self._withdraw_endings(stopping=stopping)
        mail = self._mailbox.take()
        for call in mail.calls:
            call()
        if mail.prefetch_stuck:
            self._slots.stop_prefetch()
        if mail.undispatched:
            self._slots.remove([lease.fence for lease in mail.undispatched])
            self._must_reconcile = True
        if mail.settled:
            self._slots.remove([ending.lease.fence for ending in mail.settled])
            self._slots.note_durations(mail.settled)
        if self._transactions is None:
            self._next_poll = time.monotonic() + self._settings.poll
        elif mail.stopping or time.monotonic() >= self._retry_at:
            self._work(self._transactions, mail)
            if self._deferred and time.monotonic() >= self._deferred_until:
                self._settle_deferred(self._transactions)
        return not stopping

    def _gather(self) -> None:
        """Let endings gather for one transaction, which costs as much as some 20 jobs."""
        pause = self._gather_until - time.monotonic()
        if pause > 0:
            time.sleep(pause)

    def _attach(self, transactions: LoopTransactions, manifest: Manifest) -> None:
        self._transactions = transactions
        self._must_reconcile = False  # leases of an earlier id are not ours any more
        self._next_poll = 0.0
        self._slots.apply_manifest(manifest)

    def _apply_manifest(self, manifest: Manifest) -> None:
        self._slots.apply_manifest(manifest)
        if self._transactions is not None:
            self._transactions.apply_manifest(manifest)

    def _work(self, transactions: LoopTransactions, mail: Mail) -> None:
        """Settle and claim in one transaction, if there is something to do."""
        now = time.monotonic()
        is_poll = now >= self._next_poll
        may_claim = not mail.stopping and not self._slots.has_suspect and self._may_claim()
        ended = [ending.lease for ending in mail.endings]
        self._slots.remove([lease.fence for lease in ended])  # free once this is committed
        free = self._slots.free() if may_claim else 0
        may_be_due = mail.jobs_may_be_due or bool(mail.settled)
        wants_jobs = free > 0 and (is_poll or self._hinted or may_be_due)
        wants_deliveries = is_poll and may_claim and self._slots.free_deliveries() > 0
        if not (mail.endings or wants_jobs or wants_deliveries or self._must_reconcile):
            if is_poll:
                self._next_poll = now + self._settings.poll
            return
        self._gather_until = 0.0
        try:
            result = transactions.settle_and_claim(
                mail.endings,
                free,
                self._clock(),
                self._known_fences(transactions, ended) if self._must_reconcile else None,
                mail.progress,
                hinted=self._hinted,
                slots=self._slots.limits() if may_claim else NO_SLOTS,
            )
        except StatementAborted as error:
            log.warning("%s; settling %d endings one by one", error, len(ended))
            self._settle_one_by_one(transactions, mail, ended)
        except StoreUnavailable as outage:
            self._slots.add(ended, transactions.is_suspect)
            self._wait_for_store(outage)
        except Exception:
            log.exception("a transaction failed; settling its %d endings one by one", len(ended))
            self._settle_one_by_one(transactions, mail, ended)
        else:
            self._apply_result(transactions, mail, result, free)
            if self._slots.work_ahead() > 2 * GATHER:
                self._gather_until = now + GATHER

    def _known_fences(
        self, transactions: LoopTransactions, ended: Sequence[Lease]
    ) -> set[tuple[str, int]]:
        """Return the fences of all leases that this process knows."""
        return self._slots.fences | {lease.fence for lease in ended} | transactions.unrecordable

    def _apply_result(
        self, transactions: LoopTransactions, mail: Mail, result: TransactionResult, free: int
    ) -> None:
        """Record what was settled and claimed, and post leases to the event loop."""
        self._outage_wait = 0.0
        self._must_reconcile = False
        self._hinted = False
        if self._second_writer is not None:
            self._second_writer.resume()
        self._slots.note_durations(mail.endings)
        self._slots.add(result.leases, transactions.is_suspect)
        self._slots.adapt_prefetch(free, result.leases)
        self._mailbox.remove_durable(mail)
        if result.leases or abs(result.now - self._clock()) > CLOCK_JUMP:
            self._mailbox.posted()
            self._post(partial(self._on_result, result))
        self._next_poll = time.monotonic() + self._pause(result, free)

    def _pause(self, result: TransactionResult, free: int) -> float:
        """Return how long to wait if nothing happens."""
        all_taken = count_without_deliveries(result.leases) >= free > 0
        if result.more_due and all_taken and self._slots.free() > 0:
            return 0.0
        poll = self._settings.poll
        if result.next_due is None:
            return poll
        return min(poll, max(MIN_PAUSE, (result.next_due - result.now) / SECOND))

    # --- Second writer ---

    def _withdraw_endings(self, *, stopping: bool) -> None:
        """Take back the endings that wait for the second writer: this thread is free to settle."""
        writer = self._second_writer
        if writer is not None:
            self._mailbox.add_endings(writer.stop() if stopping else writer.withdraw())

    def _settle_in_parallel(self, endings: list[Ending]) -> None:
        if self._transactions is None:
            message = "the worker is not registered"
            raise StoreUnavailable(message)
        self._transactions.settle_in_parallel(endings, self._clock())

    def _add_settled(self, endings: list[Ending]) -> None:
        with self._mailbox.write() as mail:
            mail.settled += endings

    def _add_failed(self, endings: list[Ending]) -> None:
        with self._mailbox.write() as mail:
            mail.endings += endings

    # --- Transaction thread: errors ---

    def _settle_one_by_one(
        self, transactions: LoopTransactions, mail: Mail, ended: Sequence[Lease]
    ) -> None:
        """Settle each ending in its own transaction, so that a refused one does not stop others."""
        self._retry_after(OUTAGE_WAIT[1])
        try:
            self._defer(transactions, transactions.settle_each(mail.endings, self._clock()))
        except StoreUnavailable as outage:
            self._slots.add(ended, transactions.is_suspect)
            self._wait_for_store(outage)
        except Exception:
            log.exception("endings could not be recorded one by one either")
            self._mailbox.remove_durable(mail)
        else:
            self._mailbox.remove_durable(mail)

    def _defer(self, transactions: LoopTransactions, endings: list[Ending]) -> None:
        """Keep endings whose statement was aborted apart, so that they delay no others."""
        self._slots.add([ending.lease for ending in endings], transactions.is_suspect)
        self._deferred += endings
        self._deferred_until = time.monotonic() + DEFERRED_WAIT

    def _settle_deferred(self, transactions: LoopTransactions) -> None:
        """Try one deferred ending again."""
        ending = self._deferred[0]
        aborted = [ending]
        try:
            aborted = transactions.settle_each([ending], self._clock())
        except StoreUnavailable as outage:
            self._wait_for_store(outage)
        self._slots.remove([ending.lease.fence])
        self._defer(transactions, aborted)  # first: until then it must be in `unwritten`
        del self._deferred[0]

    def _wait_for_store(self, outage: StoreUnavailable) -> None:
        """Wait before the next try; longer each time."""
        if not self._outage_wait:
            log.warning("%s; running jobs continue, their outcomes are kept in memory", outage)
        shortest, longest = OUTAGE_WAIT
        self._outage_wait = min(longest, max(shortest, self._outage_wait * 2))
        self._retry_after(self._outage_wait)

    def _retry_after(self, seconds: float) -> None:
        """Begin no transaction earlier. The next one looks for leases we do not know of."""
        self._must_reconcile = True
        self._retry_at = self._next_poll = time.monotonic() + seconds


def first_chunk(endings: Sequence[Ending]) -> list[Ending]:
    """Return as many endings as one transaction may write, by the size of their results."""
    sizes = [len(ending.outcome.result or "") for ending in endings]
    if sum(sizes) <= MAX_RESULTS:
        return list(endings)
    return list(next(split_by_size(endings, sizes, MAX_RESULTS)))


def _run_call(function: Callable[[], T], future: Future[T]) -> None:
    """Run a function and set its result, unless the caller has cancelled it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        future.set_exception(error)


def _set_ended(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)

"""The claim/settle loop of a worker: when to open a transaction, and what to do with its result.

One transaction runs at a time. Usually the loop runs it on the transaction thread. While the loop
is idle, the listener thread (which waits for hints from the database) claims directly, because
handing over from one thread to another costs as much as a round trip to the database. If no hint
comes, the listener polls too. The loop is woken only if there is something to do, or if nothing
has polled for two poll intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mulligan.config import WorkerSection
from mulligan.core.attempt import Ending, Lease
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import StoreUnavailable
from mulligan.guards.capacity import SlotLimits
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.worker.fast.loop import Prefetch, SideWriter, delivery_slots, durations
from mulligan.worker.supervisor.runners import Runners
from mulligan.worker.supervisor.transactions import (
    LoopTransactions,
    ProgressUpdate,
    TransactionResult,
)

log = logging.getLogger("mulligan.worker")

DEFERRED_DISPATCH_SIZE = 200  # leases of one claim from which they are sent after the next begins
LARGE_PAYLOADS = 4 * 1024 * 1024  # characters of payload in one claim: prefetch nothing
RESERVED_SHARE = 8  # one slot in 8 is reserved for jobs that do not use the same dependency
MIN_SLOTS_TO_RESERVE = 4  # with fewer slots, none is reserved
BACKUP_POLLS = 2  # poll intervals without a poll until the loop polls itself
EARLY_SHARE = 0.02  # share of a poll interval that a poll may come too early
CLOCK_JUMP = SECOND  # change of the store's clock that the loop must hear of
NEVER = float("-inf")
OUTAGE_WAIT = (0.1, 2.0)  # seconds between tries while the database does not answer


class WorkLoop:
    """Settles what ended, claims what is due, and dispatches leases to runners."""

    def __init__(
        self,
        settings: WorkerSection,
        thread: ThreadPoolExecutor,
        clock: Callable[[], Micros],
        on_clock: Callable[[Micros], None],
        may_claim: Callable[[], bool],
        side_thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """Create a loop. `side_thread`: a second writer, where transactions can run in parallel."""
        self.endings: list[Ending] = []
        self.progress: dict[tuple[str, int], tuple[float | None, str]] = {}
        self.wake = asyncio.Event()
        self.stopping = False
        # The result of a transaction was lost: the next one looks for leases we do not know of.
        self.must_reconcile = False
        # The loop runs its own transaction now and will see new work itself.
        self.in_cycle = False
        self._settings = settings
        self._thread = thread
        self._clock = clock
        self._on_clock = on_clock
        self._may_claim = may_claim
        self._loop = asyncio.get_running_loop()
        self._prefetch = Prefetch(settings.concurrency)
        self._outage_wait = 0.0
        self._last_poll = 0.0  # when a transaction last looked for due jobs
        self._last_quiet = NEVER  # when the listener last reported that no hint came
        self._last_listener_poll = NEVER
        self._hint_pending = False
        self._timer: asyncio.TimerHandle | None = None
        # Handshake between the loop and the listener thread. Invariant: they never claim at the
        # same time. The listener sets `_claiming`, then checks `_offered`; the loop clears
        # `_offered`, then checks `_claiming`. Each writes its own flag before it reads the
        # other's, so at least one of them sees that the other is claiming.
        self._offered = False
        self._claiming = False
        self._listener_done = asyncio.Event()
        self._recent: list[Ending] = []  # ended since the last transaction, for the prefetch
        # The side writer or a deferred dispatch failed: the next cycle reconciles.
        self._reconcile_next = False
        self._side_thread = side_thread
        self._side_writer: SideWriter | None = None
        # Claimed, and sent to a runner as soon as the next transaction has begun.
        self._undispatched: Sequence[Lease] = ()

    def attach(self, runners: Runners, transactions: LoopTransactions) -> None:
        """Set the runners and transactions to work with; again after a new registration."""
        self._runners = runners
        self._transactions = transactions
        if self._side_thread is not None and self._side_writer is None:
            self._side_writer = SideWriter(self._side_thread, self._write_on_side, self._take_back)

    @property
    def all_written(self) -> bool:
        """True if every ending is durable and no transaction is running."""
        return not (self.unwritten or self.in_cycle or self._claiming or self._undispatched)

    @property
    def unwritten(self) -> list[Ending]:
        """Endings that are not durable yet. They exist only in this process."""
        if self._side_writer is None:
            return self.endings
        return self.endings + self._side_writer.waiting + self._side_writer.writing

    def add_endings(self, endings: list[Ending]) -> None:
        """Queue finished attempts for settling and wake the loop."""
        self._recent += endings
        if self._side_writer is None:
            self.endings += endings
        else:
            self.endings += self._side_writer.accept(endings)
        self._start_side_writer()
        self.wake.set()

    # --- Side writer: settles simple endings while a transaction of the loop runs ---

    def _start_side_writer(self) -> None:
        writer = self._side_writer
        if writer is None or not self.in_cycle or self.must_reconcile or self._reconcile_next:
            return
        if self.progress:  # progress is written with the ending, in the loop's transaction
            self.endings += writer.withdraw(self.progress)
        writer.write()

    def _write_on_side(self, endings: list[Ending]) -> None:
        self._transactions.settle_simple(endings, self._clock())

    def _take_back(self, endings: list[Ending]) -> None:
        """Queue again what the side writer could not write."""
        self._reconcile_next = self._reconcile_next or bool(endings)
        self.endings += endings
        self._start_side_writer()
        self.wake.set()

    # --- Cycles of the loop ---

    async def run(self) -> None:
        """Run cycles until `stopping` is set, then write what is left."""
        pause = self._settings.poll
        while not self.stopping:
            offered = not (self.must_reconcile or self._reconcile_next)
            self._set_timer(pause, listener_may_poll=offered)
            self._offered = offered
            await self.wake.wait()
            await self._withdraw_offer()
            self.wake.clear()
            self.in_cycle = True
            pause = await self._run_cycle()
            self.in_cycle = False
        if self._side_writer is not None:
            await self._side_writer.wait_until_idle()
            if self.unwritten:
                await self._run_cycle()

    def _set_timer(self, pause: float, *, listener_may_poll: bool) -> None:
        """Wake the loop after `pause`, or later while the listener polls in its place."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        poll = self._settings.poll
        listener_is_alive = now - self._last_quiet < BACKUP_POLLS * poll
        if listener_may_poll and pause >= poll and listener_is_alive:
            self._timer = self._loop.call_at(now + BACKUP_POLLS * poll, self._wake_if_not_polled)
        else:
            # A timer and an event: `asyncio.wait_for` would create a task for every cycle.
            self._timer = self._loop.call_later(pause, self.wake.set)

    def _wake_if_not_polled(self) -> None:
        due = self._last_poll + BACKUP_POLLS * self._settings.poll
        if due > self._loop.time() and self._offered:
            self._timer = self._loop.call_at(due, self._wake_if_not_polled)
        else:
            self.wake.set()

    async def _withdraw_offer(self) -> None:
        """Stop the listener from claiming. If it is claiming now, wait for its result."""
        self._offered = False
        while self._claiming:
            self._listener_done.clear()
            await self._listener_done.wait()

    async def _run_cycle(self) -> float:
        """Settle and claim in one transaction. Return how long to wait if nothing happens."""
        self.must_reconcile = self.must_reconcile or self._reconcile_next
        self._reconcile_next = False
        self._start_side_writer()
        endings = self._take_endings()
        free, slots = self._slot_limits()
        if (
            not endings
            and free <= 0
            and not self.must_reconcile
            and not self._must_poll_deliveries()
        ):
            return self._settings.poll
        known = self._known_fences(endings) if self.must_reconcile else None
        progress = self._take_progress(endings)
        hinted = self._hint_pending
        self._hint_pending = False
        settle_and_claim = partial(
            self._transactions.settle_and_claim,
            endings,
            free,
            self._clock(),
            known,
            progress,
            hinted=hinted,
            slots=slots,
        )
        try:
            result: TransactionResult = await self._loop.run_in_executor(
                self._thread, settle_and_claim
            )
        except StoreUnavailable as outage:
            self.endings = endings + self.endings
            return self._wait_for_store(outage)
        except Exception:
            log.exception("a transaction failed; settling its %d endings one by one", len(endings))
            return await self._settle_one_by_one(endings)
        return self._apply_result(result, free)

    def _take_endings(self) -> list[Ending]:
        """Take the endings for this cycle, without those that the side writer will write soon."""
        writer = self._side_writer
        if writer is not None and (self.must_reconcile or not writer.is_fast):
            self.endings += writer.withdraw()
        endings = self.endings
        self.endings = []
        return endings

    @property
    def _has_endings(self) -> bool:
        """True if the next cycle has endings to write."""
        writer = self._side_writer
        if self.endings or writer is None:
            return bool(self.endings)
        return bool(writer.waiting) and not writer.is_fast

    def _apply_result(self, result: TransactionResult, free: int) -> float:
        """Dispatch the leases. Return how long to wait if nothing happens."""
        self._outage_wait = 0.0
        self.must_reconcile = False
        self._last_poll = self._loop.time()
        self._on_clock(result.now)
        if result.leases:
            self._dispatch(result)
        self._adapt_prefetch(free, result)
        all_taken = result.leases.non_delivery_count >= free > 0
        if self._has_endings or (result.more_due and self._free_slots() > 0 and all_taken):
            self.wake.set()
        return self._pause(result)

    def _dispatch(self, result: TransactionResult) -> None:
        """Send leases to runners: many at once only after the next transaction has begun.

        The database then works while they are sent. Not if the next claim depends on how they are
        assigned (dependencies), or if a job may need a runner process of its own.
        """
        columns = result.leases.columns
        is_small = len(result.leases) < DEFERRED_DISPATCH_SIZE
        if is_small or any(columns.uses) or any(columns.losses):
            self._runners.dispatch(result.leases, result.previous_attempts)
        else:
            self._undispatched = result.leases
            self._loop.call_soon(self._dispatch_deferred, result)

    def _dispatch_deferred(self, result: TransactionResult) -> None:
        try:
            self._runners.dispatch(result.leases, result.previous_attempts)
        except Exception:
            log.exception(
                "%d jobs could not be sent to a runner; the next transaction reads them again",
                len(result.leases),
            )
            self._reconcile_next = True
            self._offered = False  # the listener's claim would not reconcile
            self._set_timer(self._settings.poll, listener_may_poll=False)
        finally:
            # Clear only now: until dispatch returns, these leases must be counted by `_held_slots`.
            # Counting them twice is safe; missing them would claim too many.
            self._undispatched = ()

    def _adapt_prefetch(self, free: int, result: TransactionResult) -> None:
        """Claim more ahead while jobs are short, and nothing ahead if they block the runners."""
        endings = self._recent
        self._recent = []
        leases = result.leases
        isolated_kinds = self._runners.isolated_kinds
        blocked = self._runners.prefetch_stuck or leases.has_isolated(isolated_kinds)
        if blocked or leases.payload_size > LARGE_PAYLOADS:
            self._runners.prefetch_stuck = False
            self._prefetch.reset()
            return
        taken = leases.non_delivery_count
        self._prefetch.learn(free, taken, durations(endings, isolated_kinds))

    async def _settle_one_by_one(self, endings: list[Ending]) -> float:
        """Settle each ending in its own transaction, so that a refused one does not stop others."""
        self.must_reconcile = True
        try:
            await self._loop.run_in_executor(
                self._thread, self._transactions.settle_each, endings, self._clock()
            )
        except StoreUnavailable as outage:
            self.endings = endings + self.endings
            return self._wait_for_store(outage)
        except Exception:
            log.exception("endings could not be recorded one by one either")
        return OUTAGE_WAIT[1]

    def _take_progress(self, endings: list[Ending]) -> list[ProgressUpdate]:
        """Take the last progress of ending jobs: after the ending, its fence refuses progress."""
        if not self.progress:
            return []
        fences = [ending.lease.fence for ending in endings if ending.lease.fence in self.progress]
        return [(*fence, *self.progress.pop(fence)) for fence in fences]

    # --- Slots ---

    def _free_slots(self) -> int:
        """Return how many jobs to claim. A slot is free once the ending of its job is durable."""
        if self.stopping or not self._can_claim():
            return 0
        return self._prefetch.free_slots(self._held_slots(self._runners.delivery_count))

    def _slot_limits(self) -> tuple[int, SlotLimits]:
        """Return the free slots, and limits for jobs with dependencies and for deliveries.

        Some slots are never given to jobs of one dependency: if it hangs, other jobs still run.
        Each value is read once, because the listener thread calls this while a job waits.
        """
        concurrency = self._settings.concurrency
        can_claim = self._can_claim()
        running_deliveries = self._runners.delivery_count
        held = self._held_slots(running_deliveries)
        free = 0 if self.stopping or not can_claim else self._prefetch.free_slots(held)
        per_dependency = concurrency
        if concurrency >= MIN_SLOTS_TO_RESERVE:
            per_dependency -= max(1, concurrency // RESERVED_SHARE)
        free_deliveries = 0
        if can_claim:
            free_deliveries = max(0, delivery_slots(concurrency) - running_deliveries)
        return free, SlotLimits(
            free=min(free, max(0, concurrency - held)),
            per_dependency=per_dependency,
            in_use=self._runners.dependency_use(),
            used_by_all=self._runners.used_by_all,
            deliveries=free_deliveries,
        )

    def _can_claim(self) -> bool:
        return self._runners.can_accept and self._may_claim()

    def _held_slots(self, running_deliveries: int) -> int:
        """Return how many slots are taken. Deliveries do not count: they have their own slots."""
        undispatched = len(self._undispatched)  # read before `count`, which they move to
        on_the_side = 0
        if self._side_writer is not None:
            on_the_side = len(self._side_writer.waiting) + len(self._side_writer.writing)
        ended = sum([ending.lease.queue != DELIVERY_QUEUE for ending in self.endings])
        return self._runners.count - running_deliveries + undispatched + on_the_side + ended

    def _must_poll_deliveries(self) -> bool:
        """True if no slot is free but deliveries could run and a poll interval has passed.

        Not on every hint: while all slots are taken, most hints are about other jobs.
        """
        since_poll = self._loop.time() - self._last_poll
        if since_poll < (1 - EARLY_SHARE) * self._settings.poll or not self._can_claim():
            return False
        return self._runners.delivery_count < delivery_slots(self._settings.concurrency)

    def _known_fences(self, endings: list[Ending]) -> set[tuple[str, int]]:
        """Return the fences of all leases that this process knows."""
        fences = {attempt.lease.fence for attempt in self._runners.active_attempts()}
        fences |= self._transactions.unrecordable
        fences |= {lease.fence for lease in self._undispatched}
        fences |= {ending.lease.fence for ending in (*endings, *self.unwritten)}
        return fences

    def _wait_for_store(self, outage: StoreUnavailable) -> float:
        """Return how long to wait before the next try; longer each time."""
        if not self._outage_wait:
            log.warning("%s; running jobs continue, their outcomes are kept in memory", outage)
        self.must_reconcile = True
        shortest, longest = OUTAGE_WAIT
        self._outage_wait = min(longest, max(shortest, self._outage_wait * 2))
        return self._outage_wait

    def _pause(self, result: TransactionResult) -> float:
        poll = self._settings.poll
        if result.next_due is None:
            return poll
        return min(poll, max(0.001, (result.next_due - self._clock()) / SECOND))

    # --- Claims of the listener thread ---

    def on_hint(self) -> None:
        """Claim because something was written. Runs on the listener thread only.

        Also called when the listener cannot listen any more, so that the loop polls itself.
        """
        self._last_quiet = NEVER
        self._hint_pending = True
        if self._offered and not self._claiming:
            self._call_on_loop(self._claim_on_listener(hinted=True))
        else:
            self._call_on_loop(self.wake.set)

    def on_quiet(self) -> float:
        """Poll because no hint came. Runs on the listener thread; return how long to listen now."""
        now = self._loop.time()
        self._last_quiet = now
        poll = self._settings.poll
        left = max(self._last_poll, self._last_listener_poll) + poll - now
        if left > EARLY_SHARE * poll:
            return left
        self._last_listener_poll = now
        if self._offered and not self._claiming:
            self._call_on_loop(self._claim_on_listener(hinted=False))
        return poll

    def _call_on_loop(self, callback: Callable[[], None] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            if callback is not None:
                self._loop.call_soon_threadsafe(callback)

    def _claim_on_listener(self, *, hinted: bool) -> Callable[[], None] | None:
        """Claim on the listener thread. Return what the loop has to do with the result.

        Unless it returns None, `_claiming` stays set until the loop has run that callback.
        """
        self._claiming = True
        try:
            if not self._offered:  # must be checked after `_claiming` is set, see the handshake
                return self._decline_claim
            free, slots = self._slot_limits()
            if free <= 0:
                return self._decline_claim
            self._hint_pending = self._hint_pending and not hinted
            result = self._transactions.settle_and_claim(
                [], free, self._clock(), None, hinted=hinted, slots=slots
            )
        except Exception as error:  # noqa: BLE001 - the loop logs it
            return partial(self._finish_failed_claim, error)
        if not hinted and self._is_empty(result):
            return self._finish_empty_claim()
        return partial(self._finish_claim, result, free)

    def _is_empty(self, result: TransactionResult) -> bool:
        """True if the loop need not hear of this result."""
        if result.leases or result.more_due:
            return False
        if abs(result.now - self._clock()) > CLOCK_JUMP:
            return False
        if result.next_due is None:
            return True
        return result.next_due - result.now >= self._settings.poll * SECOND

    def _finish_empty_claim(self) -> Callable[[], None] | None:
        """End the claim without waking the loop, unless the loop is waiting for it."""
        self._last_poll = self._loop.time()
        self._claiming = False
        return None if self._offered else self._listener_done.set

    def _finish_claim(self, result: TransactionResult, free: int) -> None:
        try:
            pause = self._apply_result(result, free)
        except Exception as error:  # noqa: BLE001 - the loop must not wait for the listener forever
            self._finish_failed_claim(error)
        else:
            self._end_claim(pause)

    def _finish_failed_claim(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            pause = self._wait_for_store(error)
        else:
            log.error("a claim failed; trying again in %g s", OUTAGE_WAIT[1], exc_info=error)
            self.must_reconcile = True
            pause = OUTAGE_WAIT[1]
        self._offered = False
        self._end_claim(pause)

    def _decline_claim(self) -> None:
        """End a claim that was not made, and let the loop do it."""
        self._end_claim(self._settings.poll)
        self.wake.set()

    def _end_claim(self, pause: float) -> None:
        self._claiming = False
        self._listener_done.set()
        self._set_timer(pause, listener_may_poll=self._offered)

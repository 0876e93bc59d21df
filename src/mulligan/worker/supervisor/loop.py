"""When a worker turns to the store, with what, and what becomes of the answer. One turn at a time.

A turn is the loop's, on a thread of its own, or, while the loop has nothing to do, of the thread that hears a hint: it
claims on the spot, since every hand-over between two threads costs as much as a trip to the database. While it hears
none it looks, too; the loop is woken only if there is something to do, or if nobody has looked for long.
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
from mulligan.core.errors import StoreUnavailable
from mulligan.core.job import SECOND, Micros
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.worker.claim import Places
from mulligan.worker.fast.lease_batch import Prefetch, durations, tellers
from mulligan.worker.fast.side_writer import SideWriter
from mulligan.worker.supervisor.runners import Runners
from mulligan.worker.supervisor.transactions import LoopTransactions, News, TransactionResult

log = logging.getLogger("mulligan.worker")

MANY = 200  # leases of one claim that are worth a detour
HEAVY = 4 * 1024 * 1024  # characters of payload in one claim: no more of them in line
RESERVE = 8  # of so many places one is kept free of any one dependency
FEW = 4  # places: with fewer of them, one is too many to keep free
BACKUP = 2  # polls without a look, and the loop looks itself
EARLY = 0.02  # of a poll: a look may come as much too early
LEAP = SECOND  # of the store's clock
NEVER = float("-inf")
OUTAGE_WAIT = (0.1, 2.0)  # seconds between tries while the database does not answer


class WorkLoop:
    def __init__(
        self,
        settings: WorkerSection,
        thread: ThreadPoolExecutor,
        clock: Callable[[], Micros],
        on_clock: Callable[[Micros], None],
        may_claim: Callable[[], bool],
        beside: ThreadPoolExecutor | None = None,
    ) -> None:
        """`beside`: a second thread, where several may write at once."""
        self.endings: list[Ending] = []
        self.news: dict[tuple[str, int], tuple[float | None, str]] = {}
        self.wake = asyncio.Event()
        self.leaving = False
        self.doubt = False  # a turn's answer was lost: look for leases we do not know of
        self._settings = settings
        self._thread = thread
        self._clock = clock
        self._on_clock = on_clock
        self._may_claim = may_claim
        self._loop = asyncio.get_running_loop()
        self._pace = Prefetch(settings.concurrency)
        self._outage = 0.0
        self._looked = 0.0  # when a turn last looked what is due
        self._listened = (
            NEVER  # when it was last told that all is quiet: by who would hear if it were not
        )
        self._tried = NEVER  # when who heard nothing last looked, or would have
        self._woken = False  # something was written by somebody: new work?
        self._timer: asyncio.TimerHandle | None = None
        # Who hears a hint says so and then looks for the offer; the loop takes its offer back and then looks for
        # somebody at it. Whatever the order, one of the two sees the other.
        self._offered = False
        self._at_it = False
        self._answered = asyncio.Event()
        self.turning = (
            False  # the loop's turn is under way: it looks for itself what there is to do
        )
        self._lately: list[Ending] = []  # what ended since the last turn, whoever writes it
        self._came_back = False  # what was to be written beside a turn, or run: the next one does everything again
        self._beside = beside
        self._aside: SideWriter | None = None
        self._coming: Sequence[
            Lease
        ] = ()  # claimed, and handed over as soon as the next turn is under way

    def serve(self, fleet: Runners, turns: LoopTransactions) -> None:
        self._fleet = fleet
        self._turns = turns
        if self._beside is not None and self._aside is None:
            self._aside = SideWriter(self._beside, self._write_aside, self._back)

    @property
    def all_written(self) -> bool:
        """Every ending is durable, and no turn is under way."""
        return not (self.unwritten or self.turning or self._at_it or self._coming)

    @property
    def unwritten(self) -> list[Ending]:
        """Nobody else has these."""
        return (
            self.endings + self._aside.waiting + self._aside.endings
            if self._aside is not None
            else self.endings
        )

    def ended(self, endings: list[Ending]) -> None:
        self._lately += endings
        self.endings += endings if self._aside is None else self._aside.keep(endings)
        self._set_aside()
        self.wake.set()

    def _set_aside(self) -> None:
        if self._aside is not None and self.turning and not (self.doubt or self._came_back):
            if self.news:
                self.endings += self._aside.withdraw(self.news)
            self._aside.write()

    def _write_aside(self, endings: list[Ending]) -> None:
        self._turns.finish(endings, self._clock())

    def _back(self, endings: list[Ending]) -> None:
        self._came_back = self._came_back or bool(endings)
        self.endings += endings
        self._set_aside()
        self.wake.set()

    # -- the loop's turns ---------------------------------------------------------------------------
    async def loop(self) -> None:
        pause = self._settings.poll
        while not self.leaving:
            offered = not (self.doubt or self._came_back)
            self._rest(pause, watched=offered)
            self._offered = offered
            await self.wake.wait()
            await self._take_back()
            self.wake.clear()
            self.turning = True
            pause = await self._one_turn()
            self.turning = False
        if self._aside is not None:
            await self._aside.done()
            if self.unwritten:  # those that waited for it: one transaction now, or one each
                await self._one_turn()

    def _rest(self, pause: float, *, watched: bool) -> None:
        """`watched`: who hears nothing may look meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
        now, poll = self._loop.time(), self._settings.poll
        if watched and pause >= poll and now - self._listened < BACKUP * poll:
            self._timer = self._loop.call_at(now + BACKUP * poll, self._look_if_nobody_has)
        else:
            self._timer = self._loop.call_later(
                pause, self.wake.set
            )  # `wait_for` would cost each job a task

    def _look_if_nobody_has(self) -> None:
        due = self._looked + BACKUP * self._settings.poll
        if due > self._loop.time() and self._offered:
            self._timer = self._loop.call_at(due, self._look_if_nobody_has)
        else:
            self.wake.set()

    async def _take_back(self) -> None:
        self._offered = False
        while self._at_it:
            self._answered.clear()
            await self._answered.wait()

    async def _one_turn(self) -> float:
        """Returns how long to wait for the next one when nothing happens."""
        self.doubt, self._came_back = self.doubt or self._came_back, False
        self._set_aside()
        endings = self._for_this_turn()
        free, places = self._room()
        if not endings and free <= 0 and not self.doubt and not self._looks_for_messages():
            return self._settings.poll
        known = self._known(endings) if self.doubt else None
        news, hinted, self._woken = self._last_news(endings), self._woken, False
        take = partial(
            self._turns.take,
            endings,
            free,
            self._clock(),
            known,
            news,
            hinted=hinted,
            places=places,
        )
        try:
            turn: TransactionResult = await self._loop.run_in_executor(self._thread, take)
        except StoreUnavailable as away:
            self.endings = endings + self.endings
            return self._away(away)
        except Exception:
            log.exception("a turn failed")
            return await self._one_by_one(endings)
        return self._turned(turn, free)

    def _for_this_turn(self) -> list[Ending]:
        """All but what is better written beside it: a claim must not wait for what others can write."""
        if self._aside is not None and (self.doubt or not self._aside.brisk):
            self.endings += self._aside.withdraw()
        endings, self.endings = self.endings, []
        return endings

    @property
    def _has_to_write(self) -> bool:
        return bool(
            self.endings
            or (self._aside is not None and self._aside.waiting and not self._aside.brisk)
        )

    def _turned(self, turn: TransactionResult, free: int) -> float:
        self._outage, self.doubt = 0.0, False
        self._looked = self._loop.time()
        self._on_clock(turn.now)
        if turn.leases:
            self._hand_over(turn)
        self._learn_pace(free, turn)
        if self._has_to_write or (
            turn.more and self._free() > 0 and turn.leases.others >= free > 0
        ):
            self.wake.set()
        return self._pause(turn)

    def _hand_over(self, turn: TransactionResult) -> None:
        """Many at once wait until the next turn is under way, so that the store works while they are written to a
        runner. Not where the next turn has to know how they were shared out.
        """
        columns = turn.leases.columns
        if len(turn.leases) < MANY or any(columns.uses) or any(columns.losses):
            self._fleet.dispatch(turn.leases, turn.memories)
        else:
            self._coming = turn.leases
            self._loop.call_soon(self._handed_over, turn)

    def _handed_over(self, turn: TransactionResult) -> None:
        try:
            self._fleet.dispatch(turn.leases, turn.memories)
        except Exception:
            log.exception("jobs could not be handed to a runner; they are looked for again")
            self._came_back, self._offered = True, False  # a turn under way does not know of it
            self._rest(self._settings.poll, watched=False)
        finally:
            self._coming = ()  # not before: who looks meanwhile may count them twice, and never not at all

    def _learn_pace(self, free: int, turn: TransactionResult) -> None:
        endings, self._lately = self._lately, []
        lot, lonely = turn.leases, self._fleet.lonely
        if lot.weight > HEAVY or self._fleet.line_stuck or lot.has_alone(lonely):
            self._fleet.line_stuck = False
            self._pace.hold_back()
            return
        self._pace.turned(free, lot.others, durations(endings, lonely))

    async def _one_by_one(self, endings: list[Ending]) -> float:
        """Something in this turn is refused by the store; it must not take the others with it."""
        self.doubt = True
        try:
            await self._loop.run_in_executor(
                self._thread, self._turns.settle_each, endings, self._clock()
            )
        except StoreUnavailable as away:
            self.endings = endings + self.endings
            return self._away(away)
        except Exception:
            log.exception("endings could not be recorded one by one either")
        return OUTAGE_WAIT[1]

    def _last_news(self, endings: list[Ending]) -> list[News]:
        """What a job said last is written with its ending; afterwards nobody would take it."""
        if not self.news:
            return []
        fences = [ending.lease.fence for ending in endings if ending.lease.fence in self.news]
        return [(*fence, *self.news.pop(fence)) for fence in fences]

    def _free(self) -> int:
        """Room for new jobs. A slot is free once its job's ending is durable: with this turn, or before."""
        return (
            0
            if self.leaving or not self._takes()
            else self._pace.room(self._in_hand(self._fleet.telling))
        )

    def _room(self) -> tuple[int, Places]:
        """The same, with the places for jobs that use something: some are kept free of any one dependency, for whatever
        does not use it. Each part is asked for once: somebody may wait for it.
        """
        most, takes, telling = self._settings.concurrency, self._takes(), self._fleet.telling
        in_hand = self._in_hand(telling)
        free = 0 if self.leaving or not takes else self._pace.room(in_hand)
        each = most - max(1, most // RESERVE) if most >= FEW else most
        room = min(free, max(0, most - in_hand))
        told = max(0, tellers(most) - telling) if takes else 0
        return free, Places(room, each, self._fleet.in_use(), self._fleet.used_by_all, told)

    def _takes(self) -> bool:
        return self._fleet.can_take and self._may_claim()

    def _in_hand(self, telling: int) -> int:
        """Messages do not count: they have places of their own."""
        coming = len(self._coming)  # first: they become the fleet's
        beside = (
            len(self._aside.waiting) + len(self._aside.endings) if self._aside is not None else 0
        )
        others = sum([ending.lease.queue != DELIVERY_QUEUE for ending in self.endings])
        return self._fleet.count - telling + coming + beside + others

    def _looks_for_messages(self) -> bool:
        """While all places are taken, now and then: whoever enqueues wakes us, and there is nothing for them here."""
        now = self._loop.time()
        if now - self._looked < (1 - EARLY) * self._settings.poll or not self._takes():
            return False
        return self._fleet.telling < tellers(self._settings.concurrency)

    def _known(self, endings: list[Ending]) -> set[tuple[str, int]]:
        flights = {flight.lease.fence for flight in self._fleet.flights()} | self._turns.given_up
        flights |= {lease.fence for lease in self._coming}
        return flights | {ending.lease.fence for ending in (*endings, *self.unwritten)}

    def _away(self, away: StoreUnavailable) -> float:
        """Keep everything, wait a little longer each time, look for lost answers afterwards."""
        if not self._outage:
            log.warning("%s; running jobs go on, their outcomes are kept", away)
        self.doubt = True
        least, most = OUTAGE_WAIT
        self._outage = min(most, max(least, self._outage * 2))
        return self._outage

    def _pause(self, turn: TransactionResult) -> float:
        poll = self._settings.poll
        if turn.next_due is None:
            return poll
        return min(poll, max(0.001, (turn.next_due - self._clock()) / SECOND))

    # -- turns of who hears a hint ------------------------------------------------------------------
    def hint(self) -> None:
        """Something was written by somebody. On the thread that heard it, always the same one."""
        self._listened = NEVER  # whoever cannot listen any more says so like this, too
        self._woken = True
        self._tell(
            self._claim_now(hinted=True) if self._offered and not self._at_it else self.wake.set
        )

    def quiet(self) -> float:
        """Nothing was. On the same thread; returns how long it may listen now."""
        self._listened = now = self._loop.time()
        poll = self._settings.poll
        left = max(self._looked, self._tried) + poll - now
        if left > EARLY * poll:
            return left
        self._tried = now
        if self._offered and not self._at_it:
            self._tell(self._claim_now(hinted=False))
        return poll

    def _tell(self, what: Callable[[], None] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone
            if what is not None:
                self._loop.call_soon_threadsafe(what)

    def _claim_now(self, *, hinted: bool) -> Callable[[], None] | None:
        """Returns what the loop has to do with it."""
        self._at_it = True
        try:
            if (
                not self._offered
            ):  # before anything else is looked at: from here on the loop waits for us
                return self._not_now
            free, places = self._room()
            if free <= 0:
                return self._not_now
            self._woken = self._woken and not hinted
            turn = self._turns.take([], free, self._clock(), None, hinted=hinted, places=places)
        except Exception as error:  # noqa: BLE001 - the loop deals with it
            return partial(self._failed_now, error)
        if not hinted and self._is_nothing(turn):
            return self._found_nothing()
        return partial(self._turned_now, turn, free)

    def _is_nothing(self, turn: TransactionResult) -> bool:
        leapt = abs(turn.now - self._clock()) > LEAP
        soon = turn.next_due is not None and turn.next_due - turn.now < self._settings.poll * SECOND
        return not (turn.leases or turn.more or leapt or soon)

    def _found_nothing(self) -> Callable[[], None] | None:
        """The loop is not woken for it, unless it waits for us."""
        self._looked = self._loop.time()
        self._at_it = False
        return None if self._offered else self._answered.set

    def _turned_now(self, turn: TransactionResult, free: int) -> None:
        try:
            pause = self._turned(turn, free)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must not wait for us without end
            self._failed_now(error)
        else:
            self._done_now(pause)

    def _failed_now(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            pause = self._away(error)
        else:
            log.error("a turn failed", exc_info=error)
            self.doubt, pause = True, OUTAGE_WAIT[1]
        self._offered = False
        self._done_now(pause)

    def _not_now(self) -> None:
        self._done_now(self._settings.poll)
        self.wake.set()

    def _done_now(self, pause: float) -> None:
        self._at_it = False
        self._answered.set()
        self._rest(pause, watched=self._offered)

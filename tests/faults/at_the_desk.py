"""A desk with hands to work for and a thread that hears: what a worker is without its runners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from mulligan.config import Worker
from mulligan.core.attempt import Ending, Lease
from mulligan.engine.claims import Claimer
from mulligan.engine.supervisor.desk import Desk
from mulligan.engine.supervisor.turns import Turn, Turns
from mulligan.job import Memory
from mulligan.store import Store
from support.store import KINDS, POLICIES, RETURNED, now, open_worker

HEARER = "the one who hears"
NEVER = float("-inf")


LONG = 10_000  # ms: of jobs that take so long nobody claims ahead


class Hands:
    """In place of a fleet: keeps what it is given until it is told that it ended."""

    def __init__(self) -> None:
        self.can_take = True
        self.used_by_all = frozenset()
        self.line_stuck = False
        self.lonely: frozenset[str] = frozenset()
        self.telling = 0
        self.held: dict[tuple[str, int], Lease] = {}
        self.given: list[tuple[str, int]] = []
        self.most = 0

    @property
    def count(self) -> int:
        return len(self.held)

    def in_use(self) -> dict[str, int]:
        return {}

    def flights(self) -> list[Any]:
        return [type("Flight", (), {"lease": lease}) for lease in self.held.values()]

    def dispatch(self, leases: Sequence[Lease], memories: Mapping[str, Memory]) -> None:
        del memories
        self.given += [lease.fence for lease in leases]
        self.held |= {lease.fence: lease for lease in leases}
        self.most = max(self.most, len(self.held))

    def end(self, rng: Random) -> list[Ending]:
        gone = [fence for fence in self.held if rng.random() < 0.7]
        return [Ending(self.held.pop(fence), RETURNED, LONG) for fence in gone]


class Watched(Turns):
    """Who takes a turn, and whether two ever do at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.takers: list[str] = []
        self.overlaps = 0
        self._busy = threading.Lock()

    def take(self, *arguments: Any, **options: Any) -> Turn:
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
        self.takers.append(threading.current_thread().name)
        try:
            return super().take(*arguments, **options)
        finally:
            self._busy.release()


class Scene:
    """A desk, hands to work for, and a thread that hears."""

    def __init__(
        self,
        store: Store,
        turns: Store | None = None,
        *,
        concurrency: int = 4,
        beside: bool = False,
        poll: float = 60,
    ) -> None:
        open_worker(store)
        self.store = store
        self.may_claim = True
        self.hands = Hands()
        self.turns = Watched(turns or store, POLICIES, Claimer("w1", KINDS))
        self.hearer = ThreadPoolExecutor(1, HEARER, lambda: setattr(threading.current_thread(), "name", HEARER))
        self._thread = ThreadPoolExecutor(1, "turns")
        self._beside = ThreadPoolExecutor(1, "beside") if beside else None
        self._settings = Worker(concurrency=concurrency, poll=poll)

    def play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(self._play(act))

    async def _play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        clock = now(self.store)
        self.desk = Desk(
            self._settings, self._thread, lambda: clock, lambda _: None, lambda: self.may_claim, self._beside
        )
        self.desk.serve(self.hands, self.turns)  # type: ignore[arg-type]
        loop = asyncio.create_task(self.desk.loop())
        await asyncio.sleep(0)  # it rests now
        try:
            await asyncio.wait_for(act(self), 60)
        finally:
            self.desk.leaving = True
            self.desk.wake.set()
            await loop
            self.hearer.shutdown()

    async def hint(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.hearer, self.desk.hint)

    async def quiet(self) -> None:
        """Nothing is heard, for as long as it takes to be worth a look."""
        await asyncio.get_running_loop().run_in_executor(self.hearer, self.hear_nothing)

    def hear_nothing(self) -> None:
        self.desk._looked = self.desk._tried = NEVER
        self.desk.quiet()

    async def until(self, moment: Callable[[], object]) -> None:
        while not moment():  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.001)

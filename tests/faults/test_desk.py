"""The desk: one turn at a time, whoever takes it, and nothing taken is lost or handed out twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from mulligan.config import Worker
from mulligan.engine.claims import Claimer
from mulligan.engine.settle import Ending
from mulligan.engine.supervisor.desk import Desk
from mulligan.engine.supervisor.turns import Turn, Turns
from mulligan.errors import StoreUnavailable
from mulligan.job import Lease, Memory
from mulligan.store import Store
from support.store import KINDS, POLICIES, RETURNED, all_rows, enqueue, migrated, now, open_worker, told

HEARER = "the one who hears"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


LONG = 10_000  # ms: of jobs that take so long nobody claims ahead


class Hands:
    """In place of a fleet: keeps what it is given until it is told that it ended."""

    def __init__(self) -> None:
        self.can_take = True
        self.used_by_all = frozenset()
        self.line_stuck = False
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

    def is_alone(self, lease: Lease) -> bool:
        return lease.alone

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

    def __init__(self, store: Store, turns: Store | None = None, *, concurrency: int = 4) -> None:
        open_worker(store)
        self.store = store
        self.may_claim = True
        self.hands = Hands()
        self.turns = Watched(turns or store, POLICIES, Claimer("w1", KINDS))
        self.hearer = ThreadPoolExecutor(1, HEARER, lambda: setattr(threading.current_thread(), "name", HEARER))
        self._thread = ThreadPoolExecutor(1, "turns")
        self._settings = Worker(concurrency=concurrency, poll=60)

    def play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(self._play(act))

    async def _play(self, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        clock = now(self.store)
        self.desk = Desk(self._settings, self._thread, lambda: clock, lambda _: None, lambda: self.may_claim)
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

    async def until(self, moment: Callable[[], object]) -> None:
        while not moment():  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.001)


def test_who_hears_a_hint_claims_at_once_while_the_loop_rests(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        ids = enqueue(store, 3)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 3)
        assert scene.turns.takers == [HEARER]
        assert {fence[0] for fence in scene.hands.given} == set(ids)

    scene.play(act)


def test_a_hint_while_there_is_no_room_or_no_leave_claims_nothing(store: Store) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 2)
        await scene.hint()
        scene.may_claim = False
        scene.hands.held.clear()
        await scene.hint()
        scene.may_claim, scene.hands.can_take = True, False
        await scene.hint()
        assert len(scene.turns.takers) == 1
        assert len(scene.hands.given) == 2

    scene.play(act)


def test_a_full_claim_by_who_hears_is_followed_by_another_turn(store: Store) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 2)
        while len(scene.hands.given) < 5 or scene.hands.count:
            scene.desk.ended(scene.hands.end(Random(1)))
            await asyncio.sleep(0.001)

    scene.play(act)
    assert scene.hands.most <= 2


class Cut:
    """A store whose answers are lost while `lost`; what it was told is done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def once(self) -> Iterator[Any]:
        with self._store.once() as unit:
            yield unit
        if self.lost:
            raise StoreUnavailable("the line broke before the answer came")


def test_a_claim_whose_answer_who_hears_never_got_is_found_again(store: Store) -> None:
    cut = Cut(store)
    scene = Scene(store, cut)  # type: ignore[arg-type]

    async def act(scene: Scene) -> None:
        (job_id,) = enqueue(store)
        await scene.hint()
        await scene.until(lambda: len(scene.turns.takers) > 1)  # in doubt, the loop asks by itself, without a hint
        cut.lost = False
        await scene.until(lambda: scene.hands.count)
        assert [lease.id for lease in scene.hands.held.values()] == [job_id]
        assert told(store, job_id) == ["queued", "started"]

    scene.play(act)


def test_what_the_store_refuses_to_who_hears_ends_neither_the_desk_nor_the_hearing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store)
    monkeypatch.setattr("mulligan.engine.supervisor.desk.OUTAGE_WAIT", (0.01, 0.01))

    async def act(scene: Scene) -> None:
        claimer = scene.turns._claimer
        claimer.kinds = None  # type: ignore[assignment]
        enqueue(store)
        await scene.hint()
        await scene.until(lambda: len(scene.turns.takers) > 1)
        claimer.kinds = KINDS
        await scene.until(lambda: scene.hands.count == 1)
        enqueue(store)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 2)

    scene.play(act)


def test_hints_and_endings_at_once_never_make_two_turns_at_once_nor_lose_or_double_a_job(store: Store) -> None:
    scene, total = Scene(store, concurrency=5), 120

    def hear() -> None:
        for _ in range(total):
            enqueue(store)
            scene.desk.hint()

    async def act(scene: Scene) -> None:
        rng = Random(3)
        hearing = asyncio.get_running_loop().run_in_executor(scene.hearer, hear)
        while not hearing.done() or any(row.state != "succeeded" for row in all_rows(store)):
            if endings := scene.hands.end(rng):
                scene.desk.ended(endings)
            await asyncio.sleep(rng.random() * 0.004)

    scene.play(act)
    assert scene.turns.overlaps == 0
    assert len(scene.hands.given) == len(set(scene.hands.given)) == total
    assert {fence[1] for fence in scene.hands.given} == {1}
    assert set(scene.turns.takers) == {HEARER, "turns_0"}

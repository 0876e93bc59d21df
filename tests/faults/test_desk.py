"""The desk: one turn at a time, whoever takes it, and nothing taken is lost or handed out twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from faults.at_the_desk import HEARER, LONG, Scene
from mulligan.core.attempt import Ending
from mulligan.engine.supervisor import desk
from mulligan.engine.supervisor.turns import Turn
from mulligan.errors import StoreUnavailable
from mulligan.store import Store
from support.store import KINDS, RETURNED, all_rows, enqueue, migrated, sql, told


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


def test_who_hears_a_hint_claims_at_once_while_the_loop_rests(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        ids = enqueue(store, 3)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 3)
        assert scene.turns.takers == [HEARER]
        assert {fence[0] for fence in scene.hands.given} == set(ids)

    scene.play(act)


def test_who_hears_nothing_looks_in_place_of_the_loop(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        enqueue(store, 3)
        await scene.quiet()
        await scene.until(lambda: scene.hands.count == 3)
        assert scene.turns.takers == [HEARER]

    scene.play(act)


def test_where_it_finds_nothing_the_loop_sleeps_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, told_the_loop = Scene(store), []

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.desk, "_tell", told_the_loop.append)
        await scene.quiet()
        assert 0 < scene.desk.quiet() <= 60  # it has just looked
        assert scene.turns.takers == [HEARER]
        scene.desk._look_if_nobody_has()
        assert not scene.desk.wake.is_set()

    scene.play(act)
    assert told_the_loop == [None]


def test_a_leap_of_the_clock_is_told_to_the_loop_by_who_hears_nothing(store: Store) -> None:
    scene, heard = Scene(store), []

    async def act(scene: Scene) -> None:
        scene.desk._on_clock = heard.append
        await scene.quiet()
        assert heard == []
        store.shift_clock(3_600_000_000)
        await scene.quiet()
        await scene.until(lambda: heard)

    scene.play(act)


def test_a_loop_that_wants_a_turn_meanwhile_gets_it_though_nothing_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, under_way, may_go_on = Scene(store), threading.Event(), threading.Event()
    take = scene.turns.take

    def slow(*arguments: Any, **options: Any) -> Any:
        turn = take(*arguments, **options)
        under_way.set()
        assert may_go_on.wait(30)
        return turn

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.turns, "take", slow)
        looking = asyncio.create_task(scene.quiet())
        await scene.until(under_way.is_set)
        enqueue(store, 2)
        scene.desk.wake.set()
        await scene.until(lambda: not scene.desk._offered)  # it waits now
        may_go_on.set()
        await looking
        await scene.until(lambda: scene.hands.count == 2)
        assert scene.turns.takers == [HEARER, "turns_0"]

    scene.play(act)


def test_a_look_in_silence_that_cannot_be_handed_over_keeps_nobody_waiting(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        with clumsy(scene) as tries:
            enqueue(store, 2)
            await scene.quiet()
            await scene.until(lambda: tries)
            scene.desk.wake.set()  # it may wait for who looked; in doubt it finds them again
            await scene.until(lambda: scene.hands.count == 2)
            assert {fence[1] for fence in scene.hands.given} == {1}

    scene.play(act)


def waits_until(scene: Scene) -> float:
    """How long the loop rests if nothing happens, in polls."""
    timer = scene.desk._timer
    assert timer is not None
    return (timer.when() - asyncio.get_running_loop().time()) / 60


def test_the_loop_rests_for_one_poll_unless_somebody_is_known_to_look(store: Store) -> None:
    """Who heard a hint may not listen any more: a hint is also how that is told."""
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        assert 0.9 < waits_until(scene) <= 1
        await scene.quiet()
        scene.desk.wake.set()
        await scene.until(lambda: len(scene.turns.takers) == 2 and not scene.desk.turning and scene.desk._offered)
        assert 1.9 < waits_until(scene) <= 2
        await scene.hint()
        await scene.until(lambda: not scene.desk._at_it)
        assert 0.9 < waits_until(scene) <= 1

    scene.play(act)


def test_who_must_not_look_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In doubt the loop has to ask itself, whoever listens; also where the wait of an outage is as long as a poll."""
    monkeypatch.setattr(desk, "OUTAGE_WAIT", (60.0, 60.0))
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        await scene.quiet()
        scene.desk._failed_now(StoreUnavailable("away"))
        assert 0.9 < waits_until(scene) <= 1

    scene.play(act)


def test_after_the_last_look_of_who_looked_the_loop_waits_for_two_polls(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        await scene.quiet()
        scene.desk._look_if_nobody_has()
        assert not scene.desk.wake.is_set()
        assert 1.9 < waits_until(scene) <= 2
        scene.desk._looked -= 120
        scene.desk._look_if_nobody_has()
        assert scene.desk.wake.is_set()

    scene.play(act)


def test_however_often_nothing_is_heard_a_full_worker_is_woken_once_a_poll(store: Store) -> None:
    scene, told_the_loop = Scene(store, concurrency=1), []

    async def act(scene: Scene) -> None:
        enqueue(store, 2)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 1)
        scene.desk._tell = told_the_loop.append  # type: ignore[method-assign]
        await scene.quiet()
        for _ in range(50):
            assert scene.desk.quiet() > 59
        scene.desk._not_now()

    scene.play(act)
    assert len(told_the_loop) == 1


def test_a_full_worker_looks_for_messages_each_time_it_is_woken_by_silence(store: Store) -> None:
    scene = Scene(store, concurrency=1)

    async def act(scene: Scene) -> None:
        enqueue(store, 1)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 1)
        scene.desk._looked = scene.desk._tried = asyncio.get_running_loop().time() - 59.5  # a little early
        await asyncio.get_running_loop().run_in_executor(scene.hearer, scene.desk.quiet)
        await scene.until(lambda: scene.turns.takers == [HEARER, "turns_0"])

    scene.play(act)


@pytest.mark.parametrize("listened", [False, True])
def test_the_loop_looks_for_itself_when_nobody_does(store: Store, listened: bool) -> None:
    scene = Scene(store, poll=0.02)

    async def act(scene: Scene) -> None:
        if listened:
            await scene.quiet()
        enqueue(store, 2)
        await scene.until(lambda: scene.hands.count == 2)
        assert "turns_0" in scene.turns.takers

    scene.play(act)


def test_who_hears_nothing_while_all_places_are_taken_leaves_the_look_to_the_loop(store: Store) -> None:
    scene = Scene(store, concurrency=1)

    async def act(scene: Scene) -> None:
        enqueue(store, 2)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 1)
        await scene.quiet()
        await scene.until(lambda: scene.turns.takers == [HEARER, "turns_0"])  # for messages

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
    scene, total, rng_of_hearer = Scene(store, concurrency=5), 120, Random(4)

    def hear() -> None:
        for _ in range(total):
            enqueue(store)
            scene.desk.hint() if rng_of_hearer.random() < 0.7 else scene.hear_nothing()
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


@pytest.mark.parametrize(("losses", "handed_over"), [(0, 20), (1, 30)])
def test_many_leases_are_handed_over_once_the_next_turn_is_under_way_and_hold_their_places_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, losses: int, handed_over: int
) -> None:
    """Unless one of them may be what takes its neighbours down: the next turn has to know."""
    monkeypatch.setattr(desk, "MANY", 5)
    scene, seen = Scene(store, concurrency=20), []

    async def act(scene: Scene) -> None:
        enqueue(store, 40)
        sql(store, "UPDATE {p}job SET losses = :losses", {"losses": losses})
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 20)
        first, second = (list(scene.hands.held.values())[part] for part in (slice(10), slice(10, 20)))
        room, take = scene.desk._room, scene.turns.take

        def end(leases: list[Any]) -> None:
            for lease in leases:
                del scene.hands.held[lease.fence]
            scene.desk.ended([Ending(lease, RETURNED, LONG) for lease in leases])

        def look() -> Any:
            found = room()
            seen.append((found[0], len(scene.hands.given)))
            return found

        def with_news(*arguments: Any, **options: Any) -> Any:
            turn = take(*arguments, **options)
            if second:
                asyncio.run_coroutine_threadsafe(ended_meanwhile(), loop).result()
            return turn

        async def ended_meanwhile() -> None:
            end(second)
            second.clear()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(scene.desk, "_room", look)
        monkeypatch.setattr(scene.turns, "take", with_news)
        end(first)
        await scene.until(lambda: len(scene.hands.given) == 40)
        assert seen[:2] == [(10, 20), (10, handed_over)]

    scene.play(act)


@contextmanager
def clumsy(scene: Scene) -> Iterator[list[int]]:
    """The next claim cannot be handed over; how many were, each time."""
    dispatch, tries = scene.hands.dispatch, []

    def dropped(leases: Any, memories: Any) -> None:
        tries.append(len(leases))
        if len(tries) == 1:
            raise MemoryError
        dispatch(leases, memories)

    scene.hands.dispatch = dropped  # type: ignore[method-assign]
    yield tries


@pytest.mark.parametrize("heard", [False, True])
def test_what_could_not_be_handed_over_is_looked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    monkeypatch.setattr(desk, "MANY", 5)
    scene = Scene(store, concurrency=20)

    async def act(scene: Scene) -> None:
        with clumsy(scene) as tries:
            enqueue(store, 12)
            await scene.hint()
            await scene.until(lambda: tries)
            if heard:
                enqueue(store)
                await scene.hint()
            scene.desk.wake.set()  # the poll
            await scene.until(lambda: scene.hands.count == 12 + heard)
            assert tries[0] == 12
            assert {fence[1] for fence in scene.hands.given} == {1}  # no second claim

    scene.play(act)


def test_a_turn_under_way_does_not_forget_what_could_not_be_handed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MANY", 5)
    scene, under_way, may_go_on = Scene(store, concurrency=20), threading.Event(), threading.Event()
    take = scene.turns.take

    def slow(*arguments: Any, **options: Any) -> Any:
        under_way.set()
        assert may_go_on.wait(30)
        return take(*arguments, **options)

    async def act(scene: Scene) -> None:
        enqueue(store, 10)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 10)
        ended = [Ending(lease, RETURNED, LONG) for lease in scene.hands.held.values()]
        with clumsy(scene) as tries:
            dispatch, scene.hands.dispatch = scene.hands.dispatch, lambda *_: held_back.append(_)
            held_back: list[Any] = []
            enqueue(store, 6)
            await scene.hint()
            await scene.until(lambda: held_back)
            monkeypatch.setattr(scene.turns, "take", slow)
            scene.hands.held.clear()
            scene.desk.ended(ended)
            await scene.until(under_way.is_set)
            scene.hands.dispatch = dispatch  # type: ignore[method-assign]
            scene.desk._handed_over(Turn([], *held_back[0], now=0, next_due=None, more=False))
            assert tries == [6]
            may_go_on.set()
            await scene.until(lambda: not scene.desk.unwritten)
            scene.desk.wake.set()  # the poll
            await scene.until(lambda: scene.hands.count == 6)

    scene.play(act)


def test_places_of_what_is_being_handed_over_are_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MANY", 5)
    scene, seen = Scene(store, concurrency=20), []

    async def act(scene: Scene) -> None:
        dispatch = scene.hands.dispatch

        def looked_at(leases: Any, memories: Any) -> None:
            seen.append(scene.desk._free())
            dispatch(leases, memories)

        monkeypatch.setattr(scene.hands, "dispatch", looked_at)
        enqueue(store, 12)
        await scene.hint()
        await scene.until(lambda: scene.hands.count == 12)
        assert seen == [8]

    scene.play(act)

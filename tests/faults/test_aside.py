"""Endings that are written beside a turn: plain ones alone, none lost, none held twice, and no slot free too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from faults.at_the_desk import Scene
from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.engine.supervisor import aside
from mulligan.errors import StoreUnavailable
from mulligan.store import Store
from policy.builders import a_lease
from support.store import FAILED, RETURNED, all_rows, enqueue, migrated, told

FEW = 5
SHORT = 1  # ms
RELEASED = Outcome(Ended.RELEASED, reason="given back")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "ENOUGH", FEW)
    monkeypatch.setattr(aside, "PATIENCE", 60.0)  # a busy machine must not decide what is written by whom


def states(store: Store) -> list[str]:
    return sorted(row.state for row in all_rows(store))


class Slow:
    """A turn that does not come back until it may; what is written beside it goes its own way."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way, self.may_go_on = threading.Event(), threading.Event()
        take = scene.turns.take

        def slow(*arguments: Any, **options: Any) -> Any:
            self.under_way.set()
            assert self.may_go_on.wait(30)
            return take(*arguments, **options)

        self.begin = lambda: monkeypatch.setattr(scene.turns, "take", slow)


async def running(scene: Scene, count: int) -> list[Lease]:
    enqueue(scene.store, count)
    await scene.hint()
    await scene.until(lambda: scene.hands.count == count)
    leases = list(scene.hands.held.values())
    scene.hands.held.clear()
    return leases


def short(leases: list[Lease], outcome: Outcome = RETURNED) -> list[Ending]:
    return [Ending(lease, outcome, SHORT) for lease in leases]


def test_short_jobs_that_returned_are_written_while_a_turn_is_under_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, beside=True)
    slow = Slow(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 12)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        scene.desk.ended(short(leases[1:11]))
        await scene.until(lambda: states(store).count("succeeded") == 10)
        assert not slow.may_go_on.is_set()
        scene.desk.ended(short(leases[11:]))  # too few: the next turn's
        slow.may_go_on.set()
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 12
        assert all(told(store, lease.id) == ["queued", "started", "succeeded"] for lease in leases)

    scene.play(act)


class Blocked:
    """What is written beside a turn waits, as for a lock that somebody holds; how many were written each time."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.calls, self.written = threading.Event(), 0, list[int]()
        finish = scene.turns.finish

        def slow(endings: list[Ending], *arguments: Any) -> None:
            self.calls += 1
            assert self.may_write.wait(30)
            self.written.append(len(endings))
            finish(endings, *arguments)

        monkeypatch.setattr(scene.turns, "finish", slow)


def turns_seen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every turn from now on: how many endings it writes, and for how many jobs it has room."""
    seen: list[tuple[int, int]] = []

    def take(endings: list[Ending], free: int, *arguments: Any, **options: Any) -> Any:
        seen.append((len(endings), free))
        return type(scene.turns).take(scene.turns, endings, free, *arguments, **options)

    monkeypatch.setattr(scene.turns, "take", take)
    return seen


def test_a_turn_that_begins_leaves_them_to_be_written_beside_it_and_claims(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 12)
        blocked, turns = Blocked(scene, monkeypatch), turns_seen(scene, monkeypatch)
        scene.desk.ended(short(leases))
        await scene.until(lambda: turns)
        assert turns == [(0, 8)]  # those that are not durable yet hold their places
        blocked.may_write.set()
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 12

    scene.play(act)


def test_those_that_end_while_others_are_written_wait_for_the_next_time_and_keep_no_claim_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 24)
        blocked, turns = Blocked(scene, monkeypatch), turns_seen(scene, monkeypatch)
        scene.desk.ended(short(leases[:10]))
        await scene.until(lambda: turns == [(0, 30)])
        scene.desk.ended(short(leases[10:20]))
        scene.desk.ended([Ending(leases[20], RELEASED, SHORT)])  # what a turn must think about does not wait
        await scene.until(lambda: turns[-1] == (1, 20))
        blocked.may_write.set()
        await scene.until(lambda: blocked.written == [10, 10])
        scene.desk.ended(short(leases[21:]))  # too few, and nobody is at it: the next turn's
        await scene.until(lambda: scene.desk.all_written)
        assert states(store).count("succeeded") == 23
        assert max(count for count, _ in turns) == 3

    scene.play(act)


class Threadless:
    def submit(self, *_: object) -> None:
        raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_started_turns_write_everything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store, concurrency=40, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        monkeypatch.setattr(scene.desk._aside, "_thread", Threadless())
        scene.desk.ended(short(leases))
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 20

    scene.play(act)


def test_nobody_waits_for_long_for_those_that_are_written_beside(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "PATIENCE", 0.05)
    scene = Scene(store, concurrency=40, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        blocked = Blocked(scene, monkeypatch)
        scene.desk.ended(short(leases[:10]))
        await scene.until(lambda: blocked.calls)
        scene.desk.ended(short(leases[10:]))
        await scene.until(lambda: scene.desk._aside is not None and not scene.desk._aside.brisk)
        scene.desk.wake.set()
        await scene.until(lambda: states(store).count("succeeded") == 10)
        blocked.may_write.set()
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 20

    scene.play(act)


def test_a_desk_that_leaves_writes_those_that_waited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store, concurrency=40, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        blocked = Blocked(scene, monkeypatch)
        scene.desk.ended(short(leases[:10]))
        await scene.until(lambda: blocked.calls)
        scene.desk.ended(short(leases[10:]))
        scene.desk.leaving = True
        scene.desk.wake.set()
        blocked.may_write.set()

    scene.play(act)
    assert scene.desk.all_written
    assert states(store) == ["succeeded"] * 20


def test_what_comes_back_while_a_turn_is_under_way_is_written_by_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, beside=True)
    slow, tries = Slow(scene, monkeypatch), []

    def refuse(endings: list[Ending], *_: object) -> None:
        tries.append(len(endings))
        raise ValueError("refused")

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        monkeypatch.setattr(scene.turns, "finish", refuse)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        scene.desk.ended(short(leases[1:]))
        await scene.until(lambda: tries and len(scene.desk.unwritten) == len(scene.desk.endings))
        slow.may_go_on.set()
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 20
        assert tries == [19]

    scene.play(act)


def test_so_many_are_written_at_once_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MOST", 8)
    scene = Scene(store, concurrency=40, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        blocked = Blocked(scene, monkeypatch)
        blocked.may_write.set()
        scene.desk.ended(short(leases))
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 20
        assert blocked.written[0] == max(blocked.written) == 8

    scene.play(act)


def test_how_long_they_took_is_learned_from_whoever_writes_them(store: Store) -> None:
    scene = Scene(store, concurrency=20, beside=True)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 20)
        enqueue(store, 40)
        scene.desk.ended(short(leases))
        await scene.until(lambda: scene.hands.count == 40)  # a line behind the twenty that run side by side

    scene.play(act)


def test_short_jobs_that_failed_are_written_so_too_and_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, beside=True)
    slow = Slow(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 8)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        scene.desk.ended(short(leases[1:], FAILED))
        await scene.until(lambda: states(store).count("queued") == 7)
        assert {row.failures for row in all_rows(store) if row.state == "queued"} == {1}
        assert told(store, leases[-1].id) == ["queued", "started", "retry_scheduled"]
        slow.may_go_on.set()
        await scene.until(lambda: scene.desk.all_written)

    scene.play(act)


@pytest.mark.parametrize(
    "turned",
    [
        lambda ending: ending._replace(outcome=RELEASED),
        lambda ending: ending._replace(duration_ms=1000),
        lambda ending: ending._replace(duration_ms=None),
        lambda ending: ending._replace(lease=ending.lease._replace(uses="gateway")),
        lambda ending: ending._replace(lease=ending.lease._replace(batch_id="b1")),
        lambda ending: ending._replace(lease=ending.lease._replace(alone=True)),
        lambda ending: ending._replace(lease=ending.lease._replace(queue="mulligan.deliveries")),
    ],
)
def test_what_a_turn_must_think_about_is_left_to_a_turn(turned: Callable[[Ending], Ending]) -> None:
    [plain] = short([a_lease()])
    assert aside.is_plain(plain)
    assert not aside.is_plain(turned(plain))


def test_what_a_job_said_last_is_written_with_its_ending_so_it_waits_for_the_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, beside=True)
    slow = Slow(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 8)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        scene.desk.news[leases[1].fence] = (0.5, "half")
        scene.desk.ended(short(leases[1:]))
        await scene.until(lambda: [ending.lease for ending in scene.desk.unwritten] == [leases[1]])
        assert states(store).count("succeeded") == 6
        slow.may_go_on.set()
        await scene.until(lambda: scene.desk.all_written)

    scene.play(act)
    assert states(store) == ["succeeded"] * 8
    assert {row.progress_message for row in all_rows(store)} == {"", "half"}


class Away:
    """Does not answer, or answers and the line breaks, while `away`."""

    def __init__(self, store: Store, *, done: bool) -> None:
        self._store, self._done = store, done
        self.away = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        if self.away:
            self.asked += 1
        if self.away and not self._done:
            raise StoreUnavailable("away")
        with self._store.begin() as unit:
            yield unit
        if self.away:
            raise StoreUnavailable("the line broke before the answer came")


@pytest.mark.parametrize("done", [False, True], ids=["unwritten", "written"])
def test_what_could_not_be_written_beside_is_the_next_turns_and_ends_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    away = Away(store, done=done)
    scene = Scene(store, away, concurrency=20, beside=True)  # type: ignore[arg-type]
    slow = Slow(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 8)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        away.away = True
        scene.desk.ended(short(leases[1:]))
        await scene.until(lambda: away.asked)
        away.away = False
        slow.may_go_on.set()
        await scene.until(lambda: scene.desk.all_written)
        assert states(store) == ["succeeded"] * 8
        assert all(told(store, lease.id).count("succeeded") == 1 for lease in leases)
        assert not scene.hands.held, "none of them is adopted as if nobody knew it"

    scene.play(act)


def test_a_desk_that_leaves_waits_for_what_is_written_beside(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store, concurrency=20, beside=True)
    slow = Slow(scene, monkeypatch)
    writes, may_write = scene.turns.finish, threading.Event()

    def late(*arguments: Any) -> None:
        assert may_write.wait(30)
        writes(*arguments)

    monkeypatch.setattr(scene.turns, "finish", late)

    async def act(scene: Scene) -> None:
        leases = await running(scene, 8)
        slow.begin()
        scene.desk.ended(short(leases[:1]))
        await scene.until(slow.under_way.is_set)
        scene.desk.ended(short(leases[1:]))
        scene.desk.leaving = True
        slow.may_go_on.set()
        await scene.until(lambda: states(store).count("succeeded") == 1)
        assert not scene.desk.all_written
        may_write.set()

    scene.play(act)  # ends when the desk's loop has
    assert states(store) == ["succeeded"] * 8


def test_no_slot_is_free_before_its_ending_is_durable_and_nothing_is_lost_or_doubled(store: Store) -> None:
    scene, total = Scene(store, concurrency=12, beside=True), 600
    enqueue(store, total)

    async def act(scene: Scene) -> None:
        rng = Random(5)
        await scene.hint()
        while any(row.state != "succeeded" for row in all_rows(store)):
            gone = [fence for fence in scene.hands.held if rng.random() < 0.8]
            if gone:
                scene.desk.ended([Ending(scene.hands.held.pop(fence), RETURNED, SHORT) for fence in gone])
            under_way = sum(row.state == "running" for row in all_rows(store))
            assert under_way <= scene.desk._pace.room(0)
            await asyncio.sleep(rng.random() * 0.002)

    scene.play(act)
    assert scene.turns.overlaps == 0
    assert len(scene.hands.given) == len(set(scene.hands.given)) == total

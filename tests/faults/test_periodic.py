"""Turns at outlets: together where they are due together, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mulligan.core.errors import StoreUnavailable
from mulligan.worker.supervisor import periodic as rounds
from mulligan.worker.supervisor.periodic import PeriodicTasks, Waker


class Counted:
    def __init__(self, every: float = 0.01, turn: Callable[[int], bool] = lambda _: False) -> None:
        self.name = "counted"
        self.every = every
        self.turns = 0
        self._turn = turn

    def turn(self, store: object) -> bool:
        del store
        self.turns += 1
        return self._turn(self.turns)


def play(outlets: list[Counted], act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        task = asyncio.create_task(PeriodicTasks(outlets, None).run())  # type: ignore[arg-type]
        await act()
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 30))


async def until(moment: Callable[[], bool]) -> None:
    while not moment():  # noqa: ASYNC110 - a count of another thread
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [ValueError("no"), StoreUnavailable("away")])
def test_a_failing_periodic_task_is_run_again_and_does_not_stop_the_others(error: Exception) -> None:
    def fail(_: int) -> bool:
        raise error

    failing, other = Counted(turn=fail), Counted()  # of the same name: each is taken
    play([failing, other], lambda: until(lambda: min(failing.turns, other.turns) >= 3))


def test_a_periodic_task_with_more_work_is_run_again_at_once() -> None:
    busy = Counted(every=60, turn=lambda turns: turns < 5)
    play([busy], lambda: until(lambda: busy.turns == 5))


def test_the_loop_runs_without_any_periodic_task() -> None:
    play([], lambda: asyncio.sleep(0))


def test_a_thread_that_cannot_be_started_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = []

    class Full(threading.Thread):
        def start(self) -> None:
            if len(refused) < 2:
                refused.append(self)
                message = "can't start new thread"
                raise RuntimeError(message)
            super().start()

    monkeypatch.setattr(rounds, "THREAD_RETRY_DELAY", 0.001)
    monkeypatch.setattr(rounds.threading, "Thread", Full)
    outlet = Counted()
    play([outlet], lambda: until(lambda: outlet.turns >= 2))
    assert len(refused) == 2


def test_no_periodic_task_is_run_after_the_loop_has_ended() -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(_: int) -> bool:
        begun.set()
        return may_go_on.wait(20)

    first, second = Counted(turn=slow), Counted()
    play([first, second], lambda: until(begun.is_set))
    may_go_on.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "mulligan-periodic"]:
        thread.join(20)
    assert (first.turns, second.turns) == (1, 0)


def test_the_loop_fails_when_a_periodic_task_ends_its_thread() -> None:
    def leave(_: int) -> bool:
        raise SystemExit(3)

    async def scene() -> None:
        await PeriodicTasks([Counted(turn=leave)], None).run()  # type: ignore[list-item, arg-type]

    with pytest.raises(RuntimeError, match="the thread for periodic tasks has ended: SystemExit"):
        asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_waker_calls_wake_each_time_its_check_is_true() -> None:
    looks, rings = iter([True, False, True]), []
    bell = Waker("bell", 0.01, lambda _: next(looks), lambda: rings.append(1))
    assert [bell.run_once(None) for _ in range(3)] == [False] * 3  # type: ignore[arg-type]
    assert len(rings) == 2

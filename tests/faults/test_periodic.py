"""Periodic tasks run together when due, isolated from each other's errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mulligan.core.errors import StoreUnavailable
from mulligan.worker.supervisor import chores
from mulligan.worker.supervisor.chores import PeriodicTasks, Waker


class CountingTask:
    def __init__(
        self, every: float = 0.01, result: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.name = "counted"
        self.every = every
        self.runs = 0
        self._result = result

    def run_once(self, store: object) -> bool:
        del store
        self.runs += 1
        return self._result(self.runs)


def play(tasks: list[CountingTask], act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        task = asyncio.create_task(PeriodicTasks(tasks, None).run())  # type: ignore[arg-type]
        await act()
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 30))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a count of another thread
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [ValueError("no"), StoreUnavailable("away")])
def test_a_failing_periodic_task_is_run_again_and_does_not_stop_the_others(
    error: Exception,
) -> None:
    def fail(_: int) -> bool:
        raise error

    failing, other = CountingTask(result=fail), CountingTask()  # the same name twice
    play([failing, other], lambda: until(lambda: min(failing.runs, other.runs) >= 3))


def test_a_periodic_task_with_more_work_is_run_again_at_once() -> None:
    busy = CountingTask(every=60, result=lambda runs: runs < 5)
    play([busy], lambda: until(lambda: busy.runs == 5))


def test_the_loop_runs_without_any_periodic_task() -> None:
    play([], lambda: asyncio.sleep(0))


def test_a_thread_that_cannot_be_started_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = []

    class RefusingThread(threading.Thread):
        def start(self) -> None:
            if len(refused) < 2:
                refused.append(self)
                message = "can't start new thread"
                raise RuntimeError(message)
            super().start()

    monkeypatch.setattr(chores, "THREAD_RETRY_DELAY", 0.001)
    monkeypatch.setattr(chores.threading, "Thread", RefusingThread)
    task = CountingTask()
    play([task], lambda: until(lambda: task.runs >= 2))
    assert len(refused) == 2


def test_no_periodic_task_is_run_after_the_loop_has_ended() -> None:
    started = threading.Event()
    may_continue = threading.Event()

    def slow(_: int) -> bool:
        started.set()
        return may_continue.wait(20)

    first, second = CountingTask(result=slow), CountingTask()
    play([first, second], lambda: until(started.is_set))
    may_continue.set()
    for thread in [
        thread for thread in threading.enumerate() if thread.name == "mulligan-periodic"
    ]:
        thread.join(20)
    assert (first.runs, second.runs) == (1, 0)


def test_the_loop_fails_when_a_periodic_task_ends_its_thread() -> None:
    def leave(_: int) -> bool:
        raise SystemExit(3)

    async def scene() -> None:
        await PeriodicTasks([CountingTask(result=leave)], None).run()  # type: ignore[list-item, arg-type]

    with pytest.raises(RuntimeError, match="the thread for periodic tasks has ended: SystemExit"):
        asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_waker_calls_wake_each_time_its_check_is_true() -> None:
    checks = iter([True, False, True])
    wakes: list[int] = []
    waker = Waker("waker", 0.01, lambda _: next(checks), lambda: wakes.append(1))
    assert [waker.run_once(None) for _ in range(3)] == [False] * 3  # type: ignore[arg-type]
    assert len(wakes) == 2

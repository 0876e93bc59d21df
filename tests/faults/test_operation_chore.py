"""When a worker runs operations: each second while one is active, else after a wake-up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mulligan.config import Settings
from mulligan.worker.supervisor import main
from mulligan.worker.supervisor.main import Supervisor, WorkerOptions


class FakeChores:
    """Chores whose calls report an active operation, or raise, as listed."""

    def __init__(self, *results: bool | Exception) -> None:
        self.calls = 0
        self._results = results

    def run_operations(self) -> tuple[int, bool]:
        self.calls += 1
        found = self._results[self.calls - 1] if self.calls <= len(self._results) else False
        if isinstance(found, Exception):
            raise found
        return 0, found


def count_calls(chores: FakeChores, *, woken: bool, until: int) -> int:
    """Run the operations loop until it has called the chores often enough. Return how often."""

    async def scene() -> None:
        supervisor: Any = Supervisor(None, Settings(), WorkerOptions("app:app"))  # type: ignore[arg-type]
        supervisor._loop = asyncio.get_running_loop()
        supervisor._chores = chores
        supervisor._operations_due = asyncio.Event()
        with ThreadPoolExecutor(1) as supervisor._chore_thread:
            task = asyncio.create_task(supervisor._operations_loop())
            if woken:
                supervisor._operations_due.set()
            while chores.calls < until or not supervisor._operations_due._waiters:  # noqa: ASYNC110 - a count of a thread
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 30))
    return chores.calls


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "OPERATIONS_INTERVAL", 0.001)
    monkeypatch.setattr(main, "OPERATIONS_IDLE_INTERVAL", 60.0)


def test_a_running_operation_is_worked_on_until_it_ends_without_another_wake_up() -> None:
    assert count_calls(FakeChores(True, True, True, False), woken=True, until=4) == 4


def test_after_an_error_operations_wait_for_the_next_wake_up() -> None:
    assert count_calls(FakeChores(True, ValueError("no")), woken=True, until=2) == 2


def test_operations_are_polled_without_a_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "OPERATIONS_IDLE_INTERVAL", 0.01)
    assert count_calls(FakeChores(), woken=False, until=2) >= 2

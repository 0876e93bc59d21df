"""Run periodic tasks (notifications, alerts, metrics) on their own thread.

Tasks that are due at about the same time run together: waking a thread costs an idle worker more
than the check itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mulligan.core.errors import StoreUnavailable
from mulligan.storage.base import Store

log = logging.getLogger("mulligan.worker")

REST_FACTOR = 2  # a busy task rests twice as long as it ran, so that it cannot crowd out jobs
EARLY = 0.05  # seconds that a task may run early, together with others
THREAD_RETRY_DELAY = 1.0  # seconds


class PeriodicTask(Protocol):
    """Task that every worker runs from time to time."""

    name: str
    every: float  # seconds between runs while there is nothing to do

    def run_once(self, store: Store) -> bool:
        """Do one short step of at most about 20 ms. True: there is more to do.

        Several workers run this at the same time. If another one is doing the work, return False
        without waiting.
        """
        ...


class Waker:
    """Task that only checks a condition, and calls `wake` if it is true."""

    def __init__(
        self, name: str, every: float, check: Callable[[Store], bool], wake: Callable[[], None]
    ) -> None:
        self.name = name
        self.every = every
        self._check = check
        self._wake = wake

    def run_once(self, store: Store) -> bool:
        """Check the condition once."""
        if self._check(store):
            self._wake()
        return False


class PeriodicTasks:
    """The thread that runs the tasks."""

    def __init__(self, tasks: Sequence[PeriodicTask], store: Store) -> None:
        self._tasks = tasks
        self._due = [0.0] * len(tasks)
        self._store = store
        self._stop = threading.Event()

    async def run(self) -> None:
        """Run the tasks until cancelled. Does not wait for a task that is running then.

        Raises RuntimeError if the thread ends by itself.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while self._tasks and not self._start_thread(failed):  # noqa: ASYNC110 - a retry
                await asyncio.sleep(THREAD_RETRY_DELAY)
            await failed
        finally:
            self._stop.set()

    def _start_thread(self, failed: asyncio.Future[None]) -> bool:
        thread = threading.Thread(target=self._run_thread, args=(failed,), name="mulligan-periodic")
        try:
            thread.start()
        except RuntimeError:
            log.exception("cannot start the thread for periodic tasks; trying again")
            return False
        return True

    def _run_thread(self, failed: asyncio.Future[None]) -> None:
        try:
            self._run_until_stopped()
        except BaseException as error:  # noqa: BLE001 - the supervisor must hear of any error
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                failed.get_loop().call_soon_threadsafe(_set_failed, failed, repr(error))

    def _run_until_stopped(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            for index, due in enumerate(list(self._due)):
                if due - now < EARLY:
                    pause = self._run_task(self._tasks[index])
                    self._due[index] = time.monotonic() + pause
            self._stop.wait(max(0.0, min(self._due) - time.monotonic()))

    def _run_task(self, task: PeriodicTask) -> float:
        """Run a task and return how long it rests. An error is logged and does not stop others."""
        began = time.monotonic()
        more = False
        try:
            if not self._stop.is_set():  # otherwise the store may be closed already
                more = task.run_once(self._store)
        except StoreUnavailable:
            pass
        except Exception:
            log.exception("periodic task %s failed; it will be tried again", task.name)
        if more:
            return REST_FACTOR * (time.monotonic() - began)
        return task.every


def _set_failed(failed: asyncio.Future[None], error: str) -> None:
    if not failed.done():
        failed.set_exception(RuntimeError(f"the thread for periodic tasks has ended: {error}"))

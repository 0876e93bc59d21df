"""Threads for handlers that block. One per slot in use, made when first needed, never more than slots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue


class Crew:
    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def run(self, task: Callable[[], None]) -> None:
        """Called on the loop only; `done` too, so the count needs no lock."""
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name=f"mulligan-job-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

    def done(self) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while True:
            copy_context().run(self._tasks.get())  # what one job sets in its context is not the next one's

"""Accelerator of settling: write short, simple endings while a transaction of the loop runs.

The database then works while the loop prepares its next transaction. Only where several
transactions can write at once, and only endings that do not touch what the loop keeps in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from mulligan.core.attempt import Ended, Ending
from mulligan.core.errors import StoreUnavailable
from mulligan.manifest.specs import DELIVERY_QUEUE
from mulligan.worker.fast.lease_batch import SHORT_MS

log = logging.getLogger("mulligan.worker")

MIN_BATCH = 200  # endings that are worth their own transaction
MAX_BATCH = 2000  # endings in one transaction
SLOW_AFTER = 1.0  # seconds; then another transaction probably holds a lock


class SideWriter:
    """Writes endings on a second thread."""

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        write: Callable[[list[Ending]], object],
        on_written: Callable[[list[Ending]], None],
    ) -> None:
        """Create it. `on_written` gets, after each write, the endings that were not written."""
        self.waiting: list[Ending] = []
        self.writing: list[Ending] = []  # being written now
        self._thread = thread
        self._write = write
        self._on_written = on_written
        self._began = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """True if it is writing."""
        return bool(self.writing)

    @property
    def is_fast(self) -> bool:
        """True if it is writing and has not taken long: what waits may wait for it."""
        return self.busy and time.monotonic() - self._began < SLOW_AFTER

    def accept(self, endings: list[Ending]) -> list[Ending]:
        """Take simple endings. Return the others."""
        simple = [ending for ending in endings if is_simple(ending)]
        self.waiting += simple
        if len(simple) == len(endings):
            return []
        return [ending for ending in endings if not is_simple(ending)]

    def withdraw(self, fences: Collection[tuple[str, int]] | None = None) -> list[Ending]:
        """Give back what waits: all, or the endings with these fences."""
        if fences is None:
            withdrawn = self.waiting
            self.waiting = []
        else:
            withdrawn = [ending for ending in self.waiting if ending.lease.fence in fences]
            self.waiting = [ending for ending in self.waiting if ending.lease.fence not in fences]
        return withdrawn

    def write(self) -> None:
        """Start to write what waits, if it is enough and nothing is being written."""
        if self.busy or len(self.waiting) < MIN_BATCH:
            return
        batch = self.waiting[:MAX_BATCH]
        try:
            writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)
        except RuntimeError:  # no thread can be started: the loop writes them
            return
        del self.waiting[:MAX_BATCH]
        self.writing = batch
        self._began = time.monotonic()
        self._idle.clear()
        writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[object]) -> None:
        """Give back what was not written, or may not have been. Settling twice is harmless."""
        error = writing.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            log.error(
                "the side writer could not write %d endings", len(self.writing), exc_info=error
            )
        endings = self.writing
        self.writing = []
        self._idle.set()
        self._on_written([] if error is None else endings)

    async def wait_until_idle(self) -> None:
        """Wait until nothing is being written."""
        await self._idle.wait()


def is_simple(ending: Ending) -> bool:
    """True if the job was short and settling it touches no batch, dependency or delivery."""
    lease, outcome, took, _ = ending
    return (
        took is not None
        and took <= SHORT_MS
        # Two comparisons are twice as fast as a lookup in a set.
        and (outcome.ended is Ended.RETURNED or outcome.ended is Ended.FAILED)
        and not (lease.uses or lease.batch_id or lease.alone)
        and lease.queue != DELIVERY_QUEUE
    )

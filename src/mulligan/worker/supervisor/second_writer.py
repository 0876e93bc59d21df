"""Accelerator of settling: a second thread that settles while the transaction thread is busy.

Where several transactions may write at once, the database settles one batch while the transaction
thread claims the next jobs. The writer takes only small endings that no dependency guard counts:
those guards belong to the transaction thread. It declines everything else, and everything after a
failed write, until the transaction thread has reached the database again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mulligan.core.attempt import Ending
from mulligan.core.errors import StoreUnavailable

log = logging.getLogger("mulligan.worker")

MIN_BATCH = 200  # endings that are worth their own transaction
MAX_BATCH = 1000  # endings in one transaction
MAX_RESULT = 1 << 15  # characters; a batch of larger results would be a statement of many megabytes


class SecondWriter:
    """Settles endings on its own thread. Every attribute is guarded by one lock."""

    def __init__(
        self,
        settle: Callable[[list[Ending]], None],
        on_settled: Callable[[list[Ending]], None],
        on_failed: Callable[[list[Ending]], None],
    ) -> None:
        """Create it. One of the two callbacks gets each batch, on the writer's thread."""
        self._settle = settle
        self._on_settled = on_settled
        self._on_failed = on_failed
        self._changed = threading.Condition()
        self._waiting: list[Ending] = []
        self._writing: list[Ending] = []
        self._declines = False
        self._stopping = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="mulligan-writer", daemon=True).start()

    def accept(self, endings: list[Ending]) -> list[Ending]:
        """Keep the endings that this thread may write. Return the others."""
        with self._changed:
            if self._declines or self._stopping:
                return endings
            self._waiting += [ending for ending in endings if is_simple(ending)]
            if len(self._waiting) >= MIN_BATCH:
                self._changed.notify()
        return [ending for ending in endings if not is_simple(ending)]

    def withdraw(self) -> list[Ending]:
        """Give back what waits: the transaction thread is free to settle it."""
        with self._changed:
            withdrawn = self._waiting
            self._waiting = []
            return withdrawn

    def unwritten(self) -> list[Ending]:
        """Return the endings that are not durable yet."""
        with self._changed:
            return self._writing + self._waiting

    def resume(self) -> None:
        """Accept endings again: the database answers."""
        with self._changed:
            self._declines = False

    def stop(self) -> list[Ending]:
        """Wait until nothing is being written, end the thread, and give back what waits."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._writing)
            withdrawn = self._waiting
            self._waiting = []
            return withdrawn

    def _run(self) -> None:
        while batch := self._next_batch():
            error: Exception | None = None
            try:
                self._settle(batch)
            except Exception as raised:  # noqa: BLE001 - the transaction thread settles them again
                error = raised
            self._finish(batch, error)

    def _next_batch(self) -> list[Ending]:
        """Wait for a batch. An empty one: the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._waiting) >= MIN_BATCH)
            if self._stopping:
                return []
            self._writing = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
            return self._writing

    def _finish(self, batch: list[Ending], error: Exception | None) -> None:
        if error is None:
            self._on_settled(batch)
        else:
            # It may be written all the same. Settling twice is noticed by the token.
            self._on_failed(batch)
            if not isinstance(error, StoreUnavailable):
                log.error("%d endings could not be written together", len(batch), exc_info=error)
        with self._changed:
            self._declines = self._declines or error is not None
            self._writing = []
            self._changed.notify_all()


def is_simple(ending: Ending) -> bool:
    """True if no dependency guard counts the ending and its result is small."""
    return not ending.lease.uses and len(ending.outcome.result or "") <= MAX_RESULT

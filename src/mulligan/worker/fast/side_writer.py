"""Short jobs that returned or failed, written while a turn is under way: else the server rests while we prepare, and
we rest while it works. Only where several may write at once, and only what meets nothing that a turn remembers.
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

ENOUGH = 200  # for a transaction of their own
MOST = 2000  # in one
PATIENCE = 1.0  # seconds: somebody may hold the lock of one of them


class SideWriter:
    def __init__(
        self,
        thread: ThreadPoolExecutor,
        write: Callable[[list[Ending]], object],
        back: Callable[[list[Ending]], None],
    ) -> None:
        """`back`: is given those that could not be written; of the others, none."""
        self.waiting: list[Ending] = []
        self.endings: list[Ending] = []  # on their way
        self._thread = thread
        self._write = write
        self._back = back
        self._since = 0.0  # when it began to write these
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        return bool(self.endings)

    @property
    def brisk(self) -> bool:
        """At work, and not for long: what it would write next may wait for it."""
        return self.busy and time.monotonic() - self._since < PATIENCE

    def keep(self, endings: list[Ending]) -> list[Ending]:
        """Returns those that are none for it."""
        plain = [ending for ending in endings if is_plain(ending)]
        self.waiting += plain
        return (
            []
            if len(plain) == len(endings)
            else [ending for ending in endings if not is_plain(ending)]
        )

    def withdraw(self, spoken: Collection[tuple[str, int]] | None = None) -> list[Ending]:
        """What waits, or only those with words that are written with their ending: a turn writes them."""
        if spoken is None:
            given, self.waiting = self.waiting, []
        else:
            given = [ending for ending in self.waiting if ending.lease.fence in spoken]
            self.waiting = [ending for ending in self.waiting if ending.lease.fence not in spoken]
        return given

    def write(self) -> None:
        """What waits, if that is worth it and nothing is on its way."""
        if self.busy or len(self.waiting) < ENOUGH:
            return
        plain = self.waiting[:MOST]
        try:
            writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, plain)
        except RuntimeError:  # no thread can be started: the next turn's
            return
        del self.waiting[:MOST]
        self.endings, self._since = plain, time.monotonic()
        self._idle.clear()
        writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[object]) -> None:
        """What was not written, or of which nobody knows, is the next turn's: it may be written twice."""
        error = writing.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            log.error("endings could not be written beside a turn", exc_info=error)
        endings, self.endings = self.endings, []
        self._idle.set()
        self._back([] if error is None else endings)

    async def done(self) -> None:
        await self._idle.wait()


def is_plain(ending: Ending) -> bool:
    lease, outcome, took, _ = ending
    return (
        took is not None
        and took <= SHORT_MS
        and (
            outcome.ended is Ended.RETURNED or outcome.ended is Ended.FAILED
        )  # to look it up would take twice as long
        and not (lease.uses or lease.batch_id or lease.alone)
        and lease.queue != DELIVERY_QUEUE
    )

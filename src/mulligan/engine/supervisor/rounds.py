"""Turns at outlets, on a thread of their own. Those that are due together are taken in one go: each time that somebody
is woken costs an idle worker more than the look itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mulligan.engine.outlets import Outlet
from mulligan.errors import StoreUnavailable
from mulligan.store.base import Store

log = logging.getLogger("mulligan.worker")

RESPITE = 2  # times as long as a turn at an outlet took: a crowd of events must not crowd out the jobs
TOGETHER = 0.05  # seconds that one may come early


class Rounds:
    def __init__(self, outlets: Sequence[Outlet], store: Store, thread: ThreadPoolExecutor) -> None:
        self._due = {outlet.name: (outlet, 0.0) for outlet in outlets}
        self._store = store
        self._thread = thread

    async def loop(self) -> None:
        loop = asyncio.get_running_loop()
        while self._due:
            due = [outlet for outlet, at in self._due.values() if at - loop.time() < TOGETHER]
            pauses = await loop.run_in_executor(self._thread, self._take, due)
            now = loop.time()
            self._due |= {outlet.name: (outlet, now + pause) for outlet, pause in zip(due, pauses, strict=True)}
            await asyncio.sleep(max(0.0, min(at for _, at in self._due.values()) - loop.time()))
        await loop.create_future()  # nothing to do, and who ends is missed

    def _take(self, outlets: Sequence[Outlet]) -> list[float]:
        """How long each of them may rest."""
        return [self._turn(outlet) for outlet in outlets]

    def _turn(self, outlet: Outlet) -> float:
        """One that fails is tried again with the next round; the others are not its concern."""
        began = time.monotonic()
        try:
            more = outlet.turn(self._store)
        except StoreUnavailable:
            more = False
        except Exception:
            log.exception("a chore failed")
            more = False
        return RESPITE * (time.monotonic() - began) if more else outlet.every

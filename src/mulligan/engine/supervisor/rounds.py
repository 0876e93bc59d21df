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
        self._outlets = outlets
        self._due = [0.0] * len(outlets)
        self._store = store
        self._thread = thread
        self._over = False

    async def loop(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._outlets:
                due = [place for place, at in enumerate(self._due) if at - loop.time() < TOGETHER]
                pauses = await self._round(loop, [self._outlets[place] for place in due])
                for place, pause in zip(due, pauses, strict=True):
                    self._due[place] = loop.time() + pause
                await asyncio.sleep(max(0.0, min(self._due) - loop.time()))
            await loop.create_future()  # nothing to do, and who ends is missed
        finally:
            self._over = True

    async def _round(self, loop: asyncio.AbstractEventLoop, outlets: Sequence[Outlet]) -> list[float]:
        """How long each of them may rest."""
        try:
            return await loop.run_in_executor(self._thread, lambda: [self._turn(outlet) for outlet in outlets])
        except RuntimeError:  # no thread can be started
            log.exception("a chore failed")
            return [outlet.every for outlet in outlets]

    def _turn(self, outlet: Outlet) -> float:
        """One that fails is tried again with the next round; the others are not its concern."""
        began, more = time.monotonic(), False
        try:
            if not self._over:  # the store may be closed already
                more = outlet.turn(self._store)
        except StoreUnavailable:
            pass
        except Exception:
            log.exception("a chore failed")
        return RESPITE * (time.monotonic() - began) if more else outlet.every

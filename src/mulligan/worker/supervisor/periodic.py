"""Turns at outlets, on a thread that keeps its own time. Those that are due together are taken in one go: each time
that somebody is woken costs an idle worker more than the look itself.
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

# What tells the world of what happened works beside the engine, and the engine knows nothing of it but this.


class PeriodicTask(Protocol):
    name: str
    every: float  # seconds between turns while there is nothing to do

    def turn(self, store: Store) -> bool:
        """One short step, of some 20 ms at most. True: there is more to do, come again at once.

        Several workers take turns at the same time: whoever finds another at it returns False without waiting.
        """
        ...


# Turns at outlets, on a thread that keeps its own time. Those that are due together are taken in one go: each time

log = logging.getLogger("mulligan.worker")

RESPITE = (
    2  # times as long as a turn at an outlet took: a crowd of events must not crowd out the jobs
)
TOGETHER = 0.05  # seconds that one may come early
BEGIN_AGAIN = 1.0  # seconds


class Waker:
    """An outlet that only looks: what it finds is done elsewhere."""

    def __init__(
        self, name: str, every: float, look: Callable[[Store], bool], ring: Callable[[], None]
    ) -> None:
        self.name = name
        self.every = every
        self._look = look
        self._ring = ring

    def turn(self, store: Store) -> bool:
        if self._look(store):
            self._ring()
        return False


def _ended(missed: asyncio.Future[None], why: str) -> None:
    if not missed.done():
        missed.set_exception(RuntimeError(f"outlets have ended: {why}"))


class PeriodicTasks:
    def __init__(self, outlets: Sequence[PeriodicTask], store: Store) -> None:
        self._outlets = outlets
        self._due = [0.0] * len(outlets)
        self._store = store
        self._over = threading.Event()

    async def loop(self) -> None:
        """Whoever cancels it ends the rounds; nobody waits for the turn under way."""
        try:
            missed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            while self._outlets and not self._begun(missed):  # noqa: ASYNC110 - nobody tells that there is room for one
                await asyncio.sleep(BEGIN_AGAIN)
            await missed
        finally:
            self._over.set()

    def _begun(self, missed: asyncio.Future[None]) -> bool:
        try:
            threading.Thread(target=self._live, args=(missed,), name="mulligan-outlets").start()
        except RuntimeError:  # no thread can be started
            log.exception("a chore failed")
            return False
        return True

    def _live(self, missed: asyncio.Future[None]) -> None:
        try:
            self._go_round()
        except BaseException as error:  # noqa: BLE001 - a thread that ends in silence would be missed by nobody
            with contextlib.suppress(RuntimeError):  # the loop is gone
                missed.get_loop().call_soon_threadsafe(_ended, missed, repr(error))

    def _go_round(self) -> None:
        while not self._over.is_set():
            now = time.monotonic()
            for place in [place for place, at in enumerate(self._due) if at - now < TOGETHER]:
                self._due[place] = self._turn(self._outlets[place]) + time.monotonic()
            self._over.wait(max(0.0, min(self._due) - time.monotonic()))

    def _turn(self, outlet: PeriodicTask) -> float:
        """How long it may rest. One that fails is tried again with the next round; the others are not its concern."""
        began, more = time.monotonic(), False
        try:
            if not self._over.is_set():  # the store may be closed already
                more = outlet.turn(self._store)
        except StoreUnavailable:
            pass
        except Exception:
            log.exception("a chore failed")
        return RESPITE * (time.monotonic() - began) if more else outlet.every

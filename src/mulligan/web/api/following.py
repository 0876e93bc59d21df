"""A thread that follows the event log and hands on what is new; another one hears hints that something is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from mulligan.event import Event
from mulligan.store import Store

log = logging.getLogger("mulligan.web")

PAGE = 500
POLL = 0.5  # seconds without a hint
AGAIN = 1.0  # seconds until a database that is away is asked again

HandOn = Callable[[Sequence[Event], int], None]


class Following:
    """From what is newest now. `hand_on` and `lost` are called on the loop that made it."""

    def __init__(self, store: Callable[[], Store], hand_on: HandOn, lost: Callable[[], None]) -> None:
        self.ready = asyncio.Event()
        self._store, self._hand_on, self._lost = store, hand_on, lost
        self._loop = asyncio.get_running_loop()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._cursor: int | None = None
        self._known: Store | None = None
        for name, work in (("reader", self._read), ("hints", self._listen)):
            threading.Thread(target=work, name=f"mulligan-events-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    # -- the log ------------------------------------------------------------------------------------
    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                more = self._step()
            except RuntimeError:  # the loop is gone, and with it everybody who listened
                return
            except Exception:
                log.debug("cannot read events", exc_info=True)
                self._stop.wait(AGAIN)
                continue
            if not more:
                self._wake.wait(POLL)
                self._wake.clear()

    def _step(self) -> bool:
        store = self._store()
        if self._known is not None and store is not self._known:
            self._cursor = None
            self._loop.call_soon_threadsafe(self._lost)  # another database has this name now
        self._known = store
        with store.read() as unit:
            begun = self._cursor is not None
            cursor = self._cursor if self._cursor is not None else unit.newest_event()
            events = unit.events_after(cursor, PAGE)
        self._cursor = events[-1].id if events else cursor
        if events or not begun:
            self._loop.call_soon_threadsafe(self._told, events, self._cursor)
        return len(events) == PAGE

    def _told(self, events: Sequence[Event], cursor: int) -> None:
        if not self._stop.is_set():
            self._hand_on(events, cursor)
            self.ready.set()

    # -- hints --------------------------------------------------------------------------------------
    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._store().watch(self._wake.set, self._stop)
            except Exception:
                log.debug("cannot hear hints", exc_info=True)
                self._stop.wait(AGAIN)

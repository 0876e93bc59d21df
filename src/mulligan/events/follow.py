"""Following the event log: one reader per process serves all followers.

A follower that starts in the past or falls behind reads the log page by page. Near the end the
reader passes it new events, and no event falls between the two.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mulligan.core.event import Event
from mulligan.events.queries import EventQueries
from mulligan.storage.base import Store

log = logging.getLogger("mulligan.events")

PAGE_SIZE = 500
POLL_INTERVAL = 0.5  # seconds, if no hint arrives
RETRY_DELAY = 1.0  # seconds after a database error

# --- The reader ---

EventPredicate = Callable[[Event], bool]
Publish = Callable[[Sequence[Event], int], None]


class LogReader:
    """Reads new events on a thread, and listens for hints on another one.

    It starts at the newest event. `publish` gets events and the position after them; the first call
    may have no events.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        publish: Publish,
        on_database_change: Callable[[], None],
    ) -> None:
        self._open_store = open_store
        self._publish = publish
        self._on_database_change = on_database_change
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._cursor: int | None = None
        self._store: Store | None = None
        for name, work in (("reader", self._read), ("hints", self._listen)):
            threading.Thread(target=work, name=f"mulligan-events-{name}", daemon=True).start()

    def stop(self) -> None:
        """Stop both threads soon. Nothing is published after this call."""
        self._stop.set()
        self._wake.set()

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                more = self._read_page()
            except Exception:
                log.debug("cannot read events", exc_info=True)
                self._stop.wait(RETRY_DELAY)
                continue
            if not more:
                self._wake.wait(POLL_INTERVAL)
                self._wake.clear()

    def _read_page(self) -> bool:
        """Read and publish one page. Return whether there is more."""
        store = self._open_store()
        if self._store is not None and store is not self._store:
            # The database was replaced: the positions of all followers are void.
            self._cursor = None
            self._on_database_change()
        self._store = store
        is_first = self._cursor is None
        with store.read() as tx:
            cursor = EventQueries(tx).newest_event() if self._cursor is None else self._cursor
            events = EventQueries(tx).list_events_after(cursor, PAGE_SIZE)
            events = EventQueries(tx).add_kinds(events)
        self._cursor = events[-1].id if events else cursor
        if (events or is_first) and not self._stop.is_set():
            self._publish(events, self._cursor)
        return len(events) == PAGE_SIZE

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._open_store().watch(self._wake.set, self._stop)
            except Exception:
                log.debug("cannot listen for hints", exc_info=True)
                self._stop.wait(RETRY_DELAY)


# --- Followers: app.events.follow ---

MAX_PENDING = 2000  # events that wait for a slow follower before it must read them from the log
ID_WAIT = 2.0  # seconds until a cursor above the newest event counts as one of another database
ID_POLL = 0.25
GAP = "gap"
HEARTBEAT = "heartbeat"


class FollowerHub:
    """Passes new events to all followers of this process. Reads the log once for all of them."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self.store = store
        self._lock = threading.Lock()
        # Followers by filter, so that each filter runs once per event.
        self._by_filter: dict[EventPredicate, set[Follower]] = {}
        self._reader: LogReader | None = None
        self._started = threading.Event()  # the reader knows its position
        self._cursor = 0  # the newest event that was published

    def attach(self, follower: Follower, store: Store) -> int:
        """Pass events to a follower from now on.

        Return the last event published before: the follower must read the log up to there itself.
        """
        with self._lock:
            if self._reader is None:
                self._started = threading.Event()
                publish = partial(self._publish, self._started)
                self._reader = LogReader(lambda: store, publish, self.end_all)
            started = self._started
        while not started.wait(RETRY_DELAY) and not follower.ended:
            pass
        with self._lock:
            self._by_filter.setdefault(follower.matches, set()).add(follower)
            follower.restart()
            return self._cursor

    def detach(self, follower: Follower) -> None:
        """Pass no more events to a follower. The last one stops the reader."""
        with self._lock:
            followers = self._by_filter.get(follower.matches, set())
            followers.discard(follower)
            if not followers:
                self._by_filter.pop(follower.matches, None)
            if not self._by_filter and self._reader is not None:
                self._reader.stop()
                self._reader = None

    def end_all(self) -> None:
        """End all followers: their iteration stops."""
        with self._lock:
            followers = [one for group in self._by_filter.values() for one in group]
        for follower in followers:
            follower.end()

    def close(self) -> None:
        """End all followers and stop the reader."""
        self.end_all()
        with self._lock:
            self._by_filter.clear()
            if self._reader is not None:
                self._reader.stop()
                self._reader = None

    def _publish(self, started: threading.Event, events: Sequence[Event], cursor: int) -> None:
        with self._lock:
            if started is not self._started:
                return  # of a reader that was stopped
            self._cursor = cursor
            started.set()
            for matches, followers in self._by_filter.items():
                found = [event for event in events if matches(event)]
                if found:
                    for follower in followers:
                        follower.offer(found)


class Follower:
    """Position of one iteration in the log, and the new events that wait for it."""

    def __init__(
        self,
        hub: FollowerHub,
        matches: EventPredicate,
        after: int | None,
        wake: Callable[[], None],
    ) -> None:
        self.matches = matches
        self.ended = False
        self._hub = hub
        # Kept from the first read on: a thread that still reads while the app is closed must not
        # open the database again.
        self._store: Store | None = None
        self._after = after
        self._wake = wake
        self._pending: deque[Event] = deque()
        self._overflowed = True  # must read the log; so does a new follower
        self._cursor: int | None = None
        self._target = 0  # the log must be read up to here

    @property
    def is_live(self) -> bool:
        """True if `drain` has all further events: the log was read as far as needed."""
        is_behind = self._cursor is None or self._cursor < self._target
        return not is_behind and not self._overflowed

    # --- Called by the hub, under its lock ---

    def restart(self) -> None:
        """Forget waiting events: they are read from the log."""
        self._pending.clear()
        self._overflowed = False

    def offer(self, events: Sequence[Event]) -> None:
        """Queue events. If too many wait, queue no more: the log has them."""
        if len(self._pending) + len(events) > MAX_PENDING:
            self._overflowed = True
        if not self._overflowed:
            self._pending.extend(events)
        self._wake()

    def end(self) -> None:
        """Let the iteration stop."""
        self.ended = True
        self._wake()

    # --- Called by the iteration ---

    def read(self) -> list[Event]:
        """Read the next page of the log. Waits for the database."""
        try:
            store = self._store = self._store or self._hub.store()
            if self._cursor is None:
                return self._start(store)
            if self._overflowed:
                self._target = self._hub.attach(self, store)
            return self._read_page(store, self._cursor)
        except Exception:
            log.debug("cannot read events", exc_info=True)
            time.sleep(RETRY_DELAY)
            return []

    def drain(self) -> list[Event]:
        """Return the new events that wait, without those that were read from the log."""
        events = []
        while self._pending:
            event = self._pending.popleft()
            if event.id > (self._cursor or 0):
                self._cursor = event.id
                events.append(event)
        return events

    def heartbeat(self) -> Event:
        """Return what follows a time without events."""
        return _local_event(HEARTBEAT, self._cursor or 0, {})

    def close(self) -> None:
        """Release the follower."""
        self.end()
        self._hub.detach(self)

    def _start(self, store: Store) -> list[Event]:
        """Find the position to start at. Return a gap if the log does not have it any more."""
        pruned, newest = _id_range(store)
        after = newest if self._after is None else self._after
        give_up_at = time.monotonic() + ID_WAIT
        # Ids commit out of order: the newest visible id can be below one that a client has.
        while after > newest and time.monotonic() < give_up_at:
            time.sleep(ID_POLL)
            pruned, newest = _id_range(store)
        self._cursor = after
        if self._after is not None and after < pruned:
            return [_local_event(GAP, pruned, {"after": after, "why": "older than retention"})]
        if after > newest:
            self._cursor = newest
            return [_local_event(GAP, newest, {"after": after, "why": "not of this database"})]
        return []

    def _read_page(self, store: Store, cursor: int) -> list[Event]:
        with store.read() as tx:
            page = EventQueries(tx).read_page(cursor, PAGE_SIZE)
        self._cursor = max(cursor, page.cursor)
        if page.is_last:
            self._cursor = max(self._cursor, self._target)
        return [event for event in page.events if self.matches(event)]


def _id_range(store: Store) -> tuple[int, int]:
    """Return the last pruned and the newest event of the log."""
    with store.read() as tx:
        queries = EventQueries(tx)
        return queries.pruned_event_id(), queries.newest_event()


def _local_event(event_type: str, event_id: int, data: Mapping[str, Any]) -> Event:
    """Return an event that is not in the log: its id is the position to resume at."""
    at = time.time_ns() // 1000
    return Event(event_id, at, event_type, None, None, "", None, None, "", data)


def follow(
    hub: FollowerHub, matches: EventPredicate, after: int | None, heartbeat: float | None
) -> Iterator[Event]:
    """Yield events from the log and then as they happen, until the iteration is closed."""
    ready = threading.Event()
    follower = Follower(hub, matches, after, ready.set)
    try:
        while not follower.ended:
            if not follower.is_live:
                yield from follower.read()
            else:
                yield from follower.drain()
            if not follower.is_live:
                continue
            if not ready.wait(heartbeat):
                yield follower.heartbeat()
            ready.clear()
    finally:
        follower.close()


async def follow_async(
    hub: FollowerHub, matches: EventPredicate, after: int | None, heartbeat: float | None
) -> AsyncIterator[Event]:
    """Yield events like `follow`. A follower that waits for new ones occupies no thread."""
    import asyncio  # noqa: PLC0415 - commands that only read start faster without it

    loop = asyncio.get_running_loop()
    ready = asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(ready.set)

    follower = Follower(hub, matches, after, wake)
    try:
        while not follower.ended:
            is_live = follower.is_live
            events = follower.drain() if is_live else await asyncio.to_thread(follower.read)
            for event in events:
                yield event
            if not follower.is_live:
                continue
            try:
                async with asyncio.timeout(heartbeat):
                    await ready.wait()
            except TimeoutError:
                yield follower.heartbeat()
            ready.clear()
    finally:
        follower.close()

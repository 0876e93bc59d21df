"""One reader of the event log for all streams of this process.

No stream holds a connection: the hub reads what is new and hands it on; a stream that comes late or falls behind reads
from the log, page by page, until it has caught up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mulligan.config import WebSection
from mulligan.core.event import Event
from mulligan.core.job import State
from mulligan.failures.redact import scrub
from mulligan.http.api.problems import Problem
from mulligan.http.api.serialize import event_shape
from mulligan.http.services import Threads
from mulligan.storage import Store
from mulligan.storage.base import Transaction

# Server-sent events, as bytes. Only what is in the log has an `id:`, so that nobody resumes where nothing was.

RETRY = b"retry: 2000\n\n"
BEAT = b": still here\n\n"
_LINES = re.compile(r"\r\n|\r|\n")


def frame(event: str, data: Mapping[str, Any], number: int | None = None) -> bytes:
    """One frame, whatever is in the data: a line break in it begins another line of data, never another field."""
    lines = [] if number is None else [f"id: {number}"]
    lines.append(f"event: {_one_line(event)}")
    lines += [
        f"data: {line}"
        for line in _LINES.split(json.dumps(data, separators=(",", ":"), default=str))
    ]
    return ("\n".join(lines) + "\n\n").encode()


def _one_line(text: str) -> str:
    return _LINES.sub(" ", text).replace("\x00", "")


class SharedEvent:
    """An event on its way to many: written out once for each half, at most."""

    __slots__ = ("_frames", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._frames: dict[bool, bytes] = {}

    def frame(self, *, private: bool) -> bytes:
        if private not in self._frames:
            self._frames[private] = frame(
                self.event.type, event_shape(self.event, private=private), self.event.id
            )
        return self._frames[private]


# A thread that follows the event log and hands on what is new; another one hears hints that something is.

log = logging.getLogger("mulligan.http")

PAGE = 500
POLL = 0.5  # seconds without a hint
AGAIN = 1.0  # seconds until a database that is away is asked again

HandOn = Callable[[Sequence[Event], int], None]


class Following:
    """From what is newest now. `hand_on` and `lost` are called on the loop that made it."""

    def __init__(
        self, store: Callable[[], Store], hand_on: HandOn, lost: Callable[[], None]
    ) -> None:
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


# One reader of the event log for all streams of this process.

T = TypeVar("T")

Progress = dict[str, tuple[float | None, str]]


ROOM = 2000  # events that may wait for a slow client before it has to read them from the log
THREADS = 2
KEYS_EVERY = 15.0  # seconds between looks whether keys still hold
PROGRESS_EVERY = 1.0  # seconds
FOLLOWED = 500  # jobs at a time


class Listener:
    """One stream's end of the hub."""

    def __init__(
        self,
        key: str,
        owner: str | None,
        wanted: Callable[[Event], bool],
        jobs: tuple[str, ...] = (),
        session: str = "",
    ) -> None:
        self.key = key
        self.session = session  # the hash of a visitor's; empty: who listens has none
        self.owner = owner
        self.wanted = wanted
        self.jobs = jobs  # whose progress it follows
        self.waiting: deque[SharedEvent | bytes] = deque()
        self.behind = False  # too much waited: what comes is not kept, it is in the log
        self.news = asyncio.Event()
        self.over = asyncio.Event()

    @property
    def holder(self) -> str:
        return self.key or self.session

    def offer(self, told: SharedEvent | bytes) -> None:
        if self.behind:
            return
        if len(self.waiting) >= ROOM:
            self.waiting.clear()
            self.behind = True
        else:
            self.waiting.append(told)
        self.news.set()

    def end(self) -> None:
        self.over.set()


class Hub:
    def __init__(self, store: Callable[[], Store], limits: WebSection) -> None:
        self.store = store
        self._limits = limits
        self._streams: Counter[str] = Counter()  # by key; also those that are still catching up
        self._owners: Counter[str | None] = Counter()
        self._listeners: set[Listener] = set()
        self._alike: dict[Callable[[Event], bool], set[Listener]] = {}  # who wants the same
        self._open: set[Listener] = set()
        self._threads = Threads("mulligan-streams", THREADS)
        self._reader: Following | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.cursor = 0  # up to here all has been handed on
        self._closed = False

    # -- who is there -------------------------------------------------------------------------------
    def enter(self, listener: Listener) -> None:
        """Counted from the first moment on; whoever enters leaves."""
        if self._closed or self._streams.total() >= self._limits.streams:
            raise Problem(
                503, "TOO_MANY_STREAMS", "this server has all the streams it takes", retryable=True
            )
        self._check(self._streams[listener.holder], "streams_per_key", "this key has")
        if listener.owner is not None:
            self._check(
                self._owners[listener.owner], "streams_per_owner", "the keys of this owner have"
            )
        self._streams[listener.holder] += 1
        self._owners[listener.owner] += 1
        self._open.add(listener)
        if not self._tasks:
            self._tasks = [asyncio.create_task(each()) for each in (self._keep, self._progress)]

    def _check(self, has: int, setting: str, who: str) -> None:
        most = getattr(self._limits, setting)
        if has >= most:
            words = f"{who} {most} streams open, as many as they may be (web.{setting})"
            raise Problem(429, "TOO_MANY_STREAMS", words, retryable=True)

    def leave(self, listener: Listener) -> None:
        self.unhook(listener)
        if listener in self._open:
            self._open.discard(listener)
            _less(self._streams, listener.holder)
            _less(self._owners, listener.owner)
        if not self._open:
            self._stop()

    async def hook(self, listener: Listener) -> int:
        """From now on it hears; what the hub handed on before, up to the number that is returned, it must read."""
        if self._reader is None:
            self._reader = Following(self.store, self.hand_on, self.end_all)
        await self._reader.ready.wait()
        listener.behind = False
        listener.waiting.clear()
        self._listeners.add(listener)
        self._alike.setdefault(listener.wanted, set()).add(listener)
        return self.cursor

    def unhook(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        alike = self._alike.get(listener.wanted, set())
        alike.discard(listener)
        if not alike:
            self._alike.pop(listener.wanted, None)

    # -- what they hear -----------------------------------------------------------------------------
    def hand_on(self, events: Sequence[Event], cursor: int) -> None:
        self.cursor = cursor
        for event in events:
            told = SharedEvent(event)
            for wanted, listeners in self._alike.items():
                if wanted(event):
                    for listener in listeners:
                        listener.offer(told)

    async def page(self, cursor: int) -> list[Event]:
        return await self._ask(lambda unit: unit.events_after(cursor, PAGE))

    async def ends(self) -> tuple[int, int]:
        """(up to where only what people did is left, the newest id)."""
        return await self._ask(lambda unit: (unit.events_floor(), unit.newest_event()))

    async def _ask(self, look: Callable[[Transaction], T]) -> T:
        def ask() -> T:
            with self.store().read() as unit:
                return look(unit)

        return await self._threads.ask(ask)

    # -- whose keys still hold ----------------------------------------------------------------------
    async def _keep(self) -> None:
        while self._open:
            await asyncio.sleep(KEYS_EVERY)
            await self.look_at_keys()

    async def look_at_keys(self) -> None:
        """End the streams of keys that are revoked or expired and of visitors who have signed out.

        While the database is away nobody can tell.
        """
        keys = {listener.key for listener in self._open if listener.key}
        sessions = {listener.session for listener in self._open if listener.session}
        try:
            valid = await self._ask(lambda unit: _valid(unit, keys) | _signed_in(unit, sessions))
        except Exception:
            log.debug("cannot look at keys", exc_info=True)
            return
        for listener in list(self._open):
            if {listener.key, listener.session} & ((keys | sessions) - valid):
                listener.end()

    # -- how far jobs are ---------------------------------------------------------------------------
    async def _progress(self) -> None:
        """What is no event: the last value of each running job that somebody follows, when it has changed."""
        last: Progress = {}
        while self._open:
            await asyncio.sleep(PROGRESS_EVERY)
            followed = sorted({job for listener in self._listeners for job in listener.jobs})[
                :FOLLOWED
            ]
            last = await self._tell_progress(followed, last) if followed else {}

    async def _tell_progress(self, followed: Sequence[str], last: Progress) -> Progress:
        try:
            rows = await self._ask(lambda unit: [unit.get(job) for job in followed])
        except Exception:
            log.debug("cannot look at progress", exc_info=True)
            return last
        found = {row.id: row for row in rows if row is not None and row.state == State.RUNNING}
        now: Progress = {job: (row.progress, row.progress_message) for job, row in found.items()}
        for job, row in found.items():
            if row.progress is None or now[job] == last.get(job):
                continue
            data = {"job_id": job, "progress": row.progress, "message": scrub(row.progress_message)}
            self._hand_to(job, row.owner, frame("job.progress", data))
        return now

    def _hand_to(self, job: str, owner: str, told: bytes) -> None:
        for listener in self._listeners:
            if job in listener.jobs and listener.owner in (None, owner):
                listener.offer(told)

    # -- the end ------------------------------------------------------------------------------------
    def end_all(self) -> None:
        """Who listens is told to come again."""
        for listener in list(self._open):
            listener.end()

    def _stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def close(self) -> None:
        """No stream begins any more, and those that are open end now."""
        self._closed = True
        self.end_all()
        if self._reader is not None:
            self._reader.stop()
        self._threads.close()


def _valid(unit: Transaction, keys: set[str]) -> set[str]:
    now = unit.now()
    rows = [row for row in map(unit.api_key, sorted(keys)) if row is not None]
    return {
        row.id
        for row in rows
        if row.revoked_at is None and (row.expires_at is None or row.expires_at > now)
    }


def _signed_in(unit: Transaction, sessions: set[str]) -> set[str]:
    return {session for session in sessions if unit.session(session) is not None}


def _less(counter: Counter[T], name: T) -> None:
    """What nobody has any more is forgotten."""
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]

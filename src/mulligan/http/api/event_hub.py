"""Server-sent events: one reader of the event log for all streams of this process.

No stream holds a database connection. The hub reads new events and passes them to its listeners. A
stream that starts in the past or falls behind reads the log page by page until it has caught up.
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

from mulligan.access.queries import AccessQueries
from mulligan.config import WebSection
from mulligan.core.event import Event
from mulligan.core.job import State
from mulligan.events.queries import EventQueries
from mulligan.failures.redact import scrub
from mulligan.http.api.problems import Problem
from mulligan.http.api.serialize import event_to_json
from mulligan.http.services import DatabaseThreads
from mulligan.jobs.queries import JobQueries
from mulligan.storage import Store
from mulligan.storage.base import Transaction

# --- Frames ---
# Only events of the log have an `id:` line, so that a client never resumes at a position that the
# log does not have.

RETRY_FRAME = b"retry: 2000\n\n"
HEARTBEAT_FRAME = b": still here\n\n"
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


def frame(event: str, data: Mapping[str, Any], number: int | None = None) -> bytes:
    """Encode one server-sent event. Line breaks in the data cannot start another field."""
    lines = [] if number is None else [f"id: {number}"]
    lines.append(f"event: {_one_line(event)}")
    text = json.dumps(data, separators=(",", ":"), default=str)
    lines += [f"data: {line}" for line in _LINE_BREAK.split(text)]
    return ("\n".join(lines) + "\n\n").encode()


def _one_line(text: str) -> str:
    return _LINE_BREAK.sub(" ", text).replace("\x00", "")


class SharedEvent:
    """An event for many streams. Each of its two frames, public and private, is encoded once."""

    __slots__ = ("_frames", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._frames: dict[bool, bytes] = {}

    def frame(self, *, private: bool) -> bytes:
        if private not in self._frames:
            data = event_to_json(self.event, private=private)
            self._frames[private] = frame(self.event.type, data, self.event.id)
        return self._frames[private]


# --- Following the log ---

log = logging.getLogger("mulligan.http")

PAGE_SIZE = 500
POLL_INTERVAL = 0.5  # seconds, if no hint arrives
RETRY_DELAY = 1.0  # seconds after a database error

Publish = Callable[[Sequence[Event], int], None]


class EventFollower:
    """Reads new events on a thread, and listens for hints on another one.

    It starts at the newest event. `publish` and `on_database_change` are called on the event loop.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        publish: Publish,
        on_database_change: Callable[[], None],
    ) -> None:
        self.ready = asyncio.Event()
        self._open_store = open_store
        self._publish = publish
        self._on_database_change = on_database_change
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._cursor: int | None = None
        self._store: Store | None = None
        for name, work in (("reader", self._read), ("hints", self._listen)):
            threading.Thread(target=work, name=f"mulligan-events-{name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                more = self._read_page()
            except RuntimeError:  # the event loop is closed
                return
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
            # The database was replaced: the positions of all streams are void.
            self._cursor = None
            self._loop.call_soon_threadsafe(self._on_database_change)
        self._store = store
        is_first = self._cursor is None
        with store.read() as tx:
            cursor = EventQueries(tx).newest_event() if self._cursor is None else self._cursor
            events = EventQueries(tx).list_events_after(cursor, PAGE_SIZE)
        self._cursor = events[-1].id if events else cursor
        if events or is_first:
            self._loop.call_soon_threadsafe(self._deliver, events, self._cursor)
        return len(events) == PAGE_SIZE

    def _deliver(self, events: Sequence[Event], cursor: int) -> None:
        if not self._stop.is_set():
            self._publish(events, cursor)
            self.ready.set()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                self._open_store().watch(self._wake.set, self._stop)
            except Exception:
                log.debug("cannot listen for hints", exc_info=True)
                self._stop.wait(RETRY_DELAY)


# --- The hub ---

T = TypeVar("T")

Progress = dict[str, tuple[float | None, str]]

MAX_PENDING = 2000  # frames that wait for a slow client before it must read them from the log
THREADS = 2
KEY_CHECK_INTERVAL = 15.0  # seconds
PROGRESS_INTERVAL = 1.0  # seconds
MAX_FOLLOWED_JOBS = 500


class Listener:
    """The queue between the hub and one stream."""

    def __init__(
        self,
        key: str,
        owner: str | None,
        matches: Callable[[Event], bool],
        jobs: tuple[str, ...] = (),
        session: str = "",
    ) -> None:
        self.key = key
        self.session = session  # hash of a dashboard session; empty for API streams
        self.owner = owner
        self.matches = matches
        self.jobs = jobs  # jobs whose progress it follows
        self.pending: deque[SharedEvent | bytes] = deque()
        self.overflowed = False  # too many were pending: the stream must read the log
        self.available = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def holder(self) -> str:
        """The key or the session that the stream is counted against."""
        return self.key or self.session

    def offer(self, item: SharedEvent | bytes) -> None:
        """Queue an event or a frame. If too many wait, drop them all and mark the overflow."""
        if self.overflowed:
            return
        if len(self.pending) >= MAX_PENDING:
            self.pending.clear()
            self.overflowed = True
        else:
            self.pending.append(item)
        self.available.set()

    def end(self) -> None:
        self.ended.set()


class EventHub:
    """Passes events to the streams of this process, and enforces their limits."""

    def __init__(self, store: Callable[[], Store], limits: WebSection) -> None:
        self.store = store
        self._limits = limits
        self._open: set[Listener] = set()  # registered, including those that are catching up
        self._streams: Counter[str] = Counter()  # of _open, by key or session
        self._owners: Counter[str | None] = Counter()  # of _open, by owner
        self._attached: set[Listener] = set()
        # Listeners by filter, so that each filter runs once per event.
        self._by_filter: dict[Callable[[Event], bool], set[Listener]] = {}
        self._threads = DatabaseThreads("mulligan-streams", THREADS)
        self._follower: EventFollower | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.cursor = 0  # the newest event that was published
        self._closed = False

    # --- Streams ---

    def register(self, listener: Listener) -> None:
        """Count a new stream against the limits. Every registered stream must be unregistered."""
        if self._closed or self._streams.total() >= self._limits.streams:
            detail = "this server has reached its maximum of open streams (web.streams)"
            raise Problem(503, "TOO_MANY_STREAMS", detail, retryable=True)
        self._check_limit(self._streams[listener.holder], "streams_per_key", "this key has")
        if listener.owner is not None:
            count = self._owners[listener.owner]
            self._check_limit(count, "streams_per_owner", "the keys of this owner have")
        self._streams[listener.holder] += 1
        self._owners[listener.owner] += 1
        self._open.add(listener)
        if not self._tasks:
            works = (self._check_keys, self._publish_progress)
            self._tasks = [asyncio.create_task(work()) for work in works]

    def _check_limit(self, count: int, setting: str, subject: str) -> None:
        limit = getattr(self._limits, setting)
        if count >= limit:
            detail = f"{subject} {limit} open streams, the maximum (web.{setting})"
            raise Problem(429, "TOO_MANY_STREAMS", detail, retryable=True)

    def unregister(self, listener: Listener) -> None:
        self.detach(listener)
        if listener in self._open:
            self._open.discard(listener)
            _decrement(self._streams, listener.holder)
            _decrement(self._owners, listener.owner)
        if not self._open:
            self._stop()

    async def attach(self, listener: Listener) -> int:
        """Start passing events to a listener.

        Return the last event published before: the stream must read the log up to there itself.
        """
        if self._follower is None:
            self._follower = EventFollower(self.store, self.publish, self.end_all)
        await self._follower.ready.wait()
        listener.overflowed = False
        listener.pending.clear()
        self._attached.add(listener)
        self._by_filter.setdefault(listener.matches, set()).add(listener)
        return self.cursor

    def detach(self, listener: Listener) -> None:
        self._attached.discard(listener)
        listeners = self._by_filter.get(listener.matches, set())
        listeners.discard(listener)
        if not listeners:
            self._by_filter.pop(listener.matches, None)

    # --- Events ---

    def publish(self, events: Sequence[Event], cursor: int) -> None:
        """Pass new events to all attached listeners whose filter matches."""
        self.cursor = cursor
        for event in events:
            shared = SharedEvent(event)
            for matches, listeners in self._by_filter.items():
                if matches(event):
                    for listener in listeners:
                        listener.offer(shared)

    async def page(self, cursor: int) -> list[Event]:
        """Read a page of events after `cursor` from the log."""
        return await self._read(lambda tx: EventQueries(tx).list_events_after(cursor, PAGE_SIZE))

    async def id_range(self) -> tuple[int, int]:
        """Return (the id up to which retention has removed events, the newest id)."""
        return await self._read(
            lambda tx: (EventQueries(tx).pruned_event_id(), EventQueries(tx).newest_event())
        )

    async def _read(self, query: Callable[[Transaction], T]) -> T:
        def work() -> T:
            with self.store().read() as tx:
                return query(tx)

        return await self._threads.run(work)

    # --- Revoked keys ---

    async def _check_keys(self) -> None:
        while self._open:
            await asyncio.sleep(KEY_CHECK_INTERVAL)
            await self.end_revoked_streams()

    async def end_revoked_streams(self) -> None:
        """End the streams of revoked or expired keys and of ended sessions.

        If the database does not answer, the streams stay open until the next check.
        """
        keys = {listener.key for listener in self._open if listener.key}
        sessions = {listener.session for listener in self._open if listener.session}
        try:
            valid = await self._read(
                lambda tx: _valid_keys(tx, keys) | _valid_sessions(tx, sessions)
            )
        except Exception:
            log.debug("cannot check keys", exc_info=True)
            return
        invalid = (keys | sessions) - valid
        for listener in list(self._open):
            if {listener.key, listener.session} & invalid:
                listener.end()

    # --- Progress ---

    async def _publish_progress(self) -> None:
        """Send changed progress of followed running jobs. Progress is not an event of the log."""
        last: Progress = {}
        while self._open:
            await asyncio.sleep(PROGRESS_INTERVAL)
            followed = {job for listener in self._attached for job in listener.jobs}
            if followed:
                last = await self._send_progress(sorted(followed)[:MAX_FOLLOWED_JOBS], last)
            else:
                last = {}

    async def _send_progress(self, followed: Sequence[str], last: Progress) -> Progress:
        try:
            rows = await self._read(lambda tx: [JobQueries(tx).get_job(job) for job in followed])
        except Exception:
            log.debug("cannot read progress", exc_info=True)
            return last
        running = {row.id: row for row in rows if row is not None and row.state == State.RUNNING}
        current: Progress = {
            job: (row.progress, row.progress_message) for job, row in running.items()
        }
        for job, row in running.items():
            if row.progress is None or current[job] == last.get(job):
                continue
            data = {"job_id": job, "progress": row.progress, "message": scrub(row.progress_message)}
            self._offer_progress(job, row.owner, frame("job.progress", data))
        return current

    def _offer_progress(self, job: str, owner: str, chunk: bytes) -> None:
        for listener in self._attached:
            if job in listener.jobs and listener.owner in (None, owner):
                listener.offer(chunk)

    # --- Shutdown ---

    def end_all(self) -> None:
        """End all streams. Clients reconnect by themselves."""
        for listener in list(self._open):
            listener.end()

    def _stop(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def close(self) -> None:
        """End all streams and refuse new ones."""
        self._closed = True
        self.end_all()
        if self._follower is not None:
            self._follower.stop()
        self._threads.close()


def _valid_keys(tx: Transaction, keys: set[str]) -> set[str]:
    now = tx.now()
    valid = set()
    for key in sorted(keys):
        row = AccessQueries(tx).get_api_key(key)
        if row is None or row.revoked_at is not None:
            continue
        if row.expires_at is None or row.expires_at > now:
            valid.add(row.id)
    return valid


def _valid_sessions(tx: Transaction, sessions: set[str]) -> set[str]:
    return {session for session in sessions if AccessQueries(tx).get_session(session) is not None}


def _decrement(counter: Counter[T], name: T) -> None:
    """Decrement a counter and drop it at zero, so that the counters do not grow forever."""
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]

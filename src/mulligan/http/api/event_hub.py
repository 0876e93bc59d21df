"""Server-sent events: one reader of the event log for all streams of this process.

No stream holds a database connection. The hub reads new events and passes them to its listeners. A
stream that starts in the past or falls behind reads the log page by page until it has caught up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mulligan.access.queries import AccessQueries
from mulligan.config import WebSection
from mulligan.core.event import Event
from mulligan.core.job import JobRow, State
from mulligan.events.follow import PAGE_SIZE, LogReader
from mulligan.events.queries import EventPage, EventQueries
from mulligan.failures.redact import scrub
from mulligan.http.api.responses import Problem, event_to_json
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


# --- The hub ---

log = logging.getLogger("mulligan.http")

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
        holder: str = "",
    ) -> None:
        self.key = key
        self.session = session  # hash of a dashboard session; empty for API streams
        # The key, session or user of the site around us that the stream is counted against.
        self.holder = holder or key or session
        self.owner = owner
        self.matches = matches
        self.jobs = jobs  # jobs whose progress it follows
        self.pending: deque[SharedEvent | bytes] = deque()
        self.overflowed = False  # too many were pending: the stream must read the log
        self.available = asyncio.Event()
        self.ended = asyncio.Event()

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
        self._threads = DatabaseThreads("mulligan-streams", THREADS, per_holder=1)
        self._reader: LogReader | None = None
        self._ready = asyncio.Event()  # the reader knows its position
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
        if self._reader is None:
            self._reader = self._start_reader()
        await self._ready.wait()
        listener.overflowed = False
        listener.pending.clear()
        self._attached.add(listener)
        self._by_filter.setdefault(listener.matches, set()).add(listener)
        return self.cursor

    def _start_reader(self) -> LogReader:
        """Start reading the log. What the reader's thread calls runs on the event loop."""
        loop = asyncio.get_running_loop()
        ready = self._ready = asyncio.Event()

        def publish(events: Sequence[Event], cursor: int) -> None:
            call_on_loop(self._publish_current, ready, events, cursor)

        def call_on_loop(function: Callable[..., None], *args: Any) -> None:
            try:
                loop.call_soon_threadsafe(function, *args)
            except RuntimeError:  # the event loop is closed
                self._stop_reader()

        return LogReader(self.store, publish, lambda: call_on_loop(self.end_all))

    def _publish_current(self, ready: asyncio.Event, events: Sequence[Event], cursor: int) -> None:
        """Publish what the current reader has read; not what one that was stopped has."""
        if ready is self._ready:
            self.publish(events, cursor)
            ready.set()

    def _stop_reader(self) -> None:
        self._ready = asyncio.Event()
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

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

    async def page(self, listener: Listener, cursor: int) -> EventPage:
        """Read a page of events after `cursor` from the log, only those of the listener's owner.

        Streams of one key or owner read one page at a time, so that others are not delayed.
        """
        holder = listener.owner or listener.holder
        return await self._read(
            lambda tx: EventQueries(tx).read_page(cursor, PAGE_SIZE, listener.owner), holder
        )

    async def id_range(self) -> tuple[int, int]:
        """Return (the id up to which retention has removed events, the newest id)."""
        return await self._read(
            lambda tx: (EventQueries(tx).pruned_event_id(), EventQueries(tx).newest_event())
        )

    async def _read(self, query: Callable[[Transaction], T], holder: str = "") -> T:
        def work() -> T:
            with self.store().read() as tx:
                return query(tx)

        return await self._threads.run(work, holder=holder)

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
            followed: set[str] = set()
            for listener in self._attached:
                followed.update(listener.jobs)
            if followed:
                last = await self._send_progress(sorted(followed)[:MAX_FOLLOWED_JOBS], last)
            else:
                last = {}

    async def _send_progress(self, followed: Sequence[str], last: Progress) -> Progress:
        def read(tx: Transaction) -> list[JobRow | None]:
            return [JobQueries(tx).get_job(job) for job in followed]

        try:
            rows = await self._read(read)
        except Exception:
            log.debug("cannot read progress", exc_info=True)
            return last
        current: Progress = {}
        for row in rows:
            if row is None or row.state != State.RUNNING:
                continue
            current[row.id] = (row.progress, row.progress_message)
            if row.progress is None or current[row.id] == last.get(row.id):
                continue
            message = scrub(row.progress_message)
            data = {"job_id": row.id, "progress": row.progress, "message": message}
            self._offer_progress(row.id, row.owner, frame("job.progress", data))
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
        self._stop_reader()
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def close(self) -> None:
        """End all streams and refuse new ones."""
        self._closed = True
        self.end_all()
        self._stop_reader()
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

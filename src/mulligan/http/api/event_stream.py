"""`GET /events`: a stream of events, from the client's last event through the log to live ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from mulligan.events.service import build_owner_event_filter, parse_event_filter
from mulligan.http.api.auth import StreamViewer
from mulligan.http.api.event_hub import (
    HEARTBEAT_FRAME,
    RETRY_FRAME,
    EventHub,
    Listener,
    SharedEvent,
    frame,
)
from mulligan.http.api.responses import Problem
from mulligan.http.services import DatabaseUnavailable

log = logging.getLogger("mulligan.http")

HEARTBEAT_INTERVAL = 15.0  # seconds
RETRY_DELAY = 1.0  # seconds after a database error
# Ids commit out of order: for a moment the newest visible id can be below one a client has seen.
ID_WAIT = 2.0  # seconds
SEND_TIMEOUT = 60.0  # seconds without progress until a client counts as gone
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",
}


class EventReplay:
    """Produces the bytes of one stream: first the log after `after`, then live events."""

    def __init__(
        self, hub: EventHub, listener: Listener, after: int | None, *, private: bool
    ) -> None:
        self._hub = hub
        self._listener = listener
        self._private = private
        self._after = after
        self._cursor = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield chunks of the stream, forever."""
        async for chunk in self._start():
            yield chunk
        while True:
            async for chunk in self._catch_up():
                yield chunk
            async for chunk in self._live():
                yield chunk

    async def _start(self) -> AsyncGenerator[bytes, None]:
        """Find the position to start at. Send a `gap` frame if the log no longer has it."""
        while True:
            try:
                floor, newest = await self._hub.id_range()
                break
            except DatabaseUnavailable:
                yield HEARTBEAT_FRAME
                await asyncio.sleep(RETRY_DELAY)
        after = self._after
        self._cursor = newest if after is None else after
        yield RETRY_FRAME
        if after is None:
            return
        if after < floor:
            yield frame("gap", {"after": after, "until": floor, "why": "older than retention"})
        elif after > newest and not await self._wait_for_id(after):
            self._cursor = newest
            yield frame("gap", {"after": after, "until": newest, "why": "not of this database"})

    async def _wait_for_id(self, event_id: int) -> bool:
        for _ in range(round(ID_WAIT / 0.25)):
            await asyncio.sleep(0.25)
            _, newest = await self._hub.id_range()
            if newest >= event_id:
                return True
        return False

    async def _catch_up(self) -> AsyncGenerator[bytes, None]:
        """Read the log up to where the hub takes over.

        Near the end of the log, attach to the hub and read on until both overlap, so that no event
        falls between them.
        """
        published = -1  # newest event published before the hub was attached; -1: not attached yet
        while True:
            was_attached = published >= 0
            try:
                page = await self._hub.page(self._listener, self._cursor)
                if not was_attached and page.is_last:
                    async with asyncio.timeout(HEARTBEAT_INTERVAL):
                        published = await self._hub.attach(self._listener)
            except (DatabaseUnavailable, TimeoutError):
                yield HEARTBEAT_FRAME
                await asyncio.sleep(RETRY_DELAY)
                continue
            chunk = b"".join(self._encode(SharedEvent(event)) for event in page.events)
            self._cursor = max(self._cursor, page.cursor)
            if chunk:
                yield chunk
            elif not page.is_last:
                yield HEARTBEAT_FRAME  # many events, but none that matches the filter
            if 0 <= published <= self._cursor or (was_attached and not page.events):
                return

    def _encode(self, shared: SharedEvent) -> bytes:
        """Return the frame of an event, or nothing if it was sent before or does not match."""
        if shared.event.id <= self._cursor:
            return b""
        self._cursor = shared.event.id
        if not self._listener.matches(shared.event):
            return b""
        return shared.frame(private=self._private)

    async def _live(self) -> AsyncGenerator[bytes, None]:
        """Send what the hub publishes, until the listener overflows; then the log has the rest."""
        listener = self._listener
        while not listener.overflowed:
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await listener.available.wait()
            except TimeoutError:
                yield HEARTBEAT_FRAME
                continue
            listener.available.clear()
            items = list(listener.pending)
            listener.pending.clear()
            chunk = b"".join(
                item if isinstance(item, bytes) else self._encode(item) for item in items
            )
            if chunk:
                yield chunk
        self._hub.detach(listener)


class EventStreamResponse(Response):
    """A response that ends when the client disconnects, its key is revoked or the server stops."""

    def __init__(self, hub: EventHub, listener: Listener, replay: EventReplay) -> None:
        super().__init__(None, 200, HEADERS)
        self._hub = hub
        self._listener = listener
        self._replay = replay

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        del scope
        sender = asyncio.create_task(self._send(send))
        tasks = [
            sender,
            asyncio.create_task(_wait_for_disconnect(receive)),
            asyncio.create_task(self._listener.ended.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._hub.unregister(self._listener)
        error = None if sender.cancelled() else sender.exception()
        if error is not None and not isinstance(error, OSError):
            log.error("an event stream failed", exc_info=error)
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Any) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with contextlib.aclosing(self._replay.chunks()) as chunks:
            async for chunk in chunks:
                message = {"type": "http.response.body", "body": chunk, "more_body": True}
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send(message)


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- Route ---

router = APIRouter(tags=["events"])

MAX_JOBS_PER_STREAM = 20  # whose progress one stream may follow
STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
EventFilterParam = Annotated[
    str,
    Query(
        max_length=2000,
        description="type:job.died,batch.* job:… batch:… kind:… queue:… code:… class:… owner:…",
    ),
]
LastEventId = Annotated[
    str | None, Header(alias="last-event-id", description="continue after this event")
]
AfterParam = Annotated[
    str | None,
    Query(description="like Last-Event-ID, for clients without headers; 0: from the beginning"),
]


@router.get("/events", response_class=Response, responses=STREAM_RESPONSE)
@router.head("/events", include_in_schema=False)
async def events(
    request: Request,
    caller: StreamViewer,
    filter: EventFilterParam = "",  # noqa: A002 - as in the URL
    last_event_id: LastEventId = None,
    after: AfterParam = None,
) -> Response:
    """Stream server-sent events. `Last-Event-ID` resumes without gaps or duplicates."""
    fields = parse_event_filter(filter)
    matches = build_owner_event_filter(caller.owner, filter)
    cursor = _parse_event_id(last_event_id or after)
    if request.method == "HEAD":
        return Response(None, 200, HEADERS)

    hub = caller.context.hub
    followed = fields.get("job", ())[:MAX_JOBS_PER_STREAM]
    listener = Listener(caller.key.id, caller.owner, matches, followed)
    replay = EventReplay(hub, listener, cursor, private=caller.sees_staff_actions)
    hub.register(listener)
    return EventStreamResponse(hub, listener, replay)


def _parse_event_id(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        detail = "Last-Event-ID (or after) must be the id of an event, a whole number"
        raise Problem(422, "INVALID", detail)
    return int(text)

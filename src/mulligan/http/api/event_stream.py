"""One stream of events: from where its client was, through the log, to what happens now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from mulligan.events.service import hears, parsed
from mulligan.http.api.auth import Listening
from mulligan.http.api.event_hub import BEAT, PAGE, RETRY, Hub, Listener, SharedEvent, frame
from mulligan.http.api.problems import Problem
from mulligan.http.services import Away

log = logging.getLogger("mulligan.http")

HEARTBEAT = 15.0  # seconds
AGAIN = 1.0  # seconds until a database that is away is asked again
PATIENCE = 2.0  # seconds for which the newest id may be below one that was handed out, while somebody writes
TAKEN_WITHIN = 60.0  # seconds; a client that takes nothing for so long has gone without a word
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",
}


class Stream:
    def __init__(self, hub: Hub, listener: Listener, after: int | None, *, private: bool) -> None:
        self._hub, self._listener, self._private = hub, listener, private
        self._after = after
        self._cursor = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What to send, as it comes. It never ends by itself."""
        async for chunk in self._begin():
            yield chunk
        while True:
            async for chunk in self._catch_up():
                yield chunk
            async for chunk in self._live():
                yield chunk

    async def _begin(self) -> AsyncGenerator[bytes, None]:
        """Where the client was. What retention has taken since is told, and so is a place nobody has been to."""
        while True:
            try:
                floor, newest = await self._hub.ends()
                break
            except Away:
                yield BEAT
                await asyncio.sleep(AGAIN)
        after, self._cursor = self._after, newest if self._after is None else self._after
        yield RETRY
        if after is not None and after < floor:
            yield frame("gap", {"after": after, "until": floor, "why": "older than retention"})
        elif after is not None and after > newest and not await self._reached(after):
            self._cursor = newest
            yield frame("gap", {"after": after, "until": newest, "why": "not of this database"})

    async def _reached(self, after: int) -> bool:
        for _ in range(round(PATIENCE / 0.25)):
            await asyncio.sleep(0.25)
            if (await self._hub.ends())[1] >= after:
                return True
        return False

    async def _catch_up(self) -> AsyncGenerator[bytes, None]:
        """Through the log, first without the hub; near its end with it, so that nothing falls between them."""
        known = -1  # up to here the hub had handed on when we joined it; -1: we have not
        while True:
            joined = known >= 0
            try:
                events = await self._hub.page(self._cursor)
                if not joined and len(events) < PAGE:
                    async with asyncio.timeout(HEARTBEAT):
                        known = await self._hub.hook(self._listener)
            except (Away, TimeoutError):
                yield BEAT
                await asyncio.sleep(AGAIN)
                continue
            chunk = b"".join(self._told(SharedEvent(event)) for event in events)
            if chunk:
                yield chunk
            elif len(events) == PAGE:
                yield BEAT  # a long way without anything for this client
            if 0 <= known <= self._cursor or (joined and not events):
                return

    def _told(self, told: SharedEvent) -> bytes:
        if told.event.id <= self._cursor:
            return b""
        self._cursor = told.event.id
        return told.frame(private=self._private) if self._listener.wanted(told.event) else b""

    async def _live(self) -> AsyncGenerator[bytes, None]:
        """What the hub hands on, until more waits than there is room for: then the log has it."""
        listener = self._listener
        while not listener.behind:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await listener.news.wait()
            except TimeoutError:
                yield BEAT
                continue
            listener.news.clear()
            waiting, listener.waiting = listener.waiting, type(listener.waiting)()
            chunk = b"".join(one if isinstance(one, bytes) else self._told(one) for one in waiting)
            if chunk:
                yield chunk
        self._hub.unhook(listener)


class EventStream(Response):
    """Plain ASGI: it ends when the client has gone, when its key has, and when the server stops."""

    def __init__(self, hub: Hub, listener: Listener, stream: Stream) -> None:
        super().__init__(None, 200, HEADERS)
        self._hub, self._listener, self._stream = hub, listener, stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        del scope
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        works = [
            asyncio.create_task(work)
            for work in (self._send(send, headers), _gone(receive), self._listener.over.wait())
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for work in works:
                work.cancel()
            ended = await asyncio.gather(*works, return_exceptions=True)
            self._hub.leave(self._listener)
        if isinstance(ended[0], Exception) and not isinstance(ended[0], OSError):
            log.error("a stream of events ended", exc_info=ended[0])
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Any, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with contextlib.aclosing(self._stream.chunks()) as chunks:
            async for chunk in chunks:
                message = {"type": "http.response.body", "body": chunk, "more_body": True}
                async with asyncio.timeout(TAKEN_WITHIN):
                    await send(message)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# `GET /events`: what happens, as it happens, from where the client was.

router = APIRouter(tags=["events"])

FOLLOWED = 20  # jobs whose progress one stream may follow
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
Words = Annotated[
    str,
    Query(
        max_length=2000,
        description="type:job.died,batch.* job:… batch:… kind:… queue:… code:… class:… owner:…",
    ),
]
Last = Annotated[str | None, Header(alias="last-event-id", description="go on after this event")]
After = Annotated[
    str | None,
    Query(description="the same, for those who cannot set a header; 0: from the beginning"),
]


@router.get("/events", response_class=Response, responses=STREAM)
@router.head("/events", include_in_schema=False)
async def events(
    request: Request,
    caller: Listening,
    filter: Words = "",  # noqa: A002 - as in the URL
    last_event_id: Last = None,
    after: After = None,
) -> Response:
    """A stream of server-sent events; `Last-Event-ID` resumes without a gap or a double."""
    said = parsed(filter)
    heard = hears(caller.owner, filter)
    cursor = _number(last_event_id or after)
    if request.method == "HEAD":
        return Response(None, 200, HEADERS)

    hub = caller.room.hub
    listener = Listener(caller.key.id, caller.owner, heard, said.get("job", ())[:FOLLOWED])
    stream = Stream(hub, listener, cursor, private=caller.backstage)
    hub.enter(listener)
    return EventStream(hub, listener, stream)


def _number(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Problem(
            422, "INVALID", "Last-Event-ID (or after) is the id of an event: a whole number"
        )
    return int(text)

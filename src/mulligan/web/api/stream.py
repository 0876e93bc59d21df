"""One stream of events: from where its client was, through the log, to what happens now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi.responses import Response

from mulligan.web.api.following import PAGE
from mulligan.web.api.frames import BEAT, RETRY, Told, frame
from mulligan.web.api.hub import Hub, Listener
from mulligan.web.asking import Away

log = logging.getLogger("mulligan.web")

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
            chunk = b"".join(self._told(Told(event)) for event in events)
            if chunk:
                yield chunk
            elif len(events) == PAGE:
                yield BEAT  # a long way without anything for this client
            if 0 <= known <= self._cursor or (joined and not events):
                return

    def _told(self, told: Told) -> bytes:
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

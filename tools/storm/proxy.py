"""A TCP proxy that misbehaves when told to: reset, blackhole, delay, half, and losing the answer to a COMMIT.

One event loop in a thread of its own; several proxies may share it. What is told is heard by the connections that are
there and by those that come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)  # linger for no time at all: the other side gets a RST
PASS, BLACKHOLE, DELAY, HALF, LOSE = "pass", "blackhole", "delay", "half", "lose"
COMMIT = b"COMMIT"


class Line:
    """One connection: two sockets and what goes on between them."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.proxy = proxy
        self.client, self.server = client, server
        self.doomed = False  # a COMMIT is on its way; its answer will not be heard
        self.extra = b""  # to be heard before the next answer
        self.deaf = False  # bytes were lost: nothing that comes later makes sense

    def reset(self) -> None:
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    async def upstream(self, reader: asyncio.StreamReader) -> None:
        await self._pump(reader, self.server, self._asked)

    async def downstream(self, reader: asyncio.StreamReader) -> None:
        await self._pump(reader, self.client, self._answered)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, judge: object
    ) -> None:
        while data := await reader.read(CHUNK):
            await self.proxy.open_road()
            if not judge(data):  # type: ignore[operator]
                continue
            if writer is self.client:
                data, self.extra = self.extra + data, b""
            writer.write(data)
            await writer.drain()

    def _asked(self, data: bytes) -> bool:
        proxy = self.proxy
        if proxy.mode == LOSE and COMMIT in data and proxy.rng.random() < proxy.share:
            self.doomed = True
        return not self.deaf

    def _answered(self, data: bytes) -> bool:
        del data
        if self.doomed:
            self.proxy.lost += 1
            self.reset()
            return False
        if self.proxy.mode == HALF:
            self.deaf = True
        return not self.deaf


class Proxy:
    """Listens on a port of 127.0.0.1 and passes on to another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstream: int, seed: int) -> None:
        self.mode, self.pause, self.share = PASS, 0.0, 1.0
        self.rng = Random(seed)
        self.lost = 0  # answers
        self._upstream = upstream
        self._lines: set[Line] = set()
        self._loop = loop
        self._open = asyncio.Event()
        self.port = self._call(self._listen())

    def _call(self, work: object) -> int:
        return int(asyncio.run_coroutine_threadsafe(work, self._loop).result(10))  # type: ignore[arg-type]

    async def _listen(self) -> int:
        self._open.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def open_road(self) -> None:
        """Until it is neither blocked nor slow."""
        await self._open.wait()
        if self.mode == DELAY:
            await asyncio.sleep(self.pause)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.open_road()
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        line = Line(self, writer, to_server)
        self._lines.add(line)
        halves = [
            asyncio.create_task(line.upstream(reader)),
            asyncio.create_task(line.downstream(from_server)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._lines.discard(line)
            for side in (writer, to_server):
                side.transport.abort() if line.deaf else side.close()

    # -- from other threads -----------------------------------------------------------------------
    def reset(self) -> None:
        """Every connection there is, at once."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for line in list(self._lines):
            line.reset()

    def add(self, words: bytes) -> None:
        """Every line hears this too, before the next answer."""
        self._loop.call_soon_threadsafe(self._add, words)

    def _add(self, words: bytes) -> None:
        for line in self._lines:
            line.extra = words

    @contextmanager
    def told(self, mode: str, *, pause: float = 0.0, share: float = 1.0) -> Iterator[None]:
        """For the length of a block. Lines on which bytes were lost are reset at its end."""
        self._loop.call_soon_threadsafe(self._become, mode, pause, share)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._become, PASS, 0.0, 1.0)

    def _become(self, mode: str, pause: float, share: float) -> None:
        self.mode, self.pause, self.share = mode, pause, share
        if mode == BLACKHOLE:
            self._open.clear()
        else:
            self._open.set()
        if mode == PASS:
            for line in [line for line in self._lines if line.deaf]:
                line.reset()

    def end(self) -> None:
        self._server.close()
        self._open.set()
        self._reset()


class Proxies:
    """The loop and its thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._proxies: list[Proxy] = []

    def to(self, port: int, seed: int = 0) -> Proxy:
        self._proxies.append(Proxy(self._loop, port, seed))
        return self._proxies[-1]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self._proxies:
            proxy.end()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)  # each line ends with its connections
        await asyncio.sleep(0)  # transports that were aborted close with the next round

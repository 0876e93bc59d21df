"""A TCP proxy that can reset, block and delay connections, and lose answers (of a COMMIT, or all).

One event loop in its own thread serves several proxies. A mode applies to existing and to new
connections.
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
HANG_LISTENERS = "hang listeners"
COMMIT = b"COMMIT"
LISTEN = b"LISTEN"


class ProxiedConnection:
    """One proxied connection: the sockets to the client and to the server."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.proxy = proxy
        self.client, self.server = client, server
        self.lose_answer = False  # a COMMIT was sent; its answer will be lost
        self.extra = b""  # inserted before the next answer
        self.broken = False  # bytes were lost: reset it at the end of the mode
        self.listens = False  # it has sent LISTEN

    def reset(self) -> None:
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    async def upstream(self, reader: asyncio.StreamReader) -> None:
        await self._pump(reader, self.server, self._on_request)

    async def downstream(self, reader: asyncio.StreamReader) -> None:
        await self._pump(reader, self.client, self._on_answer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, filter_: object
    ) -> None:
        while data := await reader.read(CHUNK):
            await self.proxy.wait_until_open()
            if self.listens:
                await self.proxy.listeners_work.wait()
            if not filter_(data):  # type: ignore[operator]
                continue
            if writer is self.client:
                data, self.extra = self.extra + data, b""
            writer.write(data)
            await writer.drain()

    def _on_request(self, data: bytes) -> bool:
        proxy = self.proxy
        self.listens = self.listens or LISTEN in data
        if proxy.mode == LOSE and COMMIT in data and proxy.rng.random() < proxy.share:
            self.lose_answer = True
        return not self.broken

    def _on_answer(self, data: bytes) -> bool:
        del data
        if self.lose_answer:
            self.proxy.lost += 1
            self.reset()
            return False
        if self.proxy.mode == HALF:
            self.broken = True
        return not self.broken


class Proxy:
    """Listen on a port of 127.0.0.1 and forward to another port."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstream: int, seed: int) -> None:
        self.mode = PASS
        self.pause = 0.0
        self.share = 1.0
        self.rng = Random(seed)
        self.lost = 0  # answers
        self._upstream = upstream
        self._connections: set[ProxiedConnection] = set()
        self._loop = loop
        self.listeners_work = asyncio.Event()  # cleared while connections that listen hang
        self._is_open = asyncio.Event()
        self.port = self._call(self._listen())

    def _call(self, work: object) -> int:
        return int(asyncio.run_coroutine_threadsafe(work, self._loop).result(10))  # type: ignore[arg-type]

    async def _listen(self) -> int:
        self._is_open.set()
        self.listeners_work.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def wait_until_open(self) -> None:
        """Wait while the proxy is blocked or slow."""
        await self._is_open.wait()
        if self.mode == DELAY:
            await asyncio.sleep(self.pause)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.wait_until_open()
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        connection = ProxiedConnection(self, writer, to_server)
        self._connections.add(connection)
        halves = [
            asyncio.create_task(connection.upstream(reader)),
            asyncio.create_task(connection.downstream(from_server)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            self._connections.discard(connection)
            for side in (writer, to_server):
                if connection.broken:
                    side.transport.abort()
                else:
                    side.close()

    # --- Called from other threads ---
    def reset(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    def insert(self, data: bytes) -> None:
        """Send data to every client, before the next answer."""
        self._loop.call_soon_threadsafe(self._insert, data)

    def _insert(self, data: bytes) -> None:
        for connection in self._connections:
            connection.extra = data

    @contextmanager
    def set_mode(self, mode: str, *, pause: float = 0.0, share: float = 1.0) -> Iterator[None]:
        """Set a mode for the length of a block. At its end, connections that lost bytes are reset."""
        self._loop.call_soon_threadsafe(self._apply, mode, pause, share)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._apply, PASS, 0.0, 1.0)

    def _apply(self, mode: str, pause: float, share: float) -> None:
        self.mode, self.pause, self.share = mode, pause, share
        self._is_open.set()
        self.listeners_work.set()
        if mode == BLACKHOLE:
            self._is_open.clear()
        if mode == HANG_LISTENERS:
            self.listeners_work.clear()
        if mode == PASS:
            for connection in [one for one in self._connections if one.broken]:
                connection.reset()

    def end(self) -> None:
        self._server.close()
        self._is_open.set()
        self.listeners_work.set()
        self._reset()


class Proxies:
    """All proxies of a storm, on one event loop in one thread."""

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
            await asyncio.wait(others, timeout=5)  # connections end by themselves
        await asyncio.sleep(0)  # aborted transports close in the next iteration

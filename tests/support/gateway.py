"""A real HTTP service of known capacity that can be told to fail: `python -m support.gateway`, told by stdin.

`GET /call/TAG?by=PID`. Each call is remembered, with its times by the clock that all processes of a host share.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

TESTS = Path(__file__).parent.parent
OK, REFUSE, HANG, SLOW, FLAP = "ok", "refuse", "hang", "slow", "flap"
GONE = 0  # the status of a call whose caller did not wait for the answer
REASONS = {200: "OK", 500: "Internal Server Error", 503: "Service Unavailable"}


@dataclass
class Call:
    """One request; `ended` is None while it is there, `beside` counts those in flight when it came, itself too."""

    began: float
    tag: str
    by: int
    beside: int
    ended: float | None = None
    status: int | None = None


class Mode(NamedTuple):
    """From a moment on; `value` is the factor of slow, the period of flap."""

    since: float
    name: str
    value: float = 0.0

    def at(self, now: float) -> str:
        """Flapping begins with a bad half."""
        if self.name != FLAP:
            return self.name
        return OK if int((now - self.since) / self.value) % 2 else REFUSE


# -- the questions ------------------------------------------------------------------------------------


def per_second(calls: Iterable[Call], since: float, until: float) -> list[tuple[int, int]]:
    """For each second of a span: how many were answered well, how many were not."""
    counts = [[0, 0] for _ in range(max(1, int(until - since) + 1))]
    for call in calls:
        if since <= call.began <= until:
            counts[int(call.began - since)][call.status != 200] += 1
    return [(good, bad) for good, bad in counts]


def busiest_second(calls: Iterable[Call], since: float, until: float) -> int:
    """The most requests in any second of a span, wherever that second begins."""
    window: deque[float] = deque()
    most = 0
    for began in sorted(call.began for call in calls if since <= call.began <= until):
        window.append(began)
        while window[0] <= began - 1:
            window.popleft()
        most = max(most, len(window))
    return most


def most_in_flight(calls: Iterable[Call], since: float, until: float) -> int:
    """The most requests that were there at one moment of a span."""
    there = [
        call for call in calls if call.began < until and (call.ended is None or call.ended > since)
    ]
    steps = [(max(call.began, since), 1) for call in there]
    steps += [(call.ended, -1) for call in there if call.ended is not None]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def spans(modes: Sequence[Mode], until: float) -> list[tuple[float, float, str]]:
    """When it was not well, and how; a time of flapping is one span per bad half."""
    found = []
    for mode, end in zip(modes, [*(later.since for later in modes[1:]), until], strict=True):
        if mode.name == FLAP:
            halves = range(0, int((end - mode.since) / mode.value) + 1, 2)
            starts = [mode.since + half * mode.value for half in halves]
            found += [
                (start, min(end, start + mode.value), REFUSE) for start in starts if start < end
            ]
        elif mode.name != OK:
            found.append((mode.since, end, mode.name))
    return found


# -- the test's side ----------------------------------------------------------------------------------


class Gateway:
    """A gateway in a process of its own; it ends with the test's process, or by `close`."""

    def __init__(self, *, capacity: int, takes: float) -> None:
        self.capacity = capacity
        self.takes = takes
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.gateway", str(capacity), str(takes)],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self._answer()}"

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the gateway has died; its stderr tells why"
        return json.loads(line)

    def _ask(self, what: str, **facts: Any) -> Any:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"what": what, **facts}) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def become(self, name: str, value: float = 0.0) -> float:
        """From now on: ok, refuse, hang, slow (by a factor), flap (with a period). Returns the moment."""
        return float(self._ask("become", name=name, value=value))

    def poison(self, *tags: str) -> None:
        """Calls with these tags alone get a 500, whenever it is well."""
        self._ask("poison", tags=tags)

    def in_flight(self) -> list[tuple[str, int]]:
        """Tag and caller of each request that is there now."""
        return [(tag, by) for tag, by in self._ask("in_flight")]

    def count(self) -> int:
        return int(self._ask("count"))

    def calls(self) -> list[Call]:
        return [Call(*fields) for fields in self._ask("calls")]

    def modes(self) -> list[Mode]:
        return [Mode(*fields) for fields in self._ask("modes")]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# -- the service --------------------------------------------------------------------------------------


class Service:
    def __init__(self, capacity: int, takes: float) -> None:
        self._capacity = capacity
        self._takes = takes
        self._modes = [Mode(time.monotonic(), OK)]
        self._poison: frozenset[str] = frozenset()
        self._calls: list[Call] = []
        self._there: dict[int, Call] = {}
        self._served: deque[float] = deque()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        _say(server.sockets[0].getsockname()[1])
        await self._obey(await _lines_of_stdin())

    async def _obey(self, orders: asyncio.StreamReader) -> None:
        while line := await orders.readline():
            order = json.loads(line)
            _say(getattr(self, f"_on_{order.pop('what')}")(**order))

    def _on_become(self, name: str, value: float) -> float:
        self._modes.append(Mode(time.monotonic(), name, value))
        return self._modes[-1].since

    def _on_poison(self, tags: list[str]) -> None:
        self._poison = frozenset(tags)

    def _on_in_flight(self) -> list[tuple[str, int]]:
        return [(call.tag, call.by) for call in self._there.values()]

    def _on_count(self) -> int:
        return len(self._calls)

    def _on_calls(self) -> list[list[Any]]:
        return [
            [call.began, call.tag, call.by, call.beside, call.ended, call.status]
            for call in self._calls
        ]

    def _on_modes(self) -> list[Mode]:
        return self._modes

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                status = await self._called(head.split(b" ", 2)[1].decode(), reader)
                if status == GONE:
                    return
                writer.write(
                    f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: 0\r\n\r\n".encode()
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it was said goodbye, politely or not
        finally:
            writer.close()

    async def _called(self, target: str, reader: asyncio.StreamReader) -> int:
        parts = urlsplit(target)
        by = int(parse_qs(parts.query).get("by", ["0"])[0])
        call = Call(time.monotonic(), parts.path.rpartition("/")[2], by, len(self._there) + 1)
        self._calls.append(call)
        self._there[id(call)] = call
        try:
            status, wait = self._judged(call)
            call.status = status if await _waited(reader, wait) else GONE
            return call.status
        finally:
            call.ended = time.monotonic()
            del self._there[id(call)]

    def _judged(self, call: Call) -> tuple[int, float | None]:
        """The answer, and how long it takes; None: for ever."""
        mode = self._modes[-1].at(call.began)
        if mode == REFUSE:
            return 503, 0.0
        if mode == HANG:
            return 200, None
        if call.tag in self._poison:
            return 500, self._takes
        while self._served and self._served[0] <= call.began - 1:
            self._served.popleft()
        if len(self._served) >= self._capacity:
            return 503, 0.0
        self._served.append(call.began)
        return 200, self._takes * (self._modes[-1].value if mode == SLOW else 1)


async def _waited(reader: asyncio.StreamReader, seconds: float | None) -> bool:
    """Wait, but no longer than the caller does: has it stayed?"""
    if seconds == 0:
        return True
    left = asyncio.ensure_future(
        reader.read(1)
    )  # nobody says anything before the answer, except goodbye
    done, _ = await asyncio.wait([left], timeout=seconds)
    if not done:
        left.cancel()
        await asyncio.wait([left])
    return not done


async def _lines_of_stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Service(int(sys.argv[1]), float(sys.argv[2])).serve())

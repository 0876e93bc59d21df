"""HTTP service of known capacity that fails on command: `python -m support.gateway`.

Serves `GET /call/TAG?by=PID`. Commands are read from stdin. Each call is recorded with its times
on the monotonic clock, which all processes of a host share.
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
CLIENT_GONE = 0  # status of a call whose client disconnected before the answer
REASONS = {200: "OK", 500: "Internal Server Error", 503: "Service Unavailable"}


@dataclass
class Call:
    """One request. `in_flight` counts the requests at its start, including itself."""

    began: float
    tag: str
    caller: int
    in_flight: int
    ended: float | None = None
    status: int | None = None


class Mode(NamedTuple):
    """Behaviour from a time on. `value` is the factor of slow or the period of flap."""

    since: float
    name: str
    value: float = 0.0

    def at(self, now: float) -> str:
        """Return the behaviour at a time. Flapping starts with a bad half."""
        if self.name != FLAP:
            return self.name
        return OK if int((now - self.since) / self.value) % 2 else REFUSE


# -- queries ----------------------------------------------------------------------------------


def per_second(calls: Iterable[Call], since: float, until: float) -> list[tuple[int, int]]:
    """Return for each second of a period how many calls succeeded and how many failed."""
    counts = [[0, 0] for _ in range(max(1, int(until - since) + 1))]
    for call in calls:
        if since <= call.began <= until:
            counts[int(call.began - since)][call.status != 200] += 1
    return [(good, bad) for good, bad in counts]


def busiest_second(calls: Iterable[Call], since: float, until: float) -> int:
    """Return the most requests in any second of a period, wherever that second starts."""
    window: deque[float] = deque()
    most = 0
    for began in sorted(call.began for call in calls if since <= call.began <= until):
        window.append(began)
        while window[0] <= began - 1:
            window.popleft()
        most = max(most, len(window))
    return most


def most_in_flight(calls: Iterable[Call], since: float, until: float) -> int:
    """Return the most concurrent requests in a period."""
    current = [
        call for call in calls if call.began < until and (call.ended is None or call.ended > since)
    ]
    steps = [(max(call.began, since), 1) for call in current]
    steps += [(call.ended, -1) for call in current if call.ended is not None]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def bad_periods(modes: Sequence[Mode], until: float) -> list[tuple[float, float, str]]:
    """Return the periods in which the service failed; flapping has one per bad half."""
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


# -- client of the test--------------------------------------------------------------------------


class Gateway:
    """Gateway in its own process. It ends with the test process or with `close`."""

    def __init__(self, *, capacity: int, takes: float) -> None:
        self.capacity = capacity
        self.request_seconds = takes
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
        assert line, "the gateway has died; see its stderr"
        return json.loads(line)

    def _command(self, command: str, **facts: Any) -> Any:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"command": command, **facts}) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def set_mode(self, name: str, value: float = 0.0) -> float:
        """Set the behaviour: ok, refuse, hang, slow (factor) or flap (period). Return the time."""
        return float(self._command("set_mode", name=name, value=value))

    def poison(self, *tags: str) -> None:
        """Answer calls with these tags with 500 while the service is ok."""
        self._command("poison", tags=tags)

    def in_flight(self) -> list[tuple[str, int]]:
        """Return tag and caller of each current request."""
        return [(tag, by) for tag, by in self._command("in_flight")]

    def count(self) -> int:
        return int(self._command("count"))

    def calls(self) -> list[Call]:
        return [Call(*fields) for fields in self._command("calls")]

    def modes(self) -> list[Mode]:
        return [Mode(*fields) for fields in self._command("modes")]

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


# -- the service ---------------------------------------------------------------------------------


class GatewayService:
    def __init__(self, capacity: int, takes: float) -> None:
        self._capacity = capacity
        self._takes = takes
        self._modes = [Mode(time.monotonic(), OK)]
        self._poison: frozenset[str] = frozenset()
        self._calls: list[Call] = []
        self._current: dict[int, Call] = {}
        self._served: deque[float] = deque()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._handle_connection, "127.0.0.1", 0, backlog=1024)
        _reply(server.sockets[0].getsockname()[1])
        await self._run_commands(await _open_stdin())

    async def _run_commands(self, commands: asyncio.StreamReader) -> None:
        while line := await commands.readline():
            command = json.loads(line)
            _reply(getattr(self, f"_on_{command.pop('command')}")(**command))

    def _on_set_mode(self, name: str, value: float) -> float:
        self._modes.append(Mode(time.monotonic(), name, value))
        return self._modes[-1].since

    def _on_poison(self, tags: list[str]) -> None:
        self._poison = frozenset(tags)

    def _on_in_flight(self) -> list[tuple[str, int]]:
        return [(call.tag, call.caller) for call in self._current.values()]

    def _on_count(self) -> int:
        return len(self._calls)

    def _on_calls(self) -> list[list[Any]]:
        return [
            [call.began, call.tag, call.caller, call.in_flight, call.ended, call.status]
            for call in self._calls
        ]

    def _on_modes(self) -> list[Mode]:
        return self._modes

    async def _handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                status = await self._handle_call(head.split(b" ", 2)[1].decode(), reader)
                if status == CLIENT_GONE:
                    return
                writer.write(
                    f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: 0\r\n\r\n".encode()
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client disconnected
        finally:
            writer.close()

    async def _handle_call(self, target: str, reader: asyncio.StreamReader) -> int:
        parts = urlsplit(target)
        by = int(parse_qs(parts.query).get("by", ["0"])[0])
        call = Call(time.monotonic(), parts.path.rpartition("/")[2], by, len(self._current) + 1)
        self._calls.append(call)
        self._current[id(call)] = call
        try:
            status, wait = self._choose_answer(call)
            call.status = status if await _wait_connected(reader, wait) else CLIENT_GONE
            return call.status
        finally:
            call.ended = time.monotonic()
            del self._current[id(call)]

    def _choose_answer(self, call: Call) -> tuple[int, float | None]:
        """Return the status and the duration of the answer; None: it never comes."""
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


async def _wait_connected(reader: asyncio.StreamReader, seconds: float | None) -> bool:
    """Wait and return True if the client is still connected."""
    if seconds == 0:
        return True
    left = asyncio.ensure_future(reader.read(1))
    done, _ = await asyncio.wait([left], timeout=seconds)
    if not done:
        left.cancel()
        await asyncio.wait([left])
    return not done


async def _open_stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _reply(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(GatewayService(int(sys.argv[1]), float(sys.argv[2])).serve())

"""Start a real web server and a client that measures the cost of its answers."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from bench.world import ROOT, World

from mulligan.access.keys import Role
from support.store import is_postgres, sql

TIMEOUT = 30.0


class AnswerTimes(NamedTuple):
    """Cost of one answer."""

    waited: float  # ms
    worked: float  # ms of CPU, of the server and its database backends
    size: int


class WebClient:
    """A client signed in as admin, with an API key, on one connection."""

    def __init__(self, world: World, pid: int, address: str) -> None:
        self.pid = pid
        self._world = world
        self.host, self.port = str(urlsplit(address).hostname), int(urlsplit(address).port or 0)
        self._connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        self.keys = [
            world.app.keys.create("*", Role.ADMIN, name=f"bench {n}").text for n in range(4)
        ]
        self.cookie = self._sign_in(parse_qs(urlsplit(address).query)["link"][0])

    def _sign_in(self, link: str) -> str:
        origin = f"http://{self.host}:{self.port}"
        headers = {"Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/sign-in", urlencode({"link": link}), headers)
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 303, answer.status
        return str(answer.headers["set-cookie"]).partition(";")[0]

    def headers(self, path: str, key: int = 0) -> dict[str, str]:
        if path.startswith("/api/"):
            return {"Authorization": f"Bearer {self.keys[key]}"}
        return {"Cookie": self.cookie}

    def read(self, path: str) -> tuple[HTTPResponse, bytes]:
        try:
            self._connection.request("GET", path, headers=self.headers(path))
            answer = self._connection.getresponse()
        except RemoteDisconnected:  # the server closed an idle connection
            self._connection.request("GET", path, headers=self.headers(path))
            answer = self._connection.getresponse()
        return answer, answer.read()

    def ask(self, path: str) -> AnswerTimes:
        busy, began = self.busy(), time.monotonic()
        answer, body = self.read(path)
        waited = (time.monotonic() - began) * 1000
        if answer.status != 200:
            print(f"  {path}: {answer.status}", flush=True)
        return AnswerTimes(waited, (self.busy() - busy) * 1000, len(body))

    def busy(self) -> float:
        """Return the CPU seconds used so far."""
        return sum(_thread_seconds(pid) for pid in (self.pid, *self.backends()))

    def backends(self) -> list[int]:
        """Return the PostgreSQL backends of this server, found by its open ports."""
        if not is_postgres(self._world.app.store):
            return []
        if time.monotonic() - self._looked > 5:
            self._looked, self._found = time.monotonic(), _backends(self._world, self.pid)
        return self._found

    _looked = -100.0
    _found: list[int]

    def close(self) -> None:
        self._connection.close()


def _backends(world: World, pid: int) -> list[int]:
    ports = _ports(pid)
    rows = sql(
        world.app.store,
        "SELECT pid, client_port FROM pg_stat_activity WHERE client_port IS NOT NULL",
    )
    return [int(backend) for backend, port in rows if port in ports]


def _ports(pid: int) -> set[int]:
    """Return the local ports of a process."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(one.readlink()).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].partition(":")[2], 16) for line in lines if line[9] in inodes}


def _thread_seconds(pid: int) -> float:
    """Return the CPU seconds of a process; the last known value if it has exited."""
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextmanager
def start_web_client(world: World) -> Iterator[WebClient]:
    env = {
        **os.environ,
        "MULLIGAN_DATABASE_URL": world.url,
        "MULLIGAN_WEB__PORT": "0",
        "MULLIGAN_WEB__STREAMS_PER_KEY": "1000",
        "MULLIGAN_WEB__RATE": "100000",
    }
    with (world.folder / "web.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mulligan.http.app"],
            cwd=ROOT / "tools",
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert server.stdout is not None
        client = WebClient(world, server.pid, server.stdout.readline().decode().strip())
        yield client
        client.close()
    finally:
        server.terminate()
        server.wait(20)


@contextmanager
def open_streams(client: WebClient, many: int, path: str) -> Iterator[list[socket.socket]]:
    """Open streams and read them in a thread that discards the data."""
    streams: list[socket.socket] = []
    reading = threading.Event()
    try:
        for n in range(many):
            header_lines = "".join(
                f"{name}: {value}\r\n" for name, value in client.headers(path, n % 4).items()
            )
            ear = socket.create_connection((client.host, client.port), timeout=TIMEOUT)
            ear.sendall(
                f"GET {path} HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n{header_lines}\r\n".encode()
            )
            assert b" 200 " in ear.recv(65_536)[:20]
            streams.append(ear)
        threading.Thread(target=_read_all, args=(streams, reading)).start()
        yield streams
    finally:
        reading.set()
        for ear in streams:
            ear.close()


def _read_all(streams: Sequence[socket.socket], over: threading.Event) -> None:
    with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
        for ear in streams:
            selector.register(ear, selectors.EVENT_READ)
        while not over.is_set():
            for key, _ in selector.select(0.5):
                key.fileobj.recv(1_000_000)  # type: ignore[union-attr]

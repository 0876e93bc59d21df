"""Run the web server in a thread or a process, and read its event streams byte by byte."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mulligan.config import Settings
from mulligan.http.app import Server, create_app, server_config
from support.waiting import until


class RunningServer(NamedTuple):
    """A server that runs: its address, and how to stop it."""

    host: str
    port: int
    hub: Any
    stop: Any
    clients: list[Any]  # closed with the server


@contextmanager
def run_server(settings: Settings, *, grace: int | None = None) -> Iterator[RunningServer]:
    """Serve until the block ends. `grace`: seconds that open requests get when the server stops."""
    app = create_app(settings)
    config = server_config(app)
    if grace is not None:
        config.timeout_graceful_shutdown = grace
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = Server(config, "", app.state.context.hub.close)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started, 20, "a server")

    def stop() -> None:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not stop"

    clients: list[Any] = []
    try:
        yield RunningServer("127.0.0.1", port, app.state.context.hub, stop, clients)
    finally:
        for client in clients:
            client.close()
        stop()
        listening.close()


@contextmanager
def serve_in_process(settings: Settings) -> Iterator[RunningServer]:
    """Serve in another process, which is killed at the end."""
    environ = {
        **os.environ,
        "MULLIGAN_DATABASE_URL": settings.database_url,
        "MULLIGAN_WEB__PORT": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "mulligan.http.app"], env=environ, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().decode().strip())
            yield RunningServer(
                str(address.hostname), int(address.port or 0), None, process.kill, []
            )
        finally:
            process.kill()


class Frame(NamedTuple):
    """One event of a stream. `id` is None for events that are not in the log."""

    id: int | None
    event: str
    data: Any


class StreamClient:
    """A client of /events. What it has read is in `frames` and `raw`."""

    def __init__(
        self,
        at: RunningServer,
        key: str,
        *,
        last: int | None = None,
        query: str = "",
        timeout: float = 10.0,
    ) -> None:
        self.raw = b""
        self._used = 0
        self.frames: list[Frame] = []
        self._connection = HTTPConnection(at.host, at.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        try:
            self._connection.request("GET", f"/api/v1/events{query}", headers=headers)
            self.answer = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.status = self.answer.status
        at.clients.append(self)

    def read(self) -> bool:
        """Read a chunk. Return False if the stream has ended."""
        chunk = self.answer.read1(65_536)
        self.raw += chunk
        self._parse()
        return bool(chunk)

    def read_until(self, condition: Any, timeout: float = 10.0) -> list[Frame]:
        """Read until `condition` of this client is true."""
        deadline = time.monotonic() + timeout
        while not condition(self):
            assert time.monotonic() < deadline, f"not received: {self.frames[-3:]}"
            assert self.read(), f"the stream ended: {self.frames[-3:]}"
        return self.frames

    def events(self, count: int, timeout: float = 10.0) -> list[Frame]:
        """Read until `count` events of the log have arrived and return them."""
        self.read_until(lambda client: len(client.logged) >= count, timeout)
        return self.logged

    @property
    def logged(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.id is not None]

    @property
    def types(self) -> list[str]:
        return [frame.event for frame in self.logged]

    def ready(self) -> StreamClient:
        """Wait for the first bytes: the client receives all events from now on."""
        self.read_until(lambda client: client.raw.startswith(b"retry: "))
        return self

    def close(self) -> None:
        """Close the response first: it holds the socket."""
        self.answer.close()
        self._connection.close()

    def _parse(self) -> None:
        while (end := self.raw.find(b"\n\n", self._used)) >= 0:
            block = self.raw[self._used : end].decode()
            self._used = end + 2
            fields: dict[str, str] = {}
            for line in block.split("\n"):
                name, _, value = line.partition(": ")
                if name == "data" and "data" in fields:
                    value = f"{fields['data']}\n{value}"
                fields[name] = value
            if "data" in fields:
                number = int(fields["id"]) if "id" in fields else None
                self.frames.append(Frame(number, fields["event"], json.loads(fields["data"])))


def get(at: RunningServer, path: str, key: str = "", **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection(at.host, at.port, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}", **headers})
        answer = connection.getresponse()
        body = answer.read()
        if "json" in answer.headers["content-type"]:
            return answer.status, json.loads(body)
        return answer.status, body
    finally:
        connection.close()

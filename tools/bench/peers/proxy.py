"""A proxy to PostgreSQL that adds milliseconds to each round trip.

Half of the delay is added in each direction, without limiting the throughput. It runs in its own
process, so that its CPU time is not counted.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

TOOLS = Path(__file__).parents[2]


class Proxy:
    """A running proxy process; `url` leads through it."""

    def __init__(self, url: str, milliseconds: float) -> None:
        target = urlsplit(url)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.peers.proxy",
                str(target.hostname),
                str(target.port),
                str(milliseconds),
            ],
            cwd=TOOLS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        netloc = f"{target.username}:{target.password}@127.0.0.1:{port}"
        self.url = urlunsplit(target._replace(netloc=netloc))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(host: str, port: int, milliseconds: float) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        near, _ = listening.accept()
        far = socket.create_connection((host, port))
        for line in (near, far):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _pump(near, far, milliseconds / 2000)
        _pump(far, near, milliseconds / 2000)


def _pump(source: socket.socket, target: socket.socket, seconds: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, waiting, seconds), daemon=True).start()
    threading.Thread(target=_write, args=(target, waiting), daemon=True).start()


def _read(
    source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    data = b" "
    while data:
        try:
            data = source.recv(262_144)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + seconds, data))


def _write(target: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, data = waiting.get()
        time.sleep(max(0.0, due - time.monotonic()))
        with suppress(OSError):
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)


if __name__ == "__main__":
    threading.Thread(
        target=_serve, args=(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])), daemon=True
    ).start()
    sys.stdin.read()  # exit when the parent exits

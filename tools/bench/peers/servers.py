"""Start the servers of a run on free ports with data on a real disk; stop them with it."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from bench import world

from support import debian
from support.postgres import free_port

# Kills the server when the pipe from its parent closes, however the parent ends.
KILL_WITH_PARENT = '"$@" </dev/null & cat >/dev/null; kill -9 $!'
REDIS = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "databases": "64"}
SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
)


class NoServer(RuntimeError):
    """The server is missing; the report names the systems left out."""


class Redis:
    """Redis with appendfsync everysec, as its documentation advises: the last second may be lost."""

    def __init__(self) -> None:
        program, self._environment = _program()
        self.folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-redis-"))
        self.port = free_port()
        self._numbers = itertools.cycle(range(int(REDIS["databases"])))
        settings = [part for name, value in REDIS.items() for part in (f"--{name}", value)]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "/bin/sh",
                    "-c",
                    KILL_WITH_PARENT,
                    "sh",
                    program,
                    "--port",
                    str(self.port),
                    "--bind",
                    "127.0.0.1",
                    "--dir",
                    self.folder,
                    *settings,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        atexit.register(self.close)
        self._await()
        info = self.ask("INFO", "server")
        self.version = next(
            line.partition(":")[2] for line in info.splitlines() if line.startswith("redis_version")
        )

    def _await(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            with suppress(OSError):
                self.ask("PING")
                return
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise NoServer(f"Redis does not start: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.02)

    def fresh(self) -> str:
        """Return the URL of an empty database."""
        number = next(self._numbers)
        self.ask("FLUSHDB", number=number)
        return f"redis://127.0.0.1:{self.port}/{number}"

    def ask(self, *arguments: str, number: int = 0) -> str:
        """Send one inline command and return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(f"SELECT {number}\r\n{' '.join(arguments)}\r\nQUIT\r\n".encode())
            answer = b""
            while part := line.recv(65536):
                answer += part
        return answer.decode()

    def close(self) -> None:
        self._process.communicate(timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> tuple[Path, dict[str, str]]:
    """Return redis-server from the system or from Debian's packages, and its environment."""
    if found := shutil.which("redis-server"):
        return Path(found), dict(os.environ)
    needed = lambda: debian.with_missing_dependencies("redis-server", "redis-tools")  # noqa: E731 - called only if needed
    folder = debian.unpack_packages("bench/redis", needed, "usr/bin/redis-server")
    if folder is None:
        raise NoServer("no redis-server on PATH, and Debian's packages cannot be fetched")
    libraries = ":".join(str(path) for path in (folder / "usr" / "lib").glob("*-linux-gnu"))
    return folder / "usr" / "bin" / "redis-server", {**os.environ, "LD_LIBRARY_PATH": libraries}


_redis: list[Redis] = []


def redis() -> Redis:
    if not _redis:
        _redis.append(Redis())
    return _redis[0]


def describe_servers(stores: set[str]) -> dict[str, dict[str, str]]:
    """Versions and settings of the servers that these stores need."""
    settings: dict[str, dict[str, str]] = {}
    if "postgres" in stores:
        with psycopg.connect(world.server().url("postgres")) as connection:
            settings["postgres"] = {
                name: str(connection.execute(f"SHOW {name}").fetchone()[0]) for name in SHOWN
            }
    if "redis" in stores:
        with suppress(NoServer):
            settings["redis"] = {"version": redis().version, **REDIS}
    return settings

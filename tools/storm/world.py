"""Set up a storm: a folder, a database that faults can reach, and its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from storm.external_tools import NAMESPACE, Pooler, faketime, namespaces, sync_shim
from storm.processes import ROOT, ManagedProcess, ProcessGroup, python
from storm.proxy import Proxies, Proxy

sys.path.insert(0, str(ROOT / "tests"))

from mulligan import Mulligan
from mulligan.config import Settings, read_settings
from support import postgres

FAST_SETTINGS = {
    "MULLIGAN_WORKER__LEASE": "4",
    "MULLIGAN_WORKER__HEARTBEAT": "1",
    "MULLIGAN_WORKER__SWEEP": "0.5",
    "MULLIGAN_WORKER__POLL": "0.2",
    "MULLIGAN_WORKER__KILL_GRACE": "0.5",
    "MULLIGAN_WORKER__NEIGHBOUR_GRACE": "3",
    "MULLIGAN_WORKER__SHUTDOWN_GRACE": "5",
    "MULLIGAN_WORKER__CONCURRENCY": "6",
    "MULLIGAN_WORKER__RUNNERS": "2",
    "MULLIGAN_WEB__RATE": "0",
    "PYTHONDONTWRITEBYTECODE": "",
}
SQLITE_DISK_SIZE = "400m"
POSTGRES_DISK_SIZE = "400m"


class World:
    """Everything that faults act on: processes, disk, database, proxies, pooler, clock."""

    def __init__(self, store: str, folder: Path, seed: int) -> None:
        self.store_name = store
        self.folder = folder
        self.seed = seed
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.processes = ProcessGroup(self.logs)
        self.rng = Random(seed)
        self.data_folder = folder / "store"  # the disk that can be filled
        self.data_folder.mkdir()
        self.has_small_disk = False  # True: a separate small file system
        self.server: postgres.PostgresServer | None = None
        self.pooler: Pooler | None = None
        self.proxies: dict[str, Proxy] = {}
        self.faketime: Path | None = None
        self.extra: dict[str, str] = {}  # environment of all processes
        self.skipped: dict[str, str] = {}  # fault -> why it cannot be injected here
        self.port = postgres.free_port()
        self.url = ""
        self.key = ""
        self.tenant_key = ""  # of one owner

    @property
    def is_postgres(self) -> bool:
        return self.store_name == "postgres"

    def open_app(self) -> Mulligan:
        """Open the database directly, past the proxies and without the check of its schema."""
        app = Mulligan(settings=self.settings())
        app.store = app._connect()  # noqa: SLF001 - a storm may upgrade the schema
        return app

    def settings(self) -> Settings:
        environ = {**FAST_SETTINGS, "MULLIGAN_DATABASE_URL": self.url}
        return read_settings(environ=environ, file=self.folder / "none.toml")

    def url_through(self, route: str) -> str:
        """Return the database URL through a proxy or the pooler; the direct one if there is none."""
        if route == "pooler" and self.pooler is not None:
            return self.pooler.url
        if route not in self.proxies:
            return self.url
        parts = urlsplit(self.url)
        netloc = f"{parts.username}:{parts.password}@127.0.0.1:{self.proxies[route].port}"
        return parts._replace(netloc=netloc).geturl()

    def environ(self, route: str) -> dict[str, str]:
        return {
            **FAST_SETTINGS,
            **self.extra,
            "MULLIGAN_DATABASE_URL": self.url_through(route),
            "MULLIGAN_WORKER__STATE_DIR": str(self.folder / "state"),
            "MULLIGAN_WEB__PORT": str(self.port),
            "STORM_FOLDER": str(self.folder),
            "STORM_WITNESS": str(self.folder / "witness.jsonl"),
            "STORM_WEB": str(self.port),
            "STORM_KEY": self.key,
            "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'tests'}:{ROOT / 'src'}",
        }

    # --- Processes ---
    def start_worker(self, number: int) -> ManagedProcess:
        """Start a worker: every second one in a pid namespace, every third one behind the pooler."""
        isolated = number % 2 == 1 and "namespaces" not in self.skipped
        argv = [
            *(NAMESPACE if isolated else []),
            *python("-m", "storm.commit_points", "worker", "storm.app:app"),
        ]
        route = "pooler" if number % 3 == 2 and self.pooler is not None else "workers"
        name = f"worker-{number}"
        return self.processes.start(name, argv, {**self.environ(route), "STORM_NAME": name})

    def start_web(self) -> ManagedProcess:
        return self.processes.start("web", python("-m", "mulligan.http.app"), self.environ("web"))

    def start_client(self, number: int, every: float) -> ManagedProcess:
        client_type = "http" if number % 3 == 2 else "python"
        name = f"client-{client_type}-{number}"
        argv = python(
            "-m",
            "storm.clients",
            client_type,
            "--name",
            name,
            "--seed",
            str(self.seed),
            "--every",
            str(every),
        )
        route = "pooler" if number % 3 == 1 and self.pooler is not None else "clients"
        return self.processes.start(name, argv, self.environ(route))

    @property
    def workers(self) -> list[ManagedProcess]:
        return self.processes.with_prefix("worker")


@contextmanager
def world(store: str, seed: int, folder: Path | None = None) -> Iterator[World]:
    """Create the folder, the database and an admin key; remove the processes at the end."""
    path = folder or Path(tempfile.mkdtemp(prefix=f"mulligan-storm-{store}-{seed}-"))
    with ExitStack() as stack:
        made = World(store, path, seed)
        stack.callback(made.processes.close)
        stack.enter_context(_small_disk(made))
        _find_tools(made)
        if made.is_postgres:
            _start_postgres(made, stack)
        else:
            made.url = f"sqlite:///{made.data_folder}/mulligan.db"
        app = Mulligan(settings=made.settings())
        made.key = app.keys.create("*", "admin", name="storm").text
        made.tenant_key = app.keys.create("globex", "viewer", name="tenant").text
        app.store.shift_clock(0)  # creates the row that the clock faults update
        app.close()
        yield made


def _find_tools(world: World) -> None:
    """Find optional tools; note each fault that this machine cannot inject."""
    world.folder.chmod(0o755)  # PostgreSQL runs as another user
    if not world.has_small_disk:
        world.skipped["full_disk"] = "needs root, to mount a small file system"
    if (shim := sync_shim(world.folder)) is None:
        world.skipped["slow_sync"] = "needs a C compiler"
    else:
        world.extra |= {"LD_PRELOAD": str(shim), "STORM_SYNC": str(world.folder / "sync")}
    if not namespaces():
        world.skipped["namespaces"] = "needs root and unshare"
    if world.is_postgres and (found := faketime()) is not None:
        world.faketime = found
    else:
        world.skipped["wrong_clock"] = "needs libfaketime"


@contextmanager
def _small_disk(world: World) -> Iterator[None]:
    """Mount a small file system for the database, if we run as root."""
    size = POSTGRES_DISK_SIZE if world.is_postgres else SQLITE_DISK_SIZE
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={size},mode=755",
        "tmpfs",
        str(world.data_folder),
    ]
    world.has_small_disk = (
        os.geteuid() == 0
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    try:
        yield
    finally:
        if world.has_small_disk:
            _save_database(world)
            subprocess.run(
                ["umount", "-l", str(world.data_folder)], capture_output=True, check=False
            )


def _save_database(world: World) -> None:
    """Copy the SQLite database from the tmpfs to the disk, for later inspection."""
    if not world.is_postgres:
        with contextlib.suppress(OSError):
            copy = world.folder / "kept"
            shutil.copytree(
                world.data_folder,
                copy,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("ballast"),
            )


def _start_postgres(world: World, stack: ExitStack) -> None:
    postgres.SETTINGS.update(
        fsync="on", full_page_writes="on", max_wal_size="64MB", wal_recycle="off"
    )
    postgres.ENVIRONMENT = {**os.environ, "LC_ALL": "C", **world.extra}  # type: ignore[assignment]
    if world.has_small_disk:
        world.data_folder.chmod(0o777)
        postgres.shared_memory_folder = lambda: world.data_folder  # type: ignore[assignment]
    world.server = postgres.PostgresServer(None)
    stack.callback(world.server.close)
    world.url = world.server.create_database()
    proxies = Proxies()
    stack.callback(proxies.close)
    port = urlsplit(world.url).port or 0
    world.proxies = {route: proxies.to(port, world.seed) for route in ("workers", "web", "clients")}
    if Pooler.available():
        user = postgres.unprivileged_user()
        world.pooler = Pooler(world.url, world.folder, postgres.free_port(), user)
        stack.callback(world.pooler.close)
    else:
        world.skipped["kill_pooler"] = "needs pgbouncer"

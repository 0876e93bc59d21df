"""Where a storm takes place: a folder, a store that can be hurt, and the processes on it."""

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

from storm.crew import ROOT, Crew, Member, python
from storm.proxy import Proxies, Proxy
from storm.tools import NAMESPACE, Pooler, faketime, namespaces, sync_shim

sys.path.insert(0, str(ROOT / "tests"))

from mulligan import Mulligan
from mulligan.config import Settings, read_settings
from support import postgres

FAST = {
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
SQLITE_ROOM = "96m"
POSTGRES_ROOM = "400m"


class World:
    """What faults may reach for."""

    def __init__(self, store: str, folder: Path, seed: int) -> None:
        self.store_name, self.folder, self.seed = store, folder, seed
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.crew = Crew(self.logs)
        self.rng = Random(seed)
        self.room = folder / "store"  # what can be filled up
        self.room.mkdir()
        self.small = False  # is it a file system of its own, small enough to be filled?
        self.server: postgres.PostgresServer | None = None
        self.pooler: Pooler | None = None
        self.proxies: dict[str, Proxy] = {}
        self.faketime: Path | None = None
        self.extra: dict[str, str] = {}  # environment of all processes
        self.skipped: dict[str, str] = {}  # fault → why it cannot be made here
        self.port = postgres.free_port()
        self.url = ""
        self.key = ""

    @property
    def is_postgres(self) -> bool:
        return self.store_name == "postgres"

    def open_app(self) -> Mulligan:
        """Past every proxy, and whatever the version of the schema: for looking, not for testing."""
        app = Mulligan(settings=self.settings())
        app._store = app._opened()  # noqa: SLF001 - without the check of the schema, which a storm may have changed
        return app

    def settings(self) -> Settings:
        environ = {**FAST, "MULLIGAN_DATABASE_URL": self.url}
        return read_settings(environ=environ, file=self.folder / "none.toml")

    def url_through(self, who: str) -> str:
        if who == "pooler" and self.pooler is not None:
            return self.pooler.url
        if who not in self.proxies:
            return self.url
        parts = urlsplit(self.url)
        there = f"{parts.username}:{parts.password}@127.0.0.1:{self.proxies[who].port}"
        return parts._replace(netloc=there).geturl()

    def environ(self, who: str) -> dict[str, str]:
        return {
            **FAST,
            **self.extra,
            "MULLIGAN_DATABASE_URL": self.url_through(who),
            "MULLIGAN_WORKER__STATE_DIR": str(self.folder / "state"),
            "MULLIGAN_WEB__PORT": str(self.port),
            "STORM_FOLDER": str(self.folder),
            "STORM_WITNESS": str(self.folder / "witness.jsonl"),
            "STORM_WEB": str(self.port),
            "STORM_KEY": self.key,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        }

    # -- who is there -----------------------------------------------------------------------------
    def hire_worker(self, number: int) -> Member:
        """Every second one in a pid namespace of its own, every third one behind a pooler, where there is one."""
        alone = number % 2 == 1 and "namespaces" not in self.skipped
        argv = [
            *(NAMESPACE if alone else []),
            *python("-m", "storm.pointed", "worker", "storm.app:app"),
        ]
        way = "pooler" if number % 3 == 2 and self.pooler is not None else "workers"
        name = f"worker-{number}"
        return self.crew.hire(name, argv, {**self.environ(way), "STORM_NAME": name})

    def hire_web(self) -> Member:
        return self.crew.hire("web", python("-m", "mulligan.http.app"), self.environ("web"))

    def hire_client(self, number: int, every: float) -> Member:
        sort = "http" if number % 3 == 2 else "python"
        name = f"client-{sort}-{number}"
        argv = python(
            "-m",
            "storm.clients",
            sort,
            "--name",
            name,
            "--seed",
            str(self.seed),
            "--every",
            str(every),
        )
        way = "pooler" if number % 3 == 1 and self.pooler is not None else "clients"
        return self.crew.hire(name, argv, self.environ(way))

    @property
    def workers(self) -> list[Member]:
        return self.crew.named("worker")


@contextmanager
def world(store: str, seed: int, folder: Path | None = None) -> Iterator[World]:
    place = folder or Path(tempfile.mkdtemp(prefix=f"mulligan-storm-{store}-{seed}-"))
    with ExitStack() as stack:
        made = World(store, place, seed)
        stack.callback(made.crew.close)
        stack.enter_context(_small_room(made))
        _equip(made)
        if made.is_postgres:
            _give_postgres(made, stack)
        else:
            made.url = f"sqlite:///{made.room}/mulligan.db"
        app = Mulligan(settings=made.settings())
        made.key = app.keys.create("*", "admin", name="storm").text
        app.store.shift_clock(0)  # from here on its offset is one row
        app.close()
        yield made


def _equip(world: World) -> None:
    """What this machine has; what it has not is said."""
    world.folder.chmod(0o755)  # PostgreSQL runs as somebody else
    if not world.small:
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
def _small_room(world: World) -> Iterator[None]:
    """A small file system for the store, where we may make one."""
    size = POSTGRES_ROOM if world.is_postgres else SQLITE_ROOM
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(world.room)]
    world.small = (
        os.geteuid() == 0
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    try:
        yield
    finally:
        if world.small:
            _keep_database(world)
            subprocess.run(["umount", "-l", str(world.room)], capture_output=True, check=False)


def _keep_database(world: World) -> None:
    """For who looks at it afterwards: what was in memory goes to the disk."""
    if not world.is_postgres:
        with contextlib.suppress(OSError):
            kept = world.folder / "kept"
            shutil.copytree(
                world.room, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("ballast")
            )


def _give_postgres(world: World, stack: ExitStack) -> None:
    postgres.SETTINGS.update(
        fsync="on", full_page_writes="on", max_wal_size="64MB", wal_recycle="off"
    )
    postgres.ENVIRONMENT = {**os.environ, "LC_ALL": "C", **world.extra}  # type: ignore[assignment]
    if world.small:
        world.room.chmod(0o777)
        postgres.spacious_memory = lambda: world.room  # type: ignore[assignment]
    world.server = postgres.PostgresServer(None)
    stack.callback(world.server.close)
    world.url = world.server.create_database()
    proxies = Proxies()
    stack.callback(proxies.close)
    port = urlsplit(world.url).port or 0
    world.proxies = {who: proxies.to(port, world.seed) for who in ("workers", "web", "clients")}
    if Pooler.available():
        user = postgres.unprivileged_user()
        world.pooler = Pooler(world.url, world.folder, postgres.free_port(), user)
        stack.callback(world.pooler.close)
    else:
        world.skipped["kill_pooler"] = "needs pgbouncer"

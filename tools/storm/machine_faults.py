"""Faults of the machine and of other database users: disk, clock, limits, locks, versions."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import apsw
import psycopg
from storm.external_tools import next_version
from storm.faults import LEASE, POSTGRES, SQLITE, NotPossibleNow, fault, pick_runner
from storm.processes import ROOT
from storm.queries import DATABASE_ERRORS, query
from storm.world import World

from mulligan.core.durations import SECOND

MEGABYTE = 1024 * 1024


# --- Disk ---
@fault(1.5, group="server")
def full_disk(world: World, rng: Random) -> None:
    """The disk of the database is full for 2 to 15 seconds."""
    ballast = world.data_folder / "ballast"
    try:
        _fill(ballast)
        deadline = time.monotonic() + rng.uniform(2, 15)
        while time.monotonic() < deadline:
            time.sleep(0.2)
            _fill(ballast)  # space that was freed meanwhile
    finally:
        ballast.unlink(missing_ok=True)
    if world.server is not None:
        world.server.start()  # it exits if it cannot even recover


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            size = 64 * 1024 if _free_bytes(path) < 2 * MEGABYTE else MEGABYTE
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize


@fault(2, group="sync")
def slow_sync(world: World, rng: Random) -> None:
    """Every fsync of every process takes 50 ms to 1 s."""
    delay_file = world.folder / "sync"
    delay_file.write_text(str(rng.choice((50, 200, 200, 1000))))
    time.sleep(rng.uniform(2, 8))
    delay_file.unlink(missing_ok=True)


# --- Clock ---
@fault(1.5, group="clock")
def host_clock(world: World, rng: Random) -> None:
    """The clock of the database steps by seconds or minutes, and steps back."""
    _set_clock(world, rng.choice((-900, -120, -5, 5, 30)) * SECOND)
    time.sleep(rng.uniform(1, 6))
    _set_clock(world, 0)


def _set_clock(world: World, offset: int) -> None:
    """Set the offset of the database clock; repeat until the update succeeds."""
    for _ in range(200):
        with contextlib.suppress(*DATABASE_ERRORS):
            query(
                world.url,
                "UPDATE {p}meta SET value = :offset WHERE key = 'clock_offset'",
                {"offset": str(offset)},
            )
            return
        time.sleep(0.5)


@fault(2, POSTGRES, group="clock")
def wrong_clock(world: World, rng: Random) -> None:
    """The local clock of one worker or client is wrong by minutes."""
    process = rng.choice([*world.workers, *world.processes.with_prefix("client")])
    preload = " ".join(filter(None, (world.extra.get("LD_PRELOAD"), str(world.faketime))))
    wrong = f"{rng.choice('+-')}{rng.randint(5, 15)}m"
    process.restart_with(
        {"LD_PRELOAD": preload, "FAKETIME": wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    )
    time.sleep(rng.uniform(5, 15))
    process.restart_with({"LD_PRELOAD": world.extra.get("LD_PRELOAD", ""), "FAKETIME": ""})


# --- Limits ---
@fault(2)
def few_files(world: World, rng: Random) -> None:
    """A process of a worker may not open more files for 2 to 8 seconds."""
    worker = rng.choice(world.workers)
    if not worker.is_ready:
        raise NotPossibleNow  # a worker that cannot even start exits
    _limit(
        rng.choice(worker.process_tree()),
        resource.RLIMIT_NOFILE,
        rng.choice((8, 32, 64)),
        rng.uniform(2, 8),
    )


@fault(1.5)
def little_memory(world: World, rng: Random) -> None:
    """A runner gets no more memory for 1 to 5 seconds."""
    pid = pick_runner(world, rng)
    _limit(pid, resource.RLIMIT_AS, _size(pid) + rng.choice((0, 10)) * MEGABYTE, rng.uniform(1, 5))


def _limit(pid: int, what: int, soft: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        before = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (soft, before[1]))
        time.sleep(seconds)
        resource.prlimit(pid, what, before)


def _size(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 256 * MEGABYTE


# --- Other users of the database ---
@fault(1.5)
def open_snapshot(world: World, rng: Random) -> None:
    """Another session keeps a read snapshot open for up to 20 s."""
    seconds = rng.uniform(5, 20)
    with contextlib.suppress(*DATABASE_ERRORS):
        if world.is_postgres:
            with psycopg.connect(world.url) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute("SELECT count(*) FROM mulligan.job")
                time.sleep(seconds)
        else:
            reader = apsw.Connection(world.url.removeprefix("sqlite:///"))
            reader.execute("BEGIN; SELECT count(*) FROM mulligan_job").fetchall()
            time.sleep(seconds)
            reader.close()


@fault(1.5, SQLITE)
def crowd(world: World, rng: Random) -> None:
    """Readers, writers, a backup and a VACUUM on the same file, from other processes."""
    file = world.url.removeprefix("sqlite:///")
    command = [
        sys.executable,
        "-m",
        "storm.sqlite_load",
        file,
        str(rng.uniform(2, 6)),
        str(rng.randrange(10**6)),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "STORM_FOLDER": str(world.folder)}
    subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=60)


@fault(1, POSTGRES)
def locked_table(world: World, rng: Random) -> None:
    """Another session locks one of our tables, as a schema change does."""
    with contextlib.suppress(*DATABASE_ERRORS), psycopg.connect(world.url) as connection:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute(
            f"LOCK TABLE mulligan.{rng.choice(('job', 'worker', 'event'))} IN ACCESS EXCLUSIVE MODE"
        )
        time.sleep(rng.uniform(1, 2 * LEASE))


@fault(1, POSTGRES)
def no_connections_free_bytes(world: World, rng: Random) -> None:
    """Another program takes all connections of the server."""
    connections: list[psycopg.Connection] = []
    deadline = time.monotonic() + rng.uniform(2, 6)
    try:
        while time.monotonic() < deadline:
            try:
                connections.append(psycopg.connect(world.url, connect_timeout=2))
            except psycopg.Error:
                time.sleep(0.2)
    finally:
        for connection in connections:
            connection.close()


@fault(2, POSTGRES)
def kill_pooler(world: World, rng: Random) -> None:
    """kill -9 of pgbouncer, which is restarted at once."""
    del rng
    assert world.pooler is not None
    world.pooler.restart()


# --- Versions ---
@fault(0.2, group="version")
def new_schema(world: World, rng: Random) -> None:
    """The schema is upgraded while workers run; every second process then uses the next version."""
    del rng
    if (world.folder / "next").exists():
        raise NotPossibleNow
    home = next_version(world.folder)
    environ = {
        **os.environ,
        **world.environ("direct"),
        "PYTHONPATH": f"{home}:{ROOT / 'tools'}",
        "LD_PRELOAD": "",
    }
    command = [sys.executable, "-m", "mulligan", "migrate"]
    for _ in range(20):
        if (
            subprocess.run(
                command, cwd=ROOT, env=environ, capture_output=True, check=False
            ).returncode
            == 0
        ):
            break
        time.sleep(1)
    # The others go on with the old version, also after a restart, as in a slow rollout.
    for process in [*world.processes.by_name.values()][::2]:
        process.environ["PYTHONPATH"] = environ["PYTHONPATH"]

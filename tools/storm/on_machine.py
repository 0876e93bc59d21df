"""Faults of the machine and of the neighbours: disk, clock, limits, snapshots, crowds, versions."""

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
from storm.crew import ROOT
from storm.faults import LEASE, POSTGRES, SQLITE, NotNow, a_runner, fault
from storm.looking import AWAY, ask
from storm.tools import next_version
from storm.world import World

from mulligan.core.durations import SECOND

MEGABYTE = 1024 * 1024


# -- disk ----------------------------------------------------------------------------------------
@fault(1.5, of="server")
def full_disk(world: World, rng: Random) -> None:
    """A ballast file takes all the room there is beside the database, for a while."""
    ballast = world.room / "ballast"
    try:
        _fill(ballast)
        until = time.monotonic() + rng.uniform(2, 15)
        while time.monotonic() < until:
            time.sleep(0.2)
            _fill(ballast)  # what others gave back
    finally:
        ballast.unlink(missing_ok=True)
    if world.server is not None:
        world.server.start()  # one that could not even recover has ended


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            size = 64 * 1024 if _left(path) < 2 * MEGABYTE else MEGABYTE
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)


def _left(path: Path) -> int:
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize


@fault(2, of="sync")
def slow_sync(world: World, rng: Random) -> None:
    """Every fsync takes 50 ms to a second, for everybody."""
    said = world.folder / "sync"
    said.write_text(str(rng.choice((50, 200, 200, 1000))))
    time.sleep(rng.uniform(2, 8))
    said.unlink(missing_ok=True)


# -- clock ---------------------------------------------------------------------------------------
@fault(1.5, of="clock")
def host_clock(world: World, rng: Random) -> None:
    """The clock that rules steps, and is put right again."""
    _set_clock(world, rng.choice((-900, -120, -5, 5, 30)) * SECOND)
    time.sleep(rng.uniform(1, 6))
    _set_clock(world, 0)


def _set_clock(world: World, offset: int) -> None:
    """Said again until it is known to hold; the row is there since the storm began."""
    for _ in range(200):
        with contextlib.suppress(*AWAY):
            ask(
                world.url,
                "UPDATE {p}meta SET value = :offset WHERE key = 'clock_offset'",
                {"offset": str(offset)},
            )
            return
        time.sleep(0.5)


@fault(2, POSTGRES, of="clock")
def wrong_clock(world: World, rng: Random) -> None:
    """One worker or one client whose own clock is wrong by minutes."""
    member = rng.choice([*world.workers, *world.crew.named("client")])
    preload = " ".join(filter(None, (world.extra.get("LD_PRELOAD"), str(world.faketime))))
    wrong = f"{rng.choice('+-')}{rng.randint(5, 15)}m"
    member.again_with(
        {"LD_PRELOAD": preload, "FAKETIME": wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    )
    time.sleep(rng.uniform(5, 15))
    member.again_with({"LD_PRELOAD": world.extra.get("LD_PRELOAD", ""), "FAKETIME": ""})


# -- limits --------------------------------------------------------------------------------------
@fault(2)
def few_files(world: World, rng: Random) -> None:
    """A worker that may open no more files than it has open, for a while."""
    worker = rng.choice(world.workers)
    if not worker.settled:
        raise NotNow  # who cannot even begin ends, and is started again
    _limited(
        rng.choice(worker.family()),
        resource.RLIMIT_NOFILE,
        rng.choice((8, 32, 64)),
        rng.uniform(2, 8),
    )


@fault(1.5)
def little_memory(world: World, rng: Random) -> None:
    """A runner that gets no more memory than it has."""
    pid = a_runner(world, rng)
    _limited(
        pid, resource.RLIMIT_AS, _size(pid) + rng.choice((0, 10)) * MEGABYTE, rng.uniform(1, 5)
    )


def _limited(pid: int, what: int, soft: int, seconds: float) -> None:
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


# -- neighbours in the database ------------------------------------------------------------------
@fault(1.5)
def open_snapshot(world: World, rng: Random) -> None:
    """A stranger reads, and stays: a snapshot is open for up to 20 s."""
    seconds = rng.uniform(5, 20)
    with contextlib.suppress(*AWAY):
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
        "storm.crowd",
        file,
        str(rng.uniform(2, 6)),
        str(rng.randrange(10**6)),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STORM_FOLDER": str(world.folder)}
    subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=60)


@fault(1, POSTGRES)
def locked_table(world: World, rng: Random) -> None:
    """A stranger holds one of our tables, as a change of the schema does."""
    with contextlib.suppress(*AWAY), psycopg.connect(world.url) as connection:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute(
            f"LOCK TABLE mulligan.{rng.choice(('job', 'worker', 'event'))} IN ACCESS EXCLUSIVE MODE"
        )
        time.sleep(rng.uniform(1, 2 * LEASE))


@fault(1, POSTGRES)
def no_connections_left(world: World, rng: Random) -> None:
    """A stranger takes all connections the server has."""
    held: list[psycopg.Connection] = []
    until = time.monotonic() + rng.uniform(2, 6)
    try:
        while time.monotonic() < until:
            try:
                held.append(psycopg.connect(world.url, connect_timeout=2))
            except psycopg.Error:
                time.sleep(0.2)
    finally:
        for connection in held:
            connection.close()


@fault(2, POSTGRES)
def kill_pooler(world: World, rng: Random) -> None:
    """kill -9 of pgbouncer, which comes back at once."""
    del rng
    assert world.pooler is not None
    world.pooler.restart()


# -- versions ------------------------------------------------------------------------------------
@fault(0.2, of="version")
def new_schema(world: World, rng: Random) -> None:
    """The schema of the next version while this one works; who is started from now on is of the next one."""
    del rng
    if (world.folder / "next").exists():
        raise NotNow
    home = next_version(world.folder)
    environ = {
        **os.environ,
        **world.environ("nobody"),
        "PYTHONPATH": f"{home}:{ROOT}",
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
    for member in world.crew.members.values():
        member.environ["PYTHONPATH"] = environ["PYTHONPATH"]

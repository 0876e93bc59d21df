"""Who is alive, and what is left of the dead.

A worker proves its life with an exclusive flock on a file named by its id. A sibling is dead at once only if
that very file (device and inode) is there and its lock can be taken; any doubt means: wait for its lease.
Every process of a worker carries a mark in its environment, so that what outlives an attempt can be found.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mulligan.config import Settings
from mulligan.core.attempt import Lease
from mulligan.core.errors import ConfigError
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, WorkerRow
from mulligan.manifest.specs import Manifest
from mulligan.storage.base import Transaction
from mulligan.storage.url import boot_id

MARK = "MULLIGAN_ATTEMPT"  # worker/runner, and for what ctx.run starts: worker/runner/job/token
LOOK_AGAIN = 0.5  # seconds
_PROC = Path("/proc")


class LivenessFile:
    """Held for as long as this worker id lives. Closed on exec, so no child keeps a dead worker alive."""

    def __init__(self, folder: Path, worker: str) -> None:
        private_folder(folder)
        self.path = folder / f"{worker}.life"
        self._fd = _create_locked(self.path)
        found = os.fstat(self._fd)
        self.dev, self.ino = found.st_dev, found.st_ino

    def close(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._fd)
        self._fd = -1


def _create_locked(path: Path) -> int:
    """A sweeper may lock and remove the file between its creation and our lock: then make it again."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
        os.close(fd)


def surely_dead(worker: WorkerRow, boot_id: str) -> bool:
    """Its very life file is here and nobody holds it. False means only: not known."""
    if not worker.life_path or worker.boot_id != boot_id:
        return False
    try:
        fd = os.open(worker.life_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) == (worker.life_dev, worker.life_ino) and _lockable(fd)
    finally:
        os.close(fd)


def _lockable(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def state_folder(configured: str, place: str, identity: str) -> Path:
    """Where life files and work directories go: as set, beside the SQLite file, or the user's state folder.

    Never shared between databases, for whoever sweeps must know whose workers these are.
    """
    if configured:
        return Path(configured).absolute() / identity
    if place:
        return Path(place)
    base = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    folder = Path(base) / "mulligan" / identity
    try:
        private_folder(folder)
    except OSError:
        shared = Path(tempfile.gettempdir()) / f"mulligan-{os.getuid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        _check_own(shared)
        folder = shared / identity
    return folder


def private_folder(folder: Path) -> Path:
    """It, made if it is not there, for this user alone whatever the umask says; so are folders on the way to it."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & stat.S_IWOTH:
        message = f"everybody may write into {folder}, where work directories of jobs are made: chmod o-w {folder}"
        raise ConfigError(message)
    return folder


def _check_own(folder: Path) -> None:
    """Where everybody may make folders, somebody may have made ours before us."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        message = f"{folder} is not a folder of this user; name another one in worker.state_dir"
        raise ConfigError(message)
    if found.st_mode & 0o077:  # made by an older version of ours
        folder.chmod(0o700)


def work_folder(folder: Path, worker: str) -> Path:
    return folder / f"{worker}.work"


def sweep_folders(folder: Path, me: str) -> list[str]:
    """Remove life files and work directories of workers that are no more; returns their ids."""
    gone = []
    for life in folder.glob("*.life"):
        if life.stem != me and _abandoned(life):
            shutil.rmtree(work_folder(folder, life.stem), ignore_errors=True)
            life.unlink(missing_ok=True)
            gone.append(life.stem)
    for work in folder.glob("*.work"):
        if work.stem != me and not (folder / f"{work.stem}.life").exists():
            shutil.rmtree(work, ignore_errors=True)
            gone.append(work.stem)
    return gone


def held_files(folder: Path) -> list[str]:
    """Ids of workers of this host that live now."""
    return sorted(life.stem for life in folder.glob("*.life") if not _abandoned(life))


def _abandoned(life: Path) -> bool:
    try:
        fd = os.open(life, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _lockable(fd)
    finally:
        os.close(fd)


# -- processes ------------------------------------------------------------------------------------
def kill_marked(mark: str, *, patience: float = 2.0) -> int:
    """SIGKILL every process whose mark is `mark` or below it, until none is left. How many were there."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience
    while (found := list(marked(mark))) and time.monotonic() < deadline:
        for pid in found:
            _kill(pid)
        killed.update(found)
        if found:
            time.sleep(0.01)  # SIGKILL is not instant; look again until they are gone
    return len(killed)


def surely_kill_marked(mark: str) -> None:
    """However long no descriptor is left to look with: nobody may run these jobs again before somebody has looked."""
    while True:
        try:
            kill_marked(mark)
            return
        except OSError:
            time.sleep(LOOK_AGAIN)


def kill_session(leader: int) -> None:
    """SIGKILL a session's processes: the leader's group at once, then whoever else is in the session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(
        OSError
    ):  # no descriptor left to look with: by its mark it is found later
        for pid in _pids():
            if _session_of(pid) == leader:
                _kill(pid)


def marked(mark: str) -> Iterator[int]:
    """Living processes of ours that carry the mark. (Linux; elsewhere the session is all we know.)"""
    wanted = f"{MARK}={mark}".encode()
    for pid in _pids():
        entry = _mark_of(pid)
        if (
            entry is not None
            and (entry == wanted or entry.startswith(wanted + b"/"))
            and not _zombie(pid)
        ):
            yield pid


def session_memory(leader: int) -> int:
    """Resident bytes of all processes in a session; 0 where nobody can look."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        return sum(_resident_pages(pid) for pid in _pids() if _session_of(pid) == leader) * page
    except OSError:
        return 0


def _pids() -> Iterable[int]:
    if not _PROC.is_dir():
        return ()
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - thousands of names, often


def _kill(pid: int) -> None:
    if pid != os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _told(pid: int, file: str) -> bytes:
    """What the kernel tells of a process, b"" once it has gone. To have no descriptor left is not to find nothing."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""


def _mark_of(pid: int) -> bytes | None:
    prefix = f"{MARK}=".encode()
    return next(
        (entry for entry in _told(pid, "environ").split(b"\0") if entry.startswith(prefix)), None
    )


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/pid/stat after the command name, which may contain anything."""
    return _told(pid, "stat").rpartition(b")")[2].split()


def _zombie(pid: int) -> bool:
    fields = _stat_fields(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _session_of(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[3]) if fields and fields[0] not in (b"Z", b"X") else -1


def _resident_pages(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[21]) if fields else 0


# Private work directories of attempts, named by job and token so that anybody can find and remove them.


def workdir(folder: Path, lease: Lease) -> Path:
    return folder / f"{lease.id}-{lease.token}"


def make_workdir(folder: Path, lease: Lease) -> Path:
    return private_folder(workdir(folder, lease))


def remove_workdir(folder: Path, lease: Lease) -> None:
    shutil.rmtree(workdir(folder, lease), ignore_errors=True)


# A worker's row, as it enters it and as others see it.

LIVING = ("live", "draining")


class WorkerStatus(NamedTuple):
    """A worker as others see it."""

    row: WorkerRow
    running: int
    silent_for: float  # seconds since its last renewal
    life: str  # live, draining, silent (beyond its lease), dead (its life file is free), left

    @property
    def living(self) -> bool:
        return self.life in LIVING


def workers_seen(unit: Transaction, *, closed: bool = False) -> list[WorkerStatus]:
    """Every worker, as far as it can be seen from here."""
    running, now = unit.busy(), unit.now()
    return [
        WorkerStatus(
            row, running.get(row.id, 0), max(0, now - row.renewed_at) / SECOND, _life(unit, row)
        )
        for row in unit.workers(closed=closed)
    ]


def _life(unit: Transaction, row: WorkerRow) -> str:
    if row.closed_at is not None:
        return "left"
    if surely_dead(row, boot_id()):
        return "dead"
    if unit.expired(row):
        return "silent"
    return "draining" if row.draining or row.drain_reason is not None else "live"


def request_drain(unit: Transaction, workers: Iterable[WorkerRow], actor: str, reason: str) -> None:
    """Ask them to finish what they run, and leave; one that has left, or was asked, stays as it is."""
    for row in sorted(workers, key=lambda row: row.id):
        if row.drain_reason is None and unit.request_drain(
            row.id, f"{actor}: {reason}" if reason else actor
        ):
            seen = {"before": {"draining": row.draining}, "after": {"draining": True}}
            news = {"worker": row.id, "host": row.host, "pid": row.pid, "reason": reason, **seen}
            unit.write_events([NewEvent(EventType.WORKER_DRAIN_REQUESTED, actor=actor, data=news)])


def worker_row(
    worker: str,
    life: LivenessFile,
    manifest: Manifest,
    settings: Settings,
    queues: frozenset[str],
    concurrency: int,
) -> WorkerRow:
    return WorkerRow(
        id=worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        boot_id=boot_id(),
        lease=round(settings.worker.lease * SECOND),
        started_at=0,  # stamped by the store
        renewed_at=0,
        renewed_mono=time.monotonic_ns() // 1000,
        closed_at=None,
        close_reason="",
        life_path=str(life.path),
        life_dev=life.dev,
        life_ino=life.ino,
        kinds=json.dumps(sorted(manifest.kinds)),
        queues=json.dumps(sorted(queues)),
        concurrency=concurrency,
        release=manifest.release,
        draining=False,
    )

"""Find out which workers are alive, and clean up after dead ones: files, processes, directories.

A worker proves that it is alive with an exclusive flock on a file named after it. Another worker on
the same host declares it dead at once only if that very file (device and inode) exists and its lock
can be taken. In any doubt its lease decides. Every process of a worker has a mark in its
environment, so that what outlives an attempt can be found and killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mulligan.core.attempt import Lease
from mulligan.core.errors import ConfigError
from mulligan.core.job import WorkerRow

# Environment variable: worker/runner, and for programs of ctx.run worker/runner/job/token/number.
MARK = "MULLIGAN_ATTEMPT"
SCAN_RETRY = 0.5  # seconds
_PROC = Path("/proc")


class LivenessFile:
    """Lock file of a worker. Not inherited, so that no child keeps the lock of a dead worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        ensure_private_folder(folder)
        self.path = folder / f"{worker}.life"
        self._fd = _create_locked(self.path)
        status = os.fstat(self._fd)
        self.dev = status.st_dev
        self.ino = status.st_ino

    def touch(self) -> None:
        """Set its time to now, for health checks that read only the file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def close(self) -> None:
        """Remove the file and release the lock."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._fd)
        self._fd = -1


def _create_locked(path: Path) -> int:
    """Create and lock a file. Repeat if a sweep removed it between the two steps."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
        os.close(fd)


def is_certainly_dead(worker: WorkerRow, boot_id: str) -> bool:
    """True if the worker's liveness file exists here and is not locked. False: unknown."""
    fd = _open_liveness_file(worker, boot_id)
    if fd is None:
        return False
    try:
        return _can_lock(fd)
    finally:
        os.close(fd)


def find_work_folder(worker: WorkerRow, boot_id: str) -> Path | None:
    """Return the work folder of another worker, if this process can read it."""
    fd = _open_liveness_file(worker, boot_id)
    if fd is None:
        return None
    os.close(fd)
    return work_folder(Path(worker.lock_path).parent, worker.id)


def _open_liveness_file(worker: WorkerRow, boot_id: str) -> int | None:
    """Open a worker's liveness file. None if it is not on this host, or not the same file."""
    if not worker.lock_path or worker.boot_id != boot_id:
        return None
    try:
        fd = os.open(worker.lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) == (worker.lock_dev, worker.lock_ino):
        return fd
    os.close(fd)
    return None


def _can_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def state_folder(configured: str, place: str, identity: str) -> Path:
    """Return the folder for liveness files and work directories.

    The configured one, else next to the SQLite file, else in the user's state folder. Each database
    has its own, because a sweep removes files of all workers that it does not find alive.
    """
    if configured:
        return Path(configured).absolute() / identity
    if place:
        return Path(place)
    base = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    folder = Path(base) / "mulligan" / identity
    try:
        ensure_private_folder(folder)
    except OSError:
        shared = Path(tempfile.gettempdir()) / f"mulligan-{os.getuid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        _check_owner(shared)
        folder = shared / identity
    return folder


def ensure_private_folder(folder: Path) -> Path:
    """Create a folder, and missing parents, for this user only, whatever the umask is."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & stat.S_IWOTH:
        message = (
            f"every user may write to {folder}, which contains work directories of jobs. "
            f"Run: chmod o-w {folder}"
        )
        raise ConfigError(message)
    return folder


def _check_owner(folder: Path) -> None:
    """Refuse a folder of another user: in the temporary folder anybody may create ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        message = f"{folder} does not belong to this user. Set worker.state_dir to another folder."
        raise ConfigError(message)
    if found.st_mode & 0o077:  # created by an older version
        folder.chmod(0o700)


def work_folder(folder: Path, worker: str) -> Path:
    """Return the folder of a worker's work directories."""
    return folder / f"{worker}.work"


def remove_dead_folders(folder: Path, open_workers: Collection[str]) -> list[str]:
    """Remove liveness files and work directories of dead workers. Return their ids.

    A missing liveness file proves nothing: programs that clean temporary folders remove it too.
    """
    removed = []
    for life in folder.glob("*.life"):
        if life.stem not in open_workers and _abandoned(life):
            shutil.rmtree(work_folder(folder, life.stem), ignore_errors=True)
            life.unlink(missing_ok=True)
            removed.append(life.stem)
    for work in folder.glob("*.work"):
        if work.stem not in open_workers and not (folder / f"{work.stem}.life").exists():
            shutil.rmtree(work, ignore_errors=True)
            removed.append(work.stem)
    return removed


def live_worker_ids(folder: Path) -> list[str]:
    """Return the ids of workers of this host that are alive."""
    return sorted(life.stem for life in folder.glob("*.life") if not _abandoned(life))


def _abandoned(life: Path) -> bool:
    try:
        fd = os.open(life, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _can_lock(fd)
    finally:
        os.close(fd)


# --- Processes ---


def kill_marked(mark: str, *, timeout: float = 2.0) -> int:
    """Kill every process with this mark or one below it, until none is left. Return how many."""
    killed: set[int] = set()
    deadline = time.monotonic() + timeout
    pids = list(find_marked(mark))
    while pids and time.monotonic() < deadline:
        for pid in pids:
            _kill(pid)
        killed.update(pids)
        time.sleep(0.01)  # SIGKILL is not instant
        pids = list(find_marked(mark))
    return len(killed)


def kill_marked_with_retry(mark: str) -> None:
    """Kill marked processes; wait for free descriptors if /proc cannot be read for lack of them.

    The jobs must not run again before their processes are known to be gone.
    """
    while True:
        try:
            kill_marked(mark)
            return
        except OSError:
            time.sleep(SCAN_RETRY)


def kill_session(leader: int) -> None:
    """Kill all processes of a session: the leader's group at once, then the others."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(OSError):  # no descriptor left; its mark is searched for later
        for pid in _pids():
            if _session_of(pid) == leader:
                _kill(pid)


def find_marked(mark: str) -> Iterator[int]:
    """Yield living processes with this mark or one below it. Works on Linux only."""
    wanted = f"{MARK}={mark}".encode()
    for pid in _pids():
        entry = _mark_of(pid)
        if entry is None:
            continue
        is_match = entry == wanted or entry.startswith(wanted + b"/")
        if is_match and not _is_zombie(pid):
            yield pid


def session_memory(leader: int) -> int:
    """Return the resident bytes of all processes in a session; 0 if unknown."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        return sum(_resident_pages(pid) for pid in _pids() if _session_of(pid) == leader) * page
    except OSError:
        return 0


def resident_memory(pid: int) -> int:
    """Return the resident bytes of one process; 0 if unknown."""
    try:
        return _resident_pages(pid) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def tree_memory(pid: int) -> int:
    """Return the resident bytes of a process and all its descendants; 0 if unknown."""
    counted = {pid}
    waiting = [pid]
    pages = 0
    try:
        while waiting:
            parent = waiting.pop()
            pages += _resident_pages(parent)
            children = set(_children_of(parent)) - counted
            counted |= children
            waiting += children
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _children_of(pid: int) -> Iterable[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        names = os.listdir(tasks)  # noqa: PTH208 - each heartbeat, one name per thread
    except OSError:
        return ()
    files = (_read_proc(pid, f"task/{name}/children") for name in names)
    return [int(child) for text in files for child in text.split()]


def _pids() -> Iterable[int]:
    if not _PROC.is_dir():
        return ()
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208 - thousands of names, often


def _kill(pid: int) -> None:
    if pid != os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _read_proc(pid: int, file: str) -> bytes:
    """Read a file of /proc/pid; empty if the process is gone.

    Raises OSError if no descriptor is left, which must not count as gone.
    """
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""


def _mark_of(pid: int) -> bytes | None:
    prefix = f"{MARK}=".encode()
    return next(
        (entry for entry in _read_proc(pid, "environ").split(b"\0") if entry.startswith(prefix)),
        None,
    )


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/pid/stat after the command name, which may contain anything."""
    return _read_proc(pid, "stat").rpartition(b")")[2].split()


def _is_zombie(pid: int) -> bool:
    fields = _stat_fields(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _session_of(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[3]) if fields and fields[0] not in (b"Z", b"X") else -1


def _resident_pages(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[21]) if fields else 0


# --- Work directories of attempts ---


def attempt_folder(folder: Path, lease: Lease) -> Path:
    """Return the path of an attempt's work directory."""
    return folder / f"{lease.id}-{lease.token}"


def make_workdir(folder: Path, lease: Lease) -> Path:
    """Create the work directory of an attempt."""
    return ensure_private_folder(attempt_folder(folder, lease))


def remove_workdir(folder: Path, lease: Lease) -> None:
    """Remove the work directory of an attempt."""
    shutil.rmtree(attempt_folder(folder, lease), ignore_errors=True)

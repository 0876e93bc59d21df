"""This host: room, rights, file systems, versions."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from mulligan.checks.finding import FAIL, OK, WARN, Check, Checks
from mulligan.config import Settings
from mulligan.engine.life import state_folder
from mulligan.policy.phrase import size
from mulligan.store.urls import sqlite_file

LITTLE_ROOM, NO_ROOM = 1_000_000_000, 100_000_000  # bytes
LONG_WAL = 256_000_000
LIBRARIES = ("apsw", "psycopg", "pydantic", "click", "rich", "fastapi", "uvicorn")
# SQLite needs locks and shared memory that all processes see alike.
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "ocfs2", "gfs2"}
)
DOUBTFUL = frozenset(
    {"9p", "virtiofs", "vboxsf", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.grpcfuse"}
)
MOUNTS = Path("/proc/self/mountinfo")


def host_checks(settings: Settings) -> Checks:
    yield python()
    file = sqlite_file(settings.database_url)
    for folder in _folders(settings, file):
        yield room(folder)
    if file is not None and file.exists():
        yield rights(file)
        yield file_system(file, MOUNTS.read_text(encoding="utf-8") if MOUNTS.exists() else "")
        yield from _wal(file)
    yield from _state_rights(settings, file)


def python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check(OK, "versions", ", ".join([f"Python {version}", *_libraries()]))


def _libraries() -> Iterator[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


# -- room -------------------------------------------------------------------------------------------
def _folders(settings: Settings, file: Path | None) -> list[Path]:
    """Where we write: the database's folder, and that of life files and work directories if it is elsewhere."""
    folders = [] if file is None else [_standing(file.parent)]
    state = settings.worker.state_dir
    if state or file is None:
        folders.append(_standing(Path(state) if state else state_folder("", "", "")))
    return list(dict.fromkeys(folders))


def _standing(folder: Path) -> Path:
    """It, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def room(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    status = FAIL if free < NO_ROOM else WARN if free < LITTLE_ROOM else OK
    return Check(status, "disk", f"{size(free)} free at {folder}", "" if status == OK else "make room there")


def _wal(file: Path) -> Checks:
    wal = Path(f"{file}-wal")
    if wal.exists() and wal.stat().st_size > LONG_WAL:
        found = f"{wal.name} has {size(wal.stat().st_size)}: a reader has been open for long"
        yield Check(WARN, "wal", found, f"find who holds it: lsof {file}")


# -- rights -----------------------------------------------------------------------------------------
def rights(file: Path) -> Check:
    beside = [path for path in (Path(f"{file}-wal"), Path(f"{file}-shm")) if path.exists()]
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return Check(FAIL, "permissions", f"this user cannot write into {file.parent}", f"chown or chmod {file.parent}")
    for path in (file, *beside):
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"chown or chmod {path} (was it made by another user, or by root?)"
            return Check(FAIL, "permissions", f"this user cannot write {path}", advice)
    open_to_others = [path for path in (file, *beside) if path.stat().st_mode & 0o077]
    if open_to_others:
        names = " ".join(str(path) for path in open_to_others)
        mode = open_to_others[0].stat().st_mode & 0o777
        return Check(
            WARN, "permissions", f"others may read it (mode {mode:o}): it holds payloads", f"chmod 600 {names}"
        )
    return Check(OK, "permissions", f"mode {file.stat().st_mode & 0o777:o}")


def _state_rights(settings: Settings, file: Path | None) -> Checks:
    folder = Path(f"{file}-life") if file is not None and not settings.worker.state_dir else None
    if folder is None and settings.worker.state_dir:
        folder = Path(settings.worker.state_dir)
    if folder is not None and folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Check(FAIL, "permissions", f"this user cannot write into {folder}", f"chown or chmod {folder}")


# -- file systems -----------------------------------------------------------------------------------
def file_system(file: Path, mounts: str) -> Check:
    kind = kind_of_mount(file, mounts)
    advice = "move the file to a local disk, or use PostgreSQL"
    if kind in REMOTE:
        return Check(FAIL, "file system", f"{file} is on {kind}: SQLite's locks do not hold over a network", advice)
    if kind in DOUBTFUL or kind.startswith("fuse."):
        return Check(WARN, "file system", f"{file} is on {kind}, which may not keep SQLite's locks", advice)
    return Check(OK, "file system", kind or "not known on this system")


def kind_of_mount(file: Path, mounts: str) -> str:
    """By /proc/self/mountinfo: the longest mount point above the file, the last of them if there are several."""
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = file.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind

"""Checks of the database and the host: versions, schema, durability, disk, permissions."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from mulligan.config import Settings
from mulligan.core.errors import MulliganError
from mulligan.core.format import format_size
from mulligan.storage import Store, sqlite_path
from mulligan.worker.liveness import state_folder

OK = "ok"
WARN = "warn"
FAIL = "fail"


class Check(NamedTuple):
    """Result of a check: status, subject, one sentence, and what to type next."""

    status: str
    check: str
    found: str
    next: str = ""


Checks = Iterable[Check]


# --- Database ---

MIN_SQLITE = (3, 51, 3)  # the first without the race at the reset of a WAL
MIN_POSTGRES = (14,)


def database_version(facts: dict[str, str]) -> Checks:
    if "library" in facts:
        yield _version(
            "SQLite",
            facts["library"].rpartition(" ")[2],
            MIN_SQLITE,
            "sqlite:/// instead of sqlite+stdlib:///",
        )
    if "server" in facts:
        yield _version("PostgreSQL", facts["server"], MIN_POSTGRES, "upgrade the server")


def _version(name: str, found: str, least: tuple[int, ...], advice: str) -> Check:
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    wanted = ".".join(str(part) for part in least)
    if numbers >= least:
        return Check(OK, "database version", f"{name} {found}")
    if name == "SQLite":
        return Check(
            WARN,
            "database version",
            f"{name} {found}: before {wanted} the WAL can lose a commit",
            advice,
        )
    return Check(FAIL, "database version", f"{name} {found} is older than {wanted}", advice)


def schema_checks(store: Store) -> Checks:
    try:
        pending = store.migrate(dry_run=True)
    except MulliganError as error:
        yield Check(
            FAIL,
            "schema",
            str(error),
            "upgrade this installation, or use the version that created the schema",
        )
        return
    newer = store.newer_steps()
    if newer:
        found = f"newer than this version, which may use it: it has {', '.join(newer)}"
        yield Check(OK, "schema", found)
    elif not pending:
        yield Check(OK, "schema", "up to date")
    elif store.is_empty():
        yield Check(FAIL, "schema", "not created yet", "mulligan migrate")
    else:
        yield Check(
            FAIL,
            "schema",
            f"{len(pending)} migrations are pending: {', '.join(pending)}",
            "mulligan migrate",
        )


def durability_checks(facts: dict[str, str]) -> Checks:
    if facts.get("fsync", "on") != "on":
        yield Check(
            WARN,
            "durability",
            "fsync = off: a power cut may destroy the whole database",
            "set fsync = on",
        )
    if facts.get("journal_mode", "wal") != "wal":
        found = f"journal_mode = {facts['journal_mode']}: readers and the writer block each other"
        yield Check(
            WARN,
            "durability",
            found,
            "move the file to a file system with shared memory; WAL needs it",
        )
    for name in ("synchronous", "synchronous_commit"):
        value = facts.get(name)
        if value is not None and "weaker" in value:
            advice = f"set {name} back: a power cut may lose jobs whose enqueue has returned"
            yield Check(WARN, "durability", f"{name} = {value}", advice)
        elif value is not None:
            journal = f", journal_mode = {facts['journal_mode']}" if "journal_mode" in facts else ""
            yield Check(OK, "durability", f"{name} = {value}{journal}")


def listen_checks(store: Store, facts: dict[str, str]) -> Checks:
    """Check whether LISTEN works, directly or through a pooler."""
    if "server" not in facts:
        return
    pooled = facts.get("pooler", "no") != "no"
    try:
        receives = store.receives_notifications()
    except Exception as error:  # noqa: BLE001 - listen_url may lead anywhere
        yield Check(
            FAIL,
            "wake-ups",
            f"LISTEN cannot connect: {' '.join(str(error).split())}",
            "check listen_url",
        )
        return
    route = "through a pooler" if pooled else "no pooler"
    if receives:
        yield Check(OK, "wake-ups", f"LISTEN works, {route}")
    else:
        found = (
            f"LISTEN does not work ({route}): workers poll, so jobs start up to worker.poll later"
        )
        yield Check(
            WARN, "wake-ups", found, "set MULLIGAN_LISTEN_URL to a direct postgresql:// URL"
        )


# --- Host ---

LOW_DISK, FULL_DISK = 1_000_000_000, 100_000_000  # bytes
LARGE_WAL = 256_000_000
LIBRARIES = ("apsw", "psycopg", "pydantic", "click", "rich", "fastapi", "uvicorn")
# SQLite needs file locks and shared memory that work across processes.
REMOTE = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "ocfs2",
        "gfs2",
    }
)
UNRELIABLE = frozenset(
    {
        "9p",
        "virtiofs",
        "vboxsf",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.grpcfuse",
    }
)
MOUNTS = Path("/proc/self/mountinfo")


def host_checks(settings: Settings) -> Checks:
    yield python_versions()
    file = sqlite_path(settings.database_url)
    for folder in _folders(settings, file):
        yield disk_space(folder)
    if file is not None and file.exists():
        yield file_permissions(file)
        mounts = MOUNTS.read_text(encoding="utf-8") if MOUNTS.exists() else ""
        yield file_system(file, mounts)
        yield from _wal(file)
    yield from _state_permissions(settings, file)


def python_versions() -> Check:
    """Report the versions of Python and the libraries."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check(OK, "versions", ", ".join([f"Python {version}", *_libraries()]))


def _libraries() -> Iterator[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


# --- Disk ---
def _folders(settings: Settings, file: Path | None) -> list[Path]:
    """Return the folders we write to: of the database, and of liveness files if elsewhere."""
    folders = []
    if file is not None:
        folders.append(_existing_folder(file.parent))
    if settings.worker.state_dir:
        folders.append(_existing_folder(Path(settings.worker.state_dir)))
    elif file is None:
        folders.append(_existing_folder(state_folder("", "", "")))
    return list(dict.fromkeys(folders))


def _existing_folder(folder: Path) -> Path:
    """Return the folder or its nearest existing parent."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def disk_space(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{format_size(free)} free at {folder}"
    if free >= LOW_DISK:
        return Check(OK, "disk", found)
    status = FAIL if free < FULL_DISK else WARN
    return Check(status, "disk", found, "free disk space there")


def _wal(file: Path) -> Checks:
    wal = Path(f"{file}-wal")
    if wal.exists() and wal.stat().st_size > LARGE_WAL:
        size = format_size(wal.stat().st_size)
        found = f"{wal.name} has {size}: a reader has been open for a long time"
        yield Check(WARN, "wal", found, f"find the process: lsof {file}")


# --- Permissions ---
def file_permissions(file: Path) -> Check:
    files = [file]
    for suffix in ("-wal", "-shm"):
        companion = Path(f"{file}{suffix}")
        if companion.exists():
            files.append(companion)
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return Check(
            FAIL,
            "permissions",
            f"this user cannot write into {file.parent}",
            f"chown or chmod {file.parent}",
        )
    for path in files:
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"chown or chmod {path} (it may belong to another user or root)"
            return Check(FAIL, "permissions", f"this user cannot write {path}", advice)
    open_to_others = [path for path in files if path.stat().st_mode & 0o077]
    if open_to_others:
        names = " ".join(str(path) for path in open_to_others)
        mode = open_to_others[0].stat().st_mode & 0o777
        return Check(
            WARN,
            "permissions",
            f"other users can read it (mode {mode:o}); it contains payloads",
            f"chmod 600 {names}",
        )
    return Check(OK, "permissions", f"mode {file.stat().st_mode & 0o777:o}")


def _state_permissions(settings: Settings, file: Path | None) -> Checks:
    if settings.worker.state_dir:
        folder = Path(settings.worker.state_dir)
    elif file is not None:
        folder = Path(f"{file}-life")
    else:
        return
    if folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Check(
            FAIL, "permissions", f"this user cannot write into {folder}", f"chown or chmod {folder}"
        )


# --- File system ---
def file_system(file: Path, mounts: str) -> Check:
    kind = mount_type(file, mounts)
    advice = "move the file to a local disk, or use PostgreSQL"
    if kind in REMOTE:
        return Check(
            FAIL,
            "file system",
            f"{file} is on {kind}: SQLite locks do not work over a network",
            advice,
        )
    if kind in UNRELIABLE or kind.startswith("fuse."):
        return Check(
            WARN, "file system", f"{file} is on {kind}, which may not support SQLite locks", advice
        )
    return Check(OK, "file system", kind or "unknown")


def mount_type(file: Path, mounts: str) -> str:
    """Return the file system type from /proc/self/mountinfo: the longest mount point wins."""
    best = ""
    kind = ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = file.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best = point
            kind = after.split()[0]
    return kind

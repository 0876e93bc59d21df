"""This host: room, rights, file systems, versions."""

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
from mulligan.core.format import size
from mulligan.storage import Store
from mulligan.storage.url import sqlite_file
from mulligan.worker.liveness import state_folder

# What a check finds: ok, warn or fail, one sentence, and what to type next.

OK, WARN, FAIL = "ok", "warn", "fail"


class Check(NamedTuple):
    status: str
    check: str
    found: str
    next: str = ""


Checks = Iterable[Check]


# The database itself: versions, schema, durability, and what stands between us and it.

SQLITE = (3, 51, 3)  # the first without the race at the reset of a WAL
POSTGRES = (14,)


def versions(facts: dict[str, str]) -> Checks:
    if "library" in facts:
        yield _version(
            "SQLite",
            facts["library"].rpartition(" ")[2],
            SQLITE,
            "sqlite:/// instead of sqlite+stdlib:///",
        )
    if "server" in facts:
        yield _version("PostgreSQL", facts["server"], POSTGRES, "upgrade the server")


def _version(name: str, found: str, least: tuple[int, ...], advice: str) -> Check:
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    wanted = ".".join(str(part) for part in least)
    if numbers >= least:
        return Check(OK, "database version", f"{name} {found}")
    if name == "SQLite":
        return Check(
            WARN,
            "database version",
            f"{name} {found}: before {wanted} a WAL could lose a commit",
            advice,
        )
    return Check(FAIL, "database version", f"{name} {found} is older than {wanted}", advice)


def schema(store: Store) -> Checks:
    try:
        pending = store.migrate(dry_run=True)
    except MulliganError as error:
        yield Check(
            FAIL,
            "schema",
            str(error),
            "use the version of Mulligan that made it, or upgrade this one",
        )
        return
    if not pending:
        yield Check(OK, "schema", "up to date")
    elif store.empty():
        yield Check(FAIL, "schema", "none yet", "mulligan migrate")
    else:
        yield Check(
            FAIL, "schema", f"{len(pending)} steps behind: {', '.join(pending)}", "mulligan migrate"
        )


def durability(facts: dict[str, str]) -> Checks:
    if facts.get("fsync", "on") != "on":
        yield Check(
            WARN,
            "durability",
            "fsync = off: a power cut may destroy the whole database",
            "set fsync = on",
        )
    if facts.get("journal_mode", "wal") != "wal":
        found = (
            f"journal_mode = {facts['journal_mode']}: readers and the writer wait for each other"
        )
        yield Check(WARN, "durability", found, "can this file system share memory? WAL needs it")
    for name in ("synchronous", "synchronous_commit"):
        value = facts.get(name)
        if value is not None and "weaker" in value:
            advice = f"set {name} back: a power cut may lose jobs that enqueue has promised"
            yield Check(WARN, "durability", f"{name} = {value}", advice)
        elif value is not None:
            beside = f", journal_mode = {facts['journal_mode']}" if "journal_mode" in facts else ""
            yield Check(OK, "durability", f"{name} = {value}{beside}")


def database_checks(store: Store, facts: dict[str, str]) -> Checks:
    """Only a server can have something in between."""
    if "server" not in facts:
        return
    pooled = facts.get("pooler", "no") != "no"
    try:
        hears = store.hears()
    except Exception as error:  # noqa: BLE001 - listen_url may lead anywhere
        yield Check(
            FAIL,
            "wake-ups",
            f"LISTEN cannot connect: {' '.join(str(error).split())}",
            "is listen_url right?",
        )
        return
    between = "through a pooler" if pooled else "no pooler in between"
    if hears:
        yield Check(OK, "wake-ups", f"LISTEN reaches us, {between}")
    else:
        found = f"LISTEN does not reach us ({between}): workers poll, jobs start up to worker.poll later"
        yield Check(
            WARN, "wake-ups", found, "MULLIGAN_LISTEN_URL=postgresql://… of a direct connection"
        )


# This host: room, rights, file systems, versions.

LITTLE_ROOM, NO_ROOM = 1_000_000_000, 100_000_000  # bytes
LONG_WAL = 256_000_000
LIBRARIES = ("apsw", "psycopg", "pydantic", "click", "rich", "fastapi", "uvicorn")
# SQLite needs locks and shared memory that all processes see alike.
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
DOUBTFUL = frozenset(
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
    return Check(
        status, "disk", f"{size(free)} free at {folder}", "" if status == OK else "make room there"
    )


def _wal(file: Path) -> Checks:
    wal = Path(f"{file}-wal")
    if wal.exists() and wal.stat().st_size > LONG_WAL:
        found = f"{wal.name} has {size(wal.stat().st_size)}: a reader has been open for long"
        yield Check(WARN, "wal", found, f"find who holds it: lsof {file}")


# -- rights -----------------------------------------------------------------------------------------
def rights(file: Path) -> Check:
    beside = [path for path in (Path(f"{file}-wal"), Path(f"{file}-shm")) if path.exists()]
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return Check(
            FAIL,
            "permissions",
            f"this user cannot write into {file.parent}",
            f"chown or chmod {file.parent}",
        )
    for path in (file, *beside):
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"chown or chmod {path} (was it made by another user, or by root?)"
            return Check(FAIL, "permissions", f"this user cannot write {path}", advice)
    open_to_others = [path for path in (file, *beside) if path.stat().st_mode & 0o077]
    if open_to_others:
        names = " ".join(str(path) for path in open_to_others)
        mode = open_to_others[0].stat().st_mode & 0o777
        return Check(
            WARN,
            "permissions",
            f"others may read it (mode {mode:o}): it holds payloads",
            f"chmod 600 {names}",
        )
    return Check(OK, "permissions", f"mode {file.stat().st_mode & 0o777:o}")


def _state_rights(settings: Settings, file: Path | None) -> Checks:
    folder = Path(f"{file}-life") if file is not None and not settings.worker.state_dir else None
    if folder is None and settings.worker.state_dir:
        folder = Path(settings.worker.state_dir)
    if (
        folder is not None
        and folder.exists()
        and not os.access(folder, os.R_OK | os.W_OK | os.X_OK)
    ):
        yield Check(
            FAIL, "permissions", f"this user cannot write into {folder}", f"chown or chmod {folder}"
        )


# -- file systems -----------------------------------------------------------------------------------
def file_system(file: Path, mounts: str) -> Check:
    kind = kind_of_mount(file, mounts)
    advice = "move the file to a local disk, or use PostgreSQL"
    if kind in REMOTE:
        return Check(
            FAIL,
            "file system",
            f"{file} is on {kind}: SQLite's locks do not hold over a network",
            advice,
        )
    if kind in DOUBTFUL or kind.startswith("fuse."):
        return Check(
            WARN, "file system", f"{file} is on {kind}, which may not keep SQLite's locks", advice
        )
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

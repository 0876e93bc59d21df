"""A copy of a live SQLite file: one moment of it, whole, while others go on writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from mulligan.errors import Refused, StoreUnavailable
from mulligan.store.handle import UNAVAILABLE, ApswHandle

PAGES = 2000  # copied between two words about progress
Progress = Callable[[int, int], None]  # pages done, pages in all


def copy(source: Path, target: Path, progress: Progress) -> None:
    """`target` is there whole and checked, on disk, or not at all."""
    part = target.with_name(f".{target.name}.part")
    _claim(target, part)
    try:
        _copy_pages(source, part, progress)
        _check(part)
        _to_disk(part)
        _name(part, target)
        _to_disk(target.parent)
    except FileExistsError:
        raise Refused(_there(target)) from None
    except UNAVAILABLE as error:
        message = f"cannot copy {source} to {target}: {type(error).__name__}: {error}"
        raise StoreUnavailable(message) from error
    finally:
        for left in (part, Path(f"{part}-journal"), Path(f"{part}-wal"), Path(f"{part}-shm")):
            left.unlink(missing_ok=True)


def _name(part: Path, target: Path) -> None:
    """A link, unlike a rename, never replaces a file that came meanwhile. Some file systems have none."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        part.replace(target)


def _claim(target: Path, part: Path) -> None:
    """Private from its first byte: it holds payloads."""
    if target.exists():
        raise Refused(_there(target))
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        message = f"{part} is there: another backup writes it, or one was killed. If none runs, remove it"
        raise Refused(message) from None
    except OSError as error:
        message = f"cannot write {part}: {error.strerror}"
        raise Refused(message) from error


def _there(target: Path) -> str:
    return f"{target} exists already; a backup replaces nothing"


def _copy_pages(source: Path, part: Path, progress: Progress) -> None:
    handle = ApswHandle.open(str(source))
    into = apsw.Connection(str(part))
    try:
        handle.execute("BEGIN")  # held open, it keeps one moment in sight; without it each write would start us again
        handle.execute("SELECT count(*) FROM sqlite_master")
        with into.backup("main", handle.connection, "main") as backup:
            while not backup.done:
                backup.step(PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
    finally:
        into.close()
        handle.close()


def _check(part: Path) -> None:
    connection = apsw.Connection(str(part))
    try:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    if found != [("ok",)]:
        message = f"the copy is damaged, and so perhaps the file: {found[0][0]}"
        raise StoreUnavailable(message)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""One SQLite file is opened through one SQLite library per process.

POSIX locks belong to the process, and each copy of SQLite keeps its own table of who holds what. Two copies
in one process both believe they hold the write lock; acknowledged rows disappear. So the first library to
open a file in this process is bound to it, and everything else is refused before anything is written.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

from mulligan.errors import TwoLibraries

FileKey = tuple[int, int]

_lock = threading.Lock()
_bound: dict[FileKey, str] = {}
_opens: Counter[FileKey] = Counter()

ADVICE = (
    "Two SQLite libraries on one file in one process destroy each other's locks and lose rows. Two ways out: "
    "(1) put everything on Mulligan's library: app.transaction() for your own statements, or for SQLAlchemy "
    "create_engine(url, module=mulligan.dbapi); "
    "(2) keep sqlite3 and open Mulligan with sqlite+stdlib:///… in this process (it may enqueue and read, not run workers)."
)


def bind(path: Path, library: str) -> FileKey:
    """Claim the file for a library, or raise TwoLibraries."""
    key = _key(path)
    with _lock:
        holder = _bound.get(key)
        if holder is None and _held_by_somebody(key):
            holder = "another SQLite library"
        if holder not in (None, library):
            message = f"{path} is already open in this process through {holder}, not {library}. {ADVICE}"
            raise TwoLibraries(message)
        _bound[key] = library
        _opens[key] += 1
    return key


def unbind(key: FileKey) -> None:
    with _lock:
        _opens[key] -= 1
        if _opens[key] <= 0:
            del _opens[key]
            _bound.pop(key, None)


def _key(path: Path) -> FileKey:
    stat = path.stat()
    return (stat.st_dev, stat.st_ino)


def _held_by_somebody(key: FileKey) -> bool:
    """Does any open descriptor of this process point at the file? (Linux; elsewhere nobody can tell.)"""
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):  # noqa: PTH112 - not a place for objects: we look while others open and close
        return False
    return any(_points_at(f"{folder}/{fd}", key) for fd in os.listdir(folder))  # noqa: PTH208 - same


def _points_at(descriptor: str, key: FileKey) -> bool:
    try:
        stat = os.stat(descriptor)  # noqa: PTH116 - same
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) == key

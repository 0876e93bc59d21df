"""One SQLite file is opened through one SQLite library per process.

POSIX locks belong to the process, and each copy of SQLite keeps its own table of who holds what. Two copies
in one process both believe they hold the write lock; acknowledged rows disappear. So the first library to
open a file in this process is bound to it, and everything else is refused before anything is written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mulligan.errors import TwoLibraries

FileKey = tuple[int, int]
STDLIB = "sqlite3"

_listening = False
_lock = threading.Lock()
_bound: dict[FileKey, str] = {}
_opens: Counter[FileKey] = Counter()

ADVICE = (
    "Two SQLite libraries on one file in one process destroy each other's locks and lose rows. Two ways out: "
    "(1) put everything on Mulligan's library: app.transaction() for your own statements, or for SQLAlchemy "
    'create_engine("sqlite+mulligan:///…"); '
    "(2) keep sqlite3 and open Mulligan with sqlite+stdlib:///… in this process (it may enqueue and read, not run "
    "workers)."
)


def bind(path: Path, library: str) -> FileKey:
    """Claim the file for a library, or raise TwoLibraries."""
    key = _key(path)
    with _lock:
        holder = _bound.get(key)
        # Nobody tells one holder's descriptors from another's: where sqlite3 asks, we take them for its own.
        if holder is None and library != STDLIB and held(key):
            holder = "another SQLite library"
        if holder not in (None, library):
            message = f"{path} is already open in this process through {holder}, not {library}. {ADVICE}"
            raise TwoLibraries(message)
        _bound[key] = library
        _opens[key] += 1
        _listen()
    return key


def unbind(key: FileKey) -> None:
    with _lock:
        _opens[key] -= 1
        if _opens[key] <= 0:
            del _opens[key]
            _bound.pop(key, None)


def _listen() -> None:
    """Hear of every sqlite3.connect to come. An audit hook stays for good, so it is set once, at the first need."""
    global _listening  # noqa: PLW0603 - one hook per process
    if not _listening:
        _listening = True
        sys.addaudithook(_refuse_sqlite3)


def _refuse_sqlite3(event: str, args: tuple[Any, ...]) -> None:
    """sqlite3 is about to open a file. Even to read and close it would drop the locks of the other library."""
    if event != "sqlite3.connect":
        return
    path = _path_of(args[0])
    try:
        holder = _bound.get(_key(path))
    except OSError:
        return
    if holder not in (None, STDLIB):
        message = f"{path} is already open in this process through {holder}, not {STDLIB}. {ADVICE}"
        raise TwoLibraries(message)


def _path_of(database: Any) -> Path:
    name = os.fsdecode(database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def _key(path: Path) -> FileKey:
    stat = path.stat()
    return (stat.st_dev, stat.st_ino)


def after_fork() -> None:
    """In the child: nobody is left who could give the lock back."""
    global _lock  # noqa: PLW0603 - it is this module's own
    _lock = threading.Lock()


def held(key: FileKey) -> bool:
    """Does any open descriptor of this process point at the file?"""
    return any(_points_at(int(name), key) for name in os.listdir("/dev/fd"))  # noqa: PTH208 - names, nothing more


def _points_at(descriptor: int, key: FileKey) -> bool:
    try:
        stat = os.fstat(descriptor)
    except OSError:  # others open and close while we look
        return False
    return (stat.st_dev, stat.st_ino) == key

"""Wake up when a file changes: inotify on Linux, a short sleep elsewhere."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_MODIFY = 0x2
_CREATE = 0x100
_NONBLOCK = os.O_NONBLOCK
_TICK = 0.001  # seconds: a poll is not finer
_TIMERSLACK = 29  # PR_SET_TIMERSLACK
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class FileWatch:
    """`wait(seconds)` returns early when the file (or, before it exists, its folder) changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _open_inotify(path) if sys.platform == "linux" else -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def wait(self, seconds: float) -> bool:
        """True: the file was touched. Where nobody can tell, look often."""
        if self._fd < 0:
            time.sleep(min(seconds, 0.05))
            return False
        if seconds < _TICK:
            time.sleep(seconds)
        else:
            poll = select.poll()  # select() refuses descriptors beyond 1024
            poll.register(self._fd, select.POLLIN)
            poll.poll(seconds * 1000)
        return self._drain()

    def _drain(self) -> bool:
        """Was there anything?"""
        touched = False
        try:
            while os.read(self._fd, 65536):
                touched = True
        except BlockingIOError:
            return touched
        return touched


def _open_inotify(path: Path) -> int:
    """Watch the file, or its folder while it does not exist; -1 when the kernel gives us no watch."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_NONBLOCK | _CLOEXEC)
    if fd < 0:
        return -1
    target = path if path.exists() else path.parent
    if libc.inotify_add_watch(fd, os.fsencode(target), _MODIFY | _CREATE) < 0:
        os.close(fd)
        return -1
    libc.prctl(_TIMERSLACK, 1, 0, 0, 0)  # of this thread, in nanoseconds: else each short sleep is 0.05 ms longer
    return fd

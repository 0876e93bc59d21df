"""A small piece of shared memory in which a runner shows what it is doing, readable after its death.

A message saying "I start this job now" can be lost in a buffer when the process dies or a C call holds the
GIL. What is written here cannot: the supervisor maps the same page. One cell per slot (which dispatch runs
there, since when), one for the loop's heartbeat, all by CLOCK_MONOTONIC, and the highest dispatch started: jobs
start in order, so all below it have started too, whatever became of their messages.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import NamedTuple

# In words of eight bytes, each written at once.
_BEAT, _TOP = 0, 1
_HEAD = 2
_CELL = 2  # the dispatch, its start
_WORD = struct.calcsize("Q")


class Running(NamedTuple):
    seq: int
    since_ns: int


class Board:
    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, (_HEAD + slots * _CELL) * _WORD)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, slots: int) -> Board:
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, (_HEAD + slots * _CELL) * _WORD)
            return cls(fd, slots)
        except OSError:
            os.close(fd)
            raise

    # -- the runner's side ------------------------------------------------------------------------
    def beat(self) -> None:
        self._words[_BEAT] = time.monotonic_ns()

    def start(self, slot: int, seq: int, now_ns: int) -> None:
        words, cell = self._words, _HEAD + slot * _CELL
        words[_TOP] = seq
        words[cell + 1] = now_ns
        words[cell] = seq  # last: whoever sees it sees its start too

    def stop(self, slot: int) -> None:
        self._words[_HEAD + slot * _CELL] = 0

    # -- the supervisor's side --------------------------------------------------------------------
    def last_beat_ns(self) -> int:
        return self._words[_BEAT]

    def top(self) -> int:
        """The highest dispatch that was ever started."""
        return self._words[_TOP]

    def running(self) -> list[Running]:
        cells = self._words[_HEAD:].tolist()
        return [Running(seq, since) for seq, since in zip(cells[::_CELL], cells[1::_CELL], strict=True) if seq]

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mulligan-board", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="mulligan-board-")
    os.unlink(path)  # noqa: PTH108 - the name was never wanted
    return fd

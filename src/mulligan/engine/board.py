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

_BEAT = struct.Struct("=Q")
_TOP = struct.Struct("=Q")
_HEAD = _BEAT.size + _TOP.size
_CELL = struct.Struct("=QQ")
_WORD = struct.Struct("=Q")


class Running(NamedTuple):
    seq: int
    since_ns: int


class Board:
    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, _size(slots))

    @classmethod
    def create(cls, slots: int) -> Board:
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, _size(slots))
            return cls(fd, slots)
        except OSError:
            os.close(fd)
            raise

    # -- the runner's side ------------------------------------------------------------------------
    def beat(self) -> None:
        _BEAT.pack_into(self._map, 0, time.monotonic_ns())

    def start(self, slot: int, seq: int) -> None:
        _TOP.pack_into(self._map, _BEAT.size, seq)
        _WORD.pack_into(self._map, _offset(slot) + _WORD.size, time.monotonic_ns())
        _WORD.pack_into(self._map, _offset(slot), seq)  # last: whoever sees it sees its start too

    def stop(self, slot: int) -> None:
        _WORD.pack_into(self._map, _offset(slot), 0)

    # -- the supervisor's side --------------------------------------------------------------------
    def last_beat_ns(self) -> int:
        return int(_BEAT.unpack_from(self._map, 0)[0])

    def top(self) -> int:
        """The highest dispatch that was ever started."""
        return int(_TOP.unpack_from(self._map, _BEAT.size)[0])

    def running(self) -> list[Running]:
        cells = (_CELL.unpack_from(self._map, _offset(slot)) for slot in range(self.slots))
        return [Running(seq, since) for seq, since in cells if seq]

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _size(slots: int) -> int:
    return _HEAD + slots * _CELL.size


def _offset(slot: int) -> int:
    return _HEAD + slot * _CELL.size


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mulligan-board", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="mulligan-board-")
    os.unlink(path)  # noqa: PTH108 - the name was never wanted
    return fd

"""The status page of a runner: shared memory that is readable after the runner's death."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mulligan.core.attempt_log import LogLine
from mulligan.worker.recording import RecordRing, ring_size

# An array of 8-byte cells, each of which is written atomically. Fences follow: of the attempts that
# started last, first one for each slot, then a ring. Then for each slot the ring of the log records
# of its attempt. After the end of the map, faulthandler writes stacks when the supervisor asks.
_HEARTBEAT = 0
_SLOTS = 2  # cell 1 is unused: workers also read the pages of other versions
_HOOK = 3  # a hook that runs outside of all slots; the next cell has its start
_HEADER_CELLS = 5
# The seq and its start; the hook that runs, its start, and the seq whose handler it precedes; the
# last progress of the attempt, and its thread.
_SLOT_CELLS = 7
_SINCE, _SLOT_HOOK, _BEFORE_HANDLER, _PROGRESS, _THREAD = 1, 2, 4, 5, 6
_CELL_SIZE = struct.calcsize("Q")
_RECORD = struct.Struct("32sQ")  # job id, token
_HEADER = struct.Struct(f"{_HEADER_CELLS}Q")
RING_SIZE = 8192  # more attempts than one worker holds
PAGE_SUFFIX = ".page"
# Raised while a page is read that is missing, cut off or overwritten by a handler.
DAMAGED = (OSError, ValueError, TypeError, IndexError, struct.error)
PAGES_MARK = "pages"  # file: every runner of this worker has a page in its folder

Fence = tuple[str, int]  # job id, token


class Running(NamedTuple):
    """A running attempt."""

    seq: int
    since_ns: int
    progress_ns: int  # its last progress, or that of an earlier attempt
    thread: int  # identifier of the thread that runs its code


class HookCall(NamedTuple):
    """A hook of the app that runs."""

    number: int  # its place among the app's hooks
    since_ns: int


class StatusPage:
    """Heartbeat of a runner, the attempt in each of its slots, and the attempt's last records."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self.size = _page_size(slots)
        self._map = mmap.mmap(fd, self.size)
        records = _records_start(slots)
        self._cells = memoryview(self._map)[:records].cast("Q")
        self._records = memoryview(self._map)[records : _rings_start(slots)]
        self._rings: list[RecordRing | None] = [None] * slots
        self._ring_size = _ring_size(slots)
        self._started = 0  # attempts, by this process

    @classmethod
    def create(cls, slots: int, path: Path | None = None) -> StatusPage:
        """Create a page in a file, so that other workers can read it; else in anonymous memory."""
        if path is None:
            return cls._create(_anonymous_file(), slots)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            return cls._create(fd, slots)
        except OSError:  # a full disk: work without the file, and let no worker rely on it
            for file in (path.with_name(PAGES_MARK), path):
                with contextlib.suppress(OSError):
                    file.unlink()
            return cls._create(_anonymous_file(), slots)

    @classmethod
    def _create(cls, fd: int, slots: int) -> StatusPage:
        try:
            if hasattr(os, "posix_fallocate"):  # a write to a missing block would kill the process
                os.posix_fallocate(fd, 0, _page_size(slots))
            else:
                os.ftruncate(fd, _page_size(slots))
            page = cls(fd, slots)
        except OSError:
            os.close(fd)
            raise
        page._cells[_SLOTS] = slots
        return page

    # Written by the runner.

    def write_heartbeat(self) -> None:
        """Show that the event loop is responsive."""
        self._cells[_HEARTBEAT] = time.monotonic_ns()

    def start(self, slot: int, seq: int, now_ns: int, fence: Fence) -> None:
        """Show an attempt as running."""
        cells = self._cells
        record = _RECORD.pack(fence[0].encode(), fence[1])
        for place in (slot, self.slots + self._started % self._ring_size):
            self._records[place * _RECORD.size : (place + 1) * _RECORD.size] = record
        self._started += 1
        first = _HEADER_CELLS + slot * _SLOT_CELLS
        cells[first + _SINCE] = now_ns
        cells[first] = seq  # last: a reader that finds the seq must find its start too

    def stop(self, slot: int) -> None:
        """Show a slot as free."""
        self._cells[_HEADER_CELLS + slot * _SLOT_CELLS] = 0

    def enter_hooks(self, slot: int, seq: int) -> None:
        """Show that hooks precede the handler of an attempt. Until `start` it has not started."""
        self._cells[_HEADER_CELLS + slot * _SLOT_CELLS + _BEFORE_HANDLER] = seq

    def leave_hooks(self, slot: int) -> None:
        """Show that no hooks precede an attempt in this slot any more."""
        self._cells[_HEADER_CELLS + slot * _SLOT_CELLS + _BEFORE_HANDLER] = 0

    def begin_hook(self, slot: int | None, number: int, now_ns: int) -> None:
        """Show that a hook runs in a slot, or outside of all. `number`: its place in the app."""
        cell = _hook_cell(slot)
        self._cells[cell + 1] = now_ns
        self._cells[cell] = number + 1  # last: a reader that finds it must find its start too

    def end_hook(self, slot: int | None) -> None:
        """Show that no hook runs in a slot, or outside of all."""
        self._cells[_hook_cell(slot)] = 0

    def set_thread(self, slot: int, thread: int) -> None:
        """Show which thread runs the code of an attempt."""
        self._cells[_HEADER_CELLS + slot * _SLOT_CELLS + _THREAD] = thread

    def set_progress(self, slot: int, now_ns: int) -> None:
        """Show that an attempt makes progress."""
        self._cells[_HEADER_CELLS + slot * _SLOT_CELLS + _PROGRESS] = now_ns

    def ring(self, slot: int) -> RecordRing:
        """Return the ring of the records of the attempt in a slot."""
        ring = self._rings[slot]
        if ring is None:
            size = ring_size(self.slots)
            start = _rings_start(self.slots) + slot * size
            ring = RecordRing(memoryview(self._map)[start : start + size])
            self._rings[slot] = ring
        return ring

    # Read by the supervisor.

    def last_heartbeat_ns(self) -> int:
        """Return when the runner last wrote a heartbeat."""
        return self._cells[_HEARTBEAT]

    def started(self) -> frozenset[Fence] | None:
        """Return the attempts that started last, more than a worker holds. None: unreadable."""
        try:
            fences = _read_fences(self._map[: _rings_start(self.slots)])
        except DAMAGED:
            return None
        return frozenset(fence for fence in fences if fence[0])

    def running(self) -> list[Running]:
        """Return the running attempts."""
        cells = self._cells[_HEADER_CELLS:].tolist()
        return [
            Running(seq, cells[at + _SINCE], cells[at + _PROGRESS], cells[at + _THREAD])
            for at in range(0, len(cells), _SLOT_CELLS)
            if (seq := cells[at])
        ]

    def hook_calls(self) -> list[HookCall]:
        """Return the hooks that run."""
        cells = self._cells.tolist()
        places = [_HOOK, *range(_hook_cell(0), len(cells), _SLOT_CELLS)]
        return [HookCall(cells[place] - 1, cells[place + 1]) for place in places if cells[place]]

    def busy_slots(self) -> int:
        """Return how many slots run a handler or a hook."""
        cells = self._cells[_HEADER_CELLS:].tolist()
        slots = zip(cells[::_SLOT_CELLS], cells[_SLOT_HOOK::_SLOT_CELLS], strict=True)
        outside = int(self._cells[_HOOK] > 0)
        return outside + sum(1 for seq, hook in slots if seq or hook)

    def before_handler(self) -> set[int]:
        """Return the seqs of attempts whose hooks run, and whose handlers have not started."""
        cells = self._cells[_HEADER_CELLS:].tolist()
        return {seq for seq in cells[_BEFORE_HANDLER::_SLOT_CELLS] if seq}

    def records(self, seq: int, limit: int) -> list[LogLine]:
        """Return the last records of an attempt, wherever it runs or ran."""
        for slot in range(self.slots):
            if found := self.ring(slot).read(seq, limit):
                return found
        return []

    def close(self) -> None:
        """Release the memory."""
        for ring in self._rings:
            if ring is not None:
                ring.release()
        self._cells.release()
        self._records.release()
        self._map.close()
        os.close(self.fd)


class StartedAttempts(NamedTuple):
    """Attempts on the pages of a worker that is gone."""

    running: frozenset[Fence]
    started: frozenset[Fence]  # running, or ended without a known outcome


def read_started_attempts(folder: Path) -> StartedAttempts | None:
    """Read the pages of all runners of a dead worker. None: unknown."""
    if not (folder / PAGES_MARK).exists():
        return None
    running: set[Fence] = set()
    started: set[Fence] = set()
    try:
        for path in folder.glob(f"*{PAGE_SUFFIX}"):
            found = _parse_page(path.read_bytes())
            running |= found.running
            started |= found.started
    except DAMAGED:
        return None
    return StartedAttempts(frozenset(running), frozenset(started))


def read_records(folder: Path, limits: Mapping[Fence, int]) -> dict[Fence, list[LogLine]]:
    """Read the last log records of attempts that ran when their worker died, from its pages.

    `limits`: how many records of each attempt. Those that cannot be read are missing.
    """
    found: dict[Fence, list[LogLine]] = {}
    for path in folder.glob(f"*{PAGE_SUFFIX}"):
        with contextlib.suppress(*DAMAGED):
            page = path.read_bytes()
            for slot, (fence, seq) in enumerate(_read_slots(page)):
                if seq and fence in limits:
                    found[fence] = _ring_of_page(page, slot).read(seq, limits[fence])
    return found


def _ring_of_page(page: bytes, slot: int) -> RecordRing:
    slots = _HEADER.unpack_from(page)[_SLOTS]
    size = ring_size(slots)
    start = _rings_start(slots) + slot * size
    return RecordRing(memoryview(page)[start : start + size])


def _parse_page(page: bytes) -> StartedAttempts:
    running = {fence for fence, seq in _read_slots(page) if seq}
    return StartedAttempts(frozenset(running), frozenset(f for f in _read_fences(page) if f[0]))


def _read_slots(page: bytes) -> list[tuple[Fence, int]]:
    """Return the last attempt of each slot, and its seq if it is running."""
    slots = _HEADER.unpack_from(page)[_SLOTS]
    seqs = struct.unpack_from(f"{slots * _SLOT_CELLS}Q", page, _HEADER.size)[::_SLOT_CELLS]
    return list(zip(_read_fences(page)[:slots], seqs, strict=True))


def _read_fences(page: bytes) -> list[Fence]:
    slots = _HEADER.unpack_from(page)[_SLOTS]
    records = page[_records_start(slots) : _rings_start(slots)]
    return [(job.rstrip(b"\0").decode(), token) for job, token in _RECORD.iter_unpack(records)]


def _hook_cell(slot: int | None) -> int:
    return _HOOK if slot is None else _HEADER_CELLS + slot * _SLOT_CELLS + _SLOT_HOOK


def _records_start(slots: int) -> int:
    return (_HEADER_CELLS + slots * _SLOT_CELLS) * _CELL_SIZE


def _ring_size(slots: int) -> int:
    """Return how many attempts are remembered. A runner with one slot runs one attempt."""
    return 1 if slots == 1 else slots + RING_SIZE


def _rings_start(slots: int) -> int:
    return _records_start(slots) + (slots + _ring_size(slots)) * _RECORD.size


def _page_size(slots: int) -> int:
    return _rings_start(slots) + slots * ring_size(slots)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mulligan-status", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="mulligan-status-")
    os.unlink(path)  # noqa: PTH108 - the descriptor is all that is needed
    return fd

"""Records of a running attempt in shared memory, and what is stored of them when it fails.

A record is a log record or a line of output. Each slot of a runner has a ring of bytes on the
status page, which holds the last records of the attempt that runs in it. The memory survives the
runner, so the supervisor can read the last lines of a process that was killed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from json.encoder import encode_basestring as _quote

from mulligan.core.attempt_log import AttemptLog, LogLine, to_log_line
from mulligan.core.format import cut_middle
from mulligan.failures.redact import scrub

MAX_MESSAGE = 4096  # characters of one record
MAX_NAME = 200  # characters of a logger's name
STORED_LIMIT = 65_536  # characters of the records of one attempt
MIN_RING = 8192  # bytes
MAX_RING = 65_536
ALL_RINGS = 1 << 24  # bytes of all rings of a runner with very many slots

_CELL_SIZE = 8
_SEQ, _WRITTEN = 0, 1
_HEADER_SIZE = 2 * _CELL_SIZE
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def ring_size(slots: int) -> int:
    """Return the bytes of each ring of a runner."""
    return max(MIN_RING, min(MAX_RING, ALL_RINGS // slots // _CELL_SIZE * _CELL_SIZE))


class RecordRing:
    """The last records of the attempt in one slot.

    Two cells come first: the seq of the attempt, and how many bytes it has ever written. The count
    is written after the bytes, so that a killed process leaves at most one damaged record, the
    oldest, which is skipped.
    """

    def __init__(self, memory: memoryview) -> None:
        self._cells = memory[:_HEADER_SIZE].cast("Q")
        self._data = memory[_HEADER_SIZE:]
        self._size = len(self._data)

    def write(self, seq: int, line: bytes) -> None:
        """Append a line. The first one of an attempt forgets the attempt before it."""
        cells = self._cells
        if cells[_SEQ] != seq:
            cells[_WRITTEN] = 0
            cells[_SEQ] = seq
        line = line[: self._size]
        written = cells[_WRITTEN]
        begin = written % self._size
        left = self._size - begin
        head = line[:left]
        self._data[begin : begin + len(head)] = head
        if len(line) > left:
            self._data[: len(line) - left] = line[left:]
        cells[_WRITTEN] = written + len(line)

    def read(self, seq: int, limit: int) -> list[LogLine]:
        """Return the last records of an attempt, oldest first."""
        if not limit or self._cells[_SEQ] != seq:
            return []
        written = self._cells[_WRITTEN]
        if written <= self._size:
            lines = bytes(self._data[:written]).split(b"\n")
        else:
            begin = written % self._size
            data = bytes(self._data[begin:]) + bytes(self._data[:begin])
            lines = data.split(b"\n")[1:]  # the first one was overwritten in part
        return [record for line in lines[-limit - 1 :] if (record := _parse(line))][-limit:]

    def release(self) -> None:
        """Release the memory."""
        self._cells.release()
        self._data.release()


def _parse(line: bytes) -> LogLine | None:
    """Parse a line. None for one that is empty or damaged."""
    try:
        return to_log_line(json.loads(line))
    except (ValueError, RecursionError):
        return None


# --- Write ---

# Reentrant: a signal handler may log while its thread writes a record.
_lock = threading.RLock()


class Recording:
    """The records of one attempt in its own process."""

    __slots__ = ("_closed", "_limit", "_partial", "_ring", "_seq")

    def __init__(self, ring: RecordRing, seq: int, limit: int) -> None:
        self._ring = ring
        self._seq = seq
        self._limit = limit
        self._closed = False
        self._partial: dict[str, str] = {}  # of each output: a line that has not ended

    def add(self, level: str, source: str, message: str, at: float | None = None) -> None:
        """Add a record. `at`: seconds since the epoch; None: now."""
        if at is None:
            at = time.time()
        # JSON, built by hand: every line that a job logs passes here, and an encoder takes longer.
        level, source = _quote(str(level)[:MAX_NAME]), _quote(str(source)[:MAX_NAME])
        text = _quote(cut_middle(message, MAX_MESSAGE, 0))
        record = f"[{int(at * 1e6)},{level},{source},{text}]\n"
        line = record.encode("utf-8", "surrogatepass")
        with _lock:
            if not self._closed:
                self._ring.write(self._seq, line)

    def add_output(self, source: str, text: str) -> None:
        """Add what was written to an output: a record for each whole line."""
        with _lock:
            *lines, rest = (self._partial.get(source, "") + text).split("\n")
            if len(rest) > MAX_MESSAGE:
                lines.append(rest)
                rest = ""
            self._partial[source] = rest
        for line in lines[-self._limit :]:
            self.add("", source, line.rstrip("\r"))

    def end(self) -> list[LogLine]:
        """Add unfinished lines, accept no more records, and return the last ones."""
        for source, rest in list(self._partial.items()):
            if rest:
                self.add("", source, rest)
        with _lock:
            self._closed = True
            return self._ring.read(self._seq, self._limit)

    def close(self) -> None:
        """Accept no more records: another attempt may use the ring."""
        self._closed = True


def reset_lock_after_fork() -> None:
    """Free the lock in a forked child, where the thread that held it does not exist."""
    _lock._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as in `logging`


# --- Store ---


def encode_records(records: Sequence[LogLine]) -> str:
    """Return records as JSON, without secrets. Old ones are left out beyond the limit."""
    lines: list[str] = []
    size = 0
    for record in reversed(records):
        line = _encode([*record[:3], scrub(record.message, MAX_MESSAGE)])
        size += len(line) + 1
        if size > STORED_LIMIT:
            break
        lines.append(line)
    return f"[{','.join(reversed(lines))}]" if lines else ""


def build_log(records: str, stacks: str) -> AttemptLog | None:
    """Return the log of an attempt. None if there is nothing to store."""
    return AttemptLog(records, stacks) if records or stacks else None

"""A program started by `ctx.run`: part of the attempt's session, in a group of its own, carrying its mark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from mulligan.engine.life import MARK, kill_marked
from mulligan.errors import ProcessFailed, Stopped

TAIL = 8192
OUTPUT_LIMIT = 16 * 1024 * 1024
STOP_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
DRAIN_GRACE = 1.0  # seconds a pipe held open by a grandchild may delay the end


class Program:
    def __init__(self, command: list[str], folder: Path, mark: str) -> None:
        self._command = command
        self._folder = folder
        self._mark = mark
        self._stop = threading.Event()
        self._ended = False

    def stop(self) -> None:
        """Ask it to end; `run` sees to it that it does."""
        self._stop.set()

    def run(self, timeout: float | None, given: str | bytes | None, on_line: Callable[[str], None] | None) -> str:
        process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env={**os.environ, MARK: self._mark},
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        out, err = _Reader(process.stdout, OUTPUT_LIMIT, on_line), _Reader(process.stderr, TAIL, None)
        _feed(process.stdin, given)
        timed_out = self._wait(process, timeout)
        deadline = time.monotonic() + DRAIN_GRACE
        out.join(deadline)
        err.join(deadline)
        if self._stop.is_set() or timed_out:
            kill_marked(self._mark)
        if out.error is not None:
            raise out.error
        return self._verdict(process.returncode, out.text(), err.text(), timed_out=timed_out)

    def _verdict(self, code: int, out: str, err: str, *, timed_out: bool) -> str:
        program = Path(self._command[0]).name
        if timed_out:
            raise ProcessFailed(program, timed_out=True, stderr=err)
        if self._stop.is_set():
            message = f"{program} was stopped with its attempt"
            raise Stopped(message)
        if code < 0:
            raise ProcessFailed(program, signal=-code, stderr=err)
        if code > 0:
            raise ProcessFailed(program, exit_code=code, stderr=err)
        return out

    def _wait(self, process: subprocess.Popen[bytes], timeout: float | None) -> bool:
        """True: it ran out of time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        watcher = threading.Thread(target=self._end_when_asked, args=(process,), daemon=True)
        watcher.start()
        try:
            process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _end(process)
            return True
        finally:
            self._ended = True
        return False

    def _end_when_asked(self, process: subprocess.Popen[bytes]) -> None:
        while not self._ended:
            if self._stop.wait(0.2):
                _end(process)
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to its group, then SIGKILL for whoever ignores it."""
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_GRACE)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _feed(pipe: IO[bytes] | None, given: str | bytes | None) -> None:
    if pipe is None or given is None:
        return
    data = given.encode() if isinstance(given, str) else given

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(data)

    threading.Thread(target=write, daemon=True).start()


class _Reader(threading.Thread):
    """Reads a pipe to its end, keeps the last part, hands lines on as they come."""

    def __init__(self, pipe: IO[bytes] | None, limit: int, on_line: Callable[[str], None] | None) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self._on_line = on_line
        self._kept: deque[bytes] = deque()
        self._size = 0
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        pipe = self._pipe
        if pipe is None:
            return
        with pipe:
            for line in iter(lambda: pipe.readline(65536), b""):
                self._keep(line)
                self._hand_on(line)

    def _hand_on(self, line: bytes) -> None:
        """A callback that raises must not leave the program stuck on a full pipe; it is raised at the end."""
        if self._on_line is None or self.error is not None:
            return
        try:
            self._on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the handler's
            self.error = error

    def _keep(self, line: bytes) -> None:
        self._kept.append(line)
        self._size += len(line)
        while self._size - len(self._kept[0]) > self._limit:
            self._size -= len(self._kept.popleft())

    def join(self, deadline: float | None = None) -> None:
        super().join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def text(self) -> str:
        return b"".join(list(self._kept)).decode("utf-8", "replace")

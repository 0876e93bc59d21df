"""A program started by `ctx.run`: part of the attempt's session, in a group of its own, carrying its mark."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

from mulligan.config import OURS_ALONE
from mulligan.core.errors import ProcessFailed, Refused, Stopped
from mulligan.worker.liveness import MARK, kill_marked

TAIL = 8192
OUTPUT_LIMIT = 16 * 1024 * 1024
STOP_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
DRAIN_GRACE = 1.0  # seconds a pipe held open by a grandchild may delay the end

T = TypeVar("T")


class Program:
    """Its mark is its own: what is left of one program is killed without touching the attempt's others."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        mark: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._command = command
        self._folder = folder
        self._mark = mark
        self._environment = {**environment, MARK: mark}
        self._stop = threading.Event()
        self._ended = False

    def stop(self) -> None:
        """Ask it to end; `run` sees to it that it does."""
        self._stop.set()

    def run(
        self, given: bytes | None, timeout: float | None, on_line: Callable[[str], None] | None
    ) -> str:
        process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env={**_inherited(), **self._environment},
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        try:
            out, err = (
                _Reader(process.stdout, OUTPUT_LIMIT, on_line),
                _Reader(process.stderr, TAIL, None),
            )
            _feed(process.stdin, given)
            timed_out = self._wait(process, timeout)
        except BaseException:
            _end(process)  # whatever it was, nobody waits for this program any more
            raise
        deadline = time.monotonic() + DRAIN_GRACE
        out.join(deadline)
        err.join(deadline)
        if self._stop.is_set() or timed_out:
            kill_marked(self._mark)
        if out.error is not None:
            raise out.error
        self._judge(process.returncode, err.text(), timed_out=timed_out)
        if out.cut and on_line is None:
            message = (
                f"{self._name} printed more than {OUTPUT_LIMIT} bytes; "
                "let it write into a file in ctx.workdir, or take its lines with on_line="
            )
            raise Refused(message)
        return out.text()

    @property
    def _name(self) -> str:
        return Path(self._command[0]).name

    def _judge(self, code: int, err: str, *, timed_out: bool) -> None:
        if timed_out:
            raise ProcessFailed(self._name, timed_out=True, stderr=err)
        if self._stop.is_set():
            message = f"{self._name} was stopped with its attempt"
            raise Stopped(message)
        if code < 0:
            raise ProcessFailed(self._name, signal=-code, stderr=err)
        if code > 0:
            raise ProcessFailed(self._name, exit_code=code, stderr=err)

    def _wait(self, process: subprocess.Popen[bytes], timeout: float | None) -> bool:
        """True: it ran out of time."""
        watcher = threading.Thread(target=self._end_when_asked, args=(process,), daemon=True)
        watcher.start()
        try:
            process.wait(timeout)
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


def _inherited() -> dict[str, str]:
    """Ours, without what opens our database and our mail."""
    return {name: value for name, value in os.environ.items() if name not in OURS_ALONE}


async def in_a_thread(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run a blocking call on a thread of its own: the loop's pool is small, and everybody else's too.

    Cancelled, it asks the call to `stop`, waits until it has, and only then lets the cancellation pass.
    """
    done: Future[None] = Future()
    results: list[T] = []
    errors: list[BaseException] = []  # not every exception fits into a future

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            errors.append(error)
        done.set_result(None)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    waiting = asyncio.wrap_future(done)
    try:
        await asyncio.wait({waiting})
    except asyncio.CancelledError:
        stop()
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({waiting})
        raise
    for error in errors:
        raise error
    return results[0]


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


def _feed(pipe: IO[bytes] | None, given: bytes | None) -> None:
    if pipe is None or given is None:
        return

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(given)

    threading.Thread(target=write, daemon=True).start()


class _Reader(threading.Thread):
    """Reads a pipe to its end, keeps the last part, hands lines on as they come."""

    def __init__(
        self, pipe: IO[bytes] | None, limit: int, on_line: Callable[[str], None] | None
    ) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self._on_line = on_line
        self._kept: deque[bytes] = deque()
        self._size = 0
        self.cut = False
        self.error: BaseException | None = None
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
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the handler's
            self.error = error

    def _keep(self, line: bytes) -> None:
        self._kept.append(line)
        self._size += len(line)
        while self._size - len(self._kept[0]) > self._limit:
            self._size -= len(self._kept.popleft())
            self.cut = True

    def join(self, deadline: float | None = None) -> None:
        super().join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def text(self) -> str:
        return b"".join(list(self._kept)).decode("utf-8", "replace")

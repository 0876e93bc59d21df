"""Programs that handlers start with `ctx.run`.

A program runs in the session of its attempt's runner, in its own process group, with a mark in its
environment by which it and its children are found.
"""

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

from mulligan.config import PRIVATE_VARIABLES
from mulligan.core.errors import ProcessFailed, Refused, Stopped
from mulligan.worker.liveness import MARK, kill_marked

STDERR_LIMIT = 8192  # bytes; the end is kept
OUTPUT_LIMIT = 16 * 1024 * 1024  # bytes
STOP_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
DRAIN_GRACE = 1.0  # seconds to wait for a pipe that a grandchild holds open

T = TypeVar("T")


class Program:
    """One program. Its mark is unique, so that killing it leaves other programs running."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        mark: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        self._on_stderr = on_stderr
        self._command = command
        self._folder = folder
        self._mark = mark
        self._environment = {**environment, MARK: mark}
        self._stop = threading.Event()
        self._ended = False

    def stop(self) -> None:
        """Request it to end. `run` terminates it."""
        self._stop.set()

    def run(
        self, data: bytes | None, timeout: float | None, on_line: Callable[[str], None] | None
    ) -> str:
        """Run it to its end and return what it printed. `data` is its standard input."""
        stdin = subprocess.DEVNULL if data is None else subprocess.PIPE
        process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env={**_inherited_environment(), **self._environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        try:
            out = _Reader(process.stdout, OUTPUT_LIMIT, on_line)
            err = _Reader(process.stderr, STDERR_LIMIT, self._on_stderr)
            _write_input(process.stdin, data)
            timed_out = self._wait(process, timeout)
        except BaseException:
            _terminate(process)
            raise
        deadline = time.monotonic() + DRAIN_GRACE
        out.join(deadline)
        err.join(deadline)
        if self._stop.is_set() or timed_out:
            kill_marked(self._mark)
        if out.error is not None:
            raise out.error
        self._raise_if_failed(process.returncode, err.text(), timed_out=timed_out)
        if out.truncated and on_line is None:
            message = (
                f"{self._name} printed more than {OUTPUT_LIMIT:,} bytes. "
                "Let it write to a file in ctx.workdir, or read its lines with on_line="
            )
            raise Refused(message)
        return out.text()

    @property
    def _name(self) -> str:
        return Path(self._command[0]).name

    def _raise_if_failed(self, code: int, err: str, *, timed_out: bool) -> None:
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
        """Wait until it ends. True if the time limit ended it."""
        watcher = threading.Thread(target=self._terminate_on_request, args=(process,), daemon=True)
        watcher.start()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            _terminate(process)
            return True
        finally:
            self._ended = True
        return False

    def _terminate_on_request(self, process: subprocess.Popen[bytes]) -> None:
        while not self._ended:
            if self._stop.wait(0.2):
                _terminate(process)
                return


def _inherited_environment() -> dict[str, str]:
    """Return our environment without the credentials of our database and mail."""
    return {name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES}


async def run_in_thread(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run a blocking call on a new thread, because the loop's pool is small and shared.

    If it is cancelled, it calls `stop`, waits until the call has returned, and then raises.
    """
    done: Future[None] = Future()
    results: list[T] = []
    errors: list[BaseException] = []  # a future cannot hold every exception

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below
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


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to its process group, then SIGKILL."""
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_GRACE)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _write_input(pipe: IO[bytes] | None, data: bytes | None) -> None:
    if pipe is None or data is None:
        return

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(data)

    threading.Thread(target=write, daemon=True).start()


class _Reader(threading.Thread):
    """Thread that reads a pipe, keeps the last part and calls `on_line` for each line."""

    def __init__(
        self, pipe: IO[bytes] | None, limit: int, on_line: Callable[[str], None] | None
    ) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self._on_line = on_line
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self.truncated = False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        pipe = self._pipe
        if pipe is None:
            return
        with pipe:
            for line in iter(lambda: pipe.readline(65536), b""):
                self._store_line(line)
                self._call_on_line(line)

    def _call_on_line(self, line: bytes) -> None:
        """Call `on_line`. Its error is raised at the end: until then the pipe must be read."""
        if self._on_line is None or self.error is not None:
            return
        try:
            self._on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self.error = error

    def _store_line(self, line: bytes) -> None:
        self._chunks.append(line)
        self._size += len(line)
        while self._size - len(self._chunks[0]) > self._limit:
            self._size -= len(self._chunks.popleft())
            self.truncated = True

    def join(self, deadline: float | None = None) -> None:
        if deadline is None:
            super().join()
        else:
            super().join(max(0.0, deadline - time.monotonic()))

    def text(self) -> str:
        return b"".join(list(self._chunks)).decode("utf-8", "replace")

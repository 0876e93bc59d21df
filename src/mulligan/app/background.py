"""Run a worker in a separate process next to your program, for as long as the program runs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from mulligan.core.errors import ConfigError

log = logging.getLogger("mulligan.app")


@contextmanager
def background_worker(
    app: str, *, page: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[BackgroundWorker]:
    """Run `mulligan worker APP` during the block. A worker that ends by itself is started again.

    With `page=True` run `mulligan up APP`, a worker with the dashboard. At the end of the block the
    worker gets SIGTERM, so running jobs have time to finish. If your program is killed, the worker
    notices the end of its stdin and stops too. `env` adds environment variables, for example
    {"MULLIGAN_WORKER__CONCURRENCY": "2"}.
    """
    name = check_app_name(app)
    command = ("up", name, "--port", "0") if page else ("worker", name)
    worker = BackgroundWorker(command, env or {})
    try:
        yield worker
    finally:
        worker.stop()


RESTART_DELAYS = (0.5, 30.0)  # seconds before a worker is started again: first, longest
STABLE_SECONDS = 60.0  # a worker that ran for so long is started again after the first delay
USAGE_ERROR = 2  # exit code of a worker that refuses its app or settings; it would do so again


class BackgroundWorker:
    """A worker process and the thread that starts it again."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._command = command
        self._env = env
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # held while a process is started or stopped
        self._process = start_command(command, env)
        threading.Thread(target=self._keep_running, daemon=True).start()

    @property
    def pid(self) -> int:
        """Return the process id of the current worker."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the worker after its running jobs, and do not start another."""
        self._stopping.set()
        with self._lock:
            stop_command(self._process)

    def _keep_running(self) -> None:
        delay, longest = RESTART_DELAYS
        while True:
            started_at = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            if code == USAGE_ERROR:
                log.error("worker %d cannot run. It is not started again.", self.pid)
                return
            if time.monotonic() - started_at > STABLE_SECONDS:
                delay = RESTART_DELAYS[0]
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            log.warning("worker %d %s. Another one starts in %g s.", self.pid, ended, delay)
            if self._stopping.wait(delay):
                return
            delay = min(2 * delay, longest)
            self._start_again()

    def _start_again(self) -> None:
        with self._lock:
            if not self._stopping.is_set():
                close_stdin(self._process)
                try:
                    self._process = start_command(self._command, self._env)
                except OSError as error:  # no memory or no process left: try again later
                    log.warning("no worker could be started: %s", error)


def check_app_name(app: Any) -> str:
    """Return the app's name if it has the form module:attribute."""
    if not isinstance(app, str) or ":" not in app:
        message = f"invalid app {app!r:.80}. Name it as module:attribute, for example jobs:app."
        raise ConfigError(message)
    return app


def start_command(
    arguments: tuple[str, ...], env: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start `mulligan ARGUMENTS` with our module path, in its own session.

    Its own session keeps Ctrl-C from reaching it. Otherwise our SIGTERM would be its second signal,
    which ends it without waiting for running jobs.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "mulligan", *arguments, "--leave-with-stdin"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def stop_command(process: subprocess.Popen[bytes], within: float | None = None) -> int:
    """Send SIGTERM and return the exit code. Kill it after `within` seconds or on Ctrl-C."""
    process.terminate()
    try:
        return process.wait(within)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return process.returncode
    finally:
        close_stdin(process)


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    """Close our end of the pipe. The process may have closed its end already."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def stop_at_end_of_stdin(repeat: float | None = None) -> None:
    """Send SIGTERM to this process when its stdin ends, because the parent has exited.

    `repeat` sends the signal again every so many seconds, for a program that may miss the first.
    """
    threading.Thread(target=_stop_at_end_of_stdin, args=(repeat,), daemon=True).start()


def _stop_at_end_of_stdin(repeat: float | None) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    while repeat:
        time.sleep(repeat)
        os.kill(os.getpid(), signal.SIGTERM)

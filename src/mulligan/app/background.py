"""Run a worker in a separate process next to your program, for as long as the program runs."""

from __future__ import annotations

import contextlib
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


@contextmanager
def background_worker(
    app: str, *, page: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run `mulligan worker APP` during the block and yield its process id.

    With `page=True` run `mulligan up APP`, a worker with the dashboard. At the end of the block the
    worker gets SIGTERM, so running jobs have time to finish. If your program is killed, the worker
    notices the end of its stdin and stops too. `env` adds environment variables, for example
    {"MULLIGAN_WORKER__CONCURRENCY": "2"}.
    """
    name = check_app_name(app)
    command = ("up", name, "--port", "0") if page else ("worker", name)
    process = start_command(command, env or {})
    try:
        yield process.pid
    finally:
        stop_command(process)


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
        if process.stdin is not None:
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

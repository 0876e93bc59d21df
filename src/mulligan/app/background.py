"""A worker beside one's own program: a process of its own, and gone with it, however it ends."""

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
def beside(app: str, *, page: bool = False, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """`mulligan worker APP` (with `page=True`: `mulligan up APP`) for as long as the block lasts; yields its id.

    The end of the block is a SIGTERM: running jobs get their time to finish. A program that is killed takes its worker
    along too, for it reads the end of its stdin. `env` adds to the environment: {"MULLIGAN_WORKER__CONCURRENCY": "2"}.
    """
    words = ("up", named(app), "--port", "0") if page else ("worker", named(app))
    process = started(words, env or {})
    try:
        yield process.pid
    finally:
        ended(process)


def named(app: Any) -> str:
    if not isinstance(app, str) or ":" not in app:
        message = f"the app is named module:attribute, for example jobs:app, not {app!r:.80}"
        raise ConfigError(message)
    return app


def started(
    words: tuple[str, ...], env: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """It finds the modules we find. Ctrl-C is for us: were it for both, our SIGTERM would be its second signal."""
    return subprocess.Popen(
        [sys.executable, "-m", "mulligan", *words, "--leave-with-stdin"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes], within: float | None = None) -> int:
    """Its exit code. Who does not want to wait for running jobs interrupts once more."""
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


def leave_with_stdin(again: float | None = None) -> None:
    """The other side of it. `again`: the signal is repeated after so many seconds, for who may not hear the first."""
    threading.Thread(target=_leave, args=(again,), daemon=True).start()


def _leave(again: float | None) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    while again:
        time.sleep(again)
        os.kill(os.getpid(), signal.SIGTERM)

"""A real worker for a test: for what inline mode cannot show."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from mulligan.app import Mulligan
from mulligan.errors import ConfigError, MulliganError
from mulligan.testing.places import environ

READY = 30.0  # seconds
MARGIN = 5.0
EVERY = 0.02


class WorkerFailed(MulliganError):
    """The worker of a test did not come up."""

    code = "TEST_WORKER_FAILED"


class RealWorker:
    """`mulligan worker APP` on the database of a test, in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], grace: float) -> None:
        self.process = process
        self._log = log
        self._grace = grace

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """All it has said so far."""
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def kill(self) -> None:
        """kill -9, as an out-of-memory killer or a power cut would; its runners go with it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and wait: it finishes or gives back what it runs. Returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(self._grace + MARGIN)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


@contextmanager
def worker(app: Mulligan, spec: str, *, env: Mapping[str, str] | None = None) -> Iterator[RealWorker]:
    """A worker of `spec` ("module:attribute") on the database this app is on; ended with the block.

    The module must name no URL of its own: `app = Mulligan()`. `env` adds settings: {"MULLIGAN_WORKER__LEASE": "4"}.
    """
    given: Any = spec
    if not isinstance(given, str) or ":" not in given:
        message = f"worker(): the app is named module:attribute, for example jobs:app, not {given!r:.80}"
        raise ConfigError(message)
    app.store.prepare()
    with tempfile.TemporaryFile(prefix="mulligan-worker-") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "worker", spec],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ(app), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        started = RealWorker(process, log, app.settings.worker.shutdown_grace)
        try:
            _wait_for(app, started)
            yield started
        finally:
            started.stop()


def _wait_for(app: Mulligan, started: RealWorker) -> None:
    deadline = time.monotonic() + READY
    while not _entered(app, started.pid):
        if started.process.poll() is not None or time.monotonic() > deadline:
            message = f"the worker did not come up:\n{started.output}"
            raise WorkerFailed(message)
        time.sleep(EVERY)


def _entered(app: Mulligan, pid: int) -> bool:
    with app.store.read() as unit:
        return any(row.pid == pid for row in unit.workers(closed=False))

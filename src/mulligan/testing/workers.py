"""A real worker for a test: for what inline mode cannot show."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from mulligan.alongside import ended, named, started
from mulligan.app import Mulligan
from mulligan.errors import MulliganError
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
        return ended(self.process, within=self._grace + MARGIN)


@contextmanager
def worker(app: Mulligan, spec: str, *, env: Mapping[str, str] | None = None) -> Iterator[RealWorker]:
    """A worker of `spec` ("module:attribute") on the database this app is on; ended with the block.

    The module must name no URL of its own: `app = Mulligan()`. `env` adds settings: {"MULLIGAN_WORKER__LEASE": "4"}.
    """
    words = ("worker", named(spec))
    app.store.prepare()
    with tempfile.TemporaryFile(prefix="mulligan-worker-") as log:
        process = started(words, {**environ(app), **(env or {})}, output=log)
        running = RealWorker(process, log, app.settings.worker.shutdown_grace)
        try:
            _wait_for(app, running)
            yield running
        finally:
            running.stop()


def _wait_for(app: Mulligan, running: RealWorker) -> None:
    deadline = time.monotonic() + READY
    while not _entered(app, running.pid):
        if running.process.poll() is not None or time.monotonic() > deadline:
            message = f"the worker did not come up:\n{running.output}"
            raise WorkerFailed(message)
        time.sleep(EVERY)


def _entered(app: Mulligan, pid: int) -> bool:
    with app.store.read() as unit:
        return any(row.pid == pid for row in unit.workers(closed=False))

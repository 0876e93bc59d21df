"""A database of its own for the length of a test."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import IO

from mulligan.app.background import ended, named, started
from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.core.errors import ConfigError, MulliganError, Refused
from mulligan.failures.redact import redact
from mulligan.storage import POSTGRES
from mulligan.storage.url import shown_url

PREFIX = "mulligan_test_"
_in_force: list[Settings] = []


@contextmanager
def temporary(
    app: Mulligan, url: str | None = None, *, folder: Path | str | None = None
) -> Iterator[Mulligan]:
    """The same app on an empty database of its own; whoever enqueues through it in this process goes there.

    Without a URL it is a SQLite file: below `folder`, where it stays to be looked at, or else in a temporary folder.
    With a postgresql:// URL it is a new schema there, dropped at the end. Then the app is on its own database again,
    untouched, and what `force` has left is forgotten.
    """
    with ExitStack() as stack:
        settings = _settings(app.settings, url, _place(folder, stack))
        _in_force.append(settings)
        stack.callback(_in_force.remove, settings)
        forced = list(app.registry.stand_ins)
        stack.enter_context(app.redirected(settings))
        stack.callback(lambda: app.registry.stand_ins.__setitem__(slice(None), forced))
        if url:
            stack.callback(lambda: app.store.erase())  # noqa: PLW0108 - the store it has then
        yield app


def is_temporary(app: Mulligan) -> bool:
    return any(app.settings is settings for settings in _in_force)


def refuse_elsewhere(app: Mulligan, call: str, does: str) -> None:
    """A test that forgot `temporary` must not do this to somebody's jobs."""
    if not is_temporary(app):
        message = (
            f"{call}() {does}, and {redact(app.settings.database_url)} was not made for this test. Write `with "
            "mulligan.testing.temporary(app):` around it or use the pytest fixture `mulligan`; or, if that whole "
            f"database is only for tests, say {call}(…, anywhere=True)"
        )
        raise Refused(message)


def environ(app: Mulligan) -> dict[str, str]:
    """For a worker process, or any other, that shall use the same database as this app: join it to its environment."""
    return {
        "MULLIGAN_DATABASE_URL": app.settings.database_url,
        "MULLIGAN_SCHEMA_NAME": app.settings.schema_name,
        "MULLIGAN_WORKER__STATE_DIR": app.settings.worker.state_dir,
    }


def _place(folder: Path | str | None, stack: ExitStack) -> Path:
    """Always a new one: a database that is there already is not empty."""
    if folder is not None:
        return Path(mkdtemp(prefix="mulligan-", dir=folder))
    return Path(
        stack.enter_context(TemporaryDirectory(prefix="mulligan-", ignore_cleanup_errors=True))
    )


def _settings(own: Settings, url: str | None, place: Path) -> Settings:
    if url and not url.startswith(POSTGRES):
        message = f"temporary(): {shown_url(url)!r} is not postgresql://…; on SQLite leave it out and get a file of your own"
        raise ConfigError(message)
    scheme = "sqlite+stdlib" if own.database_url.startswith("sqlite+stdlib:") else "sqlite"
    return own.model_copy(
        update={
            "database_url": url or f"{scheme}:///{place.absolute() / 'mulligan.db'}",
            "schema_name": f"{PREFIX}{secrets.token_hex(8)}" if url else own.schema_name,
            "listen_url": "",
            "worker": own.worker.model_copy(update={"state_dir": str(place.absolute() / "state")}),
        }
    )


# A real worker for a test: for what inline mode cannot show.

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
def worker(
    app: Mulligan, spec: str, *, env: Mapping[str, str] | None = None
) -> Iterator[RealWorker]:
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

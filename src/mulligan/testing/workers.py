"""Temporary databases and real workers for tests."""

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

from mulligan.app.background import check_app_name, start_command, stop_command
from mulligan.app.mulligan import Mulligan
from mulligan.config import Settings
from mulligan.core.errors import ConfigError, MulliganError, Refused
from mulligan.core.format import mask_password
from mulligan.failures.redact import redact
from mulligan.storage import POSTGRES
from mulligan.worker.queries import WorkerQueries

PREFIX = "mulligan_test_"
_active: list[Settings] = []


@contextmanager
def temporary(
    app: Mulligan, url: str | None = None, *, folder: Path | str | None = None
) -> Iterator[Mulligan]:
    """Put the app on an empty database during the block; everything in this process uses it.

    Without a URL it is a SQLite file in `folder`; the default is a temporary folder. With a
    postgresql:// URL it is a new schema, dropped at the end. Afterwards the app uses its own
    database again, and forced outcomes are removed.
    """
    with ExitStack() as stack:
        settings = _settings(app.settings, url, _make_folder(folder, stack))
        _active.append(settings)
        stack.callback(_active.remove, settings)
        overrides = list(app.registry.overrides)
        stack.enter_context(app.redirected(settings))
        stack.callback(lambda: app.registry.overrides.__setitem__(slice(None), overrides))
        if url:
            stack.callback(lambda: app.store.erase())  # noqa: PLW0108 - app.store changes until then
        yield app


def is_temporary(app: Mulligan) -> bool:
    """Return whether the app is on a database made by `temporary`."""
    return any(app.settings is settings for settings in _active)


def refuse_other_database(app: Mulligan, call: str, does: str) -> None:
    """Refuse to touch a database that was not made for this test."""
    if not is_temporary(app):
        message = (
            f"{call}() {does}, but {redact(app.settings.database_url)} was not made for this test. "
            "Use `with mulligan.testing.temporary(app):` or the pytest fixture `mulligan`. If the "
            f"whole database is only for tests, pass {call}(…, anywhere=True)."
        )
        raise Refused(message)


def environ(app: Mulligan) -> dict[str, str]:
    """Return environment variables that put another process on this app's database."""
    return {
        "MULLIGAN_DATABASE_URL": app.settings.database_url,
        "MULLIGAN_SCHEMA_NAME": app.settings.schema_name,
        "MULLIGAN_WORKER__STATE_DIR": app.settings.worker.state_dir,
    }


def _make_folder(folder: Path | str | None, stack: ExitStack) -> Path:
    """Create a new folder: an existing database would not be empty."""
    if folder is not None:
        return Path(mkdtemp(prefix="mulligan-", dir=folder))
    return Path(
        stack.enter_context(TemporaryDirectory(prefix="mulligan-", ignore_cleanup_errors=True))
    )


def _settings(settings: Settings, url: str | None, folder: Path) -> Settings:
    if url and not url.startswith(POSTGRES):
        message = (
            f"temporary(): {mask_password(url)!r} is not a postgresql:// URL. Leave it out to get "
            "a SQLite file."
        )
        raise ConfigError(message)
    schema = settings.schema_name
    if url:
        schema = f"{PREFIX}{secrets.token_hex(8)}"
    scheme = "sqlite+stdlib" if settings.database_url.startswith("sqlite+stdlib:") else "sqlite"
    return settings.model_copy(
        update={
            "database_url": url or f"{scheme}:///{folder.absolute() / 'mulligan.db'}",
            "schema_name": schema,
            "listen_url": "",
            "worker": settings.worker.model_copy(
                update={"state_dir": str(folder.absolute() / "state")}
            ),
        }
    )


# --- Real workers ---

START_SECONDS = 30.0
STOP_MARGIN = 5.0
POLL_SECONDS = 0.02


class WorkerFailed(MulliganError):
    """The worker of a test did not start."""

    code = "TEST_WORKER_FAILED"


class RealWorker:
    """A running `mulligan worker APP` on the database of a test."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], grace: float) -> None:
        self.process = process
        self._log = log
        self._grace = grace

    @property
    def pid(self) -> int:
        """Return the process id of the supervisor."""
        return self.process.pid

    @property
    def output(self) -> str:
        """Return everything the worker has printed so far."""
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill the worker with SIGKILL, like the OOM killer. Its runners end too."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM, wait until its jobs are finished or released, and return the exit code."""
        return stop_command(self.process, within=self._grace + STOP_MARGIN)


@contextmanager
def worker(
    app: Mulligan, spec: str, *, env: Mapping[str, str] | None = None
) -> Iterator[RealWorker]:
    """Run a worker of `spec` ("module:attribute") on the app's database during the block.

    The module must not name a URL: `app = Mulligan()`. `env` adds settings:
    {"MULLIGAN_WORKER__LEASE": "4"}.
    """
    arguments = ("worker", check_app_name(spec))
    app.store.prepare()
    with tempfile.TemporaryFile(prefix="mulligan-worker-") as log:
        process = start_command(arguments, {**environ(app), **(env or {})}, output=log)
        running = RealWorker(process, log, app.settings.worker.shutdown_grace)
        try:
            _wait_until_registered(app, running)
            yield running
        finally:
            running.stop()


def _wait_until_registered(app: Mulligan, running: RealWorker) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _is_registered(app, running.pid):
        if running.process.poll() is not None or time.monotonic() > deadline:
            message = f"the worker did not start:\n{running.output}"
            raise WorkerFailed(message)
        time.sleep(POLL_SECONDS)


def _is_registered(app: Mulligan, pid: int) -> bool:
    with app.store.read() as tx:
        return any(row.pid == pid for row in WorkerQueries(tx).list_workers(closed=False))

"""A database of its own for the length of a test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from mulligan.app import Mulligan
from mulligan.config import Settings
from mulligan.errors import ConfigError, Refused
from mulligan.policy.redact import redact
from mulligan.store import POSTGRES
from mulligan.store.urls import shown_url

PREFIX = "mulligan_test_"
_in_force: list[Settings] = []


@contextmanager
def temporary(app: Mulligan, url: str | None = None, *, folder: Path | str | None = None) -> Iterator[Mulligan]:
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
    return Path(stack.enter_context(TemporaryDirectory(prefix="mulligan-", ignore_cleanup_errors=True)))


def _settings(own: Settings, url: str | None, place: Path) -> Settings:
    if url and not url.startswith(POSTGRES):
        message = (
            f"temporary(): {shown_url(url)!r} is not postgresql://…; on SQLite leave it out and get a file of your own"
        )
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

"""Open the database of a command, and print messages to stderr."""

from __future__ import annotations

import getpass
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mulligan.app.services import StoreServices
from mulligan.core.errors import AccessDenied, ConfigError, StoreUnavailable
from mulligan.core.format import mask_password
from mulligan.core.settings import ConnectionSettings, read_connection_settings
from mulligan.failures.redact import remove_secrets
from mulligan.storage import POSTGRES, SQLITE, Store, describe_supported, open_store, sqlite_path

if TYPE_CHECKING:
    from mulligan.config import Settings

T = TypeVar("T")
C = TypeVar("C", bound="Settings | ConnectionSettings")

# --- Settings ---


def load_settings(database: str | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings with --database and other flags on top."""
    from mulligan.config import read_settings

    return check_database_url(read_settings({"database_url": database, **(flags or {})}))


def check_database_url(settings: C) -> C:
    """Refuse a database URL of an unknown kind, naming the setting and its origin."""
    url = settings.database_url
    if not url.startswith((*SQLITE, *POSTGRES)):
        origin = settings.origin_of("database_url")
        message = (
            f"invalid database_url {mask_password(url)!r} (from {origin}). "
            f"{describe_supported(url)}"
        )
        raise ConfigError(message)
    return settings


def load_settings_of_apps(database: str | None) -> Settings:
    """Read the settings, with those that the apps of the database declare, if there is one."""
    settings = load_settings(database)
    try:
        with open_existing(settings) as store:
            return with_app_settings(store, settings)
    except Exception:  # noqa: BLE001 - what needs the database will report the error
        return settings


def with_app_settings(store: Store, settings: Settings) -> Settings:
    """Add the settings that the apps of the database declare in their code."""
    from mulligan.manifest.declared import apply_declared_settings

    with store.read() as tx:
        return apply_declared_settings(tx, settings)


# --- Opening the database ---


@contextmanager
def open_existing(settings: Settings | ConnectionSettings) -> Iterator[Store]:
    """Open the database. Refuse to create one, because the command only reads or repairs."""
    file = sqlite_path(settings.database_url)
    if file is not None and not file.exists():
        message = (
            f"no database at {file}. Enqueue a job or start a worker to create it, "
            "or name another one with --database URL."
        )
        raise StoreUnavailable(message)
    with _open(settings) as store:
        store.check_connection()
        store.check_schema()
        yield store


@contextmanager
def open_or_create(settings: Settings, *, announce: bool = True) -> Iterator[Store]:
    """Open the database, creating it if needed. Warn if a SQLite file was created.

    With `announce`, for long-running commands: print the URL, and wait for a starting server.
    """
    file = sqlite_path(settings.database_url)
    is_new = file is not None and not file.exists()
    with _open(settings) as store:
        _prepare(store, wait=announce)
        if announce:
            print_notice(
                f"database: {file or remove_secrets(mask_password(settings.database_url))}"
            )
        if is_new:
            print_notice(
                f"warning: {file} did not exist and was created. Is this the right directory?"
            )
        yield store


def _prepare(store: Store, *, wait: bool) -> None:
    """Create or check the schema. `check_connection` raises the exact reason of a failure."""
    if not wait:
        store.check_connection()
    try:
        store.prepare()
    except StoreUnavailable:
        store.check_connection()
        raise


@contextmanager
def _open(settings: Settings | ConnectionSettings) -> Iterator[Store]:
    check_database_url(settings)
    store = open_store(
        settings.database_url,
        schema=settings.schema_name,
        notify_callers=settings.notify_callers,
        listen_url=settings.listen_url,
    )
    try:
        yield store
    finally:
        store.close()


@contextmanager
def open_services(database: str | None) -> Iterator[StoreServices]:
    """Open an existing database with all services, acting as the current user.

    Settings are read when a service needs them. If more than the database URL is set, they are
    read at once, so that a misspelt name is refused before anything else happens.
    """
    connection = read_connection_settings(database) or load_settings(database)
    with open_existing(connection) as store:

        def read() -> Settings:
            return with_app_settings(store, load_settings(database))

        yield StoreServices(lambda: store, read, cli_actor())


def deadline_after(timeout: float | None) -> float | None:
    """Return the monotonic time at which a watch ends, or None."""
    return None if timeout is None else time.monotonic() + timeout


def is_past(deadline: float | None) -> bool:
    """Return True if the deadline of a watch has passed."""
    return deadline is not None and time.monotonic() >= deadline


def wait_for_database(read: Callable[[], T], deadline: float | None = None) -> T:
    """Call `read` until the database answers, so that a watch survives an outage.

    `deadline` is a monotonic time; after it, StoreUnavailable is raised.
    """
    announced = False
    while True:
        try:
            return read()
        except AccessDenied:
            raise
        except StoreUnavailable as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            if not announced:
                reason = " ".join(str(error).split())
                print_notice(f"{remove_secrets(reason)}; waiting for it")
            announced = True
            time.sleep(1.0)


def cli_actor() -> str:
    """Return the current user as the actor recorded in the history."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container without an entry for its user
        return f"cli:{os.getuid()}"


# --- Messages ---


class Notices:
    """Where messages go: to `log` if set (log format json), else to stderr."""

    log: Callable[[str], None] | None = None


def print_notice(text: str) -> None:
    """Print a message for people. It never mixes with the data on stdout."""
    if Notices.log is not None:
        Notices.log(text)
    else:
        click.echo(text, err=True)


def print_hint(command: str, effect: str) -> None:
    """Suggest a next command and say what it does."""
    print_notice(f"{command}  # {effect}")


def command_line(*arguments: str, database: str | None = None) -> str:
    """Return a `mulligan` command for the same database, quoted for a shell, without a password."""
    line = list(arguments)
    if database is not None:
        line += ["--database", remove_secrets(mask_password(database))]
    return f"mulligan {shlex.join(line)}"

"""Which database, and how a command opens it."""

from __future__ import annotations

import getpass
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import click

from mulligan.config import Settings, read_settings
from mulligan.core.errors import AccessDenied, ConfigError, StoreUnavailable
from mulligan.failures.redact import without_secrets
from mulligan.jobs.service import Jobs
from mulligan.storage import POSTGRES, SQLITE, Store, open_store
from mulligan.storage.url import shown_url, sqlite_file

T = TypeVar("T")


def settings_with(database: str | None, flags: Mapping[str, Any] | None = None) -> Settings:
    return checked(read_settings({"database_url": database, **(flags or {})}))


def checked(settings: Settings) -> Settings:
    """An address of no kind we know is refused with the name of the setting and where it came from."""
    url = settings.database_url
    if not url.startswith((*SQLITE, *POSTGRES)):
        origin = settings.origin_of("database_url")
        message = f"database_url: {shown_url(url)!r} is neither sqlite:///path nor postgresql://…, from {origin}"
        raise ConfigError(message)
    return settings


@contextmanager
def existing(settings: Settings) -> Iterator[Store]:
    """For commands that look or repair: they make no database where there is none."""
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        message = f"there is no database at {file} yet; enqueue a job, start a worker, or name another: --database URL"
        raise StoreUnavailable(message)
    with _opened(settings) as store:
        store.reach()
        store.check_schema()
        yield store


@contextmanager
def prepared(settings: Settings, *, aloud: bool = True) -> Iterator[Store]:
    """For commands that write: made where there is none, and said aloud."""
    file = sqlite_file(settings.database_url)
    fresh = file is not None and not file.exists()
    with _opened(settings) as store:
        _prepare(store, patient=aloud)
        if aloud:
            say(f"database: {file or without_secrets(shown_url(settings.database_url))}")
        if fresh:
            say(
                f"warning: {file} did not exist; it was created just now. Is this the right directory?"
            )
        yield store


def _prepare(store: Store, *, patient: bool) -> None:
    """Who serves waits a little for a server that is just starting; who stays away is asked why."""
    if not patient:
        store.reach()
    try:
        store.prepare()
    except StoreUnavailable:
        store.reach()
        raise


@contextmanager
def _opened(settings: Settings) -> Iterator[Store]:
    checked(settings)
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


class CommandServices(NamedTuple):
    """What a command that looks or repairs works with."""

    store: Store
    jobs: Jobs


@contextmanager
def open_services(database: str | None) -> Iterator[CommandServices]:
    settings = settings_with(database)
    with existing(settings) as store:
        yield CommandServices(store, Jobs(lambda: store, settings, actor=actor()))


def patiently(question: Callable[[], T], deadline: float | None = None) -> T:
    """Who follows something goes on following when the database comes back."""
    said = False
    while True:
        try:
            return question()
        except AccessDenied:
            raise
        except StoreUnavailable as away:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            if not said:
                say(f"{without_secrets(' '.join(str(away).split()))}; waiting for it")
            said = True
            time.sleep(1.0)


def actor() -> str:
    """Who is at the keyboard, for the history of what they repair."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container without an entry for its user
        return f"cli:{os.getuid()}"


class Talk:
    """How the program talks beside its data: as it is, or, where every line is an object, as one of them."""

    lines: Callable[[str], None] | None = None


def say(words: str) -> None:
    if Talk.lines is not None:
        Talk.lines(words)
    else:
        click.echo(words, err=True)


def typed(*words: str, database: str | None = None) -> str:
    """What to type next, on the same database; a password is not repeated."""
    said = (
        words if database is None else (*words, "--database", without_secrets(shown_url(database)))
    )
    return f"mulligan {shlex.join(said)}"

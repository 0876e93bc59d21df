"""Where secrets of the settings lie about: in files that others may read, in the list of processes."""

from __future__ import annotations

from pathlib import Path

from mulligan.checks.finding import OK, WARN, Check, Checks
from mulligan.config import SECRET, Settings
from mulligan.store.urls import shown_url

URLS = ("database_url", "listen_url")


def secret_checks(settings: Settings) -> Checks:
    values = dict(settings.values())
    held = [name for name in SECRET if values[name]]
    held += [name for name in URLS if shown_url(values[name]) != values[name]]
    found = [*_typed(settings, held), *_files(settings, held)]
    yield from found or [Check(OK, "secrets", "none is in a file that others may read, or on the command line")]


def _typed(settings: Settings, held: list[str]) -> Checks:
    for name in held:
        if settings.origin_of(name) == "flag":
            told = f"the password in {name} is on the command line, where every user of this host can read it"
            yield Check(WARN, "secrets", told, f"set MULLIGAN_{name.upper()} instead, or use ~/.pgpass")


def _files(settings: Settings, held: list[str]) -> Checks:
    """The file of the settings, if a secret is in it, and the one that holds the password."""
    places = {settings.origin_of(name): name for name in held}
    if settings.mail.password_file:
        places[settings.mail.password_file] = "mail.password_file"
    for place, name in places.items():
        file = Path(place)
        if file.is_file() and file.stat().st_mode & 0o077:
            told = f"others may read {file} (mode {file.stat().st_mode & 0o777:o}), and {name} is there"
            yield Check(WARN, "secrets", told, f"chmod 600 {file}")

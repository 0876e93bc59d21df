"""System checks of a backend, for `manage.py check`."""

from __future__ import annotations

from collections.abc import Iterator

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from mulligan.core.errors import MulliganError
from mulligan.integrations.django.databases import BackendOptions, app_of, database_url


def check_backend(alias: str, options: BackendOptions) -> Iterator[checks.CheckMessage]:
    """Yield what is wrong with an entry of TASKS. Connects to no database."""
    try:
        database_url(options)
    except ImproperlyConfigured as error:
        yield checks.Error(f"TASKS[{alias!r}]: {error}", id="mulligan.E001")
        return
    try:
        app_of(options)
    except MulliganError as error:
        yield checks.Error(f"TASKS[{alias!r}]: {error}", id="mulligan.E002")
        return
    if options.joins:
        yield from _check_engine(alias, options.database or "")


def _check_engine(alias: str, database: str) -> Iterator[checks.CheckMessage]:
    connection = connections[database]
    if connection.vendor == "postgresql" and not _uses_psycopg_3():
        yield checks.Error(
            f"TASKS[{alias!r}]: DATABASES[{database!r}] uses psycopg2, whose transactions Mulligan "
            "cannot join.",
            hint="pip install 'psycopg[binary]' and pip uninstall psycopg2.",
            id="mulligan.E003",
        )
    if connection.vendor != "sqlite":
        return
    found = connection.settings_dict.get("OPTIONS") or {}
    if found.get("transaction_mode") != "IMMEDIATE":
        yield checks.Warning(
            f"TASKS[{alias!r}]: a transaction of DATABASES[{database!r}] that reads before it "
            "writes may find the file locked.",
            hint=f'Add "transaction_mode": "IMMEDIATE" to OPTIONS of DATABASES[{database!r}].',
            id="mulligan.W001",
        )
    if "wal_autocheckpoint=0" not in str(found.get("init_command", "")).replace(" ", ""):
        yield checks.Warning(
            f"TASKS[{alias!r}]: Django's connections to DATABASES[{database!r}] delay commits to "
            "copy the journal, which workers do already.",
            hint='Add "init_command": "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0" to '
            f"OPTIONS of DATABASES[{database!r}].",
            id="mulligan.W002",
        )


def _uses_psycopg_3() -> bool:
    try:
        from django.db.backends.postgresql.psycopg_any import is_psycopg3  # noqa: PLC0415
    except ImportError:
        return False
    return bool(is_psycopg3)

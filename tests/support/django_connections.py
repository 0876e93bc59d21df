"""Connect Django to a test database, without a Django project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connections


@contextmanager
def django_connection(url: str, alias: str = "shop") -> Iterator[Any]:
    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    connections.settings[alias] = connections.configure_settings({"default": database_entry(url)})[
        "default"
    ]
    try:
        yield connections[alias]
    finally:
        connections[alias].close()
        del connections[alias]


def database_entry(url: str) -> dict[str, Any]:
    """Return the entry for Django's DATABASES setting."""
    if url.startswith("sqlite"):
        options = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA wal_autocheckpoint=0"}
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": url.partition("///")[2],
            "OPTIONS": options,
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }

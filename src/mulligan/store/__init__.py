"""Memory: all SQL, no rules. `open_store` is the only way in."""

from __future__ import annotations

from mulligan.errors import ConfigError
from mulligan.store.base import Store
from mulligan.store.urls import shown_url

SQLITE = ("sqlite:///", "sqlite+mulligan:///", "sqlite+stdlib:///")  # the second is SQLAlchemy's word for the first
POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_store(url: str, *, schema: str = "mulligan", notify_callers: bool = True, listen_url: str = "") -> Store:
    """The store behind a database URL. Nothing is written; the schema is checked by the caller."""
    if url.startswith(SQLITE):
        from mulligan.store.sqlite import SqliteStore  # noqa: PLC0415 - a PostgreSQL user need not load apsw

        return SqliteStore(url)
    if url.startswith(POSTGRES):
        try:
            from mulligan.store.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
        except ImportError as missing:
            message = "a postgresql:// URL needs the extra: pip install 'mulligan[postgres]'"
            raise ConfigError(message) from missing
        return PostgresStore(url, schema=schema, notify_callers=notify_callers, listen_url=listen_url)
    message = f"database URL {shown_url(url)!r} is neither sqlite:///path nor postgresql://…"
    raise ConfigError(message)


__all__ = ["POSTGRES", "SQLITE", "Store", "open_store"]

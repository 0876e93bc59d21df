"""Memory: all SQL, no rules. `open_store` is the only way in.

Its parts load without `Store` and all its verbs: a runner needs a few words of theirs and no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.core.errors import ConfigError
from mulligan.storage.url import shown_url

if TYPE_CHECKING:
    from mulligan.storage.base import Store

SQLITE = (
    "sqlite:///",
    "sqlite+mulligan:///",
    "sqlite+stdlib:///",
)  # the second is SQLAlchemy's word for the first
POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_store(
    url: str, *, schema: str = "mulligan", notify_callers: bool = True, listen_url: str = ""
) -> Store:
    """The store behind a database URL. Nothing is written; the schema is checked by the caller."""
    if url.startswith(SQLITE):
        from mulligan.storage.sqlite import SqliteStore  # noqa: PLC0415 - a PostgreSQL user need not load apsw

        return SqliteStore(url)
    if url.startswith(POSTGRES):
        try:
            from mulligan.storage.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
        except ImportError as missing:
            message = "a postgresql:// URL needs the extra: pip install 'mulligan[postgres]'"
            raise ConfigError(message) from missing
        return PostgresStore(
            url, schema=schema, notify_callers=notify_callers, listen_url=listen_url
        )
    message = f"database URL {shown_url(url)!r} is neither sqlite:///path nor postgresql://…"
    raise ConfigError(message)


def __getattr__(name: str) -> Any:
    if name != "Store":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from mulligan.storage.base import Store  # noqa: PLC0415 - see above

    return Store


__all__ = ["POSTGRES", "SQLITE", "Store", "open_store"]

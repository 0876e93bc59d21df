"""Connections, transactions, SQL and schema. Knows no rules of a feature. Start at `open_store`.

`Store` is imported on first use: a runner needs some modules of this package but no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mulligan.core.errors import ConfigError
from mulligan.storage.url import mask_password

if TYPE_CHECKING:
    from mulligan.storage.base import Store

# sqlite+mulligan:// is the SQLAlchemy dialect of sqlite://.
SQLITE = ("sqlite:///", "sqlite+mulligan:///", "sqlite+stdlib:///")
POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_store(
    url: str, *, schema: str = "mulligan", notify_callers: bool = True, listen_url: str = ""
) -> Store:
    """Open the store of a database URL. Writes nothing; the caller checks the schema."""
    if url.startswith(SQLITE):
        from mulligan.storage.sqlite import SqliteStore  # noqa: PLC0415 - loads apsw

        return SqliteStore(url)
    if url.startswith(POSTGRES):
        try:
            from mulligan.storage.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
        except ImportError as missing:
            message = "PostgreSQL needs an extra package: pip install 'mulligan[postgres]'"
            raise ConfigError(message) from missing
        return PostgresStore(
            url, schema=schema, notify_callers=notify_callers, listen_url=listen_url
        )
    message = f"database URL {mask_password(url)!r} is not supported. Use sqlite:///path or postgresql://…"
    raise ConfigError(message)


def __getattr__(name: str) -> Any:
    if name != "Store":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from mulligan.storage.base import Store  # noqa: PLC0415 - see the docstring

    return Store


__all__ = ["POSTGRES", "SQLITE", "Store", "open_store"]

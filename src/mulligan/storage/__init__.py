"""Connections, transactions, SQL and schema. Knows no rules of a feature. Start at `open_store`.

`Store` is imported on first use: a runner needs some modules of this package but no database.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulligan.core.errors import ConfigError
from mulligan.core.extras import check_extra
from mulligan.core.format import mask_password

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
        check_extra("postgres", "PostgreSQL")
        from mulligan.storage.postgres import PostgresStore  # noqa: PLC0415 - an optional extra

        return PostgresStore(
            url, schema=schema, notify_callers=notify_callers, listen_url=listen_url
        )
    raise ConfigError(_unsupported(url))


def check_driver(url: str) -> None:
    """Refuse the URL of another database or driver, without connecting."""
    if not url.startswith(SQLITE + POSTGRES):
        raise ConfigError(_unsupported(url))
    if url.startswith(SQLITE) and url.endswith(":memory:"):
        message = (
            f"database URL {url!r} would be a database of each process alone. "
            "Name a file, for example sqlite:///jobs.db"
        )
        raise ConfigError(message)


def _unsupported(url: str) -> str:
    return f"database URL {mask_password(url)!r} is not supported. {describe_supported(url)}"


def describe_supported(url: str) -> str:
    """Return which URL to write instead of one that is not supported."""
    scheme, _, driver = url.partition("://")[0].partition("+")
    if driver:
        return (
            f"Mulligan does not use the driver {driver}. Write {scheme}://… here; your own engine "
            "may keep its URL."
        )
    return "Use sqlite:///path or postgresql://…"


# --- URLs: which database they name, and how to show them ---


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite URL. None: another database."""
    if not url.startswith("sqlite"):
        return None
    return Path(url.partition("///")[2] or "mulligan.db").absolute()


def use_apsw(url: str) -> str:
    """Return the URL for Mulligan's own SQLite library, for processes without user code."""
    return url.replace("sqlite+stdlib:", "sqlite:", 1)


def same_database(one: str, other: str) -> bool:
    """True if two URLs name the same database."""
    one_file = sqlite_path(one)
    other_file = sqlite_path(other)
    if one_file is not None and other_file is not None:
        return one_file.resolve() == other_file.resolve()
    return _normalise(one) == _normalise(other)


def _normalise(url: str) -> str:
    """Unify postgres://, postgresql:// and postgresql+psycopg://."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.removesuffix('+psycopg').replace('postgresql', 'postgres')}{separator}{rest}"


def __getattr__(name: str) -> Any:
    if name != "Store":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from mulligan.storage.base import Store  # noqa: PLC0415 - see the docstring

    return Store


__all__ = [
    "POSTGRES",
    "SQLITE",
    "Store",
    "open_store",
    "same_database",
    "sqlite_path",
    "use_apsw",
]

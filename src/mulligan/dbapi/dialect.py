"""SQLAlchemy dialect on Mulligan's SQLite library: `create_engine("sqlite+mulligan:///app.db")`.

SQLAlchemy finds it by the entry point in pyproject.toml. No other module imports it: Mulligan does
not require SQLAlchemy.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class Dialect(SQLiteDialect_pysqlite):
    """SQLAlchemy's dialect for `sqlite3`, on `mulligan.dbapi`."""

    driver = "mulligan"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        from mulligan import dbapi  # noqa: PLC0415 - loaded when an engine is created

        module: ModuleType = dbapi
        return module

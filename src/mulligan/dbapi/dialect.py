"""`create_engine("sqlite+mulligan:///app.db")`: SQLAlchemy on Mulligan's SQLite library.

SQLAlchemy finds it by the entry point in pyproject.toml; nothing else imports it, and Mulligan needs no SQLAlchemy.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class Dialect(SQLiteDialect_pysqlite):
    driver = "mulligan"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        from mulligan import dbapi  # noqa: PLC0415 - SQLAlchemy asks for it when an engine is made

        module: ModuleType = dbapi
        return module

"""Read all rows of a database, to compare it before and after."""

from __future__ import annotations

from typing import Any

from mulligan.storage import Store

IGNORED_COLUMNS = {"api_key": "last_used_at"}  # updated by every request
SQLITE = (
    "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p "
    "WHERE m.type = 'table' AND m.name LIKE 'mulligan_%'"
)
POSTGRES = (
    "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()"
)


def contents(store: Store) -> dict[str, list[Any]]:
    """Return all rows by table."""
    with store.transaction() as connection:
        cursor = connection.cursor()
        tables: dict[str, list[str]] = {}
        for table, column in cursor.execute(
            SQLITE if "sqlite" in type(store).__module__ else POSTGRES
        ).fetchall():
            if IGNORED_COLUMNS.get(table.removeprefix("mulligan_")) != column:
                tables.setdefault(table, []).append(column)
        assert {"job", "event"} <= {table.removeprefix("mulligan_") for table in tables}
        return {table: _rows(cursor, table, columns) for table, columns in sorted(tables.items())}


def _rows(cursor: Any, table: str, columns: list[str]) -> list[Any]:
    names = ", ".join(f'"{column}"' for column in columns)
    return sorted(cursor.execute(f"SELECT {names} FROM {table}").fetchall(), key=repr)  # noqa: S608 - names from the catalogue

"""Query the database directly, without code of the engine and without a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw
import psycopg

Rows = list[tuple[Any, ...]]
DATABASE_ERRORS = (apsw.Error, psycopg.Error)


def query(url: str, text: str, params: Mapping[str, Any] | None = None) -> Rows:
    """Run one statement. `{p}` is the table prefix, `:name` a parameter.

    Raise one of `DATABASE_ERRORS` if the database does not answer.
    """
    if url.startswith("sqlite"):
        return _query_sqlite(url, text.replace("{p}", "mulligan_"), params or {})
    for name in params or {}:
        text = text.replace(f":{name}", f"%({name})s")
    return _query_postgres(url, text.replace("{p}", '"mulligan".'), params)


def _query_sqlite(url: str, text: str, params: Mapping[str, Any]) -> Rows:
    connection = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(5000)
    try:
        return [tuple(row) for row in connection.execute(text, dict(params))]
    finally:
        connection.close()


def _query_postgres(url: str, text: str, params: Mapping[str, Any] | None) -> Rows:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(text, params)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []


def count_states(url: str) -> dict[str, int]:
    return {
        row[0]: int(row[1]) for row in query(url, "SELECT state, count(*) FROM {p}job GROUP BY 1")
    }

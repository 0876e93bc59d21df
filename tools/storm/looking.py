"""The store seen from outside, with SQL of our own: no verb of the engine, no proxy in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import apsw
import psycopg

Rows = list[tuple[Any, ...]]
AWAY = (apsw.Error, psycopg.Error)


def ask(url: str, text: str, params: Mapping[str, Any] | None = None) -> Rows:
    """`{p}` is the prefix, `:name` a parameter. Raises one of `AWAY` when nobody answers."""
    if url.startswith("sqlite"):
        return _ask_sqlite(url, text.replace("{p}", "mulligan_"), params or {})
    for name in params or {}:
        text = text.replace(f":{name}", f"%({name})s")
    return _ask_postgres(url, text.replace("{p}", '"mulligan".'), params)


def _ask_sqlite(url: str, text: str, params: Mapping[str, Any]) -> Rows:
    connection = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(5000)
    try:
        return [tuple(row) for row in connection.execute(text, dict(params))]
    finally:
        connection.close()


def _ask_postgres(url: str, text: str, params: Mapping[str, Any] | None) -> Rows:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(text, params)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []


def states(url: str) -> dict[str, int]:
    return {
        row[0]: int(row[1]) for row in ask(url, "SELECT state, count(*) FROM {p}job GROUP BY 1")
    }

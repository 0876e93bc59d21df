"""One transaction on SQLite: runs statements one row after another."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from mulligan.core.durations import Micros
from mulligan.storage.base import StatementConditions, Transaction, replace_unstorable
from mulligan.storage.sqlite_handle import CONSTRAINT, Handle
from mulligan.storage.statements import (
    SQLITE_PREFIX,
    SqlDialect,
    load_positional,
    load_statement,
)

PREFIX = SQLITE_PREFIX
CLOCK_OFFSET_QUERY = f"SELECT value FROM {PREFIX}meta WHERE key = 'clock_offset'"


class SqliteTransaction(Transaction):
    """Transaction on one connection. SQLite has one writer, so nothing is ever locked by others."""

    dialect = SqlDialect.SQLITE
    unique_violations = CONSTRAINT

    def __init__(self, handle: Handle, clock_offset: Micros | None = None) -> None:
        self._handle = handle
        offset = read_clock_offset(handle) if clock_offset is None else clock_offset
        self._now = time.time_ns() // 1000 + offset

    def now(self) -> Micros:
        return self._now

    def rows(
        self, statement: str, _row_count: int | None = None, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        return self._run(statement, {"now": self._now} | params)

    def rows_matching(
        self, statement: str, conditions: StatementConditions, /, **params: Any
    ) -> list[tuple[Any, ...]]:
        values = {"now": self._now, **conditions.params, **params}
        return self._run(statement, values, conditions.text(self.dialect))

    def run_set(
        self,
        statement: str,
        rows: Sequence[Any],
        _optional: Sequence[frozenset[str]] = (),
        /,
        **params: Any,
    ) -> list[tuple[Any, ...]]:
        return [found for row in rows for found in self.rows(statement, **row._asdict(), **params)]

    def _run(
        self, statement: str, params: dict[str, Any], matching: str = "1 = 1"
    ) -> list[tuple[Any, ...]]:
        text = load_statement(statement, "sqlite", PREFIX, matching=matching)
        try:
            return self._handle.execute(text, params)
        except UnicodeEncodeError:
            storable = {name: replace_unstorable(value) for name, value in params.items()}
            return self._handle.execute(text, storable)

    def run_many(self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]) -> int:
        text, select_params = load_positional(statement, PREFIX, fields)
        values = [*map(select_params, rows)]
        try:
            if len(values) <= 1:
                return self._handle.execute_one(text, values[0]) if values else 0
            with self.savepoint():
                return self._handle.execute_many(text, values)
        except UnicodeEncodeError:
            storable = [tuple(map(replace_unstorable, row)) for row in values]
            return self._handle.execute_many(text, storable)

    def run_each(
        self, statement: str, fields: tuple[str, ...], rows: Sequence[Any]
    ) -> Sequence[int]:
        """Try all rows at once first: usually each of them changes something."""
        changed: Sequence[int] = range(len(rows))
        self.run_command("SAVEPOINT mulligan_each")
        if self.run_many(statement, fields, rows) < len(rows):
            self.run_command("ROLLBACK TO SAVEPOINT mulligan_each")
            changed = [
                place for place in changed if self.run_many(statement, fields, [rows[place]])
            ]
        self.run_command("RELEASE SAVEPOINT mulligan_each")
        return changed

    def run_command(self, text: str) -> None:
        self._handle.execute(text)

    def array_param(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def check_integrity(self) -> list[str]:
        found = [str(row[0]) for row in self._handle.execute("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found


def read_clock_offset(handle: Handle) -> Micros:
    """Read by how much tests have moved the clock."""
    found = handle.execute(CLOCK_OFFSET_QUERY)
    return int(found[0][0]) if found else 0

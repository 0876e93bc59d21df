"""A PEP 249 cursor: knows before its first step what a statement is, and begins the transaction it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from sqlite3 import ProgrammingError
from typing import Any, Protocol, Self
from weakref import WeakSet

import apsw

from mulligan.dbapi.translate import translated

Params = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]*")
# SQLite counts them among the writers, and they cannot or need not run inside a transaction.
_OUTSIDE = frozenset({"ATTACH", "BEGIN", "DETACH", "EXPLAIN", "PRAGMA", "VACUUM"})
_COUNTED = frozenset({"DELETE", "INSERT", "REPLACE", "UPDATE", "WITH"})


class Home(Protocol):
    """What a cursor asks of its connection."""

    reading: WeakSet[Cursor]

    @property
    def apsw_connection(self) -> apsw.Connection: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...


class Cursor:
    def __init__(self, connection: Home) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._raw = connection.apsw_connection.cursor()
        self._rows: Iterator[Row] = iter(())
        self._sql = ""
        self._word = ""
        self._writes = False

    # -- run --------------------------------------------------------------------------------------
    def execute(self, sql: str, params: Params = ()) -> Self:
        self._run(sql, params)
        return self

    def executemany(self, sql: str, params: Iterable[Params]) -> Self:
        total = 0
        for each in params:
            self._run(sql, each)
            if not self._writes:
                message = "executemany() runs statements that write; this one does not"
                raise ProgrammingError(message)
            total += max(self.rowcount, 0)
        self.rowcount = total
        return self

    def executescript(self, script: str) -> Self:
        """Commit what is open, then run the statements as they stand, as `sqlite3` does."""
        self.connection.commit()
        with translated:
            self.connection.apsw_connection.execute(script).fetchall()
        return self

    def _run(self, sql: str, params: Params) -> None:
        connection = self.connection.apsw_connection
        self._forget()
        self._sql = sql
        self._raw.exec_trace = self._before
        try:
            with translated:
                self._rows = self._raw.execute(sql, params)
        finally:
            self._raw.exec_trace = None
        if not self._writes:
            self.connection.reading.add(self)
            return
        self.read_to_end()  # COMMIT would find a half-read INSERT … RETURNING still in progress
        if self._word in _COUNTED:
            self.rowcount = connection.changes()
        if self._word in ("INSERT", "REPLACE"):
            self.lastrowid = connection.last_insert_rowid()

    def _forget(self) -> None:
        self.connection.reading.discard(self)
        self.description = None
        self.rowcount = -1
        self._rows = iter(())
        self._word = ""
        self._writes = False

    def _before(self, raw: apsw.Cursor, statement: str, _: object) -> bool:
        """Called by apsw between preparing a statement and its first step."""
        if self._word:
            return True  # this is only the comment behind our statement
        rest = self._sql[len(statement) :]
        if _blanks(rest) < len(rest):
            message = "You can only execute one statement at a time."
            raise ProgrammingError(message)
        self._word = _first_word(statement)
        self._writes = not raw.is_readonly and self._word not in _OUTSIDE
        self.description = tuple((name, *[None] * 6) for name, _ in raw.get_description()) or None
        if self._writes or self._word == "SAVEPOINT":
            self.connection.begin()
        return True

    # -- read -------------------------------------------------------------------------------------
    def read_to_end(self) -> None:
        """Keep the rest of the rows in memory, so that the statement is over."""
        with translated:
            self._rows = iter(list(self._rows))
        self.connection.reading.discard(self)

    def __iter__(self) -> Iterator[Row]:
        while (row := self.fetchone()) is not None:
            yield row

    def fetchone(self) -> Row | None:
        with translated:
            return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        with translated:
            return list(islice(self._rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[Row]:
        with translated:
            return list(self._rows)

    def close(self) -> None:
        self._forget()
        self._raw.close(force=True)

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """SQLite has no use for it."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """SQLite has no use for it."""


def _blanks(text: str) -> int:
    """How many characters at the start are white space, comments or semicolons."""
    found = _BLANK.match(text)
    return found.end() if found else 0


def _first_word(sql: str) -> str:
    found = _WORD.match(sql, _blanks(sql))
    return found.group().upper() if found else ""

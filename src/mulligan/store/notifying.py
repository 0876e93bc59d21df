"""Verbs of those who read the events: how far each has come. The row is the lease, so there is no leader to elect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from mulligan.job import Micros


class ReaderRow(NamedTuple):
    name: str
    cursor: int  # the last event it has read
    body: str  # what it remembers beside that; its own affair
    updated_at: Micros


class Notifying(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def reader(self, name: str) -> ReaderRow | None:
        """Held until the end of the transaction. None: somebody else is at it. A new one begins at the newest event."""

    @abstractmethod
    def move_reader(self, name: str, cursor: int, body: str = "") -> None: ...


class SqlNotifying(Notifying):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def newest_event(self) -> int: ...

    def reader(self, name: str) -> ReaderRow | None:
        found = self.rows("reader", name=name)
        if not found and not self.rows("has_reader", name=name):
            self.rows("new_reader", name=name, cursor=self.newest_event())
            found = self.rows("reader", name=name)
        return ReaderRow._make(found[0]) if found else None

    def move_reader(self, name: str, cursor: int, body: str = "") -> None:
        self.rows("move_reader", name=name, cursor=cursor, body=body)

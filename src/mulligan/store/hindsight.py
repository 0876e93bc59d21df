"""Verbs that look back: what became of gates meanwhile, what many attempts came to. They count and decide nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mulligan.event import Event
from mulligan.store.rows import event_of


class Hindsight(ABC):
    """Part of every `Unit`. Each verb reads a range of an index, and no more of it than its limit says."""

    @abstractmethod
    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        """Pauses, holds and their ends among the first and the last `most` events between two ids."""


class SqlHindsight(Hindsight):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def gate_news(self, after: int, before: int, most: int) -> list[Event]:
        return [event_of(row) for row in self.rows("gate_news", after=after, before=before, most=most)]

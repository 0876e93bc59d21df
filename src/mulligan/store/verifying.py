"""Verbs of the checker: everything there is, in the order of its keys, a page at a time. They only read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.event import Event
from mulligan.job import AttemptRow, JobRow, Micros
from mulligan.store.bundles import events_about
from mulligan.store.values import BatchRow

SlotRow = tuple[str, Micros, str]  # schedule, slot, job


class WholeRow(NamedTuple):
    """A job with what no view shows."""

    job: JobRow
    announced: bool
    unique_until: Micros | None
    must_have: bool


class Checkpointed(NamedTuple):
    job_id: str
    name: str
    token: int
    at: Micros


class PrunedRow(NamedTuple):
    kind: str
    first_id: str
    last_id: str


class Verifying(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def whole_jobs(self, after: str, limit: int) -> list[WholeRow]:
        """In the order of ids, those above `after`."""

    @abstractmethod
    def stories(self, ids: Sequence[str]) -> list[Event]:
        """All events of these jobs, in the order of jobs and of what happened."""

    @abstractmethod
    def attempts_of(self, ids: Sequence[str]) -> list[AttemptRow]: ...

    @abstractmethod
    def checkpointed(self, ids: Sequence[str]) -> list[Checkpointed]: ...

    @abstractmethod
    def batches_above(self, after: str, limit: int) -> list[BatchRow]: ...

    @abstractmethod
    def slots_above(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]: ...

    @abstractmethod
    def pruned_over(self, job_id: str) -> list[PrunedRow]:
        """What retention has removed around this id."""

    @abstractmethod
    def pruned_kinds(self) -> list[tuple[str, Micros]]:
        """Of which kinds retention has removed jobs, and when it last did."""

    @abstractmethod
    def running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        """(queue, uses, how many run that began after this moment)."""

    @abstractmethod
    def events_gone(self) -> int:
        """Up to this id only what people did is left of the log."""

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file, where it can tell."""
        return []


class SqlVerifying(Verifying):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    def whole_jobs(self, after: str, limit: int) -> list[WholeRow]:
        return [
            WholeRow(JobRow._make(row[:-3]), bool(row[-3]), row[-2], bool(row[-1]))
            for row in self.rows("whole_jobs", after=after, most=limit)
        ]

    def stories(self, ids: Sequence[str]) -> list[Event]:
        found = self.rows("stories", ids=self.ids(ids)) if ids else []
        return sorted(events_about(found, frozenset(ids)), key=lambda event: (event.job_id or "", event.id))

    def attempts_of(self, ids: Sequence[str]) -> list[AttemptRow]:
        return [AttemptRow._make(row) for row in self.rows("attempts_of", ids=self.ids(ids))] if ids else []

    def checkpointed(self, ids: Sequence[str]) -> list[Checkpointed]:
        return [Checkpointed._make(row) for row in self.rows("checkpointed", ids=self.ids(ids))] if ids else []

    def batches_above(self, after: str, limit: int) -> list[BatchRow]:
        return [BatchRow._make(row) for row in self.rows("batches_above", after=after, most=limit)]

    def slots_above(self, after: tuple[str, Micros], limit: int) -> list[SlotRow]:
        found = self.rows("slots_above", schedule=after[0], slot=after[1], most=limit)
        return [(row[0], row[1], row[2]) for row in found]

    def pruned_over(self, job_id: str) -> list[PrunedRow]:
        return [PrunedRow._make(row) for row in self.rows("pruned_over", id=job_id)]

    def pruned_kinds(self) -> list[tuple[str, Micros]]:
        return [(row[0], row[1]) for row in self.rows("pruned_kinds")]

    def running_since(self, since: Micros) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in self.rows("running_since", since=since)]

    def events_gone(self) -> int:
        found = self.rows("events_floor")
        return int(found[0][0]) if found else 0

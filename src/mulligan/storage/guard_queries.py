"""Verbs of the guards: what is remembered of a dependency or a kind, and the tallies that are folded into it.

Nobody waits here. Who cannot have a guard's row leaves a tally, and the next one who has the row takes it along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mulligan.core.job import Guarded, GuardRow, Micros


class GuardQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def guards(self, *, at_work: bool = False) -> list[GuardRow]:
        """All of them as they stand, or only those that claims must ask."""

    @abstractmethod
    def guard(self, key: Guarded) -> GuardRow | None:
        """To change it in this transaction, made where there is none; None: it is in another hand."""

    @abstractmethod
    def write_guard(self, row: GuardRow) -> bool:
        """Compare-and-set on the version that was seen."""

    @abstractmethod
    def append_tally(self, key: Guarded, body: str) -> None: ...

    @abstractmethod
    def take_tallies(self, key: Guarded) -> list[str]:
        """Remove and return what was appended, oldest first."""

    @abstractmethod
    def tallied(self) -> list[Guarded]:
        """Of whom there are tallies."""

    @abstractmethod
    def next_probe(self, key: Guarded, at: Micros | None) -> None:
        """Enter at a closed gate when its guard looks again."""

    @abstractmethod
    def forget_guards(self, before: Micros) -> int:
        """Delete those that rest and of whom nothing was heard since."""

    @abstractmethod
    def runs(self, job_id: str, token: int) -> bool:
        """Is this very attempt under way?"""

    @abstractmethod
    def last_success(self, kind: str, most: int) -> tuple[Micros | None, Micros]:
        """When a job of this kind last succeeded, looking at so many successes of all kinds, the newest; and back to
        when that was. 0: there are no more.
        """


class SqlGuardQueries(GuardQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def guards(self, *, at_work: bool = False) -> list[GuardRow]:
        return [_guard(row) for row in self.rows("guards_at_work" if at_work else "guards")]

    def guard(self, key: Guarded) -> GuardRow | None:
        named = {"scope": key[0], "key": key[1]}
        found = self.rows("guard", **named)
        if not found and not self.rows("has_guard", **named):
            self.rows("new_guard", **named)
            found = self.rows("guard", **named)
        return _guard(found[0]) if found else None

    def write_guard(self, row: GuardRow) -> bool:
        return bool(self.rows("write_guard", **row._asdict()))

    def append_tally(self, key: Guarded, body: str) -> None:
        self.rows("append_tally", scope=key[0], key=key[1], body=body)

    def take_tallies(self, key: Guarded) -> list[str]:
        return [row[0] for row in self.rows("take_tallies", scope=key[0], key=key[1])]

    def tallied(self) -> list[Guarded]:
        return [(row[0], row[1]) for row in self.rows("tallied")]

    def next_probe(self, key: Guarded, at: Micros | None) -> None:
        self.rows("next_probe", scope=key[0], key=key[1], probe_at=at)

    def forget_guards(self, before: Micros) -> int:
        return len(self.rows("forget_guards", before=before))

    def runs(self, job_id: str, token: int) -> bool:
        return bool(self.rows("runs", id=job_id, token=token))

    def last_success(self, kind: str, most: int) -> tuple[Micros | None, Micros]:
        found = self.rows("last_success", kind=kind, most=most)
        if found:
            return found[0][0], found[0][0]
        oldest = self.rows("nth_success", n=most - 1)
        return None, oldest[0][0] if oldest else 0


def _guard(row: tuple[Any, ...]) -> GuardRow:
    scope, key, version, active, body = row
    return GuardRow(scope, key, version, bool(active), body)

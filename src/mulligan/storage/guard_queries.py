"""Verbs of the guards: what is remembered of a dependency or a kind, and the tallies that are folded into it.

Nobody waits here. Who cannot have a guard's row leaves a tally, and the next one who has the row takes it along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mulligan.core.durations import Micros
from mulligan.core.job import GuardRow, LimitKey


class GuardQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_guards(self, *, active_only: bool = False) -> list[GuardRow]:
        """All of them as they stand, or only those that claims must ask."""

    @abstractmethod
    def lock_guard(self, key: LimitKey) -> GuardRow | None:
        """To change it in this transaction, made where there is none; None: it is in another hand."""

    @abstractmethod
    def update_guard(self, row: GuardRow) -> bool:
        """Compare-and-set on the version that was seen."""

    @abstractmethod
    def append_tally(self, key: LimitKey, body: str) -> None: ...

    @abstractmethod
    def take_tallies(self, key: LimitKey) -> list[str]:
        """Remove and return what was appended, oldest first."""

    @abstractmethod
    def list_tallied_guards(self) -> list[LimitKey]:
        """Of whom there are tallies."""

    @abstractmethod
    def set_probe_time(self, key: LimitKey, at: Micros | None) -> None:
        """Enter at a closed gate when its guard looks again."""

    @abstractmethod
    def delete_idle_guards(self, before: Micros) -> int:
        """Delete those that rest and of whom nothing was heard since."""

    @abstractmethod
    def is_running(self, job_id: str, token: int) -> bool:
        """Is this very attempt under way?"""

    @abstractmethod
    def find_last_success(self, kind: str, most: int) -> tuple[Micros | None, Micros]:
        """When a job of this kind last succeeded, looking at so many successes of all kinds, the newest; and back to
        when that was. 0: there are no more.
        """


class SqlGuardQueries(GuardQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def list_guards(self, *, active_only: bool = False) -> list[GuardRow]:
        return [
            _guard(row) for row in self.rows("list_active_guards" if active_only else "list_guards")
        ]

    def lock_guard(self, key: LimitKey) -> GuardRow | None:
        named = {"scope": key[0], "key": key[1]}
        found = self.rows("lock_guard", **named)
        if not found and not self.rows("guard_exists", **named):
            self.rows("insert_guard", **named)
            found = self.rows("lock_guard", **named)
        return _guard(found[0]) if found else None

    def update_guard(self, row: GuardRow) -> bool:
        return bool(self.rows("update_guard", **row._asdict()))

    def append_tally(self, key: LimitKey, body: str) -> None:
        self.rows("append_tally", scope=key[0], key=key[1], body=body)

    def take_tallies(self, key: LimitKey) -> list[str]:
        return [row[0] for row in self.rows("take_tallies", scope=key[0], key=key[1])]

    def list_tallied_guards(self) -> list[LimitKey]:
        return [(row[0], row[1]) for row in self.rows("list_tallied_guards")]

    def set_probe_time(self, key: LimitKey, at: Micros | None) -> None:
        self.rows("set_probe_time", scope=key[0], key=key[1], probe_at=at)

    def delete_idle_guards(self, before: Micros) -> int:
        return len(self.rows("delete_idle_guards", before=before))

    def is_running(self, job_id: str, token: int) -> bool:
        return bool(self.rows("is_running", id=job_id, token=token))

    def find_last_success(self, kind: str, most: int) -> tuple[Micros | None, Micros]:
        found = self.rows("find_last_success", kind=kind, limit=most)
        if found:
            return found[0][0], found[0][0]
        oldest = self.rows("find_nth_success", n=most - 1)
        return None, oldest[0][0] if oldest else 0


def _guard(row: tuple[Any, ...]) -> GuardRow:
    scope, key, version, active, body = row
    return GuardRow(scope, key, version, bool(active), body)

"""Statements about guards: their stored state, and the tallies that are folded into it.

Nothing waits here. If a guard is locked, a worker appends a tally, and the next one that locks the
guard folds it.
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
        """List all guards, or only those that restrict claims."""

    @abstractmethod
    def lock_guard(self, key: LimitKey) -> GuardRow | None:
        """Lock a guard, creating it if it does not exist. None: another worker has locked it."""

    @abstractmethod
    def update_guard(self, row: GuardRow) -> bool:
        """Store a guard by compare-and-set on its version. False: it has changed."""

    @abstractmethod
    def append_tally(self, key: LimitKey, body: str) -> None:
        """Append outcomes to a guard without locking it."""

    @abstractmethod
    def take_tallies(self, key: LimitKey) -> list[str]:
        """Delete and return the tallies of a guard, oldest first."""

    @abstractmethod
    def list_tallied_guards(self) -> list[LimitKey]:
        """List guards that have tallies."""

    @abstractmethod
    def set_probe_time(self, key: LimitKey, at: Micros | None) -> None:
        """Store when a guard probes its closed gate next."""

    @abstractmethod
    def delete_idle_guards(self, before: Micros) -> int:
        """Delete guards that restrict nothing and were not updated since a time."""

    @abstractmethod
    def is_running(self, job_id: str, token: int) -> bool:
        """True if this attempt is running."""

    @abstractmethod
    def find_last_success(self, kind: str, limit: int) -> tuple[Micros | None, Micros]:
        """Return when a job of this kind last succeeded, and how far back was looked.

        Considers the newest `limit` successes of all kinds. 0: all of them.
        """


class SqlGuardQueries(GuardQueries):
    """GuardQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def list_guards(self, *, active_only: bool = False) -> list[GuardRow]:
        statement = "list_active_guards" if active_only else "list_guards"
        return [_parse_guard(row) for row in self.rows(statement)]

    def lock_guard(self, key: LimitKey) -> GuardRow | None:
        name = {"scope": key[0], "key": key[1]}
        found = self.rows("lock_guard", **name)
        if not found and not self.rows("guard_exists", **name):
            self.rows("insert_guard", **name)
            found = self.rows("lock_guard", **name)
        return _parse_guard(found[0]) if found else None

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

    def find_last_success(self, kind: str, limit: int) -> tuple[Micros | None, Micros]:
        found = self.rows("find_last_success", kind=kind, limit=limit)
        if found:
            return found[0][0], found[0][0]
        oldest = self.rows("find_nth_success", n=limit - 1)
        return None, oldest[0][0] if oldest else 0


def _parse_guard(row: tuple[Any, ...]) -> GuardRow:
    scope, key, version, active, body = row
    return GuardRow(scope, key, version, bool(active), body)

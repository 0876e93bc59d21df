"""Verbs of failure groups: dead jobs that died of one cause, and what people have said about them.

Each reads a range of an index, and no more of it than its limit says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mulligan.job import JobRow, MarkRow, Micros, State
from mulligan.store.matching import LAST, Matching, Where, along, matching, way_of
from mulligan.tally import DeathCount

GROUPS_LOOKED = 5000  # at most so many groups are known of; which, beyond that, is chance


class Grouping(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def group_names(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        """Groups that have dead jobs (of this owner) and when the last of each died, that one first."""

    @abstractmethod
    def group_names_found(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        """The same of the dead jobs that an indexed argument finds."""

    @abstractmethod
    def group_members(self, where: Where, now: Micros, hours: int, cap: int) -> list[DeathCount]:
        """The newest `cap` deaths, counted by kind, code, class and how many hours ago, at most `hours`."""

    @abstractmethod
    def group_first(self, where: Where) -> Micros | None:
        """When the first of them died."""

    @abstractmethod
    def group_sample(self, where: Where) -> JobRow | None:
        """The one that died last."""

    @abstractmethod
    def group_recovered(self, fingerprint: str, owner: str | None, most: int) -> tuple[int, int]:
        """Of the newest `most` deaths: jobs retried by hand that have ended since; how many of those succeeded."""

    @abstractmethod
    def group_known(self, fingerprint: str, owner: str | None, most: int) -> bool:
        """Did any job die of this, among the newest `most` of them, whatever became of it since?"""

    @abstractmethod
    def marks(self, scope: str) -> dict[str, MarkRow]:
        """What people have said, by fingerprint."""

    @abstractmethod
    def mark(self, scope: str, fingerprint: str) -> MarkRow | None: ...

    @abstractmethod
    def write_mark(self, row: MarkRow) -> None: ...

    @abstractmethod
    def forget_marks(self, before: Micros) -> int:
        """Delete what was said before then of groups that have no dead job."""

    @abstractmethod
    def find_keys(self, prefix: str, limit: int) -> list[str]:
        """Ids of jobs whose unique key begins so."""


class SqlGrouping(Grouping):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def asked(self, verb: str, asked: Matching, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def group_names(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        bounds = {"looked": GROUPS_LOOKED, "most": most}
        rows = self.rows("group_names", **bounds) if owner is None else self.rows(
            "group_names_of", owner=owner, **bounds
        )  # fmt: skip
        return [(row[0], row[1]) for row in rows]

    def group_names_found(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        asked = along(matching({**where, "state": State.DEAD.value}), way_of(where))
        return [(row[0], row[1]) for row in self.asked("group_names_found", asked, before=LAST, floor="", most=most)]

    def group_members(self, where: Where, now: Micros, hours: int, cap: int) -> list[DeathCount]:
        return [DeathCount._make(row) for row in self.found("group_members", where, moment=now, hours=hours, cap=cap)]

    def group_first(self, where: Where) -> Micros | None:
        found = self.found("group_first", where)
        return found[0][0] if found else None

    def group_sample(self, where: Where) -> JobRow | None:
        found = self.found("group_sample", where)
        return JobRow._make(found[0]) if found else None

    def group_recovered(self, fingerprint: str, owner: str | None, most: int) -> tuple[int, int]:
        retried, recovered = self.rows("group_recovered", fingerprint=fingerprint, owner=owner, most=most)[0]
        return retried, recovered

    def group_known(self, fingerprint: str, owner: str | None, most: int) -> bool:
        return bool(self.rows("group_known", fingerprint=fingerprint, owner=owner, most=most))

    def marks(self, scope: str) -> dict[str, MarkRow]:
        return {row[0]: MarkRow._make(row) for row in self.rows("marks", scope=scope)}

    def mark(self, scope: str, fingerprint: str) -> MarkRow | None:
        found = self.rows("mark", scope=scope, fingerprint=fingerprint)
        return MarkRow._make(found[0]) if found else None

    def write_mark(self, row: MarkRow) -> None:
        self.rows("write_mark", **row._asdict())

    def forget_marks(self, before: Micros) -> int:
        return len(self.rows("forget_marks", before=before))

    def find_keys(self, prefix: str, limit: int) -> list[str]:
        beyond = f"{prefix}\U0010ffff"
        return [row[0] for row in self.rows("find_keys", prefix=prefix, beyond=beyond, most=limit)]

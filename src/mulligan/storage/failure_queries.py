"""Verbs of failure groups: dead jobs that died of one cause, and what people have said about them.

Each reads a range of an index, and no more of it than its limit says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mulligan.core.job import JobRow, MarkRow, Micros, State
from mulligan.core.statistics import Deaths
from mulligan.storage.search_queries import LAST, Matching, Where, along, matching, way_of

GROUPS_LOOKED = 5000  # at most so many groups are known of; which, beyond that, is chance


class FailureQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def group_names(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        """Groups that have dead jobs (of this owner) and when the last of each died, that one first."""

    @abstractmethod
    def group_names_found(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        """The same of the dead jobs that an indexed argument finds."""

    @abstractmethod
    def group_ends(self, names: Sequence[str], where: Where) -> dict[str, tuple[Micros, Micros]]:
        """When the first and the last of each group died."""

    @abstractmethod
    def group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        """Of each group the newest `cap` deaths, counted by kind, code and class, and by how many hours ago.

        At most `hours` are told apart. When the first and the last died is said of all of them.
        """

    @abstractmethod
    def group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        """Of each group the one that died last."""

    @abstractmethod
    def group_recovered(
        self, names: Sequence[str], owner: str | None, most: int
    ) -> dict[str, tuple[int, int]]:
        """Of each's newest `most` deaths: jobs retried by hand that have ended since; how many of those succeeded."""

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


class SqlFailureQueries(FailureQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def asked(self, verb: str, asked: Matching, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    def group_names(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        bounds = {"looked": GROUPS_LOOKED, "most": most}
        rows = (
            self.rows("group_names", **bounds)
            if owner is None
            else self.rows("group_names_of", owner=owner, **bounds)
        )
        return [(row[0], row[1]) for row in rows]

    def group_names_found(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        asked = along(matching({**where, "state": State.DEAD.value}), way_of(where))
        return [
            (row[0], row[1])
            for row in self.asked("group_names_found", asked, before=LAST, floor="", most=most)
        ]

    def group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        rows = self.found("group_samples", of_the_dead(where), names=self.ids(names))
        return {name: JobRow._make(row) for name, *row in rows}

    def group_ends(self, names: Sequence[str], where: Where) -> dict[str, tuple[Micros, Micros]]:
        rows = self.found("group_ends", of_the_dead(where), names=self.ids(names))
        return {name: (first, last) for name, first, last in rows if first is not None}

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


def of_the_dead(where: Where) -> Where:
    """Which of them; of which group is said otherwise."""
    return {
        **{name: said for name, said in where.items() if name != "group"},
        "state": State.DEAD.value,
    }

"""Verbs of failure groups: dead jobs that died of one cause, and what people have said about them.

Each reads a range of an index, and no more of it than its limit says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mulligan.core.durations import Micros
from mulligan.core.job import FailureGroupRow, JobRow, State
from mulligan.core.statistics import Deaths
from mulligan.storage.search_queries import (
    ABOVE_ALL_IDS,
    Conditions,
    Where,
    build_conditions,
    choose_plan,
    follow_plan,
)

MAX_GROUPS = 5000  # at most so many groups are known of; which, beyond that, is chance


class FailureQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_groups(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        """Groups that have dead jobs (of this owner) and when the last of each died, that one first."""

    @abstractmethod
    def list_groups_matching(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        """The same of the dead jobs that an indexed argument finds."""

    @abstractmethod
    def get_group_death_times(
        self, names: Sequence[str], where: Where
    ) -> dict[str, tuple[Micros, Micros]]:
        """When the first and the last of each group died."""

    @abstractmethod
    def count_group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        """Of each group the newest `cap` deaths, counted by kind, code and class, and by how many hours ago.

        At most `hours` are told apart. When the first and the last died is said of all of them.
        """

    @abstractmethod
    def get_group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        """Of each group the one that died last."""

    @abstractmethod
    def count_group_recoveries(
        self, names: Sequence[str], owner: str | None, most: int
    ) -> dict[str, tuple[int, int]]:
        """Of each's newest `most` deaths: jobs retried by hand that have ended since; how many of those succeeded."""

    @abstractmethod
    def is_known_group(self, fingerprint: str, owner: str | None, most: int) -> bool:
        """Did any job die of this, among the newest `most` of them, whatever became of it since?"""

    @abstractmethod
    def list_group_states(self, scope: str) -> dict[str, FailureGroupRow]:
        """What people have said, by fingerprint."""

    @abstractmethod
    def get_group_state(self, scope: str, fingerprint: str) -> FailureGroupRow | None: ...

    @abstractmethod
    def write_group_state(self, row: FailureGroupRow) -> None: ...

    @abstractmethod
    def delete_old_group_states(self, before: Micros) -> int:
        """Delete what was said before then of groups that have no dead job."""

    @abstractmethod
    def find_jobs_by_key(self, prefix: str, limit: int) -> list[str]:
        """Ids of jobs whose unique key begins so."""


class SqlFailureQueries(FailureQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def rows_where(
        self, statement: str, where: Where, /, **params: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def rows_matching(
        self, statement: str, conditions: Conditions, /, **params: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    def list_groups(self, owner: str | None, most: int) -> list[tuple[str, Micros]]:
        bounds = {"examined": MAX_GROUPS, "limit": most}
        rows = (
            self.rows("list_groups", **bounds)
            if owner is None
            else self.rows("list_groups_of_owner", owner=owner, **bounds)
        )
        return [(row[0], row[1]) for row in rows]

    def list_groups_matching(self, where: Where, most: int) -> list[tuple[str, Micros]]:
        asked = follow_plan(
            build_conditions({**where, "state": State.DEAD.value}), choose_plan(where)
        )
        return [
            (row[0], row[1])
            for row in self.rows_matching(
                "list_groups_matching", asked, before=ABOVE_ALL_IDS, floor="", limit=most
            )
        ]

    def get_group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        rows = self.rows_where(
            "get_group_samples", dead_jobs_filter(where), names=self.array_param(names)
        )
        return {name: JobRow._make(row) for name, *row in rows}

    def get_group_death_times(
        self, names: Sequence[str], where: Where
    ) -> dict[str, tuple[Micros, Micros]]:
        rows = self.rows_where(
            "get_group_death_times", dead_jobs_filter(where), names=self.array_param(names)
        )
        return {name: (first, last) for name, first, last in rows if first is not None}

    def is_known_group(self, fingerprint: str, owner: str | None, most: int) -> bool:
        return bool(self.rows("is_known_group", fingerprint=fingerprint, owner=owner, limit=most))

    def list_group_states(self, scope: str) -> dict[str, FailureGroupRow]:
        return {
            row[0]: FailureGroupRow._make(row)
            for row in self.rows("list_group_states", scope=scope)
        }

    def get_group_state(self, scope: str, fingerprint: str) -> FailureGroupRow | None:
        found = self.rows("get_group_state", scope=scope, fingerprint=fingerprint)
        return FailureGroupRow._make(found[0]) if found else None

    def write_group_state(self, row: FailureGroupRow) -> None:
        self.rows("write_group_state", **row._asdict())

    def delete_old_group_states(self, before: Micros) -> int:
        return len(self.rows("delete_old_group_states", before=before))

    def find_jobs_by_key(self, prefix: str, limit: int) -> list[str]:
        beyond = f"{prefix}\U0010ffff"
        return [
            row[0]
            for row in self.rows("find_jobs_by_key", prefix=prefix, upper=beyond, limit=limit)
        ]


def dead_jobs_filter(where: Where) -> Where:
    """Which of them; of which group is said otherwise."""
    return {
        **{name: said for name, said in where.items() if name != "group"},
        "state": State.DEAD.value,
    }

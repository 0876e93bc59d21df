"""Statements about failure groups: dead jobs with one cause, and the states that people set.

Each statement reads a range of an index, and no more of it than its limit.
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

MAX_GROUPS = 5000  # groups that are examined


class FailureQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def list_groups(self, owner: str | None, limit: int) -> list[tuple[str, Micros]]:
        """List groups with dead jobs and the time of their newest death, newest first."""

    @abstractmethod
    def list_groups_matching(self, where: Where, limit: int) -> list[tuple[str, Micros]]:
        """List groups of dead jobs that an indexed argument finds, as `list_groups` does."""

    @abstractmethod
    def get_group_death_times(
        self, names: Sequence[str], where: Where
    ) -> dict[str, tuple[Micros, Micros]]:
        """Return the times of the first and the last death of each group."""

    @abstractmethod
    def count_group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        """Count the newest `cap` deaths of each group by kind, code and class, and by age.

        Ages are in hours, at most `hours`. The first and last death are those of all jobs.
        """

    @abstractmethod
    def get_group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        """Return the job of each group that died last."""

    @abstractmethod
    def count_group_recoveries(
        self, names: Sequence[str], owner: str | None, limit: int
    ) -> dict[str, tuple[int, int]]:
        """Count jobs of each group that were retried manually and ended, and their successes.

        Considers the newest `limit` deaths.
        """

    @abstractmethod
    def is_known_group(self, fingerprint: str, owner: str | None, limit: int) -> bool:
        """True if one of the newest `limit` jobs with this fingerprint died."""

    @abstractmethod
    def list_group_states(self, scope: str) -> dict[str, FailureGroupRow]:
        """Return the states that people set, by fingerprint."""

    @abstractmethod
    def get_group_state(self, scope: str, fingerprint: str) -> FailureGroupRow | None:
        """Read the state of one group."""

    @abstractmethod
    def write_group_state(self, row: FailureGroupRow) -> None:
        """Store the state of a group."""

    @abstractmethod
    def delete_old_group_states(self, before: Micros) -> int:
        """Delete old states of groups that have no dead job."""

    @abstractmethod
    def find_jobs_by_key(self, prefix: str, limit: int) -> list[str]:
        """List jobs whose unique key starts with `prefix`."""


class SqlFailureQueries(FailureQueries):
    """FailureQueries in SQL."""

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

    def list_groups(self, owner: str | None, limit: int) -> list[tuple[str, Micros]]:
        bounds = {"examined": MAX_GROUPS, "limit": limit}
        if owner is None:
            rows = self.rows("list_groups", **bounds)
        else:
            rows = self.rows("list_groups_of_owner", owner=owner, **bounds)
        return [(row[0], row[1]) for row in rows]

    def list_groups_matching(self, where: Where, limit: int) -> list[tuple[str, Micros]]:
        conditions = build_conditions({**where, "state": State.DEAD.value})
        rows = self.rows_matching(
            "list_groups_matching",
            follow_plan(conditions, choose_plan(where)),
            before=ABOVE_ALL_IDS,
            floor="",
            limit=limit,
        )
        return [(row[0], row[1]) for row in rows]

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

    def is_known_group(self, fingerprint: str, owner: str | None, limit: int) -> bool:
        return bool(self.rows("is_known_group", fingerprint=fingerprint, owner=owner, limit=limit))

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
        upper = f"{prefix}\U0010ffff"
        rows = self.rows("find_jobs_by_key", prefix=prefix, upper=upper, limit=limit)
        return [row[0] for row in rows]


def dead_jobs_filter(where: Where) -> Where:
    """Restrict a filter to dead jobs. Drop its group, which the statements compare themselves."""
    fields = {name: value for name, value in where.items() if name != "group"}
    return {**fields, "state": State.DEAD.value}

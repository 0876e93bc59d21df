"""Statements about failure groups and about the attempts that rules have classified.

A failure group is the dead jobs with one cause. Each statement reads a range of an index, and no
more of it than its limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.job import FailureGroupRow, JobRow, State
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.jobs.conditions import (
    ABOVE_ALL_IDS,
    Where,
    build_conditions,
    choose_plan,
    follow_plan,
)
from mulligan.storage.base import Queries
from mulligan.storage.statements import SqlDialect

MAX_GROUPS = 5000  # groups that are examined


class PastAttemptRow(NamedTuple):
    """Attempt with the columns that a back-test needs."""

    job_id: str
    kind: str
    uses: str
    token: int
    generation: int
    ended: str
    verb: str
    code: str | None
    cls: str | None
    rule: str | None
    judged: str | None
    evidence: str | None
    private: str | None
    cost: float


class RuleHitRow(NamedTuple):
    """Failures that a rule classified, and what rules and policies in shadow mode would decide."""

    rule: str
    code: str
    cls: str
    verb: str
    would_rule: str | None
    would_code: str | None
    would_cls: str | None
    would_verb: str | None  # of a policy in shadow mode
    n: int
    last: Micros


class ClassifiedAttemptRow(NamedTuple):
    """Attempt that a rule classified."""

    job_id: str
    kind: str
    attempt: int
    code: str | None
    cls: str | None
    verb: str
    ended_at: Micros
    public: str | None


class FailureQueries(Queries):
    """Statements about failure groups and classified attempts, in a transaction."""

    def list_groups(self, owner: str | None, limit: int) -> list[tuple[str, Micros]]:
        """List groups with dead jobs and the time of their newest death, newest first."""
        bounds = {"examined": MAX_GROUPS, "limit": limit}
        if owner is None:
            rows = self.tx.rows("list_groups", **bounds)
        else:
            rows = self.tx.rows("list_groups_of_owner", owner=owner, **bounds)
        return [(row[0], row[1]) for row in rows]

    def list_groups_matching(self, where: Where, limit: int) -> list[tuple[str, Micros]]:
        """List groups of dead jobs that an indexed argument finds, as `list_groups` does."""
        conditions = build_conditions({**where, "state": State.DEAD.value})
        rows = self.tx.rows_matching(
            "list_groups_matching",
            follow_plan(conditions, choose_plan(where)),
            before=ABOVE_ALL_IDS,
            floor="",
            limit=limit,
        )
        return [(row[0], row[1]) for row in rows]

    def get_group_death_times(
        self, names: Sequence[str], where: Where
    ) -> dict[str, tuple[Micros, Micros]]:
        """Return the times of the first and the last death of each group."""
        rows = self._rows_of_groups("get_group_death_times", names, where)
        return {name: (first, last) for name, first, last in rows if first is not None}

    def count_group_deaths(
        self, names: Sequence[str], where: Where, now: Micros, hours: int, cap: int
    ) -> dict[str, Deaths]:
        """Count the newest `cap` deaths of each group by kind, code and class, and by age.

        Ages are in hours, at most `hours`. The first and last death are those of all jobs.
        """
        death_times = self.get_group_death_times(names, where)
        found = {name: Deaths([], [], first, last) for name, (first, last) in death_times.items()}
        for name, kind, code, cls, ago, jobs in self._group_deaths(found, where, now, hours, cap):
            if ago is None:
                found[name].counts.append(DeathCount(kind, code, cls, jobs))
            else:
                found[name].hours.append((ago, jobs))
        return found

    def _group_deaths(
        self, names: Iterable[str], where: Where, now: Micros, hours: int, cap: int
    ) -> Iterator[tuple[Any, ...]]:
        """Yield (group, kind, code, class, age, jobs) by kind, code and class, and by age."""
        conditions = build_conditions(dead_jobs_filter(where))
        bounds = {"at_time": now, "hours": hours, "cap": cap}
        if self.tx.dialect == SqlDialect.POSTGRES:
            params = {"names": self.tx.array_param([*names]), **bounds}
            yield from self.tx.rows_matching("count_group_deaths", conditions, **params)
            return
        for name in names:
            deaths = self.tx.rows_matching("list_group_deaths", conditions, name=name, **bounds)
            for cause, jobs in Counter(death[:3] for death in deaths).items():
                yield (name, *cause, None, jobs)
            for age, jobs in Counter(death[3] for death in deaths).items():
                yield name, None, None, None, age, jobs

    def get_group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        """Return the job of each group that died last."""
        rows = self._rows_of_groups("get_group_samples", names, where)
        return {name: JobRow._make(row) for name, *row in rows}

    def count_group_recoveries(
        self, names: Sequence[str], owner: str | None, limit: int
    ) -> dict[str, tuple[int, int]]:
        """Count jobs of each group that were retried manually and ended, and their successes.

        Considers the newest `limit` deaths.
        """
        bounds = {"owner": owner, "limit": limit}
        if self.tx.dialect == SqlDialect.POSTGRES:
            names_param = self.tx.array_param(names)
            rows = self.tx.rows("count_group_recoveries", names=names_param, **bounds)
        else:
            rows = [
                row
                for name in names
                for row in self.tx.rows("count_group_recoveries", name=name, **bounds)
            ]
        return {name: (retried, recovered) for name, retried, recovered in rows}

    def _rows_of_groups(
        self, statement: str, names: Sequence[str], where: Where
    ) -> list[tuple[Any, ...]]:
        conditions = build_conditions(dead_jobs_filter(where))
        return self.tx.rows_matching(statement, conditions, names=self.tx.array_param(names))

    def is_known_group(self, fingerprint: str, owner: str | None, limit: int) -> bool:
        """True if one of the newest `limit` jobs with this fingerprint died."""
        return bool(
            self.tx.rows("is_known_group", fingerprint=fingerprint, owner=owner, limit=limit)
        )

    def list_group_states(self, scope: str) -> dict[str, FailureGroupRow]:
        """Return the states that people set, by fingerprint."""
        return {
            row[0]: FailureGroupRow._make(row)
            for row in self.tx.rows("list_group_states", scope=scope)
        }

    def get_group_state(self, scope: str, fingerprint: str) -> FailureGroupRow | None:
        """Read the state of one group."""
        found = self.tx.rows("get_group_state", scope=scope, fingerprint=fingerprint)
        return FailureGroupRow._make(found[0]) if found else None

    def write_group_state(self, row: FailureGroupRow) -> None:
        """Store the state of a group."""
        self.tx.rows("write_group_state", **row._asdict())

    def find_backtest_start(self, low: str, attempts: int) -> str:
        """Return the id after which the newest `attempts` attempts lie, at least `low`."""
        _, begin = self.tx.rows("insight_bounds", low=low, jobs=attempts, attempts=attempts)[0]
        return max(low, begin or "")

    def list_past_attempts(
        self, begin: tuple[str, int], since: Micros, kind: str | None, limit: int
    ) -> list[PastAttemptRow]:
        """List attempts after (job, token), in this order."""
        job_id, token = begin
        found = self.tx.rows(
            "list_past_attempts",
            from_id=job_id,
            from_token=token,
            since=since,
            kind=kind,
            limit=limit,
        )
        return [PastAttemptRow(*row) for row in found]

    def count_rule_hits(
        self, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[RuleHitRow]:
        """Count what rules classified among attempts of jobs after an id, most first."""
        return [
            RuleHitRow._make(row)
            for row in self.tx.rows(
                "count_rule_hits", after=after, since=since, kind=kind, limit=limit
            )
        ]

    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[ClassifiedAttemptRow]:
        """List attempts that a rule classified, also in shadow mode, newest jobs first."""
        found = self.tx.rows(
            "list_attempts_by_rule", rule=rule, after=after, since=since, kind=kind, limit=limit
        )
        return [ClassifiedAttemptRow._make(row) for row in found]


def dead_jobs_filter(where: Where) -> Where:
    """Restrict a filter to dead jobs. Drop its group, which the statements compare themselves."""
    fields = {name: value for name, value in where.items() if name != "group"}
    return {**fields, "state": State.DEAD.value}

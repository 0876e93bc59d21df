"""Statements about failure groups, their causes, and the attempts that rules have classified.

A failure group is the dead jobs with one cause. Each statement reads a range of an index, and no
more of it than its limit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import EventType
from mulligan.core.job import AttemptRow, FailureGroupRow, JobRow, State
from mulligan.core.statistics import DeathCount, Deaths
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import (
    NO_PARTS,
    CauseDeath,
    CauseRow,
    FailureParts,
    GroupMemberRow,
    GroupRetries,
    fold_deaths,
)
from mulligan.jobs.filter import (
    ABOVE_ALL_IDS,
    Where,
    build_conditions,
    choose_plan,
    follow_plan,
)
from mulligan.storage.base import Queries, Transaction
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
        """Count the newest `cap` deaths of each group by kind, code and class, by age, by owner.

        Ages are in hours, at most `hours`. The first and last death are those of all jobs.
        """
        death_times = self.get_group_death_times(names, where)
        found = {
            name: Deaths([], [], first, last, {}) for name, (first, last) in death_times.items()
        }
        for name, kind, code, cls, ago, owner, jobs in self._group_deaths(
            found, where, now, hours, cap
        ):
            if owner is not None:
                found[name].owners[owner] = jobs
            elif ago is not None:
                found[name].hours.append((ago, jobs))
            else:
                found[name].counts.append(DeathCount(kind, code, cls, jobs))
        return found

    def _group_deaths(
        self, names: Iterable[str], where: Where, now: Micros, hours: int, cap: int
    ) -> Iterator[tuple[Any, ...]]:
        """Yield (group, kind, code, class, age, owner, jobs), of which one part is not None."""
        conditions = build_conditions(dead_jobs_filter(where))
        bounds = {"at_time": now, "hours": hours, "cap": cap}
        if self.tx.dialect == SqlDialect.POSTGRES:
            params = {"names": self.tx.array_param([*names]), **bounds}
            yield from self.tx.rows_matching("count_group_deaths", conditions, **params)
            return
        for name in names:
            deaths = self.tx.rows_matching("list_group_deaths", conditions, name=name, **bounds)
            for cause, jobs in Counter(death[:3] for death in deaths).items():
                yield (name, *cause, None, None, jobs)
            for age, jobs in Counter(death[3] for death in deaths).items():
                yield name, None, None, None, age, None, jobs
            for owner, jobs in Counter(death[4] for death in deaths).items():
                yield name, None, None, None, None, owner, jobs

    def get_group_samples(self, names: Sequence[str], where: Where) -> dict[str, JobRow]:
        """Return the job of each group that died last."""
        rows = self._rows_of_groups("get_group_samples", names, where)
        return {name: JobRow._make(row) for name, *row in rows}

    def count_group_retries(
        self, names: Sequence[str], owner: str | None, limit: int
    ) -> dict[str, GroupRetries]:
        """Count jobs of each group that were retried manually, and what became of them.

        Considers the newest `limit` deaths.
        """
        bounds = {"owner": owner, "limit": limit}
        if self.tx.dialect == SqlDialect.POSTGRES:
            names_param = self.tx.array_param(names)
            rows = self.tx.rows("count_group_retries", names=names_param, **bounds)
        else:
            rows = [
                row
                for name in names
                for row in self.tx.rows("count_group_retries", name=name, **bounds)
            ]
        return {name: GroupRetries(*counts) for name, *counts in rows}

    def list_group_members(self, name: str, where: Where, limit: int) -> list[GroupMemberRow]:
        """List the newest dead jobs of a group for its breakdown."""
        conditions = build_conditions(dead_jobs_filter(where))
        rows = self.tx.rows_matching("list_group_members", conditions, name=name, limit=limit)
        return [GroupMemberRow._make(row) for row in rows]

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

    def get_causes(self, names: Sequence[str]) -> dict[str, CauseRow]:
        """Return the causes with these fingerprints, without their samples, which are large."""
        rows = self.tx.rows("get_causes", names=self.tx.array_param(names))
        return {row[0]: CauseRow._make(row) for row in rows}

    def get_cause_samples(self, names: Sequence[str]) -> dict[str, str]:
        """Return the last death of each cause as JSON."""
        rows = self.tx.rows("get_cause_samples", names=self.tx.array_param(names))
        return dict(rows)

    def list_causes(self, limit: int) -> list[tuple[str, Micros]]:
        """List causes with the time of their last death, newest first."""
        return [(name, last) for name, last in self.tx.rows("list_causes", limit=limit)]

    def write_causes(self, rows: Sequence[CauseRow]) -> None:
        """Store causes."""
        self.tx.run_set("write_causes", rows)

    def list_attempts_of_deaths(self, ids: Sequence[str]) -> list[AttemptRow]:
        """List all attempts of these jobs."""
        return self.list_rows(AttemptRow, "list_attempts_of_deaths", ids=self.tx.array_param(ids))

    def releases_of_attempts(self, ids: Sequence[str]) -> dict[tuple[str, int | None], str]:
        """Return the releases in which the attempts of these jobs ran, by job and token."""
        rows = self.tx.rows("releases_of_attempts", ids=self.tx.array_param(ids))
        return {(job, token): release for job, token, release in rows}

    def list_group_states(self, scope: str) -> dict[str, FailureGroupRow]:
        """Return the states that people set, by fingerprint."""
        return {
            row[0]: FailureGroupRow._make(row)
            for row in self.tx.rows("list_group_states", scope=scope)
        }

    def get_group_state(self, scope: str, fingerprint: str) -> FailureGroupRow | None:
        """Read the state of one group."""
        return self.first_row(
            FailureGroupRow, "get_group_state", scope=scope, fingerprint=fingerprint
        )

    def write_group_state(self, row: FailureGroupRow) -> None:
        """Store the state of a group."""
        self.tx.rows("write_group_state", **row._asdict())

    def list_resolved_groups(self, names: Sequence[str]) -> list[FailureGroupRow]:
        """List the marks of resolved groups that have not regressed."""
        return self.list_rows(
            FailureGroupRow, "list_resolved_groups", names=self.tx.array_param(names)
        )

    def mark_regressed(self, mark: FailureGroupRow, at: Micros) -> bool:
        """Record that a resolved group has regressed. False: somebody has changed its mark."""
        rows = self.tx.rows(
            "mark_regressed",
            fingerprint=mark.fingerprint,
            scope=mark.scope,
            marked_at=mark.at,
            at=at,
        )
        return bool(rows)

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
        return self.list_rows(
            RuleHitRow, "count_rule_hits", after=after, since=since, kind=kind, limit=limit
        )

    def list_attempts_by_rule(
        self, rule: str, after: str, since: Micros, kind: str | None, limit: int
    ) -> list[ClassifiedAttemptRow]:
        """List attempts that a rule classified, also in shadow mode, newest jobs first."""
        return self.list_rows(
            ClassifiedAttemptRow,
            "list_attempts_by_rule",
            rule=rule,
            after=after,
            since=since,
            kind=kind,
            limit=limit,
        )


def dead_jobs_filter(where: Where) -> Where:
    """Restrict a filter to dead jobs. Drop its group, which the statements compare themselves."""
    fields = {name: value for name, value in where.items() if name != "group"}
    return {**fields, "state": State.DEAD.value}


# --- Record causes: add the deaths that events report ---

# The worker that counts events (`observability/event_counts.py`) calls these functions, so that a
# job that dies costs nothing here, and only one transaction at a time writes a cause.
DeathsByCause = dict[str, list[CauseDeath]]
PartsByCause = dict[str, FailureParts]


def read_deaths(tx: Transaction, cursor: int, top: int, limit: int) -> DeathsByCause:
    """Return the deaths that events between two ids report, by fingerprint."""
    deaths: DeathsByCause = defaultdict(list)
    types = [EventType.JOB_DIED]
    for event in EventQueries(tx).list_events_of_types(types, cursor, top, limit):
        group = event.data.get("group")
        if isinstance(group, str) and group:
            deaths[group].append(
                CauseDeath(
                    group, event.at, event.job_id or "", event.token, event.owner, event.data
                )
            )
    return _add_releases(tx, deaths)


def _add_releases(tx: Transaction, deaths: DeathsByCause) -> DeathsByCause:
    """Add the release of each attempt. Jobs that died without one have none."""
    jobs = {death.job for some in deaths.values() for death in some if death.token is not None}
    if not jobs:
        return deaths
    releases = FailureQueries(tx).releases_of_attempts(sorted(jobs))
    return {
        name: [death._replace(release=releases.get((death.job, death.token), "")) for death in some]
        for name, some in deaths.items()
    }


def read_last_failures(tx: Transaction, deaths: DeathsByCause) -> PartsByCause:
    """Return what the last death of each cause stored about its failure."""
    last = {name: some[-1] for name, some in deaths.items()}
    attempts = FailureQueries(tx).list_attempts_of_deaths([death.job for death in last.values()])
    by_attempt = {(row.job_id, row.token): row for row in attempts}
    parts = {}
    for name, death in last.items():
        row = by_attempt.get((death.job, death.token or 0))
        parts[name] = NO_PARTS if row is None else parse_parts(row)
    return parts


def parse_parts(row: AttemptRow) -> FailureParts:
    """Return the evidence of an attempt's failure, and its private part with what its rule says."""
    private = json.loads(row.private or "{}")
    terms = json.loads(row.judged or "{}").get("terms") or {}
    private |= {name: terms[name] for name in ("runbook", "alarm") if terms.get(name)}
    return FailureParts(json.loads(row.evidence or "{}"), private)


def record_deaths(tx: Transaction, deaths: DeathsByCause, parts: PartsByCause) -> None:
    """Add deaths to their causes. Only for the worker that has locked the counting reader."""
    if not deaths:
        return
    known = FailureQueries(tx).get_causes(list(deaths))
    FailureQueries(tx).write_causes(
        [fold_deaths(known.get(name), some, parts[name]) for name, some in deaths.items()]
    )

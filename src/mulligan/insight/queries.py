"""Statements that count the outcomes of the newest jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.statistics import (
    CodeCount,
    EndCount,
    FailureCount,
    GenerationCount,
    InsightCounts,
    JobCount,
    ManualRetryCount,
    TrialCount,
)
from mulligan.storage.base import Queries


class InsightScope(NamedTuple):
    """Jobs that insight considers, and its limits."""

    low: str  # only ids above this one
    since: Micros
    age_step: Micros
    kind: str | None
    queue: str | None
    jobs: int
    attempts: int
    rows: int  # of one result


class InsightQueries(Queries):
    """Statements of insight, in a transaction. Each reads a range of an index within its limits."""

    def count_insight(self, scope: InsightScope) -> InsightCounts:
        """Count outcomes of the newest jobs, within the limits of `scope`."""
        after = self._first_counted_id(scope)
        chosen = {"after": after, "since": scope.since, "kind": scope.kind, "queue": scope.queue}
        attempts = self.tx.rows(
            "insight_attempts", **chosen, age_step=scope.age_step, limit=scope.rows
        )
        generations = self.tx.rows("insight_generations", **chosen, limit=scope.rows)
        manual_retries = self.tx.rows("insight_manual_retries", **chosen, limit=scope.rows)
        jobs = self.tx.rows("insight_jobs", **chosen)
        first_successes = sum(row[4] for row in jobs)
        has_all_rows = len(generations) < scope.rows and len(attempts) < scope.rows
        counts = _group_by_type(attempts)
        return InsightCounts(
            now=self.tx.now(),
            since=scope.since,
            age_step=scope.age_step,
            truncated=after > scope.low or not has_all_rows,
            jobs=[JobCount(*row[:4]) for row in jobs],
            ended=_count_endings(counts["ended"], first_successes),
            codes=[_parse_code(row) for row in counts["code"]],
            failures=[_parse_failure(row) for row in counts["failure"]],
            trials=[_parse_trial(row) for row in counts["trial"]],
            generations=[
                *map(_parse_generation, generations),
                *_count_first_successes(first_successes),
            ],
            manual_retries=[ManualRetryCount(*row) for row in manual_retries],
        )

    def _first_counted_id(self, scope: InsightScope) -> str:
        """Return the id above which jobs are counted, so that no limit is exceeded."""
        rows = self.tx.rows(
            "insight_bounds", low=scope.low, jobs=scope.jobs, attempts=scope.attempts
        )
        bounds: list[str] = [bound for bound in rows[0] if bound is not None]
        return max([scope.low, *bounds])


def _group_by_type(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[list[Any]]]:
    """Group the rows of `insight_attempts` by their first column."""
    groups: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row_type, *row in rows:
        groups[row_type].append(row)
    return groups


def _parse_code(row: list[Any]) -> CodeCount:
    cls, code, _, _, hours, jobs, *_ = row
    return CodeCount(cls, code, jobs, hours)


def _parse_trial(row: list[Any]) -> TrialCount:
    *columns, busy = row
    return TrialCount._make([*columns, int(busy)])


def _parse_failure(row: list[Any]) -> FailureCount:
    cls, code, rule_and_verb, k, _, failures, _, cost, busy = row
    rule, _, verb = rule_and_verb.rpartition(" ")
    return FailureCount(cls, code, rule, verb, k, failures, cost, int(busy))


def _count_endings(rows: Sequence[list[Any]], first_successes: int) -> list[EndCount]:
    attempts = Counter({"returned": first_successes})
    for ended, _, _, _, _, count, *_ in rows:
        attempts[ended] += count
    return [EndCount(ended, count) for ended, count in sorted(attempts.items()) if count]


def _parse_generation(row: tuple[Any, ...]) -> GenerationCount:
    cls, outcome, retried, hopeless, ms, jobs = row
    return GenerationCount(cls, outcome, bool(retried), bool(hopeless), ms, jobs)


def _count_first_successes(jobs: int) -> list[GenerationCount]:
    """Count jobs that succeeded with their first attempt, which have no attempt rows."""
    if not jobs:
        return []
    return [GenerationCount("", "succeeded", retried=False, hopeless=False, ms=None, jobs=jobs)]

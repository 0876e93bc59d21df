"""Statements about operations: bulk actions, their progress, and the jobs they act on.

A transaction that changes an operation or its items locks the operation's row, so its tallies are
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.job import JobRow
from mulligan.jobs.filter import Where, build_conditions
from mulligan.jobs.queries import JobQueries
from mulligan.storage.base import Queries

# Longest pause between two steps. A later due time comes from a clock that was set back.
MAX_PAUSE: Micros = 60_000_000


UPDATED_FIELDS = (
    "id",
    "version",
    "state",
    "step",
    "total",
    "tallies",
    "recent",
    "tokens",
    "tokens_at",
    "active",
    "due_at",
    "moved_at",
    "started_at",
    "finished_at",
    "note",
)


class OperationRow(NamedTuple):
    """An operation as stored."""

    id: str
    action: str
    filter: str  # filter as passed
    fixed: str  # JSON: the filter with all relative times resolved
    params: str  # JSON: queue, choice, overrides
    steps: str  # JSON
    rate: float  # items per second
    stop_if: float
    scope: str  # an owner, or "*" for all owners
    actor: str
    reason: str
    key: str | None  # idempotency key of the caller
    digest: str  # hash of the request
    state: str
    step: int  # from 0
    total: int
    tallies: str  # JSON: the counts of each step
    recent: str  # outcomes of the last items of this step, one letter each
    tokens: float
    tokens_at: Micros
    version: int
    active: bool  # it has work left
    due_at: Micros  # when it may continue
    moved_at: Micros  # when an item was last sent or ended
    created_at: Micros
    started_at: Micros | None  # when all its items were collected
    finished_at: Micros | None
    note: str


class ItemRow(NamedTuple):
    """Job of an operation, as it was when the operation began, and the result of the action."""

    operation: str
    place: int  # from 1, in the order of ids
    job_id: str
    generation: int
    initial_state: str  # state of the job when it was collected
    cause: str | None  # failure group, if it was dead
    code: str | None
    state: str  # waiting, sent, ended
    outcome: str | None
    message: str
    ended_at: Micros | None


class ItemEndRow(NamedTuple):
    """Sent item whose job has ended its first counted attempt since then, or will have none."""

    place: int
    cause: str | None
    verb: str | None
    new_cause: str | None
    code: str | None
    message: str
    job_state: str | None
    job_cause: str | None
    retried_again: int


class MatchedJobs(NamedTuple):
    """Number of matching jobs with the same values in a preview."""

    kind: str
    owner: str
    queue: str
    uses: str
    state: str
    code: str | None
    group: str | None
    jobs: int
    cost: float
    claims: int
    sample: str


class ReleasedKeyRow(NamedTuple):
    """Job that has a unique key but does not hold it any more."""

    id: str
    owner: str
    kind: str
    unique_key: str
    unique_cover: str | None


class OperationQueries(Queries):
    """Statements about operations, in a transaction."""

    def insert_operation(self, row: OperationRow) -> bool:
        """Insert an operation. False: there is an equal one (`find_equal_operation`)."""
        return bool(self.tx.rows("insert_operation", **row._asdict()))

    def get_operation(self, operation: str) -> OperationRow | None:
        """Read one operation."""
        return _first_operation(self.tx.rows("get_operation", id=operation))

    def lock_operation(self, operation: str, *, wait: bool) -> OperationRow | None:
        """Lock an operation. Without `wait`, None also means that another worker has locked it."""
        statement = "lock_operation" if wait else "try_lock_operation"
        return _first_operation(self.tx.rows(statement, id=operation))

    def find_equal_operation(self, scope: str, key: str | None, digest: str) -> OperationRow | None:
        """Find an operation with this key, or an unfinished one with the same content."""
        return _first_operation(
            self.tx.rows("find_equal_operation", scope=scope, key=key, digest=digest)
        )

    def list_operations(
        self, scope: str | None, limit: int, before: str | None
    ) -> list[OperationRow]:
        """List operations, newest first."""
        return self.list_rows(
            OperationRow, "list_operations", scope=scope, limit=limit, before=before
        )

    def find_operations(self, prefix: str, scope: str | None, limit: int) -> list[str]:
        """List ids that start with `prefix`."""
        found = self.tx.rows(
            "find_operations", prefix=prefix, upper=f"{prefix}~", scope=scope, limit=limit
        )
        return [row[0] for row in found]

    def list_due_operations(self, now: Micros | None, limit: int) -> list[str]:
        """List operations that may continue now. None: all that have work left."""
        if now is None:
            at_time, upper = 0, 0
        else:
            at_time, upper = now, now + MAX_PAUSE
        rows = self.tx.rows("list_due_operations", at_time=at_time, upper=upper, limit=limit)
        return [row[0] for row in rows]

    def update_operation(self, row: OperationRow) -> bool:
        """Store an operation by compare-and-set on its version. False: it has changed."""
        params = {name: getattr(row, name) for name in UPDATED_FIELDS}
        return bool(self.tx.rows("update_operation", **params))

    def add_items(self, operation: str, where: Where, limit: int) -> int:
        """Add the next matching jobs as they are now. Return how many."""
        place, after = self.get_last_item(operation)
        added = self.tx.rows_matching(
            "add_items",
            build_conditions(where),
            operation=operation,
            place=place,
            after=after,
            limit=limit,
        )
        return len(added)

    def get_last_item(self, operation: str) -> tuple[int, str]:
        """Return (place, job) of the last item, or (0, "")."""
        for place, job_id in self.tx.rows("get_last_item", operation=operation):
            return place, job_id
        return 0, ""

    def list_waiting_items(self, operation: str, place: int, limit: int) -> list[ItemRow]:
        """List waiting items up to a place, in order."""
        return self.list_rows(
            ItemRow, "list_waiting_items", operation=operation, place=place, limit=limit
        )

    def list_ended_items(self, operation: str, limit: int) -> list[ItemEndRow]:
        """List sent items whose job has ended an attempt."""
        return self.list_rows(ItemEndRow, "list_ended_items", operation=operation, limit=limit)

    def mark_items_sent(self, operation: str, places: Sequence[int]) -> None:
        """Mark items as sent."""
        if places:
            self.tx.rows("mark_items_sent", operation=operation, places=self.tx.array_param(places))

    def mark_items_ended(
        self, operation: str, places: Sequence[int], outcome: str, message: str, at: Micros
    ) -> None:
        """Store the outcome of items."""
        self.tx.rows(
            "mark_items_ended",
            operation=operation,
            places=self.tx.array_param(places),
            outcome=outcome,
            message=message,
            at=at,
        )

    def list_items(
        self, operation: str, status: str | None, limit: int, after: int
    ) -> list[ItemRow]:
        """List items in order. `status`: only with this state or outcome."""
        return self.list_rows(
            ItemRow, "list_items", operation=operation, status=status, limit=limit, after=after
        )

    def count_repeated_failures(self, operation: str) -> list[tuple[str, int]]:
        """List (code, count) of items that failed again with the same cause."""
        return [
            (row[0], row[1]) for row in self.tx.rows("count_repeated_failures", operation=operation)
        ]

    def get_first_sent_job(self, operation: str) -> JobRow | None:
        """Return the job of the first item that has not ended."""
        found = self.tx.rows("find_first_sent_item", operation=operation)
        return JobQueries(self.tx).get_job(found[0][0]) if found else None

    def count_late_matches(
        self, operation: str, where: Where, after: str, began: Micros, examined: int
    ) -> int:
        """Count jobs that began to match the filter after the operation began."""
        rows = self.tx.rows_matching(
            "count_late_matches",
            build_conditions(where),
            operation=operation,
            after=after,
            began=began,
            examined=examined,
        )
        return int(rows[0][0])

    def preview_operation(self, where: Where, cap: int) -> list[MatchedJobs]:
        """Count matching jobs by what a preview shows, up to `cap`."""
        return [
            MatchedJobs._make(row)
            for row in self.tx.rows_matching("preview_operation", build_conditions(where), cap=cap)
        ]

    def sum_costs_by_kind(self, limit: int) -> dict[str, tuple[float, int]]:
        """Return (cost, attempts) of the newest jobs, by kind."""
        rows = self.tx.rows("sum_costs_by_kind", limit=limit)
        return {kind: (cost, attempts) for kind, cost, attempts in rows}

    def list_released_keys(self, where: Where, limit: int) -> list[ReleasedKeyRow]:
        """List matching jobs that do not hold their unique key any more."""
        return [
            ReleasedKeyRow._make(row)
            for row in self.tx.rows_matching(
                "list_released_keys", build_conditions(where), limit=limit
            )
        ]


def _first_operation(rows: Sequence[tuple[Any, ...]]) -> OperationRow | None:
    return OperationRow._make(rows[0]) if rows else None

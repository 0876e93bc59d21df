"""Verbs of operations: a bulk action, how far it is, and the jobs it is about.

Whoever changes an operation or its items holds the operation's row, so its tallies are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.job import JobRow
from mulligan.storage.search_queries import Where


class OperationRow(NamedTuple):
    """An operation as stored."""

    id: str
    action: str
    asked: str  # the filter as it was given
    fixed: str  # JSON: what it means for good
    params: str  # JSON: queue, choice, overrides
    steps: str  # JSON
    rate: float  # items a second
    stop_if: float
    scope: str  # "*": of all owners, else of one
    actor: str
    reason: str
    key: str | None  # the starter's, against doubles
    digest: str  # of all that was asked for
    state: str
    step: int  # from 0
    total: int
    tallies: str  # JSON: the steps, each with its numbers
    recent: str  # how the last items of this step ended, a letter each
    tokens: float
    tokens_at: Micros
    version: int
    active: bool  # there is something to do for it
    due_at: Micros  # when the next turn may be taken
    moved_at: Micros  # when an item was last sent or ended
    created_at: Micros
    started_at: Micros | None  # when all its items were there
    finished_at: Micros | None
    note: str


class ItemRow(NamedTuple):
    """One job of an operation, as it was when the operation began, and what became of it."""

    operation: str
    place: int  # from 1, in the order of ids
    job_id: str
    generation: int
    was: str  # its state
    cause: str | None  # the group it was in, if it was dead
    code: str | None
    state: str  # waiting, sent, ended
    outcome: str | None
    why: str
    ended_at: Micros | None


class ItemEndRow(NamedTuple):
    """An item that was sent, and how its first attempt that counts has ended, if there was one."""

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
    """Jobs that a filter finds, counted by what matters to who would act on them."""

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
    id: str
    owner: str
    kind: str
    unique_key: str
    unique_cover: str | None


class OperationQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def insert_operation(self, row: OperationRow) -> bool:
        """False: its key, or its content under way, is there already (`find_equal_operation`)."""

    @abstractmethod
    def get_operation(self, operation: str) -> OperationRow | None: ...

    @abstractmethod
    def lock_operation(self, operation: str, *, wait: bool) -> OperationRow | None:
        """To change it in this transaction. Without `wait` None also means: it is in another hand."""

    @abstractmethod
    def find_equal_operation(
        self, scope: str, key: str | None, digest: str
    ) -> OperationRow | None: ...

    @abstractmethod
    def list_operations(
        self, scope: str | None, limit: int, before: str | None
    ) -> list[OperationRow]:
        """Newest first."""

    @abstractmethod
    def find_operations(self, prefix: str, scope: str | None, limit: int) -> list[str]: ...

    @abstractmethod
    def list_due_operations(self, now: Micros | None, limit: int) -> list[str]:
        """Those that want a turn by now; None: all for which there is something to do."""

    @abstractmethod
    def update_operation(self, row: OperationRow) -> bool:
        """Compare-and-set on the version that was seen."""

    @abstractmethod
    def add_items(self, operation: str, where: Where, limit: int) -> int:
        """Enter the next jobs that match, as they are; returns how many."""

    @abstractmethod
    def get_last_item(self, operation: str) -> tuple[int, str]:
        """(place, job) of the last one entered; (0, ""): none."""

    @abstractmethod
    def list_waiting_items(self, operation: str, place: int, limit: int) -> list[ItemRow]:
        """Up to this place, in order."""

    @abstractmethod
    def list_ended_items(self, operation: str, limit: int) -> list[ItemEndRow]: ...

    @abstractmethod
    def mark_items_sent(self, operation: str, places: Sequence[int]) -> None: ...

    @abstractmethod
    def mark_items_ended(
        self, operation: str, places: Sequence[int], outcome: str, why: str, at: Micros
    ) -> None: ...

    @abstractmethod
    def list_items(
        self, operation: str, status: str | None, limit: int, after: int
    ) -> list[ItemRow]:
        """In order; `wanted`: of this state or outcome."""

    @abstractmethod
    def count_repeated_failures(self, operation: str) -> list[tuple[str, int]]:
        """(code, how many) of those that failed of the same cause again."""

    @abstractmethod
    def get_first_sent_job(self, operation: str) -> JobRow | None:
        """The job of the first item that is under way."""

    @abstractmethod
    def lock_jobs(self, ids: Sequence[str]) -> list[JobRow]:
        """To change them in this transaction, by id; those in another hand are left out."""

    @abstractmethod
    def count_late_matches(
        self, operation: str, where: Where, after: str, began: Micros, looked: int
    ) -> int: ...

    @abstractmethod
    def preview_operation(self, where: Where, cap: int) -> list[MatchedJobs]: ...

    @abstractmethod
    def sum_costs_by_kind(self, limit: int) -> dict[str, tuple[float, int]]:
        """By kind: what the newest jobs have cost in all, and how many attempts that were."""

    @abstractmethod
    def list_released_keys(self, where: Where, limit: int) -> list[ReleasedKeyRow]: ...

    @abstractmethod
    def find_key_holders(self, hashes: Sequence[str]) -> dict[str, str]:
        """By hash: the job that holds the unique key."""

    @abstractmethod
    def prune_operations(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` items of operations that ended before then, and those that have none left."""


class SqlOperationQueries(OperationQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def rows_where(
        self, statement: str, where: Where, /, **params: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def array_param(self, ids: Sequence[Any]) -> Any: ...

    def insert_operation(self, row: OperationRow) -> bool:
        return bool(self.rows("insert_operation", **row._asdict()))

    def get_operation(self, operation: str) -> OperationRow | None:
        return _one(self.rows("get_operation", id=operation))

    def lock_operation(self, operation: str, *, wait: bool) -> OperationRow | None:
        return _one(self.rows("lock_operation" if wait else "try_lock_operation", id=operation))

    def find_equal_operation(self, scope: str, key: str | None, digest: str) -> OperationRow | None:
        return _one(self.rows("find_equal_operation", scope=scope, key=key, digest=digest))

    def list_operations(
        self, scope: str | None, limit: int, before: str | None
    ) -> list[OperationRow]:
        return [
            OperationRow._make(row)
            for row in self.rows("list_operations", scope=scope, limit=limit, before=before)
        ]

    def find_operations(self, prefix: str, scope: str | None, limit: int) -> list[str]:
        found = self.rows(
            "find_operations", prefix=prefix, upper=f"{prefix}~", scope=scope, limit=limit
        )
        return [row[0] for row in found]

    def list_due_operations(self, now: Micros | None, limit: int) -> list[str]:
        moment, beyond = (0, 0) if now is None else (now, now + FAR)
        return [
            row[0]
            for row in self.rows("list_due_operations", at_time=moment, upper=beyond, limit=limit)
        ]

    def update_operation(self, row: OperationRow) -> bool:
        return bool(self.rows("update_operation", **{name: getattr(row, name) for name in CHANGES}))

    def add_items(self, operation: str, where: Where, limit: int) -> int:
        place, after = self.get_last_item(operation)
        return len(
            self.rows_where(
                "add_items", where, operation=operation, place=place, after=after, limit=limit
            )
        )

    def get_last_item(self, operation: str) -> tuple[int, str]:
        found = self.rows("get_last_item", operation=operation)
        return (found[0][0], found[0][1]) if found else (0, "")

    def list_waiting_items(self, operation: str, place: int, limit: int) -> list[ItemRow]:
        found = self.rows("list_waiting_items", operation=operation, place=place, limit=limit)
        return [ItemRow._make(row) for row in found]

    def list_ended_items(self, operation: str, limit: int) -> list[ItemEndRow]:
        return [
            ItemEndRow._make(row)
            for row in self.rows("list_ended_items", operation=operation, limit=limit)
        ]

    def mark_items_sent(self, operation: str, places: Sequence[int]) -> None:
        if places:
            self.rows("mark_items_sent", operation=operation, places=self.array_param(places))

    def mark_items_ended(
        self, operation: str, places: Sequence[int], outcome: str, why: str, at: Micros
    ) -> None:
        self.rows(
            "mark_items_ended",
            operation=operation,
            places=self.array_param(places),
            outcome=outcome,
            why=why,
            at=at,
        )

    def list_items(
        self, operation: str, status: str | None, limit: int, after: int
    ) -> list[ItemRow]:
        found = self.rows(
            "list_items", operation=operation, status=status, limit=limit, after=after
        )
        return [ItemRow._make(row) for row in found]

    def count_repeated_failures(self, operation: str) -> list[tuple[str, int]]:
        return [
            (row[0], row[1]) for row in self.rows("count_repeated_failures", operation=operation)
        ]

    def get_first_sent_job(self, operation: str) -> JobRow | None:
        found = self.rows("find_first_sent_item", operation=operation)
        rows = self.rows("get_job", id=found[0][0]) if found else []
        return JobRow._make(rows[0]) if rows else None

    def lock_jobs(self, ids: Sequence[str]) -> list[JobRow]:
        return (
            [JobRow._make(row) for row in self.rows("lock_jobs", ids=self.array_param(ids))]
            if ids
            else []
        )

    def count_late_matches(
        self, operation: str, where: Where, after: str, began: Micros, looked: int
    ) -> int:
        said = {"operation": operation, "after": after, "began": began, "examined": looked}
        return int(self.rows_where("count_late_matches", where, **said)[0][0])

    def preview_operation(self, where: Where, cap: int) -> list[MatchedJobs]:
        return [
            MatchedJobs._make(row) for row in self.rows_where("preview_operation", where, cap=cap)
        ]

    def sum_costs_by_kind(self, limit: int) -> dict[str, tuple[float, int]]:
        return {row[0]: (row[1], row[2]) for row in self.rows("sum_costs_by_kind", limit=limit)}

    def list_released_keys(self, where: Where, limit: int) -> list[ReleasedKeyRow]:
        return [
            ReleasedKeyRow._make(row)
            for row in self.rows_where("list_released_keys", where, limit=limit)
        ]

    def find_key_holders(self, hashes: Sequence[str]) -> dict[str, str]:
        return (
            {
                row[0]: row[1]
                for row in self.rows("find_key_holders", hashes=self.array_param(hashes))
            }
            if hashes
            else {}
        )

    def prune_operations(self, before: Micros, limit: int) -> int:
        removed = len(self.rows("prune_items", before=before, limit=limit))
        return removed + len(self.rows("prune_operations", before=before))


FAR = 60_000_000  # microseconds; a turn is never put off for longer
CHANGES = (
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


def _one(rows: Sequence[tuple[Any, ...]]) -> OperationRow | None:
    return OperationRow._make(rows[0]) if rows else None

"""Verbs of operations: a bulk action, how far it is, and the jobs it is about.

Whoever changes an operation or its items holds the operation's row, so its tallies are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.job import JobRow, Micros
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


class ItemEnd(NamedTuple):
    """An item that was sent, and how its first attempt that counts has ended, if there was one."""

    place: int
    cause: str | None
    verb: str | None
    again: str | None
    code: str | None
    said: str
    job_state: str | None
    died_of: str | None
    later: int


class Matched(NamedTuple):
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


class KeyedJob(NamedTuple):
    id: str
    owner: str
    kind: str
    unique_key: str
    unique_cover: str | None


class OperationQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def new_operation(self, row: OperationRow) -> bool:
        """False: its key, or its content under way, is there already (`operation_twin`)."""

    @abstractmethod
    def operation(self, operation: str) -> OperationRow | None: ...

    @abstractmethod
    def operation_locked(self, operation: str, *, wait: bool) -> OperationRow | None:
        """To change it in this transaction. Without `wait` None also means: it is in another hand."""

    @abstractmethod
    def operation_twin(self, scope: str, key: str | None, digest: str) -> OperationRow | None: ...

    @abstractmethod
    def operations(self, scope: str | None, limit: int, before: str | None) -> list[OperationRow]:
        """Newest first."""

    @abstractmethod
    def find_operations(self, prefix: str, scope: str | None, limit: int) -> list[str]: ...

    @abstractmethod
    def operations_due(self, now: Micros | None, limit: int) -> list[str]:
        """Those that want a turn by now; None: all for which there is something to do."""

    @abstractmethod
    def write_operation(self, row: OperationRow) -> bool:
        """Compare-and-set on the version that was seen."""

    @abstractmethod
    def freeze_items(self, operation: str, where: Where, limit: int) -> int:
        """Enter the next jobs that match, as they are; returns how many."""

    @abstractmethod
    def last_item(self, operation: str) -> tuple[int, str]:
        """(place, job) of the last one entered; (0, ""): none."""

    @abstractmethod
    def items_waiting(self, operation: str, place: int, limit: int) -> list[ItemRow]:
        """Up to this place, in order."""

    @abstractmethod
    def items_ended(self, operation: str, limit: int) -> list[ItemEnd]: ...

    @abstractmethod
    def send_items(self, operation: str, places: Sequence[int]) -> None: ...

    @abstractmethod
    def end_items(
        self, operation: str, places: Sequence[int], outcome: str, why: str, at: Micros
    ) -> None: ...

    @abstractmethod
    def items(self, operation: str, wanted: str | None, limit: int, after: int) -> list[ItemRow]:
        """In order; `wanted`: of this state or outcome."""

    @abstractmethod
    def items_again(self, operation: str) -> list[tuple[str, int]]:
        """(code, how many) of those that failed of the same cause again."""

    @abstractmethod
    def first_sent(self, operation: str) -> JobRow | None:
        """The job of the first item that is under way."""

    @abstractmethod
    def jobs_locked(self, ids: Sequence[str]) -> list[JobRow]:
        """To change them in this transaction, by id; those in another hand are left out."""

    @abstractmethod
    def operation_joined(
        self, operation: str, where: Where, after: str, began: Micros, looked: int
    ) -> int: ...

    @abstractmethod
    def operation_preview(self, where: Where, cap: int) -> list[Matched]: ...

    @abstractmethod
    def operation_costs(self, limit: int) -> dict[str, tuple[float, int]]:
        """By kind: what the newest jobs have cost in all, and how many attempts that were."""

    @abstractmethod
    def keyed_jobs(self, where: Where, limit: int) -> list[KeyedJob]: ...

    @abstractmethod
    def key_holders(self, hashes: Sequence[str]) -> dict[str, str]:
        """By hash: the job that holds the unique key."""

    @abstractmethod
    def prune_operations(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` items of operations that ended before then, and those that have none left."""


class SqlOperationQueries(OperationQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def found(self, verb: str, where: Where, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def ids(self, ids: Sequence[Any]) -> Any: ...

    def new_operation(self, row: OperationRow) -> bool:
        return bool(self.rows("new_operation", **row._asdict()))

    def operation(self, operation: str) -> OperationRow | None:
        return _one(self.rows("operation", id=operation))

    def operation_locked(self, operation: str, *, wait: bool) -> OperationRow | None:
        return _one(self.rows("operation_locked" if wait else "operation_turn", id=operation))

    def operation_twin(self, scope: str, key: str | None, digest: str) -> OperationRow | None:
        return _one(self.rows("operation_twin", scope=scope, key=key, digest=digest))

    def operations(self, scope: str | None, limit: int, before: str | None) -> list[OperationRow]:
        return [
            OperationRow._make(row)
            for row in self.rows("operations", scope=scope, most=limit, before=before)
        ]

    def find_operations(self, prefix: str, scope: str | None, limit: int) -> list[str]:
        found = self.rows(
            "find_operations", prefix=prefix, beyond=f"{prefix}~", scope=scope, most=limit
        )
        return [row[0] for row in found]

    def operations_due(self, now: Micros | None, limit: int) -> list[str]:
        moment, beyond = (0, 0) if now is None else (now, now + FAR)
        return [
            row[0] for row in self.rows("operations_due", moment=moment, beyond=beyond, most=limit)
        ]

    def write_operation(self, row: OperationRow) -> bool:
        return bool(self.rows("write_operation", **{name: getattr(row, name) for name in CHANGES}))

    def freeze_items(self, operation: str, where: Where, limit: int) -> int:
        place, after = self.last_item(operation)
        return len(
            self.found(
                "freeze_items", where, operation=operation, place=place, after=after, most=limit
            )
        )

    def last_item(self, operation: str) -> tuple[int, str]:
        found = self.rows("last_item", operation=operation)
        return (found[0][0], found[0][1]) if found else (0, "")

    def items_waiting(self, operation: str, place: int, limit: int) -> list[ItemRow]:
        found = self.rows("items_waiting", operation=operation, place=place, most=limit)
        return [ItemRow._make(row) for row in found]

    def items_ended(self, operation: str, limit: int) -> list[ItemEnd]:
        return [
            ItemEnd._make(row) for row in self.rows("items_ended", operation=operation, most=limit)
        ]

    def send_items(self, operation: str, places: Sequence[int]) -> None:
        if places:
            self.rows("send_items", operation=operation, places=self.ids(places))

    def end_items(
        self, operation: str, places: Sequence[int], outcome: str, why: str, at: Micros
    ) -> None:
        self.rows(
            "end_items",
            operation=operation,
            places=self.ids(places),
            outcome=outcome,
            why=why,
            at=at,
        )

    def items(self, operation: str, wanted: str | None, limit: int, after: int) -> list[ItemRow]:
        found = self.rows("items", operation=operation, wanted=wanted, most=limit, after=after)
        return [ItemRow._make(row) for row in found]

    def items_again(self, operation: str) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in self.rows("items_again", operation=operation)]

    def first_sent(self, operation: str) -> JobRow | None:
        found = self.rows("first_sent", operation=operation)
        rows = self.rows("get", id=found[0][0]) if found else []
        return JobRow._make(rows[0]) if rows else None

    def jobs_locked(self, ids: Sequence[str]) -> list[JobRow]:
        return (
            [JobRow._make(row) for row in self.rows("jobs_locked", ids=self.ids(ids))]
            if ids
            else []
        )

    def operation_joined(
        self, operation: str, where: Where, after: str, began: Micros, looked: int
    ) -> int:
        said = {"operation": operation, "after": after, "began": began, "looked": looked}
        return int(self.found("operation_joined", where, **said)[0][0])

    def operation_preview(self, where: Where, cap: int) -> list[Matched]:
        return [Matched._make(row) for row in self.found("operation_preview", where, cap=cap)]

    def operation_costs(self, limit: int) -> dict[str, tuple[float, int]]:
        return {row[0]: (row[1], row[2]) for row in self.rows("operation_costs", most=limit)}

    def keyed_jobs(self, where: Where, limit: int) -> list[KeyedJob]:
        return [KeyedJob._make(row) for row in self.found("keyed_jobs", where, most=limit)]

    def key_holders(self, hashes: Sequence[str]) -> dict[str, str]:
        return (
            {row[0]: row[1] for row in self.rows("key_holders", hashes=self.ids(hashes))}
            if hashes
            else {}
        )

    def prune_operations(self, before: Micros, limit: int) -> int:
        removed = len(self.rows("prune_items", before=before, most=limit))
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

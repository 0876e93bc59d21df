"""`app.operations`: one careful action on many jobs: preview, start, watch, pause, abort."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, overload

from mulligan.core.durations import optional_datetime, to_datetime
from mulligan.core.errors import IllegalMove, KeyMismatch, NotFound, Refused
from mulligan.core.event import EventType
from mulligan.core.ids import LENGTH, first_id, new_id
from mulligan.core.job import ALL_OWNERS, State
from mulligan.guards.gate_status import check_declared_queues
from mulligan.jobs.service import DEFAULT_COUNT_CAP, MAX_IDS_NAMED, describe_ambiguous_id
from mulligan.operations.chore import (
    ACTIVE_STATES,
    GATHER_TIMEOUT,
    gather_items,
    write_operation_event,
)
from mulligan.operations.queries import ItemRow, OperationQueries, OperationRow
from mulligan.operations.request import (
    CheckedOperation,
    OperationPreview,
    check_request,
    describe_frozen_filter,
    freeze_filter,
    load_frozen_filter,
    preview_operation,
)
from mulligan.operations.rules import ITEM_FILTERS, ItemCounts, step_number, sum_counts
from mulligan.storage.base import Store, Transaction

MAX_OPERATIONS_LISTED = 500
MAX_ITEMS_LISTED = 10_000

MAX_TRIES = 3  # An equal operation may end between our insert and our read.


@dataclass(frozen=True, slots=True)
class Item:
    """One job of an operation and its result."""

    job: str
    place: int
    step: int  # from 1; 0 while the steps are not known
    generation: int  # when the operation began
    was: str  # state when the operation began
    group: str | None
    code: str | None
    state: str  # waiting, sent, ended
    outcome: str | None  # recovered, same, other, done, refused, skipped
    why: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it was when it was read."""

    id: str
    action: str
    filter: str
    fixed: str  # what the filter meant when the operation began
    owner: str | None  # None for jobs of all owners
    actor: str
    reason: str
    key: str | None
    params: Mapping[str, Any]  # queue, choice, overrides
    rate: float
    stop_if: float
    state: str  # gathering, running, paused, stopped, aborted, finished
    step: int  # from 1
    steps: tuple[ItemCounts, ...]
    total: int
    counts: ItemCounts  # all steps together
    note: str
    # Jobs that match the filter since the operation began; it leaves them alone. None in lists.
    joined: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def under_way(self) -> bool:
        return self.state in ACTIVE_STATES

    @property
    def untouched(self) -> int:
        return self.total - self.counts.sent - self.counts.ended


OperationList = list[Operation]  # The classes below have a method named list.
Items = list[Item]
Steps = Sequence[int | str]


class StartOptions(TypedDict, total=False):
    """Options of `start`."""

    steps: Steps | None
    rate: float | str | None
    stop_if: float
    reason: str
    overrides: Mapping[str, Any] | None
    from_step: str | None
    queue: str | None
    choice: str | None
    key: str | None
    owner: str | None


class Operations:
    """Preview, start, watch, pause and abort operations."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # --- Start ---
    @overload
    def start(
        self,
        action: str,
        filter: str,
        *,
        dry_run: Literal[False] = False,
        steps: Steps | None = None,
        rate: float | str | None = None,
        stop_if: float = 0.1,
        reason: str = "",
        overrides: Mapping[str, Any] | None = None,
        from_step: str | None = None,
        queue: str | None = None,
        choice: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> Operation: ...
    @overload
    def start(
        self,
        action: str,
        filter: str,
        *,
        dry_run: Literal[True],
        steps: Steps | None = None,
        rate: float | str | None = None,
        stop_if: float = 0.1,
        reason: str = "",
        overrides: Mapping[str, Any] | None = None,
        from_step: str | None = None,
        queue: str | None = None,
        choice: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> OperationPreview: ...
    def start(  # noqa: PLR0913 - public options
        self,
        action: str,
        filter: str,  # noqa: A002 - public name
        *,
        dry_run: bool = False,
        steps: Steps | None = None,
        rate: float | str | None = None,
        stop_if: float = 0.1,
        reason: str = "",
        overrides: Mapping[str, Any] | None = None,
        from_step: str | None = None,
        queue: str | None = None,
        choice: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> Operation | OperationPreview:
        """Retry, cancel, discard, release or move all jobs that a filter finds now.

        Workers do it step by step. `steps` are the sizes of the steps; the result of each is
        judged before the next, by default [1, 10, 100, "rest"] for retry. `rate` is jobs per
        second. If more than the share `stop_if` of a step fails again with the same cause, the
        operation stops. `from_step`: call this step, and those that ended after it, again.
        `dry_run` only returns a preview. A second call with the same `key`
        returns the first operation; so does an equal call while the first one is active.
        """
        if from_step is not None:
            overrides = {**(overrides or {}), "from_step": from_step}
        params = {"overrides": overrides, "queue": queue, "choice": choice}
        request = check_request(
            action,
            filter,
            steps=steps,
            rate=rate,
            stop_if=stop_if,
            owner=owner,
            reason=reason,
            key=key,
            params=params,
        )
        if owner is not None:
            with self._open().read() as tx:
                check_declared_queues(tx, request.queues)
        if dry_run:
            with self._open().read() as tx:
                return preview_operation(tx, request)
        return self._begin(request)

    def _begin(self, request: CheckedOperation) -> Operation:
        store = self._open()
        row, is_new = self._insert(store, request)
        if row.digest != request.digest:
            raise KeyMismatch(
                f"key {request.key!r} belongs to operation {row.id}, "
                f"which does something else: {row.action} {row.filter!r}"
            )
        if is_new:
            while gather_items(store, row.id):
                pass
        return self.get(row.id)

    def _insert(self, store: Store, request: CheckedOperation) -> tuple[OperationRow, bool]:
        """Insert the operation, or find an equal one. Return the row and whether it is new."""
        for _ in range(MAX_TRIES):
            with store.begin() as tx:
                row = self._new_row(tx, request)
                if OperationQueries(tx).insert_operation(row):
                    return row, True
                found = OperationQueries(tx).find_equal_operation(
                    request.scope, request.key, request.digest
                )
            if found is not None:
                return found, False
        raise IllegalMove("an equal operation began and ended at the same time; try again")

    def _new_row(self, tx: Transaction, request: CheckedOperation) -> OperationRow:
        now = tx.now()
        return OperationRow(
            id=new_id(),
            action=request.action.value,
            filter=request.text,
            fixed=json.dumps(freeze_filter(tx, request, now)),
            params=json.dumps(request.params),
            steps=json.dumps(request.steps),
            rate=request.rate,
            stop_if=request.stop_if,
            scope=request.scope,
            actor=self._actor,
            reason=request.reason,
            key=request.key,
            digest=request.digest,
            state="gathering",
            step=0,
            total=0,
            tallies="[]",
            recent="",
            tokens=request.rate,
            tokens_at=now,
            version=1,
            active=True,
            due_at=now + GATHER_TIMEOUT,
            moved_at=now,
            created_at=now,
            started_at=None,
            finished_at=None,
            note="",
        )

    # --- Read ---
    def get(self, operation: str, *, owner: str | None = None) -> Operation:
        """Return one operation. With `owner`, an operation of another scope counts as missing."""
        with self._open().read() as tx:
            row = _load_row(tx, operation, owner)
            return _build_view(row, _count_joined(tx, row))

    def list(
        self, *, owner: str | None = None, limit: int = 50, before: str | None = None
    ) -> OperationList:
        """Return operations, newest first. `before` is the id of the previous page's last one."""
        _check_limit(limit, MAX_OPERATIONS_LISTED)
        with self._open().read() as tx:
            return [
                _build_view(row)
                for row in OperationQueries(tx).list_operations(owner, limit, before)
            ]

    def items(
        self,
        operation: str,
        outcome: str | None = None,
        *,
        owner: str | None = None,
        limit: int = 1000,
        after: int = 0,
    ) -> Items:
        """Return the jobs of an operation in the order in which they are sent.

        `outcome` selects items with one outcome or state; `after` is the last place already read.
        """
        _check_limit(limit, MAX_ITEMS_LISTED)
        if outcome is not None and outcome not in ITEM_FILTERS:
            raise Refused(f"unknown outcome {outcome!r}; one of {', '.join(ITEM_FILTERS)}")
        with self._open().read() as tx:
            row = _load_row(tx, operation, owner)
            plan = _load_plan(row)
            return [
                _build_item(item, plan)
                for item in OperationQueries(tx).list_items(row.id, outcome, limit, after)
            ]

    def resolve(self, prefix: str, *, owner: str | None = None) -> str:
        """Return the full id that begins with `prefix`."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:
            raise Refused("the id is empty. Pass an id or its first characters.")
        with self._open().read() as tx:
            found = OperationQueries(tx).find_operations(prefix, owner, MAX_IDS_NAMED + 1)
        if not found:
            raise NotFound(_no_such_operation(prefix))
        if len(found) > 1:
            raise NotFound(describe_ambiguous_id("operation", prefix, found))
        return found[0]

    # --- Manual actions ---
    def pause(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        """Send no more jobs for now. Jobs that were sent are not affected."""
        return self._change_state(operation, owner, "paused", reason)

    def resume(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        """Continue a paused operation."""
        return self._change_state(operation, owner, "running", reason)

    def abort(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        """End an operation. Jobs that were not sent stay untouched; the others are not affected."""
        return self._change_state(operation, owner, "aborted", reason)

    def _change_state(
        self, operation: str, owner: str | None, state: str, reason: str
    ) -> Operation:
        with self._open().begin() as tx:
            _load_row(tx, operation, owner)
            row = OperationQueries(tx).lock_operation(operation, wait=True)
            if row is None:
                raise NotFound(_no_such_operation(operation))
            if row.state == state and state != "running":
                return _build_view(row, _count_joined(tx, row))
            _check_change(row, state)
            changed = _with_state(row, state, reason, tx.now())
            OperationQueries(tx).update_operation(changed)
            data = {
                "reason": reason,
                "before": {"state": row.state},
                "after": {"state": changed.state},
                "untouched": _build_view(row).untouched,
            }
            write_operation_event(tx, changed, _EVENTS[state], actor=self._actor, **data)
        return self.get(operation)


_EVENTS = {
    "paused": EventType.OPERATION_PAUSED,
    "running": EventType.OPERATION_RESUMED,
    "aborted": EventType.OPERATION_ABORTED,
}
_STATE_ACTIONS = {"paused": "pause", "running": "resume", "aborted": "abort"}


def _check_change(row: OperationRow, state: str) -> None:
    is_active = row.state in ACTIVE_STATES
    if is_active and (state != "running" or row.state == "paused"):
        return
    hint = "" if is_active else ". Start a new operation to do it again."
    raise IllegalMove(f"cannot {_STATE_ACTIONS[state]} operation {row.id}: it is {row.state}{hint}")


def _with_state(row: OperationRow, state: str, reason: str, now: int) -> OperationRow:
    if state == "aborted":
        sent = sum_counts(_load_plan(row)).sent
        note = f"Aborted: {reason}" if reason else "Aborted."
        return row._replace(state=state, finished_at=now, active=bool(sent), note=note)
    if state == "paused":
        note = f"Paused: {reason}" if reason else ""
        return row._replace(state=state, note=note)
    resumed_state = "gathering" if row.started_at is None else "running"
    return row._replace(state=resumed_state, note="", due_at=now, moved_at=now)


# --- Views and errors ---
def _check_limit(limit: int, maximum: int) -> None:
    if not 1 <= limit <= maximum:
        raise Refused(f"limit must be from 1 to {maximum:,}, not {limit}")


def _load_row(tx: Transaction, operation: str, owner: str | None) -> OperationRow:
    row = OperationQueries(tx).get_operation(operation)
    if row is None or owner not in (None, row.scope):
        raise NotFound(_no_such_operation(operation))
    return row


def _no_such_operation(operation: str) -> str:
    return f'no operation {operation!r}. Run "mulligan ops list" to see them.'


def _load_plan(row: OperationRow) -> tuple[ItemCounts, ...]:
    return tuple(ItemCounts(*numbers) for numbers in json.loads(row.tallies))


def _count_joined(tx: Transaction, row: OperationRow) -> int:
    """Count jobs that match the filter since the operation began, up to 10,000."""
    where = load_frozen_filter(row.fixed)
    # Dead and cancelled jobs may be older than the operation and have ended since.
    includes_old_jobs = not {State.DEAD, State.CANCELLED}.isdisjoint(where["state"])
    first_new_id = "" if includes_old_jobs else first_id(row.created_at // 1000)
    current = {name: value for name, value in where.items() if name != "until"}
    examined = 2 * DEFAULT_COUNT_CAP + row.total
    count = OperationQueries(tx).count_late_matches(
        row.id, current, first_new_id, row.created_at, examined
    )
    return min(DEFAULT_COUNT_CAP, count)


def _build_view(row: OperationRow, joined: int | None = None) -> Operation:
    plan = _load_plan(row)
    owner = None if row.scope == ALL_OWNERS else row.scope
    return Operation(
        id=row.id,
        action=row.action,
        filter=row.filter,
        fixed=describe_frozen_filter(load_frozen_filter(row.fixed)),
        owner=owner,
        actor=row.actor,
        reason=row.reason,
        key=row.key,
        params=json.loads(row.params),
        rate=row.rate,
        stop_if=row.stop_if,
        state=row.state,
        step=min(row.step + 1, max(1, len(plan))),
        steps=plan,
        total=row.total,
        counts=sum_counts(plan),
        note=row.note,
        joined=joined,
        created_at=to_datetime(row.created_at),
        started_at=optional_datetime(row.started_at),
        finished_at=optional_datetime(row.finished_at),
    )


def _build_item(row: ItemRow, plan: Sequence[ItemCounts]) -> Item:
    return Item(
        job=row.job_id,
        place=row.place,
        step=step_number(plan, row.place),
        generation=row.generation,
        was=row.initial_state,
        group=row.cause,
        code=row.code,
        state=row.state,
        outcome=row.outcome,
        why=row.message,
        ended_at=optional_datetime(row.ended_at),
    )

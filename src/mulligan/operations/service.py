"""`app.operations`: one careful action on many jobs. Looked at before, begun, watched, paused, ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack, overload

from mulligan.core.durations import moment_of
from mulligan.core.errors import IllegalMove, KeyMismatch, NotFound, Refused
from mulligan.core.event import EventType
from mulligan.core.ids import LENGTH, first_id, new_id
from mulligan.core.job import State, to_datetime
from mulligan.failures.groups import EVERYBODY
from mulligan.jobs.service import COUNT_MOST, ambiguous
from mulligan.operations import chore as operate
from mulligan.operations.request import (
    CheckedOperation,
    OperationPreview,
    asked,
    fixed,
    fixed_words,
    preview,
    where_of,
)
from mulligan.operations.rules import ItemCounts, ItemOutcome, step_of, total_of
from mulligan.storage.base import Store, Transaction
from mulligan.storage.operation_queries import ItemRow, OperationRow

LIST_MOST = 500
ITEMS_MOST = 10_000
NAMED = 5
ROUNDS = 3  # the twin may end between our insert and our look
UNDER_WAY = ("gathering", "running", "paused")
KINDS_OF_ITEM = ("waiting", "sent", "ended", *(fate.value for fate in ItemOutcome))


@dataclass(frozen=True, slots=True)
class Item:
    """One job of an operation, and what became of it."""

    job: str
    place: int
    step: int  # from 1; 0: the steps are not known yet
    generation: int  # when the operation began
    was: str  # its state then
    group: str | None
    code: str | None
    state: str  # waiting, sent, ended
    outcome: str | None  # recovered, same, other, done, refused, skipped
    why: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation at one moment."""

    id: str
    action: str
    filter: str
    fixed: str  # what the filter means for good
    owner: str | None  # None: jobs of all owners
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
    joined: (
        int | None
    )  # jobs that came to match since it began; they are not touched. None: was not asked
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def under_way(self) -> bool:
        return self.state in UNDER_WAY

    @property
    def untouched(self) -> int:
        return self.total - self.counts.sent - self.counts.ended


OperationList = list[Operation]  # the classes below have a method called list
Items = list[Item]
Steps = Sequence[int | str]


class Wishes(TypedDict, total=False):
    """What may be said to `start`."""

    steps: Steps | None
    rate: float | str | None
    stop_if: float
    reason: str
    overrides: Mapping[str, Any] | None
    queue: str | None
    choice: str | None
    key: str | None
    owner: str | None


class Operations:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- begin ------------------------------------------------------------------------------------
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
        queue: str | None = None,
        choice: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> OperationPreview: ...
    def start(  # noqa: PLR0913 - the options of CONTRACT
        self,
        action: str,
        filter: str,  # noqa: A002 - CONTRACT's name
        *,
        dry_run: bool = False,
        steps: Steps | None = None,
        rate: float | str | None = None,
        stop_if: float = 0.1,
        reason: str = "",
        overrides: Mapping[str, Any] | None = None,
        queue: str | None = None,
        choice: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> Operation | OperationPreview:
        """Retry, cancel, discard, release or move all jobs that a filter finds now; workers do it, step by step.

        `steps`: how many before it is judged whether to go on, by default [1, 10, 100, "rest"] for retry. `rate`: items
        a second. `stop_if`: it stops by itself when more than this share of a step fails of the same cause again.
        `dry_run`: only say what would happen. `key`: a second call with the same one returns the first operation, as
        does the same call while one is under way.
        """
        params = {"overrides": overrides, "queue": queue, "choice": choice}
        wish = asked(
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
        if dry_run:
            with self._open().read() as unit:
                return preview(unit, wish)
        return self._begin(wish)

    def _begin(self, wish: CheckedOperation) -> Operation:
        store = self._open()
        for _ in range(ROUNDS):
            with store.begin() as unit:
                row = self._row(unit, wish)
                fresh = unit.new_operation(row)
                found = row if fresh else unit.operation_twin(wish.scope, wish.key, wish.digest)
            if found is not None:
                break
        else:
            raise IllegalMove("the same operation was begun and ended while we looked; try again")
        if found.digest != wish.digest:
            message = f"key {wish.key!r} belongs to operation {found.id}, which is about something else: {found.action}"
            raise KeyMismatch(f"{message} {found.asked!r}")
        while fresh and operate.gather(store, found.id):
            pass
        return self.get(found.id)

    def _row(self, unit: Transaction, wish: CheckedOperation) -> OperationRow:
        now = unit.now()
        return OperationRow(
            id=new_id(),
            action=wish.action.value,
            asked=wish.text,
            fixed=json.dumps(fixed(unit, wish, now)),
            params=json.dumps(wish.params),
            steps=json.dumps(wish.steps),
            rate=wish.rate,
            stop_if=wish.stop_if,
            scope=wish.scope,
            actor=self._actor,
            reason=wish.reason,
            key=wish.key,
            digest=wish.digest,
            state="gathering",
            step=0,
            total=0,
            tallies="[]",
            recent="",
            tokens=wish.rate,
            tokens_at=now,
            version=1,
            active=True,
            due_at=now + operate.LEFT_ALONE,
            moved_at=now,
            created_at=now,
            started_at=None,
            finished_at=None,
            note="",
        )

    # -- read -------------------------------------------------------------------------------------
    def get(self, operation: str, *, owner: str | None = None) -> Operation:
        """With `owner`, an operation that is not theirs answers like one that does not exist."""
        with self._open().read() as unit:
            row = _found(unit, operation, owner)
            return _shown(row, _joined(unit, row))

    def list(
        self, *, owner: str | None = None, limit: int = 50, before: str | None = None
    ) -> OperationList:
        """Newest first; `before` is the id of the last one of the page above."""
        _check_limit(limit, LIST_MOST)
        with self._open().read() as unit:
            return [_shown(row) for row in unit.operations(owner, limit, before)]

    def items(
        self,
        operation: str,
        outcome: str | None = None,
        *,
        owner: str | None = None,
        limit: int = 1000,
        after: int = 0,
    ) -> Items:
        """Its jobs in the order in which they are sent; `outcome`: only these, `after`: beyond this place."""
        _check_limit(limit, ITEMS_MOST)
        if outcome is not None and outcome not in KINDS_OF_ITEM:
            raise Refused(f"no outcome {outcome!r}; one of {', '.join(KINDS_OF_ITEM)}")
        with self._open().read() as unit:
            row = _found(unit, operation, owner)
            plan = _plan(row)
            return [_item(item, plan) for item in unit.items(row.id, outcome, limit, after)]

    def resolve(self, prefix: str, *, owner: str | None = None) -> str:
        """A whole id, from as many of its first characters as make it unique."""
        if len(prefix) == LENGTH:
            return prefix
        if not prefix:
            raise Refused("the id is empty; give at least its first characters")
        with self._open().read() as unit:
            found = unit.find_operations(prefix, owner, NAMED + 1)
        if len(found) == 1:
            return found[0]
        raise NotFound(ambiguous("operation", prefix, found) if found else _no_such(prefix))

    # -- by hand ----------------------------------------------------------------------------------
    def pause(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        """Send nothing more for now; what was sent goes on."""
        return self._say(operation, owner, "paused", reason)

    def resume(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        return self._say(operation, owner, "running", reason)

    def abort(self, operation: str, *, reason: str = "", owner: str | None = None) -> Operation:
        """For good. What was not sent stays untouched; what was sent goes on."""
        return self._say(operation, owner, "aborted", reason)

    def _say(self, operation: str, owner: str | None, state: str, reason: str) -> Operation:
        with self._open().begin() as unit:
            _found(unit, operation, owner)
            row = unit.operation_locked(operation, wait=True)
            if row is None:
                raise NotFound(_no_such(operation))
            if row.state == state and state != "running":
                return _shown(row, _joined(unit, row))
            _check_may(row, state)
            after = _changed(row, state, reason, unit.now())
            unit.write_operation(after)
            seen = {"before": {"state": row.state}, "after": {"state": after.state}}
            news = {"reason": reason, **seen, "untouched": _shown(row).untouched}
            operate.tell(unit, after, _EVENTS[state], actor=self._actor, **news)
        return self.get(operation)


_EVENTS = {
    "paused": EventType.OPERATION_PAUSED,
    "running": EventType.OPERATION_RESUMED,
    "aborted": EventType.OPERATION_ABORTED,
}


def _check_may(row: OperationRow, state: str) -> None:
    if row.state in UNDER_WAY and (state != "running" or row.state == "paused"):
        return
    wish = {"paused": "pause", "running": "resume", "aborted": "abort"}[state]
    hint = "" if row.state in UNDER_WAY else "; to do it again, start it again"
    raise IllegalMove(f"cannot {wish} operation {row.id}: it is {row.state}{hint}")


def _changed(row: OperationRow, state: str, reason: str, now: int) -> OperationRow:
    if state == "aborted":
        sent = total_of(_plan(row)).sent
        note = f"aborted: {reason}" if reason else "aborted"
        return row._replace(state=state, finished_at=now, active=bool(sent), note=note)
    if state == "paused":
        return row._replace(state=state, note=reason and f"paused: {reason}")
    gathering = row.started_at is None
    return row._replace(
        state="gathering" if gathering else "running", note="", due_at=now, moved_at=now
    )


# -- the picture ------------------------------------------------------------------------------------
def _check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise Refused(f"limit must be from 1 to {most}, not {limit}")


def _found(unit: Transaction, operation: str, owner: str | None) -> OperationRow:
    row = unit.operation(operation)
    if row is None or owner not in (None, row.scope):
        raise NotFound(_no_such(operation))
    return row


def _no_such(operation: str) -> str:
    return f"no operation {operation!r}"


def _plan(row: OperationRow) -> tuple[ItemCounts, ...]:
    return tuple(ItemCounts(*numbers) for numbers in json.loads(row.tallies))


def _joined(unit: Transaction, row: OperationRow) -> int:
    """How many came to match since; counted up to 10,000."""
    where = where_of(row.fixed)
    ended = {State.DEAD, State.CANCELLED} & {
        *where["state"]
    }  # those may be old, and have ended since
    late = "" if ended else first_id(row.created_at // 1000)
    now = {name: said for name, said in where.items() if name != "until"}
    looked = 2 * COUNT_MOST + row.total
    return min(COUNT_MOST, unit.operation_joined(row.id, now, late, row.created_at, looked))


def _shown(row: OperationRow, joined: int | None = None) -> Operation:
    plan = _plan(row)
    return Operation(
        id=row.id,
        action=row.action,
        filter=row.asked,
        fixed=fixed_words(where_of(row.fixed)),
        owner=None if row.scope == EVERYBODY else row.scope,
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
        counts=total_of(plan),
        note=row.note,
        joined=joined,
        created_at=to_datetime(row.created_at),
        started_at=moment_of(row.started_at),
        finished_at=moment_of(row.finished_at),
    )


def _item(row: ItemRow, plan: Sequence[ItemCounts]) -> Item:
    return Item(
        job=row.job_id,
        place=row.place,
        step=step_of(plan, row.place),
        generation=row.generation,
        was=row.was,
        group=row.cause,
        code=row.code,
        state=row.state,
        outcome=row.outcome,
        why=row.why,
        ended_at=moment_of(row.ended_at),
    )


class AsyncOperations:
    """The same, awaitable: each call on a thread."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    @overload
    async def start(
        self, action: str, filter: str, *, dry_run: Literal[False] = False, **said: Unpack[Wishes]
    ) -> Operation: ...
    @overload
    async def start(
        self, action: str, filter: str, *, dry_run: Literal[True], **said: Unpack[Wishes]
    ) -> OperationPreview: ...
    async def start(
        self,
        action: str,
        filter: str,  # noqa: A002
        *,
        dry_run: bool = False,
        **said: Unpack[Wishes],
    ) -> Operation | OperationPreview:
        def begin() -> Operation | OperationPreview:
            start: Callable[..., Operation | OperationPreview] = self._operations.start
            return start(action, filter, dry_run=dry_run, **said)

        return await asyncio.to_thread(begin)

    async def get(self, operation: str, *, owner: str | None = None) -> Operation:
        return await asyncio.to_thread(self._operations.get, operation, owner=owner)

    async def list(
        self, *, owner: str | None = None, limit: int = 50, before: str | None = None
    ) -> OperationList:
        return await asyncio.to_thread(
            self._operations.list, owner=owner, limit=limit, before=before
        )

    async def items(
        self,
        operation: str,
        outcome: str | None = None,
        *,
        owner: str | None = None,
        limit: int = 1000,
        after: int = 0,
    ) -> Items:
        return await asyncio.to_thread(
            self._operations.items, operation, outcome, owner=owner, limit=limit, after=after
        )

    async def pause(
        self, operation: str, *, reason: str = "", owner: str | None = None
    ) -> Operation:
        return await asyncio.to_thread(
            self._operations.pause, operation, reason=reason, owner=owner
        )

    async def resume(
        self, operation: str, *, reason: str = "", owner: str | None = None
    ) -> Operation:
        return await asyncio.to_thread(
            self._operations.resume, operation, reason=reason, owner=owner
        )

    async def abort(
        self, operation: str, *, reason: str = "", owner: str | None = None
    ) -> Operation:
        return await asyncio.to_thread(
            self._operations.abort, operation, reason=reason, owner=owner
        )

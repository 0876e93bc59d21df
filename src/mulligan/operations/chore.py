"""Run operations: freeze their jobs, send them step by step, judge the results, stop if needed.

Any worker may take the next turn. Each turn is one bounded transaction that holds the operation's
row lock. The job's move, its event, the item and the counts are written together, so a process
killed at any time loses nothing and repeats nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from mulligan.batches import completion
from mulligan.batches.queries import BatchQueries, BatchRow
from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import DependencyOpen, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import ALL_OWNERS, JobRow, State
from mulligan.events.queries import EventQueries
from mulligan.failures.redact import scrub
from mulligan.jobs import repair
from mulligan.jobs.preconditions import (
    UNCHANGED,
    KindInfo,
    apply_overrides,
    lane_in_queue,
    refuse_if_dependency_down,
)
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.repair import DEFAULT_MAX_PAYLOAD
from mulligan.jobs.view import load_job_views
from mulligan.manifest.declared import load_kinds, load_queues
from mulligan.manifest.specs import KindSpec, QueueSpec
from mulligan.operations.queries import (
    MAX_PAUSE,
    ItemEndRow,
    ItemRow,
    OperationQueries,
    OperationRow,
)
from mulligan.operations.request import VERBS, load_frozen_filter
from mulligan.operations.rules import (
    Action,
    ItemCounts,
    ItemEnd,
    ItemOutcome,
    Steps,
    StepVerdict,
    append_recent,
    describe_end,
    describe_stop,
    judge_item,
    judge_step,
    last_place,
    max_items,
    plan_steps,
    refill_tokens,
    sendable_count,
    sum_counts,
)
from mulligan.storage.base import Store, Transaction

log = logging.getLogger("mulligan.upkeep")

TURN_INTERVAL = SECOND  # between two turns of one operation, in the whole fleet
IDLE_INTERVAL = 10 * SECOND  # while it sends nothing
GATHER_TIMEOUT = 5 * SECOND  # Workers continue a gathering that made no progress for so long.
GATHER_CHUNK = 1000  # jobs frozen in one transaction
ITEMS_PER_TURN = 100  # items sent, or ended, in one transaction
TURN_BUDGET = 0.8  # seconds that one call spends on one operation
OPERATIONS_PER_CALL = 20
STALL_AFTER = 3 * SECOND  # Explain in the note why nothing moves after so long.

ACTIVE_STATES = frozenset({"gathering", "running", "paused"})


def any_active(store: Store) -> bool:
    """Return whether any operation has work left."""
    with store.read() as tx:
        return bool(OperationQueries(tx).list_due_operations(None, 1))


def run_operations(store: Store, *, paced: bool = True) -> int:
    """Take the turns of all due operations and return how many jobs were moved.

    With `paced=False`, rates and intervals are ignored: for one process that does everything.
    """
    with store.read() as tx:
        due_before = tx.now() if paced else None
        due = OperationQueries(tx).list_due_operations(due_before, OPERATIONS_PER_CALL)
    return sum(_run_operation(store, operation, paced=paced) for operation in due)


def _run_operation(store: Store, operation: str, *, paced: bool) -> int:
    """Take turns of one operation until it must wait, and return how many jobs were moved.

    Errors are isolated: a failing operation does not stop the others. After an error the turn is
    repeated with a savepoint per job, so that a job that cannot be moved does not stop the rest.
    """
    sent = 0
    deadline = time.monotonic() + TURN_BUDGET
    previous: TurnResult | None = None
    isolate_jobs = False
    while True:
        try:
            previous = run_turn(
                store, operation, paced=paced, previous=previous, isolate_jobs=isolate_jobs
            )
        except StoreUnavailable:
            raise
        except Exception:
            if isolate_jobs:
                log.exception("operation %s: a turn failed", operation)
                return sent
            log.exception("operation %s: a turn failed; repeating it job by job", operation)
            isolate_jobs = True
            continue
        sent += previous.sent
        if not previous.more or (paced and time.monotonic() > deadline):
            return sent


class TurnResult(NamedTuple):
    """Work done by one turn."""

    sent: int = 0  # jobs moved
    ended: int = 0  # items found to have ended
    more: bool = False  # Another turn may find more to do at once.


def run_turn(
    store: Store,
    operation: str,
    *,
    paced: bool = True,
    previous: TurnResult | None = None,
    isolate_jobs: bool = False,
) -> TurnResult:
    """Take one turn in one transaction.

    `previous` is the turn just taken by this caller: then it need not be due. With
    `isolate_jobs`, an error of one job refuses that job instead of failing the turn.
    """
    with store.begin() as tx:
        row = OperationQueries(tx).lock_operation(operation, wait=False)
        if row is None or not row.active:
            return TurnResult()
        now = tx.now()
        # The process that started a gathering continues it; others wait for GATHER_TIMEOUT.
        obeys_due_time = paced or row.state == "gathering"
        if obeys_due_time and previous is None and now < row.due_at <= now + MAX_PAUSE:
            return TurnResult()  # Another worker took this turn.
        find_ended = previous is None or previous.ended == ITEMS_PER_TURN
        turn = OperationTurn(tx, row, now, paced=paced, isolate_jobs=isolate_jobs)
        return turn.take(find_ended=find_ended)


def gather_items(store: Store, operation: str) -> bool:
    """Freeze one more chunk, for the process that started the operation. False: nothing is left."""
    with store.begin() as tx:
        row = OperationQueries(tx).lock_operation(operation, wait=True)
        if row is None or row.state != "gathering":
            return False
        turn = OperationTurn(tx, row, tx.now(), paced=True, next_turn_in=GATHER_TIMEOUT)
        return turn.take().more


class _Progress(Enum):
    """State of an item that has not ended."""

    SENT = "sent"  # moved; its attempt is awaited
    LATER = "later"  # to be tried in a later turn


class _MoveResult(NamedTuple):
    """Result of moving one item."""

    outcome: ItemOutcome | _Progress
    why: str = ""


class _EndedItem(NamedTuple):
    """An item with its outcome."""

    place: int
    outcome: ItemOutcome
    why: str


class OperationTurn:
    """One operation, locked for the length of a transaction."""

    def __init__(
        self,
        tx: Transaction,
        row: OperationRow,
        now: Micros,
        *,
        paced: bool,
        next_turn_in: Micros = TURN_INTERVAL,
        isolate_jobs: bool = False,
    ) -> None:
        self._tx = tx
        self._row = row
        self._now = now
        self._paced = paced
        self._next_turn_in = next_turn_in
        self._isolate_jobs = isolate_jobs
        self._action = Action(row.action)
        self._plan = [ItemCounts(*numbers) for numbers in json.loads(row.tallies)]
        self._moved: list[tuple[JobRow, Verb]] = []
        self._batches: dict[str, BatchRow | None] = {}
        self._refusals: dict[str, str] = {}  # by dependencies: why their jobs would die at once

    def take(self, *, find_ended: bool = True) -> TurnResult:
        """Take the turn. `find_ended` looks for ended items, of which there may be many."""
        if self._row.state == "gathering":
            result = self._gather()
        else:
            result = self._advance(find_ended=find_ended)
        self._save(due_at=self._now + self._next_turn_in)
        return result

    def _save(self, **changes: Any) -> None:
        counts = json.dumps(self._plan, separators=(",", ":"))
        if not OperationQueries(self._tx).update_operation(
            self._row._replace(tallies=counts, **changes)
        ):
            raise RuntimeError(f"operation {self._row.id} changed while its row was locked")

    def _set(self, **changes: Any) -> None:
        self._row = self._row._replace(**changes)

    # --- Gather jobs ---
    def _gather(self) -> TurnResult:
        row = self._row
        steps: Steps = tuple(json.loads(row.steps))
        limit = max_items(steps)
        chunk = GATHER_CHUNK if limit is None else min(GATHER_CHUNK, limit - row.total)
        found = 0
        if chunk:
            found = OperationQueries(self._tx).add_items(
                row.id, load_frozen_filter(row.fixed), chunk
            )
        self._set(total=row.total + found)
        if found == GATHER_CHUNK:
            return TurnResult(more=True)
        self._start(steps)
        return TurnResult(more=bool(self._row.active))

    def _start(self, steps: Steps) -> None:
        now = self._now
        self._plan = plan_steps(steps, self._row.total)
        self._set(state="running", started_at=now, moved_at=now, tokens_at=now)
        self._next_turn_in = 0
        self._write_event(EventType.OPERATION_STARTED, self._row.actor)
        if not self._row.total:
            self._finish()

    # --- Send and judge ---
    def _advance(self, *, find_ended: bool) -> TurnResult:
        ended = self._record_ended() if find_ended else 0
        judged = self._judge()
        sent = self._send() if self._row.state == "running" else 0
        if ended or sent:
            self._set(moved_at=self._now)
            if self._row.state == "running":
                self._set(note="")
        else:
            self._explain_stall()
        if self._row.state != "running" and not ended:
            self._next_turn_in = IDLE_INTERVAL
        if self._row.state not in ACTIVE_STATES and not self._counts.sent:
            self._set(active=False)
        more = bool(self._row.active and (ended or sent or judged))
        return TurnResult(sent, ended, more)

    @property
    def _counts(self) -> ItemCounts:
        """Counts of the current step."""
        return self._plan[self._row.step]

    def _count(self, start: str, end: str, count: int = 1) -> None:
        self._plan[self._row.step] = self._counts.moved(start, end, count)

    def _record_ended(self) -> int:
        rows = OperationQueries(self._tx).list_ended_items(self._row.id, ITEMS_PER_TURN)
        ended = [_EndedItem(row.place, *judge_item(_item_end(row))) for row in rows]
        self._end_items(ended, "sent")
        outcomes = [item.outcome for item in ended]
        self._set(recent=append_recent(self._row.recent, outcomes))
        return len(rows)

    def _end_items(self, ended: Iterable[_EndedItem], start: str) -> None:
        """Write outcomes, one statement per group of equal ones."""
        groups: defaultdict[tuple[ItemOutcome, str], list[int]] = defaultdict(list)
        for item in ended:
            groups[item.outcome, item.why].append(item.place)
        for (outcome, why), places in groups.items():
            OperationQueries(self._tx).mark_items_ended(
                self._row.id, places, outcome.value, why, self._now
            )
            self._count(start, outcome.value, len(places))

    # --- Steps ---
    def _judge(self) -> bool:
        """Judge the current step. Return whether that changed anything."""
        if self._row.state != "running":
            return False
        verdict = judge_step(self._counts, self._row.stop_if, self._row.recent)
        if verdict is StepVerdict.STOP:
            self._stop()
        elif verdict is StepVerdict.NEXT and self._row.step + 1 < len(self._plan):
            self._set(step=self._row.step + 1, recent="")
        elif verdict is StepVerdict.NEXT:
            self._finish()
        return verdict is not StepVerdict.CONTINUE

    def _stop(self) -> None:
        row = self._row
        codes = OperationQueries(self._tx).count_repeated_failures(row.id)
        note = describe_stop(self._plan, row.step, row.stop_if, row.recent, codes)
        self._set(state="stopped", finished_at=self._now, note=note)
        self._write_event(EventType.OPERATION_STOPPED, "upkeep", by=row.actor, note=note)

    def _finish(self) -> None:
        note = describe_end(self._action, self._plan)
        self._set(state="finished", finished_at=self._now, note=note, active=False)
        self._write_event(EventType.OPERATION_FINISHED, "upkeep", by=self._row.actor, note=note)

    def _write_event(self, kind: EventType, actor: str, **data: Any) -> None:
        totals = sum_counts(self._plan)._asdict()
        counts = {name: count for name, count in totals.items() if count and name != "size"}
        total = self._row.total
        write_operation_event(
            self._tx, self._row, kind, actor=actor, total=total, counts=counts, **data
        )

    # --- Send ---
    def _send(self) -> int:
        row = self._row
        bucket = refill_tokens(row.tokens, row.tokens_at, row.rate, self._now)
        tokens = bucket.tokens if self._paced else ITEMS_PER_TURN
        count = sendable_count(self._counts, tokens, row.rate, ITEMS_PER_TURN)
        items: Sequence[ItemRow] = ()
        if count:
            place = last_place(self._plan, row.step)
            items = OperationQueries(self._tx).list_waiting_items(row.id, place, count)
        moved = self._move_all(items)
        self._set(tokens=max(0.0, bucket.tokens - len(items)), tokens_at=bucket.at)
        return moved

    def _move_all(self, items: Sequence[ItemRow]) -> int:
        rows = {
            row.id: row for row in JobQueries(self._tx).lock_jobs([item.job_id for item in items])
        }
        sent: list[int] = []
        ended: list[_EndedItem] = []
        for item in items:
            result = self._move(item, rows.get(item.job_id))
            if isinstance(result.outcome, ItemOutcome):
                ended.append(_EndedItem(item.place, result.outcome, result.why))
            elif result.outcome is _Progress.SENT:
                sent.append(item.place)
        row = self._row
        completion.update_after_moves(self._tx, self._moved, actor=row.actor, reason=row.reason)
        OperationQueries(self._tx).mark_items_sent(row.id, sent)
        self._count("waiting", "sent", len(sent))
        self._end_items(ended, "waiting")
        return len(sent) + len(ended)

    def _move(self, item: ItemRow, row: JobRow | None) -> _MoveResult:
        if row is None:
            if JobQueries(self._tx).get_job(item.job_id) is None:
                return _MoveResult(ItemOutcome.SKIPPED, "the job was deleted")
            return _MoveResult(_Progress.LATER)  # Another transaction holds its lock.
        if row.generation != item.generation:
            return _MoveResult(ItemOutcome.SKIPPED, "the job was retried since")
        if row.state != item.initial_state:
            why = f"the job was {item.initial_state} and is {row.state}"
            return _MoveResult(ItemOutcome.SKIPPED, why)
        try:
            return self._move_unchanged(row)
        except Refused as refusal:
            return _MoveResult(ItemOutcome.REFUSED, f"{refusal} [{refusal.code}]")
        except StoreUnavailable:
            raise
        except Exception as error:
            if not self._isolate_jobs:
                raise
            log.exception("job %s cannot be moved", row.id)
            return _MoveResult(ItemOutcome.REFUSED, scrub(f"{type(error).__name__}: {error}"))

    def _move_unchanged(self, row: JobRow) -> _MoveResult:
        """Move a job that is still in the state in which it was gathered."""
        is_retry = self._action is Action.RETRY
        if is_retry and self._would_die_at_once(row):
            return _MoveResult(_Progress.LATER)
        with self._tx.savepoint() if self._isolate_jobs else nullcontext():
            moved = self._act(row)
        if not moved:
            return _MoveResult(_Progress.LATER)
        self._moved.append((row, VERBS[self._action]))
        return _MoveResult(_Progress.SENT) if is_retry else _MoveResult(ItemOutcome.DONE)

    def _would_die_at_once(self, row: JobRow) -> bool:
        """Return whether a fail-fast dependency of the job is down: then the operation waits."""
        if row.uses not in self._refusals:
            self._refusals[row.uses] = ""
            try:
                refuse_if_dependency_down(self._tx, row.uses, self._now)
            except DependencyOpen as refusal:
                self._refusals[row.uses] = str(refusal)
        return bool(self._refusals[row.uses])

    def _act(self, row: JobRow) -> bool:
        data = {"operation": self._row.id}
        if self._action is Action.MOVE:
            return self._requeue(row, data)
        if self._action is Action.RELEASE:
            repair.check_choice(row, self._params.get("choice"))
        if self._action is Action.RETRY and row.batch_id is not None:
            completion.refuse_expired(self._load_batch(row.batch_id), self._now)
        overrides = self._params.get("overrides")
        change = UNCHANGED
        if overrides:
            change = apply_overrides(row, overrides, self._kind_info(row))
        return repair.move_job(
            self._tx,
            row,
            VERBS[self._action],
            self._row.actor,
            self._row.reason,
            choice=self._params.get("choice"),
            change=change,
            at=self._now,
            as_retry=self._action is Action.RETRY,
            data=data,
            update_batch=False,
        )

    def _load_batch(self, batch_id: str) -> BatchRow | None:
        """Read a batch once per turn; reopening it checks again under its lock."""
        if batch_id not in self._batches:
            self._batches[batch_id] = BatchQueries(self._tx).get_batch(batch_id)
        return self._batches[batch_id]

    def _kind_info(self, row: JobRow) -> KindInfo:
        """Return the stored spec of a kind; no function of an app is called here."""
        return KindInfo(self._kinds.get(row.kind), None, self._queues, DEFAULT_MAX_PAYLOAD)

    @cached_property
    def _kinds(self) -> Mapping[str, KindSpec]:
        return load_kinds(self._tx)

    def _requeue(self, row: JobRow, data: Mapping[str, Any]) -> bool:
        queue = self._params["queue"]
        if row.queue == queue:
            raise Refused(f"the job is already in queue {queue}")
        lane = lane_in_queue(row, queue, self._queues)
        actor = self._row.actor
        return repair.requeue_job(self._tx, row, lane, actor, self._row.reason, data=data)

    @cached_property
    def _params(self) -> dict[str, Any]:
        params: dict[str, Any] = json.loads(self._row.params)
        return params

    @cached_property
    def _queues(self) -> Mapping[str, QueueSpec]:
        return load_queues(self._tx, self._now)

    # --- Explain why nothing moves ---
    def _explain_stall(self) -> None:
        """Write into the note why nothing moves, taking the first sent job as an example."""
        refusal = next(filter(None, self._refusals.values()), "")
        if refusal:
            self._set(note=f"Waiting: {refusal}")
            return
        is_recent = self._paced and self._now - self._row.moved_at < STALL_AFTER
        if self._row.state != "running" or not self._counts.sent or is_recent:
            return
        row = OperationQueries(self._tx).get_first_sent_job(self._row.id)
        if row is None or row.state != State.QUEUED:
            self._set(note="")
            return
        job = load_job_views(self._tx, [row])[0]
        if not self._paced and job.phase == "ready":
            return
        note = f"{self._counts.sent:,} jobs were sent and are waiting ({job.phase}): {job.why}"
        self._set(note=note)


def _item_end(row: ItemEndRow) -> ItemEnd:
    return ItemEnd(
        group=row.cause,
        verb=row.verb,
        failed_group=row.new_cause,
        code=row.code,
        message=row.message,
        state=row.job_state,
        died_of=row.job_cause,
        retried_again=bool(row.retried_again),
    )


def write_operation_event(
    tx: Transaction, row: OperationRow, kind: EventType, *, actor: str, **data: Any
) -> None:
    """Write an event about an operation."""
    event_data = {
        "operation": row.id,
        "action": row.action,
        "filter": row.filter,
        "state": row.state,
        **data,
    }
    if kind is EventType.OPERATION_STARTED:
        event_data |= {
            "steps": json.loads(row.steps),
            "rate": row.rate,
            "stop_if": row.stop_if,
            "reason": row.reason,
            **json.loads(row.params),
            "before": {},
            "after": {"state": row.state},
        }
    owner = "" if row.scope == ALL_OWNERS else row.scope
    EventQueries(tx).write_events([NewEvent(kind, owner=owner, actor=actor, data=event_data)])

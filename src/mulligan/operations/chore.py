"""Operations at work: jobs are frozen, sent step by step, watched and judged, by whichever worker comes by.

Each turn is one bounded transaction that holds the operation's row. The job's move, its event, the item and the tallies
are written together, so a kill at any instant loses nothing and doubles nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

from mulligan.batches import completion as batching
from mulligan.core.attempt import Verb
from mulligan.core.errors import DependencyOpen, Refused, StoreUnavailable
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, JobRow, Micros, State
from mulligan.failures.groups import EVERYBODY
from mulligan.failures.redact import scrub
from mulligan.jobs import repair as recover
from mulligan.jobs.preconditions import UNCHANGED, KnownKinds, amended, lane_in, refuse_down
from mulligan.jobs.repair import PAYLOAD
from mulligan.jobs.view import jobs_of
from mulligan.manifest.declared import stored_kinds, stored_queues
from mulligan.manifest.specs import KindSpec, QueueSpec
from mulligan.operations.request import VERBS, where_of
from mulligan.operations.rules import (
    Action,
    End,
    ItemCounts,
    ItemOutcome,
    Steps,
    StepVerdict,
    bound,
    end_words,
    fate,
    fuelled,
    last_place,
    planned,
    remembered,
    stop_words,
    to_send,
    total_of,
    verdict,
)
from mulligan.storage.base import BatchRow, Store, Transaction
from mulligan.storage.operation_queries import FAR, ItemRow, OperationRow

log = logging.getLogger("mulligan.upkeep")

EVERY = SECOND  # between two turns of one operation, in the whole fleet
SELDOM = 10 * SECOND  # while it sends nothing
LEFT_ALONE = 5 * SECOND  # who gathers is not helped before it was silent for so long
CHUNK = 1000  # jobs that are frozen in one transaction
TURN = 100  # items that are sent, or ended, in one transaction
BUDGET = 0.8  # seconds of one call for one operation
AT_ONCE = 20  # operations that are looked at in one call
PATIENCE = 3 * SECOND  # until somebody wants to know why nothing moves

UNDER_WAY = frozenset({"gathering", "running", "paused"})


def under_way(store: Store) -> bool:
    with store.read() as unit:
        return bool(unit.operations_due(None, 1))


def turn(store: Store, *, paced: bool = True) -> int:
    """Everything that is to be done now for operations under way; returns how many jobs were moved.

    Not `paced`: whoever comes next may do the same at once, and rates do not count; for one process that does all.
    """
    with store.read() as unit:
        due = unit.operations_due(unit.now() if paced else None, AT_ONCE)
    return sum(_tend(store, operation, paced=paced) for operation in due)


def _tend(store: Store, operation: str, *, paced: bool) -> int:
    """One that cannot be tended does not keep the others, nor a job that cannot be moved those beside it."""
    sent, ends, did, careful = 0, time.monotonic() + BUDGET, None, False
    while True:
        try:
            did = step(store, operation, paced=paced, after=did, careful=careful)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception(
                "operation %s: a turn has failed%s",
                operation,
                "" if careful else "; each job for itself",
            )
            if careful:
                return sent
            careful = True
            continue
        sent += did.sent
        if not did.more or (paced and time.monotonic() > ends):
            return sent


class Did(NamedTuple):
    sent: int = 0  # jobs that were moved
    ended: int = 0  # items of which that was found out
    more: bool = False  # the same again may find more


def step(
    store: Store,
    operation: str,
    *,
    paced: bool = True,
    after: Did | None = None,
    careful: bool = False,
) -> Did:
    """One transaction. `after`: the one before; the turn is ours already. `careful`: what a move raises is its own."""
    with store.begin() as unit:
        row = unit.operation_locked(operation, wait=False)
        if row is None or not row.active:
            return Did()
        now = unit.now()
        waits = paced or row.state == "gathering"  # then the starter is at it
        if waits and after is None and now < row.due_at <= now + FAR:
            return Did()  # somebody was quicker
        look = after is None or after.ended == TURN
        return OperationStep(unit, row, now, paced=paced, careful=careful).take(look=look)


def gather(store: Store, operation: str) -> bool:
    """One more chunk, by who has started it. False: all are there, or somebody else sees to it."""
    with store.begin() as unit:
        row = unit.operation_locked(operation, wait=True)
        if row is None or row.state != "gathering":
            return False
        return OperationStep(unit, row, unit.now(), paced=True, put_off=LEFT_ALONE).take().more


class OperationStep:
    """One operation in the hand, for the length of a transaction."""

    def __init__(
        self,
        unit: Transaction,
        row: OperationRow,
        now: Micros,
        *,
        paced: bool,
        put_off: Micros = EVERY,
        careful: bool = False,
    ) -> None:
        self._unit = unit
        self._row = row
        self._now = now
        self._paced = paced
        self._put_off = put_off
        self._careful = careful
        self._action = Action(row.action)
        self._plan = [ItemCounts(*numbers) for numbers in json.loads(row.tallies)]
        self._moved: list[tuple[JobRow, Verb]] = []
        self._batches: dict[str, BatchRow | None] = {}
        self._down: dict[
            str, str
        ] = {}  # by what jobs use: why they would end at once; "": they would not

    def take(self, *, look: bool = True) -> Did:
        """`look`: who has ended; those that are under way may be many."""
        did = self._gather() if self._row.state == "gathering" else self._go_on(look=look)
        self._save(due_at=self._now + self._put_off)
        return did

    def _save(self, **changes: Any) -> None:
        tallies = json.dumps(self._plan, separators=(",", ":"))
        if not self._unit.write_operation(self._row._replace(tallies=tallies, **changes)):
            message = f"operation {self._row.id} changed while its row was locked"
            raise RuntimeError(message)

    def _set(self, **changes: Any) -> None:
        self._row = self._row._replace(**changes)

    # -- gathering --------------------------------------------------------------------------------
    def _gather(self) -> Did:
        row = self._row
        steps: Steps = tuple(json.loads(row.steps))
        most = bound(steps)
        room = CHUNK if most is None else min(CHUNK, most - row.total)
        found = self._unit.freeze_items(row.id, where_of(row.fixed), room) if room else 0
        self._set(total=row.total + found)
        if found == CHUNK:
            return Did(more=True)
        self._plan = planned(steps, self._row.total)
        self._set(state="running", started_at=self._now, moved_at=self._now, tokens_at=self._now)
        self._put_off = 0
        self._tell(EventType.OPERATION_STARTED, self._row.actor)
        if not self._row.total:
            self._finish()
        return Did(more=bool(self._row.active))

    # -- at work ----------------------------------------------------------------------------------
    def _go_on(self, *, look: bool) -> Did:
        ended = self._enter_ends() if look else 0
        judged = self._judge()
        sent = self._send() if self._row.state == "running" else 0
        if ended or sent:
            self._set(
                moved_at=self._now, note="" if self._row.state == "running" else self._row.note
            )
        else:
            self._say_why_it_waits()
        if self._row.state != "running" and not ended:
            self._put_off = SELDOM
        if self._row.state not in UNDER_WAY and not self._tally.sent:
            self._set(active=False)
        return Did(sent, ended, more=bool(self._row.active and (ended or sent or judged)))

    @property
    def _tally(self) -> ItemCounts:
        return self._plan[self._row.step]

    def _count(self, begin: str, end: str, count: int = 1) -> None:
        self._plan[self._row.step] = self._tally.moved(begin, end, count)

    def _enter_ends(self) -> int:
        ends = self._unit.items_ended(self._row.id, TURN)
        fates = [(end.place, *fate(End(*end[1:8], later=bool(end.later)))) for end in ends]
        self._end([(place, became, why) for place, became, why in fates], "sent")
        self._set(recent=remembered(self._row.recent, [became for _, became, _ in fates]))
        return len(ends)

    def _end(self, ends: list[tuple[int, ItemOutcome, str]], begin: str) -> None:
        alike: defaultdict[tuple[ItemOutcome, str], list[int]] = defaultdict(list)
        for place, became, why in ends:
            alike[became, why].append(place)
        for (became, why), places in alike.items():
            self._unit.end_items(self._row.id, places, became.value, why, self._now)
            self._count(begin, became.value, len(places))

    # -- steps ------------------------------------------------------------------------------------
    def _judge(self) -> bool:
        """Did that change anything?"""
        if self._row.state != "running":
            return False
        said = verdict(self._tally, self._row.stop_if, self._row.recent)
        if said is StepVerdict.STOP:
            self._stop()
        elif said is StepVerdict.NEXT and self._row.step + 1 < len(self._plan):
            self._set(step=self._row.step + 1, recent="")
        elif said is StepVerdict.NEXT:
            self._finish()
        return said is not StepVerdict.GO_ON

    def _stop(self) -> None:
        row = self._row
        note = stop_words(
            self._plan, row.step, row.stop_if, row.recent, self._unit.items_again(row.id)
        )
        self._set(state="stopped", finished_at=self._now, note=note)
        self._tell(EventType.OPERATION_STOPPED, "upkeep", by=row.actor, note=note)

    def _finish(self) -> None:
        note = end_words(self._action, self._plan)
        self._set(state="finished", finished_at=self._now, note=note, active=False)
        self._tell(EventType.OPERATION_FINISHED, "upkeep", by=self._row.actor, note=note)

    def _tell(self, kind: EventType, actor: str, **more: Any) -> None:
        whole = total_of(self._plan)
        counts = {
            name: count for name, count in whole._asdict().items() if count and name != "size"
        }
        tell(self._unit, self._row, kind, actor=actor, total=self._row.total, counts=counts, **more)

    # -- sending ----------------------------------------------------------------------------------
    def _send(self) -> int:
        row, rate = self._row, self._row.rate
        meter = fuelled(row.tokens, row.tokens_at, rate, self._now)
        count = to_send(self._tally, meter.tokens if self._paced else TURN, rate, TURN)
        items = (
            self._unit.items_waiting(row.id, last_place(self._plan, row.step), count)
            if count
            else []
        )
        moved = self._move_all(items)
        self._set(tokens=max(0.0, meter.tokens - len(items)), tokens_at=meter.at)
        return moved

    def _move_all(self, items: list[ItemRow]) -> int:
        rows = {row.id: row for row in self._unit.jobs_locked([item.job_id for item in items])}
        sent: list[int] = []
        ends: list[tuple[int, ItemOutcome, str]] = []
        for item in items:
            became, why = self._move(item, rows.get(item.job_id))
            if became is None and why:
                sent.append(item.place)
            elif became is not None:
                ends.append((item.place, became, why))
        batching.moved_all(self._unit, self._moved, actor=self._row.actor, reason=self._row.reason)
        self._unit.send_items(self._row.id, sent)
        self._count("waiting", "sent", len(sent))
        self._end(ends, "waiting")
        return len(sent) + len(ends)

    def _move(self, item: ItemRow, row: JobRow | None) -> tuple[ItemOutcome | None, str]:
        """What became of it; (None, "sent"): its attempt is to come; (None, ""): next time."""
        if row is None:
            gone = self._unit.get(item.job_id) is None
            return (ItemOutcome.SKIPPED, "the job is gone") if gone else (None, "")
        if (row.generation, row.state) != (item.generation, item.was):
            again = (
                "was retried since"
                if row.generation != item.generation
                else f"was {item.was} and is {row.state}"
            )
            return ItemOutcome.SKIPPED, f"the job {again}"
        try:
            if self._action is Action.RETRY and self._would_end_at_once(row):
                return None, ""
            with self._unit.savepoint() if self._careful else nullcontext():
                done = self._act(row)
        except Refused as refusal:
            return ItemOutcome.REFUSED, f"{refusal} [{refusal.code}]"
        except StoreUnavailable:
            raise
        except Exception as trouble:
            if not self._careful:
                raise
            log.exception("job %s cannot be moved", row.id)
            return ItemOutcome.REFUSED, scrub(f"{type(trouble).__name__}: {trouble}")
        if not done:
            return None, ""
        self._moved.append((row, VERBS[self._action]))
        return (None, "sent") if self._action is Action.RETRY else (ItemOutcome.DONE, "")

    def _would_end_at_once(self, row: JobRow) -> bool:
        """What it uses is down and lets nobody wait: then the operation waits."""
        if row.uses not in self._down:
            try:
                refuse_down(self._unit, row.uses, self._now)
                self._down[row.uses] = ""
            except DependencyOpen as refusal:
                self._down[row.uses] = str(refusal)
        return bool(self._down[row.uses])

    def _act(self, row: JobRow) -> bool:
        news = {"operation": self._row.id}
        if self._action is Action.MOVE:
            return self._requeue(row, news)
        if self._action is Action.RELEASE:
            recover.check_choice(row, self._params.get("choice"))
        if self._action is Action.RETRY and row.batch_id is not None:
            batching.refuse_late(self._batch(row.batch_id), self._now)
        overrides = self._params.get("overrides")
        return recover.move_in(
            self._unit,
            row,
            VERBS[self._action],
            self._row.actor,
            self._row.reason,
            choice=self._params.get("choice"),
            change=amended(row, overrides, self._kinds(row)) if overrides else UNCHANGED,
            at=self._now,
            behind=self._action is Action.RETRY,
            data=news,
            alone=False,
        )

    def _batch(self, batch_id: str) -> BatchRow | None:
        """Asked once in a turn; what changes meanwhile is noticed when it is reopened."""
        if batch_id not in self._batches:
            self._batches[batch_id] = self._unit.batch(batch_id)
        return self._batches[batch_id]

    def _kinds(self, row: JobRow) -> KnownKinds:
        """As the workers have told; no function of an app is called here."""
        return KnownKinds(self._specs.get(row.kind), None, self._queues, PAYLOAD)

    @cached_property
    def _specs(self) -> Mapping[str, KindSpec]:
        return stored_kinds(self._unit)

    def _requeue(self, row: JobRow, news: Mapping[str, Any]) -> bool:
        queue = self._params["queue"]
        if row.queue == queue:
            raise Refused(f"the job is in queue {queue} already")
        lane = lane_in(row, queue, self._queues)
        return recover.requeue_in(
            self._unit, row, lane, self._row.actor, self._row.reason, data=news
        )

    @cached_property
    def _params(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._row.params)
        return found

    @cached_property
    def _queues(self) -> Mapping[str, QueueSpec]:
        return stored_queues(self._unit, self._now)

    # -- waiting ----------------------------------------------------------------------------------
    def _say_why_it_waits(self) -> None:
        """The first of those that were sent speaks for them."""
        down = next(filter(None, self._down.values()), "")
        if down:
            self._set(note=f"waits: {down}")
            return
        patient = self._paced and self._now - self._row.moved_at < PATIENCE
        if self._row.state != "running" or not self._tally.sent or patient:
            return
        row = self._unit.first_sent(self._row.id)
        if row is None or row.state != State.QUEUED:
            self._set(note="")
            return
        job = jobs_of(self._unit, [row])[0]
        if not self._paced and job.phase == "ready":
            return
        self._set(note=f"{self._tally.sent:,} are sent and wait ({job.phase}): {job.why}")


def tell(unit: Transaction, row: OperationRow, kind: EventType, *, actor: str, **more: Any) -> None:
    said = {
        "operation": row.id,
        "action": row.action,
        "filter": row.asked,
        "state": row.state,
        **more,
    }
    if kind is EventType.OPERATION_STARTED:
        steps: dict[str, Any] = {
            "steps": json.loads(row.steps),
            "rate": row.rate,
            "stop_if": row.stop_if,
        }
        said |= {
            **steps,
            "reason": row.reason,
            **json.loads(row.params),
            "before": {},
            "after": {"state": row.state},
        }
    owner = "" if row.scope == EVERYBODY else row.scope
    unit.write_events([NewEvent(kind, owner=owner, actor=actor, data=said)])

"""Answer what a job waits for: `app.tell`. The first answer counts."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.errors import AnswerRefused, NotFound, Refused, unknown_job
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import check_text, format_actor, format_time
from mulligan.core.job import JobRow, State
from mulligan.core.waits import WaitKind, read_waits
from mulligan.events.queries import EventQueries
from mulligan.manifest.arguments import to_json
from mulligan.steps.queries import StepRow
from mulligan.steps.rules import StepKind, StepState, read_detail
from mulligan.storage.base import Store, Transaction
from mulligan.waits.queries import AnswerRow, WaitQueries

MAX_NAME = 200  # characters of a wait
ENDED = frozenset({State.SUCCEEDED, State.CANCELLED})


class Answer(NamedTuple):
    """An answer as the caller gave it."""

    name: str
    value: str  # JSON
    actor: str
    reason: str


def check_answer(name: Any, value: Any, actor: str, reason: str, max_size: int) -> Answer:
    """Return a checked answer. Raise Refused for what the database would refuse."""
    name = check_text("name", name, min_length=1)
    if len(name) > MAX_NAME:
        raise Refused(f"name {name!r:.80}: a wait has at most {MAX_NAME} characters")
    text = to_json(value, f"the answer to {name!r}")
    if len(text) > max_size:
        raise Refused(
            f"the answer to {name!r} is {len(text):,} bytes of JSON; the limit is {max_size:,} "
            "(setting limits.payload). Store the data elsewhere and pass a reference."
        )
    return Answer(name, text, check_text("actor", actor), check_text("reason", reason))


def parse_value(text: str) -> Any:
    """Return what a person typed as an answer: JSON if it is JSON, else the text."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def tell(store: Store, job_id: str, answer: Answer, owner: str | None = None) -> None:
    """Write an answer and make the job that waits for it due, in one transaction.

    Raises AnswerRefused if there was an answer before, or the time for it has passed.
    """
    with store.begin() as tx:
        queries = WaitQueries(tx)
        row = queries.lock_job(job_id)
        if row is None or owner not in (None, row.owner):
            raise unknown_job(job_id)
        _check_open(tx, row, answer.name)
        queries.write_answer(AnswerRow(row.id, answer.name, answer.value, row.token, answer.actor))
        EventQueries(tx).write_events([_answered(row, answer)])
        if open_question(row) == answer.name:
            queries.wake(row.id)


def find_job(store: Store, key: str, owner: str | None = None) -> str:
    """Return the unfinished job with a unique key. Raise NotFound unless there is exactly one."""
    with store.read() as tx:
        found = WaitQueries(tx).find_by_key(key, owner)
    if not found:
        raise NotFound(f"no unfinished job has the unique key {key!r:.80}")
    if len(found) > 1:
        ids = ", ".join(found)
        raise NotFound(f"{len(found)} jobs have the unique key {key!r:.80}: {ids}. Pass job=ID.")
    return found[0]


def _check_open(tx: Transaction, row: JobRow, name: str) -> None:
    """Raise AnswerRefused unless an answer to this wait still counts."""
    step = WaitQueries(tx).get_step(row.id, name)
    if step is not None and step.kind != StepKind.WAIT:
        raise Refused(f"job {row.id}: {name!r} is a {step.kind}, and nobody can answer it")
    if step is not None and step.state == StepState.DONE:
        raise AnswerRefused(f"job {row.id}: {name!r} {_how_it_ended(step)}")
    if row.state in ENDED:
        raise AnswerRefused(f"job {row.id} is {row.state}: it waits for no answer any more")
    until = None if step is None else read_detail(step.detail)["until"]
    if until is not None and _is_over(row, until, tx.now()):
        raise AnswerRefused(
            f"job {row.id}: the time to answer {name!r} ended at {format_time(until)}"
        )


def _is_over(row: JobRow, until: Micros, now: Micros) -> bool:
    """Return whether an attempt has taken the default, or will at once.

    An attempt takes it if it began at the end of the wait or later. The caller has locked the job,
    so none can begin before the answer is written.
    """
    return now >= until or (row.started_at is not None and row.started_at >= until)


def _how_it_ended(step: StepRow) -> str:
    at = format_time(step.ended_at or step.started_at)
    if not step.actor:
        return f"ended with its default at {at}, because nobody had answered in time"
    return f"was answered by {format_actor(step.actor)} at {at}"


def open_question(row: JobRow) -> str:
    """Return the name of the answer that a job waits for; empty if it waits for none."""
    if row.state != State.QUEUED or row.waits is None:
        return ""
    wait = read_waits(row.waits)
    return wait.name if wait.kind == WaitKind.ANSWER else ""


def _answered(row: JobRow, answer: Answer) -> NewEvent:
    before = {"state": row.state, "answered": False}
    data = {
        "kind": row.kind,
        "queue": row.queue,
        "step": answer.name,
        "reason": answer.reason,
        "before": before,
        "after": {"state": row.state, "answered": True},
    }
    return NewEvent(
        EventType.JOB_ANSWERED,
        job_id=row.id,
        batch_id=row.batch_id,
        owner=row.owner,
        actor=answer.actor,
        data=data,
    )

"""A job's life in sentences: from rows to words, and nothing else. The same text for Python, terminal and page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.core.attempt import Ended, Verb
from mulligan.event import Event, EventType
from mulligan.job import SECOND, AttemptRow, Gate, JobRow, Micros, State, to_datetime
from mulligan.policy import sentences
from mulligan.policy.closures import Closure, closure_words, closures
from mulligan.policy.phrase import moment, one_line
from mulligan.policy.redact import safe
from mulligan.policy.retry import EffectivePolicy
from mulligan.policy.stored import FACTS

LATE = 2 * SECOND  # a start that is later than this after its time is worth a word
FIRST, LAST = 60, 340  # sentences kept of a life that is longer
_COUNTED = frozenset({Ended.FAILED, Ended.RETRY})


class Sentence(NamedTuple):
    """One thing that happened. `detail` is of the private half, and there only if it was asked for."""

    at: datetime
    text: str
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """All that is stored about a job, as values."""

    row: JobRow
    attempts: Sequence[AttemptRow]  # oldest first
    events: Sequence[Event]  # its own, oldest first
    policy: EffectivePolicy
    gates: Sequence[Gate] = ()  # as they stand
    news: Sequence[Event] = field(default=())  # what happened to gates while it waited


class _Item(NamedTuple):
    at: Micros
    rank: int  # of what happened in the same instant
    what: AttemptRow | Event | JobRow
    ends: bool = False


def story(life: Life, *, private: bool = False) -> tuple[Sentence, ...]:
    """Every sentence with its moment, in order; the middle of a very long life is left out, and that is said."""
    told = [
        Sentence(to_datetime(at), text, _detail(of) if private and of is not None else ())
        for at, text, of in _tell(life)
        if text
    ]
    return _shortened(told)


def waits(life: Life) -> list[tuple[Micros, Micros]]:
    """From when to when it could have run and did not: worth asking what was closed then."""
    due: Micros | None = _first_due(life)
    found = []
    for item in _items(life):
        if _is_start(item) and due is not None and item.at - due >= LATE:
            found.append((due, item.at))
        due = _due_after(item, due)
    return found


def _tell(life: Life) -> Iterator[tuple[Micros, str, AttemptRow | None]]:
    queued = next((event for event in life.events if event.type == EventType.JOB_QUEUED), None)
    yield life.row.created_at, sentences.enqueued(life.row, queued), None
    if queued is None and life.row.token > 0:
        yield life.row.created_at, "Early events are no longer kept, so not all who moved it may be named here.", None
    shut = closures(life.row, life.gates, life.news)
    failures = _failures(life.attempts)
    due: Micros | None = _first_due(life)
    for item in _items(life):
        if _is_start(item):
            yield from _start(item, due, shut, life.row)
        elif isinstance(item.what, Event):
            yield item.at, sentences.happened(item.what), None
        elif isinstance(item.what, AttemptRow):
            yield item.at, sentences.attempt_ended(item.what, life.row), item.what
            for text in sentences.decided(item.what, failures[item.what.token], life.policy):
                yield item.at, text, None
        due = _due_after(item, due)


def _items(life: Life) -> list[_Item]:
    items = [_Item(attempt.started_at, 2, attempt) for attempt in life.attempts]
    items += [_Item(attempt.ended_at, 0, attempt, ends=True) for attempt in life.attempts]
    items += [_Item(event.at, 1, event) for event in life.events]
    if life.row.state == State.RUNNING and life.row.started_at is not None:
        items.append(_Item(life.row.started_at, 2, life.row))
    return sorted(items, key=lambda item: item[:2])


def _is_start(item: _Item) -> bool:
    return not item.ends and not isinstance(item.what, Event)


def _start(
    item: _Item, due: Micros | None, shut: Sequence[Closure], row: JobRow
) -> Iterator[tuple[Micros, str, AttemptRow | None]]:
    if due is not None and item.at - due >= LATE:
        kept = [closure_words(one, item.at) for one in shut if one.over(due, item.at)]
        yield item.at, sentences.late(due, item.at, kept), None
    if isinstance(item.what, JobRow):
        yield item.at, sentences.began(row), None


def _first_due(life: Life) -> Micros:
    for event in life.events:
        if event.type == EventType.JOB_QUEUED:
            run_at = event.data.get("run_at")
            return max(life.row.created_at, run_at) if isinstance(run_at, int) else life.row.created_at
    return life.row.created_at


def _due_after(item: _Item, due: Micros | None) -> Micros | None:
    """Since when it may run, after this; None: it waits for nobody."""
    if _is_start(item):
        return None
    if isinstance(item.what, AttemptRow):
        return item.what.next_run_at
    if isinstance(item.what, Event) and item.what.type in {EventType.JOB_RETRIED, EventType.JOB_RELEASED}:
        later = item.what.data.get("run_at")
        return (later if isinstance(later, int) else item.at) if "from" in item.what.data else due
    return due


def _failures(attempts: Sequence[AttemptRow]) -> dict[int, sentences.Nth]:
    """By token: counted failures of its generation, up to this attempt and with it."""
    found: dict[int, sentences.Nth] = {}
    so_far: Counter[tuple[int, str, str | None]] = Counter()
    for one in attempts:
        keys = [(one.generation, "", None), (one.generation, "class", one.cls), (one.generation, "code", one.code)]
        if one.ended in _COUNTED and one.verb != Verb.HOLD:  # what a dependency had to answer for
            so_far.update(keys)
        found[one.token] = sentences.Nth(*(so_far[key] for key in keys))
    return found


def _detail(attempt: AttemptRow) -> tuple[str, ...]:
    parts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in _private(attempt).items()}
    return tuple(f"{name}: {safe(value)}" for name, value in parts.items())


def _private(attempt: AttemptRow) -> dict[str, Any]:
    """For people: the facts beside it are for programs."""
    found: dict[str, Any] = json.loads(attempt.private or "{}")
    return {name: value for name, value in found.items() if name != FACTS}


def _shortened(told: list[Sentence]) -> tuple[Sentence, ...]:
    if len(told) <= FIRST + LAST:
        return tuple(told)
    left = len(told) - FIRST - LAST
    gap = Sentence(told[FIRST].at, f"{left} sentences are left out here; app.jobs.attempts(id) has every attempt.")
    return (*told[:FIRST], gap, *told[-LAST:])


# -- as one text ------------------------------------------------------------------------------------
def written(row: JobRow, now_line: str, told: Sequence[Sentence], now: Micros) -> str:
    """What a support person could paste into a mail: what it is, where it stands, what happened."""
    owner = f" of owner {one_line(row.owner)}" if row.owner else ""
    head = f"Job {row.id}{owner}: kind {row.kind}, queue {row.queue}, {row.state}. As of {moment(now)}."
    lines = [head, "", "Now", f"  {now_line}", "", "What happened"]
    for one in told:
        lines.append(f"  {one.at:%Y-%m-%d %H:%M:%S} UTC  {one.text}")
        lines += [f"      {line}" for part in one.detail for line in part.splitlines()]
    return "\n".join(lines) + "\n"

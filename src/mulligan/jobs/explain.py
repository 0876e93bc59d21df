"""Why a job is where it is: its story in sentences, the facts that hold for it, and what could be done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.batches.rules import shown
from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Verb
from mulligan.core.event import Event, EventType
from mulligan.core.format import duration, moment, one_line, safe
from mulligan.core.job import (
    SECOND,
    AttemptRow,
    Gate,
    Job,
    JobRow,
    Micros,
    State,
    WorkerRow,
    to_datetime,
)
from mulligan.core.lifecycle import legal_from
from mulligan.failures.facts import FACTS
from mulligan.guards.describe import GateClosure, closure_words, closures
from mulligan.jobs import sentences
from mulligan.jobs.view import jobs_of, traffic_now
from mulligan.jobs.why import NO_TRAFFIC, JobSurroundings, standing
from mulligan.manifest.declared import stored_kinds, stored_queues
from mulligan.manifest.specs import DEFAULT_TIMEOUT, DELIVERY_QUEUE, KindSpec
from mulligan.retries.backoff import Fixed, Table
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy
from mulligan.storage.base import Transaction
from mulligan.worker.liveness import WorkerStatus, workers_seen

# A job's life in sentences: from rows to words, and nothing else. The same text for Python, terminal and page.

LATE = 2 * SECOND  # a start that is later than this after its time is worth a word
FIRST, LAST = 60, 340  # sentences kept of a life that is longer
_COUNTED = frozenset({Ended.FAILED, Ended.RETRY})


class Sentence(NamedTuple):
    """One thing that happened. `detail` is of the private half, and there only if it was asked for."""

    at: datetime
    text: str
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
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


def story(life: JobHistory, *, private: bool = False) -> tuple[Sentence, ...]:
    """Every sentence with its moment, in order; the middle of a very long life is left out, and that is said."""
    told = [
        Sentence(to_datetime(at), text, _detail(of) if private and of is not None else ())
        for at, text, of in _tell(life)
        if text
    ]
    return _shortened(told)


def waits(life: JobHistory) -> list[tuple[Micros, Micros]]:
    """From when to when it could have run and did not: worth asking what was closed then."""
    due: Micros | None = _first_due(life)
    found = []
    for item in _items(life):
        if _is_start(item) and due is not None and item.at - due >= LATE:
            found.append((due, item.at))
        due = _due_after(item, due)
    return found


def _tell(life: JobHistory) -> Iterator[tuple[Micros, str, AttemptRow | None]]:
    queued = next((event for event in life.events if event.type == EventType.JOB_QUEUED), None)
    yield life.row.created_at, sentences.enqueued(life.row, queued), None
    if queued is None and life.row.token > 0:
        yield (
            life.row.created_at,
            "Early events are no longer kept, so not all who moved it may be named here.",
            None,
        )
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


def _items(life: JobHistory) -> list[_Item]:
    items = [_Item(attempt.started_at, 2, attempt) for attempt in life.attempts]
    items += [_Item(attempt.ended_at, 0, attempt, ends=True) for attempt in life.attempts]
    items += [_Item(event.at, 1, event) for event in life.events]
    if life.row.state == State.RUNNING and life.row.started_at is not None:
        items.append(_Item(life.row.started_at, 2, life.row))
    return sorted(items, key=lambda item: item[:2])


def _is_start(item: _Item) -> bool:
    return not item.ends and not isinstance(item.what, Event)


def _start(
    item: _Item, due: Micros | None, shut: Sequence[GateClosure], row: JobRow
) -> Iterator[tuple[Micros, str, AttemptRow | None]]:
    if due is not None and item.at - due >= LATE:
        kept = [closure_words(one, item.at) for one in shut if one.over(due, item.at)]
        yield item.at, sentences.late(due, item.at, kept), None
    if isinstance(item.what, JobRow):
        yield item.at, sentences.began(row), None


def _first_due(life: JobHistory) -> Micros:
    for event in life.events:
        if event.type == EventType.JOB_QUEUED:
            run_at = event.data.get("run_at")
            return (
                max(life.row.created_at, run_at) if isinstance(run_at, int) else life.row.created_at
            )
    return life.row.created_at


def _due_after(item: _Item, due: Micros | None) -> Micros | None:
    """Since when it may run, after this; None: it waits for nobody."""
    if _is_start(item):
        return None
    if isinstance(item.what, AttemptRow):
        return item.what.next_run_at
    if isinstance(item.what, Event) and item.what.type in {
        EventType.JOB_RETRIED,
        EventType.JOB_RELEASED,
    }:
        later = item.what.data.get("run_at")
        return (later if isinstance(later, int) else item.at) if "from" in item.what.data else due
    return due


def _failures(attempts: Sequence[AttemptRow]) -> dict[int, sentences.Nth]:
    """By token: counted failures of its generation, up to this attempt and with it."""
    found: dict[int, sentences.Nth] = {}
    so_far: Counter[tuple[int, str, str | None]] = Counter()
    for one in attempts:
        keys = [
            (one.generation, "", None),
            (one.generation, "class", one.cls),
            (one.generation, "code", one.code),
        ]
        if one.ended in _COUNTED and one.verb != Verb.HOLD:  # what a dependency had to answer for
            so_far.update(keys)
        found[one.token] = sentences.Nth(*(so_far[key] for key in keys))
    return found


def _detail(attempt: AttemptRow) -> tuple[str, ...]:
    parts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in _private(attempt).items()
    }
    return tuple(f"{name}: {safe(value)}" for name, value in parts.items())


def _private(attempt: AttemptRow) -> dict[str, Any]:
    """For people: the facts beside it are for programs."""
    found: dict[str, Any] = json.loads(attempt.private or "{}")
    return {name: value for name, value in found.items() if name != FACTS}


def _shortened(told: list[Sentence]) -> tuple[Sentence, ...]:
    if len(told) <= FIRST + LAST:
        return tuple(told)
    left = len(told) - FIRST - LAST
    gap = Sentence(
        told[FIRST].at,
        f"{left} sentences are left out here; app.jobs.attempts(id) has every attempt.",
    )
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


# Why a job is where it is: its story in sentences, the facts that hold for it, and what could be done.

BY_HAND = (Verb.RETRY_BY_HAND, Verb.RELEASE, Verb.CANCEL, Verb.DISCARD)
WAITS = 10  # how many waits are looked into, the newest
NEWS = 5_000  # events read at each end of a wait
NEAR = 100  # events before it: a hold is told just before or after the ending that asked for it


class Fact(NamedTuple):
    """One thing that holds for a job, and whose word it is: job, kind, system, or nothing."""

    name: str
    value: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    job: Job
    now: str  # one line: why, until when, what would end it sooner
    story: tuple[Sentence, ...]  # what happened, in order
    text: str  # both, as plain text
    facts: tuple[Fact, ...]
    attempts: tuple[AttemptRow, ...]  # oldest first
    choices: tuple[str, ...]  # what a parked job offers
    moves: tuple[Verb, ...]  # what a person may do to it now

    def __str__(self) -> str:
        return self.text


def explanation(
    unit: Transaction,
    row: JobRow,
    system: RetrySection,
    again: Callable[[str], Job],
    *,
    private: bool = False,
) -> Explanation:
    kinds, now = stored_kinds(unit), unit.now()
    policy = EffectivePolicies(system, kinds, stored_queues(unit, now)).of(row)
    spec = kinds.get(row.kind)
    fit = _fit(unit, row)
    line = standing(row, _scene(unit, row, spec, fit, now))
    life = _life(unit, row, policy)
    told = story(life, private=private)
    return Explanation(
        job=jobs_of(unit, [row], again)[0],
        now=line,
        story=told,
        text=written(row, line, told, now),
        facts=(
            *_so_far(row),
            *_workers(row, fit),
            *_batch(unit, row),
            *_limits(row, spec),
            *_policy(row, policy),
            *_key(row),
        ),
        attempts=tuple(life.attempts),
        choices=_choices(row),
        moves=tuple(
            verb for verb in BY_HAND if verb in legal_from(State(row.state)) or _may_ask(verb, row)
        ),
    )


def _life(unit: Transaction, row: JobRow, policy: EffectivePolicy) -> JobHistory:
    life = JobHistory(row, unit.attempts(row.id), unit.story(row.id), policy)
    late = waits(life)[-WAITS:]
    if not late:
        return life
    return replace(life, gates=unit.gates(), news=_news(unit, life.events, late))


def _news(
    unit: Transaction, events: Sequence[Event], late: Sequence[tuple[Micros, Micros]]
) -> list[Event]:
    """What happened to gates during these waits; ids grow with time, so the job's own events mark where to look."""
    found: dict[int, Event] = {}
    for begin, end in late:
        after = max((event.id for event in events if event.at <= begin), default=0)
        before = min((event.id for event in events if event.at >= end), default=0)
        found |= {
            event.id: event for event in unit.gate_news(max(0, after - NEAR), before + 1, NEWS)
        }
    return [found[key] for key in sorted(found)]


def _scene(
    unit: Transaction, row: JobRow, spec: KindSpec | None, fit: Sequence[WorkerStatus], now: Micros
) -> JobSurroundings:
    waiting = row.state == State.QUEUED
    return JobSurroundings(
        now,
        unit.gates() if waiting else (),
        traffic_now(unit, now) if waiting else NO_TRAFFIC,
        len(fit),
        _free(fit),
        row.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT),
    )


def _fit(unit: Transaction, row: JobRow) -> list[WorkerStatus]:
    """Live workers that take this job, asked only while it waits."""
    if row.state != State.QUEUED:
        return []
    return [seen for seen in workers_seen(unit) if seen.life == "live" and _takes(seen.row, row)]


def _free(fit: Sequence[WorkerStatus]) -> int:
    return sum(max(0, seen.row.concurrency - seen.running) for seen in fit)


def _choices(row: JobRow) -> tuple[str, ...]:
    return tuple(json.loads(row.choices or "[]"))


def _may_ask(verb: Verb, row: JobRow) -> bool:
    """A running job cannot be cancelled at once, but asked to stop."""
    return verb is Verb.CANCEL and row.state == State.RUNNING and row.cancel_reason is None


def _so_far(row: JobRow) -> Iterator[Fact]:
    if row.token:
        yield Fact("so far", so_far(row))


def so_far(job: Job | JobRow) -> str:
    """What a job has taken since it was enqueued: worth a look before it is run again."""
    tries = f"{job.token} attempt{'' if job.token == 1 else 's'}"
    lives = job.generation if job.attempt else job.generation - 1  # this one may not have begun
    within = f" in {lives} lives" if lives > 1 else ""
    return f"{tries}{within}{f', cost {job.cost:g}' if job.cost else ''}"


def _workers(row: JobRow, fit: Sequence[WorkerStatus]) -> Iterator[Fact]:
    if row.state == State.RUNNING:
        yield Fact("worker", row.worker or "")
    elif row.state == State.QUEUED:
        yield Fact(
            "workers for it", f"{len(fit)} live, {_free(fit)} free slots" if fit else "none is live"
        )


def _batch(unit: Transaction, row: JobRow) -> Iterator[Fact]:
    batch = unit.batch(row.batch_id) if row.batch_id is not None else None
    if batch is not None:
        yield Fact(
            "batch",
            f"{batch.name} ({batch.id}), {shown(batch.outcome, expired=batch.expired_at is not None)}",
        )


def _takes(worker: WorkerRow, row: JobRow) -> bool:
    queues = json.loads(worker.queues)
    return row.kind in json.loads(worker.kinds) and (
        not queues or row.queue in {*queues, DELIVERY_QUEUE}
    )


def _limits(row: JobRow, spec: KindSpec | None) -> Iterator[Fact]:
    timeout = row.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT)
    yield Fact(
        "time limit",
        duration(timeout / SECOND),
        "job" if row.timeout else "kind" if spec else "system",
    )
    if spec is None:
        yield Fact("kind", f"no stored manifest knows {row.kind}")
    elif spec.alone or row.alone:
        yield Fact("runs alone", "in a process of its own", "kind" if spec.alone else "job")
    if spec is not None and spec.memory_limit:
        yield Fact("memory limit", f"{spec.memory_limit} bytes", "kind")


def _policy(row: JobRow, policy: EffectivePolicy) -> Iterator[Fact]:
    if not policy.enabled:
        yield Fact("retries", "switched off by retry.enabled", "system")
    yield Fact("retries", _used(row.failures, policy.max_retries), policy.max_retries_from)
    for cls in Cls:
        cap = policy.cap_for(cls)
        if cap is not None and cap < policy.max_retries:
            yield Fact(f"of class {cls}", f"at most {cap}", policy.cap_from(cls) or "")
    yield Fact("losses", _used(row.losses, policy.max_losses), policy.max_losses_from)
    if policy.max_snoozes is not None:
        yield Fact("snoozes", _used(row.snoozes, policy.max_snoozes), policy.max_snoozes_from)
    if policy.max_age is not None:
        yield Fact(
            "gives up", f"{duration(policy.max_age)} after it was enqueued", policy.max_age_from
        )
    yield Fact("backoff", _backoff(policy.backoff), policy.backoff_from)


def _used(used: int, limit: int) -> str:
    return f"{used} of {limit} used"


def _backoff(backoff: Any) -> str:
    if isinstance(backoff, Fixed):
        return f"always {duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        return ", ".join(duration(step) for step in backoff.seconds) + ", then the last again"
    most = duration(backoff.cap)
    return f"{duration(backoff.base)}, then {backoff.factor:g} times the one before, up to {most}; jitter {backoff.jitter}"


def _key(row: JobRow) -> Iterator[Fact]:
    if row.unique_key is not None:
        held = "held" if row.unique_hash is not None else "free again"
        yield Fact("unique key", f"{row.unique_key} ({held})", "job")

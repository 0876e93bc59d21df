"""Explain a job: its story in sentences, why it waits, its policy, and what a person can do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple

from mulligan.batches.queries import BatchQueries
from mulligan.batches.rules import displayed_state
from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Verb
from mulligan.core.durations import SECOND, Micros, to_datetime
from mulligan.core.event import Event, EventType
from mulligan.core.format import format_duration, format_size, format_time, one_line, safe_text
from mulligan.core.job import AttemptRow, Gate, Job, JobRow, JobService, State, WorkerRow
from mulligan.core.lifecycle import legal_verbs
from mulligan.events.queries import EventQueries
from mulligan.failures.facts import FACTS_KEY
from mulligan.guards.describe import GateClosure, describe_closure, find_closures
from mulligan.guards.queries import GuardQueries
from mulligan.jobs import sentences
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.view import load_job_views, load_limit_state
from mulligan.jobs.why import WaitContext, describe_now
from mulligan.manifest.declared import load_kinds, load_queues
from mulligan.manifest.specs import DEFAULT_TIMEOUT, DELIVERY_QUEUE, KindSpec
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy
from mulligan.storage.base import Transaction
from mulligan.worker.service import WorkerStatus, worker_statuses

LATE_AFTER = 2 * SECOND  # A start is reported as late from this delay.
SENTENCES_AT_START = 60  # A longer story loses its middle.
SENTENCES_AT_END = 340
_COUNTED_ENDINGS = frozenset({Ended.FAILED, Ended.RETRY})


# --- Story: stored rows to sentences ---


class Sentence(NamedTuple):
    """One thing that happened. `detail` holds the private part of a failure if requested."""

    at: datetime
    text: str
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Everything stored about one job."""

    row: JobRow
    attempts: Sequence[AttemptRow]  # oldest first
    events: Sequence[Event]  # of this job, oldest first
    policy: EffectivePolicy
    gates: Sequence[Gate] = ()  # current state
    gate_events: Sequence[Event] = field(default=())  # changes of gates while the job waited


class _Rank(IntEnum):
    """Order of entries with the same time."""

    END = 0
    EVENT = 1
    START = 2


class _TimelineEntry(NamedTuple):
    """An event, or the start or end of an attempt. A job row stands for its running attempt."""

    at: Micros
    rank: _Rank
    source: AttemptRow | Event | JobRow


class _Line(NamedTuple):
    """A sentence of the story; `attempt` is set if it is about the end of one."""

    at: Micros
    text: str
    attempt: AttemptRow | None = None


def build_story(history: JobHistory, *, private: bool = False) -> tuple[Sentence, ...]:
    """Return the story in order. A very long story loses its middle, and a sentence says so."""
    story = []
    for line in _story_lines(history):
        if line.text:
            detail = _private_detail(line.attempt) if private and line.attempt is not None else ()
            story.append(Sentence(to_datetime(line.at), line.text, detail))
    return _shorten(story)


def find_late_starts(history: JobHistory) -> list[tuple[Micros, Micros]]:
    """Return (due, started) of every attempt that started late."""
    due: Micros | None = _first_due(history)
    found = []
    for entry in _timeline(history):
        if due is not None and _is_late_start(entry, due):
            found.append((due, entry.at))
        due = _due_after(entry, due)
    return found


def _is_late_start(entry: _TimelineEntry, due: Micros) -> bool:
    return entry.rank is _Rank.START and entry.at - due >= LATE_AFTER


def _story_lines(history: JobHistory) -> Iterator[_Line]:
    row = history.row
    yield from _enqueue_lines(history)
    closures = find_closures(row, history.gates, history.gate_events)
    failure_numbers = _number_failures(history.attempts)
    due: Micros | None = _first_due(history)
    for entry in _timeline(history):
        source = entry.source
        if entry.rank is _Rank.START:
            yield from _start_lines(entry, due, closures, row)
        elif isinstance(source, Event):
            yield _Line(entry.at, sentences.describe_event(source))
        elif isinstance(source, AttemptRow):
            yield _Line(entry.at, sentences.describe_attempt(source, row), source)
            number = failure_numbers[source.token]
            for text in sentences.describe_decision(source, number, history.policy):
                yield _Line(entry.at, text)
        due = _due_after(entry, due)


def _enqueue_lines(history: JobHistory) -> Iterator[_Line]:
    row = history.row
    queued = _queued_event(history)
    yield _Line(row.created_at, sentences.describe_enqueue(row, queued))
    if queued is None and row.token > 0:
        text = "Early events were deleted by retention, so some actions may be missing here."
        yield _Line(row.created_at, text)


def _queued_event(history: JobHistory) -> Event | None:
    for event in history.events:
        if event.type == EventType.JOB_QUEUED:
            return event
    return None


def _timeline(history: JobHistory) -> list[_TimelineEntry]:
    row = history.row
    entries = [_TimelineEntry(event.at, _Rank.EVENT, event) for event in history.events]
    for attempt in history.attempts:
        entries.append(_TimelineEntry(attempt.started_at, _Rank.START, attempt))
        entries.append(_TimelineEntry(attempt.ended_at, _Rank.END, attempt))
    if row.state == State.RUNNING and row.started_at is not None:
        entries.append(_TimelineEntry(row.started_at, _Rank.START, row))
    return sorted(entries, key=lambda entry: (entry.at, entry.rank))


def _start_lines(
    entry: _TimelineEntry, due: Micros | None, closures: Sequence[GateClosure], row: JobRow
) -> Iterator[_Line]:
    if due is not None and _is_late_start(entry, due):
        relevant = [closure for closure in closures if closure.overlaps(due, entry.at)]
        delays = [describe_closure(closure, entry.at) for closure in relevant]
        yield _Line(entry.at, sentences.describe_late_start(due, entry.at, delays))
    if isinstance(entry.source, JobRow):
        yield _Line(entry.at, sentences.describe_running_attempt(row))


def _first_due(history: JobHistory) -> Micros:
    created_at = history.row.created_at
    queued = _queued_event(history)
    run_at = queued.data.get("run_at") if queued is not None else None
    return max(created_at, run_at) if isinstance(run_at, int) else created_at


def _due_after(entry: _TimelineEntry, due: Micros | None) -> Micros | None:
    """Return since when the job may start after this entry; None if it does not wait."""
    if entry.rank is _Rank.START:
        return None
    source = entry.source
    if isinstance(source, AttemptRow):
        return source.next_run_at
    if isinstance(source, Event) and source.type in _REQUEUE_EVENTS and "from" in source.data:
        run_at = source.data.get("run_at")
        return run_at if isinstance(run_at, int) else entry.at
    return due


_REQUEUE_EVENTS = frozenset({EventType.JOB_RETRIED, EventType.JOB_RELEASED})


def _number_failures(attempts: Sequence[AttemptRow]) -> dict[int, sentences.FailureNumber]:
    """Return by token: counted failures of the generation up to and including this attempt."""
    numbers: dict[int, sentences.FailureNumber] = {}
    totals: Counter[int] = Counter()
    by_class: Counter[tuple[int, str | None]] = Counter()
    by_code: Counter[tuple[int, str | None]] = Counter()
    for attempt in attempts:
        generation = attempt.generation
        cls = (generation, attempt.cls)
        code = (generation, attempt.code)
        # A failure that was held or given back is not charged to the job.
        uncharged = attempt.verb in {Verb.HOLD, Verb.GIVE_BACK}
        if attempt.ended in _COUNTED_ENDINGS and not uncharged:
            totals[generation] += 1
            by_class[cls] += 1
            by_code[code] += 1
        number = sentences.FailureNumber(totals[generation], by_class[cls], by_code[code])
        numbers[attempt.token] = number
    return numbers


def _private_detail(attempt: AttemptRow) -> tuple[str, ...]:
    """Return the private part of a failure as lines. Facts are for programs and left out."""
    private: dict[str, Any] = json.loads(attempt.private or "{}")
    lines = []
    for name, value in private.items():
        if name != FACTS_KEY:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"{name}: {safe_text(text)}")
    return tuple(lines)


def _shorten(story: list[Sentence]) -> tuple[Sentence, ...]:
    omitted = len(story) - SENTENCES_AT_START - SENTENCES_AT_END
    if omitted <= 0:
        return tuple(story)
    text = f"{omitted:,} sentences are omitted here. app.jobs.attempts(id) returns every attempt."
    gap = Sentence(story[SENTENCES_AT_START].at, text)
    return (*story[:SENTENCES_AT_START], gap, *story[-SENTENCES_AT_END:])


# --- Story as one text ---
def format_story(row: JobRow, now_line: str, story: Sequence[Sentence], now: Micros) -> str:
    """Return a text to paste into a mail: what the job is, its status, and what happened."""
    owner = f" of owner {one_line(row.owner)}" if row.owner else ""
    job = f"Job {row.id}{owner}: kind {row.kind}, queue {row.queue}, {row.state}."
    lines = [f"{job} As of {format_time(now)}.", "", "Now", f"  {now_line}", "", "What happened"]
    for sentence in story:
        lines.append(f"  {sentence.at:%Y-%m-%d %H:%M:%S} UTC  {sentence.text}")
        for part in sentence.detail:
            lines += [f"      {line}" for line in part.splitlines()]
    return "\n".join(lines) + "\n"


# --- Explanation ---
MANUAL_VERBS = (Verb.RETRY_BY_HAND, Verb.RELEASE, Verb.CANCEL, Verb.DISCARD)
MAX_WAITS_EXPLAINED = 10  # the newest ones
MAX_GATE_EVENTS = 5_000  # events read per wait
GATE_EVENT_MARGIN = 100  # A hold may be written just before the ending that caused it.


class Fact(NamedTuple):
    """One value that applies to a job, and the scope that set it: job, kind, queue or system."""

    name: str
    value: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `jobs explain` shows."""

    job: Job
    now: str  # one line: why, until when, what would end it sooner
    story: tuple[Sentence, ...]  # oldest first
    text: str  # `now` and `story` as plain text
    facts: tuple[Fact, ...]
    attempts: tuple[AttemptRow, ...]  # oldest first
    choices: tuple[str, ...]  # choices that a parked job offers
    moves: tuple[Verb, ...]  # manual actions that are possible now

    def __str__(self) -> str:
        return self.text


def explain_job(
    tx: Transaction,
    row: JobRow,
    system: RetrySection,
    service: JobService,
    *,
    private: bool = False,
) -> Explanation:
    """Read everything about a job and explain it."""
    now = tx.now()
    kinds = load_kinds(tx)
    spec = kinds.get(row.kind)
    policy = EffectivePolicies(system, kinds, load_queues(tx, now)).for_job(row)
    workers = _matching_workers(tx, row)
    now_line = describe_now(row, _load_wait_context(tx, row, spec, workers, now))
    history = _load_history(tx, row, policy)
    story = build_story(history, private=private)
    job = load_job_views(tx, [row], service)[0]
    facts = [
        *_effort_facts(row),
        *_worker_facts(row, workers),
        *_batch_facts(tx, row),
        *_limit_facts(row, spec),
        *_policy_facts(row, policy, job.retries),
        *_unique_key_facts(row),
    ]
    return Explanation(
        job=job,
        now=now_line,
        story=story,
        text=format_story(row, now_line, story, now),
        facts=tuple(facts),
        attempts=tuple(history.attempts),
        choices=tuple(json.loads(row.choices or "[]")),
        moves=_possible_moves(row),
    )


def _possible_moves(row: JobRow) -> tuple[Verb, ...]:
    possible = set(legal_verbs(State(row.state)))
    if row.state == State.RUNNING and row.cancel_reason is None:
        possible.add(Verb.CANCEL)  # asks its code to stop
    return tuple(verb for verb in MANUAL_VERBS if verb in possible)


def _load_history(tx: Transaction, row: JobRow, policy: EffectivePolicy) -> JobHistory:
    history = JobHistory(
        row,
        JobQueries(tx).list_attempts(row.id),
        EventQueries(tx).list_events_of_job(row.id),
        policy,
    )
    waits = find_late_starts(history)[-MAX_WAITS_EXPLAINED:]
    if not waits:
        return history
    gate_events = _load_gate_events(tx, history.events, waits)
    return replace(history, gates=GuardQueries(tx).list_gates(), gate_events=gate_events)


def _load_gate_events(
    tx: Transaction, events: Sequence[Event], waits: Sequence[tuple[Micros, Micros]]
) -> list[Event]:
    """Return the changes of gates during these waits.

    Event ids grow with time, so the job's events around a wait bound the ids to read.
    """
    found: dict[int, Event] = {}
    for start, end in waits:
        ids_before = [event.id for event in events if event.at <= start]
        ids_after = [event.id for event in events if event.at >= end]
        first = max(0, max(ids_before, default=0) - GATE_EVENT_MARGIN)
        last = min(ids_after, default=0) + 1
        for event in EventQueries(tx).list_gate_events(first, last, MAX_GATE_EVENTS):
            found[event.id] = event
    return [found[event_id] for event_id in sorted(found)]


def _load_wait_context(
    tx: Transaction,
    row: JobRow,
    spec: KindSpec | None,
    workers: Sequence[WorkerStatus],
    now: Micros,
) -> WaitContext:
    kind_timeout = DEFAULT_TIMEOUT if spec is None else spec.timeout
    context = WaitContext(
        now,
        workers=len(workers),
        free_slots=_free_slots(workers),
        timeout=row.timeout or kind_timeout,
    )
    if row.state != State.QUEUED:
        return context
    return context._replace(
        gates=GuardQueries(tx).list_gates(), limit_state=load_limit_state(tx, now)
    )


def _matching_workers(tx: Transaction, row: JobRow) -> list[WorkerStatus]:
    """Return live workers that can run this job; read only while it waits."""
    if row.state != State.QUEUED:
        return []
    return [
        status
        for status in worker_statuses(tx)
        if status.life == "live" and _takes(status.row, row)
    ]


def _free_slots(workers: Sequence[WorkerStatus]) -> int:
    return sum(max(0, status.row.concurrency - status.running) for status in workers)


def _effort_facts(row: JobRow) -> Iterator[Fact]:
    if row.token:
        yield Fact("so far", describe_effort(row))


def describe_effort(job: Job | JobRow) -> str:
    """Return what a job has taken since it was enqueued: attempts, generations and cost."""
    text = "1 attempt" if job.token == 1 else f"{job.token:,} attempts"
    generations = job.generation if job.attempt else job.generation - 1  # without one not started
    if generations > 1:
        text += f" in {generations} generations"
    if job.cost:
        text += f", cost {job.cost:g}"
    return text


def _worker_facts(row: JobRow, workers: Sequence[WorkerStatus]) -> Iterator[Fact]:
    if row.state == State.RUNNING:
        yield Fact("worker", row.worker or "")
    elif row.state == State.QUEUED and workers:
        yield Fact("matching workers", f"{len(workers)} live, {_free_slots(workers)} free slots")
    elif row.state == State.QUEUED:
        yield Fact("matching workers", "none is live")


def _batch_facts(tx: Transaction, row: JobRow) -> Iterator[Fact]:
    batch = BatchQueries(tx).get_batch(row.batch_id) if row.batch_id is not None else None
    if batch is not None:
        state = displayed_state(batch.outcome, expired=batch.expired_at is not None)
        yield Fact("batch", f"{batch.name} ({batch.id}), {state}")


def _takes(worker: WorkerRow, row: JobRow) -> bool:
    if row.kind not in json.loads(worker.kinds):
        return False
    queues = json.loads(worker.queues)
    return not queues or row.queue in {*queues, DELIVERY_QUEUE}


def _limit_facts(row: JobRow, spec: KindSpec | None) -> Iterator[Fact]:
    yield _timeout_fact(row, spec)
    if spec is None:
        yield Fact("kind", f"no stored manifest has kind {row.kind}")
        return
    if spec.alone:
        yield Fact("runs alone", "in its own process", "kind")
    elif row.alone:
        yield Fact("runs alone", "in its own process", "job")
    if spec.memory_limit:
        yield Fact("memory limit", format_size(spec.memory_limit), "kind")


def _timeout_fact(row: JobRow, spec: KindSpec | None) -> Fact:
    timeout = DEFAULT_TIMEOUT
    origin = "system"
    if row.timeout:
        timeout = row.timeout
        origin = "job"
    elif spec is not None:
        timeout = spec.timeout
        origin = "kind"
    return Fact("time limit", format_duration(timeout / SECOND), origin)


def _policy_facts(row: JobRow, policy: EffectivePolicy, retries: int) -> Iterator[Fact]:
    if not policy.enabled:
        yield Fact("retries", "switched off by retry.enabled", "system")
    yield Fact("retries", _used(retries, policy.max_retries), policy.max_retries_from)
    for cls in Cls:
        limit = policy.class_limit(cls)
        if limit is not None and limit < policy.max_retries:
            origin = policy.class_limit_scope(cls) or ""
            yield Fact(f"retries of class {cls}", f"at most {limit}", origin)
    yield Fact("losses", _used(row.losses, policy.max_losses), policy.max_losses_from)
    if policy.max_snoozes is not None:
        yield Fact("snoozes", _used(row.snoozes, policy.max_snoozes), policy.max_snoozes_from)
    if policy.max_age is not None:
        age = f"{format_duration(policy.max_age)} after it was enqueued"
        yield Fact("no retry later than", age, policy.max_age_from)
    yield Fact("backoff", policy.backoff.describe(), policy.backoff_from)


def _used(used: int, limit: int) -> str:
    return f"{used} of {limit} used"


def _unique_key_facts(row: JobRow) -> Iterator[Fact]:
    if row.unique_key is not None:
        status = "reserved" if row.unique_hash is not None else "free"
        yield Fact("unique key", f"{row.unique_key} ({status})", "job")

"""Why a job is where it is: its story in sentences, the facts that hold for it, and what could be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mulligan.config import Retry
from mulligan.core.attempt import Cls, Verb
from mulligan.engine.declared import stored_kinds, stored_queues
from mulligan.engine.kinds import DEFAULT_TIMEOUT, DELIVERY_QUEUE, KindSpec
from mulligan.engine.layers import Layers
from mulligan.engine.view import jobs_of, traffic_now
from mulligan.engine.workers import Seen, workers_seen
from mulligan.event import Event
from mulligan.job import SECOND, AttemptRow, Job, JobRow, Micros, State, WorkerRow
from mulligan.policy.backoff import Fixed, Table
from mulligan.policy.batch import shown
from mulligan.policy.lifecycle import legal_from
from mulligan.policy.phase import NO_TRAFFIC
from mulligan.policy.phrase import duration
from mulligan.policy.retry import EffectivePolicy
from mulligan.policy.standing import Scene, standing
from mulligan.policy.story import Life, Sentence, story, waits, written
from mulligan.store.base import Unit

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
    unit: Unit, row: JobRow, system: Retry, again: Callable[[str], Job], *, private: bool = False
) -> Explanation:
    kinds, now = stored_kinds(unit), unit.now()
    policy = Layers(system, kinds, stored_queues(unit, now)).of(row)
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
        moves=tuple(verb for verb in BY_HAND if verb in legal_from(State(row.state)) or _may_ask(verb, row)),
    )


def _life(unit: Unit, row: JobRow, policy: EffectivePolicy) -> Life:
    life = Life(row, unit.attempts(row.id), unit.story(row.id), policy)
    late = waits(life)[-WAITS:]
    if not late:
        return life
    return replace(life, gates=unit.gates(), news=_news(unit, life.events, late))


def _news(unit: Unit, events: Sequence[Event], late: Sequence[tuple[Micros, Micros]]) -> list[Event]:
    """What happened to gates during these waits; ids grow with time, so the job's own events mark where to look."""
    found: dict[int, Event] = {}
    for begin, end in late:
        after = max((event.id for event in events if event.at <= begin), default=0)
        before = min((event.id for event in events if event.at >= end), default=0)
        found |= {event.id: event for event in unit.gate_news(max(0, after - NEAR), before + 1, NEWS)}
    return [found[key] for key in sorted(found)]


def _scene(unit: Unit, row: JobRow, spec: KindSpec | None, fit: Sequence[Seen], now: Micros) -> Scene:
    waiting = row.state == State.QUEUED
    return Scene(
        now,
        unit.gates() if waiting else (),
        traffic_now(unit, now) if waiting else NO_TRAFFIC,
        len(fit),
        _free(fit),
        row.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT),
    )


def _fit(unit: Unit, row: JobRow) -> list[Seen]:
    """Live workers that take this job, asked only while it waits."""
    if row.state != State.QUEUED:
        return []
    return [seen for seen in workers_seen(unit) if seen.life == "live" and _takes(seen.row, row)]


def _free(fit: Sequence[Seen]) -> int:
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


def _workers(row: JobRow, fit: Sequence[Seen]) -> Iterator[Fact]:
    if row.state == State.RUNNING:
        yield Fact("worker", row.worker or "")
    elif row.state == State.QUEUED:
        yield Fact("workers for it", f"{len(fit)} live, {_free(fit)} free slots" if fit else "none is live")


def _batch(unit: Unit, row: JobRow) -> Iterator[Fact]:
    batch = unit.batch(row.batch_id) if row.batch_id is not None else None
    if batch is not None:
        yield Fact("batch", f"{batch.name} ({batch.id}), {shown(batch.outcome, expired=batch.expired_at is not None)}")


def _takes(worker: WorkerRow, row: JobRow) -> bool:
    queues = json.loads(worker.queues)
    return row.kind in json.loads(worker.kinds) and (not queues or row.queue in {*queues, DELIVERY_QUEUE})


def _limits(row: JobRow, spec: KindSpec | None) -> Iterator[Fact]:
    timeout = row.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT)
    yield Fact("time limit", duration(timeout / SECOND), "job" if row.timeout else "kind" if spec else "system")
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
        yield Fact("gives up", f"{duration(policy.max_age)} after it was enqueued", policy.max_age_from)
    yield Fact("backoff", _backoff(policy.backoff), policy.backoff_from)


def _used(used: int, limit: int) -> str:
    return f"{used} of {limit} used"


def _backoff(backoff: Any) -> str:
    if isinstance(backoff, Fixed):
        return f"always {duration(backoff.seconds)}"
    if isinstance(backoff, Table):
        return ", ".join(duration(step) for step in backoff.seconds) + ", then the last again"
    most = duration(backoff.cap)
    return (
        f"{duration(backoff.base)}, then {backoff.factor:g} times the one before, up to {most}; jitter {backoff.jitter}"
    )


def _key(row: JobRow) -> Iterator[Fact]:
    if row.unique_key is not None:
        held = "held" if row.unique_hash is not None else "free again"
        yield Fact("unique key", f"{row.unique_key} ({held})", "job")

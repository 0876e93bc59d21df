"""One job with all that each history says of it, and what holds for the whole database while it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.event import Event, EventType
from mulligan.job import AttemptRow, Gate, JobRow, Micros, WorkerRow
from mulligan.store.verifying import Checkpointed, WholeRow

QUEUED = EventType.JOB_QUEUED
FOR_EVER = 1 << 62


class Closure(NamedTuple):
    """A queue or a kind was closed from one event to another, and no longer than `until`."""

    first: int
    since: Micros
    last: int
    until: Micros


@dataclass
class World:
    """What is asked once, before the first job."""

    now: Micros
    gone: int  # events up to here are gone, but for what people did
    one_clock: bool  # all times in the store are of one clock: the server's
    restored: bool  # from a backup: tokens were lifted
    workers: Mapping[str, WorkerRow] = field(default_factory=dict)
    lost: Mapping[str, Event] = field(default_factory=dict)  # by worker: when it was declared lost
    gates: Sequence[Gate] = ()
    closures: Mapping[tuple[str, str], Sequence[Closure]] = field(default_factory=dict)
    live_kinds: frozenset[str] = frozenset()
    limited: frozenset[tuple[str, str]] = frozenset()  # queues and dependencies that let only so many through
    timeouts: Mapping[str, Micros | None] = field(default_factory=dict)
    slack: Micros = 0  # how long after the faults something may still be on its way


@dataclass(frozen=True)
class Case:
    whole: WholeRow
    events: Sequence[Event]  # of the job itself, in order, none from before the log begins
    attempts: Sequence[AttemptRow]
    checkpoints: Sequence[Checkpointed]
    calls: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    complete: bool  # its story is here from its beginning

    @property
    def row(self) -> JobRow:
        return self.whole.job

    @property
    def id(self) -> str:
        return self.whole.job.id


def case_of(
    whole: WholeRow,
    events: Sequence[Event],
    attempts: Sequence[AttemptRow],
    checkpoints: Sequence[Checkpointed],
    calls: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    gone: int,
) -> Case:
    story = [event for event in events if event.id > gone and event.type.startswith("job.")]
    begun = not whole.announced or any(event.type == QUEUED for event in story)
    return Case(whole, story, attempts, checkpoints, calls, lines, complete=begun or not gone)

"""What must hold, each with its sentence. docs/operate/verify.md prints this table; the checker names these ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import format_time
from mulligan.core.job import AttemptRow, Gate, JobRow, WorkerRow
from mulligan.storage.history_queries import CheckpointRow, WholeJobRow

# One job with all that each history says of it, and what holds for the whole database while it is judged.

QUEUED = EventType.JOB_QUEUED
FOR_EVER = 1 << 62


class ClosedPeriod(NamedTuple):
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
    closures: Mapping[tuple[str, str], Sequence[ClosedPeriod]] = field(default_factory=dict)
    live_kinds: frozenset[str] = frozenset()
    limited: frozenset[tuple[str, str]] = (
        frozenset()
    )  # queues and dependencies that let only so many through
    timeouts: Mapping[str, Micros | None] = field(default_factory=dict)
    slack: Micros = 0  # how long after the faults something may still be on its way


@dataclass(frozen=True)
class JobCase:
    whole: WholeJobRow
    events: Sequence[Event]  # of the job itself, in order, none from before the log begins
    attempts: Sequence[AttemptRow]
    checkpoints: Sequence[CheckpointRow]
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
    whole: WholeJobRow,
    events: Sequence[Event],
    attempts: Sequence[AttemptRow],
    checkpoints: Sequence[CheckpointRow],
    calls: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    gone: int,
) -> JobCase:
    story = [event for event in events if event.id > gone and event.type.startswith("job.")]
    begun = not whole.announced or any(event.type == QUEUED for event in story)
    return JobCase(whole, story, attempts, checkpoints, calls, lines, complete=begun or not gone)


# What must hold, each with its sentence. docs/operate/verify.md prints this table; the checker names these ids.

STORE, CLIENTS, WITNESS = "store", "clients", "witness"


class Invariant(NamedTuple):
    id: str
    sentence: str
    needs: tuple[str, ...] = (STORE,)
    settled: bool = False  # holds only once the faults have stopped


SAFETY = (
    Invariant(
        "S1",
        "what a client was told is accepted exists, and nothing exists that nobody asked for",
        (STORE, CLIENTS),
    ),
    Invariant(
        "S2", "a generation ends once, and a new one begins only by a retry that names who did it"
    ),
    Invariant(
        "S3", "what has ended stays ended: only a retry by hand, a discard or retention follow"
    ),
    Invariant(
        "S4", "every move is one of the documented ones, from the state the move before it led to"
    ),
    Invariant(
        "S5", "attempts count 1, 2, 3 … within a generation, tokens grow over the whole life"
    ),
    Invariant(
        "S6",
        "one attempt at a time: a job is not given out again before its attempt has ended or was lost",
    ),
    Invariant(
        "S7",
        "who ends an attempt, or keeps a checkpoint of it, holds its lease: its worker and its token",
    ),
    Invariant(
        "S8",
        "handlers of one job run side by side only if the earlier one's lease was lost or given back",
        (STORE, WITNESS),
    ),
    Invariant(
        "S9",
        "succeeded means its handler came to its end, and the result is the one it returned",
        (STORE, WITNESS),
    ),
    Invariant(
        "S10",
        "only what runs has a lease, of a worker that is not closed, renewed by the clock that judges it",
    ),
    Invariant("S11", "result, error, times and keys are set in exactly the states that have them"),
    Invariant(
        "S12", "failures and losses are counted, each once, and no job goes on beyond its limits"
    ),
    Invariant(
        "S13",
        "nothing starts before its time, after its deadline, or while its queue or kind is closed",
    ),
    Invariant(
        "S14",
        "the wait before a retry is never negative, and the attempt after it does not come sooner",
    ),
    Invariant("S15", "no more jobs run at once than the limit of their queue or dependency allows"),
    Invariant(
        "S16",
        "what was cancelled does not start again, and what was asked to stop ends or had ended",
    ),
    Invariant(
        "S17",
        "what was enqueued in a transaction that was rolled back never appears",
        (STORE, CLIENTS),
    ),
    Invariant("S18", "the story of a job, told by its events alone, comes to what its row says"),
)

TOGETHER = (
    Invariant("U1", "one unique key, one job at a time in the states its key covers"),
    Invariant(
        "U2",
        "of those who enqueue one key at once, all are told of a job that exists",
        (STORE, CLIENTS),
    ),
    Invariant(
        "U3",
        "who names a key gets the job that has it, with the payload that was asked for",
        (STORE, CLIENTS),
    ),
    Invariant("C1", "a slot of a schedule has one job, or was skipped and that was told"),
    Invariant("B1", "the numbers a batch tells are those of its members"),
    Invariant(
        "B2",
        "a batch comes to an outcome once per generation, when it is sealed and no member is unfinished",
    ),
    Invariant("B3", "the outcome of a batch is the one its members make"),
)

OUTBOX = (
    Invariant("N1", "every event that somebody hears has one message on its way to them"),
    Invariant(
        "N2", "every message ends delivered or dead, or its subscription is off", settled=True
    ),
    Invariant(
        "N3",
        "what was delivered was received, each copy with the same id and body",
        (STORE, CLIENTS),
    ),
    Invariant("N4", "nothing is received that no event asked for", (STORE, CLIENTS)),
    Invariant(
        "N5", "who follows the log sees ids that only grow, and leaves none out", (STORE, CLIENTS)
    ),
)

LIVENESS = (
    Invariant(
        "L1",
        "every job has ended, waits for a time to come, or is held by something that has a name",
        settled=True,
    ),
    Invariant("L2", "what runs is run by a worker that lives", settled=True),
    Invariant("L4", "a breaker that is open looks again when its time has come", settled=True),
)

STORAGE = (Invariant("D1", "the database finds no damage in its file"),)

ALL = {one.id: one for one in (*SAFETY, *TOGETHER, *OUTBOX, *LIVENESS, *STORAGE)}

# Why some of what can be asked of a job system is not asked by this program.
ELSEWHERE = {
    "L3": "how soon a worker takes a fresh job is a measurement, and needs one: tools/bench/ and the fault storm take it",
    "L5": "how fast a backlog shrinks is a measurement too",
    "D2": "both stores fed the same script: needs two stores, so the simulation does it",
    "D3": "the size of logs and tables is watched while faults are made, by the fault storm",
    "T1": "what one owner sees of another is asked of every door, by the tests of security",
}


# What the checker finds: which invariant is broken, by which job, and what each history says of it.

KEPT = 50  # of each invariant; all are counted


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    what: str
    subject: str = ""  # a job, a batch, a schedule, a subscription
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)  # history → lines
    story: str = ""

    @property
    def sentence(self) -> str:
        return ALL[self.invariant].sentence

    def to_plain(self) -> dict[str, Any]:
        return {
            "invariant": self.invariant,
            "sentence": self.sentence,
            "what": self.what,
            "subject": self.subject,
            "evidence": {name: list(lines) for name, lines in self.evidence.items()},
            "story": self.story,
        }


@dataclass
class Findings:
    """Gathers them; so many that nobody would read them are only counted."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: list[Violation] = field(default_factory=list)

    def add(self, invariant: str, what: str, subject: str = "", **evidence: Sequence[str]) -> None:
        self.counts[invariant] += 1
        if self.counts[invariant] <= KEPT:
            told = {name: tuple(lines) for name, lines in evidence.items() if lines}
            self.kept.append(Violation(invariant, what, subject, told))


def event_line(event: Event) -> str:
    fence = f" attempt {event.attempt} token {event.token}" if event.token is not None else ""
    actor = f" by {event.actor}" if event.actor else ""
    worker = f" on {event.data['worker']}" if "worker" in event.data else ""
    return f"#{event.id} {format_time(event.at)} {event.type}{fence}{worker}{actor}"


def attempt_line(row: AttemptRow) -> str:
    by = "" if row.settled_by == row.worker else f", settled by {row.settled_by}"
    return (
        f"attempt {row.attempt} token {row.token} of generation {row.generation} on {row.worker}{by}: "
        f"{row.ended} → {row.verb}, {format_time(row.started_at)} to {format_time(row.ended_at)}"
    )


def witness_line(line: Mapping[str, Any]) -> str:
    return f"token {line['token']} {line['what']} pid {line['pid']} at {line['ns']} ns"


def call_line(line: Mapping[str, Any]) -> str:
    error = f" ({line['error']})" if line.get("error") else ""
    return f"{line['client']} {line['what']} {line['begin_ns']}–{line['end_ns'] or '…'} ns: told {line['told']}{error}"

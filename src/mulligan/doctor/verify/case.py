"""Invariants, the data they are checked against, and the violations found.

docs/contributors/invariants.md prints the table of invariants; findings refer to them by id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import format_time
from mulligan.core.job import AttemptRow, Gate, JobRow, WorkerRow
from mulligan.doctor.verify.queries import CheckpointRow, WholeJobRow

# --- Data to check ---

FOREVER = 1 << 62  # as an event id or a time: not ended yet


class ClosedPeriod(NamedTuple):
    """A period in which a queue or a kind was closed: between two events, at most until a time."""

    first: int
    since: Micros
    last: int
    until: Micros


@dataclass
class VerifyContext:
    """Facts about the whole database, read once before the first job."""

    now: Micros
    pruned_upto: int  # events up to this id were pruned, except actions of people
    single_clock: bool  # all times in the database are from one clock, the server's
    restored: bool  # the database was restored from a backup, so tokens were raised
    workers: Mapping[str, WorkerRow] = field(default_factory=dict)
    lost_workers: Mapping[str, Event] = field(default_factory=dict)  # worker → its event
    gates: Sequence[Gate] = ()
    closures: Mapping[tuple[str, str], Sequence[ClosedPeriod]] = field(default_factory=dict)
    live_kinds: frozenset[str] = frozenset()  # kinds that a live worker can run
    limited: frozenset[tuple[str, str]] = frozenset()  # queues and dependencies with a limit
    timeouts: Mapping[str, Micros | None] = field(default_factory=dict)
    slack: Micros = 0  # how long after the last fault something may still be in progress


@dataclass(frozen=True)
class JobCase:
    """One job with everything that the database and the files record about it."""

    whole: WholeJobRow
    events: Sequence[Event]  # the job's own events, in order, without pruned ones
    attempts: Sequence[AttemptRow]
    checkpoints: Sequence[CheckpointRow]
    calls: Sequence[Mapping[str, Any]]
    witness_lines: Sequence[Mapping[str, Any]]
    is_complete: bool  # the events begin with the enqueue of the job

    @property
    def row(self) -> JobRow:
        return self.whole.job

    @property
    def id(self) -> str:
        return self.whole.job.id


def build_case(
    whole: WholeJobRow,
    events: Sequence[Event],
    attempts: Sequence[AttemptRow],
    checkpoints: Sequence[CheckpointRow],
    calls: Sequence[Mapping[str, Any]],
    witness_lines: Sequence[Mapping[str, Any]],
    pruned_upto: int,
) -> JobCase:
    """Combine the records of a job. Events up to `pruned_upto` are ignored: some are missing."""
    job_events = [
        event for event in events if event.id > pruned_upto and event.type.startswith("job.")
    ]
    has_beginning = not whole.announced or any(
        event.type == EventType.JOB_QUEUED for event in job_events
    )
    return JobCase(
        whole=whole,
        events=job_events,
        attempts=attempts,
        checkpoints=checkpoints,
        calls=calls,
        witness_lines=witness_lines,
        is_complete=has_beginning or not pruned_upto,
    )


# --- Invariants ---

STORE = "store"
CLIENTS = "clients"
WITNESS = "witness"


class Invariant(NamedTuple):
    """A guarantee that must hold, and the histories needed to check it."""

    id: str
    sentence: str
    needs: tuple[str, ...] = (STORE,)
    settled: bool = False  # holds only after the faults have stopped


SAFETY = (
    Invariant(
        "S1",
        "every job that was accepted exists, and every job was requested by a client",
        (STORE, CLIENTS),
    ),
    Invariant(
        "S2",
        "a generation ends once; a new one begins only with a manual retry that names its actor",
    ),
    Invariant(
        "S3",
        "a job that has ended stays ended; only a manual retry, a discard, its undoing or "
        "retention may follow",
    ),
    Invariant("S4", "every state change is a documented move from the state before it"),
    Invariant(
        "S5",
        "attempts count 1, 2, 3 … within a generation; tokens grow over the whole life of a job",
    ),
    Invariant(
        "S6",
        "one attempt at a time: a job is claimed again only after its attempt ended or was lost",
    ),
    Invariant(
        "S7",
        "an attempt is ended, and its checkpoints are written, by the holder of its lease: "
        "its worker and token",
    ),
    Invariant(
        "S8",
        "two handlers of one job overlap only if the lease of the earlier one was lost or released",
        (STORE, WITNESS),
    ),
    Invariant(
        "S9",
        "a succeeded job has a handler that finished, and stores the result it returned",
        (STORE, WITNESS),
    ),
    Invariant(
        "S10",
        "only running jobs have a lease, held by an open worker and renewed by the clock "
        "that expires it",
    ),
    Invariant("S11", "result, error, times and keys are set in exactly the states that have them"),
    Invariant(
        "S12",
        "every failure and every loss is counted once, and no job continues beyond its limits",
    ),
    Invariant(
        "S13",
        "no job starts before its due time, after its deadline, or while its queue or kind "
        "is closed",
    ),
    Invariant(
        "S14",
        "the delay before a retry is never negative, and the next attempt does not start sooner",
    ),
    Invariant("S15", "no more jobs run at once than the limit of their queue or dependency allows"),
    Invariant(
        "S16",
        "a cancelled job does not start again; a running one that is cancelled ends as cancelled "
        "or succeeded",
    ),
    Invariant(
        "S17",
        "a job enqueued in a transaction that was rolled back never appears",
        (STORE, CLIENTS),
    ),
    Invariant("S18", "replaying the events of a job gives the same values as its row"),
)

SHARED = (
    Invariant("U1", "at most one job at a time holds a unique key"),
    Invariant(
        "U2",
        "every concurrent enqueue of one key returns a job that exists",
        (STORE, CLIENTS),
    ),
    Invariant(
        "U3",
        "an enqueue with a key returns the job with that key and the requested payload",
        (STORE, CLIENTS),
    ),
    Invariant("C1", "a slot of a schedule has one job, or an event that says it was skipped"),
    Invariant("B1", "the counts of a batch match its members"),
    Invariant(
        "B2",
        "a batch completes once per generation, when it is sealed and no member is unfinished",
    ),
    Invariant("B3", "the outcome of a batch follows from its members"),
)

NOTIFICATIONS = (
    Invariant("N1", "every event that matches a subscription has one message"),
    Invariant(
        "N2", "every message ends delivered or dead, or its subscription is off", settled=True
    ),
    Invariant(
        "N3",
        "every delivered message was received, each copy with the same id and body",
        (STORE, CLIENTS),
    ),
    Invariant("N4", "every received message belongs to an event", (STORE, CLIENTS)),
    Invariant(
        "N5",
        "a follower of the event log sees growing ids, and misses none",
        (STORE, CLIENTS),
    ),
)

LIVENESS = (
    Invariant(
        "L1",
        "every job has ended, waits for a due time, or is held for a named reason",
        settled=True,
    ),
    Invariant("L2", "every running job runs on a live worker", settled=True),
    Invariant("L4", "an open circuit breaker is probed when its probe is due", settled=True),
)

STORAGE = (Invariant("D1", "the integrity check of the database finds no damage"),)

INVARIANTS = {
    invariant.id: invariant for invariant in (*SAFETY, *SHARED, *NOTIFICATIONS, *LIVENESS, *STORAGE)
}

# Guarantees that this checker cannot check, with the reason.
CHECKED_ELSEWHERE = {
    "L3": "how soon a worker claims a fresh job is a measurement: tools/bench/ and the fault storm "
    "take it",
    "L5": "how fast a backlog shrinks is a measurement, not a check",
    "D2": "that both stores give the same results for one script needs two stores: the simulation "
    "checks it",
    "D3": "the size of logs and tables is measured by the fault storm while it injects faults",
    "T1": "that no owner sees the jobs of another is tested for every interface in tests/security/",
}


# --- Violations ---

MAX_REPORTED = 50  # violations reported per invariant; all are counted
MAX_EVENTS = 6  # events shown as evidence


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: by which subject, and the evidence of each history."""

    invariant: str
    what: str
    subject: str = ""  # a job, a batch, a schedule, a subscription
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)  # history → lines
    story: str = ""

    @property
    def sentence(self) -> str:
        return INVARIANTS[self.invariant].sentence

    def to_dict(self) -> dict[str, Any]:
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
    """Collect violations. Beyond `MAX_REPORTED` per invariant they are only counted."""

    counts: Counter[str] = field(default_factory=Counter)
    reported: list[Violation] = field(default_factory=list)

    def add(self, invariant: str, what: str, subject: str = "", **evidence: Sequence[str]) -> None:
        """Record a violation; the keywords are evidence lines by history."""
        self.counts[invariant] += 1
        if self.counts[invariant] > MAX_REPORTED:
            return
        lines_by_history = {name: tuple(lines) for name, lines in evidence.items() if lines}
        self.reported.append(Violation(invariant, what, subject, lines_by_history))


def format_events(events: Sequence[Event]) -> list[str]:
    """Return evidence lines for the newest events."""
    return [format_event(event) for event in events[-MAX_EVENTS:]]


def format_event(event: Event) -> str:
    """Return an event as one evidence line."""
    parts = [f"#{event.id} {format_time(event.at)} {event.type}"]
    if event.token is not None:
        parts.append(f"attempt {event.attempt} token {event.token}")
    if "worker" in event.data:
        parts.append(f"on {event.data['worker']}")
    if event.actor:
        parts.append(f"by {event.actor}")
    return " ".join(parts)


def format_attempt(row: AttemptRow) -> str:
    """Return an attempt as one evidence line."""
    place = f"on {row.worker}"
    if row.settled_by != row.worker:
        place = f"{place}, settled by {row.settled_by}"
    return (
        f"attempt {row.attempt} token {row.token} of generation {row.generation} {place}: "
        f"{row.ended} → {row.verb}, {format_time(row.started_at)} to {format_time(row.ended_at)}"
    )


def format_witness(line: Mapping[str, Any]) -> str:
    """Return a witness line as one evidence line."""
    return f"token {line['token']} {line['what']} pid {line['pid']} at {line['ns']} ns"


def format_call(call: Mapping[str, Any]) -> str:
    """Return a client's call as one evidence line."""
    period = f"{call['begin_ns']}–{call['end_ns'] or '…'} ns"
    text = f"{call['client']} {call['what']} {period}: answer {call['answer']}"
    if call.get("error"):
        text = f"{text} ({call['error']})"
    return text

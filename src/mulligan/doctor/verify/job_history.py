"""A job's life as its events tell it, step by step: S2 to S7, S12 to S14, S16, S18.

The moves that are legal are read from the same table the product's are (`core/lifecycle.py`), everything else is this
module's own: nothing that decides or writes takes part in judging itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND
from mulligan.core.event import SYSTEM_ACTORS, Event, EventType
from mulligan.core.job import State, WorkerRow
from mulligan.core.lifecycle import MOVES, TERMINAL, event_for
from mulligan.doctor.verify.case import FOR_EVER, Findings, JobCase, World, attempt_line, event_line

# What one row alone must look like: S10, S11. The schema refuses most of it, but can be changed by hand.

AHEAD = 5 * SECOND


def check_row(case: JobCase, findings: Findings) -> None:
    row = case.row
    facts = f"state {row.state}, worker {row.worker}, token {row.token}, attempt {row.attempt}"
    for invariant, what in _wrong(case):
        findings.add(invariant, what, row.id, store=[facts])


def _wrong(case: JobCase) -> Iterator[tuple[str, str]]:
    row, running = case.row, case.row.state == State.RUNNING
    ended = row.state in {State.SUCCEEDED, State.DEAD, State.CANCELLED}
    if running != (row.worker is not None):
        yield "S10", "it has a lease and does not run" if row.worker else "it runs and has no lease"
    if running and row.started_at is None:
        yield "S10", "it runs, and has not started"
    if row.result is not None and row.state != State.SUCCEEDED:
        yield "S11", f"it has a result and is {row.state}"
    if (row.error is not None) != (row.state == State.DEAD):
        yield "S11", f"it is {row.state} and its final error is {'set' if row.error else 'missing'}"
    if (row.finished_at is not None) != ended:
        yield "S11", f"it is {row.state} and finished_at is {row.finished_at}"
    if row.choices is not None and row.state != State.PARKED:
        yield "S11", f"it offers choices and is {row.state}"
    cover = (row.unique_cover or "").split(",")
    if row.unique_hash is not None and row.state not in cover:
        yield "S11", f"it holds its unique key while {row.state}, which its key does not cover"
    if row.attempt > row.token:
        yield "S11", f"attempt {row.attempt} of token {row.token}"


def check_worker(worker: WorkerRow, world: World, findings: Findings) -> None:
    """A lease is judged by one clock, so it must have been written by it: the server's."""
    if not world.one_clock:
        return
    evidence = [
        f"started {worker.started_at}, renewed {worker.renewed_at}, closed {worker.closed_at}, now {world.now}"
    ]
    if worker.renewed_at < worker.started_at:
        ago = (worker.started_at - worker.renewed_at) / SECOND
        findings.add(
            "S10", f"its lease was renewed {ago:.3f} s before it began", worker.id, store=evidence
        )
    if worker.renewed_at > world.now + AHEAD:
        ahead = (worker.renewed_at - world.now) / SECOND
        findings.add(
            "S10",
            f"its lease was renewed {ahead:.3f} s ahead of the clock",
            worker.id,
            store=evidence,
        )


# A job's life as its events tell it, step by step: S2 to S7, S12 to S14, S16, S18.

Type = EventType
ENDS: Mapping[str, str] = {
    event_for(verb).value: end.value
    for (verb, start), end in MOVES.items()
    if start is State.RUNNING
}
BY_HAND: dict[str, dict[str, str]] = {}
for (_verb, _start), _end in MOVES.items():
    if _start is not State.RUNNING and _verb is not Verb.CLAIM:
        BY_HAND.setdefault(event_for(_verb).value, {})[_start.value] = _end.value

SILENT = frozenset({Type.JOB_STALE_REFUSED, Type.JOB_PRUNED})
RUNNING, QUEUED = State.RUNNING.value, State.QUEUED.value
ENDED = frozenset(state.value for state in TERMINAL)
KEEPS_LOSSES = frozenset({"lost", "released"})
STARTS_RACE = 5 * SECOND  # a claim that looked just before a gate closed may start just after
SKEW = 10 * SECOND  # a supervisor's idea of the database's clock


@dataclass
class JobReplay:
    """The fold. `state` None: not known yet, because the beginning of the story is gone."""

    case: JobCase
    world: World
    findings: Findings
    state: str | None = None
    generation: int = 1
    attempt: int | None = None
    token: int = 0
    worker: str = ""
    asked: bool = False  # somebody wants this attempt to stop
    due: int = 0
    failures: int | None = None
    losses: tuple[int, int] | None = None  # at least, at most
    alone: bool | None = False
    started: Event | None = None
    announced: int = 0
    path: list[tuple[int, str]] = field(default_factory=list)  # (event, state it led to)
    ended: dict[int, Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.case.complete:
            self.state, self.attempt, self.failures, self.losses = QUEUED, 0, 0, (0, 0)

    # -- the story ----------------------------------------------------------------------------------
    def told(self) -> JobReplay:
        for event in self.case.events:
            self._tell(event)
        self._against_row()
        self._against_attempts()
        return self

    def _tell(self, event: Event) -> None:
        if event.type in SILENT:
            return
        if event.type == Type.JOB_QUEUED:
            self._queued(event)
        elif event.type == Type.JOB_CANCEL_REQUESTED:
            self._asked(event)
        elif event.type == Type.JOB_STARTED:
            self._started(event)
        elif event.token is not None and event.type in ENDS:
            self._ended(event)
        else:
            self._moved(event)

    def _broken(self, invariant: str, what: str, *events: Event) -> None:
        near = events or tuple(self.case.events[-6:])
        self.findings.add(
            invariant, what, self.case.id, store=[event_line(event) for event in near]
        )

    def _to(self, event: Event, state: str) -> None:
        self.state = state
        self.path.append((event.id, state))

    def _queued(self, event: Event) -> None:
        """Its place in the story says nothing: of a caller's transaction it is told when somebody comes by."""
        self.announced += 1
        if self.announced > 1:
            self._broken("S4", "it was enqueued twice")
        self.due = max(self.due, int(event.data.get("run_at") or 0)) if not self.token else self.due
        if not self.path:
            self.path.append((event.id, QUEUED))

    def _asked(self, event: Event) -> None:
        if self.state not in (RUNNING, None):
            self._broken("S4", f"asked to stop while {self.state}", event)
        self.asked = self.state == RUNNING

    # -- attempts -----------------------------------------------------------------------------------
    def _started(self, event: Event) -> None:
        before = [self.started] if self.started else []
        if self.state == RUNNING:
            self._broken(
                "S6",
                f"given out again while its attempt with token {self.token} was running",
                *before,
                event,
            )
        elif self.state in ENDED:
            broken = "S16" if self.state == State.CANCELLED else "S3"
            self._broken(broken, f"started although it was {self.state}")
        elif self.state not in (QUEUED, None):
            self._broken("S4", f"started while {self.state}")
        self._numbers(event)
        if event.at < self.due:
            early = (self.due - event.at) / SECOND
            self._broken("S13", f"started {early:.3f} s before its time", *before, event)
        self._claimant(event)
        self.attempt, self.token, self.asked, self.started = (
            event.attempt,
            event.token or 0,
            False,
            event,
        )
        self.worker = str(event.data.get("worker", ""))
        self._to(event, RUNNING)

    def _numbers(self, event: Event) -> None:
        token = event.token or 0
        if token <= self.token:
            self._broken("S5", f"token {token} after token {self.token}")
        if self.attempt is not None and event.attempt != self.attempt + 1:
            self._broken(
                "S5",
                f"attempt {event.attempt} after attempt {self.attempt} of generation {self.generation}",
            )

    def _claimant(self, event: Event) -> None:
        """A worker that was declared lost is never used again; one that looked just before is not yet one of those."""
        lost = self.world.lost.get(str(event.data.get("worker", "")))
        if lost is None or event.id < lost.id:
            return
        if not self.world.one_clock or event.at > lost.at + STARTS_RACE:
            self._broken("S10", "given to a worker that had been declared lost", lost, event)

    def _ended(self, event: Event) -> None:
        to = ENDS[event.type]
        if self.state is None:
            self.token = event.token or 0
        elif self.state in ENDED:
            self._broken("S2", f"token {event.token} ended it as {to}, and it was {self.state}")
        elif self.state != RUNNING:
            self._broken("S7", f"token {event.token} ended while the job was {self.state}")
        elif event.token != self.token:
            self._broken("S7", f"token {event.token} ended while token {self.token} held the lease")
        if event.token in self.ended:
            self._broken("S2", f"token {event.token} ended twice", self.ended[event.token], event)
        if self.asked and to not in (State.CANCELLED, State.SUCCEEDED):
            self._broken("S16", f"asked to stop, and went on as {to}")
        self.ended[event.token or 0] = event
        self._gates(event)
        self._charged(event)
        self._next(event)
        self._to(event, to)

    def _next(self, event: Event) -> None:
        at = event.data.get("next_retry_at")
        self.due = int(at) if at is not None else 0
        if (
            at is not None
            and event.type == Type.JOB_RETRY_SCHEDULED
            and self.world.one_clock
            and at < event.at - SKEW
        ):
            self._broken(
                "S14",
                f"the next try is due {(event.at - at) / SECOND:.3f} s before this one ended",
                event,
            )

    def _gates(self, event: Event) -> None:
        """The end of an attempt says in which queue it was."""
        start = self.started
        if start is None or start.token != event.token:
            return
        names = (
            ("queue", str(event.data.get("queue", ""))),
            ("kind", str(event.data.get("kind", ""))),
        )
        for name in names:
            for shut in self.world.closures.get(name, ()):
                inside = shut.first < start.id < shut.last and start.at < shut.until
                if inside and (not self.world.one_clock or start.at > shut.since + STARTS_RACE):
                    self._broken(
                        "S13",
                        f"started while {name[0]} {name[1]} was closed by event #{shut.first}",
                        start,
                    )

    # -- counters -----------------------------------------------------------------------------------
    def _charged(self, event: Event) -> None:
        said, most = event.data.get("failures"), event.data.get("max_retries")
        if said is not None:
            retried = event.type == Type.JOB_RETRY_SCHEDULED
            if self.failures is not None and not self._may(said, retried=retried):
                self._broken("S12", f"{said} failures counted after {self.failures}", event)
            if most is not None and retried and said > most:
                self._broken("S12", f"retry {said}, and {most} are allowed", event)
            self.failures = int(said)
        self._lost(event)

    def _may(self, said: int, *, retried: bool) -> bool:
        assert self.failures is not None  # noqa: S101 - asked by who calls
        return said == self.failures + 1 or (not retried and said == self.failures)

    def _lost(self, event: Event) -> None:
        said, most = event.data.get("losses"), event.data.get("max_losses")
        known = self.losses if not self.case.checkpoints else None
        if said is not None:
            if known is not None and not known[0] < said <= known[1] + 1:
                self._broken("S12", f"{said} losses counted after {known[1]}")
            if most is not None and said > most and ENDS[event.type] == QUEUED:
                self._broken("S12", f"lost {said} times, {most} allowed, and it goes on")
            self.losses, self.alone = (int(said), int(said)), True
        elif event.type == Type.JOB_LOST:
            self.losses, self.alone = None, True
        elif self._how(event) in KEEPS_LOSSES:
            self.alone = True if self.alone else None
        else:
            self._survived()

    def _how(self, event: Event) -> str:
        """How the attempt ended, as its row has it."""
        return next((row.ended for row in self.case.attempts if row.token == event.token), "")

    def _survived(self) -> None:
        """Who survives alone gets a loss back."""
        if self.losses is not None and self.alone is not False:
            low, high = self.losses
            self.losses = (max(0, low - 1), max(0, high - 1) if self.alone else high)
        self.alone = None

    # -- moves --------------------------------------------------------------------------------------
    def _moved(self, event: Event) -> None:
        legal = BY_HAND.get(event.type)
        if legal is None:
            return
        was = event.data.get("from")
        if self.state is None:
            self.state = str(was) if was else next(iter(legal))
        if was is not None and was != self.state:
            self._broken("S4", f"{event.type} says it was {was}, and it was {self.state}")
        if self.state not in legal:
            broken = "S2" if self.state in ENDED and legal_end(event.type) else "S4"
            self._broken(broken, f"{event.type} while {self.state}")
        if event.type == Type.JOB_RETRIED:
            self._retried(event)
        elif event.type == Type.JOB_RELEASED:
            self.due = 0
        self.asked = False
        self._to(event, legal.get(self.state, next(iter(legal.values()))))

    def _retried(self, event: Event) -> None:
        if not event.actor:
            self._broken("S2", "a new generation began, and nobody is named for it", event)
        told = int(event.data.get("generation", self.generation + 1))
        if self.case.complete and told != self.generation + 1:
            self._broken("S2", f"generation {told} after generation {self.generation}")
        self.generation, self.attempt, self.failures, self.losses, self.alone = (
            told,
            0,
            0,
            (0, 0),
            None,
        )
        self.due = int(event.data.get("run_at") or 0)

    # -- what it comes to ---------------------------------------------------------------------------
    def _against_row(self) -> None:
        row = self.case.row
        said = {
            "state": self.state,
            "generation": self.generation,
            "attempt": self.attempt,
            "token": self.token,
        }
        if not self.case.complete:
            said = {"state": self.state} if self.state is not None else {}
        if self.world.restored:
            said.pop("token", None)
        for name, value in said.items():
            if getattr(row, name) != value:
                self._broken(
                    "S18", f"its row says {name} {getattr(row, name)}, its events say {value}"
                )
        if row.state == RUNNING and self.worker and row.worker != self.worker:
            self._broken(
                "S18", f"its row says it runs on {row.worker}, its events say {self.worker}"
            )
        start, deadline = self.started, row.deadline_at
        if start is not None and self.attempt and deadline is not None and start.at >= deadline:
            self._broken(
                "S13", f"started {(start.at - deadline) / SECOND:.3f} s after its deadline", start
            )
        self._counters()
        if self.case.whole.announced and self.case.complete and not self.announced:
            self._broken("S18", "it is marked as announced, and no event tells of it")

    def _counters(self) -> None:
        row = self.case.row
        if self.failures is not None and row.failures != self.failures:
            self._broken(
                "S12", f"its row says {row.failures} failures, its events say {self.failures}"
            )
        if self.losses is None or self.case.checkpoints:
            return
        if not self.losses[0] <= row.losses <= self.losses[1]:
            self._broken(
                "S12", f"its row says {row.losses} losses, its events say {self.losses[1]}"
            )

    def _against_attempts(self) -> None:
        rows = {row.token: row for row in self.case.attempts}
        if self.case.complete:
            for token in sorted(rows.keys() ^ self.ended.keys()):
                there = "row" if token in rows else "event"
                self._broken("S18", f"the end of token {token} has only an {there}")
        starts = {
            event.token: event for event in self.case.events if event.type == Type.JOB_STARTED
        }
        for token, row in rows.items():
            start = starts.get(token)
            claimed = (
                start is None or "worker" not in start.data or start.data["worker"] == row.worker
            )
            if not claimed or row.settled_by not in {row.worker, *SYSTEM_ACTORS}:
                self.findings.add(
                    "S7",
                    f"token {token} was ended by {row.settled_by} for {row.worker}, who did not hold it",
                    self.case.id,
                    store=[*([event_line(start)] if start else ()), attempt_line(row)],
                )
        self._kept()

    def _kept(self) -> None:
        """A checkpoint that was written after its attempt had ended."""
        if not self.world.one_clock:
            return
        ends = {row.token: row for row in self.case.attempts}
        for kept in self.case.checkpoints:
            end = ends.get(kept.token)
            if (
                end is None or end.ended_at < end.started_at
            ):  # the clock was set back meanwhile: times prove nothing
                continue
            if kept.at > end.ended_at:
                late = (kept.at - end.ended_at) / SECOND
                self.findings.add(
                    "S7",
                    f"checkpoint {kept.name!r} of token {kept.token} was kept {late:.3f} s after it had ended",
                    self.case.id,
                    store=[attempt_line(end)],
                )

    # -- for those who judge several jobs -----------------------------------------------------------
    def spans(self, states: frozenset[str]) -> Iterator[tuple[int, int]]:
        """From which event to which other it was in one of these states."""
        since: int | None = None
        for event, state in self.path:
            if state in states and since is None:
                since = event
            elif state not in states and since is not None:
                yield since, event
                since = None
        if since is not None:
            yield since, FOR_EVER


def legal_end(kind: str) -> bool:
    return any(to in ENDED for to in BY_HAND.get(kind, {}).values())

"""Replay the events of a job and compare the result with its row and attempts.

Row alone: S10, S11. Replay: S2 to S7, S12 to S14, S16, S18.

Legal moves are read from the table that the product uses (`core/lifecycle.py`). Everything else is
written independently: code that decides or writes must not judge itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mulligan.core.attempt import Verb
from mulligan.core.durations import SECOND
from mulligan.core.event import SYSTEM_ACTORS, Event, EventType
from mulligan.core.ids import is_host_worker
from mulligan.core.job import AttemptRow, State, WorkerRow
from mulligan.core.lifecycle import EVENTS, MOVES, TERMINAL
from mulligan.doctor.verify.case import (
    FOREVER,
    ClosedPeriod,
    Findings,
    JobCase,
    VerifyContext,
    format_attempt,
    format_event,
    format_events,
)

# --- One row: S10, S11 ---
# The schema refuses most of this, but a schema can be changed manually.

MAX_CLOCK_LEAD = 5 * SECOND
FINISHED_STATES = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


def check_row(case: JobCase, findings: Findings) -> None:
    """Check that the columns of a job's row fit its state."""
    row = case.row
    facts = f"state {row.state}, worker {row.worker}, token {row.token}, attempt {row.attempt}"
    for problem in _lease_problems(case):
        findings.add("S10", problem, row.id, store=[facts])
    for problem in _column_problems(case):
        findings.add("S11", problem, row.id, store=[facts])


def _lease_problems(case: JobCase) -> Iterator[str]:
    row = case.row
    is_running = row.state == State.RUNNING
    if is_running and row.worker is None:
        yield "it is running without a lease"
    if not is_running and row.worker is not None:
        yield f"it has a lease but is {row.state}"
    if is_running and row.started_at is None:
        yield "it is running but has no start time"


def _column_problems(case: JobCase) -> Iterator[str]:
    row = case.row
    if row.result is not None and row.state != State.SUCCEEDED:
        yield f"it has a result but is {row.state}"
    if row.error is not None and row.state != State.DEAD:
        yield f"it has a final error but is {row.state}"
    if row.error is None and row.state == State.DEAD:
        yield "it is dead but has no final error"
    if (row.finished_at is not None) != (row.state in FINISHED_STATES):
        yield f"it is {row.state} but finished_at is {row.finished_at}"
    if row.choices is not None and row.state != State.PARKED:
        yield f"it has choices but is {row.state}"
    covered_states = (row.unique_cover or "").split(",")
    if row.unique_hash is not None and row.state not in covered_states:
        yield f"it holds its unique key while {row.state}, a state that the key does not cover"
    if row.attempt > row.token:
        yield f"attempt {row.attempt} is greater than token {row.token}"


def check_worker(worker: WorkerRow, context: VerifyContext, findings: Findings) -> None:
    """Check that a worker's lease was renewed with the server's clock, which also expires it."""
    if not context.single_clock:
        return
    facts = (
        f"started {worker.started_at}, renewed {worker.renewed_at}, "
        f"closed {worker.closed_at}, now {context.now}"
    )
    if worker.renewed_at < worker.started_at:
        early = (worker.started_at - worker.renewed_at) / SECOND
        what = f"its lease was renewed {early:.3f} s before it started"
        findings.add("S10", what, worker.id, store=[facts])
    if worker.renewed_at > context.now + MAX_CLOCK_LEAD:
        ahead = (worker.renewed_at - context.now) / SECOND
        what = f"its lease was renewed {ahead:.3f} s in the future"
        findings.add("S10", what, worker.id, store=[facts])


# --- Replay of the events: S2 to S7, S12 to S14, S16, S18 ---


def _states_after_attempt() -> dict[str, str]:
    """Return the state after each event that ends an attempt."""
    return {
        EVENTS[verb].value: end.value
        for (verb, start), end in MOVES.items()
        if start is State.RUNNING
    }


def _other_moves() -> dict[str, dict[str, str]]:
    """Return the legal moves without an attempt: event type → state before → state after."""
    moves: dict[str, dict[str, str]] = {}
    for (verb, start), end in MOVES.items():
        if start is not State.RUNNING and verb is not Verb.CLAIM:
            moves.setdefault(EVENTS[verb].value, {})[start.value] = end.value
    return moves


STATE_AFTER: Mapping[str, str] = _states_after_attempt()
OTHER_MOVES: Mapping[str, Mapping[str, str]] = _other_moves()

# They may make a waiting job due. An answer may come before its wait.
ENDS_WAIT = frozenset({EventType.JOB_ANSWERED, EventType.JOB_STEP_FINISHED})
NO_STATE_CHANGE = frozenset({EventType.JOB_STALE_REFUSED, EventType.JOB_PRUNED})
RUNNING = State.RUNNING.value
QUEUED = State.QUEUED.value
TERMINAL_STATES = frozenset(state.value for state in TERMINAL)
KEEPS_LOSSES = frozenset({"lost", "released"})  # endings that do not reduce the losses
CLAIM_RACE = 5 * SECOND  # a claim that read an open gate may start just after it closed
MAX_CLOCK_SKEW = 10 * SECOND  # of a supervisor's estimate of the database's clock


@dataclass
class JobReplay:
    """The state of a job according to its events.

    `state` is None until it is known, if retention has removed the first events.
    """

    case: JobCase
    context: VerifyContext
    findings: Findings
    state: str | None = None
    generation: int = 1
    attempt: int | None = None
    token: int = 0
    worker: str = ""
    cancel_requested: bool = False
    due: int = 0
    failures: int | None = None
    finished_steps: set[str] = field(default_factory=set)
    losses: tuple[int, int] | None = None  # at least, at most
    runs_alone: bool | None = False  # after a loss the next attempt runs alone; None: unknown
    last_start: Event | None = None
    waits_for: str = ""  # name of the step for which it waits
    is_tried: bool = False  # the next start may be of a held kind
    may_ignore_kind: bool = False  # of the last start
    queued_events: int = 0
    states: list[tuple[int, str]] = field(default_factory=list)  # (event id, state after it)
    ends: dict[int, Event] = field(default_factory=dict)  # token → event that ended it

    def __post_init__(self) -> None:
        if self.case.is_complete:
            self.state = QUEUED
            self.attempt = 0
            self.failures = 0
            self.losses = (0, 0)

    def replay(self) -> JobReplay:
        """Replay all events, then compare with the row and the attempts."""
        for event in self.case.events:
            self._apply(event)
        self._compare_row()
        self._compare_counters()
        self._compare_attempts()
        self._check_checkpoints()
        return self

    def _apply(self, event: Event) -> None:
        if event.type in NO_STATE_CHANGE:
            return
        if event.type in ENDS_WAIT:
            self._end_wait(event)
            return
        if event.type == EventType.JOB_TRIED:
            self.is_tried = True
        elif event.type == EventType.JOB_QUEUED:
            self._apply_queued(event)
        elif event.type == EventType.JOB_CANCEL_REQUESTED:
            self._apply_cancel_request(event)
        elif event.type == EventType.JOB_STARTED:
            self._apply_start(event)
        elif event.token is not None and event.type in STATE_AFTER:
            self._apply_end(event)
        else:
            self._apply_move(event)

    def _report(self, invariant: str, what: str, *events: Event) -> None:
        evidence = format_events(events or self.case.events)
        self.findings.add(invariant, what, self.case.id, store=evidence)

    def _set_state(self, event: Event, state: str) -> None:
        self.state = state
        self.states.append((event.id, state))

    def _apply_queued(self, event: Event) -> None:
        """Apply `job.queued`. It may come late: after a caller's transaction a worker writes it."""
        self.queued_events += 1
        if self.queued_events > 1:
            self._report("S4", "it was enqueued twice")
        if not self.token:
            self.due = max(self.due, int(event.data.get("run_at") or 0))
        if not self.states:
            self.states.append((event.id, QUEUED))

    def _apply_cancel_request(self, event: Event) -> None:
        if self.state not in (RUNNING, None):
            self._report("S4", f"cancel requested while {self.state}", event)
        self.cancel_requested = self.state == RUNNING

    # --- Attempts ---
    def _apply_start(self, event: Event) -> None:
        self._check_state_before_start(event)
        self._check_numbers(event)
        self.worker = str(event.data.get("worker", ""))
        if event.at < self.due and not is_host_worker(self.worker):
            early = (self.due - event.at) / SECOND
            self._report_start("S13", f"started {early:.3f} s before its due time", event)
        self._check_claimant(event)
        self.attempt = event.attempt
        self.token = event.token or 0
        self.cancel_requested = False
        self.last_start = event
        self.may_ignore_kind, self.is_tried = self.is_tried, False
        self._set_state(event, RUNNING)

    def _report_start(self, invariant: str, what: str, event: Event) -> None:
        """Report a wrong start, with the start before it as evidence."""
        if self.last_start is None:
            self._report(invariant, what, event)
        else:
            self._report(invariant, what, self.last_start, event)

    def _check_state_before_start(self, event: Event) -> None:
        if self.state == RUNNING:
            what = f"claimed again while its attempt with token {self.token} was running"
            self._report_start("S6", what, event)
        elif self.state in TERMINAL_STATES:
            invariant = "S16" if self.state == State.CANCELLED else "S3"
            self._report(invariant, f"started although it was {self.state}")
        elif self.state not in (QUEUED, None):
            self._report("S4", f"started while {self.state}")

    def _check_numbers(self, event: Event) -> None:
        token = event.token or 0
        if token <= self.token:
            self._report("S5", f"token {token} after token {self.token}")
        if self.attempt is not None and event.attempt != self.attempt + 1:
            what = (
                f"attempt {event.attempt} after attempt {self.attempt} "
                f"of generation {self.generation}"
            )
            self._report("S5", what)

    def _check_claimant(self, event: Event) -> None:
        """Check that the claiming worker was not declared lost, except for a race."""
        lost = self.context.lost_workers.get(str(event.data.get("worker", "")))
        if lost is None or event.id < lost.id:
            return
        if not self.context.single_clock or event.at > lost.at + CLAIM_RACE:
            self._report("S10", "claimed by a worker that had been declared lost", lost, event)

    def _apply_end(self, event: Event) -> None:
        state_after = STATE_AFTER[event.type]
        self._check_lease_of_end(event, state_after)
        if event.token in self.ends:
            self._report("S2", f"token {event.token} ended twice", self.ends[event.token], event)
        ends = state_after in (State.CANCELLED, State.SUCCEEDED)
        if self.cancel_requested and not ends and event.type != EventType.JOB_UNDOING:
            self._report("S16", f"cancel was requested, but it became {state_after}")
        self.ends[event.token or 0] = event
        self._check_closed_gates(event)
        self._count_failures(event)
        self._count_losses(event)
        self._set_due(event)
        self._set_state(event, state_after)

    def _check_lease_of_end(self, event: Event, state_after: str) -> None:
        token = event.token
        if self.state is None:
            self.token = token or 0
        elif self.state in TERMINAL_STATES:
            self._report("S2", f"token {token} made it {state_after}, but it was {self.state}")
        elif self.state != RUNNING:
            self._report("S7", f"token {token} ended while the job was {self.state}")
        elif token != self.token:
            self._report("S7", f"token {token} ended while token {self.token} held the lease")

    def _end_wait(self, event: Event) -> None:
        """Note that a step is finished: a job that waits for it is due."""
        step = str(event.data.get("step"))
        self.finished_steps.add(step)
        if step == self.waits_for:
            self.due = 0

    def _set_due(self, event: Event) -> None:
        self.waits_for = ""
        if event.type == EventType.JOB_WAITING:
            self.waits_for = str(event.data.get("step"))
            if self.waits_for in self.finished_steps:
                self.due = 0
                return
        next_retry_at = event.data.get("next_retry_at")
        if next_retry_at is None:
            self.due = 0
            return
        self.due = int(next_retry_at)
        if event.type != EventType.JOB_RETRY_SCHEDULED or not self.context.single_clock:
            return
        if self.due < event.at - MAX_CLOCK_SKEW:
            early = (event.at - self.due) / SECOND
            what = f"the next attempt is due {early:.3f} s before this one ended"
            self._report("S14", what, event)
        elif self.last_start is not None and self.due < self.last_start.at:
            early = (self.last_start.at - self.due) / SECOND
            what = f"the next attempt is due {early:.3f} s before this one began"
            self._report("S14", what, event)

    def _check_closed_gates(self, event: Event) -> None:
        """Check that queue and kind were open at the start; the end event has their names."""
        start = self.last_start
        if start is None or start.token != event.token:
            return
        if is_host_worker(str(start.data.get("worker", ""))):
            return
        scopes = ("queue",) if self.may_ignore_kind else ("queue", "kind")
        for scope in scopes:
            name = str(event.data.get(scope, ""))
            for period in self.context.closures.get((scope, name), ()):
                if self._started_during(start, period):
                    what = f"started while {scope} {name} was closed by event #{period.first}"
                    self._report("S13", what, start)

    def _started_during(self, start: Event, period: ClosedPeriod) -> bool:
        if not (period.first < start.id < period.last and start.at < period.until):
            return False
        return not self.context.single_clock or start.at > period.since + CLAIM_RACE

    # --- Counters ---
    def _count_failures(self, event: Event) -> None:
        count = event.data.get("failures")
        if count is None:
            return
        is_retry = event.type == EventType.JOB_RETRY_SCHEDULED
        if self.failures is not None:
            is_counted = count == self.failures + 1
            is_unchanged = count == self.failures and not is_retry
            if not is_counted and not is_unchanged:
                self._report("S12", f"{count} failures counted after {self.failures}", event)
        max_retries = event.data.get("max_retries")
        if max_retries is not None and is_retry and count > max_retries:
            self._report("S12", f"retry {count}, but only {max_retries} are allowed", event)
        self.failures = int(count)

    def _count_losses(self, event: Event) -> None:
        count = event.data.get("losses")
        if count is not None:
            self._check_losses(event, int(count))
            self.losses = (int(count), int(count))
            self.runs_alone = bool(event.data.get("alone", True))
        elif event.type == EventType.JOB_LOST:
            self.losses = None
            self.runs_alone = True
        elif self._ended_how(event) in KEEPS_LOSSES:
            self.runs_alone = True if self.runs_alone else None
        else:
            self._forgive_loss()

    def _check_losses(self, event: Event, count: int) -> None:
        # A checkpoint resets the losses, and the events do not tell when.
        if self.losses is not None and not self.case.checkpoints:
            least, most = self.losses
            if not least < count <= most + 1:
                self._report("S12", f"{count} losses counted after {most}")
        max_losses = event.data.get("max_losses")
        if max_losses is not None and count > max_losses and STATE_AFTER[event.type] == QUEUED:
            self._report("S12", f"lost {count} times, {max_losses} allowed, but queued again")

    def _ended_how(self, event: Event) -> str:
        """Return how the attempt ended, according to its row; empty if it has none."""
        for row in self.case.attempts:
            if row.token == event.token:
                return row.ended
        return ""

    def _forgive_loss(self) -> None:
        """Reduce the losses by one: an attempt that ran alone after a loss has survived."""
        if self.losses is not None and self.runs_alone is not False:
            least, most = self.losses
            if self.runs_alone:
                most = max(0, most - 1)
            self.losses = (max(0, least - 1), most)
        self.runs_alone = None

    # --- Moves without an attempt ---
    def _apply_move(self, event: Event) -> None:
        moves = OTHER_MOVES.get(event.type)
        if moves is None:
            return
        state_before = event.data.get("from")
        if self.state is None:
            self.state = str(state_before) if state_before else next(iter(moves))
        if state_before is not None and state_before != self.state:
            what = f"{event.type} says that it was {state_before}, but it was {self.state}"
            self._report("S4", what)
        if self.state not in moves:
            is_second_end = self.state in TERMINAL_STATES and ends_a_job(event.type)
            invariant = "S2" if is_second_end else "S4"
            self._report(invariant, f"{event.type} while {self.state}")
        if event.type == EventType.JOB_RETRIED:
            self._start_generation(event)
        elif event.type in {EventType.JOB_RELEASED, EventType.JOB_UNDOING}:
            self.due = 0
        self.cancel_requested = False
        state = moves.get(self.state, next(iter(moves.values())))
        if event.type == EventType.JOB_UNDISCARDED:  # the state before the discard
            state = str(event.data["after"]["state"])
        self._set_state(event, state)

    def _start_generation(self, event: Event) -> None:
        if not event.actor:
            self._report("S2", "a new generation began without an actor", event)
        generation = int(event.data.get("generation", self.generation + 1))
        if self.case.is_complete and generation != self.generation + 1:
            self._report("S2", f"generation {generation} after generation {self.generation}")
        self.generation = generation
        self.attempt = 0
        self.failures = 0
        self.losses = (0, 0)
        self.runs_alone = None
        self.due = int(event.data.get("run_at") or 0)

    # --- Comparison with the rows ---
    def _compare_row(self) -> None:
        row = self.case.row
        for name, value in self._expected_columns().items():
            stored = getattr(row, name)
            if stored != value:
                self._report("S18", f"its row has {name} {stored}, its events give {value}")
        if row.state == RUNNING and self.worker and row.worker != self.worker:
            self._report("S18", f"its row has worker {row.worker}, its events give {self.worker}")
        start = self.last_start
        deadline = row.deadline_at
        if start is not None and self.attempt and deadline is not None and start.at >= deadline:
            late = (start.at - deadline) / SECOND
            self._report("S13", f"started {late:.3f} s after its deadline", start)
        if self.case.whole.announced and self.case.is_complete and not self.queued_events:
            self._report("S18", "it is marked as announced, but has no job.queued event")

    def _expected_columns(self) -> dict[str, object]:
        """Return the columns that the events determine."""
        if not self.case.is_complete:
            return {} if self.state is None else {"state": self.state}
        columns: dict[str, object] = {
            "state": self.state,
            "generation": self.generation,
            "attempt": self.attempt,
        }
        if not self.context.restored:
            columns["token"] = self.token
        return columns

    def _compare_counters(self) -> None:
        row = self.case.row
        if self.failures is not None and row.failures != self.failures:
            what = f"its row has {row.failures} failures, its events give {self.failures}"
            self._report("S12", what)
        if self.losses is None or self.case.checkpoints:
            return
        least, most = self.losses
        if not least <= row.losses <= most:
            self._report("S12", f"its row has {row.losses} losses, its events give {most}")

    def _compare_attempts(self) -> None:
        rows = {row.token: row for row in self.case.attempts}
        if self.case.is_complete:
            for token in sorted(rows.keys() - self.ends.keys()):
                self._report("S18", f"token {token} has an attempt row, but no event of its end")
            for token in sorted(self.ends.keys() - rows.keys()):
                self._report("S18", f"token {token} has an event of its end, but no attempt row")
        starts = {
            event.token: event for event in self.case.events if event.type == EventType.JOB_STARTED
        }
        for token, row in rows.items():
            self._check_lease_holder(row, starts.get(token))

    def _check_lease_holder(self, row: AttemptRow, start: Event | None) -> None:
        """Check that the worker that claimed an attempt has ended it, or the system has."""
        claimed_by = row.worker if start is None else start.data.get("worker", row.worker)
        if claimed_by == row.worker and row.settled_by in {row.worker, *SYSTEM_ACTORS}:
            return
        what = (
            f"token {row.token} was ended by {row.settled_by} for {row.worker}, "
            "which did not hold its lease"
        )
        evidence = [format_attempt(row)]
        if start is not None:
            evidence.insert(0, format_event(start))
        self.findings.add("S7", what, self.case.id, store=evidence)

    def _check_checkpoints(self) -> None:
        """Check that no checkpoint was written after its attempt had ended."""
        if not self.context.single_clock:
            return
        attempts = {row.token: row for row in self.case.attempts}
        for checkpoint in self.case.checkpoints:
            attempt = attempts.get(checkpoint.token)
            if attempt is None or checkpoint.at <= attempt.ended_at:
                continue
            if attempt.ended_at < attempt.started_at:
                continue  # the clock was set back during the attempt: its times prove nothing
            late = (checkpoint.at - attempt.ended_at) / SECOND
            what = (
                f"checkpoint {checkpoint.name!r} of token {checkpoint.token} was written "
                f"{late:.3f} s after its attempt had ended"
            )
            self.findings.add("S7", what, self.case.id, store=[format_attempt(attempt)])

    # --- For checks across jobs ---
    def periods_in(self, states: frozenset[str]) -> Iterator[tuple[int, int]]:
        """Yield the periods in which the job was in one of these states, as pairs of event ids."""
        since: int | None = None
        for event_id, state in self.states:
            if state in states and since is None:
                since = event_id
            elif state not in states and since is not None:
                yield since, event_id
                since = None
        if since is not None:
            yield since, FOREVER


def ends_a_job(event_type: str) -> bool:
    """Return whether a move without an attempt leads to a terminal state."""
    return any(state in TERMINAL_STATES for state in OTHER_MOVES.get(event_type, {}).values())

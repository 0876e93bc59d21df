"""Derive a job's phase and explain in one sentence what it waits for and what ends the wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.format import (
    as_sentence,
    format_actor,
    format_elapsed,
    format_rate,
    format_time,
    one_line,
)
from mulligan.core.job import Gate, JobRow, Lane, Limit, LimitKey, State
from mulligan.core.waits import WaitKind, read_waits
from mulligan.guards import describe as guards
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.lanes import is_closed
from mulligan.retries.undo import read_cause


class LimitState(NamedTuple):
    """Limits in force, jobs running under each, and dependencies whose guard is active."""

    limits: Mapping[LimitKey, Limit]
    running: Mapping[LimitKey, int]
    dependencies: Mapping[str, GuardedDependency] = {}


NO_LIMITS = LimitState({}, {})


class Phase(NamedTuple):
    """A derived phase and the sentence that explains it."""

    name: str
    why: str


class FullLimit(NamedTuple):
    """A limit that delays a job, and how many jobs run under it."""

    key: LimitKey
    limit: Limit
    running: int


class WaitContext(NamedTuple):
    """Facts outside the job's row that decide when it runs."""

    now: Micros
    gates: Iterable[Gate] = ()
    limit_state: LimitState = NO_LIMITS
    workers: int = 0  # live workers that take this kind from this queue
    free_slots: int = 0  # slots that these workers have free
    timeout: Micros | None = None  # time limit of a running attempt


class _GateTerms(NamedTuple):
    """How sentences describe a gate of one scope."""

    closed: str
    opens: str
    open_command: str


_GATE_TERMS = {
    "queue": _GateTerms("paused", "resumes", "mulligan queues resume"),
    "kind": _GateTerms("held", "releases", "mulligan kinds release"),
    "dependency": _GateTerms("held", "closes", "mulligan deps close"),
}
_LIMIT_COMMANDS = {"queue": "mulligan queues set", "dependency": "mulligan deps set"}
_RUN_NOW = "to run it now, cancel and retry it"


# --- Phase and short reason ---
def derive_phase(
    row: JobRow,
    gates: Iterable[Gate],
    now: Micros,
    known_kinds: frozenset[str] | None = None,
    limit_state: LimitState = NO_LIMITS,
) -> Phase:
    """Return the phase of a job and why: what it waits for, until when, and what ends it sooner."""
    if row.state == State.QUEUED:
        return _queued_phase(row, gates, now, known_kinds, limit_state)
    if row.state == State.RUNNING:
        return _running_phase(row)
    if row.state == State.PARKED:
        question = row.reason or "a person must decide"
        return Phase("parked", f"{question}; release, retry or discard it")
    return Phase(str(row.state), _final_reason(row))


def _queued_phase(
    row: JobRow,
    gates: Iterable[Gate],
    now: Micros,
    known_kinds: frozenset[str] | None,
    limit_state: LimitState,
) -> Phase:
    gate = find_blocking_gate(row, gates, now)
    if gate is not None:
        return Phase("held", _held_reason(gate, now))
    if row.run_at <= now:
        return _due_phase(row, now, known_kinds, limit_state)
    if row.waits is not None:
        return Phase("waiting", describe_waits(row.waits, row.id, now))
    due = _time_in(row.run_at, now)
    if read_cause(row.settings) is not None:
        return Phase("undoing", f"{row.reason}; next attempt {due}")
    if row.attempt == 0:
        return Phase("scheduled", f"due {due}; {_RUN_NOW}")
    reason = row.reason or "waiting for the next attempt"
    return Phase("backing_off", f"{reason}; next attempt {due}; {_RUN_NOW}")


def describe_waits(text: str, job_id: str, now: Micros) -> str:
    """Explain what a job waits for without a slot, until when, and what ends the wait sooner."""
    wait = read_waits(text)
    until = "" if wait.until is None else f"{_time_in(wait.until, now)}"
    if wait.kind == WaitKind.SLEEP:
        return f"sleeps until {until} ({wait.name}); {_RUN_NOW}"
    if wait.kind == WaitKind.CALL:
        command = f"mulligan batches show {wait.batch}"
        return f"waits for its child jobs ({wait.name}); to see them: {command}"
    limit = f" until {until}, then with its default" if until else ""
    command = f"mulligan jobs tell {job_id} {quote(wait.name)} VALUE"
    return f"waits for an answer to {wait.name}{limit}; to answer: {command}"


def _due_phase(
    row: JobRow, now: Micros, known_kinds: frozenset[str] | None, limit_state: LimitState
) -> Phase:
    if known_kinds is not None and row.kind not in known_kinds:
        return Phase("no_worker", f"no live worker handles kind {row.kind}; start one that does")
    over_budget = guards.describe_budget(row, limit_state.dependencies, now)
    if over_budget:
        return Phase("over_budget", over_budget)
    recovering = guards.describe_recovery(row, limit_state.dependencies)
    if recovering:
        return Phase("limited", recovering)
    full = find_full_limit(row, limit_state)
    if full is not None:
        return Phase("limited", describe_limit(full))
    if read_cause(row.settings) is not None:
        return Phase("undoing", row.reason)
    return Phase("ready", "waiting for a free worker")


def find_full_limit(row: JobRow, limit_state: LimitState) -> FullLimit | None:
    """Return the first limit of the job's lane that is used up or paced by a rate."""
    for key in Lane(row.queue, row.kind, row.uses, retry=False).limit_keys:
        limit = limit_state.limits.get(key, Limit())
        full = FullLimit(key, limit, limit_state.running.get(key, 0))
        if limit.rate is not None or _is_used_up(full):
            return full
    return None


def _is_used_up(full: FullLimit) -> bool:
    return full.limit.concurrency is not None and full.running >= full.limit.concurrency


def describe_limit(full: FullLimit) -> str:
    """Return which limit delays the job: `queue mail runs at most 2 jobs at a time (2 running)`."""
    name = " ".join(full.key)
    if _is_used_up(full):
        most = f"{full.limit.concurrency:,}"
        return f"{name} runs at most {most} at a time ({full.running:,} running)"
    return f"{name} starts at most {format_rate(full.limit.rate or 0)}"


def find_blocking_gate(row: JobRow, gates: Iterable[Gate], now: Micros) -> Gate | None:
    """Return the closed gate that delays this job longest, if it stays closed past its due time."""
    keys = guards.gate_keys(row)
    closed = []
    for gate in gates:
        if (gate.scope, gate.key) in keys and is_closed(gate, now):
            closed.append(gate)
    if not closed:
        return None
    longest = max(closed, key=_closed_until)
    end = guards.expected_end(longest)
    if row.run_at > now and end is not None and end < row.run_at:
        return None
    return longest


def _closed_until(gate: Gate) -> tuple[bool, Micros]:
    """Sort key: gates without an end time last, then by end time."""
    end = guards.expected_end(gate)
    return end is None, end or 0


def _held_reason(gate: Gate, now: Micros) -> str:
    since = format_time(gate.since)
    because = f": {gate.reason.rstrip('.')}" if gate.reason else ""
    if guards.is_breaker_gate(gate):
        return (
            f"dependency {gate.key} is down since {since}{because}; "
            f"{guards.describe_next_probe(gate, now)}; "
            f"probe now: {guards.probe_command(gate)}; "
            f"release all jobs: {guards.close_command(gate)}"
        )
    terms = _GATE_TERMS[gate.scope]
    return (
        f"{gate.scope} {gate.key} is {terms.closed} since {since}{_closed_by(gate)}, "
        f"{_gate_end(gate, now)}{because}; sooner: {terms.open_command} {quote(gate.key)}"
    )


def _closed_by(gate: Gate) -> str:
    return f" by {format_actor(gate.actor)}" if gate.actor else ""


def _gate_end(gate: Gate, now: Micros) -> str:
    if gate.until is None:
        return f"until someone {_GATE_TERMS[gate.scope].opens} it"
    return f"until {_time_in(gate.until, now)}"


def _running_phase(row: JobRow) -> Phase:
    attempt = f"attempt {row.attempt}"
    if row.started_at is not None:
        attempt += f" since {format_time(row.started_at)}"
    if read_cause(row.settings) is not None:
        return Phase("undoing", f"undoes its steps ({attempt})")
    if row.cancel_reason is None:
        return Phase("running", attempt)
    request = "asked to stop"
    if row.cancel_reason:
        request += f": {row.cancel_reason}"
    return Phase("stopping", f"{request}; ends when its code has stopped ({attempt})")


def _final_reason(row: JobRow) -> str:
    text = str(row.state)
    if row.finished_at is not None:
        text += f" {format_time(row.finished_at)}"
    if row.reason:
        text += f": {row.reason}"
    return text


# --- Full sentence with the command to type ---
def describe_now(row: JobRow, context: WaitContext) -> str:
    """Return one line: what the job does or waits for, until when, and the command that ends it."""
    return _DESCRIBE_STATE[State(row.state)](row, context)


def _describe_queued(row: JobRow, context: WaitContext) -> str:
    return f"{_describe_wait(row, context)}{_deadline(row, context)}"


def _describe_wait(row: JobRow, context: WaitContext) -> str:
    gate = find_blocking_gate(row, context.gates, context.now)
    if gate is not None:
        return _describe_gate(gate, context.now)
    if row.run_at > context.now:
        return _describe_not_due(row, context.now)
    if context.workers == 0:
        return (
            f"Waiting: no live worker takes kind {row.kind} from queue {row.queue}. "
            "Start one: mulligan worker APP"
        )
    delay = _describe_delay(row, context)
    if delay:
        return f"Waiting: {delay}"
    workers = "1 live worker" if context.workers == 1 else f"{context.workers:,} live workers"
    return (
        f"Waiting for a free slot: {workers} can run it, {context.free_slots:,} slots are free. "
        "To add capacity: mulligan worker APP"
    )


def _describe_delay(row: JobRow, context: WaitContext) -> str:
    """Return which budget, recovery or limit delays a due job; empty if none does."""
    state = context.limit_state
    over_budget = guards.describe_budget(row, state.dependencies, context.now)
    if over_budget:
        return f"{over_budget}. To allow more, raise budget= in app.dependency()."
    recovering = guards.describe_recovery(row, state.dependencies)
    if recovering:
        return f"{recovering}. No command makes this faster."
    full = find_full_limit(row, state)
    if full is None:
        return ""
    scope, key = full.key
    command = f"{_LIMIT_COMMANDS[scope]} {quote(key)} --concurrency N --rate N/s"
    return f"{describe_limit(full)}. To raise the limit: {command}"


def _describe_gate(gate: Gate, now: Micros) -> str:
    since = format_time(gate.since)
    if guards.is_breaker_gate(gate):
        cause = f" ({one_line(gate.reason)})" if gate.reason else ""
        return (
            f"Waiting: dependency {gate.key} is down since {since}{cause}; "
            f"{guards.describe_next_probe(gate, now)}. "
            f"To probe it now: {guards.probe_command(gate)}. "
            f"To release all its jobs without a probe: {guards.close_command(gate)}"
        )
    terms = _GATE_TERMS[gate.scope]
    reason = f", reason {one_line(gate.reason)!r}" if gate.reason else ""
    return (
        f"Waiting: {gate.scope} {gate.key} is {terms.closed} since {since}{_closed_by(gate)}"
        f"{reason}, {_gate_end(gate, now)}. Sooner: {terms.open_command} {quote(gate.key)}"
    )


def _describe_not_due(row: JobRow, now: Micros) -> str:
    due = _time_in(row.run_at, now)
    run_now = (
        "To run it now, with fresh counters: "
        f"mulligan jobs cancel {row.id} && mulligan jobs retry {row.id}"
    )
    if row.waits is not None:
        return f"Waiting without a slot: {describe_waits(row.waits, row.id, now)}"
    if row.attempt == 0:
        return f"Scheduled for {due}. {run_now}"
    reason = f" ({one_line(row.reason)})" if row.reason else ""
    return f"Waiting for its next attempt{reason}, due {due}. {run_now}"


def _describe_running(row: JobRow, context: WaitContext) -> str:
    started_at = row.started_at or context.now
    elapsed = format_elapsed(started_at, context.now)
    attempt = f"Attempt {row.attempt} has been running for {elapsed} on worker {row.worker}."
    if row.cancel_reason is not None:
        reason = f" ({one_line(row.cancel_reason)})" if row.cancel_reason else ""
        return f"{attempt} It was asked to stop{reason} and ends when its code has stopped."
    limit = ""
    if context.timeout is not None:
        limit = f" Its time limit is {_time_from(started_at + context.timeout, context.now)}."
    return f"{attempt}{limit} To stop it: mulligan jobs cancel {row.id}"


def _describe_parked(row: JobRow, context: WaitContext) -> str:
    question = as_sentence(row.reason or "a person must decide")
    command = f"mulligan jobs release {row.id}"
    choices = json.loads(row.choices or "[]")
    if choices:
        command += f" --choice {'|'.join(map(one_line, choices))}"
    deadline = _deadline(row, context)
    return f"Parked until a person decides: {question} To continue it: {command}{deadline}"


def _describe_succeeded(row: JobRow, context: WaitContext) -> str:
    took = ""
    if row.finished_at:
        took = f", {format_elapsed(row.created_at, row.finished_at)} after it was enqueued"
    attempt = f"attempt {row.attempt}"
    if row.generation > 1:
        attempt += f" of generation {row.generation}"
    return f"Succeeded{_finished(row, context)}{took}, on {attempt}. Nothing is left to do."


def _describe_dead(row: JobRow, context: WaitContext) -> str:
    error: Mapping[str, Any] = json.loads(row.error or "{}")
    cause = "."
    if error:
        cause = f" with {error.get('code')}: {as_sentence(str(error.get('message') or ''))}"
    retry = f"To retry it: mulligan jobs retry {row.id} --reason WHY"
    return f"Died{_finished(row, context)}{cause} {retry}"


def _describe_cancelled(row: JobRow, context: WaitContext) -> str:
    reason = f": {as_sentence(row.reason)}" if row.reason else "."
    retry = f"To run it anyway: mulligan jobs retry {row.id}"
    return f"Cancelled{_finished(row, context)}{reason} {retry}"


_DESCRIBE_STATE: Mapping[State, Callable[[JobRow, WaitContext], str]] = {
    State.QUEUED: _describe_queued,
    State.RUNNING: _describe_running,
    State.PARKED: _describe_parked,
    State.SUCCEEDED: _describe_succeeded,
    State.DEAD: _describe_dead,
    State.CANCELLED: _describe_cancelled,
}


def _deadline(row: JobRow, context: WaitContext) -> str:
    if row.deadline_at is None:
        return ""
    return f" (Dies if it has not ended by {_time_from(row.deadline_at, context.now)}.)"


def _finished(row: JobRow, context: WaitContext) -> str:
    if row.finished_at is None:
        return ""
    elapsed = format_elapsed(row.finished_at, context.now)
    return f" at {format_time(row.finished_at)} ({elapsed} ago)"


def _time_in(at: Micros, now: Micros) -> str:
    return f"{format_time(at)} (in {format_elapsed(now, at)})"


def _time_from(at: Micros, now: Micros) -> str:
    if at > now:
        return _time_in(at, now)
    return f"{format_time(at)} ({format_elapsed(at, now)} ago)"

"""Where a job stands now, in one line: why, until when, and what to type to end that sooner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import NamedTuple

from mulligan.core.format import moment, one_line, per, span, stopped, who
from mulligan.core.job import Gate, Guarded, JobRow, Lane, Limit, Micros, State
from mulligan.guards import describe as holding
from mulligan.guards.describe import GuardedDependency
from mulligan.guards.lanes import is_closed

# What people want to see beyond the stored state: a phase, and one sentence that says why.

_SOONER = "cancel it and retry it by hand to run it now"


class Traffic(NamedTuple):
    """The limits that hold now, how many run under each, and the dependencies whose guards are at work."""

    limits: Mapping[Guarded, Limit]
    running: Mapping[Guarded, int]
    kept: Mapping[str, GuardedDependency] = {}


NO_TRAFFIC = Traffic({}, {})


def phase(
    row: JobRow,
    gates: Iterable[Gate],
    now: Micros,
    known_kinds: frozenset[str] | None = None,
    traffic: Traffic = NO_TRAFFIC,
) -> tuple[str, str]:
    """(phase, why): why it is so, when that ends, and what would end it sooner."""
    if row.state == State.QUEUED:
        return _queued_phase(row, gates, now, known_kinds, traffic)
    if row.state == State.RUNNING:
        return _running_phase(row)
    if row.state == State.PARKED:
        return "parked", f"{_given(row, 'a person must decide')}; release, retry or discard it"
    return str(row.state), _final(row)


def _queued_phase(
    row: JobRow,
    gates: Iterable[Gate],
    now: Micros,
    known_kinds: frozenset[str] | None,
    traffic: Traffic,
) -> tuple[str, str]:
    gate = keeps(row, gates, now)
    if gate is not None:
        return "held", _held(gate, now)
    if row.run_at <= now and known_kinds is not None and row.kind not in known_kinds:
        return "no_worker", f"no live worker knows kind {row.kind}; start one that does"
    if row.run_at <= now:
        return _slowed_phase(row, now, traffic) or ("ready", "waits for a free worker")
    if row.attempt == 0:
        return "scheduled", f"due {_in_time(row.run_at, now)}; {_SOONER}"
    return (
        "backing_off",
        f"{_given(row, 'waits before the next attempt')}; next attempt {_in_time(row.run_at, now)}; {_SOONER}",
    )


def _slowed_phase(row: JobRow, now: Micros, traffic: Traffic) -> tuple[str, str] | None:
    if short := holding.over_budget(row, traffic.kept, now):
        return "over_budget", short
    if slow := holding.recovering(row, traffic.kept):
        return "limited", f"{slow}; waits for its turn"
    full = full_limit(row, traffic)
    return full and ("limited", limit_words(*full))


def full_limit(row: JobRow, traffic: Traffic) -> tuple[Guarded, Limit, int] | None:
    """The first limit on its way that leaves no room, or that a rate paces; and how many run under it."""
    for key in Lane(row.queue, row.kind, row.uses, retry=False).guards:
        limit, running = traffic.limits.get(key, Limit()), traffic.running.get(key, 0)
        if limit.rate is not None or (
            limit.concurrency is not None and running >= limit.concurrency
        ):
            return key, limit, running
    return None


def limit_words(key: Guarded, limit: Limit, running: int) -> str:
    name = " ".join(key)
    if limit.concurrency is not None and running >= limit.concurrency:
        return f"{name} runs at most {limit.concurrency} at a time, {running} now; waits for one to end"
    return f"{name} starts at most {per(limit.rate or 0)}; waits for its turn"


def keeps(row: JobRow, gates: Iterable[Gate], now: Micros) -> Gate | None:
    """The closed gate that keeps this job longest, if it does so longer than the job's own time."""
    uses = row.uses.split(",") if row.uses else []
    on_the_way = {("queue", row.queue), ("kind", row.kind), *(("dependency", key) for key in uses)}
    closed = [
        gate for gate in gates if (gate.scope, gate.key) in on_the_way and is_closed(gate, now)
    ]
    gate = max(closed, key=_lasting, default=None)
    end = None if gate is None else holding.ends_at(gate)
    return gate if row.run_at <= now or end is None or end >= row.run_at else None


def _lasting(gate: Gate) -> tuple[bool, Micros]:
    end = holding.ends_at(gate)
    return end is None, end or 0


def _held(gate: Gate, now: Micros) -> str:
    because = f": {gate.reason.rstrip('.')}" if gate.reason else ""
    since = f"since {moment(gate.since)}"
    if holding.is_down(gate):
        sooner = f"look now: {holding.looks_now(gate)}; let all go: {holding.lets_go(gate)}"
        return f"dependency {gate.key} is down {since}{because}; {holding.next_probe(gate, now)}; {sooner}"
    by = f" by {who(gate.actor)}" if gate.actor else ""
    verb, word, undo = _WORDS[gate.scope]
    end = (
        f"until somebody {word} it" if gate.until is None else f"until {_in_time(gate.until, now)}"
    )
    return f"{gate.scope} {gate.key} is {verb} {since}{by}, {end}{because}; sooner: mulligan {undo} {quote(gate.key)}"


# By scope: what is done to it, who undoes it …s it, and how.
_WORDS = {
    "queue": ("paused", "resumes", "queues resume"),
    "kind": ("held", "releases", "kinds release"),
    "dependency": ("held", "closes", "deps close"),
}


def _running_phase(row: JobRow) -> tuple[str, str]:
    since = f"attempt {row.attempt}" + (
        f" since {moment(row.started_at)}" if row.started_at is not None else ""
    )
    if row.cancel_reason is None:
        return "running", since
    asked = f"asked to stop: {row.cancel_reason}" if row.cancel_reason else "asked to stop"
    return "stopping", f"{asked}; ends when its code has stopped ({since})"


def _final(row: JobRow) -> str:
    when = (
        f"{row.state} {moment(row.finished_at)}" if row.finished_at is not None else str(row.state)
    )
    return f"{when}: {row.reason}" if row.reason else when


def _given(row: JobRow, otherwise: str) -> str:
    return row.reason or otherwise


def _in_time(at: Micros, now: Micros) -> str:
    return f"{moment(at)} (in {span(now, at)})"


# Where a job stands now, in one line: why, until when, and what to type to end that sooner.

# What opens a gate by hand. One that is not here opens by itself, or by what closed it.
_OPENERS = {
    "queue": "mulligan queues resume {key}",
    "kind": "mulligan kinds release {key}",
    "dependency": "mulligan deps close {key}",
}
_UNDO = {"queue": "resumes", "kind": "releases", "dependency": "closes"}
_MORE = {"queue": "mulligan queues set", "dependency": "mulligan deps set"}


class JobSurroundings(NamedTuple):
    """What surrounds a job at this moment."""

    now: Micros
    gates: Iterable[Gate] = ()
    traffic: Traffic = NO_TRAFFIC
    workers: int = 0  # live ones that take this kind from this queue
    free: int = 0  # places they have left
    timeout: Micros | None = None  # of an attempt that runs


def standing(row: JobRow, scene: JobSurroundings) -> str:
    return _SAY[State(row.state)](row, scene)


def _queued(row: JobRow, scene: JobSurroundings) -> str:
    return f"{_waits(row, scene)}{_deadline(row, scene)}"


def _waits(row: JobRow, scene: JobSurroundings) -> str:
    gate = keeps(row, scene.gates, scene.now)
    if gate is not None:
        return _shut(gate, scene.now)
    if row.run_at > scene.now:
        return _not_yet(row, scene.now)
    if scene.workers == 0:
        return (
            f"It is due and waits: no live worker takes kind {row.kind} from queue {row.queue}, and so it stays until "
            "one does. Start one: mulligan worker APP"
        )
    slow = _slowed(row, scene)
    if slow:
        return f"It is due and waits: {slow}"
    return (
        f"It is due and waits for a free place: {_count(scene.workers, 'live worker')} take it, with {scene.free} of "
        "their places free now. Another one makes it sooner: mulligan worker APP"
    )


def _slowed(row: JobRow, scene: JobSurroundings) -> str:
    """What lets only some of those that are due start; empty: nothing does."""
    if short := holding.over_budget(row, scene.traffic.kept, scene.now):
        return f"{short}. To allow more: a larger budget= in app.dependency()"
    if slow := holding.recovering(row, scene.traffic.kept):
        return f"{slow}; when its turn comes cannot be said. No command does it sooner."
    full = full_limit(row, scene.traffic)
    if full is None:
        return ""
    (scope, key), *_ = full
    sooner = f"{_MORE[scope]} {quote(key)} --concurrency N --rate N/s"
    return f"{limit_words(*full)}; when that is cannot be said. To allow more: {sooner}"


def _shut(gate: Gate, now: Micros) -> str:
    since = f"since {moment(gate.since)}"
    if holding.is_down(gate):
        after = f", after {one_line(gate.reason)}" if gate.reason else ""
        return (
            f"It waits because dependency {gate.key} is down, {since}{after}; {holding.next_probe(gate, now)}. "
            f"Look now: {holding.looks_now(gate)}. Let all go, whatever it answers: {holding.lets_go(gate)}"
        )
    verb = "paused" if gate.scope == "queue" else "held"
    by = f" by {who(gate.actor)}" if gate.actor else ""
    because = f", with the reason {one_line(gate.reason)!r}" if gate.reason else ""
    undo = _UNDO.get(gate.scope, "opens")
    end = f"until somebody {undo} it" if gate.until is None else f"until {_at(gate.until, now)}"
    return f"It waits because {gate.scope} {gate.key} is {verb}, {since}{by}{because}, {end}.{_opener(gate)}"


def _opener(gate: Gate) -> str:
    command = _OPENERS.get(gate.scope)
    if command is not None:
        return f" Sooner: {command.format(key=quote(gate.key))}"
    return "" if gate.until is None else " It opens by itself then; no command does it sooner."


def _not_yet(row: JobRow, now: Micros) -> str:
    sooner = f"Sooner, with fresh counters: mulligan jobs cancel {row.id} && mulligan jobs retry {row.id}"
    if row.attempt == 0:
        return f"It waits for its time, {_at(row.run_at, now)}. {sooner}"
    reason = f" ({one_line(row.reason)})" if row.reason else ""
    return f"It waits before its next attempt{reason}, which is due at {_at(row.run_at, now)}. {sooner}"


def _running(row: JobRow, scene: JobSurroundings) -> str:
    started = row.started_at or scene.now
    runs = f"Attempt {row.attempt} has been running for {span(started, scene.now)} on worker {row.worker}"
    if row.cancel_reason is not None:
        asked = f" ({one_line(row.cancel_reason)})" if row.cancel_reason else ""
        return f"{runs}. It was asked to stop{asked} and ends when its code has stopped."
    limit = (
        ""
        if scene.timeout is None
        else f"; its time limit ends it at {_at(started + scene.timeout, scene.now)}"
    )
    return f"{runs}{limit}. To stop it: mulligan jobs cancel {row.id}"


def _parked(row: JobRow, scene: JobSurroundings) -> str:
    offered = json.loads(row.choices or "[]")
    choices = f" --choice {'|'.join(map(one_line, offered))}" if offered else ""
    asks = stopped(row.reason or "a person must decide")
    return (
        f"It waits for a person, for as long as nobody decides: {asks} To let it go on: "
        f"mulligan jobs release {row.id}{choices}{_deadline(row, scene)}"
    )


def _succeeded(row: JobRow, scene: JobSurroundings) -> str:
    took = (
        f", {span(row.created_at, row.finished_at)} after it was enqueued"
        if row.finished_at
        else ""
    )
    life = f" of life {row.generation}" if row.generation > 1 else ""
    return f"It succeeded{_ended(row, scene)}{took}, on attempt {row.attempt}{life}. Nothing is left to do."


def _dead(row: JobRow, scene: JobSurroundings) -> str:
    error: Mapping[str, object] = json.loads(row.error or "{}")
    why = f" with {error.get('code')}: {stopped(str(error.get('message') or ''))}" if error else "."
    again = f"Nothing more happens unless somebody retries it: mulligan jobs retry {row.id} --reason WHY"
    return f"It died{_ended(row, scene)}{why} {again}"


def _cancelled(row: JobRow, scene: JobSurroundings) -> str:
    reason = f": {stopped(row.reason)}" if row.reason else "."
    return f"It was cancelled{_ended(row, scene)}{reason} To run it all the same: mulligan jobs retry {row.id}"


_SAY: Mapping[State, Callable[[JobRow, JobSurroundings], str]] = {
    State.QUEUED: _queued,
    State.RUNNING: _running,
    State.PARKED: _parked,
    State.SUCCEEDED: _succeeded,
    State.DEAD: _dead,
    State.CANCELLED: _cancelled,
}


def _deadline(row: JobRow, scene: JobSurroundings) -> str:
    return (
        ""
        if row.deadline_at is None
        else f" (It dies if it has not ended by {_at(row.deadline_at, scene.now)}.)"
    )


def _ended(row: JobRow, scene: JobSurroundings) -> str:
    if row.finished_at is None:
        return ""
    return f" at {moment(row.finished_at)} ({span(row.finished_at, scene.now)} ago)"


def _at(at: Micros, now: Micros) -> str:
    return (
        f"{moment(at)} (in {span(now, at)})" if at > now else f"{moment(at)} ({span(at, now)} ago)"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

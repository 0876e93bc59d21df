"""Where a job stands now, in one line: why, until when, and what to type to end that sooner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import NamedTuple

from mulligan.job import Gate, JobRow, Micros, State
from mulligan.policy import holding
from mulligan.policy.phase import NO_TRAFFIC, Traffic, full_limit, keeps, limit_words
from mulligan.policy.phrase import moment, one_line, span, stopped, who

# What opens a gate by hand. One that is not here opens by itself, or by what closed it.
_OPENERS = {
    "queue": "mulligan queues resume {key}",
    "kind": "mulligan kinds release {key}",
    "dependency": "mulligan deps close {key}",
}
_UNDO = {"queue": "resumes", "kind": "releases", "dependency": "closes"}
_MORE = {"queue": "mulligan queues set", "dependency": "mulligan deps set"}


class Scene(NamedTuple):
    """What surrounds a job at this moment."""

    now: Micros
    gates: Iterable[Gate] = ()
    traffic: Traffic = NO_TRAFFIC
    workers: int = 0  # live ones that take this kind from this queue
    free: int = 0  # places they have left
    timeout: Micros | None = None  # of an attempt that runs


def standing(row: JobRow, scene: Scene) -> str:
    return _SAY[State(row.state)](row, scene)


def _queued(row: JobRow, scene: Scene) -> str:
    return f"{_waits(row, scene)}{_deadline(row, scene)}"


def _waits(row: JobRow, scene: Scene) -> str:
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


def _slowed(row: JobRow, scene: Scene) -> str:
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


def _running(row: JobRow, scene: Scene) -> str:
    started = row.started_at or scene.now
    runs = f"Attempt {row.attempt} has been running for {span(started, scene.now)} on worker {row.worker}"
    if row.cancel_reason is not None:
        asked = f" ({one_line(row.cancel_reason)})" if row.cancel_reason else ""
        return f"{runs}. It was asked to stop{asked} and ends when its code has stopped."
    limit = "" if scene.timeout is None else f"; its time limit ends it at {_at(started + scene.timeout, scene.now)}"
    return f"{runs}{limit}. To stop it: mulligan jobs cancel {row.id}"


def _parked(row: JobRow, scene: Scene) -> str:
    offered = json.loads(row.choices or "[]")
    choices = f" --choice {'|'.join(map(one_line, offered))}" if offered else ""
    asks = stopped(row.reason or "a person must decide")
    return (
        f"It waits for a person, for as long as nobody decides: {asks} To let it go on: "
        f"mulligan jobs release {row.id}{choices}{_deadline(row, scene)}"
    )


def _succeeded(row: JobRow, scene: Scene) -> str:
    took = f", {span(row.created_at, row.finished_at)} after it was enqueued" if row.finished_at else ""
    life = f" of life {row.generation}" if row.generation > 1 else ""
    return f"It succeeded{_ended(row, scene)}{took}, on attempt {row.attempt}{life}. Nothing is left to do."


def _dead(row: JobRow, scene: Scene) -> str:
    error: Mapping[str, object] = json.loads(row.error or "{}")
    why = f" with {error.get('code')}: {stopped(str(error.get('message') or ''))}" if error else "."
    again = f"Nothing more happens unless somebody retries it: mulligan jobs retry {row.id} --reason WHY"
    return f"It died{_ended(row, scene)}{why} {again}"


def _cancelled(row: JobRow, scene: Scene) -> str:
    reason = f": {stopped(row.reason)}" if row.reason else "."
    return f"It was cancelled{_ended(row, scene)}{reason} To run it all the same: mulligan jobs retry {row.id}"


_SAY: Mapping[State, Callable[[JobRow, Scene], str]] = {
    State.QUEUED: _queued,
    State.RUNNING: _running,
    State.PARKED: _parked,
    State.SUCCEEDED: _succeeded,
    State.DEAD: _dead,
    State.CANCELLED: _cancelled,
}


def _deadline(row: JobRow, scene: Scene) -> str:
    return "" if row.deadline_at is None else f" (It dies if it has not ended by {_at(row.deadline_at, scene.now)}.)"


def _ended(row: JobRow, scene: Scene) -> str:
    if row.finished_at is None:
        return ""
    return f" at {moment(row.finished_at)} ({span(row.finished_at, scene.now)} ago)"


def _at(at: Micros, now: Micros) -> str:
    return f"{moment(at)} (in {span(now, at)})" if at > now else f"{moment(at)} ({span(at, now)} ago)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

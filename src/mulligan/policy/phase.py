"""What people want to see beyond the stored state: a phase, and one sentence that says why.

Derived each time it is asked, so it can never disagree with the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from shlex import quote
from typing import NamedTuple

from mulligan.job import Gate, Guarded, JobRow, Lane, Limit, Micros, State
from mulligan.policy import holding
from mulligan.policy.holding import Kept
from mulligan.policy.lanes import is_closed
from mulligan.policy.phrase import moment, per, span, who

_SOONER = "cancel it and retry it by hand to run it now"


class Traffic(NamedTuple):
    """The limits that hold now, how many run under each, and the dependencies whose guards are at work."""

    limits: Mapping[Guarded, Limit]
    running: Mapping[Guarded, int]
    kept: Mapping[str, Kept] = {}


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
        return _queued(row, gates, now, known_kinds, traffic)
    if row.state == State.RUNNING:
        return _running(row)
    if row.state == State.PARKED:
        return "parked", f"{_given(row, 'a person must decide')}; release, retry or discard it"
    return str(row.state), _final(row)


def _queued(
    row: JobRow, gates: Iterable[Gate], now: Micros, known_kinds: frozenset[str] | None, traffic: Traffic
) -> tuple[str, str]:
    gate = keeps(row, gates, now)
    if gate is not None:
        return "held", _held(gate, now)
    if row.run_at <= now and known_kinds is not None and row.kind not in known_kinds:
        return "no_worker", f"no live worker knows kind {row.kind}; start one that does"
    if row.run_at <= now:
        return _slowed(row, now, traffic) or ("ready", "waits for a free worker")
    if row.attempt == 0:
        return "scheduled", f"due {_at(row.run_at, now)}; {_SOONER}"
    return (
        "backing_off",
        f"{_given(row, 'waits before the next attempt')}; next attempt {_at(row.run_at, now)}; {_SOONER}",
    )


def _slowed(row: JobRow, now: Micros, traffic: Traffic) -> tuple[str, str] | None:
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
        if limit.rate is not None or (limit.concurrency is not None and running >= limit.concurrency):
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
    closed = [gate for gate in gates if (gate.scope, gate.key) in on_the_way and is_closed(gate, now)]
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
    end = f"until somebody {word} it" if gate.until is None else f"until {_at(gate.until, now)}"
    return f"{gate.scope} {gate.key} is {verb} {since}{by}, {end}{because}; sooner: mulligan {undo} {quote(gate.key)}"


# By scope: what is done to it, who undoes it …s it, and how.
_WORDS = {
    "queue": ("paused", "resumes", "queues resume"),
    "kind": ("held", "releases", "kinds release"),
    "dependency": ("held", "closes", "deps close"),
}


def _running(row: JobRow) -> tuple[str, str]:
    since = f"attempt {row.attempt}" + (f" since {moment(row.started_at)}" if row.started_at is not None else "")
    if row.cancel_reason is None:
        return "running", since
    asked = f"asked to stop: {row.cancel_reason}" if row.cancel_reason else "asked to stop"
    return "stopping", f"{asked}; ends when its code has stopped ({since})"


def _final(row: JobRow) -> str:
    when = f"{row.state} {moment(row.finished_at)}" if row.finished_at is not None else str(row.state)
    return f"{when}: {row.reason}" if row.reason else when


def _given(row: JobRow, otherwise: str) -> str:
    return row.reason or otherwise


def _at(at: Micros, now: Micros) -> str:
    return f"{moment(at)} (in {span(now, at)})"

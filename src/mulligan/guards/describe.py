"""Sentences about guards: why a job waits for a dependency, and which gates delayed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import (
    format_actor,
    format_duration,
    format_elapsed,
    format_rate,
    format_time,
    format_time_after,
    one_line,
)
from mulligan.core.job import Gate, JobRow, split_uses
from mulligan.guards import budget as budgets
from mulligan.guards.state import BreakerConfig, GuardState

BREAKER = "breaker"  # actor of changes that a breaker makes itself


class GuardedDependency(NamedTuple):
    """A dependency whose guard affects claims."""

    guard: GuardState
    config: BreakerConfig


# --- Held ---


def is_breaker_gate(gate: Gate) -> bool:
    """Return True if a breaker closed the gate. Other gates wait for a time or a person."""
    return gate.scope == "dependency" and gate.actor == BREAKER


def expected_end(gate: Gate) -> Micros | None:
    """Return when the gate may open, or None if a person must open it."""
    if gate.until is None and is_breaker_gate(gate):
        return gate.probe_at
    return gate.until


def describe_next_probe(gate: Gate, now: Micros) -> str:
    if gate.probe_at is None or gate.probe_at <= now:
        return "a probe runs as soon as a worker is free"
    return f"next probe {format_time(gate.probe_at)} (in {format_elapsed(now, gate.probe_at)})"


def close_command(gate: Gate) -> str:
    """Return the command that closes the breaker of a held dependency."""
    return f"mulligan deps close {quote(gate.key)}"


def probe_command(gate: Gate) -> str:
    """Return the command that probes a held dependency now."""
    return f"mulligan deps probe {quote(gate.key)}"


# --- Recovering ---


def describe_recovery(row: JobRow, dependencies: Mapping[str, GuardedDependency]) -> str:
    """Explain which dependency of a job recovers from an outage; empty if none does."""
    for key in split_uses(row.uses):
        ramp = dependencies[key].guard.ramp if key in dependencies else None
        if ramp is not None:
            rate = format_rate(ramp.rate)
            return (
                f"dependency {key} is recovering from an outage: {rate} may start now,"
                " more while calls succeed"
            )
    return ""


# --- Over budget ---


def describe_budget(row: JobRow, dependencies: Mapping[str, GuardedDependency], now: Micros) -> str:
    """Explain which retry budget delays a retry; empty if none does."""
    if not row.failures:
        return ""
    for key in split_uses(row.uses):
        dependency = dependencies.get(key)
        if dependency is None:
            continue
        config = dependency.config.budget
        bucket = dependency.guard.bucket
        if config is None or bucket is None or not budgets.is_low(bucket, config):
            continue
        if budgets.available_retries(bucket, config, now):
            continue
        at = budgets.next_retry_at(bucket, config, now) or now
        wait = format_duration(max(1, round((at - now) / SECOND)))
        return (
            f"the retry budget of dependency {key} is used up: {_describe_refill(config)};"
            f" next retry in about {wait}"
        )
    return ""


def _describe_refill(config: budgets.BudgetConfig) -> str:
    by_time = f"{format_rate(config.rate)} may start"
    if not config.share:
        return by_time
    return f"{by_time}, one more for every {1 / config.share:.0f} first attempts that succeed"


def gate_keys(row: JobRow) -> set[tuple[str, str]]:
    """Return (scope, key) of the gates that can hold a job."""
    keys = {("queue", row.queue), ("kind", row.kind)}
    keys.update(("dependency", key) for key in split_uses(row.uses))
    return keys


# --- Past closures ---

CLOSED: Mapping[str, str] = {
    EventType.QUEUE_PAUSED: "queue",
    EventType.DEPENDENCY_OPENED: "dependency",
    EventType.KIND_HELD: "kind",
}
OPENED: Mapping[str, str] = {
    EventType.QUEUE_RESUMED: "queue",
    EventType.DEPENDENCY_CLOSED: "dependency",
    EventType.KIND_RELEASED: "kind",
}


@dataclass(frozen=True, slots=True)
class GateClosure:
    """A period in which a gate was closed. Unknown times are None."""

    scope: str
    key: str
    since: Micros | None
    until: Micros | None
    actor: str = ""
    reason: str = ""
    opened_by: str = ""
    opened_why: str = ""

    def overlaps(self, start: Micros, end: Micros) -> bool:
        """Return True if the gate was closed at some time between the two."""
        began_before = self.since is None or self.since < end
        ended_after = self.until is None or self.until > start
        return began_before and ended_after


def find_closures(row: JobRow, gates: Iterable[Gate], events: Sequence[Event]) -> list[GateClosure]:
    """Return the closures of the gates of a job, oldest first.

    `gates` are the current ones, `events` the changes of gates so far.
    """
    keys = gate_keys(row)
    found = []
    for closure in _closures_from_events(events):
        if (closure.scope, closure.key) in keys:
            found.append(closure)
    known = {(closure.scope, closure.key, closure.until) for closure in found}
    for gate in gates:
        is_known = (gate.scope, gate.key, gate.until) in known
        if (gate.scope, gate.key) in keys and not is_known:
            found.append(
                GateClosure(gate.scope, gate.key, gate.since, gate.until, gate.actor, gate.reason)
            )
    return sorted(found, key=lambda closure: closure.since or 0)


def _closures_from_events(events: Sequence[Event]) -> Iterator[GateClosure]:
    """Fold events into closures: a later event about a gate ends its closure before."""
    closed: dict[tuple[str, str], GateClosure] = {}
    for event in events:
        scope = CLOSED.get(event.type) or OPENED[event.type]
        key = str(event.data.get(scope, ""))
        reason = str(event.data.get("reason") or "")
        before = closed.pop((scope, key), None)
        if event.type in OPENED:
            closure = before or GateClosure(scope, key, None, None)
            yield replace(closure, until=event.at, opened_by=event.actor, opened_why=reason)
            continue
        if before is not None:
            if before.until is None:
                before = replace(before, until=event.at)
            yield before
        until = event.data.get("until")
        closed[scope, key] = GateClosure(scope, key, event.at, until, event.actor, reason)
    yield from closed.values()


def describe_closure(closure: GateClosure, reference: Micros) -> str:
    """Return `queue mail was paused by kim, with the reason 'deploy', from … until …`.

    Times on the day of `reference` are written without their date.
    """
    closed, opened = ("paused", "resumed") if closure.scope == "queue" else ("held", "released")
    parts = [f"{closure.scope} {closure.key} was {closed}"]
    if closure.actor:
        parts.append(f" by {format_actor(closure.actor)}")
    if closure.reason:
        parts.append(f", with the reason {one_line(closure.reason)!r},")
    if closure.since is not None:
        parts.append(f" from {format_time_after(closure.since, reference)}")
    if closure.until is not None:
        parts.append(f" until {format_time_after(closure.until, reference)}")
    if closure.opened_by:
        parts.append(f", when {format_actor(closure.opened_by)} {opened} it")
    if closure.opened_why:
        parts.append(f", with the reason {one_line(closure.opened_why)!r}")
    return "".join(parts)

"""What kept a job from starting, looking back: which queue or dependency was closed, from when to when, by whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import NamedTuple

from mulligan.core.event import Event, EventType
from mulligan.core.format import clock, duration, moment, one_line, per, span, who
from mulligan.core.job import SECOND, Gate, JobRow, Micros
from mulligan.guards import budget as budgets
from mulligan.guards.state import BreakerTerms, GuardState

# What stands between a job and something it uses, in words: a hold, a recovery, a budget that is used up.

BREAKER = "breaker"  # the actor of what a breaker does by itself


class GuardedDependency(NamedTuple):
    """A dependency whose guard is at work."""

    guard: GuardState
    terms: BreakerTerms


# -- held -------------------------------------------------------------------------------------------
def is_down(gate: Gate) -> bool:
    """By its breaker, which looks again by itself; all others wait for a time or a person."""
    return gate.scope == "dependency" and gate.actor == BREAKER


def ends_at(gate: Gate) -> Micros | None:
    """When it may be over, as far as anybody knows; None: when a person says so."""
    return gate.until if gate.until is not None or not is_down(gate) else gate.probe_at


def next_probe(gate: Gate, now: Micros) -> str:
    if gate.probe_at is None or gate.probe_at <= now:
        return "a probe goes as soon as a worker is free"
    return f"next probe {moment(gate.probe_at)} (in {span(now, gate.probe_at)})"


def lets_go(gate: Gate) -> str:
    return f"mulligan deps close {quote(gate.key)}"


def looks_now(gate: Gate) -> str:
    return f"mulligan deps probe {quote(gate.key)}"


# -- recovering -------------------------------------------------------------------------------------
def recovering(row: JobRow, kept: Mapping[str, GuardedDependency]) -> str:
    """Of what it uses, what comes back after an outage; empty: nothing does."""
    for key in _used(row):
        ramp = kept[key].guard.ramp if key in kept else None
        if ramp is not None:
            return f"dependency {key} comes back after an outage: {per(ramp.rate)} may start now, more while all goes well"
    return ""


# -- over budget ------------------------------------------------------------------------------------
def over_budget(row: JobRow, kept: Mapping[str, GuardedDependency], now: Micros) -> str:
    """Of what a retry uses, what bears no more of them now; empty: nothing stands in its way."""
    for key in _used(row) if row.failures else []:
        terms, bucket = (
            (kept[key].terms.budget, kept[key].guard.bucket) if key in kept else (None, None)
        )
        if (
            terms is None
            or bucket is None
            or not budgets.low(bucket, terms)
            or budgets.allows(bucket, terms, now)
        ):
            continue
        at = budgets.next_token(bucket, terms, now) or now
        when = duration(max(1, round((at - now) / SECOND)))
        return (
            f"dependency {key} bears no more retries now: {_fed(terms)}, the next in about {when}"
        )
    return ""


def _fed(terms: budgets.BudgetTerms) -> str:
    time = f"{per(terms.rate)} may start"
    return (
        f"{time}, one more for every {1 / terms.share:.0f} first tries that succeed"
        if terms.share
        else time
    )


def _used(row: JobRow) -> list[str]:
    return [key for key in row.uses.split(",") if key]


# What kept a job from starting, looking back: which queue or dependency was closed, from when to when, by whom.

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
    """A gate that was shut. Times that are not known are None."""

    scope: str
    key: str
    since: Micros | None
    until: Micros | None
    actor: str = ""
    reason: str = ""
    opened_by: str = ""
    opened_why: str = ""

    def over(self, start: Micros, end: Micros) -> bool:
        """Was it shut at some time between the two?"""
        return (self.since is None or self.since < end) and (
            self.until is None or self.until > start
        )


def closures(row: JobRow, gates: Iterable[Gate], news: Sequence[Event]) -> list[GateClosure]:
    """Those on this job's way, oldest first. `gates` are as they stand, `news` what happened to them meanwhile."""
    keys = {
        ("queue", row.queue),
        ("kind", row.kind),
        *(("dependency", key) for key in row.uses.split(",") if key),
    }
    found = [one for one in _told(news) if (one.scope, one.key) in keys]
    known = {(one.scope, one.key, one.until) for one in found}
    standing = (
        GateClosure(gate.scope, gate.key, gate.since, gate.until, gate.actor, gate.reason)
        for gate in gates
    )
    more = [
        one
        for one in standing
        if (one.scope, one.key) in keys and (one.scope, one.key, one.until) not in known
    ]
    return sorted([*found, *more], key=lambda one: one.since or 0)


def _told(news: Sequence[Event]) -> Iterator[GateClosure]:
    """Fold the events: a later word about the same gate ends the one before."""
    open_: dict[tuple[str, str], GateClosure] = {}
    for event in news:
        scope = CLOSED.get(event.type) or OPENED[event.type]
        name = (scope, str(event.data.get(scope, "")))
        before = open_.pop(name, None)
        if event.type in OPENED:
            shut = before or GateClosure(*name, None, None)
            yield replace(
                shut,
                until=event.at,
                opened_by=event.actor,
                opened_why=str(event.data.get("reason") or ""),
            )
            continue
        if before is not None:
            yield before if before.until is not None else replace(before, until=event.at)
        open_[name] = GateClosure(
            *name,
            event.at,
            event.data.get("until"),
            event.actor,
            str(event.data.get("reason") or ""),
        )
    yield from open_.values()


def closure_words(one: GateClosure, beside: Micros) -> str:
    """`queue mail was paused by kim, with the reason 'deploy', from … until …, when ann opened it`."""
    verb = "paused" if one.scope == "queue" else "held"
    since = "" if one.since is None else f" from {clock(one.since, beside)}"
    until = "" if one.until is None else f" until {clock(one.until, beside)}"
    by = f" by {who(one.actor)}" if one.actor else ""
    because = f", with the reason {one_line(one.reason)!r}," if one.reason else ""
    undid = "let it go" if one.scope == "dependency" else "opened it"
    opened = f", when {who(one.opened_by)} {undid}" if one.opened_by else ""
    why = f", with the reason {one_line(one.opened_why)!r}" if one.opened_why else ""
    return f"{one.scope} {one.key} was {verb}{by}{because}{since}{until}{opened}{why}"

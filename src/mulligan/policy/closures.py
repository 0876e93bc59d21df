"""What kept a job from starting, looking back: which queue or dependency was closed, from when to when, by whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mulligan.event import Event, EventType
from mulligan.job import Gate, JobRow, Micros
from mulligan.policy.phrase import clock, one_line, who

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
class Closure:
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
        return (self.since is None or self.since < end) and (self.until is None or self.until > start)


def closures(row: JobRow, gates: Iterable[Gate], news: Sequence[Event]) -> list[Closure]:
    """Those on this job's way, oldest first. `gates` are as they stand, `news` what happened to them meanwhile."""
    keys = {("queue", row.queue), ("kind", row.kind), *(("dependency", key) for key in row.uses.split(",") if key)}
    found = [one for one in _told(news) if (one.scope, one.key) in keys]
    known = {(one.scope, one.key, one.until) for one in found}
    standing = (Closure(gate.scope, gate.key, gate.since, gate.until, gate.actor, gate.reason) for gate in gates)
    more = [one for one in standing if (one.scope, one.key) in keys and (one.scope, one.key, one.until) not in known]
    return sorted([*found, *more], key=lambda one: one.since or 0)


def _told(news: Sequence[Event]) -> Iterator[Closure]:
    """Fold the events: a later word about the same gate ends the one before."""
    open_: dict[tuple[str, str], Closure] = {}
    for event in news:
        scope = CLOSED.get(event.type) or OPENED[event.type]
        name = (scope, str(event.data.get(scope, "")))
        before = open_.pop(name, None)
        if event.type in OPENED:
            shut = before or Closure(*name, None, None)
            yield replace(shut, until=event.at, opened_by=event.actor, opened_why=str(event.data.get("reason") or ""))
            continue
        if before is not None:
            yield before if before.until is not None else replace(before, until=event.at)
        open_[name] = Closure(
            *name, event.at, event.data.get("until"), event.actor, str(event.data.get("reason") or "")
        )
    yield from open_.values()


def closure_words(one: Closure, beside: Micros) -> str:
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

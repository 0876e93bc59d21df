"""An incident: failures of one cause, or of one batch, told as one thing that grows and ends. Pure.

It opens with the first death; who is told hears of it a moment later, with the count so far; again whenever the count
has doubled, each time with more patience; and once when it is over, if he was told at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.job import SECOND, Micros

OPENED, GROWN, OVER = "opened", "grown", "over"
HOUR = 3600 * SECOND
LONGEST = 24 * HOUR  # between two updates
MOST_KINDS = 20

Facts = Mapping[str, Any]


class Terms(NamedTuple):
    gather: Micros = 5 * SECOND  # from the first death to the first message
    update_every: Micros = 60 * SECOND  # at least, doubled each time
    quiet: Micros = 900 * SECOND  # without a death: it is over
    cap: int = 20  # messages of one subscription to one owner within an hour


@dataclass(frozen=True, slots=True)
class Incident:
    key: str
    by: str  # group, batch
    count: int
    first_at: Micros
    last_at: Micros
    of: str = "job.died"
    job_id: str | None = None  # the first that died
    batch_id: str | None = None
    data: Facts = field(default_factory=dict)  # of its event
    kinds: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0  # what was to be said so far
    sent: int = 0  # of it: said
    told: int = 0  # the count at the last of them
    told_at: Micros = 0
    ended: str = ""  # why it is over, once it is

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Incident:
        return cls(**json.loads(text))


class Death(NamedTuple):
    """What an incident wants to know of an event."""

    at: Micros
    job_id: str | None
    batch_id: str | None
    data: Facts


def begun(key: str, by: str, death: Death, of: str = "job.died") -> Incident:
    kind = str(death.data.get("kind", ""))
    return Incident(
        key, by, 1, death.at, death.at, of, death.job_id, death.batch_id, dict(death.data), {kind: 1} if kind else {}
    )


def joined(incident: Incident, death: Death) -> Incident:
    kind = str(death.data.get("kind", ""))
    kinds = incident.kinds
    if kind and (kind in kinds or len(kinds) < MOST_KINDS):
        kinds = {**kinds, kind: kinds.get(kind, 0) + 1}
    first, last = min(incident.first_at, death.at), max(incident.last_at, death.at)
    return replace(incident, count=incident.count + 1, first_at=first, last_at=last, kinds=kinds)


def ended(incident: Incident, why: str) -> Incident:
    return replace(incident, ended=incident.ended or why)


def step(incident: Incident, now: Micros, terms: Terms) -> str | None:
    """What is to be said now."""
    if not incident.steps:
        return OPENED if now >= incident.first_at + terms.gather and not incident.ended else None
    if is_over(incident, now, terms):
        return OVER
    grown = incident.count >= 2 * incident.told and now >= incident.told_at + patience(incident, terms)
    return GROWN if grown else None


def is_over(incident: Incident, now: Micros, terms: Terms) -> bool:
    return bool(incident.ended) or now >= incident.last_at + terms.quiet


def patience(incident: Incident, terms: Terms) -> Micros:
    """How long after the last message another may follow."""
    doublings = min(max(0, incident.steps - 1), 20)
    return min(LONGEST, terms.update_every << doublings)


def said(incident: Incident, now: Micros, *, sent: bool) -> Incident:
    """Whatever was to be said was said, or kept back."""
    count = incident.sent + sent
    return replace(incident, steps=incident.steps + 1, sent=count, told=incident.count, told_at=now)


def due_at(incident: Incident, terms: Terms) -> Micros:
    """When to look at it again."""
    if incident.ended:
        return 0
    if not incident.steps:
        return incident.first_at + terms.gather
    over = incident.last_at + terms.quiet
    if incident.count < 2 * incident.told:
        return over
    return min(over, incident.told_at + patience(incident, terms))


# -- how much is too much -----------------------------------------------------------------------------
class Hour(NamedTuple):
    """What one subscription has told one owner since then."""

    since: Micros
    sent: int = 0
    withheld: int = 0


def counted(hour: Hour | None, now: Micros, cap: int) -> tuple[bool, Hour]:
    """May another message go? An hour that is over, and of which nothing was kept back, does not count."""
    if hour is None or (is_past(hour, now) and not hour.withheld):
        hour = Hour(now)
    if hour.sent < cap:
        return True, hour._replace(sent=hour.sent + 1)
    return False, hour._replace(withheld=hour.withheld + 1)


def is_past(hour: Hour, now: Micros) -> bool:
    return now >= hour.since + HOUR

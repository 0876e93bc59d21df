"""Who is told of an event: patterns of types, an owner, a batch, a filter. Pure, and quick for many subscriptions."""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.core.errors import Refused
from mulligan.core.event import Event, EventType
from mulligan.core.job import SECOND, Micros

OURS = "mulligan."  # how the names of kinds, queues and dependencies of our own begin
FORMS = ("each", "incident")
FOLDED = frozenset({"job.died", "job.parked"})  # what an incident is made of
FIELDS = ("kind", "queue", "code", "class")
MOST_PATTERNS = 50
MOST_VALUES = 20

Filter = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SubscriptionMatcher:
    """One of them, ready to be matched. `endpoint` is the dependency that its deliveries use."""

    id: str
    types: tuple[str, ...]
    owner: str | None = None  # None: whoever's
    batch: str | None = None
    filter: Filter = field(default_factory=dict)
    form: str = "each"
    channel: str = ""
    endpoint: str = ""
    apart: bool = False  # owners are told apart, each of their own failures
    after: int = 0
    declared: bool = False

    def hears(self, event: Event, facts: Mapping[str, Any]) -> bool:
        """`facts`: what the filter compares. The type is known to fit."""
        return (
            event.id > self.after
            and self.owner in (None, event.owner)
            and self.batch in (None, event.batch_id)
            and all(str(facts.get(name, "")) in values for name, values in self.filter.items())
            and not (
                event.type.startswith("subscription.") and event.data.get("subscription") == self.id
            )
        )

    def folds(self, event: Event) -> bool:
        """Is this event told as part of an incident?"""
        return self.form == "incident" and event.type in FOLDED


class SubscriptionBook:
    """Many subscriptions, by type and owner."""

    def __init__(self, subscriptions: Iterable[SubscriptionMatcher]) -> None:
        self.by_id = {one.id: one for one in subscriptions}
        self._heard: dict[tuple[str, str | None], list[SubscriptionMatcher]] = {}
        for one in self.by_id.values():
            for kind in one.types:
                self._heard.setdefault((kind, one.owner), []).append(one)
        self.types = {kind for kind, _ in self._heard}
        self.after = min((one.after for one in self.by_id.values()), default=0)

    def __len__(self) -> int:
        return len(self.by_id)

    def may_hear(self, event: Event) -> Iterator[SubscriptionMatcher]:
        """By type and owner alone."""
        yield from self._heard.get((event.type, None), ())
        yield from self._heard.get((event.type, event.owner), ())


def is_ours(facts: Mapping[str, Any]) -> bool:
    """Of a kind, a queue or a dependency of our own: nobody is told of what tells him."""
    return any(
        str(facts.get(name, "")).startswith(OURS) for name in ("kind", "queue", "dependency")
    )


# -- what people say ----------------------------------------------------------------------------------
def types_of(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """The names these stand for; one that stands for none is refused with the nearest that exists."""
    return tuple(dict.fromkeys(name for pattern in split(patterns) for name in _named(pattern)))


def split(patterns: str | Sequence[str]) -> list[str]:
    """`"job.died, batch.*"` or a list of such."""
    given: Any = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
        message = f"on is the name of an event or several of them, not {patterns!r:.80}"
        raise Refused(message)
    found = [name for one in given for name in (part.strip() for part in one.split(",")) if name]
    if not 1 <= len(found) <= MOST_PATTERNS:
        message = f'on names 1 to {MOST_PATTERNS} events, such as "job.died" or "batch.*"; this names {len(found)}'
        raise Refused(message)
    return found


def _named(pattern: str) -> list[str]:
    known = [str(kind) for kind in EventType]
    named = fnmatch.filter(known, pattern)
    if not named:
        near = difflib.get_close_matches(pattern, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        message = f"no event {pattern!r:.80}; {hint}"
        raise Refused(message)
    return named


def parsed_filter(text: str) -> dict[str, tuple[str, ...]]:
    """`kind:render,encode code:GW_5XX`: every field must fit, of several values any."""
    found: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon or name not in FIELDS:
            fields = ", ".join(f"{field}:" for field in FIELDS)
            message = f"filter {word!r:.80}: of what people are told, {fields} can be asked for"
            raise Refused(message)
        values = tuple(part for part in value.split(",") if part)
        if name in found or not 1 <= len(values) <= MOST_VALUES:
            message = f"filter {word!r:.80}: say {name}: once, with 1 to {MOST_VALUES} values and commas between them"
            raise Refused(message)
        found[name] = values
    return found


def checked_form(form: str | None, usual: str) -> str:
    if form is None:
        return usual
    if form not in FORMS:
        message = f"form is one of {', '.join(FORMS)}, not {form!r:.80}"
        raise Refused(message)
    return form


# An incident: failures of one cause, or of one batch, told as one thing that grows and ends. Pure.

OPENED, GROWN, OVER = "opened", "grown", "over"
HOUR = 3600 * SECOND
LONGEST = 24 * HOUR  # between two updates
MOST_KINDS = 20

Facts = Mapping[str, Any]


class IncidentTerms(NamedTuple):
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


class IncidentDeath(NamedTuple):
    """What an incident wants to know of an event."""

    at: Micros
    job_id: str | None
    batch_id: str | None
    data: Facts


def begun(key: str, by: str, death: IncidentDeath, of: str = "job.died") -> Incident:
    kind = str(death.data.get("kind", ""))
    return Incident(
        key,
        by,
        1,
        death.at,
        death.at,
        of,
        death.job_id,
        death.batch_id,
        dict(death.data),
        {kind: 1} if kind else {},
    )


def joined(incident: Incident, death: IncidentDeath) -> Incident:
    kind = str(death.data.get("kind", ""))
    kinds = incident.kinds
    if kind and (kind in kinds or len(kinds) < MOST_KINDS):
        kinds = {**kinds, kind: kinds.get(kind, 0) + 1}
    first, last = min(incident.first_at, death.at), max(incident.last_at, death.at)
    return replace(incident, count=incident.count + 1, first_at=first, last_at=last, kinds=kinds)


def ended(incident: Incident, why: str) -> Incident:
    return replace(incident, ended=incident.ended or why)


def step(incident: Incident, now: Micros, terms: IncidentTerms) -> str | None:
    """What is to be said now."""
    if not incident.steps:
        return OPENED if now >= incident.first_at + terms.gather and not incident.ended else None
    if is_over(incident, now, terms):
        return OVER
    grown = incident.count >= 2 * incident.told and now >= incident.told_at + patience(
        incident, terms
    )
    return GROWN if grown else None


def is_over(incident: Incident, now: Micros, terms: IncidentTerms) -> bool:
    return bool(incident.ended) or now >= incident.last_at + terms.quiet


def patience(incident: Incident, terms: IncidentTerms) -> Micros:
    """How long after the last message another may follow."""
    doublings = min(max(0, incident.steps - 1), 20)
    return min(LONGEST, terms.update_every << doublings)


def said(incident: Incident, now: Micros, *, sent: bool) -> Incident:
    """Whatever was to be said was said, or kept back."""
    count = incident.sent + sent
    return replace(incident, steps=incident.steps + 1, sent=count, told=incident.count, told_at=now)


def due_at(incident: Incident, terms: IncidentTerms) -> Micros:
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


# What is known of an incident at one step, for those who put it into words.


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """What is told of an incident. `of` is the event type that was folded; an incident is by cause or by batch."""

    id: str
    first_at: Micros
    last_at: Micros
    count: int
    owner: str = ""
    of: str = EventType.JOB_DIED
    group: str = ""  # the fingerprint
    batch_id: str = ""
    batch_name: str = ""
    kind: str = ""
    queue: str = ""
    code: str = ""
    cls: str = ""
    message: str = ""  # the public sentence of the cause
    job_id: str = ""  # an example
    why: str = ""  # of one that is over: `quiet`, `resolved`, `recovered`

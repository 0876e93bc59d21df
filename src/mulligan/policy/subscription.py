"""Who is told of an event: patterns of types, an owner, a batch, a filter. Pure, and quick for many subscriptions."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.errors import Refused
from mulligan.event import Event, EventType

OURS = "mulligan."  # how the names of kinds, queues and dependencies of our own begin
FORMS = ("each", "incident")
FOLDED = frozenset({"job.died", "job.parked"})  # what an incident is made of
FIELDS = ("kind", "queue", "code", "class")
MOST_PATTERNS = 50
MOST_VALUES = 20

Filter = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Subscription:
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
            and not (event.type.startswith("subscription.") and event.data.get("subscription") == self.id)
        )

    def folds(self, event: Event) -> bool:
        """Is this event told as part of an incident?"""
        return self.form == "incident" and event.type in FOLDED


class Book:
    """Many subscriptions, by type and owner."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self.by_id = {one.id: one for one in subscriptions}
        self._heard: dict[tuple[str, str | None], list[Subscription]] = {}
        for one in self.by_id.values():
            for kind in one.types:
                self._heard.setdefault((kind, one.owner), []).append(one)
        self.types = {kind for kind, _ in self._heard}
        self.after = min((one.after for one in self.by_id.values()), default=0)

    def __len__(self) -> int:
        return len(self.by_id)

    def may_hear(self, event: Event) -> Iterator[Subscription]:
        """By type and owner alone."""
        yield from self._heard.get((event.type, None), ())
        yield from self._heard.get((event.type, event.owner), ())


def is_ours(facts: Mapping[str, Any]) -> bool:
    """Of a kind, a queue or a dependency of our own: nobody is told of what tells him."""
    return any(str(facts.get(name, "")).startswith(OURS) for name in ("kind", "queue", "dependency"))


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

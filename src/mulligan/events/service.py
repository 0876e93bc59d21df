"""Who did what: `app.events`, and what an event tells of before and after."""

from __future__ import annotations

import asyncio
import difflib
import fnmatch
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mulligan.core.durations import length_or_moment
from mulligan.core.errors import Moment, Refused
from mulligan.core.event import Event, EventType
from mulligan.core.job import Guarded, LimitRow, Micros
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import NO_LIMIT, lasts
from mulligan.manifest.specs import OURS
from mulligan.storage.access_queries import AuditFilter
from mulligan.storage.base import Store, Transaction

LIST_MOST = 1000
_CLOSED = {"queue": "paused", "kind": "held", "dependency": "open"}

EventList = list[Event]  # the classes below have a method called list
Facts = dict[str, Any]


class Events:
    def __init__(self, store: Callable[[], Store]) -> None:
        self._open = store

    def list(
        self,
        *,
        actor: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        type: str | Sequence[str] = (),  # noqa: A002 - the field's name
        job: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> EventList:
        """What people did, newest first: each with actor, time, reason, before and after.

        `since`, `until`: seconds or a timedelta back from now, or a datetime. `type`: one or several, "queue.*" for
        all of a kind. `before`: the id of the last event of the page above.
        """
        if not 1 <= limit <= LIST_MOST:
            message = f"limit must be from 1 to {LIST_MOST}, not {limit}"
            raise Refused(message)
        types = types_of([type] if isinstance(type, str) else type)
        with self._open().read() as unit:
            now = unit.now()
            asked = AuditFilter(
                actor, owner, job, _back("since", since, now), _back("until", until, now), before
            )
            return unit.deeds(asked, types, limit)


class AsyncEvents:
    """The same, awaitable: each call on a thread."""

    def __init__(self, events: Events) -> None:
        self._events = events

    async def list(self, **said: Any) -> EventList:
        return await asyncio.to_thread(self._events.list, **said)


def types_of(patterns: Sequence[str]) -> tuple[str, ...]:
    """The names these stand for; one that stands for none is refused with the nearest that exists."""
    known = [str(kind) for kind in EventType]
    found: dict[str, None] = {}
    for pattern in patterns:
        named = fnmatch.filter(known, pattern)
        if not named:
            near = difflib.get_close_matches(pattern, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            message = f"no event {pattern!r}; {hint}"
            raise Refused(message)
        found |= dict.fromkeys(named)
    return tuple(found)


def _back(name: str, value: Moment | None, now: Micros) -> Micros | None:
    if value is None:
        return None
    span, at = length_or_moment(name, value)
    return at if span is None else now - span


# -- before and after ---------------------------------------------------------------------------------
def gate_facts(unit: Transaction, scope: str, key: str, now: Micros) -> Facts:
    """Is it paused, held, open; by whom, why and until when?"""
    word = _CLOSED[scope]
    for gate in unit.gates():
        if gate[:2] == (scope, key) and is_closed(gate, now):
            return {word: True, "until": gate.until, "reason": gate.reason, "actor": gate.actor}
    return {word: False}


def limit_facts(unit: Transaction, key: Guarded, now: Micros) -> Facts:
    """As an operator has set it; empty: nobody has."""
    for row in unit.limits():
        if row[:2] == key and lasts(row, now):
            return shown_limit(row)
    return {}


def shown_limit(row: LimitRow) -> Facts:
    return {
        "concurrency": said_limit(row.concurrency),
        "rate": said_limit(row.rate),
        "until": row.until,
    }


def said_limit(value: float | None) -> float | str | None:
    return "none" if value is not None and value >= NO_LIMIT else value


# Who hears which events: `type:job.died,batch.* owner:acme batch:… job:… kind:… code:GW_5XX class:transient`.

Wanted = Callable[[Event], bool]

FIELDS: Mapping[str, Callable[[Event], Any]] = {
    "type": lambda event: event.type,
    "job": lambda event: event.job_id,
    "owner": lambda event: event.owner,
    "batch": lambda event: event.batch_id,
    "actor": lambda event: event.actor,
    "kind": lambda event: event.data.get("kind"),
    "queue": lambda event: event.data.get("queue"),
    "code": lambda event: event.data.get("code"),
    "class": lambda event: event.data.get("class"),
}
MOST_VALUES = 50
REMEMBERED = 1000


def wants(words: str, types: Sequence[str] = (), job: str | None = None) -> Wanted:
    """A function that tells whether an event is wanted; words nobody knows are refused."""
    said = parsed(words)
    named = frozenset(types_of(types)) | frozenset(said.pop("type", ()))
    if job is not None:
        said["job"] = (job,)

    def wanted(event: Event) -> bool:
        return (not named or event.type in named) and all(
            FIELDS[name](event) in values for name, values in said.items()
        )

    return wanted


def parsed(words: str) -> dict[str, tuple[str, ...]]:
    """By field, any of which values; `job.*` stands for all of these types."""
    if not words.isprintable():
        raise Refused(f"filter {words!r} holds characters that cannot be printed")
    try:
        parts = [word.partition(":") for word in shlex.split(words)]
    except ValueError as error:
        raise Refused(f"filter {words!r}: {error}") from None
    said: dict[str, tuple[str, ...]] = {}
    for name, colon, value in parts:
        if not colon or name not in FIELDS:
            raise Refused(f"filter {words!r}: {_no_such(name)}")
        if name in said:
            raise Refused(f"filter {name}: is given twice; several values are one part: {name}:a,b")
        said[name] = _values(name, value)
    return said


def _values(name: str, text: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MOST_VALUES:
        raise Refused(f"filter {name}: has {len(values)} values; {MOST_VALUES} at most")
    return types_of(values) if name == "type" else values


def _no_such(name: str) -> str:
    near = difflib.get_close_matches(name, FIELDS, n=1)
    return f"no field {name!r}; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
    )


# -- whose ------------------------------------------------------------------------------------------
@lru_cache(maxsize=REMEMBERED)
def hears(owner: str | None, words: str) -> Wanted:
    """Both. Whoever asks the same gets the same function, so that who hands events on to many asks it once."""
    mine, wanted = concerns(owner), wants(words)

    def heard(event: Event) -> bool:
        return mine(event) and wanted(event)

    return heard


@lru_cache(maxsize=REMEMBERED)
def concerns(owner: str | None) -> Wanted:
    """What this owner may hear of; None: of everybody. What Mulligan does for itself is for nobody."""

    def wanted(event: Event) -> bool:
        return owner in (None, event.owner) and not is_ours(event)

    return wanted


def is_ours(event: Event) -> bool:
    """Of a job of Mulligan's own: a delivery, a probe."""
    return str(event.data.get("kind", "")).startswith(OURS)

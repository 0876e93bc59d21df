"""Who did what: `app.events`, and what an event tells of before and after."""

from __future__ import annotations

import asyncio
import difflib
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from mulligan.engine.moments import length_or_moment
from mulligan.errors import Moment, Refused
from mulligan.event import Event, EventType
from mulligan.job import Guarded, LimitRow, Micros
from mulligan.policy.lanes import is_closed
from mulligan.policy.limits import NO_LIMIT, lasts
from mulligan.store.base import Store, Unit
from mulligan.store.by_hand import Asked

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
            asked = Asked(actor, owner, job, _back("since", since, now), _back("until", until, now), before)
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
def gate_facts(unit: Unit, scope: str, key: str, now: Micros) -> Facts:
    """Is it paused, held, open; by whom, why and until when?"""
    word = _CLOSED[scope]
    for gate in unit.gates():
        if gate[:2] == (scope, key) and is_closed(gate, now):
            return {word: True, "until": gate.until, "reason": gate.reason, "actor": gate.actor}
    return {word: False}


def limit_facts(unit: Unit, key: Guarded, now: Micros) -> Facts:
    """As an operator has set it; empty: nobody has."""
    for row in unit.limits():
        if row[:2] == key and lasts(row, now):
            return shown_limit(row)
    return {}


def shown_limit(row: LimitRow) -> Facts:
    return {"concurrency": said_limit(row.concurrency), "rate": said_limit(row.rate), "until": row.until}


def said_limit(value: float | None) -> float | str | None:
    return "none" if value is not None and value >= NO_LIMIT else value

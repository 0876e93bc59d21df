"""`app.events`: the audit log; event filters; and the before/after data of gates and limits."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mulligan.core.durations import Micros, check_duration_or_time
from mulligan.core.errors import DurationOrTime, Refused
from mulligan.core.event import Event, EventList, EventType
from mulligan.core.job import LimitKey, LimitRow
from mulligan.events.follow import EventPredicate, FollowerHub, follow, follow_async
from mulligan.events.queries import AuditFilter, EventQueries
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import NO_LIMIT, is_limit_active
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage.base import Store, Transaction

# --- app.events ---

MAX_LIST = 1000


class Events:
    """Lists manual actions, and follows all events."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._open = store
        self.followers = FollowerHub(store)

    def follow(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        after: int | None = None,
        heartbeat: float | None = None,
    ) -> Iterator[Event]:
        """Yield events as they happen, in order, for a page or program that shows them.

        `filter`: `type:job.died,batch.* job:… batch:… kind:… owner:…`. `after`: the id of the last
        event that the reader has; without it, only new events. If the log no longer has the next
        event, the first one is of type `gap`. `heartbeat`: after so many seconds without an event,
        yield one of type `heartbeat`. The iteration ends when it is closed, and when the app is.
        """
        return follow(self.followers, build_owner_event_filter(None, filter), after, heartbeat)

    def follow_async(
        self,
        filter: str = "",  # noqa: A002 - public name
        *,
        after: int | None = None,
        heartbeat: float | None = None,
    ) -> AsyncIterator[Event]:
        """Yield events like `follow`, on an event loop."""
        return follow_async(
            self.followers, build_owner_event_filter(None, filter), after, heartbeat
        )

    def list(
        self,
        *,
        actor: str | None = None,
        since: DurationOrTime | None = None,
        until: DurationOrTime | None = None,
        type: str | Sequence[str] = (),  # noqa: A002 - the field's name
        job: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> EventList:
        """List manual actions, newest first, each with actor, time, reason, before and after.

        `since`, `until`: seconds or a timedelta before now, or a datetime. `type`: one or several
        event types, "queue.*" for all that start so. `before`: id of the last event of the
        previous page.
        """
        if not 1 <= limit <= MAX_LIST:
            message = f"invalid limit {limit}. Use 1 to {MAX_LIST:,}."
            raise Refused(message)
        patterns = [type] if isinstance(type, str) else type
        types = expand_types(patterns)
        with self._open().read() as tx:
            now = tx.now()
            filters = AuditFilter(
                actor=actor,
                owner=owner,
                job_id=job,
                since=_resolve_time("since", since, now),
                until=_resolve_time("until", until, now),
                before=before,
            )
            return EventQueries(tx).list_audit_events(filters, types, limit)


def expand_types(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the event types that patterns such as `queue.*` stand for.

    Raises `Refused` for a pattern that matches no event type.
    """
    known = [str(type_) for type_ in EventType]
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching:
            message = f"unknown event {pattern!r:.80}. {_suggest(pattern, known, 'Events')}"
            raise Refused(message)
        found |= dict.fromkeys(matching)
    return tuple(found)


def _suggest(name: str, known: Iterable[str], label: str) -> str:
    known = list(known)
    similar = difflib.get_close_matches(name, known, n=1)
    if similar:
        return f"Did you mean {similar[0]}?"
    return f"{label}: {', '.join(known)}."


def _resolve_time(name: str, value: DurationOrTime | None, now: Micros) -> Micros | None:
    if value is None:
        return None
    duration, time = check_duration_or_time(name, value)
    if duration is not None:
        return now - duration
    return time


# --- Before/after data of gates and limits ---

CLOSED_FIELD = {"queue": "paused", "kind": "held", "dependency": "open"}

EventData = dict[str, Any]


def load_gate_state(tx: Transaction, scope: str, key: str, now: Micros) -> EventData:
    """Return whether a queue is paused, a kind held or a breaker open: by whom, why, how long."""
    field = CLOSED_FIELD[scope]
    for gate in GuardQueries(tx).list_gates():
        if (gate.scope, gate.key) == (scope, key) and is_closed(gate, now):
            return {field: True, "until": gate.until, "reason": gate.reason, "actor": gate.actor}
    return {field: False}


def load_limit_state(tx: Transaction, key: LimitKey, now: Micros) -> EventData:
    """Return the limits that an operator has set; empty if there are none."""
    for row in GuardQueries(tx).list_limits():
        if row[:2] == key and is_limit_active(row, now):
            return limit_state(row)
    return {}


def limit_state(row: LimitRow) -> EventData:
    """Return the limits of a row."""
    return {
        "concurrency": _limit_or_none_text(row.concurrency),
        "rate": _limit_or_none_text(row.rate),
        "until": row.until,
    }


def _limit_or_none_text(value: float | None) -> float | str | None:
    """Return `"none"` for a lifted limit. None means that the limit is not changed."""
    if value is not None and value >= NO_LIMIT:
        return "none"
    return value


# --- Event filters: `type:job.died,batch.* owner:acme batch:… job:… kind:… class:transient` ---

FILTER_FIELDS: Mapping[str, Callable[[Event], Any]] = {
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
MAX_VALUES = 50
CACHE_SIZE = 1000


def build_event_filter(
    text: str, types: Sequence[str] = (), job: str | None = None
) -> EventPredicate:
    """Return a function that tells whether an event matches a filter.

    Raises `Refused` for an invalid filter.
    """
    values_by_field = parse_event_filter(text)
    wanted_types = frozenset(expand_types(types)) | frozenset(values_by_field.pop("type", ()))
    if job is not None:
        values_by_field["job"] = (job,)

    def matches(event: Event) -> bool:
        if wanted_types and event.type not in wanted_types:
            return False
        for name, values in values_by_field.items():
            read_field = FILTER_FIELDS[name]
            if read_field(event) not in values:
                return False
        return True

    return matches


def parse_event_filter(text: str) -> dict[str, tuple[str, ...]]:
    """Return the wanted values by field. `type:job.*` is expanded to all these types."""
    if not text.isprintable():
        raise Refused(f"invalid filter {text!r}: it has non-printable characters")
    try:
        terms = shlex.split(text)
    except ValueError as error:
        raise Refused(f"invalid filter {text!r}: {error}") from None
    found: dict[str, tuple[str, ...]] = {}
    for term in terms:
        name, colon, value = term.partition(":")
        if not colon or name not in FILTER_FIELDS:
            hint = _suggest(name, FILTER_FIELDS, "Fields")
            raise Refused(f"invalid filter {text!r}: unknown field {name!r}. {hint}")
        if name in found:
            raise Refused(f"filter {name}: appears twice. Separate values by commas: {name}:a,b")
        found[name] = _parse_values(name, value)
    return found


def _parse_values(name: str, text: str) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(text.split(",")))
    if len(values) > MAX_VALUES:
        raise Refused(f"filter {name}: has {len(values)} values (limit {MAX_VALUES})")
    if name == "type":
        return expand_types(values)
    return values


# --- Events that an owner may see ---


@lru_cache(maxsize=CACHE_SIZE)
def build_owner_event_filter(owner: str | None, text: str) -> EventPredicate:
    """Return a function that tells whether an owner may see an event and wants it.

    Equal arguments return the same function, so that a stream to many readers calls it once.
    """
    is_visible = build_owner_filter(owner)
    is_wanted = build_event_filter(text)

    def matches(event: Event) -> bool:
        return is_visible(event) and is_wanted(event)

    return matches


@lru_cache(maxsize=CACHE_SIZE)
def build_owner_filter(owner: str | None) -> EventPredicate:
    """Return a function that tells whether an owner may see an event; None: all owners.

    Events of Mulligan's internal jobs are visible to nobody.
    """

    def matches(event: Event) -> bool:
        return owner in (None, event.owner) and not is_internal(event)

    return matches


def is_internal(event: Event) -> bool:
    """Return whether an event is about an internal job: a delivery, a probe."""
    return str(event.data.get("kind", "")).startswith(SYSTEM_PREFIX)

"""Rules of notifications: which subscription matches an event, and how an incident develops.

Pure: no clock, no I/O. Matching is indexed by event type and owner, so that an event is compared
only with the few subscriptions that can match it.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mulligan.core.attempt import Alarm
from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import Refused
from mulligan.core.event import Event, EventType

INTERNAL_PREFIX = "mulligan."  # of Mulligan's kinds, queues and dependencies
FORMS = ("each", "incident")
INCIDENT_EVENTS = frozenset({"job.died", "job.parked"})  # what incidents are made of
FILTER_FIELDS = ("kind", "queue", "code", "class", "job")
MAX_PATTERNS = 50
MAX_VALUES = 20

Filter = Mapping[str, tuple[str, ...]]


# --- Matching ---


class Reaction(NamedTuple):
    """Kind whose jobs run a function of the app for each event."""

    kind: str
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class SubscriptionMatcher:
    """A subscription with its patterns expanded, ready to be compared with events."""

    id: str
    types: tuple[str, ...]
    owner: str | None = None  # None: every owner
    batch: str | None = None
    filter: Filter = field(default_factory=dict)
    form: str = "each"
    channel: str = ""
    endpoint: str = ""  # the dependency that its deliveries use
    per_owner: bool = False  # one incident per owner instead of one for all
    after: int = 0  # id of the last event before the subscription existed
    declared: bool = False
    reaction: Reaction | None = None

    def matches(self, event: Event, facts: Mapping[str, Any]) -> bool:
        """Return whether an event of a matching type is for this subscription.

        `facts` holds the values that the filter is compared with.
        """
        if event.id <= self.after:
            return False
        if self.owner not in (None, event.owner) or self.batch not in (None, event.batch_id):
            return False
        if self._is_about_itself(event):
            return False
        if "job" in self.filter and event.job_id not in self.filter["job"]:
            return False
        fields = ((name, values) for name, values in self.filter.items() if name != "job")
        return all(str(facts.get(name, "")) in values for name, values in fields)

    def _is_about_itself(self, event: Event) -> bool:
        if not event.type.startswith("subscription."):
            return False
        return event.data.get("subscription") == self.id

    @property
    def for_staff(self) -> bool:
        """True if its receivers are operators: it is neither of an owner nor to each owner."""
        return self.owner is None and not self.per_owner

    def groups_into_incident(self, event: Event) -> bool:
        """Return whether this event becomes part of an incident instead of a message."""
        return self.form == "incident" and event.type in INCIDENT_EVENTS


class SubscriptionIndex:
    """Subscriptions indexed by event type and owner."""

    def __init__(self, subscriptions: Iterable[SubscriptionMatcher]) -> None:
        self.by_id = {subscription.id: subscription for subscription in subscriptions}
        self._by_type: dict[tuple[str, str | None], list[SubscriptionMatcher]] = {}
        for subscription in self.by_id.values():
            for type_ in subscription.types:
                key = (type_, subscription.owner)
                self._by_type.setdefault(key, []).append(subscription)
        self._reaction_kinds = {
            subscription.reaction.kind
            for subscription in self.by_id.values()
            if subscription.reaction is not None
        }
        self.types = {type_ for type_, _ in self._by_type}
        self.after = min((subscription.after for subscription in self.by_id.values()), default=0)

    def __len__(self) -> int:
        return len(self.by_id)

    def has_candidates(self, event: Event) -> bool:
        """Return whether the type and owner of any subscription match."""
        keys = ((event.type, None), (event.type, event.owner))
        return any(key in self._by_type for key in keys)

    def candidates(self, event: Event) -> Iterator[SubscriptionMatcher]:
        """Yield the subscriptions whose type and owner match."""
        yield from self._by_type.get((event.type, None), ())
        yield from self._by_type.get((event.type, event.owner), ())

    def is_loop(self, subscription: SubscriptionMatcher, facts: Mapping[str, Any]) -> bool:
        """Return whether an event about a reaction would start a reaction.

        A reaction that fails would otherwise cause itself, or two would cause each other.
        """
        return subscription.reaction is not None and facts.get("kind") in self._reaction_kinds


def is_internal(facts: Mapping[str, Any]) -> bool:
    """Return whether an event is about Mulligan's own jobs, such as deliveries.

    Such events are not delivered: a failing delivery would cause further deliveries.
    """
    names = (str(facts.get(name, "")) for name in ("kind", "queue", "dependency"))
    return any(name.startswith(INTERNAL_PREFIX) for name in names)


# --- Parsing ---


def expand_patterns(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the event types that patterns such as `batch.*` stand for.

    Raises `Refused` for a pattern that matches no event type.
    """
    types: dict[str, None] = {}
    for pattern in split_patterns(patterns):
        types |= dict.fromkeys(_matching_types(pattern))
    return tuple(types)


def split_patterns(patterns: str | Sequence[str]) -> list[str]:
    """Split `"job.died, batch.*"`, or a list of such texts, into patterns."""
    texts: Any = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        message = f"invalid on={patterns!r:.80}. Use an event name or a list of event names."
        raise Refused(message)
    found: list[str] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        found += [part for part in parts if part]
    if not 1 <= len(found) <= MAX_PATTERNS:
        message = (
            f"on has {len(found)} event names. "
            f'Use 1 to {MAX_PATTERNS}, such as "job.died" or "batch.*".'
        )
        raise Refused(message)
    return found


def _matching_types(pattern: str) -> list[str]:
    known = [str(type_) for type_ in EventType]
    matching = fnmatch.filter(known, pattern)
    if not matching:
        hint = f"Events: {', '.join(known)}."
        similar = difflib.get_close_matches(pattern, known, n=1)
        if similar:
            hint = f"Did you mean {similar[0]}?"
        message = f"unknown event {pattern!r:.80}. {hint}"
        raise Refused(message)
    return matching


def parse_filter(text: str) -> dict[str, tuple[str, ...]]:
    """Parse `kind:render,encode code:GW_5XX`: all fields must match, any value of a field."""
    found: dict[str, tuple[str, ...]] = {}
    for term in text.split():
        name, colon, value = term.partition(":")
        if not colon or name not in FILTER_FIELDS:
            fields = ", ".join(f"{field}:" for field in FILTER_FIELDS)
            message = f"unknown filter {term!r:.80}. Fields: {fields}."
            raise Refused(message)
        values = tuple(part for part in value.split(",") if part)
        if name in found or not 1 <= len(values) <= MAX_VALUES:
            message = (
                f"invalid filter {term!r:.80}. Use {name}: once, "
                f"with 1 to {MAX_VALUES} values separated by commas."
            )
            raise Refused(message)
        found[name] = values
    return found


def check_form(form: str | None, default: str) -> str:
    """Return the form of a subscription. Raises `Refused` for an unknown one."""
    if form is None:
        return default
    if form not in FORMS:
        message = f"unknown form {form!r:.80}. Use {' or '.join(FORMS)}."
        raise Refused(message)
    return form


# --- Incidents: failures of one cause (in one batch), or of one batch, reported together ---

OPENED = "opened"
GROWN = "grown"
OVER = "over"

HOUR = 3600 * SECOND
MAX_UPDATE_INTERVAL = 24 * HOUR
MAX_KINDS = 20
MAX_JOBS = 100  # whose ids an incident keeps, so that one that dies again is not counted again

EventData = Mapping[str, Any]


class IncidentTiming(NamedTuple):
    """Delays and limits of incident messages."""

    gather: Micros = 5 * SECOND  # from the first death to the first message
    update_every: Micros = 60 * SECOND  # first interval between updates; doubles each time
    quiet: Micros = 900 * SECOND  # without a death: the incident is over
    cap: int = 20  # messages of one subscription to one owner per hour; 0: no limit


@dataclass(frozen=True, slots=True)
class Incident:
    """State of an incident, as stored."""

    key: str
    grouped_by: str  # group, batch
    count: int  # jobs
    first_at: Micros
    last_at: Micros
    event_type: str = "job.died"
    job_id: str | None = None  # the first job that died
    jobs: tuple[str, ...] = ()  # the first jobs that died
    batch_id: str | None = None
    data: EventData = field(default_factory=dict)  # of the first event
    kinds: Mapping[str, int] = field(default_factory=dict)  # deaths by kind
    steps: int = 0  # messages that were due so far
    sent: int = 0  # messages that were sent; the others were suppressed
    notified_count: int = 0  # deaths at the last message
    notified_at: Micros = 0
    end_reason: str = ""  # quiet, resolved, recovered; empty: not over

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Incident:
        """Read the stored form."""
        values = json.loads(text)
        return cls(**{**values, "jobs": tuple(values.get("jobs", ()))})


class IncidentDeath(NamedTuple):
    """One event that opens an incident or adds to it."""

    at: Micros
    job_id: str | None
    batch_id: str | None
    data: EventData
    retried_by_hand: bool = False  # the job ended before, and may be part of the incident


def open_incident(
    key: str, grouped_by: str, death: IncidentDeath, event_type: str = "job.died"
) -> Incident:
    """Return a new incident with one death."""
    kind = str(death.data.get("kind", ""))
    kinds = {kind: 1} if kind else {}
    return Incident(
        key=key,
        grouped_by=grouped_by,
        count=1,
        first_at=death.at,
        last_at=death.at,
        event_type=event_type,
        job_id=death.job_id,
        jobs=_add_job((), death.job_id),
        batch_id=death.batch_id,
        data=dict(death.data),
        kinds=kinds,
    )


def add_death(incident: Incident, death: IncidentDeath) -> Incident:
    """Return the incident with one more death. A job that dies again is not one more job."""
    if _is_known(incident, death):
        return replace(incident, last_at=max(incident.last_at, death.at))
    kind = str(death.data.get("kind", ""))
    kinds = incident.kinds
    if kind and (kind in kinds or len(kinds) < MAX_KINDS):
        kinds = {**kinds, kind: kinds.get(kind, 0) + 1}
    return replace(
        incident,
        count=incident.count + 1,
        first_at=min(incident.first_at, death.at),
        last_at=max(incident.last_at, death.at),
        jobs=_add_job(incident.jobs, death.job_id),
        kinds=kinds,
    )


def _add_job(jobs: tuple[str, ...], job_id: str | None) -> tuple[str, ...]:
    if job_id is None or len(jobs) >= MAX_JOBS:
        return jobs
    return (*jobs, job_id)


def _is_known(incident: Incident, death: IncidentDeath) -> bool:
    """Return whether the incident has counted the job of a death already."""
    if len(incident.jobs) < MAX_JOBS:
        return death.job_id in incident.jobs
    return death.retried_by_hand


def end_incident(incident: Incident, reason: str) -> Incident:
    """Return the incident marked as over. The first reason is kept."""
    return replace(incident, end_reason=incident.end_reason or reason)


def next_step(incident: Incident, now: Micros, timing: IncidentTiming) -> str | None:
    """Return the message that is due now: `opened`, `grown`, `over`, or None."""
    if not incident.steps:
        gathered = now >= incident.first_at + gather_time(incident, timing)
        return OPENED if gathered and not incident.end_reason else None
    if is_over(incident, now, timing):
        return OVER
    doubled = incident.count >= 2 * incident.notified_count
    waited = now >= incident.notified_at + update_interval(incident, timing)
    return GROWN if doubled and waited else None


def gather_time(incident: Incident, timing: IncidentTiming) -> Micros:
    """Return how long deaths gather until the first message: an urgent one does not wait."""
    return 0 if incident.data.get("alarm") == Alarm.PAGE else timing.gather


def is_over(incident: Incident, now: Micros, timing: IncidentTiming) -> bool:
    """Return whether the incident was ended, or had no death for the quiet time."""
    return bool(incident.end_reason) or now >= incident.last_at + timing.quiet


def update_interval(incident: Incident, timing: IncidentTiming) -> Micros:
    """Return the minimum time between the last message and the next update."""
    doublings = min(max(0, incident.steps - 1), 20)
    return min(MAX_UPDATE_INTERVAL, timing.update_every << doublings)


def record_step(incident: Incident, now: Micros, *, sent: bool) -> Incident:
    """Return the incident after a due message was sent or suppressed."""
    return replace(
        incident,
        steps=incident.steps + 1,
        sent=incident.sent + sent,
        notified_count=incident.count,
        notified_at=now,
    )


def next_check_at(incident: Incident, timing: IncidentTiming) -> Micros:
    """Return when the incident must be evaluated again."""
    if incident.end_reason:
        return 0
    if not incident.steps:
        return incident.first_at + gather_time(incident, timing)
    quiet_at = incident.last_at + timing.quiet
    if incident.count < 2 * incident.notified_count:
        return quiet_at
    return min(quiet_at, incident.notified_at + update_interval(incident, timing))


# --- Hourly limit ---


class HourlyCount(NamedTuple):
    """Messages of one subscription to one owner in the hour from `since`."""

    since: Micros
    sent: int = 0
    withheld: int = 0


def count_message(hour: HourlyCount | None, now: Micros, cap: int) -> tuple[bool, HourlyCount]:
    """Count one more message. Return whether it may be sent, and the new count.

    An hour with withheld messages is kept after its end until they have been reported.
    """
    if hour is None or (is_hour_over(hour, now) and not hour.withheld):
        hour = HourlyCount(now)
    if hour.sent < cap:
        return True, hour._replace(sent=hour.sent + 1)
    return False, hour._replace(withheld=hour.withheld + 1)


def is_hour_over(hour: HourlyCount, now: Micros) -> bool:
    """Return whether the hour has passed."""
    return now >= hour.since + HOUR


class NamedJob(NamedTuple):
    """A job of an incident, with the title that its kind declares or none."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """Facts about an incident at one step, from which its message is built."""

    id: str
    first_at: Micros
    last_at: Micros
    count: int
    owner: str = ""
    event_type: str = EventType.JOB_DIED
    group: str = ""  # the fingerprint
    batch_id: str = ""
    batch_name: str = ""
    batch_size: int = 0  # members of the batch
    jobs: tuple[NamedJob, ...] = ()  # the first of them
    kind: str = ""
    queue: str = ""
    code: str = ""
    cls: str = ""
    message: str = ""  # the public sentence of the cause
    job_id: str = ""  # an example
    runbook: str = ""  # that the rule of the failure declares; for operators only
    alarm: str = ""  # "page": urgent; for operators only
    end_reason: str = ""  # quiet, resolved, recovered; empty: not over

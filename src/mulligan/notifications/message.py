"""Messages: what one subscriber gets about one event, or about one step of an incident.

A message is plain JSON data with bounded, printable texts. Its id is derived from its content and
its subscriber, so that a message has the same id however often it is built or sent.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import quote

from mulligan.config import Settings
from mulligan.core.attempt import Cls
from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType, owner_visible_data
from mulligan.core.format import one_line, safe_text
from mulligan.failures.codes import CODES
from mulligan.notifications import sentences
from mulligan.notifications.rules import IncidentFacts

# --- The message ---

MAX_SUMMARY = 200  # characters
MAX_NAME = 100
INCIDENT_OVER = "incident.over"
INCIDENT_CAPPED = "incident.capped"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one subscriber."""

    id: str
    type: str  # of the event, or incident.opened, incident.grown, incident.over, incident.capped
    at: Micros
    summary: str  # one sentence on one line
    owner: str = ""
    job_id: str = ""
    batch_id: str = ""
    seq: int = 0  # order of the messages about one job; 0 for an incident
    data: Mapping[str, Any] = field(default_factory=dict)  # public data of the event
    details: tuple[tuple[str, str], ...] = ()  # (label, value), most important first
    link: str = ""
    runbook: str = ""
    alarm: str = ""  # "page": urgent; for operators only
    retrying: bool = False
    attempt: int = 0
    retries: int = 0  # `job.retries` after the event: so far, a scheduled one included
    of: int = 0  # maximum number of attempts, as far as known
    next_at: Micros = 0
    count: int = 0  # jobs of an incident so far
    first_at: Micros = 0
    last_at: Micros = 0
    thread: str = ""  # equal for all messages of one incident, job or batch

    def to_dict(self) -> dict[str, Any]:
        """Return the message as a JSON object."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["data"] = dict(self.data)
        values["details"] = [list(pair) for pair in self.details]
        return values

    def to_json(self) -> str:
        """Return the message as JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Message:
        """Build a message from its JSON object. Fields of a newer version are ignored."""
        values = {name: value for name, value in body.items() if name in _FIELDS}
        details = []
        for label, value in values.get("details", ()):
            details.append((str(label), str(value)))
        return cls(**{**values, "details": tuple(details)})

    @classmethod
    def from_json(cls, text: str) -> Message:
        """Build a message from its JSON text."""
        return cls.from_dict(json.loads(text))


_FIELDS = tuple(one.name for one in fields(Message))


def derive_message_id(*parts: object) -> str:
    """Return an id that depends only on `parts`."""
    text = "|".join(str(part) for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return f"msg_{base64.b32encode(digest).decode()[:26].lower()}"


async def call_app_function(function: Callable[[Message], Any], message: Message) -> Any:
    """Call a function of the app that shapes a message: `render`, `to` or `subject`.

    A sync function runs on a thread, where it may query a database without blocking other jobs.
    """
    if inspect.iscoroutinefunction(function):
        return await function(message)
    result = await asyncio.to_thread(function, message)
    if inspect.isawaitable(result):
        return await result
    return result


# --- Building messages ---


def build_event_message(
    event: Event, subscription: str, settings: Settings, *, for_staff: bool = False
) -> Message:
    """Build the message about one event. An owner's event loses the fields for staff only.

    `for_staff`: the subscription is not of an owner, so the message names the failure's runbook.
    """
    visible = owner_visible_data(event.data) if event.owner else event.data
    data = bound_data(visible)
    attempt, max_attempts = _attempt_of_max(event)
    public_event = event._replace(data=data)
    return Message(
        id=derive_message_id(subscription, event.id),
        type=event.type,
        at=event.at,
        summary=_shorten_summary(sentences.describe_event(public_event)),
        owner=one_line(event.owner, MAX_NAME),
        job_id=one_line(event.job_id or "", MAX_NAME),
        batch_id=one_line(event.batch_id or "", MAX_NAME),
        seq=event.seq,
        data=data,
        details=sentences.event_details(public_event),
        link=link_to_event(event, settings),
        runbook=_declared_runbook(event.data, for_staff=for_staff)
        or _event_runbook(event, data, settings),
        alarm=str(event.data.get("alarm") or "") if for_staff else "",
        retrying=event.type == EventType.JOB_RETRY_SCHEDULED,
        attempt=attempt,
        retries=_count_retries(event),
        of=max_attempts,
        next_at=_int_or_zero(event.data.get("next_retry_at")),
        thread=event.job_id or event.batch_id or "",
    )


def build_incident_message(incident: IncidentFacts, step: str, settings: Settings) -> Message:
    """Build the message about one step of an incident.

    `step` is `opened`, `grown:1`, `grown:2` …, or `over`; the message id is derived from it.
    """
    return Message(
        id=derive_message_id(incident.id, step),
        type=f"incident.{step.partition(':')[0]}",
        at=incident.last_at,
        summary=_shorten_summary(sentences.describe_incident(incident, step)),
        owner=one_line(incident.owner, MAX_NAME),
        job_id=one_line(incident.job_id, MAX_NAME),
        batch_id=one_line(incident.batch_id, MAX_NAME),
        data=bound_data(_incident_data(incident)),
        details=sentences.incident_details(incident),
        link=link_to_incident(incident.group, incident.batch_id, settings),
        runbook=incident.runbook or link_to_runbook(incident.code, incident.cls, settings),
        alarm=incident.alarm,
        count=incident.count,
        first_at=incident.first_at,
        last_at=incident.last_at,
        thread=incident.id,
    )


def build_cap_message(
    subscription: str, owner: str, hour: Micros, suppressed: int, settings: Settings
) -> Message:
    """Build the message about incident messages that were suppressed in the hour from `hour`."""
    return Message(
        id=derive_message_id(subscription, owner, "capped", hour),
        type=INCIDENT_CAPPED,
        at=hour,
        summary=_shorten_summary(sentences.describe_cap(suppressed, hour)),
        owner=one_line(owner, MAX_NAME),
        data={"kept": suppressed},
        details=(("Suppressed", f"{suppressed:,}"),),
        link=link_to_overview(settings),
        count=suppressed,
        first_at=hour,
        thread=derive_message_id(subscription, owner, "capped"),
    )


def _incident_data(incident: IncidentFacts) -> dict[str, Any]:
    values = {
        "incident": incident.id,
        "of": str(incident.event_type),
        "count": incident.count,
        "kind": incident.kind,
        "queue": incident.queue,
        "code": incident.code,
        "class": incident.cls,
        "message": incident.message,
        "group": incident.group,
        "batch": incident.batch_name,
        "batch_size": incident.batch_size or None,
        "jobs": [job._asdict() for job in incident.jobs],
        "why": incident.end_reason,
    }
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _attempt_of_max(event: Event) -> tuple[int, int]:
    """Return the number of this attempt and the maximum, 0 if unknown.

    A lost attempt charges no retry, so it raises the maximum by one.
    """
    attempt = event.attempt or 0
    max_retries = event.data.get("max_retries")
    if not attempt or not isinstance(max_retries, int):
        return attempt, 0
    failures = _int_or_zero(event.data.get("failures")) or attempt
    return attempt, max(attempt, attempt + max_retries - failures + 1)


def _count_retries(event: Event) -> int:
    """Return `job.retries` after the event. The retry after each charged failure counts."""
    is_scheduled = event.type == EventType.JOB_RETRY_SCHEDULED
    return _int_or_zero(event.data.get("failures" if is_scheduled else "retries"))


def _int_or_zero(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return 0


def _shorten_summary(sentence: str) -> str:
    text = one_line(sentence, 4 * MAX_SUMMARY)
    if len(text) <= MAX_SUMMARY:
        return text
    return f"{text[: MAX_SUMMARY - 1].rstrip()}…"


# --- Bounding event data: every text printable, every size limited ---

MAX_TEXT = 2000  # characters
MAX_KEY = 100  # characters
MAX_ITEMS = 64  # keys of an object, items of a list
MAX_DEPTH = 4
MAX_DATA_BYTES = 12_000  # as JSON
CUT_KEY = "cut"  # true in data that is incomplete


def bound_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `data` that any channel accepts.

    Data that is too large loses its largest values first and gets the key `cut`.
    """
    bounded: dict[str, Any] = _bound_value(data, 0)
    complete = len(bounded)
    if len(json.dumps(bounded)) > MAX_DATA_BYTES:
        bounded = _drop_largest(bounded)
    if len(bounded) < complete or len(data) > MAX_ITEMS:
        bounded[CUT_KEY] = True
    return bounded


def _drop_largest(data: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: len(json.dumps({name: value})) for name, value in data.items()}
    while sum(sizes.values()) > MAX_DATA_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        del sizes[largest]
    return {name: data[name] for name in sizes}


def _bound_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return safe_text(value, MAX_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        # False for NaN as well: it is smaller than no number.
        fits = abs(value) < 2**63
        return value if fits else None
    if depth >= MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        bounded = {}
        for key, item in list(value.items())[:MAX_ITEMS]:
            bounded[safe_text(str(key), MAX_KEY)] = _bound_value(item, depth + 1)
        return bounded
    if isinstance(value, list | tuple):
        return [_bound_value(item, depth + 1) for item in value[:MAX_ITEMS]]
    return safe_text(str(value), MAX_TEXT)


# --- Links to the dashboard and the runbook ---

MAX_RUNBOOK = 500  # characters of a declared runbook: an address or a sentence
MAX_LINK_TEXT = 200  # characters of a filter or a name in a link


def link_to_event(event: Event, settings: Settings) -> str:
    """Return the dashboard page of an event's job or batch; empty without `web.public_url`."""
    if event.job_id:
        return _dashboard_url(settings, f"/jobs/{quote(event.job_id, safe='')}")
    if event.batch_id:
        return _dashboard_url(settings, _filter_path(f"batch:{event.batch_id}"))
    return link_to_overview(settings)


def link_to_incident(group: str, batch_id: str, settings: Settings) -> str:
    """Return the dashboard page of the jobs of an incident."""
    if batch_id:
        cause = f"group:{group} " if group else ""
        return _dashboard_url(settings, _filter_path(f"{cause}batch:{batch_id} state:dead"))
    if group:
        return _dashboard_url(settings, _filter_path(f"group:{group}"))
    return link_to_overview(settings)


def link_to_overview(settings: Settings) -> str:
    """Return the first page of the dashboard."""
    return _dashboard_url(settings, "/")


def _event_runbook(event: Event, data: Mapping[str, Any], settings: Settings) -> str:
    is_alert = event.type in (EventType.ALERT_FIRED, EventType.ALERT_RESOLVED)
    if is_alert and "code" not in data:
        return link_to_alert_runbook(event.data.get("runbook"), settings)
    return link_to_runbook(data.get("code"), data.get("class"), settings)


def _declared_runbook(data: Mapping[str, Any], *, for_staff: bool) -> str:
    """Return the runbook that the rule of a job's failure declares, for operators only."""
    runbook = data.get("runbook")
    is_failure = "group" in data
    return one_line(str(runbook), MAX_RUNBOOK) if for_staff and is_failure and runbook else ""


def link_to_alert_runbook(entry: Any, settings: Settings) -> str:
    """Return the runbook entry of an alert: its own address, or one in `notify.runbook_url`."""
    base = settings.notify.runbook_url
    if not isinstance(entry, str):
        return ""
    if "://" in entry:
        return entry
    return f"{base}#{_quote_text(entry)}" if base else ""


def link_to_runbook(code: Any, cls: Any, settings: Settings) -> str:
    """Return the runbook entry of a failure code, or of its class if the code is an app's."""
    base = settings.notify.runbook_url
    if not base or not isinstance(code, str) or not code:
        return ""
    if code in CODES:
        return f"{base}#{runbook_anchor(code)}"
    if cls in list(Cls):
        return f"{base}#class-{cls}"
    return base


def runbook_anchor(code: str) -> str:
    """Return the anchor that Markdown sites give to a heading with this code."""
    return code.lower()


def _filter_path(filter_text: str) -> str:
    return f"/?filter={_quote_text(filter_text)}"


def _quote_text(text: str) -> str:
    return quote(text[:MAX_LINK_TEXT], safe="", errors="replace")


def _dashboard_url(settings: Settings, path: str) -> str:
    base = settings.web.public_url
    return f"{base}{path}" if base else ""

"""A message: what one person or program is told of one event, or of an incident at one step. Plain data, safe texts.

Its id is made of what it tells and to whom, so that the same message has the same id however often it is sent.
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
from mulligan.core.event import Event, EventType, for_owners
from mulligan.core.format import one_line, safe
from mulligan.core.job import Micros
from mulligan.failures.codes import CODES
from mulligan.notifications import sentences as wording
from mulligan.notifications.rules import IncidentFacts

# Functions of the app that shape a message: `render`, `to`, `subject`. They may look things up, and may be async.


async def called(function: Callable[[Message], Any], message: Message) -> Any:
    """On a thread, where it may wait for its database without holding up anybody."""
    if inspect.iscoroutinefunction(function):
        return await function(message)
    made = await asyncio.to_thread(function, message)
    return await made if inspect.isawaitable(made) else made


# Data of an event made fit for any channel: bounded in every direction, every text one that any parser can take.

TEXT = 2000  # characters of one text
KEY_LENGTH = 100  # of a key
MANY = 64  # keys, or items of a list
DEEP = 4
BYTES = 12_000  # of the whole, as JSON
CUT = "cut"  # is true in data of which something was left out


def fit(data: Mapping[str, Any]) -> dict[str, Any]:
    """What is too large in the whole loses its longest values first, and says so."""
    plain: dict[str, Any] = _fitted(data, 0)
    whole = len(plain)
    if len(json.dumps(plain)) > BYTES:
        plain = _lightened(plain)
    return plain if len(plain) == whole and len(data) <= MANY else plain | {CUT: True}


def _lightened(plain: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: len(json.dumps({name: value})) for name, value in plain.items()}
    while sum(sizes.values()) > BYTES:
        del sizes[max(sizes, key=lambda name: sizes[name])]
    return {name: plain[name] for name in sizes}


def _fitted(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return safe(value, TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 2**63 else None  # NaN too: it is smaller than nothing
    if depth >= DEEP:
        return None
    if isinstance(value, Mapping):
        items = list(value.items())[:MANY]
        return {safe(str(name), KEY_LENGTH): _fitted(one, depth + 1) for name, one in items}
    if isinstance(value, list | tuple):
        return [_fitted(one, depth + 1) for one in value[:MANY]]
    return safe(str(value), TEXT)


# A message: what one person or program is told of one event, or of an incident at one step. Plain data, safe texts.

__all__ = [
    "IncidentFacts",
    "Message",
    "message_id",
    "message_of",
    "message_of_cap",
    "message_of_incident",
]

SUMMARY, NAME = 200, 100  # characters
OPENED, GROWN, OVER, CAPPED = (
    "incident.opened",
    "incident.grown",
    "incident.over",
    "incident.capped",
)


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    type: str  # of the event, or `incident.opened`, `incident.grown`, `incident.over`, `incident.capped`
    at: Micros
    summary: str  # one sentence on one line
    owner: str = ""
    job_id: str = ""
    batch_id: str = ""
    event_id: int = 0  # of an event, its place in the log
    data: Mapping[str, Any] = field(default_factory=dict)  # what the event holds: the public half
    details: tuple[
        tuple[str, str], ...
    ] = ()  # (label, value), in the order in which people want them
    link: str = ""
    runbook: str = ""
    retrying: bool = False
    attempt: int = 0
    of: int = 0  # attempts at most, as far as is known now
    next_at: Micros = 0
    count: int = 0  # of an incident: jobs so far
    first_at: Micros = 0
    last_at: Micros = 0
    thread: str = ""  # messages of one incident, or of one job or batch, belong together

    def to_plain(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _FIELDS}
        return plain | {"data": dict(self.data), "details": [list(pair) for pair in self.details]}

    def to_json(self) -> str:
        return json.dumps(self.to_plain(), separators=(",", ":"))

    @classmethod
    def from_plain(cls, body: Mapping[str, Any]) -> Message:
        """A newer version may say more than we know."""
        said = {name: value for name, value in body.items() if name in _FIELDS}
        said["details"] = tuple(
            (str(label), str(value)) for label, value in said.get("details", ())
        )
        return cls(**said)

    @classmethod
    def from_json(cls, text: str) -> Message:
        return cls.from_plain(json.loads(text))


_FIELDS = tuple(one.name for one in fields(Message))


def message_id(*parts: object) -> str:
    """The same for the same parts, whoever asks."""
    digest = hashlib.sha256(
        "|".join(str(part) for part in parts).encode("utf-8", "replace")
    ).digest()
    return f"msg_{base64.b32encode(digest).decode()[:26].lower()}"


def message_of(event: Event, subscription: str, settings: Settings) -> Message:
    data = fit(for_owners(event.data) if event.owner else event.data)
    attempt, of = _attempts(event)
    return Message(
        id=message_id(subscription, event.id),
        type=event.type,
        at=event.at,
        summary=_short(wording.sentence(event._replace(data=data))),
        owner=one_line(event.owner, NAME),
        job_id=one_line(event.job_id or "", NAME),
        batch_id=one_line(event.batch_id or "", NAME),
        event_id=event.id,
        data=data,
        details=wording.details(event._replace(data=data)),
        link=of_event(event, settings),
        runbook=_runbook(event, data, settings),
        retrying=event.type == EventType.JOB_RETRY_SCHEDULED,
        attempt=attempt,
        of=of,
        next_at=_number(event.data.get("next_retry_at")),
        thread=event.job_id or event.batch_id or "",
    )


def _runbook(event: Event, data: Mapping[str, Any], settings: Settings) -> str:
    if event.type in (EventType.ALERT_FIRED, EventType.ALERT_RESOLVED) and "code" not in data:
        return of_alert(data.get("rule"), settings)
    return runbook(data.get("code"), data.get("class"), settings)


def message_of_incident(incident: IncidentFacts, step: str, settings: Settings) -> Message:
    """`step` is `opened`, `grown:1`, `grown:2` …, `over`: with the incident's id it makes the message's own."""
    return Message(
        id=message_id(incident.id, step),
        type=f"incident.{step.partition(':')[0]}",
        at=incident.last_at,
        summary=_short(wording.of_incident(incident, step)),
        owner=one_line(incident.owner, NAME),
        job_id=one_line(incident.job_id, NAME),
        batch_id=one_line(incident.batch_id, NAME),
        data=fit(_facts(incident)),
        details=wording.incident_details(incident),
        link=of_incident(incident.group, incident.batch_id, settings),
        runbook=runbook(incident.code, incident.cls, settings),
        count=incident.count,
        first_at=incident.first_at,
        last_at=incident.last_at,
        thread=incident.id,
    )


def message_of_cap(
    subscription: str, owner: str, hour: Micros, kept: int, settings: Settings
) -> Message:
    """What a limit kept back in one hour, which began at `hour`: told once, when it is over."""
    return Message(
        id=message_id(subscription, owner, "capped", hour),
        type=CAPPED,
        at=hour,
        summary=_short(wording.of_cap(kept, hour)),
        owner=one_line(owner, NAME),
        data={"kept": kept},
        details=(("Kept back", str(kept)),),
        link=overview(settings),
        count=kept,
        first_at=hour,
        thread=message_id(subscription, owner, "capped"),
    )


def _facts(incident: IncidentFacts) -> dict[str, Any]:
    said = {
        "incident": incident.id,
        "of": str(incident.of),
        "count": incident.count,
        "kind": incident.kind,
        "queue": incident.queue,
        "code": incident.code,
        "class": incident.cls,
        "message": incident.message,
        "group": incident.group,
        "batch": incident.batch_name,
        "why": incident.why,
    }
    return {name: value for name, value in said.items() if value not in (None, "")}


def _attempts(event: Event) -> tuple[int, int]:
    """This attempt, and how many there may be: lost ones cost no retry and so add to both."""
    attempt, most = event.attempt or 0, event.data.get("max_retries")
    if not attempt or not isinstance(most, int):
        return attempt, 0
    failures = _number(event.data.get("failures")) or attempt
    return attempt, max(attempt, attempt + most - failures + 1)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _short(sentence: str) -> str:
    told = one_line(sentence, 4 * SUMMARY)
    return told if len(told) <= SUMMARY else f"{told[: SUMMARY - 1].rstrip()}…"


# Where a message leads: to the page of what it tells of, and to the runbook.

ROOM = 200  # characters of a filter


def of_event(event: Event, settings: Settings) -> str:
    if event.job_id:
        return _at(settings, f"/jobs/{quote(event.job_id, safe='')}")
    return _at(settings, _filter(f"batch:{event.batch_id}") if event.batch_id else "/")


def of_incident(group: str, batch_id: str, settings: Settings) -> str:
    if batch_id:
        return _at(settings, _filter(f"batch:{batch_id} state:dead"))
    return _at(settings, _filter(f"group:{group}") if group else "/")


def overview(settings: Settings) -> str:
    return _at(settings, "/")


def of_alert(rule: Any, settings: Settings) -> str:
    base = settings.notify.runbook_url
    return (
        f"{base}#alert-{quote(rule[:ROOM], safe='', errors='replace')}"
        if base and isinstance(rule, str)
        else ""
    )


def runbook(code: Any, cls: Any, settings: Settings) -> str:
    """A code of ours has an entry there, one of an app's own is read under its class."""
    base = settings.notify.runbook_url
    if not base or not isinstance(code, str) or not code:
        return ""
    if code in CODES:
        return f"{base}#{anchor(code)}"
    return f"{base}#class-{cls}" if cls in list(Cls) else base


def anchor(code: str) -> str:
    """As sites that show Markdown make it of a heading."""
    return code.lower()


def _filter(words: str) -> str:
    return f"/?filter={quote(words[:ROOM], safe='', errors='replace')}"


def _at(settings: Settings, path: str) -> str:
    base = settings.web.public_url
    return f"{base}{path}" if base else ""

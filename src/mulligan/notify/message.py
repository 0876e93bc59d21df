"""A message: what one person or program is told of one event, or of an incident at one step. Plain data, safe texts.

Its id is made of what it tells and to whom, so that the same message has the same id however often it is sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mulligan.config import Settings
from mulligan.event import Event, EventType, for_owners
from mulligan.job import Micros
from mulligan.notify import links, wording
from mulligan.notify.facts import IncidentFacts
from mulligan.notify.plain import fit
from mulligan.policy.phrase import one_line

__all__ = ["IncidentFacts", "Message", "message_id", "message_of", "message_of_cap", "message_of_incident"]

SUMMARY, NAME = 200, 100  # characters
OPENED, GROWN, OVER, CAPPED = "incident.opened", "incident.grown", "incident.over", "incident.capped"


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
    details: tuple[tuple[str, str], ...] = ()  # (label, value), in the order in which people want them
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
        said["details"] = tuple((str(label), str(value)) for label, value in said.get("details", ()))
        return cls(**said)

    @classmethod
    def from_json(cls, text: str) -> Message:
        return cls.from_plain(json.loads(text))


_FIELDS = tuple(one.name for one in fields(Message))


def message_id(*parts: object) -> str:
    """The same for the same parts, whoever asks."""
    digest = hashlib.sha256("|".join(str(part) for part in parts).encode("utf-8", "replace")).digest()
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
        link=links.of_event(event, settings),
        runbook=_runbook(event, data, settings),
        retrying=event.type == EventType.JOB_RETRY_SCHEDULED,
        attempt=attempt,
        of=of,
        next_at=_number(event.data.get("next_retry_at")),
        thread=event.job_id or event.batch_id or "",
    )


def _runbook(event: Event, data: Mapping[str, Any], settings: Settings) -> str:
    if event.type in (EventType.ALERT_FIRED, EventType.ALERT_RESOLVED) and "code" not in data:
        return links.of_alert(data.get("rule"), settings)
    return links.runbook(data.get("code"), data.get("class"), settings)


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
        link=links.of_incident(incident.group, incident.batch_id, settings),
        runbook=links.runbook(incident.code, incident.cls, settings),
        count=incident.count,
        first_at=incident.first_at,
        last_at=incident.last_at,
        thread=incident.id,
    )


def message_of_cap(subscription: str, owner: str, hour: Micros, kept: int, settings: Settings) -> Message:
    """What a limit kept back in one hour, which began at `hour`: told once, when it is over."""
    return Message(
        id=message_id(subscription, owner, "capped", hour),
        type=CAPPED,
        at=hour,
        summary=_short(wording.of_cap(kept, hour)),
        owner=one_line(owner, NAME),
        data={"kept": kept},
        details=(("Kept back", str(kept)),),
        link=links.overview(settings),
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

"""The body of a webhook: JSON in plain ASCII, smaller than what receivers are asked to take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mulligan.errors import Fail
from mulligan.job import Micros, to_datetime
from mulligan.notify.calling import called
from mulligan.notify.channels import Sending
from mulligan.notify.message import Message

MOST = 20_000  # bytes; standardwebhooks.com asks for no more


class Body(NamedTuple):
    text: str
    content_type: str


class Shaped(Protocol):
    @property
    def render(self) -> Callable[[Message], Any] | None: ...
    @property
    def form(self) -> str: ...


async def body_of(channel: Shaped, message: Message, sending: Sending) -> Body | None:
    """None: `render` does not want it sent."""
    if channel.render is not None:
        made = await called(channel.render, message)
        return None if made is None else _checked(Body(_json(made), "application/json"))
    if channel.form == "cloudevents":
        source = sending.settings.web.public_url or "mulligan"
        return _checked(Body(_json(cloud_event(message, source)), "application/cloudevents+json"))
    return _checked(Body(_json(standard(message)), "application/json"))


def standard(message: Message) -> dict[str, Any]:
    return {"type": message.type, "timestamp": moment(message.at), "data": data_of(message)}


def cloud_event(message: Message, source: str) -> dict[str, Any]:
    subject = message.job_id or message.batch_id
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": f"dev.mulligan.{message.type}",
        **({"subject": subject} if subject else {}),
        "time": moment(message.at),
        "datacontenttype": "application/json",
        "data": data_of(message),
    }


def data_of(message: Message) -> dict[str, Any]:
    """Every name is always there; null where there is nothing to say."""
    return {
        "id": message.id,
        "summary": message.summary,
        "owner": message.owner or None,
        "job_id": message.job_id or None,
        "batch_id": message.batch_id or None,
        "event_id": message.event_id or None,
        "retrying": message.retrying,
        "attempt": message.attempt or None,
        "of": message.of or None,
        "next_at": moment(message.next_at),
        "count": message.count or None,
        "first_at": moment(message.first_at),
        "last_at": moment(message.last_at),
        "link": message.link or None,
        "runbook": message.runbook or None,
        "details": dict(message.data),
    }


def moment(at: Micros) -> str | None:
    """`2026-01-02T03:04:05.000006Z`."""
    try:
        return f"{to_datetime(at):%Y-%m-%dT%H:%M:%S.%f}Z" if at else None
    except OverflowError:
        return None


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Fail("BAD_OUTCOME", f"render returned what is no JSON: {error}", final=True) from error


def _checked(body: Body) -> Body:
    if len(body.text) > MOST:
        raise Fail("TOO_LARGE", f"a body of {len(body.text):,} bytes; {MOST:,} are allowed", final=True)
    return body

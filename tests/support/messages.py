"""A message to send, and a way to send it."""

from __future__ import annotations

import asyncio
from typing import Any

from mulligan.config import Settings
from mulligan.core.event import Event
from mulligan.notifications.channels import Channel, Sending
from mulligan.notifications.message import Message, message_of

AT = 1_800_000_000_000_000
DATA = {
    "kind": "render",
    "queue": "video",
    "code": "HTTP_5XX",
    "class": "transient",
    "message": "A service is not available.",
    "rule": "http.5xx",
    "failures": 1,
    "max_retries": 3,
    "next_retry_at": AT + 30_000_000,
    "http_status": 503,
}
LINKED = Settings.model_validate(
    {
        "web": {"public_url": "https://jobs.example/"},
        "notify": {"runbook_url": "https://wiki.example/runbook"},
    }
)


def event(
    type_: str = "job.retry_scheduled", data: dict[str, Any] | None = None, **more: Any
) -> Event:
    known = {
        "job_id": "01jobjobjobjobjobjobjobjobjo",
        "batch_id": None,
        "owner": "acme",
        "attempt": 1,
        "token": 1,
    }
    return Event(
        **{
            "id": 7,
            "at": AT,
            "type": type_,
            "actor": "",
            "data": DATA if data is None else data,
            **known,
            **more,
        }
    )


MESSAGE = message_of(event(), "sub1", LINKED)


def sent(channel: Channel, sending: Sending, message: Message = MESSAGE) -> dict[str, Any]:
    return asyncio.run(channel.send(message, sending))

"""An event, its message, and a function that sends a message."""

from __future__ import annotations

import asyncio
from typing import Any

from mulligan.config import Settings
from mulligan.core.event import Event
from mulligan.notifications.channels import Channel, SendContext
from mulligan.notifications.message import Message, build_event_message

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


def build_event(
    type_: str = "job.retry_scheduled", data: dict[str, Any] | None = None, **more: Any
) -> Event:
    defaults = {
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
            **defaults,
            **more,
        }
    )


MESSAGE = build_event_message(build_event(), "sub1", LINKED)


def send(channel: Channel, context: SendContext, message: Message = MESSAGE) -> dict[str, Any]:
    return asyncio.run(channel.send(message, context))

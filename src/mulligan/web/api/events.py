"""`GET /events`: what happens, as it happens, from where the client was."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from mulligan.engine.hearing import hears, parsed
from mulligan.web.api.auth import Listening
from mulligan.web.api.hub import Listener
from mulligan.web.api.problems import Problem
from mulligan.web.api.stream import HEADERS, EventStream, Stream

router = APIRouter(tags=["events"])

FOLLOWED = 20  # jobs whose progress one stream may follow
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
Words = Annotated[
    str, Query(max_length=2000, description="type:job.died,batch.* job:… batch:… kind:… queue:… code:… class:… owner:…")
]
Last = Annotated[str | None, Header(alias="last-event-id", description="go on after this event")]
After = Annotated[str | None, Query(description="the same, for those who cannot set a header; 0: from the beginning")]


@router.get("/events", response_class=Response, responses=STREAM)
@router.head("/events", include_in_schema=False)
async def events(
    request: Request,
    caller: Listening,
    filter: Words = "",  # noqa: A002 - as in the URL
    last_event_id: Last = None,
    after: After = None,
) -> Response:
    """A stream of server-sent events; `Last-Event-ID` resumes without a gap or a double."""
    said = parsed(filter)
    heard = hears(caller.owner, filter)
    cursor = _number(last_event_id or after)
    if request.method == "HEAD":
        return Response(None, 200, HEADERS)

    hub = caller.room.hub
    listener = Listener(caller.key.id, caller.owner, heard, said.get("job", ())[:FOLLOWED])
    stream = Stream(hub, listener, cursor, private=caller.backstage)
    hub.enter(listener)
    return EventStream(hub, listener, stream)


def _number(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Problem(422, "INVALID", "Last-Event-ID (or after) is the id of an event: a whole number")
    return int(text)

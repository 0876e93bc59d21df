"""`/alerts`: what is worth attention now, and what nobody wants to hear of for a while. Shared by all owners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field

from mulligan.core.event import Event
from mulligan.http.api.actions import (
    Back,
    Cursor,
    Limit,
    ReasonBody,
    ReasonRequest,
    Text,
    acted,
    back,
    when,
)
from mulligan.http.api.auth import KEYED, OperatorOfAll, Viewer, ViewerOfAll
from mulligan.http.api.context import ApiContext
from mulligan.http.api.openapi import ALERT_RULE, ALERT_RULES, ALERTS, AUDIT, answers
from mulligan.http.api.problems import Problem, forbidden
from mulligan.http.api.requests import body_of, opened, sealed, takes
from mulligan.http.api.serialize import Plain, event_shape, plain
from mulligan.http.services import Away, away_words
from mulligan.observability import exporter

alert_router = APIRouter(prefix="/alerts", tags=["alerts"])


class SilenceRequest(ReasonRequest):
    until: float | Text = Field(description="seconds from now, or a moment with its zone")


SilenceBody = Annotated[SilenceRequest, body_of(SilenceRequest)]
All = Annotated[bool, Query(description="also those that are over")]


@alert_router.get("", **answers(ALERTS))
async def list_alerts(caller: ViewerOfAll, *, all: All = False) -> Plain:  # noqa: A002 - as in Python
    """What fires, then what is about to."""
    return {"alerts": plain(await caller.room.ask(lambda: caller.desk.alerts.list(all=all)))}


@alert_router.get("/rules", **answers(ALERT_RULES))
async def list_alert_rules(caller: ViewerOfAll) -> Plain:
    return {"rules": plain(await caller.room.ask(caller.desk.alerts.rules))}


@alert_router.post(
    "/{name}/silence", **answers(ALERT_RULE), openapi_extra=takes(SilenceRequest, required=True)
)
async def silence_alert(
    request: Request, caller: OperatorOfAll, name: str, said: SilenceBody
) -> Response:
    """It neither tells nor acts until then; if it still holds afterwards, it fires."""
    until = when("until", said.until)
    assert until is not None  # noqa: S101 - it is required
    return await acted(
        request, caller, lambda: caller.desk.alerts.silence(name, until, reason=said.reason)
    )


@alert_router.post("/{name}/unsilence", **answers(ALERT_RULE), openapi_extra=takes(ReasonRequest))
async def unsilence_alert(
    request: Request, caller: OperatorOfAll, name: str, said: ReasonBody
) -> Response:
    return await acted(
        request, caller, lambda: caller.desk.alerts.unsilence(name, reason=said.reason)
    )


# `/audit`: what people did. For an owner what was done to their things.

audit_router = APIRouter(tags=["audit"])

Actor = Annotated[
    str | None, Query(max_length=200, description="cli:ann, key:mk_…; for operators of scope *")
]
Types = Annotated[str, Query(max_length=1000, description="job.retried,queue.*")]
Of = Annotated[str | None, Query(max_length=100)]


@audit_router.get("/audit", **answers(AUDIT))
async def list_deeds(
    caller: Viewer,
    actor: Actor = None,
    type: Types = "",  # noqa: A002 - the field's name
    job: Of = None,
    since: Back = None,
    until: Back = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Plain:
    """Newest first, each with actor, reason, before and after; who did it is for operators of scope `*`."""
    if actor is not None and not caller.backstage:
        raise forbidden("who did what is for operators of scope *")
    about = f"audit {actor} {type} {job} {since} {until}"
    before = opened(caller, about, cursor)

    def look() -> list[Event]:
        return caller.desk.events.list(
            actor=actor,
            type=[one for one in type.split(",") if one],
            job=job,
            owner=caller.owner,
            limit=limit,
            since=back("since", since),
            until=back("until", until),
            before=None if before is None else int(before),
        )

    found = await caller.room.ask(look)
    following = sealed(caller, about, str(found[-1].id)) if len(found) == limit else None
    return {
        "events": [event_shape(one, private=caller.backstage) for one in found],
        "next": following,
    }


# Is it alive, is it ready, and its numbers.

health_router = APIRouter(tags=["health"])


@health_router.get("/livez", response_class=PlainTextResponse)
async def livez() -> Response:
    """The loop turns; the database is not asked."""
    return PlainTextResponse("ok\n")


@health_router.get("/readyz", response_class=PlainTextResponse)
@health_router.get("/startupz", name="startupz", response_class=PlainTextResponse)
async def readyz(request: Request) -> Response:
    """The database answers and its schema is the one this version knows."""
    room: ApiContext = request.app.state.room
    try:
        await room.ask(lambda: _look(room))
    except Away as error:
        raise Problem(
            503, "NOT_READY", away_words(error, candid=room.candid), retryable=True
        ) from error
    return PlainTextResponse("ok\n")


def _look(room: ApiContext) -> None:
    with room.store().read() as unit:
        unit.now()


@health_router.get("/metrics", response_class=PlainTextResponse, dependencies=KEYED)
async def metrics(caller: ViewerOfAll) -> Response:
    """Numbers for Prometheus."""
    room = caller.room
    text = await room.ask(lambda: exporter.text(room.store()))
    return Response(text, media_type=exporter.CONTENT_TYPE)

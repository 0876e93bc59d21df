"""`/alerts`: what is worth attention now, and what nobody wants to hear of for a while. Shared by all owners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.web.api.acting import ReasonBody, ReasonSaid, acted, when
from mulligan.web.api.answers import ALERT_RULE, ALERT_RULES, ALERTS, answers
from mulligan.web.api.auth import OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import body_of, takes
from mulligan.web.api.enqueuing import Text
from mulligan.web.api.shapes import Plain, plain

router = APIRouter(prefix="/alerts", tags=["alerts"])


class SilenceSaid(ReasonSaid):
    until: float | Text = Field(description="seconds from now, or a moment with its zone")


SilenceBody = Annotated[SilenceSaid, body_of(SilenceSaid)]
All = Annotated[bool, Query(description="also those that are over")]


@router.get("", **answers(ALERTS))
async def list_alerts(caller: ViewerOfAll, *, all: All = False) -> Plain:  # noqa: A002 - as in Python
    """What fires, then what is about to."""
    return {"alerts": plain(await caller.room.ask(lambda: caller.desk.alerts.list(all=all)))}


@router.get("/rules", **answers(ALERT_RULES))
async def list_alert_rules(caller: ViewerOfAll) -> Plain:
    return {"rules": plain(await caller.room.ask(caller.desk.alerts.rules))}


@router.post("/{name}/silence", **answers(ALERT_RULE), openapi_extra=takes(SilenceSaid, required=True))
async def silence_alert(request: Request, caller: OperatorOfAll, name: str, said: SilenceBody) -> Response:
    """It neither tells nor acts until then; if it still holds afterwards, it fires."""
    until = when("until", said.until)
    assert until is not None  # noqa: S101 - it is required
    return await acted(request, caller, lambda: caller.desk.alerts.silence(name, until, reason=said.reason))


@router.post("/{name}/unsilence", **answers(ALERT_RULE), openapi_extra=takes(ReasonSaid))
async def unsilence_alert(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    return await acted(request, caller, lambda: caller.desk.alerts.unsilence(name, reason=said.reason))

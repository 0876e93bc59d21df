"""`/kinds`: what is held, for what, and what an operator says about it. Shared by all owners."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mulligan.web.api.acting import ReasonBody, ReasonSaid, UntilBody, UntilSaid, acted, when
from mulligan.web.api.answers import KIND, KINDS, answers
from mulligan.web.api.auth import OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import takes
from mulligan.web.api.shapes import Plain, plain

router = APIRouter(prefix="/kinds", tags=["kinds"])


@router.get("", **answers(KINDS))
async def list_kinds(caller: ViewerOfAll) -> Plain:
    """Those that are held first."""
    return {"kinds": plain(await caller.room.ask(caller.desk.kinds.list))}


@router.get("/{name}", **answers(KIND))
async def get_kind(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.kinds.get(name))))


@router.post("/{name}/hold", **answers(KIND), openapi_extra=takes(UntilSaid))
async def hold_kind(request: Request, caller: OperatorOfAll, name: str, said: UntilBody) -> Response:
    """Start nothing of it until then, or until somebody releases it; what runs goes on."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.kinds.hold(name, until=until, reason=said.reason))


@router.post("/{name}/release", **answers(KIND), openapi_extra=takes(ReasonSaid))
async def release_kind(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    """Let its jobs go; what they died of before is forgotten."""
    return await acted(request, caller, lambda: caller.desk.kinds.release(name, reason=said.reason))

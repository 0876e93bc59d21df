"""`/dependencies`: what jobs use, shared by all owners."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mulligan.web.api.acting import (
    LimitBody,
    LimitSaid,
    ReasonBody,
    ReasonSaid,
    UntilBody,
    UntilSaid,
    acted,
    limits_of,
    when,
)
from mulligan.web.api.answers import DEPENDENCIES, DEPENDENCY, answers
from mulligan.web.api.auth import OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import takes
from mulligan.web.api.shapes import Plain, plain

router = APIRouter(prefix="/dependencies", tags=["dependencies"])


@router.get("", **answers(DEPENDENCIES))
async def list_dependencies(caller: ViewerOfAll) -> Plain:
    return {"dependencies": plain(await caller.room.ask(caller.desk.dependencies.list))}


@router.post("/{key:path}/open", **answers(DEPENDENCY), openapi_extra=takes(UntilSaid))
async def open_dependency(request: Request, caller: OperatorOfAll, key: str, said: UntilBody) -> Response:
    """Its jobs wait."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.dependencies.open(key, until=until, reason=said.reason))


@router.post("/{key:path}/close", **answers(DEPENDENCY), openapi_extra=takes(UntilSaid))
async def close_dependency(request: Request, caller: OperatorOfAll, key: str, said: UntilBody) -> Response:
    """Its jobs go on; `until`: however it fares."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.dependencies.close(key, until=until, reason=said.reason))


@router.post("/{key:path}/probe", **answers(DEPENDENCY), openapi_extra=takes(ReasonSaid))
async def probe_dependency(request: Request, caller: OperatorOfAll, key: str, said: ReasonBody) -> Response:
    """Look now whether it answers again."""
    return await acted(request, caller, lambda: caller.desk.dependencies.probe(key, reason=said.reason))


@router.get("/{key:path}", **answers(DEPENDENCY))
async def get_dependency(caller: ViewerOfAll, key: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.dependencies.get(key))))


@router.patch("/{key:path}", **answers(DEPENDENCY), openapi_extra=takes(LimitSaid))
async def limit_dependency(request: Request, caller: OperatorOfAll, key: str, said: LimitBody) -> Response:
    dependencies = caller.desk.dependencies
    if said.clear:
        return await acted(request, caller, lambda: dependencies.clear(key, reason=said.reason))
    return await acted(request, caller, lambda: dependencies.set(key, **limits_of(said), reason=said.reason))

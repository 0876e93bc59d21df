"""`/schedules`: when jobs come by the clock. Shared by all owners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mulligan.web.api.acting import ReasonBody, ReasonSaid, UntilBody, UntilSaid, acted, when
from mulligan.web.api.answers import JOB, SCHEDULE, SCHEDULES, SLOTS, answers
from mulligan.web.api.auth import OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import takes
from mulligan.web.api.once import Answer, once
from mulligan.web.api.shapes import Plain, job_shape, plain

router = APIRouter(prefix="/schedules", tags=["schedules"])

Many = Annotated[int, Query(ge=1, le=1000)]


@router.get("", **answers(SCHEDULES))
async def list_schedules(caller: ViewerOfAll) -> Plain:
    return {"schedules": plain(await caller.room.ask(caller.desk.schedules.list))}


@router.get("/{name}", **answers(SCHEDULE))
async def get_schedule(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.schedules.get(name))))


@router.get("/{name}/next", **answers(SLOTS))
async def next_slots(caller: ViewerOfAll, name: str, n: Many = 5) -> Plain:
    """In its own zone."""
    return {"schedule": name, "next": plain(await caller.room.ask(lambda: caller.desk.schedules.next(name, n)))}


@router.post("/{name}/pause", **answers(SCHEDULE), openapi_extra=takes(UntilSaid))
async def pause_schedule(request: Request, caller: OperatorOfAll, name: str, said: UntilBody) -> Response:
    """Its slots get no job until then, or until it is resumed."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.schedules.pause(name, until=until, reason=said.reason))


@router.post("/{name}/resume", **answers(SCHEDULE), openapi_extra=takes(ReasonSaid))
async def resume_schedule(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    """It goes on from now; slots that came meanwhile get no job."""
    return await acted(request, caller, lambda: caller.desk.schedules.resume(name, reason=said.reason))


@router.post("/{name}/run", **answers(JOB, 201), openapi_extra=takes(ReasonSaid))
async def run_schedule(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    """One job of it now, besides its slots."""

    def work(_: object) -> Answer:
        return Answer(201, job_shape(caller.desk.schedules.run(name, reason=said.reason), private=caller.private))

    return await once(request, caller, work)

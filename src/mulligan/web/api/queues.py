"""`/queues` and `/workers`: shared by all owners."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mulligan.engine.workers import Seen, workers_seen
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
from mulligan.web.api.auth import Caller, OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import takes
from mulligan.web.api.shapes import Plain, at, plain

router = APIRouter(tags=["queues"])


@router.get("/queues")
async def list_queues(caller: ViewerOfAll) -> Plain:
    return {"queues": plain(await caller.room.ask(caller.desk.queues.list))}


@router.get("/queues/{name}")
async def get_queue(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.queues.get(name))))


@router.post("/queues/{name}/pause", openapi_extra=takes(UntilSaid))
async def pause_queue(request: Request, caller: OperatorOfAll, name: str, said: UntilBody) -> Response:
    """Nothing of it starts any more; what runs goes on."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.queues.pause(name, until=until, reason=said.reason))


@router.post("/queues/{name}/resume", openapi_extra=takes(ReasonSaid))
async def resume_queue(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    return await acted(request, caller, lambda: caller.desk.queues.resume(name, reason=said.reason))


@router.patch("/queues/{name}", openapi_extra=takes(LimitSaid))
async def limit_queue(request: Request, caller: OperatorOfAll, name: str, said: LimitBody) -> Response:
    """Limits that win over what the code declares, until they end or are cleared."""
    queues = caller.desk.queues
    if said.clear:
        return await acted(request, caller, lambda: queues.clear(name, reason=said.reason))
    return await acted(request, caller, lambda: queues.set(name, **limits_of(said), reason=said.reason))


@router.get("/workers")
async def list_workers(caller: ViewerOfAll) -> Plain:
    def look() -> list[Seen]:
        with caller.room.store().read() as unit:
            return workers_seen(unit)

    return {"workers": [_worker(caller, seen) for seen in await caller.room.ask(look)]}


def _worker(caller: Caller, seen: Seen) -> Plain:
    row = seen.row
    shape: Plain = {
        "id": row.id,
        "life": seen.life,
        "running": seen.running,
        "concurrency": row.concurrency,
        "kinds": json.loads(row.kinds),
        "queues": json.loads(row.queues),
        "release": row.release,
        "started_at": at(row.started_at),
        "renewed_at": at(row.renewed_at),
    }
    return {**shape, "host": row.host, "pid": row.pid} if caller.private else shape

"""`/queues` and `/workers`: shared by all owners."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mulligan.engine.workers import Seen, request_drain, workers_seen
from mulligan.errors import NotFound
from mulligan.store.base import Unit
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
from mulligan.web.api.answers import QUEUE, QUEUES, WORKER, WORKERS, answers
from mulligan.web.api.auth import Caller, OperatorOfAll, ViewerOfAll
from mulligan.web.api.bodies import takes
from mulligan.web.api.shapes import Plain, at, plain

router = APIRouter(tags=["queues"])

All = Annotated[bool, Query(description="also those that have left")]


@router.get("/queues", **answers(QUEUES))
async def list_queues(caller: ViewerOfAll) -> Plain:
    return {"queues": plain(await caller.room.ask(caller.desk.queues.list))}


@router.get("/queues/{name}", **answers(QUEUE))
async def get_queue(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.queues.get(name))))


@router.post("/queues/{name}/pause", **answers(QUEUE), openapi_extra=takes(UntilSaid))
async def pause_queue(request: Request, caller: OperatorOfAll, name: str, said: UntilBody) -> Response:
    """Nothing of it starts any more; what runs goes on."""
    until = when("until", said.until)
    return await acted(request, caller, lambda: caller.desk.queues.pause(name, until=until, reason=said.reason))


@router.post("/queues/{name}/resume", **answers(QUEUE), openapi_extra=takes(ReasonSaid))
async def resume_queue(request: Request, caller: OperatorOfAll, name: str, said: ReasonBody) -> Response:
    return await acted(request, caller, lambda: caller.desk.queues.resume(name, reason=said.reason))


@router.patch("/queues/{name}", **answers(QUEUE), openapi_extra=takes(LimitSaid))
async def limit_queue(request: Request, caller: OperatorOfAll, name: str, said: LimitBody) -> Response:
    """Limits that win over what the code declares, until they end or are cleared."""
    queues = caller.desk.queues
    if said.clear:
        return await acted(request, caller, lambda: queues.clear(name, reason=said.reason))
    return await acted(request, caller, lambda: queues.set(name, **limits_of(said), reason=said.reason))


@router.get("/workers", **answers(WORKERS))
async def list_workers(caller: ViewerOfAll, *, all: All = False) -> Plain:  # noqa: A002 - as for alerts
    """Where each runs is for operators."""

    def look() -> list[Seen]:
        with caller.room.store().read() as unit:
            return workers_seen(unit, closed=all)

    return {"workers": [_worker(caller, seen) for seen in await caller.room.ask(look)]}


@router.post("/workers/{worker_id}/drain", **answers(WORKER), openapi_extra=takes(ReasonSaid))
async def drain_worker(request: Request, caller: OperatorOfAll, worker_id: str, said: ReasonBody) -> Response:
    """It claims nothing more, finishes what it runs, and leaves."""

    def act() -> Plain:
        with caller.room.store().begin() as unit:
            request_drain(unit, [_found(unit, worker_id).row], caller.actor, said.reason)
            return _worker(caller, _found(unit, worker_id))

    return await acted(request, caller, act)


def _found(unit: Unit, worker_id: str) -> Seen:
    for seen in workers_seen(unit):
        if seen.row.id == worker_id:
            return seen
    message = f"no worker {worker_id!r:.80} that has not left"
    raise NotFound(message)


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
        "draining": row.draining or row.drain_reason is not None,
        "closed_at": at(row.closed_at),
    }
    return {**shape, "host": row.host, "pid": row.pid} if caller.private else shape

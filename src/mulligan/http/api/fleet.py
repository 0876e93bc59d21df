"""`/queues` and `/workers`: shared by all owners."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mulligan.core.errors import NotFound
from mulligan.http.api.actions import (
    LimitBody,
    LimitRequest,
    ReasonBody,
    ReasonRequest,
    UntilBody,
    UntilRequest,
    acted,
    limits_of,
    when,
)
from mulligan.http.api.auth import Caller, OperatorOfAll, ViewerOfAll
from mulligan.http.api.idempotency import Answer, once
from mulligan.http.api.openapi import (
    DEPENDENCIES,
    DEPENDENCY,
    JOB,
    KIND,
    KINDS,
    QUEUE,
    QUEUES,
    SCHEDULE,
    SCHEDULES,
    SLOTS,
    WORKER,
    WORKERS,
    answers,
)
from mulligan.http.api.requests import takes
from mulligan.http.api.serialize import Plain, at, job_shape, plain
from mulligan.storage.base import Transaction
from mulligan.worker.liveness import WorkerStatus, request_drain, workers_seen

queue_router = APIRouter(tags=["queues"])

All = Annotated[bool, Query(description="also those that have left")]


@queue_router.get("/queues", **answers(QUEUES))
async def list_queues(caller: ViewerOfAll) -> Plain:
    return {"queues": plain(await caller.room.ask(caller.desk.queues.list))}


@queue_router.get("/queues/{name}", **answers(QUEUE))
async def get_queue(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.queues.get(name))))


@queue_router.post("/queues/{name}/pause", **answers(QUEUE), openapi_extra=takes(UntilRequest))
async def pause_queue(
    request: Request, caller: OperatorOfAll, name: str, said: UntilBody
) -> Response:
    """Nothing of it starts any more; what runs goes on."""
    until = when("until", said.until)
    return await acted(
        request, caller, lambda: caller.desk.queues.pause(name, until=until, reason=said.reason)
    )


@queue_router.post("/queues/{name}/resume", **answers(QUEUE), openapi_extra=takes(ReasonRequest))
async def resume_queue(
    request: Request, caller: OperatorOfAll, name: str, said: ReasonBody
) -> Response:
    return await acted(request, caller, lambda: caller.desk.queues.resume(name, reason=said.reason))


@queue_router.patch("/queues/{name}", **answers(QUEUE), openapi_extra=takes(LimitRequest))
async def limit_queue(
    request: Request, caller: OperatorOfAll, name: str, said: LimitBody
) -> Response:
    """Limits that win over what the code declares, until they end or are cleared."""
    queues = caller.desk.queues
    if said.clear:
        return await acted(request, caller, lambda: queues.clear(name, reason=said.reason))
    return await acted(
        request, caller, lambda: queues.set(name, **limits_of(said), reason=said.reason)
    )


@queue_router.get("/workers", **answers(WORKERS))
async def list_workers(caller: ViewerOfAll, *, all: All = False) -> Plain:  # noqa: A002 - as for alerts
    """Where each runs is for operators."""

    def look() -> list[WorkerStatus]:
        with caller.room.store().read() as unit:
            return workers_seen(unit, closed=all)

    return {"workers": [_worker(caller, seen) for seen in await caller.room.ask(look)]}


@queue_router.post(
    "/workers/{worker_id}/drain", **answers(WORKER), openapi_extra=takes(ReasonRequest)
)
async def drain_worker(
    request: Request, caller: OperatorOfAll, worker_id: str, said: ReasonBody
) -> Response:
    """It claims nothing more, finishes what it runs, and leaves."""

    def act() -> Plain:
        with caller.room.store().begin() as unit:
            request_drain(unit, [_found(unit, worker_id).row], caller.actor, said.reason)
            return _worker(caller, _found(unit, worker_id))

    return await acted(request, caller, act)


def _found(unit: Transaction, worker_id: str) -> WorkerStatus:
    for seen in workers_seen(unit):
        if seen.row.id == worker_id:
            return seen
    message = f"no worker {worker_id!r:.80} that has not left"
    raise NotFound(message)


def _worker(caller: Caller, seen: WorkerStatus) -> Plain:
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


# `/kinds`: what is held, for what, and what an operator says about it. Shared by all owners.

kind_router = APIRouter(prefix="/kinds", tags=["kinds"])


@kind_router.get("", **answers(KINDS))
async def list_kinds(caller: ViewerOfAll) -> Plain:
    """Those that are held first."""
    return {"kinds": plain(await caller.room.ask(caller.desk.kinds.list))}


@kind_router.get("/{name}", **answers(KIND))
async def get_kind(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.kinds.get(name))))


@kind_router.post("/{name}/hold", **answers(KIND), openapi_extra=takes(UntilRequest))
async def hold_kind(
    request: Request, caller: OperatorOfAll, name: str, said: UntilBody
) -> Response:
    """Start nothing of it until then, or until somebody releases it; what runs goes on."""
    until = when("until", said.until)
    return await acted(
        request, caller, lambda: caller.desk.kinds.hold(name, until=until, reason=said.reason)
    )


@kind_router.post("/{name}/release", **answers(KIND), openapi_extra=takes(ReasonRequest))
async def release_kind(
    request: Request, caller: OperatorOfAll, name: str, said: ReasonBody
) -> Response:
    """Let its jobs go; what they died of before is forgotten."""
    return await acted(request, caller, lambda: caller.desk.kinds.release(name, reason=said.reason))


# `/dependencies`: what jobs use, shared by all owners.

dependency_router = APIRouter(prefix="/dependencies", tags=["dependencies"])


@dependency_router.get("", **answers(DEPENDENCIES))
async def list_dependencies(caller: ViewerOfAll) -> Plain:
    return {"dependencies": plain(await caller.room.ask(caller.desk.dependencies.list))}


@dependency_router.post(
    "/{key:path}/open", **answers(DEPENDENCY), openapi_extra=takes(UntilRequest)
)
async def open_dependency(
    request: Request, caller: OperatorOfAll, key: str, said: UntilBody
) -> Response:
    """Its jobs wait."""
    until = when("until", said.until)
    return await acted(
        request, caller, lambda: caller.desk.dependencies.open(key, until=until, reason=said.reason)
    )


@dependency_router.post(
    "/{key:path}/close", **answers(DEPENDENCY), openapi_extra=takes(UntilRequest)
)
async def close_dependency(
    request: Request, caller: OperatorOfAll, key: str, said: UntilBody
) -> Response:
    """Its jobs go on; `until`: however it fares."""
    until = when("until", said.until)
    return await acted(
        request,
        caller,
        lambda: caller.desk.dependencies.close(key, until=until, reason=said.reason),
    )


@dependency_router.post(
    "/{key:path}/probe", **answers(DEPENDENCY), openapi_extra=takes(ReasonRequest)
)
async def probe_dependency(
    request: Request, caller: OperatorOfAll, key: str, said: ReasonBody
) -> Response:
    """Look now whether it answers again."""
    return await acted(
        request, caller, lambda: caller.desk.dependencies.probe(key, reason=said.reason)
    )


@dependency_router.get("/{key:path}", **answers(DEPENDENCY))
async def get_dependency(caller: ViewerOfAll, key: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.dependencies.get(key))))


@dependency_router.patch("/{key:path}", **answers(DEPENDENCY), openapi_extra=takes(LimitRequest))
async def limit_dependency(
    request: Request, caller: OperatorOfAll, key: str, said: LimitBody
) -> Response:
    dependencies = caller.desk.dependencies
    if said.clear:
        return await acted(request, caller, lambda: dependencies.clear(key, reason=said.reason))
    return await acted(
        request, caller, lambda: dependencies.set(key, **limits_of(said), reason=said.reason)
    )


# `/schedules`: when jobs come by the clock. Shared by all owners.

schedule_router = APIRouter(prefix="/schedules", tags=["schedules"])

Many = Annotated[int, Query(ge=1, le=1000)]


@schedule_router.get("", **answers(SCHEDULES))
async def list_schedules(caller: ViewerOfAll) -> Plain:
    return {"schedules": plain(await caller.room.ask(caller.desk.schedules.list))}


@schedule_router.get("/{name}", **answers(SCHEDULE))
async def get_schedule(caller: ViewerOfAll, name: str) -> Plain:
    return dict(plain(await caller.room.ask(lambda: caller.desk.schedules.get(name))))


@schedule_router.get("/{name}/next", **answers(SLOTS))
async def next_slots(caller: ViewerOfAll, name: str, n: Many = 5) -> Plain:
    """In its own zone."""
    return {
        "schedule": name,
        "next": plain(await caller.room.ask(lambda: caller.desk.schedules.next(name, n))),
    }


@schedule_router.post("/{name}/pause", **answers(SCHEDULE), openapi_extra=takes(UntilRequest))
async def pause_schedule(
    request: Request, caller: OperatorOfAll, name: str, said: UntilBody
) -> Response:
    """Its slots get no job until then, or until it is resumed."""
    until = when("until", said.until)
    return await acted(
        request, caller, lambda: caller.desk.schedules.pause(name, until=until, reason=said.reason)
    )


@schedule_router.post("/{name}/resume", **answers(SCHEDULE), openapi_extra=takes(ReasonRequest))
async def resume_schedule(
    request: Request, caller: OperatorOfAll, name: str, said: ReasonBody
) -> Response:
    """It goes on from now; slots that came meanwhile get no job."""
    return await acted(
        request, caller, lambda: caller.desk.schedules.resume(name, reason=said.reason)
    )


@schedule_router.post("/{name}/run", **answers(JOB, 201), openapi_extra=takes(ReasonRequest))
async def run_schedule(
    request: Request, caller: OperatorOfAll, name: str, said: ReasonBody
) -> Response:
    """One job of it now, besides its slots."""

    def work(_: object) -> Answer:
        return Answer(
            201,
            job_shape(caller.desk.schedules.run(name, reason=said.reason), private=caller.private),
        )

    return await once(request, caller, work)

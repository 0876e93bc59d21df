"""`/queues`, `/workers`, `/kinds`, `/dependencies` and `/schedules`: shared by all owners."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mulligan.http.api.actions import (
    LimitBody,
    LimitRequest,
    ReasonBody,
    ReasonRequest,
    UntilBody,
    UntilRequest,
    change_limits,
    run_action,
    run_until,
    run_with_reason,
)
from mulligan.http.api.auth import Caller, OperatorOfAll, ViewerOfAll
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
    responses,
)
from mulligan.http.api.requests import IdempotencyKey, describe_body, run_once
from mulligan.http.api.responses import JsonAnswer, JsonObject, iso_time, job_to_json, to_json
from mulligan.worker.service import WorkerStatus, drain_workers, worker_statuses

# --- Queues and workers ---

queue_router = APIRouter(tags=["queues"])

AllParam = Annotated[bool, Query(description="include stopped workers")]


@queue_router.get("/queues", **responses(QUEUES))
async def list_queues(caller: ViewerOfAll) -> JsonObject:
    """List queues."""
    return {"queues": to_json(await caller.run(caller.services.queues.list))}


@queue_router.get("/queues/{name}", **responses(QUEUE))
async def get_queue(caller: ViewerOfAll, name: str) -> JsonObject:
    """Get one queue."""
    return dict(to_json(await caller.run(lambda: caller.services.queues.get(name))))


@queue_router.post(
    "/queues/{name}/pause", **responses(QUEUE), openapi_extra=describe_body(UntilRequest)
)
async def pause_queue(
    request: Request, caller: OperatorOfAll, name: str, body: UntilBody
) -> Response:
    """Pause a queue: no more jobs of it start. Running jobs continue."""
    return await run_until(request, caller, body, caller.services.queues.pause, name)


@queue_router.post(
    "/queues/{name}/resume", **responses(QUEUE), openapi_extra=describe_body(ReasonRequest)
)
async def resume_queue(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """Resume a paused queue."""
    return await run_with_reason(request, caller, body, caller.services.queues.resume, name)


@queue_router.patch("/queues/{name}", **responses(QUEUE), openapi_extra=describe_body(LimitRequest))
async def limit_queue(
    request: Request, caller: OperatorOfAll, name: str, body: LimitBody
) -> Response:
    """Set limits that override those declared in code, until they end or are cleared."""
    queues = caller.services.queues
    return await change_limits(request, caller, body, queues, name)


@queue_router.get("/workers", **responses(WORKERS))
async def list_workers(caller: ViewerOfAll, *, all: AllParam = False) -> JsonObject:  # noqa: A002 - public parameter
    """List workers. Only operators see host and pid."""

    def load() -> list[WorkerStatus]:
        with caller.context.store().read() as tx:
            return worker_statuses(tx, closed=all)

    return {"workers": [_worker_to_json(caller, worker) for worker in await caller.run(load)]}


@queue_router.post(
    "/workers/{worker_id}/drain", **responses(WORKER), openapi_extra=describe_body(ReasonRequest)
)
async def drain_worker(
    request: Request, caller: OperatorOfAll, worker_id: str, body: ReasonBody
) -> Response:
    """Drain a worker: it claims no more jobs, finishes its running ones and stops."""

    def act() -> JsonObject:
        store = caller.context.store()
        [worker] = drain_workers(store, [worker_id], caller.actor, body.reason)
        return _worker_to_json(caller, worker)

    return await run_action(request, caller, act)


def _worker_to_json(caller: Caller, worker: WorkerStatus) -> JsonObject:
    row = worker.row
    document: JsonObject = {
        "id": row.id,
        "life": worker.life,
        "running": worker.running,
        "concurrency": row.concurrency,
        "kinds": json.loads(row.kinds),
        "queues": json.loads(row.queues),
        "release": row.release,
        "started_at": iso_time(row.started_at),
        "renewed_at": iso_time(row.renewed_at),
        "draining": row.draining or row.drain_reason is not None,
        "closed_at": iso_time(row.closed_at),
    }
    if caller.private:
        document["host"] = row.host
        document["pid"] = row.pid
        document["memory"] = row.memory
    return document


# --- Kinds ---

kind_router = APIRouter(prefix="/kinds", tags=["kinds"])


@kind_router.get("", **responses(KINDS))
async def list_kinds(caller: ViewerOfAll) -> JsonObject:
    """List kinds, held ones first."""
    return {"kinds": to_json(await caller.run(caller.services.kinds.list))}


@kind_router.get("/{name}", **responses(KIND))
async def get_kind(caller: ViewerOfAll, name: str) -> JsonObject:
    """Get one kind."""
    return dict(to_json(await caller.run(lambda: caller.services.kinds.get(name))))


@kind_router.post("/{name}/hold", **responses(KIND), openapi_extra=describe_body(UntilRequest))
async def hold_kind(
    request: Request, caller: OperatorOfAll, name: str, body: UntilBody
) -> Response:
    """Hold a kind: none of its jobs starts until then or until a release."""
    return await run_until(request, caller, body, caller.services.kinds.hold, name)


@kind_router.post("/{name}/release", **responses(KIND), openapi_extra=describe_body(ReasonRequest))
async def release_kind(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """Release a kind and reset its breaker."""
    return await run_with_reason(request, caller, body, caller.services.kinds.release, name)


@kind_router.post("/{name}/try", **responses(KIND), openapi_extra=describe_body(ReasonRequest))
async def try_kind(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """Let one waiting job of a held kind run."""
    return await run_with_reason(request, caller, body, caller.services.kinds.try_one, name)


# --- Dependencies ---

dependency_router = APIRouter(prefix="/dependencies", tags=["dependencies"])


@dependency_router.get("", **responses(DEPENDENCIES))
async def list_dependencies(caller: ViewerOfAll) -> JsonObject:
    """List dependencies."""
    return {"dependencies": to_json(await caller.run(caller.services.dependencies.list))}


@dependency_router.post(
    "/{key:path}/open", **responses(DEPENDENCY), openapi_extra=describe_body(UntilRequest)
)
async def open_dependency(
    request: Request, caller: OperatorOfAll, key: str, body: UntilBody
) -> Response:
    """Open the circuit breaker of a dependency: its jobs wait."""
    return await run_until(request, caller, body, caller.services.dependencies.open, key)


@dependency_router.post(
    "/{key:path}/close", **responses(DEPENDENCY), openapi_extra=describe_body(UntilRequest)
)
async def close_dependency(
    request: Request, caller: OperatorOfAll, key: str, body: UntilBody
) -> Response:
    """Close the circuit breaker. With `until` it stays closed even if calls fail."""
    return await run_until(request, caller, body, caller.services.dependencies.close, key)


@dependency_router.post(
    "/{key:path}/probe", **responses(DEPENDENCY), openapi_extra=describe_body(ReasonRequest)
)
async def probe_dependency(
    request: Request, caller: OperatorOfAll, key: str, body: ReasonBody
) -> Response:
    """Request a probe of the dependency now."""
    return await run_with_reason(request, caller, body, caller.services.dependencies.probe, key)


@dependency_router.get("/{key:path}", **responses(DEPENDENCY))
async def get_dependency(caller: ViewerOfAll, key: str) -> JsonObject:
    """Get one dependency."""
    return dict(to_json(await caller.run(lambda: caller.services.dependencies.get(key))))


@dependency_router.patch(
    "/{key:path}", **responses(DEPENDENCY), openapi_extra=describe_body(LimitRequest)
)
async def limit_dependency(
    request: Request, caller: OperatorOfAll, key: str, body: LimitBody
) -> Response:
    """Set limits that override those declared in code, until they end or are cleared."""
    dependencies = caller.services.dependencies
    return await change_limits(request, caller, body, dependencies, key)


# --- Schedules ---

schedule_router = APIRouter(prefix="/schedules", tags=["schedules"])

CountParam = Annotated[int, Query(ge=1, le=1000)]


@schedule_router.get("", **responses(SCHEDULES))
async def list_schedules(caller: ViewerOfAll) -> JsonObject:
    """List schedules."""
    return {"schedules": to_json(await caller.run(caller.services.schedules.list))}


@schedule_router.get("/{name}", **responses(SCHEDULE))
async def get_schedule(caller: ViewerOfAll, name: str) -> JsonObject:
    """Get one schedule."""
    return dict(to_json(await caller.run(lambda: caller.services.schedules.get(name))))


@schedule_router.get("/{name}/next", **responses(SLOTS))
async def next_slots(caller: ViewerOfAll, name: str, n: CountParam = 5) -> JsonObject:
    """List the next times of a schedule, in its time zone."""
    return {
        "schedule": name,
        "next": to_json(await caller.run(lambda: caller.services.schedules.next(name, n))),
    }


@schedule_router.post(
    "/{name}/pause", **responses(SCHEDULE), openapi_extra=describe_body(UntilRequest)
)
async def pause_schedule(
    request: Request, caller: OperatorOfAll, name: str, body: UntilBody
) -> Response:
    """Pause a schedule: it enqueues no jobs until then or until it is resumed."""
    return await run_until(request, caller, body, caller.services.schedules.pause, name)


@schedule_router.post(
    "/{name}/resume", **responses(SCHEDULE), openapi_extra=describe_body(ReasonRequest)
)
async def resume_schedule(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """Resume a schedule. Times that passed meanwhile are not made up for."""
    return await run_with_reason(request, caller, body, caller.services.schedules.resume, name)


@schedule_router.post(
    "/{name}/run", **responses(JOB, 201), openapi_extra=describe_body(ReasonRequest)
)
async def run_schedule(
    request: Request, caller: OperatorOfAll, name: str, body: ReasonBody
) -> Response:
    """Enqueue one job of a schedule now."""

    def work(_: IdempotencyKey) -> JsonAnswer:
        job = caller.services.schedules.run(name, reason=body.reason)
        return JsonAnswer(201, job_to_json(job, private=caller.private))

    return await run_once(request, caller, work)

"""`/batches`: groups of jobs with a common outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.batches.service import Batch, Batches
from mulligan.http.api.actions import (
    CursorParam,
    FilterParam,
    LimitParam,
    LinkBody,
    LinkRequest,
    NewJobRequest,
    NewJobsRequest,
    ReasonBody,
    ReasonRequest,
    ShortLimitParam,
    Text,
    TimeField,
    check_kind,
    create_link,
    enqueue_many,
    enqueue_one,
    parse_time,
    resolve_owner,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, owned_batch
from mulligan.http.api.openapi import (
    BATCH,
    BATCH_FAILURES,
    BATCH_RETRIED,
    BATCHES,
    ENQUEUED_JOBS,
    EVENTS,
    JOB,
    LINK,
    MEMBERS,
    responses,
)
from mulligan.http.api.requests import (
    IdempotencyKey,
    RequestBody,
    decode_cursor,
    describe_body,
    encode_cursor,
    insert_once,
    json_body,
    run_once,
)
from mulligan.http.api.responses import JsonAnswer, JsonObject, event_to_json, job_to_json, to_json

router = APIRouter(prefix="/batches", tags=["batches"])


class NewBatchRequest(RequestBody):
    """Body of `POST /batches`."""

    name: Text
    owner: Text | None = Field(None, description="only with a key of scope *")
    on_complete: Text | None = Field(
        None, description="a kind to enqueue with {batch: id} at each outcome"
    )
    tolerance: float | Text = Field(
        0, description='how many members may die: a number or a share ("10%")'
    )
    expires_in: TimeField = None
    unique: Text | None = Field(
        None, description="a second call with this key returns the first batch"
    )


NewBatchBody = Annotated[NewBatchRequest, json_body(NewBatchRequest)]
MemberBody = Annotated[NewJobRequest | NewJobsRequest, json_body(NewJobRequest, NewJobsRequest)]
StateParam = Annotated[Text | None, Query(description="processing, ready, partial, failed …")]


@router.get("", **responses(BATCHES))
async def list_batches(
    caller: Viewer,
    state: StateParam = None,
    limit: ShortLimitParam = 50,
    cursor: CursorParam = None,
) -> JsonObject:
    """List batches, newest first."""
    cursor_scope = f"batches {state}"
    before = decode_cursor(caller, cursor_scope, cursor)
    found = await caller.run(
        lambda: caller.services.batches.list(
            state=state, owner=caller.owner, limit=limit, before=before
        )
    )
    next_cursor = encode_cursor(caller, cursor_scope, found[-1].id) if len(found) == limit else None
    return {"batches": [_to_json(batch) for batch in found], "next": next_cursor}


@router.get("/{batch_id}", **responses(BATCH))
async def get_batch(caller: Viewer, batch_id: str) -> JsonObject:
    """Get one batch."""
    return _to_json(await caller.run(lambda: owned_batch(caller, batch_id)))


@router.get("/{batch_id}/jobs", **responses(MEMBERS))
async def list_members(
    caller: Viewer,
    batch_id: str,
    filter: FilterParam = "",  # noqa: A002 - as in the URL
    limit: LimitParam = 50,
    cursor: CursorParam = None,
) -> JsonObject:
    """List the jobs of a batch, newest first."""
    cursor_scope = f"members {batch_id} {filter}"
    before = decode_cursor(caller, cursor_scope, cursor)

    def load() -> Any:
        member_filter = f"{filter} batch:{owned_batch(caller, batch_id).id}".strip()
        return caller.services.jobs.list(
            member_filter, limit=limit, before=before, owner=caller.owner, private=caller.private
        )

    found = await caller.run(load)
    next_cursor = encode_cursor(caller, cursor_scope, found.cursor)
    jobs = [job_to_json(job, private=caller.private) for job in found]
    return {"jobs": jobs, "next": next_cursor, "partial": found.partial}


@router.get("/{batch_id}/failures", **responses(BATCH_FAILURES))
async def list_member_failures(caller: Viewer, batch_id: str) -> JsonObject:
    """Count the dead members of a batch by failure code."""
    found = await caller.run(
        lambda: caller.services.batches.failures(owned_batch(caller, batch_id).id)
    )
    return {"failures": to_json(found)}


@router.get("/{batch_id}/events", **responses(EVENTS))
async def list_batch_events(caller: Viewer, batch_id: str) -> JsonObject:
    """List the events of the batch itself, oldest first."""
    found = await caller.run(
        lambda: caller.services.batches.history(owned_batch(caller, batch_id).id)
    )
    return {"events": [event_to_json(one, private=caller.sees_staff_actions) for one in found]}


@router.post(
    "", **responses(BATCH, 201), openapi_extra=describe_body(NewBatchRequest, required=True)
)
async def create_batch(request: Request, caller: Operator, body: NewBatchBody) -> Response:
    """Create a batch. Members can be added until it is sealed."""

    def work(_: IdempotencyKey) -> JsonAnswer:
        options: JsonObject = {
            "owner": resolve_owner(caller, body.owner),
            "tolerance": _whole_number(body.tolerance),
            "expires_in": parse_time("expires_in", body.expires_in),
            "unique": body.unique,
        }
        if body.on_complete is not None:
            options["on_complete"] = check_kind(caller, body.on_complete)
        return JsonAnswer(201, _to_json(caller.context.app.batch(body.name, **options)))

    return await run_once(request, caller, work)


@router.post(
    "/{batch_id}/jobs",
    **responses(JOB | ENQUEUED_JOBS, 201, or_200=JOB),
    openapi_extra=describe_body(NewJobRequest, NewJobsRequest, required=True),
)
async def add_members(
    request: Request, caller: Operator, batch_id: str, body: MemberBody
) -> Response:
    """Add one job, as in `POST /jobs`, or several (`{jobs}`), as in `POST /jobs/bulk`."""
    if isinstance(body, NewJobsRequest):
        return await insert_once(
            request, caller, lambda key: enqueue_many(caller, body.jobs, key, batch_id)
        )
    return await insert_once(request, caller, lambda key: enqueue_one(caller, body, key, batch_id))


@router.post("/{batch_id}/seal", **responses(BATCH), openapi_extra=describe_body(ReasonRequest))
async def seal_batch(
    request: Request, caller: Operator, batch_id: str, body: ReasonBody
) -> Response:
    """Seal a batch: it takes no more members."""
    return await _run_batch_action(
        request,
        caller,
        batch_id,
        lambda batches: _to_json(batches.seal(batch_id, reason=body.reason)),
    )


@router.post(
    "/{batch_id}/retry-failed",
    **responses(BATCH_RETRIED),
    openapi_extra=describe_body(ReasonRequest),
)
async def retry_batch(
    request: Request, caller: Operator, batch_id: str, body: ReasonBody
) -> Response:
    """Retry every dead member."""

    def act(batches: Batches) -> JsonObject:
        result = batches.retry_failed(batch_id, reason=body.reason)
        refused = {
            job: {"code": why.code, "detail": str(why)} for job, why in result.refused.items()
        }
        return {"batch": _to_json(result.batch), "jobs": list(result.jobs), "refused": refused}

    return await _run_batch_action(request, caller, batch_id, act)


@router.post("/{batch_id}/cancel", **responses(BATCH), openapi_extra=describe_body(ReasonRequest))
async def cancel_batch(
    request: Request, caller: Operator, batch_id: str, body: ReasonBody
) -> Response:
    """Cancel a batch: queued members are cancelled, running ones are asked to stop."""
    return await _run_batch_action(
        request,
        caller,
        batch_id,
        lambda batches: _to_json(batches.cancel(batch_id, reason=body.reason)),
    )


@router.post("/{batch_id}/status-link", **responses(LINK), openapi_extra=describe_body(LinkRequest))
async def link_batch(request: Request, caller: Operator, batch_id: str, body: LinkBody) -> Response:
    """Create a link to a status page of the batch that needs no key."""
    return await run_action(
        request, caller, lambda: create_link(caller, owned_batch(caller, batch_id), body)
    )


async def _run_batch_action(
    request: Request, caller: Caller, batch_id: str, action: Callable[[Batches], JsonObject]
) -> Response:
    def work() -> JsonObject:
        owned_batch(caller, batch_id)
        return action(caller.services.batches)

    return await run_action(request, caller, work)


def _to_json(batch: Batch) -> JsonObject:
    return dict(to_json(batch))


def _whole_number(value: float | str) -> float | str:
    """Convert 3.0 to 3: a float below 1 is a share, an int is a number of jobs."""
    if isinstance(value, float | int) and float(value).is_integer():
        return int(value)
    return value

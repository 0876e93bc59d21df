"""`/batches`: jobs with a common outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.batches.service import Batch, Batches
from mulligan.http.api.actions import (
    Cursor,
    Few,
    Filter,
    Limit,
    LinkBody,
    LinkRequest,
    NewJobRequest,
    NewJobsRequest,
    ReasonBody,
    ReasonRequest,
    Text,
    When,
    acted,
    enqueued,
    enqueued_together,
    known_kind,
    linked,
    owner_of,
    when,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, owned_batch
from mulligan.http.api.idempotency import Answer, Named, once
from mulligan.http.api.openapi import (
    BATCH,
    BATCH_FAILURES,
    BATCH_RETRIED,
    BATCHES,
    EVENTS,
    JOB,
    LINK,
    MADE,
    MEMBERS,
    answers,
)
from mulligan.http.api.requests import RequestBody, body_of, opened, sealed, takes
from mulligan.http.api.serialize import Plain, event_shape, job_shape, plain

router = APIRouter(prefix="/batches", tags=["batches"])


class NewBatchRequest(RequestBody):
    name: Text
    owner: Text | None = Field(None, description="from keys of scope * only")
    on_complete: Text | None = Field(
        None, description="a kind that is enqueued with each outcome, with {batch: id}"
    )
    tolerance: float | Text = Field(
        0, description='how many members may die, or which share ("10%")'
    )
    expires_in: When = None
    unique: Text | None = Field(None, description="a second call with it returns the first batch")


NewBatchBody = Annotated[NewBatchRequest, body_of(NewBatchRequest)]
MemberBody = Annotated[NewJobRequest | NewJobsRequest, body_of(NewJobRequest, NewJobsRequest)]
State = Annotated[Text | None, Query(description="processing, ready, partial, failed …")]


@router.get("", **answers(BATCHES))
async def list_batches(
    caller: Viewer, state: State = None, limit: Few = 50, cursor: Cursor = None
) -> Plain:
    """Newest first."""
    about = f"batches {state}"
    before = opened(caller, about, cursor)
    found = await caller.room.ask(
        lambda: caller.desk.batches.list(
            state=state, owner=caller.owner, limit=limit, before=before
        )
    )
    following = sealed(caller, about, found[-1].id) if len(found) == limit else None
    return {"batches": [_shown(batch) for batch in found], "next": following}


@router.get("/{batch_id}", **answers(BATCH))
async def get_batch(caller: Viewer, batch_id: str) -> Plain:
    return _shown(await caller.room.ask(lambda: owned_batch(caller, batch_id)))


@router.get("/{batch_id}/jobs", **answers(MEMBERS))
async def list_members(
    caller: Viewer,
    batch_id: str,
    filter: Filter = "",  # noqa: A002 - as in the URL
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Plain:
    """Newest first."""
    about = f"members {batch_id} {filter}"
    before = opened(caller, about, cursor)

    def look() -> Any:
        words = f"{filter} batch:{owned_batch(caller, batch_id).id}".strip()
        return caller.desk.jobs.list(
            words, limit=limit, before=before, owner=caller.owner, private=caller.private
        )

    found = await caller.room.ask(look)
    following = None if found.cursor is None else sealed(caller, about, found.cursor)
    shown = [job_shape(job, private=caller.private) for job in found]
    return {"jobs": shown, "next": following, "partial": found.partial}


@router.get("/{batch_id}/failures", **answers(BATCH_FAILURES))
async def list_member_failures(caller: Viewer, batch_id: str) -> Plain:
    """Dead members by code."""
    found = await caller.room.ask(
        lambda: caller.desk.batches.failures(owned_batch(caller, batch_id).id)
    )
    return {"failures": plain(found)}


@router.get("/{batch_id}/events", **answers(EVENTS))
async def list_batch_events(caller: Viewer, batch_id: str) -> Plain:
    """What happened to the batch itself, in order."""
    found = await caller.room.ask(
        lambda: caller.desk.batches.history(owned_batch(caller, batch_id).id)
    )
    return {"events": [event_shape(one, private=caller.backstage) for one in found]}


@router.post("", **answers(BATCH, 201), openapi_extra=takes(NewBatchRequest, required=True))
async def begin_batch(request: Request, caller: Operator, said: NewBatchBody) -> Response:
    """Members are added until it is sealed."""

    def work(_: Named) -> Answer:
        options: Plain = {
            "owner": owner_of(caller, said.owner),
            "on_complete": None
            if said.on_complete is None
            else known_kind(caller, said.on_complete),
            "tolerance": int(said.tolerance) if _whole(said.tolerance) else said.tolerance,
            "expires_in": when("expires_in", said.expires_in),
            "unique": said.unique,
        }
        return Answer(201, _shown(caller.room.app.batch(said.name, **options)))

    return await once(request, caller, work)


@router.post(
    "/{batch_id}/jobs",
    **answers(JOB | MADE, 201, or_200=JOB),
    openapi_extra=takes(NewJobRequest, NewJobsRequest, required=True),
)
async def add_member(
    request: Request, caller: Operator, batch_id: str, said: MemberBody
) -> Response:
    """One, as for `POST /jobs`, or several (`{jobs}`), as for `POST /jobs/bulk`."""
    if isinstance(said, NewJobsRequest):
        return await once(
            request, caller, lambda named: enqueued_together(caller, said.jobs, named, batch_id)
        )
    return await once(request, caller, lambda named: enqueued(caller, said, named, batch_id))


@router.post("/{batch_id}/seal", **answers(BATCH), openapi_extra=takes(ReasonRequest))
async def seal_batch(
    request: Request, caller: Operator, batch_id: str, said: ReasonBody
) -> Response:
    """It takes no more members."""
    return await _moved(
        request, caller, batch_id, lambda api: _shown(api.seal(batch_id, reason=said.reason))
    )


@router.post(
    "/{batch_id}/retry-failed", **answers(BATCH_RETRIED), openapi_extra=takes(ReasonRequest)
)
async def retry_batch(
    request: Request, caller: Operator, batch_id: str, said: ReasonBody
) -> Response:
    """Every dead member once more."""

    def act(api: Batches) -> Plain:
        done = api.retry_failed(batch_id, reason=said.reason)
        refused = {job: {"code": why.code, "detail": str(why)} for job, why in done.refused.items()}
        return {"batch": _shown(done.batch), "jobs": list(done.jobs), "refused": refused}

    return await _moved(request, caller, batch_id, act)


@router.post("/{batch_id}/cancel", **answers(BATCH), openapi_extra=takes(ReasonRequest))
async def cancel_batch(
    request: Request, caller: Operator, batch_id: str, said: ReasonBody
) -> Response:
    """No more members; those that wait are cancelled, those that run are asked to stop."""
    return await _moved(
        request, caller, batch_id, lambda api: _shown(api.cancel(batch_id, reason=said.reason))
    )


@router.post("/{batch_id}/status-link", **answers(LINK), openapi_extra=takes(LinkRequest))
async def link_batch(request: Request, caller: Operator, batch_id: str, said: LinkBody) -> Response:
    """A page about it for who has the link, without a key."""
    return await acted(request, caller, lambda: linked(caller, owned_batch(caller, batch_id), said))


async def _moved(
    request: Request, caller: Caller, batch_id: str, act: Callable[[Batches], Plain]
) -> Response:
    def work() -> Plain:
        owned_batch(caller, batch_id)
        return act(caller.desk.batches)

    return await acted(request, caller, work)


def _shown(batch: Batch) -> Plain:
    return dict(plain(batch))


def _whole(value: float | str) -> bool:
    return isinstance(value, float | int) and float(value).is_integer()

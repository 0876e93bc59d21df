"""`/jobs`: enqueue, look, repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from mulligan.core.job import Job
from mulligan.http.api.actions import (
    Cursor,
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
    linked,
    when,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, owned_job
from mulligan.http.api.idempotency import Answer, once
from mulligan.http.api.openapi import (
    ATTEMPTS,
    COUNT,
    EVENTS,
    EXPLANATION,
    JOB,
    JOBS,
    LINK,
    MADE,
    RETRY_PREVIEW,
    answers,
)
from mulligan.http.api.requests import body_of, opened, sealed, takes
from mulligan.http.api.serialize import Plain, attempt_shape, event_shape, job_shape, plain
from mulligan.jobs.explain import Explanation

router = APIRouter(prefix="/jobs", tags=["jobs"])


class RetryRequest(ReasonRequest):
    overrides: dict[str, Any] | None = Field(
        None,
        description="max_retries, queue, priority, timeout, policy, payload: fields that its kind calls editable",
    )
    at: When = None
    dry_run: bool = Field(
        default=False, description="only say what would change, and what is in the way"
    )


class ReleaseRequest(ReasonRequest):
    choice: Text | None = None


NewJobBody = Annotated[NewJobRequest, body_of(NewJobRequest)]
NewJobsBody = Annotated[NewJobsRequest, body_of(NewJobsRequest)]
RetryBody = Annotated[RetryRequest, body_of(RetryRequest)]
ReleaseBody = Annotated[ReleaseRequest, body_of(ReleaseRequest)]


# -- look -------------------------------------------------------------------------------------------
@router.get("", **answers(JOBS))
async def list_jobs(
    caller: Viewer,
    filter: Filter = "",  # noqa: A002 - as in the URL
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Newest first. `partial`: looking stopped after 50,000 jobs; `next` goes on."""
    about = f"jobs {filter}"
    before = opened(caller, about, cursor)
    found = await caller.room.ask(
        lambda: caller.desk.jobs.list(
            filter, limit=limit, before=before, owner=caller.owner, private=caller.private
        )
    )
    following = None if found.cursor is None else sealed(caller, about, found.cursor)
    shown = [
        _shown(caller, job) for job in found
    ]  # plain already: FastAPI need not look at each value once more
    return JSONResponse({"jobs": shown, "next": following, "partial": found.partial})


@router.get("/count", **answers(COUNT))
async def count_jobs(caller: Viewer, filter: Filter = "") -> Plain:  # noqa: A002 - as in the URL
    """`capped`: counting stopped at 10,000. `partial`: looking stopped after 50,000 jobs."""
    found = await caller.room.ask(
        lambda: caller.desk.jobs.count(filter, owner=caller.owner, private=caller.private)
    )
    return {"count": int(found), "capped": found.capped, "partial": found.partial}


@router.get("/{job_id}", **answers(JOB))
async def get_job(caller: Viewer, job_id: str) -> Plain:
    return _shown(caller, await caller.room.ask(lambda: owned_job(caller, job_id)))


@router.get("/{job_id}/attempts", **answers(ATTEMPTS))
async def list_attempts(caller: Viewer, job_id: str) -> Plain:
    """Newest first."""
    found = await caller.room.ask(lambda: caller.desk.jobs.attempts(owned_job(caller, job_id).id))
    return {"attempts": [attempt_shape(one, private=caller.private) for one in reversed(found)]}


@router.get("/{job_id}/events", **answers(EVENTS))
async def list_events(caller: Viewer, job_id: str) -> Plain:
    """In order."""
    found = await caller.room.ask(lambda: caller.desk.jobs.history(owned_job(caller, job_id).id))
    return {"events": [event_shape(one, private=caller.backstage) for one in found]}


@router.get("/{job_id}/explain", **answers(EXPLANATION))
async def explain_job(caller: Viewer, job_id: str) -> Plain:
    """Its story, why it is where it is, and what could be done."""

    def look() -> Explanation:
        return caller.desk.jobs.explain(owned_job(caller, job_id).id, private=caller.private)

    found = await caller.room.ask(look)
    shape: Plain = {
        "job_id": found.job.id,
        "now": found.now,
        "story": plain(found.story),
        "text": found.text,
        "choices": list(found.choices),
        "moves": [verb.value for verb in found.moves],
    }
    return {**shape, "facts": plain(found.facts)} if caller.private else shape


# -- act --------------------------------------------------------------------------------------------
@router.post("", **answers(JOB, 201, or_200=JOB), openapi_extra=takes(NewJobRequest, required=True))
async def enqueue_job(request: Request, caller: Operator, said: NewJobBody) -> Response:
    """201 with the job; 200 and `deduplicated` for a twin."""
    return await once(request, caller, lambda named: enqueued(caller, said, named))


@router.post("/bulk", **answers(MADE, 201), openapi_extra=takes(NewJobsRequest, required=True))
async def enqueue_jobs(request: Request, caller: Operator, said: NewJobsBody) -> Response:
    """All of them in one transaction, or none; a twin is the job that was there, and says `deduplicated`."""
    return await once(request, caller, lambda named: enqueued_together(caller, said.jobs, named))


@router.post("/{job_id}/retry", **answers(JOB | RETRY_PREVIEW), openapi_extra=takes(RetryRequest))
async def retry_job(request: Request, caller: Operator, job_id: str, said: RetryBody) -> Response:
    """A new generation of a dead, parked or cancelled job."""
    wish: Plain = {"overrides": said.overrides, "at": when("at", said.at), "owner": caller.owner}
    if said.dry_run:
        return await acted(request, caller, lambda: _previewed(caller, job_id, wish))

    def act() -> Job:
        return caller.desk.jobs.retry(job_id, reason=said.reason, **wish)

    return await _moved(request, caller, job_id, act)


@router.post("/{job_id}/cancel", **answers(JOB), openapi_extra=takes(ReasonRequest))
async def cancel_job(request: Request, caller: Operator, job_id: str, said: ReasonBody) -> Response:
    """What waits is cancelled, what runs is asked to stop."""
    return await _moved(
        request,
        caller,
        job_id,
        lambda: caller.desk.jobs.cancel(job_id, reason=said.reason, owner=caller.owner),
    )


@router.post("/{job_id}/release", **answers(JOB), openapi_extra=takes(ReleaseRequest))
async def release_job(
    request: Request, caller: Operator, job_id: str, said: ReleaseBody
) -> Response:
    """A parked job goes on, with the choice that was made."""

    def act() -> Job:
        return caller.desk.jobs.release(
            job_id, choice=said.choice, reason=said.reason, owner=caller.owner
        )

    return await _moved(request, caller, job_id, act)


@router.post("/{job_id}/discard", **answers(JOB), openapi_extra=takes(ReasonRequest))
async def discard_job(
    request: Request, caller: Operator, job_id: str, said: ReasonBody
) -> Response:
    """A dead or parked job is given up; say why."""
    return await _moved(
        request,
        caller,
        job_id,
        lambda: caller.desk.jobs.discard(job_id, reason=said.reason, owner=caller.owner),
    )


@router.post("/{job_id}/status-link", **answers(LINK), openapi_extra=takes(LinkRequest))
async def link_job(request: Request, caller: Operator, job_id: str, said: LinkBody) -> Response:
    """A page about it for who has the link, without a key."""
    return await acted(request, caller, lambda: linked(caller, owned_job(caller, job_id), said))


def _previewed(caller: Caller, job_id: str, wish: Plain) -> Plain:
    found = caller.desk.jobs.preview_retry(owned_job(caller, job_id).id, **wish)
    refused = [{"code": why.code, "detail": str(why)} for why in found.refused]
    return {"job_id": found.row.id, "changes": found.changes, "refused": refused}


async def _moved(request: Request, caller: Caller, job_id: str, act: Callable[[], Job]) -> Response:
    def work(_: object) -> Answer:
        owned_job(caller, job_id)
        return Answer(200, _shown(caller, act()))

    return await once(request, caller, work)


def _shown(caller: Caller, job: Job) -> Plain:
    return job_shape(job, private=caller.private)

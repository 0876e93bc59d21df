"""`/jobs`: enqueue, inspect and repair jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.core.job import Job
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
    Text,
    TimeField,
    create_link,
    enqueue_many,
    enqueue_one,
    parse_time,
    run_action,
)
from mulligan.http.api.auth import Caller, Operator, Viewer, owned_job
from mulligan.http.api.openapi import (
    ATTEMPTS,
    COUNT,
    ENQUEUED_JOBS,
    EVENTS,
    EXPLANATION,
    JOB,
    JOBS,
    LINK,
    LOG,
    RETRY_PREVIEW,
    STEPS,
    responses,
)
from mulligan.http.api.requests import (
    IdempotencyKey,
    decode_cursor,
    describe_body,
    encode_cursor,
    insert_once,
    json_body,
    run_once,
)
from mulligan.http.api.responses import (
    ApiResponse,
    JsonAnswer,
    JsonObject,
    attempt_to_json,
    event_to_json,
    job_to_json,
    to_json,
)
from mulligan.jobs.explain import Explanation
from mulligan.jobs.rerun import enqueue_copy

router = APIRouter(prefix="/jobs", tags=["jobs"])


class RetryRequest(ReasonRequest):
    """Body of a manual retry."""

    overrides: dict[str, Any] | None = Field(
        None,
        description="max_retries, queue, priority, timeout, policy, "
        "payload (the fields that the kind declares as editable), steps (results by name)",
    )
    from_step: Text | None = Field(
        None, description="call this step, and those that ended after it, again"
    )
    at: TimeField = None
    dry_run: bool = Field(
        default=False, description="only report what would change and what forbids it"
    )


class AnswerRequest(ReasonRequest):
    """Body of an answer to what a job waits for."""

    value: Any = Field(None, description="the answer, any JSON")


class ReleaseRequest(ReasonRequest):
    """Body of a release of a parked job."""

    choice: Text | None = None
    value: Any = Field(None, description='result of a step in doubt, with "it happened"')


NewJobBody = Annotated[NewJobRequest, json_body(NewJobRequest)]
NewJobsBody = Annotated[NewJobsRequest, json_body(NewJobsRequest)]
RetryBody = Annotated[RetryRequest, json_body(RetryRequest)]
AnswerBody = Annotated[AnswerRequest, json_body(AnswerRequest)]
ReleaseBody = Annotated[ReleaseRequest, json_body(ReleaseRequest)]


TokenPath = Annotated[int, Path(ge=0, lt=2**63)]


# --- Read ---


@router.get("", **responses(JOBS))
async def list_jobs(
    caller: Viewer,
    filter: FilterParam = "",  # noqa: A002 - as in the URL
    limit: LimitParam = 50,
    cursor: CursorParam = None,
) -> Response:
    """List jobs, newest first.

    `partial`: the search stopped after 50,000 jobs; continue with `next`.
    """
    cursor_scope = f"jobs {filter}"
    before = decode_cursor(caller, cursor_scope, cursor)
    found = await caller.run(
        lambda: caller.services.jobs.list(
            filter, limit=limit, before=before, owner=caller.owner, private=caller.private
        )
    )
    next_cursor = encode_cursor(caller, cursor_scope, found.cursor)
    jobs = [_to_json(caller, job) for job in found]
    # An ApiResponse, because FastAPI would walk through every value of a dict again.
    return ApiResponse({"jobs": jobs, "next": next_cursor, "partial": found.partial})


@router.get("/count", **responses(COUNT))
async def count_jobs(caller: Viewer, filter: FilterParam = "") -> JsonObject:  # noqa: A002 - as in the URL
    """Count jobs.

    `capped`: counting stopped at 10,000. `partial`: the search stopped after 50,000 jobs.
    """
    found = await caller.run(
        lambda: caller.services.jobs.count(filter, owner=caller.owner, private=caller.private)
    )
    return {"count": int(found), "capped": found.capped, "partial": found.partial}


@router.get("/{job_id}", **responses(JOB))
async def get_job(caller: Viewer, job_id: str) -> JsonObject:
    """Get one job."""
    return _to_json(caller, await caller.run(lambda: owned_job(caller, job_id)))


@router.get("/{job_id}/attempts", **responses(ATTEMPTS))
async def list_attempts(caller: Viewer, job_id: str) -> JsonObject:
    """List the attempts of a job, newest first."""
    found = await caller.run(lambda: caller.services.jobs.attempts(owned_job(caller, job_id).id))
    return {"attempts": [attempt_to_json(one, private=caller.private) for one in reversed(found)]}


@router.get("/{job_id}/steps", **responses(STEPS))
async def list_steps(caller: Viewer, job_id: str) -> JsonObject:
    """List the steps of a job in the order in which they ended. Values are for operators."""
    found = await caller.run(lambda: caller.services.jobs.steps(owned_job(caller, job_id).id))
    steps = [one.to_json() for one in found]
    if not caller.private:
        for step in steps:
            del step["value"]
    return {"steps": steps}


@router.get("/{job_id}/attempts/{token}/log", **responses(LOG))
async def get_log(caller: Operator, job_id: str, token: TokenPath) -> JsonObject:
    """Get the last log records and the stacks of a failed attempt, without secrets."""
    found = await caller.run(lambda: caller.services.jobs.log(owned_job(caller, job_id).id, token))
    return found.to_json()


@router.get("/{job_id}/events", **responses(EVENTS))
async def list_events(caller: Viewer, job_id: str) -> JsonObject:
    """List the events of a job, oldest first."""
    found = await caller.run(lambda: caller.services.jobs.history(owned_job(caller, job_id).id))
    return {"events": [event_to_json(one, private=caller.sees_staff_actions) for one in found]}


@router.get("/{job_id}/explain", **responses(EXPLANATION))
async def explain_job(caller: Viewer, job_id: str) -> JsonObject:
    """Explain a job: its history, why it is in this state, and what can be done."""

    def load() -> Explanation:
        return caller.services.jobs.explain(owned_job(caller, job_id).id, private=caller.private)

    found = await caller.run(load)
    explanation: JsonObject = {
        "job_id": found.job.id,
        "now": found.now,
        "story": to_json(found.story),
        "text": found.text,
        "choices": list(found.choices),
        "moves": [move.value for move in found.moves],
    }
    if caller.private:
        explanation["facts"] = to_json(found.facts)
    return explanation


# --- Act ---


@router.post(
    "", **responses(JOB, 201, or_200=JOB), openapi_extra=describe_body(NewJobRequest, required=True)
)
async def enqueue_job(request: Request, caller: Operator, body: NewJobBody) -> Response:
    """Enqueue a job. 201 with the job; 200 and `deduplicated` if it exists already."""
    return await insert_once(request, caller, lambda key: enqueue_one(caller, body, key))


@router.post(
    "/bulk",
    **responses(ENQUEUED_JOBS, 201),
    openapi_extra=describe_body(NewJobsRequest, required=True),
)
async def enqueue_jobs(request: Request, caller: Operator, body: NewJobsBody) -> Response:
    """Enqueue several jobs in one transaction, all or none.

    A duplicate is answered with the existing job and `deduplicated`.
    """
    return await insert_once(request, caller, lambda key: enqueue_many(caller, body.jobs, key))


@router.post(
    "/{job_id}/retry", **responses(JOB | RETRY_PREVIEW), openapi_extra=describe_body(RetryRequest)
)
async def retry_job(request: Request, caller: Operator, job_id: str, body: RetryBody) -> Response:
    """Retry a dead, parked or cancelled job as a new generation."""
    options: JsonObject = {
        "overrides": body.overrides,
        "from_step": body.from_step,
        "at": parse_time("at", body.at),
        "owner": caller.owner,
    }
    if body.dry_run:
        return await run_action(request, caller, lambda: _preview(caller, job_id, options))

    def act() -> Job:
        return caller.services.jobs.retry(job_id, reason=body.reason, **options)

    return await _run_job_action(request, caller, job_id, act)


@router.post("/{job_id}/cancel", **responses(JOB), openapi_extra=describe_body(ReasonRequest))
async def cancel_job(request: Request, caller: Operator, job_id: str, body: ReasonBody) -> Response:
    """Cancel a job. A running job is asked to stop."""
    return await _run_job_action(
        request,
        caller,
        job_id,
        lambda: caller.services.jobs.cancel(job_id, reason=body.reason, owner=caller.owner),
    )


@router.post("/{job_id}/release", **responses(JOB), openapi_extra=describe_body(ReleaseRequest))
async def release_job(
    request: Request, caller: Operator, job_id: str, body: ReleaseBody
) -> Response:
    """Release a parked job, with the choice that a person made."""

    def act() -> Job:
        return caller.services.jobs.release(
            job_id,
            choice=body.choice,
            value=body.value,
            reason=body.reason,
            owner=caller.owner,
        )

    return await _run_job_action(request, caller, job_id, act)


@router.post(
    "/{job_id}/tell/{name:path}", **responses(JOB), openapi_extra=describe_body(AnswerRequest)
)
async def answer_job(
    request: Request, caller: Operator, job_id: str, name: str, body: AnswerBody
) -> Response:
    """Answer what a job waits for. The first answer counts.

    409 with ANSWER_REFUSED if there was an answer before, or its time is over.
    """

    def act() -> Job:
        return caller.services.jobs.tell(
            job_id, name, body.value, reason=body.reason, owner=caller.owner
        )

    return await _run_job_action(request, caller, job_id, act)


@router.post("/{job_id}/discard", **responses(JOB), openapi_extra=describe_body(ReasonRequest))
async def discard_job(
    request: Request, caller: Operator, job_id: str, body: ReasonBody
) -> Response:
    """Discard a dead or parked job. A reason is required."""
    return await _run_job_action(
        request,
        caller,
        job_id,
        lambda: caller.services.jobs.discard(job_id, reason=body.reason, owner=caller.owner),
    )


@router.post("/{job_id}/undo", **responses(JOB), openapi_extra=describe_body(ReasonRequest))
async def undo_job(request: Request, caller: Operator, job_id: str, body: ReasonBody) -> Response:
    """Undo the finished steps of a dead, cancelled or parked job."""
    return await _run_job_action(
        request,
        caller,
        job_id,
        lambda: caller.services.jobs.undo(job_id, reason=body.reason, owner=caller.owner),
    )


@router.post("/{job_id}/undiscard", **responses(JOB), openapi_extra=describe_body(ReasonRequest))
async def undiscard_job(
    request: Request, caller: Operator, job_id: str, body: ReasonBody
) -> Response:
    """Undo a discard: the job is dead or parked again, and does not run."""
    return await _run_job_action(
        request,
        caller,
        job_id,
        lambda: caller.services.jobs.undiscard(job_id, reason=body.reason, owner=caller.owner),
    )


@router.post("/{job_id}/rerun", **responses(JOB, 201), openapi_extra=describe_body(ReasonRequest))
async def rerun_job(request: Request, caller: Operator, job_id: str, body: ReasonBody) -> Response:
    """Enqueue a copy of a succeeded job. 201 with the copy."""

    def work(key: IdempotencyKey) -> JsonAnswer:
        owned_job(caller, job_id)
        with caller.context.store().begin() as tx:
            key.lock(tx)
            copy = enqueue_copy(
                tx,
                job_id,
                caller.services.jobs,
                actor=caller.actor,
                reason=body.reason,
                owner=caller.owner,
            )
            answer = JsonAnswer(201, _to_json(caller, copy))
            key.store_answer(tx, answer)
        return answer

    return await insert_once(request, caller, work)


@router.post("/{job_id}/status-link", **responses(LINK), openapi_extra=describe_body(LinkRequest))
async def link_job(request: Request, caller: Operator, job_id: str, body: LinkBody) -> Response:
    """Create a link to a status page of the job that needs no key."""
    return await run_action(
        request, caller, lambda: create_link(caller, owned_job(caller, job_id), body)
    )


def _preview(caller: Caller, job_id: str, options: JsonObject) -> JsonObject:
    found = caller.services.jobs.preview_retry(owned_job(caller, job_id).id, **options)
    refused = [{"code": why.code, "detail": str(why)} for why in found.refused]
    return {
        "job_id": found.row.id,
        "changes": found.changes,
        "refused": refused,
        "warnings": list(found.warnings),
    }


async def _run_job_action(
    request: Request, caller: Caller, job_id: str, action: Callable[[], Job]
) -> Response:
    def work(_: IdempotencyKey) -> JsonAnswer:
        owned_job(caller, job_id)
        return JsonAnswer(200, _to_json(caller, action()))

    return await run_once(request, caller, work)


def _to_json(caller: Caller, job: Job) -> JsonObject:
    return job_to_json(job, private=caller.private)

"""Shared parts of API routes: enqueueing jobs, times, limits, actions and status links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.batches.service import Batch
from mulligan.core.durations import parse_seconds
from mulligan.core.errors import DurationOrTime, Refused, UnknownKind
from mulligan.core.job import Job, NewJob
from mulligan.failures.rules import format_validation_error
from mulligan.guards.gate_status import check_declared_queues
from mulligan.guards.gates import Dependencies, Queues
from mulligan.http.api.auth import Caller, owned_batch
from mulligan.http.api.requests import IdempotencyKey, RequestBody, json_body, run_once
from mulligan.http.api.responses import JsonAnswer, JsonObject, forbidden, job_to_json, to_json
from mulligan.jobs.enqueue import insert
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import check_user_name, unknown_kind_message
from mulligan.retries.policy import Policy

MAX_JOBS_PER_CALL = 1000
FIRST_YEAR = 1971
LAST_YEAR = 9000
WITH_ZONE = "a time with its zone: 2027-01-01T06:00:00Z"
Text = Annotated[str, Field(max_length=1000)]


class NewJobRequest(RequestBody):
    """Body of `POST /jobs`."""

    kind: Annotated[str, Field(min_length=1, max_length=200)]
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: Text | None = Field(
        None, description="a key of one owner: only a queue that the app or an operator declared"
    )
    delay: float | None = Field(None, description="seconds from now")
    run_at: Text | None = Field(None, description=WITH_ZONE)
    priority: int | None = Field(None, description="-9 (first) to 9")
    unique: Text | None = None
    batch_id: Text | None = None
    max_retries: int | None = None
    timeout: float | None = Field(None, description="seconds of one attempt")
    deadline: float | Text | None = Field(None, description=f"seconds from now, or {WITH_ZONE}")
    policy: dict[str, Any] | None = Field(
        None, description="as in mulligan.toml: max_retries, backoff, classes …"
    )
    must_have: bool | None = Field(None, description="the batch fails if this job dies")
    owner: Text | None = Field(None, description="only with a key of scope *")


class NewJobsRequest(RequestBody):
    """Body of `POST /jobs/bulk`."""

    jobs: Annotated[list[NewJobRequest], Field(min_length=1, max_length=MAX_JOBS_PER_CALL)]


def enqueue_one(
    caller: Caller, body: NewJobRequest, key: IdempotencyKey, batch_id: str | None = None
) -> JsonAnswer:
    """Enqueue a job. 201 with the new job, 200 with the existing one if it is a duplicate."""

    def answer(jobs: Sequence[Job]) -> JsonAnswer:
        status = 200 if jobs[0].deduplicated else 201
        return JsonAnswer(status, job_to_json(jobs[0], private=caller.private))

    return _insert(caller, _new_jobs(caller, [body], batch_id), key, answer)


def enqueue_many(
    caller: Caller,
    bodies: Sequence[NewJobRequest],
    key: IdempotencyKey,
    batch_id: str | None = None,
) -> JsonAnswer:
    """Enqueue several jobs in one transaction. 201 with all of them."""

    def answer(jobs: Sequence[Job]) -> JsonAnswer:
        return JsonAnswer(201, {"jobs": [job_to_json(job, private=caller.private) for job in jobs]})

    return _insert(caller, _new_jobs(caller, bodies, batch_id), key, answer)


def _new_jobs(
    caller: Caller, bodies: Sequence[NewJobRequest], batch_id: str | None
) -> list[NewJob]:
    new_jobs = [_new_job(caller, body, batch_id) for body in bodies]
    if caller.owner is not None:
        _check_queues(caller, bodies)
    return new_jobs


def _check_queues(caller: Caller, bodies: Sequence[NewJobRequest]) -> None:
    """Refuse queues that an owner may not use, also in the escalation steps of a policy."""
    names = {body.queue for body in bodies if body.queue is not None}
    for body in bodies:
        if body.policy is not None:
            names |= parse_policy(body.policy).queues
    if names:
        app_queues = caller.context.app.registry.manifest("", "").queue_names
        with caller.context.store().read() as tx:
            check_declared_queues(tx, names, app_queues)


def _new_job(caller: Caller, body: NewJobRequest, batch_id: str | None) -> NewJob:
    kind = check_kind(caller, body.kind)
    options = _options(caller, body, batch_id)
    return caller.context.app.build_job(kind, body.payload, **options)


def _insert(
    caller: Caller,
    new_jobs: list[NewJob],
    key: IdempotencyKey,
    answer_for: Callable[[Sequence[Job]], JsonAnswer],
) -> JsonAnswer:
    """Insert the jobs and the stored answer in one transaction."""
    with caller.context.store().begin() as tx:
        key.lock(tx)
        answer = answer_for(insert(tx, new_jobs, caller.services.jobs))
        key.store_answer(tx, answer)
    return answer


def check_kind(caller: Caller, kind: str) -> str:
    """Return `kind` if this app or a worker knows it. Any kind passes before the first worker."""
    check_user_name("kind", kind)
    app = caller.context.app
    handlers = app.registry.handlers
    if kind not in handlers and not app.stored_specs(kind):
        with caller.context.store().read() as tx:
            known = load_kinds(tx)
        if known and kind not in known:
            raise UnknownKind(unknown_kind_message(kind, dict.fromkeys((*handlers, *known))))
    return kind


def _options(caller: Caller, body: NewJobRequest, batch_id: str | None) -> dict[str, Any]:
    """Return the enqueue options that the body sets."""
    options: dict[str, Any] = {
        "delay": _start(body),
        "priority": body.priority,
        "unique": body.unique,
        "max_retries": body.max_retries,
        "timeout": body.timeout,
        "deadline": parse_time("deadline", body.deadline),
        "must_have": body.must_have,
    }
    if body.queue is not None:
        options["queue"] = check_user_name("queue", body.queue)
    batch = batch_id or body.batch_id
    if batch is not None:
        options["batch"] = owned_batch(caller, batch)
    if body.policy is not None:
        options["policy"] = parse_policy(body.policy)
    present = {name: value for name, value in options.items() if value is not None}
    return {"owner": resolve_owner(caller, body.owner), **present}


def _start(body: NewJobRequest) -> float | datetime | None:
    if body.run_at is None:
        return body.delay
    if body.delay is not None:
        message = "delay and run_at are both set. Send only one of them."
        raise Refused(message)
    return parse_timestamp("run_at", body.run_at)


def parse_policy(document: dict[str, Any]) -> Policy:
    """Parse a policy from JSON."""
    try:
        return Policy.from_dict(document)
    except ValueError as error:
        message = f"policy: {format_validation_error(error)}"
        raise Refused(message) from None


def resolve_owner(caller: Caller, owner: str | None) -> str:
    """Return the owner of a new object: the scope of the key, or `owner` for scope `*`."""
    if caller.owner is None:
        return owner or ""
    if owner is not None:
        raise forbidden("only a key of scope * may set owner; yours always uses its own scope")
    return caller.owner


def parse_timestamp(name: str, text: str) -> datetime:
    """Parse a time with its zone. `name` is the field, for the error."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: invalid time {text!r:.80}. Use for example 2027-01-01T06:00:00Z."
        raise Refused(message) from None
    if at.tzinfo is None:
        message = f"{name}: {text!r:.80} has no time zone. Add one, for example Z or +01:00."
        raise Refused(message)
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        message = f"{name}: {text!r:.80} is out of range"
        raise Refused(message)
    return at


# --- Parameters and actions of many routes ---

FilterParam = Annotated[
    str,
    Query(
        max_length=2000,
        description='state:dead kind:render code:GW_5XX owner:acme since:2h "moov atom"',
    ),
]
LimitParam = Annotated[int, Query(ge=1, le=1000)]
ShortLimitParam = Annotated[int, Query(ge=1, le=500)]
CursorParam = Annotated[
    str | None, Query(max_length=500, description="`next` of the previous page")
]
SinceParam = Annotated[
    str | None,
    Query(max_length=100, description=f"2h or 7d back from now, or {WITH_ZONE}"),
]
TimeField = Annotated[float | Text | None, Field(description=f"seconds from now, or {WITH_ZONE}")]


class ReasonRequest(RequestBody):
    """Body of an action."""

    reason: Text = ""


class UntilRequest(ReasonRequest):
    """Body of an action that can end by itself."""

    until: TimeField = None


class LimitRequest(UntilRequest):
    """Body of a change of limits."""

    concurrency: int | None = Field(
        None, description="running jobs in the whole fleet; null: no limit"
    )
    rate: float | Text | None = Field(
        None, description="starts per second, or 100/m; null: no limit"
    )
    clear: bool = Field(default=False, description="return to the limits that the code declares")


ReasonBody = Annotated[ReasonRequest, json_body(ReasonRequest)]
UntilBody = Annotated[UntilRequest, json_body(UntilRequest)]
LimitBody = Annotated[LimitRequest, json_body(LimitRequest)]


def parse_time(name: str, value: float | str | None) -> DurationOrTime | None:
    """Parse seconds from now or a time with its zone. `name` is the field, for the error."""
    return parse_timestamp(name, value) if isinstance(value, str) else value


def parse_since(name: str, text: str | None) -> DurationOrTime | None:
    """Parse a length like 2h, counted back from now, or a time with its zone."""
    if text is None:
        return None
    length = parse_seconds(text)
    return parse_timestamp(name, text) if length is None else length


def limit_changes(body: LimitRequest) -> dict[str, Any]:
    """Return the limits that the body sets. Fields that it does not have stay as they are."""
    present = body.model_fields_set & {"concurrency", "rate"}
    changes = {name: getattr(body, name) for name in present}
    if "until" in body.model_fields_set:
        changes["until"] = parse_time("until", body.until)
    return changes


async def run_action(request: Request, caller: Caller, action: Callable[[], Any]) -> Response:
    """Run an action once per Idempotency-Key and answer with the new state of its object."""
    return await run_once(request, caller, lambda _: JsonAnswer(200, to_json(action())))


async def run_with_reason(
    request: Request, caller: Caller, body: ReasonRequest, method: Callable[..., Any], name: str
) -> Response:
    """Call a method of a service with the reason in the body."""
    return await run_action(request, caller, lambda: method(name, reason=body.reason))


async def run_until(
    request: Request, caller: Caller, body: UntilRequest, method: Callable[..., Any], name: str
) -> Response:
    """Call a method of a service with the end and the reason in the body."""
    until = parse_time("until", body.until)
    return await run_action(request, caller, lambda: method(name, until=until, reason=body.reason))


async def change_limits(
    request: Request,
    caller: Caller,
    body: LimitRequest,
    service: Queues | Dependencies,
    name: str,
) -> Response:
    """Set or clear the limits of a queue or dependency."""
    if body.clear:
        return await run_with_reason(request, caller, body, service.clear, name)
    changes = limit_changes(body)
    return await run_action(
        request, caller, lambda: service.set(name, **changes, reason=body.reason)
    )


# --- Status links ---


class LinkRequest(RequestBody):
    """Body of a request for a status link."""

    retry: bool = Field(default=True, description="with a retry button if it has failed")
    expires: TimeField = None


LinkBody = Annotated[LinkRequest, json_body(LinkRequest)]


def create_link(caller: Caller, target: Job | Batch, body: LinkRequest) -> JsonObject:
    """Create a link to the page of one job or batch, for its owner."""
    expires = parse_time("expires", body.expires)
    link = caller.services.status.link(target, retry=body.retry, expires=expires)
    return {"link": link}

"""A job by the name of its kind, in one transaction with the answer to who asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import Field

from mulligan.batches import service as joining
from mulligan.batches.service import Batch
from mulligan.core.errors import Moment, Refused, UnknownKind
from mulligan.core.job import Job, NewJob
from mulligan.failures.rules import wrong_in
from mulligan.http.api.auth import Caller, owned_batch
from mulligan.http.api.idempotency import Answer, Named, once
from mulligan.http.api.problems import forbidden
from mulligan.http.api.requests import RequestBody, body_of
from mulligan.http.api.serialize import Plain, job_shape, plain
from mulligan.jobs.filter import seconds
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import free_name, unknown
from mulligan.retries.policy import Policy

MOST = 1000  # jobs of one call
EARLIEST, LATEST = 1971, 9000  # years
Text = Annotated[str, Field(max_length=1000)]


class NewJobRequest(RequestBody):
    kind: Annotated[str, Field(min_length=1, max_length=200)]
    payload: dict[str, Any] = Field(default_factory=dict)
    queue: Text | None = None
    delay: float | None = Field(None, description="seconds from now")
    run_at: Text | None = Field(None, description="a moment with its zone: 2027-01-01T06:00:00Z")
    priority: int | None = Field(None, description="-9 (first) to 9")
    unique: Text | None = None
    batch_id: Text | None = None
    max_retries: int | None = None
    timeout: float | None = Field(None, description="seconds of one attempt")
    deadline: float | Text | None = Field(
        None, description="seconds from now, or a moment with its zone"
    )
    policy: dict[str, Any] | None = Field(
        None, description="as in mulligan.toml: max_retries, backoff, classes …"
    )
    must_have: bool | None = Field(None, description="its batch fails without it")
    owner: Text | None = Field(None, description="from keys of scope * only")


class NewJobsRequest(RequestBody):
    jobs: Annotated[list[NewJobRequest], Field(min_length=1, max_length=MOST)]


def enqueued(
    caller: Caller, said: NewJobRequest, named: Named, batch_id: str | None = None
) -> Answer:
    """201 with the job; 200 with the one that was there."""

    def answered(jobs: Sequence[Job]) -> Answer:
        return Answer(
            200 if jobs[0].deduplicated else 201, job_shape(jobs[0], private=caller.private)
        )

    return _inserted(caller, [_new(caller, said, batch_id)], named, answered)


def enqueued_together(
    caller: Caller, said: Sequence[NewJobRequest], named: Named, batch_id: str | None = None
) -> Answer:
    def answered(jobs: Sequence[Job]) -> Answer:
        return Answer(201, {"jobs": [job_shape(job, private=caller.private) for job in jobs]})

    return _inserted(caller, [_new(caller, one, batch_id) for one in said], named, answered)


def _new(caller: Caller, said: NewJobRequest, batch_id: str | None) -> NewJob:
    return caller.room.app.prepared(
        known_kind(caller, said.kind), said.payload, **_options(caller, said, batch_id)
    )


def _inserted(
    caller: Caller, new: list[NewJob], named: Named, answered: Callable[[Sequence[Job]], Answer]
) -> Answer:
    with caller.room.store().begin() as unit:
        answer = answered(
            caller.desk.jobs.inserted(unit, *joining.insert(unit, new, announce=True))
        )
        named.end(unit, answer)
    return answer


def known_kind(caller: Caller, kind: str) -> str:
    """Known here or to a worker; where no worker has ever been nobody can tell."""
    free_name("kind", kind)
    handlers = caller.room.app.registry.handlers
    if kind not in handlers:
        with caller.room.store().read() as unit:
            known = stored_kinds(unit)
        if known and kind not in known:
            raise UnknownKind(unknown(kind, dict.fromkeys((*handlers, *known))))
    return kind


def _options(caller: Caller, said: NewJobRequest, batch_id: str | None) -> dict[str, Any]:
    if said.delay is not None and said.run_at is not None:
        message = "delay and run_at both say when; leave one of them out"
        raise Refused(message)
    batch = batch_id or said.batch_id
    options = {
        "queue": None if said.queue is None else free_name("queue", said.queue),
        "delay": said.delay if said.run_at is None else moment("run_at", said.run_at),
        "priority": said.priority,
        "unique": said.unique,
        "batch": None if batch is None else owned_batch(caller, batch),
        "max_retries": said.max_retries,
        "timeout": said.timeout,
        "deadline": moment("deadline", said.deadline)
        if isinstance(said.deadline, str)
        else said.deadline,
        "policy": None if said.policy is None else policy_of(said.policy),
        "must_have": said.must_have,
    }
    return {
        "owner": owner_of(caller, said.owner),
        **{name: one for name, one in options.items() if one is not None},
    }


def policy_of(said: dict[str, Any]) -> Policy:
    try:
        return Policy.from_plain(said)
    except ValueError as error:
        message = f"policy: {wrong_in(error)}"
        raise Refused(message) from None


def owner_of(caller: Caller, said: str | None) -> str:
    """Whose the new thing is: a key of one owner makes things of that owner."""
    if caller.owner is None:
        return said or ""
    if said is not None:
        raise forbidden(
            "only a key of scope * says whose a thing is; yours makes things of its own owner"
        )
    return caller.owner


def moment(name: str, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: {text!r:.80} is no moment; write 2027-01-01T06:00:00Z"
        raise Refused(message) from None
    if at.tzinfo is None:
        message = f"{name}: {text!r:.80} has no time zone; add one: Z, +01:00"
        raise Refused(message)
    if not EARLIEST <= at.year <= LATEST:
        message = f"{name}: {text!r:.80} is too far away"
        raise Refused(message)
    return at


# What most routes that change something have in common.

Filter = Annotated[
    str,
    Query(
        max_length=2000,
        description='state:dead kind:render code:GW_5XX owner:acme since:2h "moov atom"',
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
Few = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before")]
Back = Annotated[
    str | None,
    Query(max_length=100, description="2h, 7d: back from now; or a moment with its zone"),
]
When = Annotated[
    float | Text | None, Field(description="seconds from now, or a moment with its zone")
]


class ReasonRequest(RequestBody):
    reason: Text = ""


class UntilRequest(ReasonRequest):
    until: When = None


class LimitRequest(UntilRequest):
    concurrency: int | None = Field(
        None, description="running at once, in the whole fleet; null: no limit"
    )
    rate: float | Text | None = Field(
        None, description="starts, per second or 100/m; null: no limit"
    )
    clear: bool = Field(default=False, description="back to what the code declares")


ReasonBody = Annotated[ReasonRequest, body_of(ReasonRequest)]
UntilBody = Annotated[UntilRequest, body_of(UntilRequest)]
LimitBody = Annotated[LimitRequest, body_of(LimitRequest)]


def when(name: str, said: float | str | None) -> Moment | None:
    return moment(name, said) if isinstance(said, str) else said


def back(name: str, said: str | None) -> Moment | None:
    if said is None:
        return None
    length = seconds(said)
    return moment(name, said) if length is None else length


def limits_of(said: LimitRequest) -> dict[str, Any]:
    """Only what was said: what was not stays as it is set."""
    given = {name: getattr(said, name) for name in said.model_fields_set & {"concurrency", "rate"}}
    return given | (
        {"until": when("until", said.until)} if "until" in said.model_fields_set else {}
    )


async def acted(request: Request, caller: Caller, act: Callable[[], Any]) -> Response:
    """Done once, if the request names itself; answered with what it is now."""
    return await once(request, caller, lambda _: Answer(200, plain(act())))


# A link to the page of one job or batch, for whoever it belongs to.


class LinkRequest(RequestBody):
    retry: bool = Field(default=True, description="with a button once it has failed")
    expires: When = None


LinkBody = Annotated[LinkRequest, body_of(LinkRequest)]


def linked(caller: Caller, of: Job | Batch, said: LinkRequest) -> Plain:
    return {
        "link": caller.desk.status.link(of, retry=said.retry, expires=when("expires", said.expires))
    }

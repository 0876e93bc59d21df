"""A job by the name of its kind, in one transaction with the answer to who asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from mulligan.engine import joining
from mulligan.engine.declared import stored_kinds
from mulligan.engine.kinds import free_name, unknown
from mulligan.errors import Refused, UnknownKind
from mulligan.job import Job, NewJob
from mulligan.policy.retry import Policy
from mulligan.policy.rule import wrong_in
from mulligan.web.api.auth import Caller
from mulligan.web.api.bodies import Said
from mulligan.web.api.once import Answer, Named
from mulligan.web.api.problems import forbidden
from mulligan.web.api.shapes import job_shape
from mulligan.web.api.whose import owned_batch

MOST = 1000  # jobs of one call
EARLIEST, LATEST = 1971, 9000  # years
Text = Annotated[str, Field(max_length=1000)]


class NewJobSaid(Said):
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
    deadline: float | Text | None = Field(None, description="seconds from now, or a moment with its zone")
    policy: dict[str, Any] | None = Field(None, description="as in mulligan.toml: max_retries, backoff, classes …")
    must_have: bool | None = Field(None, description="its batch fails without it")
    owner: Text | None = Field(None, description="from keys of scope * only")


class NewJobsSaid(Said):
    jobs: Annotated[list[NewJobSaid], Field(min_length=1, max_length=MOST)]


def enqueued(caller: Caller, said: NewJobSaid, named: Named, batch_id: str | None = None) -> Answer:
    """201 with the job; 200 with the one that was there."""

    def answered(jobs: Sequence[Job]) -> Answer:
        return Answer(200 if jobs[0].deduplicated else 201, job_shape(jobs[0], private=caller.private))

    return _inserted(caller, [_new(caller, said, batch_id)], named, answered)


def enqueued_together(caller: Caller, said: Sequence[NewJobSaid], named: Named, batch_id: str | None = None) -> Answer:
    def answered(jobs: Sequence[Job]) -> Answer:
        return Answer(201, {"jobs": [job_shape(job, private=caller.private) for job in jobs]})

    return _inserted(caller, [_new(caller, one, batch_id) for one in said], named, answered)


def _new(caller: Caller, said: NewJobSaid, batch_id: str | None) -> NewJob:
    return caller.room.app.prepared(known_kind(caller, said.kind), said.payload, **_options(caller, said, batch_id))


def _inserted(caller: Caller, new: list[NewJob], named: Named, answered: Callable[[Sequence[Job]], Answer]) -> Answer:
    with caller.room.store().begin() as unit:
        answer = answered(caller.desk.jobs.inserted(unit, *joining.insert(unit, new, announce=True)))
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


def _options(caller: Caller, said: NewJobSaid, batch_id: str | None) -> dict[str, Any]:
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
        "deadline": moment("deadline", said.deadline) if isinstance(said.deadline, str) else said.deadline,
        "policy": None if said.policy is None else policy_of(said.policy),
        "must_have": said.must_have,
    }
    return {"owner": owner_of(caller, said.owner), **{name: one for name, one in options.items() if one is not None}}


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
        raise forbidden("only a key of scope * says whose a thing is; yours makes things of its own owner")
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

"""From a call to a NewJob: everything is checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import length, length_or_moment
from mulligan.core.errors import Moment, PayloadRefused, Refused, Seconds
from mulligan.core.ids import new_id, new_ids
from mulligan.core.job import BEHIND_PAYLOAD, Micros, NewJob, NewJobColumns
from mulligan.core.json import indexed
from mulligan.core.tracing import trace_text
from mulligan.core.unique import DEFAULT_COVER, Unique, unique_hash
from mulligan.guards.limits import share_of
from mulligan.manifest.arguments import all_json, to_json
from mulligan.manifest.specs import Handler, KindSpec, QueueSpec, checked_name, free_name
from mulligan.retries.policy import Policy, policy_text

MOST_PRIORITY = 9
MOST_RETRIES = 1_000_000
MOST_TEXT = 500


@dataclass(frozen=True, kw_only=True)
class EnqueueOptions:
    """What may be said about one enqueue beyond its payload; None: as the kind says."""

    queue: str | None = None
    delay: Moment | None = None
    priority: int | None = None
    owner: str = ""
    unique: str | Unique | None = None
    batch: Any = None
    must_have: bool = False
    max_retries: int | None = None
    policy: Policy | None = None
    timeout: Seconds | None = None
    deadline: Moment | None = None
    connection: Any = None
    traceparent: str | None = None
    tracestate: str | None = None


def new_job(
    spec: KindSpec,
    handler: Handler | None,
    payload: Any,
    options: EnqueueOptions,
    limit: int,
    queues: Mapping[str, QueueSpec],
) -> NewJob:
    """One checked job. `payload` is made of plain JSON values already."""
    return new_like(spec, handler, payload, options, limit, common(spec, options, queues))


def new_like(
    spec: KindSpec,
    handler: Handler | None,
    payload: Any,
    options: EnqueueOptions,
    limit: int,
    begun: NewJob,
) -> NewJob:
    """The same where what does not depend on the payload is known, as `common` makes it."""
    what = "the payload of " + begun.kind
    text = to_json(payload, what)
    if len(text) > limit:
        raise _too_long(what, len(text), limit)
    job = NewJob._make((new_id(), begun.kind, begun.queue, text, *begun[BEHIND_PAYLOAD:]))
    if _by_options(handler, options):
        return job if not spec.index else _indexed(job, spec, payload)
    return _own(job, spec, handler, payload, options)


def new_jobs(
    spec: KindSpec,
    handler: Handler | None,
    payloads: Sequence[Any],
    options: EnqueueOptions,
    limit: int,
    begun: NewJob,
) -> Sequence[NewJob]:
    """Several with the same options."""
    texts = _texts(begun.kind, payloads, limit)
    flat = (
        handler is not None and handler.arguments.flat
    )  # then they were copied, and nothing in them can change
    jobs = NewJobColumns(begun, new_ids(len(texts)), texts, payloads if flat else None)
    if _by_options(handler, options):
        return (
            jobs
            if not spec.index
            else [_indexed(job, spec, one) for job, one in zip(jobs, payloads, strict=True)]
        )
    return [
        _own(job, spec, handler, payload, options)
        for job, payload in zip(jobs, payloads, strict=True)
    ]


def _by_options(handler: Handler | None, options: EnqueueOptions) -> bool:
    """Does nothing but its index depend on a job's payload?"""
    return (
        handler is None or (handler.uses is None and handler.unique is None)
    ) and options.unique is None


def _texts(kind: str, payloads: Sequence[Any], limit: int) -> list[str]:
    what = "the payload of " + kind
    texts = all_json(payloads) or [to_json(payload, what) for payload in payloads]
    longest = max(map(len, texts), default=0)
    if longest > limit:
        raise _too_long(what, longest, limit)
    return texts


def _too_long(what: str, long: int, limit: int) -> PayloadRefused:
    return PayloadRefused(
        f"{what} is {long} bytes of JSON, the limit is {limit}; store it elsewhere"
    )


def _indexed(job: NewJob, spec: KindSpec, payload: Any) -> NewJob:
    return job._replace(args=indexed(payload, spec.index))


def _own(
    job: NewJob, spec: KindSpec, handler: Handler | None, payload: Any, options: EnqueueOptions
) -> NewJob:
    """With what follows from its payload."""
    unique, key = _unique(handler, options, job.owner, job.queue, payload)
    return job._replace(
        uses=_uses(spec, handler, payload),
        unique_key=key,
        unique_hash=None if key is None else unique_hash(job.owner, spec.name, key),
        unique_cover=None if unique is None else unique.cover,
        unique_for=None if unique is None else unique.span,
        unique_exact=isinstance(options.unique, str),
        args=indexed(payload, spec.index),
    )


def common(spec: KindSpec, options: EnqueueOptions, queues: Mapping[str, QueueSpec]) -> NewJob:
    """As every job with these options begins."""
    queue = (
        free_name("queue", options.queue) if options.queue else checked_name("queue", spec.queue)
    )
    joins = joined(options)
    owner = checked_text("owner", options.owner) or joins.owner
    delay, run_at = (0, None) if options.delay is None else length_or_moment("delay", options.delay)
    deadline, deadline_at = (
        (None, None) if options.deadline is None else length_or_moment("deadline", options.deadline)
    )
    return NewJob(
        id="",
        kind=spec.name,
        queue=queue,
        payload="",
        owner=owner,
        priority=checked_priority(spec.priority if options.priority is None else options.priority),
        uses=spec.uses,
        delay=delay or 0,
        run_at=run_at,
        max_retries=checked_count(options.max_retries),
        policy=policy_text(options.policy),
        timeout=checked_timeout(options.timeout),
        deadline=deadline,
        deadline_at=deadline_at,
        share=share_of(owner) if queue in queues and queues[queue].fair else "",
        batch_id=joins.batch_id,
        must_have=joins.must_have,
        added_by=joins.added_by,
        trace=trace_text(options.traceparent, options.tracestate) if options.traceparent else None,
    )


class Joined(NamedTuple):
    """What was said about a batch; its owner, where whatever was given knows it."""

    batch_id: str | None = None
    owner: str = ""
    must_have: bool = False
    added_by: tuple[str, str, int] | None = None


def joined(options: EnqueueOptions) -> Joined:
    """A batch, its id, or the context of a running member, which adds others to its own batch."""
    batch, must_have = options.batch, checked_flag("must_have", options.must_have)
    if batch is None:
        if must_have:
            message = "must_have says that a batch cannot do without this job; say batch= too"
            raise Refused(message)
        return Joined()
    lease = getattr(batch, "lease", None)
    if isinstance(lease, Lease):
        if lease.batch_id is None:
            message = (
                f"batch=ctx adds to the batch of the running job, and job {lease.id} is in none"
            )
            raise Refused(message)
        return Joined(lease.batch_id, "", must_have, (lease.id, lease.worker, lease.token))
    owner = getattr(batch, "owner", "")
    batch_id = checked_text("batch", getattr(batch, "id", batch), least=1)
    return Joined(batch_id, owner if isinstance(owner, str) else "", must_have)


def _unique(
    handler: Handler | None, options: EnqueueOptions, owner: str, queue: str, payload: Any
) -> tuple[Unique | None, str | None]:
    declared = handler.unique if handler is not None else None
    if isinstance(options.unique, str):
        cover = declared if declared is not None else Unique(while_=DEFAULT_COVER)
        return cover, checked_text("unique", options.unique, least=1)
    unique: Any = declared if options.unique is None else options.unique
    if not isinstance(unique, Unique | None):
        message = f"unique must be a text or Unique(...), not {unique!r:.80}"
        raise Refused(message)
    return (None, None) if unique is None else (unique, unique.key(owner, queue, payload))


def _uses(spec: KindSpec, handler: Handler | None, payload: Any) -> str:
    if handler is None or handler.uses is None:
        return spec.uses
    return uses_text(
        handler.uses({**payload})
    )  # whatever it does to it, a caller's own stays as it is


def uses_text(uses: Any) -> str:
    """One key or several, sorted, as lanes spell them."""
    if not uses:
        return ""
    keys: Any = (uses,) if isinstance(uses, str) else uses
    if not isinstance(keys, Iterable):
        message = f"uses must be a dependency's key or several, not {uses!r:.80}"
        raise Refused(message)
    return ",".join(sorted({checked_name("dependency", key) for key in keys}))


def checked_priority(value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not -MOST_PRIORITY <= value <= MOST_PRIORITY
    ):
        message = f"priority must be a whole number from -9 (first) to 9 (last), not {value!r}"
        raise Refused(message)
    return value


def checked_count(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_RETRIES:
        message = f"max_retries must be a whole number from 0 to {MOST_RETRIES}, not {value!r}"
        raise Refused(message)
    return value


def checked_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r:.80}"
        raise Refused(message)
    return value


def checked_memory(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        message = f"memory_limit must be a whole number of bytes above 0, not {value!r}"
        raise Refused(message)
    return value


def checked_cost(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        message = f"cost must be a finite number, not below zero, not {value!r}"
        raise Refused(message)
    return float(value)


def checked_timeout(value: Any) -> Micros | None:
    if value is None:
        return None
    limit = length("timeout", value)
    if not limit:
        message = "timeout must be above 0 s"
        raise Refused(message)
    return limit


def checked_text(name: str, value: Any, *, least: int = 0) -> str:
    if not isinstance(value, str) or not least <= len(value) <= MOST_TEXT or "\x00" in value:
        message = f"{name} must be a text of {least} to {MOST_TEXT} characters without NUL, not {value!r:.80}"
        raise Refused(message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{name} must be valid Unicode; this one has a lone surrogate"
        raise Refused(message) from None
    return str.__str__(
        value
    )  # not of a class of the caller's: what is kept of it would be handed to others

"""Options of an enqueue: their checks, and the template of the jobs that they decide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros, check_duration, check_duration_or_time
from mulligan.core.errors import Duration, DurationOrTime, PayloadRefused, Refused
from mulligan.core.format import check_text
from mulligan.core.job import DEFAULT_COVER, NewJob, Unique, unique_hash
from mulligan.core.json import index_entries, scalar_text
from mulligan.core.suggest import warn_caller
from mulligan.core.tracing import trace_text
from mulligan.guards.limits import owner_share
from mulligan.manifest.specs import (
    ARGUMENT_FIELD,
    Handler,
    KindSpec,
    QueueSpec,
    check_name,
    check_user_name,
    fill_defaults,
    schema_defaults,
)
from mulligan.retries.policy import Policy, encode_policy

MAX_PRIORITY = 9
MAX_RETRIES_LIMIT = 1_000_000
MAX_LOG_RECORDS = 1000


@dataclass(frozen=True, kw_only=True)
class EnqueueOptions:
    """Options of one enqueue besides the payload. None means the kind's default."""

    queue: str | None = None
    delay: DurationOrTime | None = None
    priority: int | None = None
    owner: str = ""
    unique: str | Unique | None = None
    batch: Any = None
    must_have: bool = False
    max_retries: int | None = None
    policy: Policy | None = None
    timeout: Duration | None = None
    deadline: DurationOrTime | None = None
    connection: Any = None
    traceparent: str | None = None
    tracestate: str | None = None


def job_template(
    spec: KindSpec, options: EnqueueOptions, queues: Mapping[str, QueueSpec]
) -> NewJob:
    """Return a job without id and payload: everything that its options and kind decide."""
    queue = _resolve_queue(spec, options)
    batch = read_batch_option(options)
    owner = check_text("owner", options.owner) or batch.owner
    priority = spec.priority if options.priority is None else options.priority
    delay, run_at = _length_or_time("delay", options.delay)
    deadline, deadline_at = _length_or_time("deadline", options.deadline)
    share = ""
    if queue in queues and queues[queue].fair:
        share = owner_share(owner)
    if (delay and deadline and delay >= deadline) or (
        run_at and deadline_at and run_at >= deadline_at
    ):
        message = (
            f"delay={options.delay} is not before deadline={options.deadline}: the job will be "
            "dead before it starts. Raise deadline."
        )
        warn_caller(message, UserWarning)
    trace = None
    if options.traceparent:
        trace = trace_text(options.traceparent, options.tracestate)
    return NewJob(
        id="",
        kind=spec.name,
        queue=queue,
        payload="",
        owner=owner,
        priority=check_priority(priority),
        uses=spec.uses,
        version=spec.version,
        delay=delay or 0,
        run_at=run_at,
        max_retries=check_max_retries(options.max_retries),
        policy=encode_policy(options.policy),
        timeout=check_timeout(options.timeout),
        deadline=deadline,
        deadline_at=deadline_at,
        share=share,
        batch_id=batch.batch_id,
        must_have=batch.must_have,
        added_by=batch.added_by,
        trace=trace,
    )


def _resolve_queue(spec: KindSpec, options: EnqueueOptions) -> str:
    if options.queue:
        return check_user_name("queue", options.queue)
    return check_name("queue", spec.queue)


def _length_or_time(name: str, value: DurationOrTime | None) -> tuple[Micros | None, Micros | None]:
    """Return (length, None) or (None, time); (None, None) if the option is not set."""
    if value is None:
        return None, None
    return check_duration_or_time(name, value)


# --- What follows from the payload ---


def with_payload_fields(
    job: NewJob, spec: KindSpec, handler: Handler | None, payload: Any, options: EnqueueOptions
) -> NewJob:
    """Add what follows from the payload: dependencies, unique key and indexed arguments."""
    uses = spec.uses
    if handler is not None and handler.uses is not None:
        # A copy, so that the app's function cannot change the caller's payload.
        uses = format_uses(handler.uses({**payload}))
    elif spec.uses_template:
        uses = expand_uses(spec, payload)
    job = job._replace(uses=uses, args=index_entries(payload, spec.index))
    unique, key = _resolve_unique(spec, options, job, payload)
    if unique is None or key is None:
        return job
    return job._replace(
        unique_key=key,
        unique_hash=unique_hash(job.owner, spec.name, key),
        unique_cover=unique.covered_states,
        unique_for=unique.period,
        unique_exact=isinstance(options.unique, str),
    )


def _resolve_unique(
    spec: KindSpec, options: EnqueueOptions, job: NewJob, payload: Any
) -> tuple[Unique | None, str | None]:
    """Return the uniqueness that applies and the job's key."""
    declared = spec.unique
    if isinstance(options.unique, str):
        unique = declared if declared is not None else Unique(while_=DEFAULT_COVER)
        return unique, check_text("unique", options.unique, min_length=1)
    requested: Any = declared if options.unique is None else options.unique
    if requested is None:
        return None, None
    if not isinstance(requested, Unique):
        raise Refused(f"unique must be a string or Unique(...), not {requested!r:.80}")
    full = fill_defaults(spec.schema, payload)
    return requested, requested.key(job.owner, job.queue, full)


# --- Batch ---


class BatchMembership(NamedTuple):
    """Which batch a new job joins. The owner is empty if only the batch's id is known."""

    batch_id: str | None = None
    owner: str = ""
    must_have: bool = False
    added_by: tuple[str, str, int] | None = None  # job, worker and token of the running member


def read_batch_option(options: EnqueueOptions) -> BatchMembership:
    """Read `batch=`: a batch, a batch id, or the context of a running member of a batch."""
    must_have = check_flag("must_have", options.must_have)
    batch = options.batch
    if batch is None:
        if must_have:
            raise Refused("must_have=True needs a batch. Pass batch= as well.")
        return BatchMembership()
    lease = getattr(batch, "lease", None)
    if isinstance(lease, Lease):
        return _batch_of_running_job(lease, must_have=must_have)
    owner = getattr(batch, "owner", "")
    if not isinstance(owner, str):
        owner = ""
    batch_id = check_text("batch", getattr(batch, "id", batch), min_length=1)
    return BatchMembership(batch_id, owner, must_have)


def _batch_of_running_job(lease: Lease, *, must_have: bool) -> BatchMembership:
    if lease.batch_id is None:
        raise Refused(
            "batch=ctx adds a job to the batch of the running job, "
            f"but job {lease.id} is not in a batch"
        )
    added_by = (lease.id, lease.worker, lease.token)
    return BatchMembership(lease.batch_id, "", must_have, added_by)


# --- Checks ---


def format_uses(uses: Any) -> str:
    """Return one dependency key or several as lanes store them: sorted, joined by commas."""
    if not uses:
        return ""
    keys: Any = (uses,) if isinstance(uses, str) else uses
    if not isinstance(keys, Iterable):
        raise Refused(f"uses must be one or more dependency keys, not {uses!r:.80}")
    return ",".join(sorted({check_name("dependency", key) for key in keys}))


def expand_uses(spec: KindSpec, payload: Any) -> str:
    """Return the dependencies that the template of a kind and a payload name."""

    def value_of(field: re.Match[str]) -> str:
        text = scalar_text(payload, field[1])
        if text is None:
            text = scalar_text(schema_defaults(spec.schema), field[1])
        if text is None:
            raise PayloadRefused(
                f"{spec.name}: uses={spec.uses_template!r} needs a text or number in "
                f"argument {field[1]}"
            )
        return text

    # Split first: a comma in a value must not name a second dependency.
    return format_uses([ARGUMENT_FIELD.sub(value_of, key) for key in spec.uses_template.split(",")])


def check_priority(value: Any) -> int:
    """Return a priority from -9 (first) to 9 (last)."""
    if not _is_int(value) or not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise Refused(f"priority must be a whole number from -9 (first) to 9 (last), not {value!r}")
    return int(value)


def check_max_retries(value: Any) -> int | None:
    """Return a retry limit, or None if none is set."""
    if value is None:
        return None
    if not _is_int(value) or not 0 <= value <= MAX_RETRIES_LIMIT:
        raise Refused(
            f"max_retries must be a whole number from 0 to {MAX_RETRIES_LIMIT:,}, not {value!r}"
        )
    return int(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_flag(name: str, value: Any) -> bool:
    """Return a boolean option; other truthy values are refused."""
    if not isinstance(value, bool):
        raise Refused(f"{name} must be True or False, not {value!r:.80}")
    return value


def check_memory_limit(value: Any) -> int | None:
    """Return a memory limit in bytes, or None if none is set."""
    if value is None:
        return None
    if not _is_int(value) or value <= 0:
        raise Refused(f"memory_limit must be a whole number of bytes above 0, not {value!r}")
    return int(value)


def check_cost(value: Any) -> float:
    """Return the cost of an attempt; 0 if none is set."""
    if value is None:
        return 0.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise Refused(f"cost must be a finite number of at least 0, not {value!r}")
    return float(value)


def check_timeout(value: Any) -> Micros | None:
    """Return a time limit, or None if none is set."""
    return check_limit("timeout", value)


def check_limit(name: str, value: Any) -> Micros | None:
    """Return a limit of time, such as `timeout`; None if none is set."""
    if value is None:
        return None
    limit = check_duration(name, value)
    if not limit:
        raise Refused(f"{name} must be above 0 s")
    return limit


def check_log(value: Any) -> int:
    """Return how many log records to keep with a failed attempt."""
    if not _is_int(value) or not 0 <= value <= MAX_LOG_RECORDS:
        raise Refused(f"log must be a whole number from 0 to {MAX_LOG_RECORDS:,}, not {value!r}")
    return int(value)

"""Results: what Django's `TaskResult` shows of a stored job and its attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from mulligan.core.attempt import Ended
from mulligan.core.durations import Micros, optional_datetime
from mulligan.core.job import AttemptRow, JobRow, State
from mulligan.failures.queries import parse_parts
from mulligan.integrations.django.api import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from mulligan.integrations.django.payloads import split_payload, task_signature
from mulligan.integrations.django.priorities import django_priority, mulligan_priority
from mulligan.jobs.queries import JobQueries
from mulligan.storage.base import Transaction

STATUSES = {
    State.QUEUED: TaskResultStatus.READY,
    State.PARKED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
FAILED_ENDS = frozenset({Ended.FAILED, Ended.LOST})
NO_EXCEPTION = "mulligan.integrations.django.errors.AttemptFailed"


def load_result(tx: Transaction, result_id: str, backend: str) -> Any:
    """Read a job and its attempts, and return them as a TaskResult."""
    queries = JobQueries(tx)
    row = queries.get_job(str(result_id))
    task = None if row is None else find_task(row.kind)
    if row is None or task is None:
        raise TaskResultDoesNotExist(result_id)
    return build_result(task, row, queries.list_attempts(row.id), backend)


def find_task(kind: str) -> Any:
    """Return the task that a kind is named after. None: there is none any more."""
    try:
        found = import_string(kind)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, Task) else None


def build_result(task: Any, row: JobRow, attempts: Sequence[AttemptRow], backend: str) -> Any:
    """Return the TaskResult of a job. Its task has the queue, priority and time of the job."""
    ran = [attempt for attempt in attempts if attempt.has_run]
    started = [attempt.started_at for attempt in ran]
    workers = [attempt.worker for attempt in ran]
    if row.state == State.RUNNING and row.started_at is not None:
        started.append(row.started_at)
        workers.append(row.worker or "")
    status = STATUSES[State(row.state)]
    errors = [build_error(attempt) for attempt in ran if is_failed(attempt)]
    if status == TaskResultStatus.FAILED and not errors:
        errors = [TaskError(exception_class_path=NO_EXCEPTION, traceback=f"{row.reason}\n")]
    result = new_result(
        _task_of_job(task, row, backend),
        row.id,
        json.loads(row.payload),
        backend,
        status=status,
        enqueued_at=django_time(row.created_at),
        started_at=django_time(min(started, default=None)),
        last_attempted_at=django_time(max(started, default=None)),
        finished_at=django_time(row.finished_at),
        errors=errors,
        worker_ids=workers,
    )
    if row.result is not None:
        object.__setattr__(result, "_return_value", json.loads(row.result))
    return result


def _task_of_job(task: Any, row: JobRow, backend: str) -> Any:
    changes: dict[str, Any] = {}
    if task.backend != backend:
        changes["backend"] = backend
    if task.queue_name != row.queue:
        changes["queue_name"] = row.queue
    if mulligan_priority(task.priority) != row.priority:
        changes["priority"] = django_priority(row.priority)
    if row.run_at > row.created_at and row.token == 0:
        changes["run_after"] = django_time(row.run_at)
    return Task.using(task, **changes) if changes else task


def new_result(task: Any, job_id: str, payload: dict[str, Any], backend: str, **values: Any) -> Any:
    """Return a TaskResult with the arguments of a payload."""
    signature = task_signature(task.func, takes_context=task.takes_context)
    args, kwargs = split_payload(signature, payload)
    unset: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(
        task=task, id=job_id, args=args, kwargs=kwargs, backend=backend, **{**unset, **values}
    )


def is_failed(attempt: AttemptRow) -> bool:
    """True if an attempt ended with an error, also with one that only Mulligan observed."""
    return attempt.ended in FAILED_ENDS and attempt.code is not None


def build_error(attempt: AttemptRow) -> Any:
    """Return the error of a failed attempt. Secrets were removed when it was stored."""
    private = parse_parts(attempt).private
    exception = private.get("exception")
    text = private.get("trace") or ""
    message = private.get("message") or attempt.public or attempt.reason
    if not exception:
        text = f"{attempt.code}: {message}\n{text}"
    return TaskError(exception_class_path=str(exception or NO_EXCEPTION), traceback=str(text))


def django_time(value: Micros | None) -> datetime | None:
    """Return a time as Django's settings want it: aware, or naive without USE_TZ."""
    time = optional_datetime(value)
    if time is None or settings.USE_TZ:
        return time
    naive: datetime = timezone.make_naive(time)
    return naive

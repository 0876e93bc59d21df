"""Jobs as JSON of this API, without the fields that only operators need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mulligan import Job, State
from mulligan.apps.pdfxml.files import StorageError
from mulligan.apps.pdfxml.jobs import app, check_source, storage
from mulligan.apps.pdfxml.rules import BREAKER, BUSY, UNKNOWN, message_for_code

STATUS = {
    State.QUEUED: "queued",
    State.RUNNING: "processing",
    State.SUCCEEDED: "complete",
    State.DEAD: "failed",
    State.CANCELLED: "failed",
    State.PARKED: "failed",
}
EVENTS = {
    "job.queued": "queued",
    "job.started": "processing",
    "job.retry_scheduled": "retry",
    "job.snoozed": "retry",  # the breaker is open: the job waits uncharged
    "job.lost": "retry",
    "job.released": "queued",
    "job.succeeded": "complete",
    "job.died": "failed",
    "job.cancelled": "failed",
    "job.retried": "queued",
}
META = {"gateway_http_status": "http_status", "duration_ms": "duration_ms", "error_code": "code"}


def job_view(job: Job) -> dict[str, Any]:
    """Return a job as JSON: `result_path` only if complete, `error_…` only if failed."""
    status = STATUS[job.state]
    return {
        "id": job.id,
        "status": status,
        "file": job.payload["name"],
        "mapping": job.payload["mapping"],
        "bytes": job.payload["size"],
        "attempt_count": job.token,
        "manual_retry_count": job.generation - 1,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "next_attempt_at": job.next_retry_at if job.phase == "backing_off" else None,
        "completed_at": job.finished_at if status == "complete" else None,
        "failed_at": job.finished_at if status == "failed" else None,
        "result_path": job.result["path"] if status == "complete" else None,
        "notice": notice(job),
        **error_fields(job),
    }


def error_fields(job: Job) -> dict[str, Any]:
    """Return the error of a failed job; for other jobs all fields are None."""
    if STATUS[job.state] != "failed":
        return dict.fromkeys(("error_code", "error_message", "error_reason"))
    error = job.error or {"code": UNKNOWN, "message": message_for_code(UNKNOWN), "rule": ""}
    reason = "breaker" if error["rule"] == BREAKER else None
    return {
        "error_code": error["code"],
        "error_message": error["message"],
        "error_reason": reason,
    }


def notice(job: Job) -> str | None:
    """Return why a queued job waits, for its owner."""
    if job.state is not State.QUEUED:
        return None
    if job.phase == "held":
        return BUSY
    last_error = job.error if job.attempt else None  # of this generation only
    return str(last_error["message"]) if last_error else None


def file_fields(job: Job) -> dict[str, Any]:
    """Tell if the result was removed and if the job can be retried; False if storage is down."""
    try:
        result_is_gone = job.state is State.SUCCEEDED and not storage.exists(job.result["path"])
        can_retry = STATUS[job.state] == "failed" and check_source(job.payload["source"]) is None
    except StorageError:
        result_is_gone = False
        can_retry = False
    return {
        "expired": message_for_code("EXPIRED") if result_is_gone else None,
        "can_retry": can_retry,
    }


def last_attempt_at(job: Job) -> datetime | None:
    if job.state is State.RUNNING:
        return job.started_at
    attempts = app.jobs.attempts(job.id)
    return datetime.fromtimestamp(attempts[-1].started_at / 1e6, UTC) if attempts else None


def events_of(job: Job) -> list[dict[str, Any]]:
    """Return the `job_event`s of a job, in order."""
    history = sorted(app.jobs.history(job.id), key=lambda event: (event.at, event.id))
    return [
        {
            "event": EVENTS[event.type],
            "at": datetime.fromtimestamp(event.at / 1e6, UTC),
            "meta": meta_of(event, job),
        }
        for event in history
        if event.type in EVENTS
    ]


def meta_of(event: Any, job: Job) -> dict[str, Any]:
    meta = {"attempt": event.token, **{name: event.data.get(key) for name, key in META.items()}}
    if event.type == "job.succeeded" and job.result:
        meta["gateway_http_status"] = job.result["http_status"]
    return meta


def list_conversions(owner: str, limit: int = 50) -> Sequence[Job]:
    return app.jobs.list("kind:convert", owner=owner, limit=limit)

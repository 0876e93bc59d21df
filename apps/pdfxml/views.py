"""A job in the words of this application. What only the engine or its operators need to know is left out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mulligan import Job, State
from pdfxml.files import STORAGE_ERRORS
from pdfxml.jobs import app, source_is_there, storage
from pdfxml.rules import BREAKER, BUSY, UNKNOWN, known, line

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
    "job.snoozed": "retry",  # while the breaker is open, or opens: it waits, and is not charged
    "job.lost": "retry",
    "job.released": "queued",
    "job.succeeded": "complete",
    "job.died": "failed",
    "job.cancelled": "failed",
    "job.retried": "queued",
}
META = {"gateway_http_status": "http_status", "duration_ms": "duration_ms", "error_code": "code"}


def shown(job: Job) -> dict[str, Any]:
    """`result_path` only when complete, `error_…` only when failed; what a job that waits has met is its notice."""
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
        "next_attempt_at": job.next_retry_at,
        "completed_at": job.finished_at if status == "complete" else None,
        "failed_at": job.finished_at if status == "failed" else None,
        "result_path": job.result["path"] if status == "complete" else None,
        "notice": notice(job),
        **(
            error_of(job)
            if status == "failed"
            else dict.fromkeys(("error_code", "error_message", "error_reason"))
        ),
    }


def error_of(job: Job) -> dict[str, Any]:
    error = job.error or {}
    code = known(error.get("code", UNKNOWN))
    said = error["message"] if code == error.get("code") else line(code)
    reason = "breaker" if error.get("rule") == BREAKER else None
    return {"error_code": code, "error_message": said, "error_reason": reason}


def notice(job: Job) -> str | None:
    """What its owner should know while it waits."""
    if job.state is not State.QUEUED:
        return None
    if job.phase == "held":
        return BUSY
    met = job.error if job.attempt else None  # since it was queued, by an upload or by hand
    return met["message"] if met and known(met["code"]) == met["code"] else None


def about_files(job: Job) -> dict[str, Any]:
    """Is its result gone, may it be retried? Where storage does not answer, nothing is said to be gone."""
    try:
        gone = job.state is State.SUCCEEDED and not storage.exists(job.result["path"])
        again = STATUS[job.state] == "failed" and source_is_there(job.payload["source"]) is None
    except STORAGE_ERRORS:
        gone = again = False
    return {"expired": line("EXPIRED") if gone else None, "can_retry": again}


def last_attempt_at(job: Job) -> datetime | None:
    if job.state is State.RUNNING:
        return job.started_at
    attempts = app.jobs.attempts(job.id)
    return datetime.fromtimestamp(attempts[-1].started_at / 1e6, UTC) if attempts else None


def events_of(job: Job) -> list[dict[str, Any]]:
    """Its `job_event`s, in order."""
    told = sorted(app.jobs.history(job.id), key=lambda event: (event.at, event.id))
    return [
        {
            "event": EVENTS[event.type],
            "at": datetime.fromtimestamp(event.at / 1e6, UTC),
            "meta": meta_of(event),
        }
        for event in told
        if event.type in EVENTS
    ]


def meta_of(event: Any) -> dict[str, Any]:
    meta = {"attempt": event.token, **{name: event.data.get(key) for name, key in META.items()}}
    return meta | ({"error_code": known(meta["error_code"])} if meta["error_code"] else {})


METRICS = (
    "jobs_failed_total",
    "job_processing_duration_seconds",
    "queue_depth",
    "jobs_active",
    "manual_retry_total",
)


def metrics() -> str:
    """Mulligan's numbers, those that were asked for under the names that were asked for."""
    text = app.metrics()
    for name in METRICS:
        text = text.replace(f"mulligan_{name}", name)
    return text


def listed(owner: str, limit: int = 50) -> Sequence[Job]:
    return app.jobs.list("kind:convert", owner=owner, limit=limit)

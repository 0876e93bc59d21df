"""Jobs as JSON, for owners, the admin and manifests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mulligan import Job, Mulligan
from mulligan.apps.clipscribe.config import SUPPORT

STATES = {"queued": "QUEUED", "running": "PROCESSING", "succeeded": "COMPLETED"}
STATES |= {"dead": "FAILED", "cancelled": "CANCELLED", "parked": "MANUAL_REVIEW"}


def job_view(app: Mulligan, job: Job) -> dict[str, Any]:
    error = failure_view(app, job)
    changed = job.finished_at or (error and error["timestamp"]) or job.started_at or job.created_at
    return {
        "job_id": job.id,
        "state": "RETRYING" if job.state == "queued" and error else STATES[job.state],
        "progress": job.progress,
        "attempts": job.attempts,
        "next_retry_at": job.next_retry_at.isoformat() if job.next_retry_at else None,
        "error": error,
        "waits_for": job.why if job.phase == "held" else None,
        "updated_at": changed if isinstance(changed, str) else changed.isoformat(),
    }


def failure_view(app: Mulligan, job: Job) -> dict[str, Any] | None:
    """Return the last failure, for the owner. It promises a retry only while one is scheduled."""
    if job.state == "parked":
        kind, message = "VideoExceedsLimits", SUPPORT
    elif job.state == "running" or not job.error:
        return None
    else:
        kind, message = job.error["code"], job.error["message"]
    end_times = [attempt.ended_at for attempt in app.jobs.attempts(job.id)]
    at = job.finished_at or job.created_at
    if end_times:
        at = datetime.fromtimestamp(end_times[-1] / 1e6, UTC)
    return {
        "type": kind,
        "message": message,
        "is_permanent": job.state == "dead",
        "timestamp": at.isoformat(),
    }

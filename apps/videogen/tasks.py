"""A job in the words of this API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan import Job, State
from videogen.jobs import app, video_of
from videogen.providers import BY_KIND
from videogen.report import chance_of

STATUS = {
    State.QUEUED: "pending",
    State.RUNNING: "running",
    State.SUCCEEDED: "succeeded",
    State.DEAD: "failed",
    State.PARKED: "failed",
    State.CANCELLED: "archived",
}
HOPELESS = {"invalid_input", "auth", "quota", "permanent", "cancelled"}
PREFIX = "task_"


def task(job: Job) -> dict[str, Any]:
    provider = BY_KIND[job.kind]
    status, failed = STATUS[job.state], job.state is State.DEAD
    return {
        "taskId": PREFIX + job.id,
        "status": status,
        "model": job.payload["model"],
        "prompt": job.payload["prompt"],
        "provider": provider.name,
        "progress": 1 if status == "succeeded" else job.progress,
        "retryCount": retry_count(job),
        "maxRetries": max_retries(job),
        "isRetryable": not (failed and job.error and job.error["class"] in HOPELESS),
        "nextRetryAt": moment(job.next_retry_at) if status == "pending" and job.failures else None,
        "error": words(job),
        "errorCode": job.error["code"] if job.error and (failed or job.failures) else None,
        "estimatedChance": chance_of(job) if failed else None,
        "cost": round(job.cost or 0, 4),
        "createdAt": moment(job.created_at),
        "finishedAt": moment(job.finished_at),
        "video": f"/v1/videos/generations/tasks/{PREFIX}{job.id}/content"
        if status == "succeeded"
        else None,
    }


def retry_count(job: Job) -> int:
    """Retries that have begun or are scheduled. The failure that ended it has none."""
    return max(0, job.failures - 1) if job.state is State.DEAD and job.failures else job.failures


def max_retries(job: Job) -> int:
    return BY_KIND[job.kind].retries.max_retries if job.max_retries is None else job.max_retries


def words(job: Job) -> str | None:
    """What its owner should know: why it failed, or why it waits."""
    if job.state is State.DEAD:
        return str(job.error["message"]) if job.error else None
    if job.state is not State.QUEUED:
        return None
    if job.phase == "held":
        return "The provider is down. The task waits for it, and no retry is spent."
    if job.failures and job.error:
        return f"Retry {job.failures}/{max_retries(job)} scheduled: {job.error['message']}"
    return None


def moment(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z") if at else None


def listed(owner: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest; what is archived is not among them."""
    states = ",".join(state.value for state in State if state is not State.CANCELLED)
    return [
        task(job)
        for job in app.jobs.list(
            f"kind:{','.join(BY_KIND)} state:{states}", owner=owner, limit=limit
        )
    ]


def archive(job: Job) -> None:
    """It never starts again, and is in no list. Its video goes with it."""
    if job.state is State.DEAD:
        app.jobs.discard(job.id, reason="archived")
    else:
        app.jobs.cancel(job.id, reason="archived")
    video_of(job.id).unlink(missing_ok=True)

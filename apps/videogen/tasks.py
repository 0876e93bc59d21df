"""Jobs as tasks of this API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan import Job, State
from mulligan.apps.videogen.jobs import app, format_time, video_of
from mulligan.apps.videogen.providers import BY_KIND
from mulligan.apps.videogen.report import estimate_chance

STATUS = {
    State.QUEUED: "pending",
    State.RUNNING: "running",
    State.SUCCEEDED: "succeeded",
    State.DEAD: "failed",
    State.PARKED: "failed",
    State.CANCELLED: "archived",
}
NOT_RETRYABLE = {"invalid_input", "auth", "quota", "permanent", "cancelled"}
PREFIX = "task_"


def task(job: Job) -> dict[str, Any]:
    """Return a job as this API shows it."""
    provider = BY_KIND[job.kind]
    status = STATUS[job.state]
    failed = job.state is State.DEAD
    is_final = failed and job.error and job.error["class"] in NOT_RETRYABLE
    error_code = None
    if job.error and (failed or job.failures):
        error_code = job.error["code"]
    video = None
    if status == "succeeded":
        video = f"/v1/videos/generations/tasks/{PREFIX}{job.id}/content"
    return {
        "taskId": PREFIX + job.id,
        "status": status,
        "model": job.payload["model"],
        "prompt": job.payload["prompt"],
        "provider": provider.name,
        "progress": 1 if status == "succeeded" else job.progress,
        "retryCount": job.retries,
        "maxRetries": max_retries(job),
        "isRetryable": not is_final,
        "nextRetryAt": optional_time(job.next_retry_at) if job.phase == "backing_off" else None,
        "error": describe_error(job),
        "errorCode": error_code,
        "estimatedChance": estimate_chance(job) if failed else None,
        "cost": round(job.cost or 0, 4),
        "createdAt": format_time(job.created_at),
        "finishedAt": optional_time(job.finished_at),
        "video": video,
    }


def max_retries(job: Job) -> int:
    if job.max_retries is not None:
        return job.max_retries
    return BY_KIND[job.kind].retries.max_retries


def describe_error(job: Job) -> str | None:
    """Return why a task failed or waits, for its owner."""
    if job.state is State.DEAD:
        return str(job.error["message"]) if job.error else None
    if job.state is not State.QUEUED:
        return None
    if job.phase == "held":
        return "The provider is down. The task waits for it, and no retry is spent."
    if job.failures and job.error:
        return f"Retry {job.failures}/{max_retries(job)} scheduled: {job.error['message']}"
    return None


def optional_time(at: datetime | None) -> str | None:
    return format_time(at) if at else None


def list_tasks(owner: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest tasks without the archived ones."""
    states = [state.value for state in State if state is not State.CANCELLED]
    wanted = f"kind:{','.join(BY_KIND)} state:{','.join(states)}"
    return [task(job) for job in app.jobs.list(wanted, owner=owner, limit=limit)]


def archive(job: Job) -> None:
    """Archive a task: it never starts again, is in no list, and its video is removed."""
    if job.state is State.DEAD:
        app.jobs.discard(job.id, reason="archived")
    else:
        app.jobs.cancel(job.id, reason="archived")
    video_of(job.id).unlink(missing_ok=True)

"""Jobs as tasks of this API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan import Job, State
from videogen.jobs import app, video_of
from videogen.providers import BY_KIND
from videogen.report import estimate_chance

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
    provider = BY_KIND[job.kind]
    status = STATUS[job.state]
    failed = job.state is State.DEAD
    return {
        "taskId": PREFIX + job.id,
        "status": status,
        "model": job.payload["model"],
        "prompt": job.payload["prompt"],
        "provider": provider.name,
        "progress": 1 if status == "succeeded" else job.progress,
        "retryCount": retry_count(job),
        "maxRetries": max_retries(job),
        "isRetryable": not (failed and job.error and job.error["class"] in NOT_RETRYABLE),
        "nextRetryAt": format_time(job.next_retry_at)
        if status == "pending" and job.failures
        else None,
        "error": describe_error(job),
        "errorCode": job.error["code"] if job.error and (failed or job.failures) else None,
        "estimatedChance": estimate_chance(job) if failed else None,
        "cost": round(job.cost or 0, 4),
        "createdAt": format_time(job.created_at),
        "finishedAt": format_time(job.finished_at),
        "video": f"/v1/videos/generations/tasks/{PREFIX}{job.id}/content"
        if status == "succeeded"
        else None,
    }


def retry_count(job: Job) -> int:
    """Return the number of started or scheduled retries. None followed the last failure."""
    if job.state is State.DEAD and job.failures:
        return job.failures - 1
    return job.failures


def max_retries(job: Job) -> int:
    return BY_KIND[job.kind].retries.max_retries if job.max_retries is None else job.max_retries


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


def format_time(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z") if at else None


def list_tasks(owner: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest tasks without the archived ones."""
    states = ",".join(state.value for state in State if state is not State.CANCELLED)
    return [
        task(job)
        for job in app.jobs.list(
            f"kind:{','.join(BY_KIND)} state:{states}", owner=owner, limit=limit
        )
    ]


def archive(job: Job) -> None:
    """Archive a task: it never starts again, is in no list, and its video is removed."""
    if job.state is State.DEAD:
        app.jobs.discard(job.id, reason="archived")
    else:
        app.jobs.cancel(job.id, reason="archived")
    video_of(job.id).unlink(missing_ok=True)

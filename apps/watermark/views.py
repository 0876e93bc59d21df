"""Campaigns and tokens as the pages show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mulligan import Job
from mulligan.apps.members import list_members
from mulligan.apps.watermark.data import Campaign, Token
from mulligan.apps.watermark.jobs import app
from mulligan.apps.watermark.rules import MAX_RETRIES


@dataclass(frozen=True)
class TokenView:
    """A recipient's copy: the state of its job and its downloads."""

    id: str
    recipient: str
    status: str
    percent: int = 0
    retry_count: int = 0
    max_retries: int = MAX_RETRIES
    error: str = ""
    next_retry_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    downloads: int = 0
    generation: int = 0

    @property
    def failed(self) -> bool:
        return self.status == "FAILED"


@dataclass(frozen=True)
class CampaignView:
    id: str
    name: str
    state: str
    counts: dict[str, int]  # total, completed, failed, pending, running

    @property
    def has_failures(self) -> bool:
        return self.state in ("PARTIAL", "FAILED")


def campaign_view(campaign: Campaign) -> CampaignView:
    """Build the view of a campaign. After publishing, the batch has the state and the counts."""
    if not campaign.batch_id:
        counts = {
            "total": len(campaign.tokens),
            "completed": 0,
            "failed": 0,
            "pending": 0,
            "running": 0,
        }
        return CampaignView(campaign.id, campaign.name, campaign.state, counts)
    batch = app.batches.get(campaign.batch_id)
    batch_counts = batch.counts
    counts = {
        "total": batch_counts.total,
        "completed": batch_counts.succeeded,
        "failed": batch_counts.dead + batch_counts.cancelled,
        "pending": batch_counts.queued + batch_counts.parked,
        "running": batch_counts.running,
    }
    return CampaignView(campaign.id, campaign.name, batch.state.upper(), counts)


def token_views(campaign: Campaign, state: str) -> list[TokenView]:
    jobs = _load_jobs_by_token(campaign.batch_id) if campaign.batch_id else {}
    views = [_token_view(token, jobs.get(token.id), state) for token in campaign.tokens]
    return sorted(views, key=lambda view: (view.recipient, view.id))


def token_view(token: Token, state: str) -> TokenView:
    return _token_view(token, app.jobs.get(token.job_id) if token.job_id else None, state)


def running_percents(batch_id: str) -> dict[str, int]:
    """Return the progress of the copies that are being made, by token."""
    running: Any = app.batches.members(batch_id, "state:running", limit=200)
    return {job.payload["token"]: _percent(job) for job in running}


def _load_jobs_by_token(batch_id: str) -> dict[str, Job]:
    return {job.payload["token"]: job for job in list_members(app, batch_id)}


def _token_view(token: Token, job: Job | None, state: str) -> TokenView:
    status = _status(token, job, state)
    view = TokenView(token.id, token.recipient.name, status, downloads=token.downloads)
    if job is None:
        return view
    error = job.error or {}
    return replace(
        view,
        percent=_percent(job) if status == "PROCESSING" else 0,
        retry_count=job.retries,
        max_retries=MAX_RETRIES if job.max_retries is None else job.max_retries,
        error=str(error.get("message", "")),
        next_retry_at=job.next_retry_at if job.phase == "backing_off" else None,
        started_at=job.started_at if status != "PENDING" else None,
        completed_at=job.finished_at,
        generation=job.generation,
    )


def _percent(job: Job) -> int:
    return round(100 * (job.progress or 0))


def _status(token: Token, job: Job | None, state: str) -> str:
    if state == "EXPIRED":
        return "EXPIRED"
    if job is None or job.state in ("queued", "parked"):
        return "PENDING"
    if job.state == "running":
        return "PROCESSING"
    if job.state != "succeeded":
        return "FAILED"
    limit = token.campaign.max_downloads
    return "ACTIVE" if limit is None or token.downloads < limit else "CONSUMED"

"""Campaigns and their tokens: publish, show, retry, download."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import or_, select, update

from mulligan import Job
from mulligan.core.errors import IllegalMove
from watermark.data import Campaign, Session, Token, now
from watermark.jobs import app, watermark
from watermark.rules import MAX_RETRIES, RETRIES


class Refused(Exception):
    """The request cannot be fulfilled. The message is a sentence for the owner."""


def publish(session: Session, campaign: Campaign) -> None:
    """Enqueue a job for every token, in one batch and in the session's transaction.

    Publishing a published campaign does nothing.
    """
    if not campaign.tokens:
        raise Refused("A campaign needs at least one recipient.")
    if campaign.batch_id:
        return
    until = datetime.fromisoformat(campaign.expires_at) if campaign.expires_at else None
    if until is not None and until <= datetime.now(UTC):
        raise Refused("The campaign would have expired before it began.")
    key = f"campaign {campaign.id}"
    with app.batch(
        campaign.name, owner=campaign.account_id, expires_in=until, unique=key, connection=session
    ) as batch:
        for token in campaign.tokens:
            job = watermark.options(batch=batch, unique=token.id, connection=session).enqueue(
                token=token.id
            )
            token.job_id = job.id
    campaign.batch_id = batch.id
    campaign.state = "PROCESSING"
    campaign.published_at = campaign.published_at or now()


def resume(session: Session) -> None:
    """Enqueue the campaigns of a database from before Mulligan.

    Existing copies are not made again; the others get the current retry policy.
    """
    is_active = Campaign.state.in_(["PROCESSING", "READY"])
    for campaign in session.scalars(select(Campaign).where(is_active, Campaign.batch_id.is_(None))):
        try:
            publish(session, campaign)
        except Refused:  # expired, or without recipients
            campaign.state = "EXPIRED"


# --- What the pages show -------------------------------------------------------------------------
@dataclass(frozen=True)
class TokenView:
    id: str
    recipient: str
    status: str
    percent: int
    retry_count: int
    max_retries: int
    error: str
    next_retry_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    downloads: int
    generation: int

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


def _load_jobs_by_token(batch_id: str) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    cursor: Any = None
    while True:
        page: Any = app.batches.members(batch_id, limit=200, before=cursor)
        jobs |= {job.payload["token"]: job for job in page}
        cursor = page.cursor
        if cursor is None:
            return jobs


def _token_view(token: Token, job: Job | None, state: str) -> TokenView:
    status = _status(token, job, state)
    return TokenView(
        id=token.id,
        recipient=token.recipient.name,
        status=status,
        percent=round(100 * (job.progress or 0)) if job and status == "PROCESSING" else 0,
        retry_count=_retry_count(job) if job else 0,
        max_retries=MAX_RETRIES if job is None or job.max_retries is None else job.max_retries,
        error=str((job.error or {}).get("message", "")) if job else "",
        next_retry_at=job.next_retry_at if job and job.phase == "backing_off" else None,
        started_at=job.started_at if job and status != "PENDING" else None,
        completed_at=job.finished_at if job else None,
        downloads=token.downloads,
        generation=job.generation if job else 0,
    )


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


def _retry_count(job: Job) -> int:
    """Return how often the copy was retried. No retry followed the failure that ended the job."""
    lost = job.losses > (RETRIES.max_losses or 0)
    ended_by_failure = job.state == "dead" and not lost and job.failures > 0
    return job.failures - 1 if ended_by_failure else job.failures


# --- Actions ------------------------------------------------------------------------------------
def retry(campaign: Campaign, token: Token) -> None:
    """Retry a failed copy. A second press is refused: the first one has already moved the job."""
    if campaign_view(campaign).state == "EXPIRED":
        raise Refused("The campaign has expired: the copy could not be downloaded any more.")
    job = app.jobs.get(token.job_id) if token.job_id else None
    try:
        if job is None or job.state not in ("dead", "cancelled"):
            raise Refused("Token is not in a failed state.")
        app.jobs.retry(job.id, reason="retry button")
    except IllegalMove:
        raise Refused("Token is not in a failed state.") from None


def download(session: Session, token: Token) -> bool:
    """Count one download. Return False if `max_downloads` is reached."""
    limit = token.campaign.max_downloads
    below_limit = Token.downloads < limit if limit is not None else or_(True)
    used = (
        update(Token).where(Token.id == token.id, below_limit).values(downloads=Token.downloads + 1)
    )
    return bool(session.execute(used).rowcount)

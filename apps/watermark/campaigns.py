"""Campaigns and their tokens: publish, look, retry, download."""

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
    """With a sentence for the owner."""


def publish(session: Session, campaign: Campaign) -> None:
    """A job for every token, in one batch: all of it is there with the commit, or none. Twice is once."""
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
    campaign.batch_id, campaign.state = batch.id, "PROCESSING"
    campaign.published_at = campaign.published_at or now()


def resume(session: Session) -> None:
    """Campaigns of an old database go on: copies that are there are found, the others get the retries of today."""
    going = Campaign.state.in_(["PROCESSING", "READY"])
    for campaign in session.scalars(select(Campaign).where(going, Campaign.batch_id.is_(None))):
        try:
            publish(session, campaign)
        except Refused:  # past its time, or for nobody
            campaign.state = "EXPIRED"


# -- as people see them --------------------------------------------------------------------------
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
    def troubled(self) -> bool:
        return self.state in ("PARTIAL", "FAILED")


def campaign_view(campaign: Campaign) -> CampaignView:
    """Its batch knows how it stands; before it is published there is none."""
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
    seen = batch.counts
    counts = {
        "total": seen.total,
        "completed": seen.succeeded,
        "failed": seen.dead + seen.cancelled,
        "pending": seen.queued + seen.parked,
        "running": seen.running,
    }
    return CampaignView(campaign.id, campaign.name, batch.state.upper(), counts)


def token_views(campaign: Campaign, state: str) -> list[TokenView]:
    jobs = _jobs_of(campaign.batch_id) if campaign.batch_id else {}
    shown = [_token_view(token, jobs.get(token.id), state) for token in campaign.tokens]
    return sorted(shown, key=lambda one: (one.recipient, one.id))


def token_view(token: Token, state: str) -> TokenView:
    return _token_view(token, app.jobs.get(token.job_id) if token.job_id else None, state)


def _jobs_of(batch_id: str) -> dict[str, Job]:
    found: dict[str, Job] = {}
    before: Any = None
    while True:
        page: Any = app.batches.members(batch_id, limit=200, before=before)
        found |= {job.payload["token"]: job for job in page}
        if (before := page.cursor) is None:
            return found


def _token_view(token: Token, job: Job | None, state: str) -> TokenView:
    status = _status(token, job, state)
    return TokenView(
        id=token.id,
        recipient=token.recipient.name,
        status=status,
        percent=round(100 * (job.progress or 0)) if job and status == "PROCESSING" else 0,
        retry_count=_retries(job) if job else 0,
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
    most = token.campaign.max_downloads
    return "ACTIVE" if most is None or token.downloads < most else "CONSUMED"


def _retries(job: Job) -> int:
    """How often it was tried again: the failure that ended it was followed by no retry."""
    lost = job.losses > (RETRIES.max_losses or 0)
    return job.failures - (job.state == "dead" and not lost and job.failures > 0)


# -- what people do ------------------------------------------------------------------------------
def retry(campaign: Campaign, token: Token) -> None:
    """Who presses second is told so: the first press has moved the job."""
    if campaign_view(campaign).state == "EXPIRED":
        raise Refused("The campaign has expired: nobody could fetch the copy.")
    job = app.jobs.get(token.job_id) if token.job_id else None
    try:
        if job is None or job.state not in ("dead", "cancelled"):
            raise Refused("Token is not in a failed state.")
        app.jobs.retry(job.id, reason="retry button")
    except IllegalMove:
        raise Refused("Token is not in a failed state.") from None


def download(session: Session, token: Token) -> bool:
    """One of `max_downloads` is used up; False: there is none left."""
    most = token.campaign.max_downloads
    some = Token.downloads < most if most is not None else or_(True)
    used = update(Token).where(Token.id == token.id, some).values(downloads=Token.downloads + 1)
    return bool(session.execute(used).rowcount)

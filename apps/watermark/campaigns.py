"""Campaigns and their tokens: publish, retry, download."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import or_, select, update

from mulligan.apps.watermark.data import Campaign, Session, Token, now
from mulligan.apps.watermark.jobs import app, watermark
from mulligan.core.errors import IllegalMove


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


def retry(campaign: Campaign, token: Token) -> None:
    """Retry a failed copy. A second press is refused: the first one has already moved the job."""
    if campaign.batch_id and app.batches.get(campaign.batch_id).state == "expired":
        raise Refused("The campaign has expired: the copy could not be downloaded any more.")
    job = app.jobs.get(token.job_id) if token.job_id else None
    try:
        if job is None or job.state not in ("dead", "cancelled"):
            raise Refused("Token is not in a failed state.")
        app.jobs.retry(job.id, reason="retry button")
        campaign.state = "PROCESSING"
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

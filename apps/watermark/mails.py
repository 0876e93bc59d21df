"""Three mails to the owner of a campaign, and one webhook. Without a mail server none is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from mulligan import Email, Message, Mulligan, Webhook
from watermark.data import Account, Campaign, Token

# "each": a mail for every failed token, as specified. "incident": one mail for a group of them.
FORM = os.environ.get("WATERMARK_MAILS", "incident")
WEBHOOK_URL = os.environ.get("WATERMARK_WEBHOOK")
WEBHOOK_SECRET = os.environ.get("WATERMARK_WEBHOOK_SECRET")


def subscribe(app: Mulligan, db: Callable[[], Any]) -> None:
    """Subscribe the owner's mails and the webhook to the events of jobs and batches."""

    def owner(message: Message) -> str | None:
        with db() as session:
            account = session.get(Account, message.owner)
            return account and account.email

    def job_failed(message: Message) -> dict[str, str] | str:
        if message.type not in ("job.died", "incident.opened"):
            return message.summary
        with db() as session:
            token = session.scalar(select(Token).where(Token.job_id == message.job_id))
            return render_failed_copy(token, message) if token else message.summary

    def campaign_ended(message: Message) -> dict[str, str] | str:
        with db() as session:
            campaign = session.scalar(select(Campaign).where(Campaign.batch_id == message.batch_id))
            return render_ended_campaign(campaign, message.data) if campaign else message.summary

    def campaign_ready(message: Message) -> dict[str, Any] | None:
        with db() as session:
            campaign = session.scalar(select(Campaign).where(Campaign.batch_id == message.batch_id))
            return campaign and render_webhook(campaign, message)

    app.notify(
        "job.died",
        Email(owner, render=job_failed),
        filter="kind:watermark",
        form=FORM,
        name="token-failed",
    )
    app.notify(
        "batch.partial, batch.failed", Email(owner, render=campaign_ended), name="campaign-failed"
    )
    if WEBHOOK_URL:
        to = Webhook(WEBHOOK_URL, secret=WEBHOOK_SECRET, render=campaign_ready, allow_private=True)
        app.notify("batch.ready, batch.partial, batch.failed", to, name="campaign_ready")


def render_failed_copy(token: Token, message: Message) -> dict[str, str]:
    campaign = token.campaign
    error = message.data.get("message", "")
    more = f" and {message.count - 1} more" if message.count > 1 else ""
    return {
        "subject": f"{campaign.name}: the copy for {token.recipient.name}{more} failed",
        "text": f"Hello {campaign.account.name},\n\n"
        f"the copy of {campaign.name!r} for {token.recipient.name}{more} could not be made:\n\n"
        f"    {error}\n\n"
        "It will not be retried automatically. The page of the campaign has a retry button.",
    }


def render_ended_campaign(campaign: Campaign, counts: Any) -> dict[str, str]:
    completed = counts["succeeded"]
    failed = counts["dead"]
    outcome = f"all {failed} copies failed"
    if completed:
        outcome = f"{completed} copies are ready, {failed} failed"
    return {
        "subject": f"{campaign.name}: {outcome}",
        "text": f"Hello {campaign.account.name},\n\n"
        f"the campaign {campaign.name!r} has ended: {outcome}.\n\n"
        "Use the retry buttons on its page to re-attempt individual tokens.",
    }


def render_webhook(campaign: Campaign, message: Message) -> dict[str, Any]:
    counts = message.data
    return {
        "event": "campaign_ready",
        "campaign_id": campaign.id,
        "campaign_name": campaign.name,
        "completed": counts["succeeded"],
        "failed": counts["dead"],
        "state": message.type.removeprefix("batch.").upper(),
    }

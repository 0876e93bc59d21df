"""Who is told: three mails to the owner of a campaign, and one webhook. Without a mail server none is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from mulligan import Email, Message, Mulligan, Webhook
from watermark.data import Account, Campaign, Token

# "each": a mail for every failed token, as the specification says; "incident": one that grows.
FORM = os.environ.get("WATERMARK_MAILS", "incident")
HOOK, SECRET = os.environ.get("WATERMARK_WEBHOOK"), os.environ.get("WATERMARK_WEBHOOK_SECRET")


def subscribe(app: Mulligan, db: Callable[[], Any]) -> None:
    def owner(message: Message) -> str | None:
        with db() as session:
            account = session.get(Account, message.owner)
            return account and account.email

    def job_failed(message: Message) -> dict[str, str] | str:
        if message.type not in ("job.died", "incident.opened"):
            return message.summary
        with db() as session:
            token = session.scalar(select(Token).where(Token.job_id == message.job_id))
            return told_of_job(token, message) if token else message.summary

    def campaign_ended(message: Message) -> dict[str, str] | str:
        with db() as session:
            campaign = session.scalar(select(Campaign).where(Campaign.batch_id == message.batch_id))
            return told_of_campaign(campaign, message.data) if campaign else message.summary

    def campaign_ready(message: Message) -> dict[str, Any] | None:
        with db() as session:
            campaign = session.scalar(select(Campaign).where(Campaign.batch_id == message.batch_id))
            return campaign and hook(campaign, message)

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
    if HOOK:
        to = Webhook(HOOK, secret=SECRET, render=campaign_ready, allow_private=True)
        app.notify("batch.ready, batch.partial, batch.failed", to, name="campaign_ready")


def told_of_job(token: Token, message: Message) -> dict[str, str]:
    campaign, error = token.campaign, message.data.get("message", "")
    more = f" and {message.count - 1} more" if message.count > 1 else ""
    return {
        "subject": f"{campaign.name}: the copy for {token.recipient.name}{more} failed",
        "text": f"Hello {campaign.account.name},\n\nthe copy of {campaign.name!r} for {token.recipient.name}{more} "
        f"could not be made:\n\n    {error}\n\nNothing more is tried by itself; its page has a retry button.",
    }


def told_of_campaign(campaign: Campaign, figures: Any) -> dict[str, str]:
    completed, failed = figures["succeeded"], figures["dead"]
    partly = (
        f"{completed} copies are ready, {failed} failed"
        if completed
        else f"all {failed} copies failed"
    )
    return {
        "subject": f"{campaign.name}: {partly}",
        "text": f"Hello {campaign.account.name},\n\nthe campaign {campaign.name!r} has ended: {partly}.\n\n"
        "Use the retry buttons on its page to re-attempt individual tokens.",
    }


def hook(campaign: Campaign, message: Message) -> dict[str, Any]:
    figures = message.data
    return {
        "event": "campaign_ready",
        "campaign_id": campaign.id,
        "campaign_name": campaign.name,
        "completed": figures["succeeded"],
        "failed": figures["dead"],
        "state": message.type.removeprefix("batch.").upper(),
    }

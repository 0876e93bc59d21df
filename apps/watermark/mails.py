"""Three mails to the owner of a campaign, and one webhook. Without a mail server none is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from sqlalchemy import select

from mulligan import Email, Message, Mulligan, Webhook
from mulligan.apps.alerts import send_alerts
from mulligan.apps.members import list_members
from mulligan.apps.watermark.data import Account, Campaign, Session, Token

# "each": a mail for every failed token, as specified. "incident": one mail for those of one cause.
FORM = os.environ.get("WATERMARK_MAILS", "incident")
WEBHOOK_URL = os.environ.get("WATERMARK_WEBHOOK")
WEBHOOK_SECRET = os.environ.get("WATERMARK_WEBHOOK_SECRET")
ALERTS_TO = os.environ.get("WATERMARK_ALERTS_TO", "")
LOADER = FileSystemLoader(Path(__file__).parent / "templates" / "mails")
TEMPLATES = Environment(loader=LOADER, trim_blocks=True)  # noqa: S701 - mails are text, not HTML


def subscribe(app: Mulligan, db: Callable[[], Any]) -> None:
    """Subscribe the owner's mails and the webhook to the events of jobs and batches."""

    def owner(message: Message) -> str | None:
        with db() as session:
            return getattr(session.get(Account, message.owner), "email", None)

    def job_failed(message: Message) -> dict[str, str] | str | None:
        if message.type == "incident.over":
            return None
        with db() as session:
            token = session.scalar(select(Token).where(Token.job_id == message.job_id))
            if token is None:
                return message.summary
            names = [token.recipient.name]
            if message.type != "job.died":
                names = find_failed(session, message) or names
            return render("copies_failed.txt", token.campaign, message, names=names)

    def find_failed(session: Session, message: Message) -> list[str]:
        """Return the recipients whose copies failed for the cause of an incident."""
        cause = f"state:dead code:{message.data['code']}"
        dead = [job.id for job in list_members(app, str(message.batch_id), cause)]
        tokens = session.scalars(select(Token).where(Token.job_id.in_(dead)))
        return sorted(token.recipient.name for token in tokens)

    def campaign_ended(message: Message) -> dict[str, str] | str:
        with db() as session:
            campaign = find_campaign(session, message)
            return render("campaign_failed.txt", campaign, message) if campaign else message.summary

    def campaign_ready(message: Message) -> dict[str, Any] | None:
        with db() as session:
            campaign = find_campaign(session, message)
            return campaign and render_webhook(campaign, message)

    mail = Email(owner, render=job_failed)
    app.notify("job.died", mail, filter="kind:watermark", form=FORM, name="token-failed")
    mail = Email(owner, render=campaign_ended)
    app.notify("batch.partial, batch.failed", mail, name="campaign-failed")
    if WEBHOOK_URL:
        to = Webhook(WEBHOOK_URL, secret=WEBHOOK_SECRET, render=campaign_ready, allow_private=True)
        app.notify("batch.ready, batch.partial, batch.failed", to, name="campaign_ready")
    send_alerts(app, ALERTS_TO)


def find_campaign(session: Session, message: Message) -> Campaign | None:
    return session.scalar(select(Campaign).where(Campaign.batch_id == message.batch_id))


def render(name: str, campaign: Campaign, message: Message, **values: Any) -> dict[str, str]:
    """Render a mail. The first line of its template is the subject."""
    text = TEMPLATES.get_template(name).render(campaign=campaign, message=message, **values)
    subject, _, body = text.partition("\n")
    return {"subject": subject, "text": body}


def render_webhook(campaign: Campaign, message: Message) -> dict[str, Any]:
    return {
        "event": "campaign_ready",
        "campaign_id": campaign.id,
        "campaign_name": campaign.name,
        "completed": message.data["succeeded"],
        "failed": message.data["dead"],
        "state": message.type.removeprefix("batch.").upper(),
    }

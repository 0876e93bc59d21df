"""Notifications to the admin, owners, Slack, PagerDuty and the service's webhook."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from clipscribe.config import CONFIG
from mulligan import Email, Message, Mulligan, Webhook

KIND_FILTER = "kind:process_job"
ENDS = "job.retry_scheduled, job.died, job.succeeded, job.parked, job.retried, job.cancelled"


def webhook_secret() -> str:
    """Return the secret of the webhook to the service itself."""
    digest = hashlib.sha256(f"hook {CONFIG.secret}".encode()).digest()
    return f"whsec_{base64.b64encode(digest).decode()}"


def subscribe(app: Mulligan) -> None:
    """Subscribe all recipients of the current phase."""
    phase = CONFIG.phase
    own_webhook = Webhook(f"{CONFIG.url}/hooks/jobs", secret=webhook_secret(), allow_private=True)
    app.notify(ENDS, own_webhook, filter=KIND_FILTER, form="each", name="manifest")
    app.notify(
        "job.parked",
        Email(CONFIG.admin, render=render_review),
        filter=KIND_FILTER,
        form="each",
        name="review",
    )
    if phase.mail_all_failures:
        app.notify(
            "job.retry_scheduled, job.died",
            Email(CONFIG.admin),
            filter=KIND_FILTER,
            form="incident",
            name="alpha",
        )
    else:
        app.notify(
            "job.died",
            Email(CONFIG.admin),
            filter=f"{KIND_FILTER} code:UnknownError",
            form="incident",
            name="unknown",
        )
    if phase.letters:
        app.notify(
            "job.died",
            Email(owner_address, render=render_failure),
            filter=KIND_FILTER,
            form="each",
            name="owners",
        )
    for name, channel in alert_channels().items():
        app.notify("alert.fired, alert.resolved", channel, name=name)


def owner_address(message: Message) -> str | None:
    """Return the mail address of the owner: users are identified by it."""
    return message.owner or None


def render_failure(message: Message) -> dict[str, str]:
    message_text = message.data.get("message", "")
    return {
        "subject": f"Your video could not be processed: {message_text}",
        "text": f"{message_text}\n\nJob {message.job_id}",
    }


def render_review(message: Message) -> dict[str, str]:
    message_text = (
        f"A video over 8 hours waits for a decision: job {message.job_id} of {message.owner}"
    )
    return {
        "subject": "Manual review: a video over 8 hours",
        "text": f"{message_text}\n\n{CONFIG.url}/admin",
    }


# --- Alerts --------------------------------------------------------------------------------------
def alert_channels() -> dict[str, Any]:
    """Return the channels of alerts: mail for all, Slack and PagerDuty for one rule each."""
    channels: dict[str, Any] = {"alerts": Email(CONFIG.admin)}
    if CONFIG.slack_url:
        channels["slack"] = Webhook(CONFIG.slack_url, render=render_for_slack, allow_private=True)
    if CONFIG.pagerduty_url:
        channels["pagerduty"] = Webhook(
            CONFIG.pagerduty_url, render=render_for_pagerduty, allow_private=True
        )
    return channels


def render_for_slack(message: Message) -> dict[str, str] | None:
    return {"text": message.summary} if message.data.get("rule") == "high-failure-rate" else None


def render_for_pagerduty(message: Message) -> dict[str, Any] | None:
    """Render the body of PagerDuty's Events API v2."""
    if message.data.get("rule") != "dlq-growing":
        return None
    return {
        "routing_key": CONFIG.pagerduty_key,
        "event_action": "trigger" if message.type == "alert.fired" else "resolve",
        "dedup_key": "dlq-growing",
        "payload": {"summary": message.summary, "source": "clipscribe", "severity": "error"},
    }

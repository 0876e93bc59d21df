"""Notifications to the admin, owners, Slack and PagerDuty."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from functools import partial
from typing import Any

from mulligan import Email, Message, Mulligan, Webhook, pack
from mulligan.apps.clipscribe import storage
from mulligan.apps.clipscribe.config import CONFIG, KIND_FILTER

ALERTS = "alert.fired, alert.resolved"
FAILED = "job.retry_scheduled, job.snoozed, job.lost, job.died"
# Types whose sentence says "Our team has been notified."
TEAM_TYPES = "UnknownError,PaymentRequired"
ALL_TYPES = ",".join(sorted({rule.code for rule in pack("clipscribe").rules}))


def subscribe(app: Mulligan) -> None:
    """Subscribe all recipients of the current phase."""
    review = Email(CONFIG.admin, render=render_review)
    app.notify("job.parked", review, filter=KIND_FILTER, form="each", name="review")
    # At the first failure: the owner reads at once that the team has been notified.
    types = ALL_TYPES if CONFIG.features.mail_all_failures else TEAM_TYPES
    team = Email(CONFIG.admin, render=partial(render_for_team, app))
    app.notify(FAILED, team, filter=f"{KIND_FILTER} code:{types}", form="each", name="team")
    if CONFIG.features.letters:
        # Users are identified by their mail address.
        owners = Email(lambda message: message.owner or None, render=render_failure)
        app.notify("job.died", owners, filter=KIND_FILTER, form="each", name="owners")
    app.notify(ALERTS, Email(CONFIG.admin), name="alerts")
    if CONFIG.slack_url:
        slack = Webhook(CONFIG.slack_url, render=render_for_slack, allow_private=True)
        app.notify(ALERTS, slack, name="slack")
    if CONFIG.pagerduty_key:
        pager = Webhook(CONFIG.pagerduty_url, render=render_for_pagerduty, allow_private=True)
        app.notify(ALERTS, pager, name="pagerduty")


# --- Mails ---------------------------------------------------------------------------------------
def sign_job_id(job_id: str) -> str:
    """Return the key of a job's link. Its possession proves ownership."""
    return hmac.new(CONFIG.secret.encode(), job_id.encode(), hashlib.sha256).hexdigest()[:32]


def status_path(job_id: str) -> str:
    return f"/status/{job_id}?key={sign_job_id(job_id)}"


def render_failure(message: Message) -> dict[str, str]:
    sentence = message.data.get("message", "")
    text = f"{sentence}\n\n{CONFIG.url}{status_path(message.job_id)}"
    return {"subject": f"Your video could not be processed: {sentence}", "text": text}


def render_for_team(app: Mulligan, message: Message) -> dict[str, str] | None:
    """Render a failure, once a day for each cause."""
    attempts = app.jobs.attempts(message.job_id)
    error_type = message.data.get("code", "")
    cause = (attempts[-1].fingerprint if attempts else "") or error_type
    if not storage.claim(f"notified/{datetime.now(UTC):%Y-%m-%d}/{cause}", message.id):
        return None
    text = f"{message.summary}\n\nJob {message.job_id}\n{CONFIG.url}/admin"
    return {"subject": f"{error_type}: {message.summary}", "text": text}


def render_review(message: Message) -> dict[str, str]:
    sentence = f"A video over 8 hours waits for a decision: job {message.job_id} of {message.owner}"
    text = f"{sentence}\n\n{CONFIG.url}/admin"
    return {"subject": "Manual review: a video over 8 hours", "text": text}


# --- Alerts: all by mail, one by Slack, one by PagerDuty -----------------------------------------
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

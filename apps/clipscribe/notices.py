"""Who is told of what: the admin, owners, Slack, PagerDuty, and the service itself."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from clipscribe.config import CONFIG
from mulligan import Email, Message, Mulligan, Webhook

MINE = "kind:process_job"
ENDS = "job.retry_scheduled, job.died, job.succeeded, job.parked, job.retried, job.cancelled"


def own_secret() -> str:
    """Of what the service tells itself."""
    return (
        "whsec_"
        + base64.b64encode(hashlib.sha256(f"hook {CONFIG.secret}".encode()).digest()).decode()
    )


def subscribe(app: Mulligan) -> None:
    phase = CONFIG.phase
    itself = Webhook(f"{CONFIG.url}/hooks/jobs", secret=own_secret(), allow_private=True)
    app.notify(ENDS, itself, filter=MINE, form="each", name="manifest")
    app.notify(
        "job.parked", Email(CONFIG.admin, render=review), filter=MINE, form="each", name="review"
    )
    if phase.tell_all:
        app.notify(
            "job.retry_scheduled, job.died",
            Email(CONFIG.admin),
            filter=MINE,
            form="incident",
            name="alpha",
        )
    else:
        app.notify(
            "job.died",
            Email(CONFIG.admin),
            filter=f"{MINE} code:UnknownError",
            form="incident",
            name="unknown",
        )
    if phase.letters:
        app.notify("job.died", Email(owner, render=sorry), filter=MINE, form="each", name="owners")
    for name, to in alarms().items():
        app.notify("alert.fired, alert.resolved", to, name=name)


def owner(message: Message) -> str | None:
    """Users are known by their address."""
    return message.owner or None


def sorry(message: Message) -> dict[str, str]:
    said = message.data.get("message", "")
    return {
        "subject": f"Your video could not be processed: {said}",
        "text": f"{said}\n\nJob {message.job_id}",
    }


def review(message: Message) -> dict[str, str]:
    said = f"A video over 8 hours waits for a decision: job {message.job_id} of {message.owner}"
    return {
        "subject": "Manual review: a video over 8 hours",
        "text": f"{said}\n\n{CONFIG.url}/admin",
    }


# -- alerts --------------------------------------------------------------------------------------
def alarms() -> dict[str, Any]:
    """Every alert as mail; a rising share of failures to Slack, dead letters that pile up to PagerDuty."""
    found: dict[str, Any] = {"alerts": Email(CONFIG.admin)}
    if CONFIG.slack_url:
        found["slack"] = Webhook(CONFIG.slack_url, render=for_slack, allow_private=True)
    if CONFIG.pagerduty_url:
        found["pagerduty"] = Webhook(CONFIG.pagerduty_url, render=for_pagerduty, allow_private=True)
    return found


def for_slack(message: Message) -> dict[str, str] | None:
    return {"text": message.summary} if message.data.get("rule") == "high-failure-rate" else None


def for_pagerduty(message: Message) -> dict[str, Any] | None:
    """Events API v2."""
    if message.data.get("rule") != "dlq-growing":
        return None
    return {
        "routing_key": CONFIG.pagerduty_key,
        "event_action": "trigger" if message.type == "alert.fired" else "resolve",
        "dedup_key": "dlq-growing",
        "payload": {"summary": message.summary, "source": "clipscribe", "severity": "error"},
    }

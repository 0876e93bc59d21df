"""Send the alerts of an application to its operators."""

from __future__ import annotations

from mulligan import Email, Mulligan, Webhook

ALERTS = "alert.fired, alert.resolved"


def send_alerts(app: Mulligan, to: str) -> None:
    """Send every alert, and its end, to a mail address or to the URL of a webhook.

    Without one, alerts are shown by `mulligan alerts list` and on the dashboard only.
    """
    if to:
        channel = Webhook(to, allow_private=True) if "://" in to else Email(to)
        app.notify(ALERTS, channel, name="alerts")


def send_alerts_to(app: Mulligan, address: str, url: str) -> None:
    """Send every alert, and its end, to a mail address and to a webhook; empty: to neither.

    An operator chose the webhook, so it may have a private address.
    """
    if address:
        app.notify(ALERTS, Email(address), name="alert-mail")
    if url:
        app.notify(ALERTS, Webhook(url, allow_private=True), name="alert-webhook")

"""Screens of alerts, subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.alerts.measures import GROUPS, KEYED_BY
from mulligan.alerts.rules import GROUP_MEASURES, format_measure
from mulligan.alerts.service import SAME_CAUSE, AlertRule, AlertStatus
from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_duration
from mulligan.core.job import State
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, screen
from mulligan.http.dashboard.view_models import (
    BADGES,
    Badge,
    format_value,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.notifications.deliveries import Delivery
from mulligan.notifications.subscriptions import Subscription

PAGE = 50
ALERT_BADGES = {
    "firing": Badge("bell", "firing", "bad"),
    "pending": Badge("clock", "pending", "warn"),
    "resolved": Badge("check", "resolved", "good"),
}
ON = Badge("circle-dot", "on", "good")
OFF = Badge("circle", "off", "calm")
SKIPPED = Badge("minus", "skipped", "warn")
DELIVERY_BADGES = {
    State.SUCCEEDED: Badge("check", "delivered", "good"),
    State.DEAD: Badge("x", "failed", "bad"),
    State.QUEUED: Badge("rotate-cw", "waiting", "busy"),
    State.RUNNING: Badge("play", "sending", "busy"),
}


FORMS = {"each": "one message per event", "incident": "one message per incident"}


class NotificationScreens:
    """The screens of alerts and of notifications."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/alerts", MenuEntry("More", 3, "alerts", "Alerts", "bell", shared=True))
    async def alerts(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            alerts = services.alerts.list(all=True)
            rules = services.alerts.rules()
            with services.store.read() as tx:
                now = tx.now()
            measures = {rule.name: rule.measure for rule in rules}
            return {
                "rows": [_alert(alert, measures.get(alert.rule, ""), now) for alert in alerts],
                "rules": [_rule(rule, now) for rule in rules],
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "alerts.html", "alerts", **values)

    @screen("/notifications", MenuEntry("More", 4, "notifications", "Notifications", "send"))
    async def deliveries(self, request: Request, state: str = "", before: str = "") -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            subscriptions = services.subscriptions.list(owner=services.owner)
            deliveries = services.deliveries.list(
                owner=services.owner, state=state or None, limit=PAGE, before=before or None
            )
            with services.store.read() as tx:
                now = tx.now()
            names = {one.id: one.name or one.to for one in subscriptions}
            older = ""
            if deliveries.cursor:
                older = urlencode({"state": state, "before": deliveries.cursor})
            return {
                "rows": [_delivery(one, names, now) for one in deliveries],
                "older": older,
                "subscriptions": [_subscription(one, now) for one in subscriptions],
            }

        values = await self._renderer.read(request, load)
        states = ["succeeded", "dead", "queued"]
        return self._renderer.page(
            request, "deliveries.html", "notifications", state=state, states=states, **values
        )


def alert_link(alert: AlertStatus, measure: str) -> str:
    """Return the page that shows what the alert is about."""
    scope = KEYED_BY.get(measure, "")
    if scope == "dependency":
        return f"/dependencies/{quote(alert.key, safe='')}"
    if scope == "release":
        return f"/releases?release={quote(str(alert.evidence.get('release', '')), safe='')}"
    if scope == "kind":
        return f"/failures?{urlencode({'filter': f'kind:{alert.key}'})}"
    if scope == "queue":
        return f"/jobs?{urlencode({'filter': f'queue:{alert.key}'})}"
    if measure in GROUPS or alert.rule == SAME_CAUSE:
        return f"/failures/{quote(str(alert.evidence.get('fingerprint') or alert.key), safe='')}"
    if measure in {"heartbeat_age", "unserved", "restarts"}:
        return "/queues"
    return "/failures" if measure.startswith("dead") else "/insight"


def _alert(alert: AlertStatus, measure: str, now: Micros) -> dict[str, Any]:
    return {
        "rule": alert.rule,
        "key": alert.key,
        "badge": ALERT_BADGES[alert.state],
        "severity": alert.severity,
        "summary": alert.summary,
        "since": optional_time_label(alert.since, now),
        "value": format_measure(measure, alert.value),
        "threshold": format_measure(measure, alert.threshold),
        "action": alert.action,
        "limit": alert.limit,
        "until": optional_time_label(alert.until, now),
        "silenced": optional_time_label(alert.silenced_until, now),
        "evidence": [(name, format_value(value)) for name, value in alert.evidence.items()],
        "link": alert_link(alert, measure),
    }


def _rule(rule: AlertRule, now: Micros) -> dict[str, Any]:
    least = f"{rule.least:,.0f}" if rule.least else ""
    windows = [rule.window] if rule.and_window is None else [rule.window, rule.and_window]
    holds_for = format_duration(rule.holds_for) if rule.holds_for else ""
    return {
        "name": rule.name,
        "badge": ON if rule.enabled else OFF,
        "summary": _describe_rule(rule),
        "above": format_measure(rule.measure, rule.above),
        "clears": format_measure(rule.measure, rule.clear),
        "window": " and ".join(format_duration(window) for window in windows),
        "least": least,
        "holds_for": holds_for,
        "severity": rule.severity,
        "action": rule.action,
        "silenced": optional_time_label(rule.silenced_until, now),
    }


def _describe_rule(rule: AlertRule) -> str:
    """Return when a rule fires, as a sentence: "More than 5 % of attempts failed"."""
    limit = format_measure(rule.measure, rule.above)
    text = rule.summary
    if "{} jobs" in text and not rule.above:
        text = text.replace("{} jobs", "a job")
    elif "than {}" not in text:
        text = text.replace("{}", f"more than {limit}")
    text = text.replace("{}", limit)
    if rule.measure in GROUP_MEASURES:
        text = f"new error: {text}"
    return text[:1].upper() + text[1:]


def _subscription(subscription: Subscription, now: Micros) -> dict[str, Any]:
    owner = "all owners" if subscription.owner is None else subscription.owner
    return {
        "id": subscription.id,
        "name": subscription.name or subscription.id,
        "badge": ON if subscription.enabled else OFF,
        "reason": subscription.reason,
        "on": ", ".join(subscription.on),
        "owner": owner,
        "filter": subscription.filter,
        "form": FORMS[subscription.form],
        "channel": subscription.channel,
        "to": subscription.to,
        "declared": subscription.declared,
        "failures": subscription.failures,
        "failing": optional_time_label(subscription.failing_since, now),
    }


def _delivery_badge(delivery: Delivery) -> Badge:
    if delivery.skipped:
        return SKIPPED
    return DELIVERY_BADGES.get(delivery.state) or BADGES[delivery.state]


def _delivery(delivery: Delivery, names: Mapping[str, str], now: Micros) -> dict[str, Any]:
    return {
        "to": names.get(delivery.subscription, delivery.subscription),
        "id": delivery.id,
        "badge": _delivery_badge(delivery),
        "type": delivery.type,
        "summary": delivery.summary,
        "subscription": delivery.subscription,
        "owner": delivery.owner,
        "attempts": delivery.attempts,
        "error": delivery.skipped or delivery.error,
        "message": delivery.message,
        "next": optional_time_label(delivery.next_at, now),
        "at": time_label(to_micros(delivery.finished_at or delivery.created_at), now),
        "dead": delivery.state is State.DEAD,
    }

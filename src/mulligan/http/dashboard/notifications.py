"""Alerts, who is told of what, and each message on its way."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.alerts.measures import GROUPS, KEYED_BY
from mulligan.alerts.service import SAME_CAUSE, AlertRule, AlertStatus
from mulligan.core.format import duration
from mulligan.core.job import Micros, State, to_micros
from mulligan.http.dashboard.renderer import Renderer
from mulligan.http.dashboard.view_models import BADGES, Badge, Moment, at_moment, shown_value
from mulligan.http.services import CallerServices
from mulligan.notifications.deliveries import Delivery
from mulligan.notifications.subscriptions import Subscription

PAGE = 50
STATES = {
    "firing": Badge("▲", "firing", "bad"),
    "pending": Badge("△", "about to fire", "warn"),
    "resolved": Badge("✓", "over", "good"),
}
ON, OFF = Badge("●", "on", "good"), Badge("○", "off", "calm")
SENT = {
    State.SUCCEEDED: Badge("✓", "delivered", "good"),
    State.DEAD: Badge("✕", "given up", "bad"),
    State.QUEUED: Badge("↻", "on its way", "busy"),
    State.RUNNING: Badge("▶", "being sent", "busy"),
}


class NotificationScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def alerts(self, request: Request) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            alerts, rules = desk.alerts.list(all=True), desk.alerts.rules()
            with desk.store.read() as unit:
                now = unit.now()
            measures = {rule.name: rule.measure for rule in rules}
            rows = [
                _alert(one, now) | {"link": _where(one, measures.get(one.rule, ""))}
                for one in alerts
            ]
            return {"rows": rows, "rules": [_rule(one, now) for one in rules]}

        return self._house.page(
            request, "alerts.html", "alerts", **await self._house.ask(request, look, shared=True)
        )

    async def deliveries(self, request: Request, state: str = "", before: str = "") -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            subscriptions = desk.subscriptions.list(owner=desk.owner)
            found = desk.deliveries.list(
                owner=desk.owner, state=state or None, limit=PAGE, before=before or None
            )
            with desk.store.read() as unit:
                now = unit.now()
            names = {one.id: one.name or one.to for one in subscriptions}
            older = urlencode({"state": state, "before": found.cursor}) if found.cursor else ""
            return {
                "rows": [
                    _delivery(one, now) | {"to": names.get(one.subscription, one.subscription)}
                    for one in found
                ],
                "older": older,
                "subscriptions": [_subscription(one, now) for one in subscriptions],
            }

        found = await self._house.ask(request, look)
        values = {"state": state, "states": ["succeeded", "dead", "queued"], **found}
        return self._house.page(request, "deliveries.html", "notifications", **values)


def _at(at: datetime | None, now: Micros) -> Moment | None:
    return None if at is None else at_moment(to_micros(at), now)


def _where(one: AlertStatus, measure: str) -> str:
    """Where what it is about can be seen."""
    scope = KEYED_BY.get(measure, "")
    if scope == "dependency":
        return "/dependencies"
    if scope == "queue":
        return f"/jobs?{urlencode({'filter': f'queue:{one.key}'})}"
    if measure in GROUPS or one.rule == SAME_CAUSE:
        return f"/failures/{quote(str(one.evidence.get('fingerprint') or one.key), safe='')}"
    if measure in {"heartbeat_age", "unserved", "restarts"}:
        return "/queues"
    return "/failures" if measure.startswith("dead") else "/insight"


def _alert(one: AlertStatus, now: Micros) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "key": one.key,
        "badge": STATES[one.state],
        "severity": one.severity,
        "summary": one.summary,
        "since": _at(one.since, now),
        "value": f"{one.value:.3g}",
        "threshold": f"{one.threshold:.3g}",
        "action": one.action,
        "limit": one.limit,
        "until": _at(one.until, now),
        "silenced": _at(one.silenced_until, now),
        "evidence": [(name, shown_value(value)) for name, value in one.evidence.items()],
    }


def _rule(one: AlertRule, now: Micros) -> dict[str, Any]:
    return {
        "name": one.name,
        "badge": ON if one.enabled else OFF,
        "summary": one.summary.replace("{}", "…"),
        "above": f"{one.above:g}",
        "clears": f"{one.clear:g}",
        "window": duration(one.window),
        "least": f"{one.least:g}" if one.least else "",
        "holds_for": duration(one.holds_for) if one.holds_for else "",
        "severity": one.severity,
        "action": one.action,
        "silenced": _at(one.silenced_until, now),
    }


def _subscription(one: Subscription, now: Micros) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name or one.id,
        "badge": ON if one.enabled else OFF,
        "reason": one.reason,
        "on": ", ".join(one.on),
        "owner": "everybody" if one.owner is None else one.owner,
        "filter": one.filter,
        "form": {"each": "every event", "incident": "one incident, which grows"}[one.form],
        "channel": one.channel,
        "to": one.to,
        "declared": one.declared,
        "failures": one.failures,
        "failing": _at(one.failing_since, now),
    }


def _delivery(one: Delivery, now: Micros) -> dict[str, Any]:
    return {
        "id": one.id,
        "badge": SENT.get(one.state) or BADGES[one.state],
        "type": one.type,
        "summary": one.summary,
        "subscription": one.subscription,
        "owner": one.owner,
        "attempts": one.attempts,
        "error": one.error,
        "message": one.message,
        "next": _at(one.next_at, now),
        "at": at_moment(to_micros(one.finished_at or one.created_at), now),
        "dead": one.state is State.DEAD,
    }

"""Screens of operations, events and the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.event import Event
from mulligan.core.format import format_actor, format_duration, format_rate
from mulligan.events.queries import EventQueries
from mulligan.events.service import build_event_filter, build_owner_filter
from mulligan.http.dashboard.charts import BarPart, stacked_bar
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, check_filter, root_path, screen
from mulligan.http.dashboard.view_models import (
    Badge,
    choice_chips,
    event_changes,
    event_row,
    filter_chips,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.operations.rules import ItemCounts
from mulligan.operations.service import Item, Operation

PAGE = 50
ITEMS = 100
EVENT_CHUNK = 500  # events read at once
MAX_EVENTS_READ = 5_000  # for one page
EventId = Annotated[int, Query(ge=0, le=2**60)]
EVENT_TYPE_CHOICES = (
    "job.*",
    "job.died",
    "job.parked",
    "batch.*",
    "dependency.*",
    "queue.*",
    "operation.*",
    "worker.*",
    "alert.*",
)
OPERATION_BADGES = {
    "gathering": Badge("…", "gathering", "busy"),
    "running": Badge("▶", "running", "busy"),
    "paused": Badge("‖", "paused", "warn"),
    "stopped": Badge("◼", "stopped", "bad"),
    "aborted": Badge("⊘", "aborted", "calm"),
    "finished": Badge("✓", "finished", "good"),
}
ITEM_TONES = {
    "recovered": "good",
    "done": "good",
    "same": "bad",
    "other": "warn",
    "refused": "calm",
    "skipped": "calm",
    "sent": "busy",
    "waiting": "waiting",
}


class HistoryScreens:
    """The screens of operations, events and the audit log."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/operations", MenuEntry("Control", 3, "operations", "Operations", "⚙"))
    async def operations(self, request: Request, before: str = "") -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            operations = services.operations.list(
                owner=services.owner, limit=PAGE + 1, before=before or None
            )
            with services.store.read() as tx:
                now = tx.now()
            older = ""
            if len(operations) > PAGE:
                older = urlencode({"before": operations[PAGE - 1].id})
            return {"rows": [operation_row(one, now) for one in operations[:PAGE]], "older": older}

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "operations.html", "operations", **values)

    @screen("/operations/{operation}")
    async def operation(self, request: Request, operation: str) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            found = services.operations.get(operation, owner=services.owner)
            items = services.operations.items(operation, limit=ITEMS)
            with services.store.read() as tx:
                now = tx.now()
            steps = [
                (number, _bar(counts), _summary(counts))
                for number, counts in enumerate(found.steps, 1)
            ]
            return {
                "row": operation_row(found, now),
                "operation": found,
                "steps": steps,
                "items": [_item(item) for item in items],
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "operation.html", "operations", **values)

    @screen("/events", MenuEntry("Monitor", 5, "events", "Events", "∿"))
    async def events(self, request: Request, before: EventId = 0, filter: str = "") -> Response:  # noqa: A002 - as in the URL
        text = check_filter(filter)
        path = f"{root_path(request)}/events"
        matches = _event_filter(text)

        def load(services: VisitorServices) -> dict[str, Any]:
            events, last = _read_backwards(services, before, matches)
            older = urlencode({"before": last, "filter": text}) if last > 1 else ""
            return {"rows": [event_row(event) for event in events], "older": older}

        values = await self._renderer.read(request, load, shared=True)
        values["types"] = choice_chips(path, text, "type", EVENT_TYPE_CHOICES)
        values["chips"] = filter_chips(path, text)
        return self._renderer.page(
            request, "events.html", "events", event_filter=text, before=before, **values
        )

    @screen("/audit", MenuEntry("Monitor", 6, "audit", "Audit", "✎"))
    async def audit(
        self, request: Request, before: EventId = 0, actor: str = "", job: str = ""
    ) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            events = services.events.list(
                actor=actor or None,
                job=job or None,
                owner=services.owner,
                limit=PAGE + 1,
                before=before or None,
            )
            older = ""
            if len(events) > PAGE:
                older = urlencode({"before": events[PAGE - 1].id, "actor": actor, "job": job})
            return {"rows": [_audit_row(event) for event in events[:PAGE]], "older": older}

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "audit.html", "audit", actor=actor, job=job, **values)


def _event_filter(text: str) -> Callable[[Event], bool]:
    """Return a test for events. Internal jobs are left out unless the filter names them."""
    matches = build_event_filter(text)
    if SYSTEM_PREFIX in text:
        return matches
    is_public = build_owner_filter(None)
    return lambda event: matches(event) and is_public(event)


def _read_backwards(
    services: VisitorServices, before: int, matches: Callable[[Event], bool]
) -> tuple[list[Event], int]:
    """Return a page of matching events, newest first, and the id to continue before."""
    found: list[Event] = []
    with services.store.read() as tx:
        top = before - 1 if before else EventQueries(tx).newest_event()
        lowest = max(0, top - MAX_EVENTS_READ)
        while top > lowest and len(found) < PAGE:
            start = max(lowest, top - EVENT_CHUNK)
            chunk = [
                event
                for event in EventQueries(tx).list_events_after(start, EVENT_CHUNK)
                if event.id <= top
            ]
            found += [event for event in reversed(chunk) if matches(event)]
            top = start
    if len(found) >= PAGE:
        return found[:PAGE], found[PAGE - 1].id
    return found, top + 1


def operation_row(operation: Operation, now: Micros) -> dict[str, Any]:
    """Build the row of an operation for a table."""
    ended = operation.counts.ended
    total = operation.total
    return {
        "id": operation.id,
        "action": operation.action,
        "filter": operation.filter,
        "badge": OPERATION_BADGES[operation.state],
        "by": format_actor(operation.actor),
        "reason": operation.reason,
        "bar": _bar(operation.counts),
        "summary": f"{ended:,} of {total:,}: {_summary(operation.counts)}",
        "note": operation.note,
        "rate": format_rate(operation.rate),
        "pace": _pace(operation, now),
        "share": round(100 * ended / total, 1) if total else 0.0,
        "started": time_label(to_micros(operation.created_at), now),
        "ended": optional_time_label(operation.finished_at, now),
    }


def _pace(operation: Operation, now: Micros) -> str:
    """Describe how fast the jobs end and how long the rest will take."""
    ended = operation.counts.ended
    if not operation.under_way or operation.started_at is None or not ended:
        return ""
    elapsed = max(1.0, (now - to_micros(operation.started_at)) / SECOND)
    text = f"{format_rate(ended / elapsed)} so far"
    left = (operation.total - ended) * elapsed / ended
    if left >= 1:
        text += f", about {format_duration(round(left))} left"
    return text


def _bar(counts: ItemCounts) -> tuple[BarPart, ...]:
    return stacked_bar(
        [(outcome, tone, getattr(counts, outcome)) for outcome, tone in ITEM_TONES.items()]
    )


def _summary(counts: ItemCounts) -> str:
    present = [outcome for outcome in ITEM_TONES if getattr(counts, outcome)]
    return ", ".join(f"{getattr(counts, outcome):,} {outcome}" for outcome in present) or "none yet"


def _item(item: Item) -> dict[str, Any]:
    return {
        "job": item.job,
        "step": item.step,
        "was": item.was,
        "code": item.code or "",
        "state": item.state,
        "outcome": item.outcome or "",
        "why": item.why,
        "tone": ITEM_TONES.get(item.outcome or item.state, "calm"),
    }


def _audit_row(event: Event) -> dict[str, Any]:
    return {
        **event_row(event),
        "by": format_actor(event.actor),
        "changes": event_changes(event.data),
    }

"""Operations, events and the audit: what was done, what happened, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from mulligan.core.event import Event
from mulligan.core.format import duration, per, who
from mulligan.core.job import SECOND, Micros, to_micros
from mulligan.events.service import concerns, wants
from mulligan.http.dashboard.charts import parts
from mulligan.http.dashboard.renderer import Renderer, checked_words, root_of
from mulligan.http.dashboard.view_models import (
    Badge,
    alternatives,
    at_moment,
    changes_of,
    event_line,
    removable,
)
from mulligan.http.services import CallerServices
from mulligan.manifest.specs import OURS
from mulligan.operations.rules import ItemCounts
from mulligan.operations.service import Item, Operation

PAGE = 50
ITEMS = 100
STEP = 500  # events read at once
LOOKED = 5_000  # and for one page
EventId = Annotated[int, Query(ge=0, le=2**60)]
FAMILIES = (
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
STATES = {
    "gathering": Badge("…", "gathering", "busy"),
    "running": Badge("▶", "running", "busy"),
    "paused": Badge("‖", "paused", "warn"),
    "stopped": Badge("◼", "stopped", "bad"),
    "aborted": Badge("⊘", "aborted", "calm"),
    "finished": Badge("✓", "finished", "good"),
}
FATES = {
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
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def operations(self, request: Request, before: str = "") -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.operations.list(owner=desk.owner, limit=PAGE + 1, before=before or None)
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"before": found[PAGE - 1].id}) if len(found) > PAGE else ""
            return {"rows": [operation_row(one, now) for one in found[:PAGE]], "older": older}

        return self._house.page(
            request, "operations.html", "operations", **await self._house.ask(request, look)
        )

    async def operation(self, request: Request, operation: str) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.operations.get(operation, owner=desk.owner)
            items = desk.operations.items(operation, limit=ITEMS)
            with desk.store.read() as unit:
                now = unit.now()
            steps = [(place, _bar(step), _words(step)) for place, step in enumerate(found.steps, 1)]
            return {
                "row": operation_row(found, now),
                "one": found,
                "steps": steps,
                "items": [_item(one) for one in items],
            }

        return self._house.page(
            request, "operation.html", "operations", **await self._house.ask(request, look)
        )

    async def events(self, request: Request, before: EventId = 0, filter: str = "") -> Response:  # noqa: A002 - as in the URL
        words, here = checked_words(filter), f"{root_of(request)}/events"
        wanted, mine = wants(words), concerns(None)
        asks_of_ours = OURS in words

        def look(desk: CallerServices) -> dict[str, Any]:
            found, last = _back(
                desk, before, lambda event: wanted(event) and (asks_of_ours or mine(event))
            )
            older = urlencode({"before": last, "filter": words}) if last > 1 else ""
            return {"rows": [event_line(event) for event in found], "older": older}

        values = await self._house.ask(request, look, shared=True)
        chips = {
            "types": alternatives(here, words, "type", FAMILIES),
            "chosen": removable(here, words),
        }
        return self._house.page(
            request, "events.html", "events", words=words, before=before, **{**values, **chips}
        )

    async def audit(
        self, request: Request, before: EventId = 0, actor: str = "", job: str = ""
    ) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.events.list(
                actor=actor or None,
                job=job or None,
                owner=desk.owner,
                limit=PAGE + 1,
                before=before or None,
            )
            more = (
                urlencode({"before": found[PAGE - 1].id, "actor": actor, "job": job})
                if len(found) > PAGE
                else ""
            )
            return {"rows": [_deed(event) for event in found[:PAGE]], "older": more}

        values = await self._house.ask(request, look)
        return self._house.page(request, "audit.html", "audit", actor=actor, job=job, **values)


def _back(
    desk: CallerServices, before: int, wanted: Callable[[Event], bool]
) -> tuple[list[Event], int]:
    """A page of what is wanted, newest first, and down to which event was looked."""
    found: list[Event] = []
    with desk.store.read() as unit:
        top = before - 1 if before else unit.newest_event()
        lowest = max(0, top - LOOKED)
        while top > lowest and len(found) < PAGE:
            begins = max(lowest, top - STEP)
            some = [event for event in unit.events_after(begins, STEP) if event.id <= top]
            found += [event for event in reversed(some) if wanted(event)]
            top = begins
    return found[:PAGE], found[PAGE - 1].id if len(found) >= PAGE else top + 1


def operation_row(one: Operation, now: Micros) -> dict[str, Any]:
    ended, total = one.counts.ended, one.total
    return {
        "id": one.id,
        "action": one.action,
        "filter": one.filter,
        "badge": STATES[one.state],
        "by": who(one.actor),
        "reason": one.reason,
        "bar": _bar(one.counts),
        "words": f"{ended:,} of {total:,}: {_words(one.counts)}",
        "note": one.note,
        "rate": per(one.rate),
        "pace": _pace(one, now),
        "share": round(100 * ended / total, 1) if total else 0.0,
        "began": at_moment(to_micros(one.created_at), now),
        "ended": None if one.finished_at is None else at_moment(to_micros(one.finished_at), now),
    }


def _pace(one: Operation, now: Micros) -> str:
    """How fast its jobs end, and how long the rest would take so."""
    ended, began = one.counts.ended, one.started_at
    if not one.under_way or began is None or not ended:
        return ""
    took = max(1.0, (now - to_micros(began)) / SECOND)
    left = (one.total - ended) * took / ended
    return f"{per(ended / took)} so far" + (
        f", about {duration(round(left))} to go" if left >= 1 else ""
    )


def _bar(tally: ItemCounts) -> Any:
    return parts([(fate, tone, getattr(tally, fate)) for fate, tone in FATES.items()])


def _words(tally: ItemCounts) -> str:
    said = [f"{getattr(tally, fate):,} {fate}" for fate in FATES if getattr(tally, fate)]
    return ", ".join(said) or "nothing yet"


def _item(item: Item) -> dict[str, Any]:
    return {
        "job": item.job,
        "step": item.step,
        "was": item.was,
        "code": item.code or "",
        "state": item.state,
        "outcome": item.outcome or "",
        "why": item.why,
        "tone": FATES.get(item.outcome or item.state, "calm"),
    }


def _deed(event: Event) -> dict[str, Any]:
    return {**event_line(event), "by": who(event.actor), "changes": changes_of(event.data)}

"""Operations, events and the audit: what was done, what happened, and by whom."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response

from mulligan.engine.operations import Item, Operation
from mulligan.event import Event
from mulligan.job import Micros, to_micros
from mulligan.policy.operation import Tally
from mulligan.policy.phrase import per, who
from mulligan.web.charts import parts
from mulligan.web.desk import Visited
from mulligan.web.house import House
from mulligan.web.present import Badge, at_moment, changes_of, event_line

PAGE = 50
ITEMS = 100
STATES = {
    "gathering": Badge("…", "gathering", "busy"),
    "running": Badge("▶", "running", "busy"),
    "paused": Badge("‖", "paused", "warn"),
    "stopped": Badge("◼", "stopped", "bad"),
    "aborted": Badge("⊘", "aborted", "calm"),
    "finished": Badge("✓", "finished", "good"),
}
FATES = {
    "recovered": "good", "done": "good", "same": "bad", "other": "warn", "refused": "calm", "skipped": "calm",
    "sent": "busy", "waiting": "waiting",
}  # fmt: skip


class RecordScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def operations(self, request: Request, before: str = "") -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = desk.operations.list(owner=desk.owner, limit=PAGE + 1, before=before or None)
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"before": found[PAGE - 1].id}) if len(found) > PAGE else ""
            return {"rows": [operation_row(one, now) for one in found[:PAGE]], "older": older}

        return self._house.page(request, "operations.html", "operations", **await self._house.ask(request, look))

    async def operation(self, request: Request, operation: str) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
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

        return self._house.page(request, "operation.html", "operations", **await self._house.ask(request, look))

    async def events(self, request: Request, before: int = 0) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            with desk.store.read() as unit:
                top = before - 1 if before else unit.newest_event()
                found = [event for event in unit.events_after(max(0, top - PAGE * 2), PAGE * 2) if event.id <= top]
            found = found[-PAGE:]
            older = urlencode({"before": found[0].id}) if found and found[0].id > 1 else ""
            return {"rows": [event_line(event) for event in reversed(found)], "older": older}

        return self._house.page(request, "events.html", "events", **await self._house.ask(request, look, shared=True))

    async def audit(self, request: Request, before: int = 0, actor: str = "", job: str = "") -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = desk.events.list(
                actor=actor or None, job=job or None, owner=desk.owner, limit=PAGE + 1, before=before or None
            )
            more = urlencode({"before": found[PAGE - 1].id, "actor": actor, "job": job}) if len(found) > PAGE else ""
            return {"rows": [_deed(event) for event in found[:PAGE]], "older": more}

        values = await self._house.ask(request, look)
        return self._house.page(request, "audit.html", "audit", actor=actor, job=job, **values)


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
        "began": at_moment(to_micros(one.created_at), now),
        "ended": None if one.finished_at is None else at_moment(to_micros(one.finished_at), now),
    }


def _bar(tally: Tally) -> Any:
    return parts([(fate, tone, getattr(tally, fate)) for fate, tone in FATES.items()])


def _words(tally: Tally) -> str:
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

"""Batches: what each came to, and what is missing from it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.engine.batches import Batch
from mulligan.job import Micros, to_micros
from mulligan.policy.batch import BatchState
from mulligan.web.charts import bars, parts
from mulligan.web.desk import Visited
from mulligan.web.house import House, root_of
from mulligan.web.present import Badge, at_moment, event_line, row_of
from mulligan.web.reading import Shown

PAGE = 50
MEMBERS = 50
BADGES = {
    BatchState.PROCESSING: Badge("▶", "processing", "busy"),
    BatchState.READY: Badge("✓", "ready", "good"),
    BatchState.PARTIAL: Badge("◐", "partial", "warn"),
    BatchState.FAILED: Badge("✕", "failed", "bad"),
    BatchState.EXPIRED: Badge("⌛", "expired", "calm"),
}
TONES = {
    "succeeded": "good", "dead": "bad", "cancelled": "calm", "running": "busy", "parked": "warn", "queued": "waiting",
}  # fmt: skip


class BatchScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def list(self, request: Request, state: str = "", before: str = "") -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            found = desk.batches.list(state=state or None, owner=desk.owner, limit=PAGE + 1, before=before or None)
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"state": state, "before": found[PAGE - 1].id}) if len(found) > PAGE else ""
            return {"rows": [_row(batch, now) for batch in found[:PAGE]], "older": older}

        found = await self._house.ask(request, look)
        return self._house.page(request, "batches.html", "batches", state=state, states=list(BatchState), **found)

    async def one(self, request: Request, batch_id: str) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            batch = desk.batches.get(batch_id, owner=desk.owner)
            members = desk.batches.members(batch_id, limit=MEMBERS)
            failures = desk.batches.failures(batch_id)
            events = desk.batches.history(batch_id)
            with desk.store.read() as unit:
                now = unit.now()
            filters = {one.code: f"{root_of(request)}/jobs?{urlencode({'filter': f'batch:{batch_id} code:{one.code}'})}"
                       for one in failures}  # fmt: skip
            return {
                "batch": batch,
                "row": _row(batch, now),
                "codes": bars({one.code: one.count for one in failures}, filters),
                "members": [row_of(Shown(job, ""), now, root_of(request)) for job in members],
                "counts": [(state, getattr(batch.counts, state), _jobs(request, batch_id, state)) for state in TONES],
                "events": [event_line(event) for event in events],
            }

        return self._house.page(request, "batch.html", "batches", **await self._house.ask(request, look))


def _row(batch: Batch, now: Micros) -> dict[str, Any]:
    counts = batch.counts
    return {
        "id": batch.id,
        "name": batch.name or batch.id,
        "owner": batch.owner,
        "badge": BADGES[batch.state],
        "parts": parts([(state, tone, getattr(counts, state)) for state, tone in TONES.items()]),
        "words": _words(batch),
        "total": f"{counts.total:,}",
        "share": f"{counts.share:.0%}",
        "dead": counts.dead,
        "sealed": batch.sealed,
        "cancelled": batch.cancelled,
        "created": at_moment(to_micros(batch.created_at), now),
        "finished": None if batch.finished_at is None else at_moment(to_micros(batch.finished_at), now),
        "expires": None if batch.expires_at is None else at_moment(to_micros(batch.expires_at), now),
    }


def _words(batch: Batch) -> str:
    counts = batch.counts
    return f"{counts.succeeded:,} succeeded, {counts.dead:,} dead, {counts.unfinished:,} to go of {counts.total:,}"


def _jobs(request: Request, batch_id: str, state: str) -> str:
    return f"{root_of(request)}/jobs?filter={quote(f'batch:{batch_id} state:{state}')}"

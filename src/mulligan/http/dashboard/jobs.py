"""Batches: what each came to, and what is missing from it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.batches.rules import BatchState
from mulligan.batches.service import Batch
from mulligan.core.job import Job, Micros, State, to_micros
from mulligan.http.dashboard import view_models as present
from mulligan.http.dashboard.charts import bars, parts
from mulligan.http.dashboard.renderer import PAGE, Renderer, Shown, checked_words, root_of, story_of
from mulligan.http.dashboard.retry import foreseen
from mulligan.http.dashboard.view_models import (
    Badge,
    alternatives,
    at_moment,
    event_line,
    relations,
    removable,
    row_of,
)
from mulligan.http.services import CallerServices
from mulligan.jobs.search import CappedCount

# Jobs, and one job: its story, its attempts, and what can be done with it.

VERBS = {
    "retry": ("Retry", (State.DEAD, State.PARKED, State.CANCELLED)),
    "release": ("Release", (State.PARKED,)),
    "cancel": ("Cancel", (State.QUEUED, State.RUNNING)),
    "discard": ("Discard", (State.DEAD, State.PARKED)),
}


class JobScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def list(self, request: Request, filter: str = "", before: str = "") -> Response:  # noqa: A002 - as in the URL
        words, here = checked_words(filter, before), f"{root_of(request)}/jobs"

        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.jobs.list(
                words, limit=PAGE, before=before or None, owner=desk.owner, private=desk.private
            )
            whole = not before and found.cursor is None  # then it is counted already
            many = (
                CappedCount(len(found))
                if whole
                else desk.jobs.count(words, owner=desk.owner, private=desk.private)
            )
            with desk.store.read() as unit:
                now = unit.now()
            older = urlencode({"filter": words, "before": found.cursor}) if found.cursor else ""
            return {
                "rows": [row_of(Shown(job, ""), now, root_of(request)) for job in found],
                "older": f"{here}?{older}" if older else "",
                "partial": found.partial,
                "many": f"{many:,}{'+' if many.capped or many.partial else ''}",
                "one_alone": many == 1,
            }

        found = await self._house.ask(request, look)
        chips: dict[str, Any] = {
            "states": alternatives(here, words, "state", State),
            "chosen": removable(here, words),
        }
        return self._house.page(
            request, "list.html", "jobs", filter=words, before=before, **chips, **found
        )

    async def one(self, request: Request, job_id: str) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = story_of(desk, job_id)
            return {
                **present.story(found, private=desk.visitor.private),
                "actions": _actions(found.job),
                "foreseen": foreseen(desk, found.job, found.row),
                "relations": relations(desk, found),
                "copies": _copies(found.job, _base(request, desk)),
            }

        return self._house.page(request, "job.html", "jobs", **await self._house.ask(request, look))


def _actions(job: Job) -> list[tuple[str, str]]:
    return [(verb, title) for verb, (title, states) in VERBS.items() if job.state in states]


def _base(request: Request, desk: CallerServices) -> str:
    return desk.settings.web.public_url.rstrip("/") or str(request.base_url).rstrip("/")


def _copies(job: Job, base: str) -> list[str]:
    """The same by other means: to look, and to do what can be done with it now."""
    call = f'curl -H "Authorization: Bearer $KEY" {base}/api/v1/jobs/{job.id}'
    looks = [f"mulligan jobs show {job.id}", f"mulligan jobs explain {job.id}", call]
    for verb, _ in _actions(job):
        body = """-H "Content-Type: application/json" -d '{"reason": "…"}'"""
        looks += [f'mulligan jobs {verb} {job.id} --reason "…"', f"{call}/{verb} {body}"]
    return looks


# Batches: what each came to, and what is missing from it.

BATCH_PAGE = 50
MEMBERS = 50
BADGES = {
    BatchState.PROCESSING: Badge("▶", "processing", "busy"),
    BatchState.READY: Badge("✓", "ready", "good"),
    BatchState.PARTIAL: Badge("◐", "partial", "warn"),
    BatchState.FAILED: Badge("✕", "failed", "bad"),
    BatchState.EXPIRED: Badge("⌛", "expired", "calm"),
}
TONES = {
    "succeeded": "good",
    "dead": "bad",
    "cancelled": "calm",
    "running": "busy",
    "parked": "warn",
    "queued": "waiting",
}


class BatchScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def list(self, request: Request, state: str = "", before: str = "") -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            found = desk.batches.list(
                state=state or None, owner=desk.owner, limit=BATCH_PAGE + 1, before=before or None
            )
            with desk.store.read() as unit:
                now = unit.now()
            older = (
                urlencode({"state": state, "before": found[BATCH_PAGE - 1].id})
                if len(found) > BATCH_PAGE
                else ""
            )
            return {"rows": [_row(batch, now) for batch in found[:BATCH_PAGE]], "older": older}

        found = await self._house.ask(request, look)
        return self._house.page(
            request, "batches.html", "batches", state=state, states=list(BatchState), **found
        )

    async def one(self, request: Request, batch_id: str) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            batch = desk.batches.get(batch_id, owner=desk.owner)
            members = desk.batches.members(batch_id, limit=MEMBERS)
            failures = desk.batches.failures(batch_id)
            events = desk.batches.history(batch_id)
            with desk.store.read() as unit:
                now = unit.now()
            filters = {
                one.code: f"{root_of(request)}/jobs?{urlencode({'filter': f'batch:{batch_id} code:{one.code}'})}"
                for one in failures
            }
            return {
                "batch": batch,
                "row": _row(batch, now),
                "codes": bars({one.code: one.count for one in failures}, filters),
                "members": [row_of(Shown(job, ""), now, root_of(request)) for job in members],
                "counts": [
                    (state, getattr(batch.counts, state), _jobs(request, batch_id, state))
                    for state in TONES
                ],
                "events": [event_line(event) for event in events],
            }

        return self._house.page(
            request, "batch.html", "batches", **await self._house.ask(request, look)
        )


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
        "finished": None
        if batch.finished_at is None
        else at_moment(to_micros(batch.finished_at), now),
        "expires": None
        if batch.expires_at is None
        else at_moment(to_micros(batch.expires_at), now),
    }


def _words(batch: Batch) -> str:
    counts = batch.counts
    return f"{counts.succeeded:,} succeeded, {counts.dead:,} dead, {counts.unfinished:,} to go of {counts.total:,}"


def _jobs(request: Request, batch_id: str, state: str) -> str:
    return f"{root_of(request)}/jobs?filter={quote(f'batch:{batch_id} state:{state}')}"

"""Screens of jobs and batches."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request, Response

from mulligan.batches.rules import BatchState
from mulligan.batches.service import Batch
from mulligan.core.durations import Micros, to_micros
from mulligan.core.job import Job, State
from mulligan.http.dashboard.charts import BarPart, bars, stacked_bar
from mulligan.http.dashboard.renderer import (
    PAGE,
    MenuEntry,
    Renderer,
    check_filter,
    load_story,
    root_path,
    screen,
)
from mulligan.http.dashboard.retry import describe_retry
from mulligan.http.dashboard.view_models import (
    Badge,
    choice_chips,
    event_row,
    filter_chips,
    job_list_row,
    job_page,
    load_relations,
    optional_time_label,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.jobs.search import CappedCount

# --- Jobs ---

# Actions on a job: title and the states that allow it.
JOB_ACTIONS = {
    "retry": ("Retry", (State.DEAD, State.PARKED, State.CANCELLED)),
    "release": ("Release", (State.PARKED,)),
    "cancel": ("Cancel", (State.QUEUED, State.RUNNING)),
    "discard": ("Discard", (State.DEAD, State.PARKED)),
}


class JobScreens:
    """The list of jobs and the page of one job."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/jobs", MenuEntry("Now", 3, "jobs", "Jobs", "≣"))
    async def list(self, request: Request, filter: str = "", before: str = "") -> Response:  # noqa: A002 - as in the URL
        text = check_filter(filter, before)
        root = root_path(request)
        path = f"{root}/jobs"

        def load(services: VisitorServices) -> dict[str, Any]:
            jobs = services.jobs.list(
                text,
                limit=PAGE,
                before=before or None,
                owner=services.owner,
                private=services.private,
            )
            is_complete = not before and jobs.cursor is None
            count = CappedCount(len(jobs)) if is_complete else _count_jobs(services, text)
            with services.store.read() as tx:
                now = tx.now()
            older = urlencode({"filter": text, "before": jobs.cursor}) if jobs.cursor else ""
            more = "+" if count.capped or count.partial else ""
            return {
                "rows": [job_list_row(job, now, root) for job in jobs],
                "older": f"{path}?{older}" if older else "",
                "partial": jobs.partial,
                "count": f"{count:,}{more}",
                "is_single": count == 1,
            }

        values = await self._renderer.read(request, load)
        values["states"] = choice_chips(path, text, "state", State)
        values["chips"] = filter_chips(path, text)
        return self._renderer.page(
            request, "list.html", "jobs", filter=text, before=before, **values
        )

    @screen("/jobs/{job_id}")
    async def one(self, request: Request, job_id: str) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            story = load_story(services, job_id)
            return {
                **job_page(story, private=services.visitor.may_see_private),
                "actions": _actions(story.job),
                "retry_preview": describe_retry(services, story.job, story.row),
                "relations": load_relations(services, story),
                "commands": _commands(story.job, _base_url(request, services)),
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "job.html", "jobs", **values)


def _count_jobs(services: VisitorServices, text: str) -> CappedCount:
    return services.jobs.count(text, owner=services.owner, private=services.private)


def _actions(job: Job) -> list[tuple[str, str]]:
    return [(verb, title) for verb, (title, states) in JOB_ACTIONS.items() if job.state in states]


def _base_url(request: Request, services: VisitorServices) -> str:
    return services.settings.web.public_url.rstrip("/") or str(request.base_url).rstrip("/")


def _commands(job: Job, base_url: str) -> list[str]:
    """Return shell commands and API calls that show the job and run its actions."""
    call = f'curl -H "Authorization: Bearer $KEY" {base_url}/api/v1/jobs/{job.id}'
    commands = [f"mulligan jobs show {job.id}", f"mulligan jobs explain {job.id}", call]
    body = """-H "Content-Type: application/json" -d '{"reason": "…"}'"""
    for verb, _ in _actions(job):
        commands.append(f'mulligan jobs {verb} {job.id} --reason "…"')
        commands.append(f"{call}/{verb} {body}")
    return commands


# --- Batches ---

BATCH_PAGE = 50
MEMBERS = 50
BATCH_BADGES = {
    BatchState.PROCESSING: Badge("▶", "processing", "busy"),
    BatchState.READY: Badge("✓", "ready", "good"),
    BatchState.PARTIAL: Badge("◐", "partial", "warn"),
    BatchState.FAILED: Badge("✕", "failed", "bad"),
    BatchState.EXPIRED: Badge("⌛", "expired", "calm"),
}
MEMBER_TONES = {
    "succeeded": "good",
    "dead": "bad",
    "cancelled": "calm",
    "running": "busy",
    "parked": "warn",
    "queued": "waiting",
}


class BatchScreens:
    """The list of batches and the page of one batch."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/batches", MenuEntry("Now", 4, "batches", "Batches", "▤"))
    async def list(self, request: Request, state: str = "", before: str = "") -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            batches = services.batches.list(
                state=state or None,
                owner=services.owner,
                limit=BATCH_PAGE + 1,
                before=before or None,
            )
            with services.store.read() as tx:
                now = tx.now()
            older = ""
            if len(batches) > BATCH_PAGE:
                older = urlencode({"state": state, "before": batches[BATCH_PAGE - 1].id})
            return {"rows": [_batch_row(one, now) for one in batches[:BATCH_PAGE]], "older": older}

        values = await self._renderer.read(request, load)
        return self._renderer.page(
            request, "batches.html", "batches", state=state, states=list(BatchState), **values
        )

    @screen("/batches/{batch_id}")
    async def one(self, request: Request, batch_id: str) -> Response:
        root = root_path(request)

        def load(services: VisitorServices) -> dict[str, Any]:
            batch = services.batches.get(batch_id, owner=services.owner)
            members = services.batches.members(batch_id, limit=MEMBERS)
            failures = services.batches.failures(batch_id)
            events = services.batches.history(batch_id)
            with services.store.read() as tx:
                now = tx.now()
            links = {
                one.code: _members_link(root, batch_id, f"code:{one.code}") for one in failures
            }
            return {
                "batch": batch,
                "row": _batch_row(batch, now),
                "codes": bars({one.code: one.count for one in failures}, links),
                "members": [job_list_row(job, now, root) for job in members],
                "counts": _state_counts(batch, root),
                "events": [event_row(event) for event in events],
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "batch.html", "batches", **values)


def _batch_row(batch: Batch, now: Micros) -> dict[str, Any]:
    counts = batch.counts
    return {
        "id": batch.id,
        "name": batch.name or batch.id,
        "owner": batch.owner,
        "badge": BATCH_BADGES[batch.state],
        "bar": batch_bar(batch),
        "summary": _summary(batch),
        "total": f"{counts.total:,}",
        "share": f"{counts.share:.0%}",
        "dead": counts.dead,
        "sealed": batch.sealed,
        "cancelled": batch.cancelled,
        "created": time_label(to_micros(batch.created_at), now),
        "finished": optional_time_label(batch.finished_at, now),
        "expires": optional_time_label(batch.expires_at, now),
    }


def batch_bar(batch: Batch) -> tuple[BarPart, ...]:
    """Draw the members of a batch by state."""
    return stacked_bar(
        [(state, tone, getattr(batch.counts, state)) for state, tone in MEMBER_TONES.items()]
    )


def _summary(batch: Batch) -> str:
    counts = batch.counts
    ended = f"{counts.succeeded:,} succeeded, {counts.dead:,} dead"
    return f"{ended}, {counts.unfinished:,} of {counts.total:,} unfinished"


def _state_counts(batch: Batch, root: str) -> list[tuple[str, int, str]]:
    return [
        (state, getattr(batch.counts, state), _members_link(root, batch.id, f"state:{state}"))
        for state in MEMBER_TONES
    ]


def _members_link(root: str, batch_id: str, condition: str) -> str:
    return f"{root}/jobs?filter={quote(f'batch:{batch_id} {condition}')}"

"""The public status page of one job or batch, opened by a signed link instead of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from mulligan.access.keys import Role, StatusGrant, Visitor
from mulligan.batches.service import Batch
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.errors import MulliganError, NotFound
from mulligan.core.format import format_elapsed
from mulligan.core.job import ALL_OWNERS, Job, State
from mulligan.http.dashboard import sessions
from mulligan.http.dashboard.jobs import BATCH_BADGES, batch_bar
from mulligan.http.dashboard.renderer import Renderer, form_route, screen
from mulligan.http.dashboard.retry import EditableField, changed_fields, load_editable_fields
from mulligan.http.dashboard.view_models import (
    BADGES,
    changed_at,
    job_badge,
    job_progress,
    time_label,
)
from mulligan.http.services import VisitorServices

LINK_VISITOR = Visitor(ALL_OWNERS, Role.VIEWER, "owner:link", "")  # sees only what the link names
RETRYABLE_STATES = (State.DEAD, State.CANCELLED)
ENDED_STATES = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
STATE_TEXTS = {
    State.QUEUED: "It is waiting to start.",
    State.RUNNING: "It is running.",
    State.SUCCEEDED: "It is done.",
    State.DEAD: "It failed.",
    State.CANCELLED: "It was cancelled.",
    State.PARKED: "It is waiting for a decision.",
}
# Phases that describe our operations; owners see the state instead.
INTERNAL_PHASES = ("no_worker", "limited", "over_budget")
HELD = "It is waiting because a service it needs is not available. It will continue by itself."
MESSAGES = {
    "again": "It will be tried again.",
    "refused": "It cannot be tried again right now. Try later, or ask your support contact.",
}


class StatusScreens:
    """The status page and its retry form."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/status/{text}")
    async def show(self, request: Request, text: str, message: str = "") -> Response:
        """Show the page. `message` is the key of a sentence about the last retry."""

        def load(services: VisitorServices) -> dict[str, Any]:
            grant = _verify(services, text)
            if grant.target == "job":
                return _job_page(services, grant)
            return _batch_page(services, grant)

        values = await self._renderer.runner.run_as(LINK_VISITOR, load)
        values["message"] = MESSAGES.get(message, "")
        return self._renderer.page(request, "status.html", text=text, **values)

    @form_route("/status/{text}")
    async def retry(self, request: Request, text: str) -> Response:
        """Retry from the page. The link itself is the permission: no other site knows it."""
        sessions.check_origin(request)
        form = await sessions.read_form(request)

        def work(services: VisitorServices) -> None:
            grant = _verify(services, text)
            if not grant.retry:
                raise NotFound
            _retry(services, grant, form)

        try:
            await self._renderer.runner.run_as(LINK_VISITOR, work)
        except MulliganError:
            return self._renderer.redirect(request, f"/status/{text}?message=refused", "")
        return self._renderer.redirect(request, f"/status/{text}?message=again", "")


def _verify(services: VisitorServices, text: str) -> StatusGrant:
    return services.status.verify(text)


def _job_page(services: VisitorServices, grant: StatusGrant) -> dict[str, Any]:
    job = services.jobs.get(grant.id)
    with services.store.read() as tx:
        now = tx.now()
    may_retry = grant.retry and job.state in RETRYABLE_STATES
    fields = _fields(services, job) if may_retry else []
    return {
        "title": job.kind,
        "badge": BADGES[job.state] if job.phase in INTERNAL_PHASES else job_badge(job),
        "sentence": _sentence(job, now),
        "progress": job_progress(job),
        "bar": (),
        "fields": [(field.name, field.text) for field in fields],
        "may_retry": may_retry,
        "at": time_label(to_micros(changed_at(job)), now),
        "ended": job.state in ENDED_STATES,
    }


def _sentence(job: Job, now: Micros) -> str:
    """Say what happened and what happens next, without internal details."""
    message = ""
    if job.state is not State.SUCCEEDED:
        message = str((job.error or {}).get("message", ""))
    if job.state is State.QUEUED:
        return _queued_sentence(job, message, now)
    if message and job.state is State.DEAD:
        return message
    return STATE_TEXTS[job.state]


def _queued_sentence(job: Job, message: str, now: Micros) -> str:
    if job.phase == "held":
        return f"{message} {HELD}".strip()
    run_at = to_micros(job.run_at)
    is_later = run_at > now + SECOND
    when = f"in {format_elapsed(now, run_at)}" if is_later else "soon"
    if job.failures:
        return f"{message or 'It failed so far.'} It will be tried again {when}."
    return f"It starts {when}." if is_later else STATE_TEXTS[State.QUEUED]


def _fields(services: VisitorServices, job: Job) -> list[EditableField]:
    """Return the fields that the kind declares as editable, without secret ones."""
    with services.store.read() as tx:
        return [field for field in load_editable_fields(tx, job) if field.visible]


def _batch_page(services: VisitorServices, grant: StatusGrant) -> dict[str, Any]:
    batch = services.batches.get(grant.id)
    with services.store.read() as tx:
        now = tx.now()
    counts = batch.counts
    return {
        "title": batch.name or "Batch",
        "badge": BATCH_BADGES[batch.state],
        "sentence": _batch_sentence(batch),
        "progress": None if batch.finished_at else round(counts.share * 100),
        "bar": batch_bar(batch),
        "fields": [],
        "may_retry": grant.retry and bool(counts.dead) and batch.finished_at is not None,
        "at": time_label(to_micros(batch.finished_at or batch.created_at), now),
        "ended": batch.finished_at is not None,
    }


def _batch_sentence(batch: Batch) -> str:
    counts = batch.counts
    if batch.finished_at is None:
        return f"{counts.ended:,} of {counts.total:,} are done."
    if counts.dead:
        return f"{counts.succeeded:,} of {counts.total:,} succeeded, {counts.dead:,} failed."
    if counts.total:
        return f"All {counts.total:,} are done."
    return "It is done."


def _retry(services: VisitorServices, grant: StatusGrant, form: Mapping[str, str]) -> None:
    if grant.target == "batch":
        services.batches.retry_failed(grant.id, reason="by the owner")
        return
    job = services.jobs.get(grant.id)
    payload = changed_fields(_fields(services, job), form)
    # Pass the owner, so that the owner's limit of manual retries applies.
    services.jobs.retry(
        grant.id,
        reason="by the owner",
        overrides={"payload": payload} if payload else None,
        owner=job.owner,
    )

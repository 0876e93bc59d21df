"""The public status page of one job or batch, opened by a signed link instead of a key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse

from mulligan.access.keys import Role, StatusGrant, Visitor
from mulligan.batches.rules import BatchState
from mulligan.batches.service import Batch
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.errors import MulliganError, NotFound
from mulligan.core.format import format_elapsed
from mulligan.core.ids import CUT_MARK, shorten_id
from mulligan.core.job import ALL_OWNERS, Job, State
from mulligan.http.dashboard import sessions
from mulligan.http.dashboard.jobs import batch_bar
from mulligan.http.dashboard.renderer import Renderer, form_route, screen
from mulligan.http.dashboard.retry import EditableField, changed_fields, load_editable_fields
from mulligan.http.dashboard.view_models import (
    Badge,
    changed_at,
    job_progress,
    time_label,
)
from mulligan.http.services import VisitorServices
from mulligan.jobs.view import Titles
from mulligan.notifications.email import Email

LINK_VISITOR = Visitor(ALL_OWNERS, Role.VIEWER, "owner:link", "")  # sees only what the link names
RETRYABLE_STATES = (State.DEAD, State.CANCELLED)
ENDED_STATES = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
# States in an owner's words. Phases of a queued job describe our operations: only "held" is shown.
OWNER_BADGES = {
    State.QUEUED: Badge("clock", "waiting", "calm"),
    State.RUNNING: Badge("play", "working", "busy"),
    State.SUCCEEDED: Badge("check", "done", "good"),
    State.DEAD: Badge("x", "failed", "bad"),
    State.CANCELLED: Badge("ban", "cancelled", "calm"),
    State.PARKED: Badge("hand", "waiting for us", "warn"),
}
PAUSED_BADGE = Badge("pause", "paused by us", "warn")
STATE_TEXTS = {
    State.QUEUED: "It is waiting to start.",
    State.RUNNING: "We are working on it.",
    State.SUCCEEDED: "It is done.",
    State.DEAD: "It failed.",
    State.CANCELLED: "It was cancelled.",
    State.PARKED: "It is waiting for a decision by our team.",
}
PAUSED_TEXT = "It is paused on our side and continues by itself. You do not have to do anything."
MESSAGES = {
    "again": "Your retry was requested.",
    "refused": "It cannot be tried again right now. Try later, or ask your support contact.",
    "notified": "You will get an e-mail when it is done.",
    "address": "This is not an e-mail address. Check it and try again.",
}
INVALID_LINK = "This link is no longer valid."
INVALID_LINK_ADVICE = "Ask whoever sent it to you for a new one."
LOGO_TYPES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
}
RESULT_KEY = "public_url"  # of a result that the app wants the owner to open
BATCH_WORDS = {
    BatchState.PROCESSING: Badge("play", "working", "busy"),
    BatchState.READY: Badge("check", "done", "good"),
    BatchState.PARTIAL: Badge("contrast", "partly failed", "warn"),
    BatchState.FAILED: Badge("x", "failed", "bad"),
    BatchState.EXPIRED: Badge("hourglass", "no longer available", "calm"),
}
# --- Messages about one job ---
NOTIFY_PREFIX = "status page: "
NOTIFY_EVENTS = ("job.succeeded", "job.died", "job.cancelled")


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

        try:
            values = await self._renderer.runner.run_as(LINK_VISITOR, load)
        except NotFound:
            return self._invalid_link(request)
        values["message"] = MESSAGES.get(message, "")
        values["brand"] = self._renderer.settings.web.brand
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

    @form_route("/status/{text}/notify")
    async def notify(self, request: Request, text: str) -> Response:
        """Subscribe an address to the end of the job."""
        sessions.check_origin(request)
        form = await sessions.read_form(request)

        def work(services: VisitorServices) -> None:
            grant = _verify(services, text)
            if grant.target != "job" or not services.settings.mail.host:
                raise NotFound
            _subscribe(services, grant.id, form.get("email", ""))

        message = "notified"
        try:
            await self._renderer.runner.run_as(LINK_VISITOR, work)
        except NotFound:
            return self._invalid_link(request)
        except MulliganError:
            message = "address"
        return self._renderer.redirect(request, f"/status/{text}?message={message}", "")

    @screen("/brand/{file}")
    async def brand(self, request: Request, file: str) -> Response:
        """Serve the logo and the colour that `web.brand` sets."""
        del request
        brand = self._renderer.settings.web.brand
        if file == "style.css":
            rule = f":root {{ --brand: {brand.color}; }}\n" if brand.color else ""
            return Response(rule, media_type="text/css")
        if file != "logo":
            raise NotFound("unknown file")
        return _logo_response(Path(brand.logo))

    def _invalid_link(self, request: Request) -> Response:
        values = {"title": INVALID_LINK, "detail": "", "advice": INVALID_LINK_ADVICE}
        return self._renderer.page(request, "message.html", "", 404, is_public=True, **values)


def _logo_response(logo: Path) -> Response:
    media_type = LOGO_TYPES.get(logo.suffix.lower())
    if media_type is None or not logo.is_file():
        raise NotFound("no logo is set: web.brand.logo")
    return FileResponse(logo, media_type=media_type)


def _subscribe(services: VisitorServices, job_id: str, address: str) -> None:
    """Mail the end of a job to one address. A new address replaces the one before."""
    job = services.jobs.get(job_id)
    if job.state in ENDED_STATES:
        return
    channel = Email(to=address.strip())  # refuse an invalid address before anything is removed
    name = f"{NOTIFY_PREFIX}{job_id}"
    for subscription in services.subscriptions.list():
        if subscription.name == name or _is_over(services, subscription.name):
            services.subscriptions.remove(subscription.id, reason="status page")
    services.subscriptions.add(
        NOTIFY_EVENTS,
        channel,
        owner=job.owner or None,
        name=name,
        form="each",
        filter=f"job:{job_id}",
        reason="asked for on the status page",
    )


def _is_over(services: VisitorServices, name: str) -> bool:
    """True if the subscription is about a job that ended a day ago or is gone."""
    if not name.startswith(NOTIFY_PREFIX):
        return False
    try:
        job = services.jobs.get(name.removeprefix(NOTIFY_PREFIX))
    except NotFound:
        return True
    ended_at = job.finished_at
    return ended_at is not None and datetime.now(UTC) - ended_at > timedelta(days=1)


def _verify(services: VisitorServices, text: str) -> StatusGrant:
    return services.status.verify(text)


def _job_page(services: VisitorServices, grant: StatusGrant) -> dict[str, Any]:
    job = services.jobs.get(grant.id)
    with services.store.read() as tx:
        now = tx.now()
    may_retry = grant.retry and job.state in RETRYABLE_STATES
    is_ended = job.state in ENDED_STATES
    fields = _fields(services, job) if may_retry else []
    is_paused = job.state is State.QUEUED and job.phase == "held"
    return {
        "title": _title(services, job),
        "badge": PAUSED_BADGE if is_paused else OWNER_BADGES[job.state],
        "sentence": _sentence(job, now),
        "progress": job_progress(job),
        "bar": (),
        "fields": [(field.name, field.text) for field in fields],
        "may_retry": may_retry,
        "may_notify": not is_ended and bool(services.settings.mail.host),
        "result_link": _result_link(job),
        "reference": shorten_id(job.id).removeprefix(CUT_MARK),
        "at": time_label(to_micros(changed_at(job)), now),
        "ended": is_ended,
    }


def _title(services: VisitorServices, job: Job) -> str:
    """Return the title that the kind declares, or the name of the kind in words."""
    with services.store.read() as tx:
        title = Titles.load(tx).declared(job.kind, job.payload)
    return title or job.kind.replace("_", " ").replace(".", " ").capitalize()


def _result_link(job: Job) -> str:
    """Return the address in the result that the app made public, or an empty string."""
    link = job.result.get(RESULT_KEY, "") if isinstance(job.result, dict) else ""
    is_safe = isinstance(link, str) and link.startswith(("https://", "http://"))
    return link if is_safe else ""


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
        return f"{message} {PAUSED_TEXT}".strip()
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
        "title": batch.name or "Your jobs",
        "badge": _batch_badge(batch),
        "sentence": _batch_sentence(batch),
        "progress": None,  # its bar shows the same
        "bar": batch_bar(batch),
        "fields": [],
        "may_retry": grant.retry and bool(counts.dead) and batch.finished_at is not None,
        "may_notify": False,
        "result_link": "",
        "reference": shorten_id(batch.id).removeprefix(CUT_MARK),
        "at": time_label(to_micros(batch.finished_at or batch.created_at), now),
        "ended": batch.finished_at is not None,
    }


def _is_under_way(batch: Batch) -> bool:
    """True if a part has not ended. A batch that may get more parts is as far as those it has."""
    counts = batch.counts
    return batch.finished_at is None and counts.ended < max(1, counts.total)


def _batch_badge(batch: Batch) -> Badge:
    counts = batch.counts
    if batch.state is not BatchState.PROCESSING or _is_under_way(batch):
        return BATCH_WORDS[batch.state]
    if counts.dead:
        return BATCH_WORDS[BatchState.PARTIAL if counts.succeeded else BatchState.FAILED]
    return BATCH_WORDS[BatchState.READY]


def _batch_sentence(batch: Batch) -> str:
    counts = batch.counts
    if _is_under_way(batch):
        failed = f", {counts.dead:,} failed so far" if counts.dead else ""
        return f"{counts.succeeded:,} of {counts.total:,} are done{failed}."
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
    overrides = {"payload": payload} if payload else None
    # Pass the owner, so that the owner's limit of manual retries applies.
    services.jobs.retry(grant.id, reason="by the owner", overrides=overrides, owner=job.owner)

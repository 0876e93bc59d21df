"""The page of one job or batch for whoever it belongs to: one honest sentence, how far it is, a retry if allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from mulligan.access.keys import EVERYTHING, Role, Visitor
from mulligan.access.status_links import Pass, StatusLinks
from mulligan.batches.service import Batch
from mulligan.core.errors import MulliganError, NotFound
from mulligan.core.format import span
from mulligan.core.job import SECOND, Job, Micros, State, to_micros
from mulligan.http.dashboard import sessions as visits
from mulligan.http.dashboard.charts import parts
from mulligan.http.dashboard.jobs import BADGES as OUTCOMES
from mulligan.http.dashboard.jobs import TONES
from mulligan.http.dashboard.renderer import Renderer
from mulligan.http.dashboard.retry import Field, changed, editable_fields
from mulligan.http.dashboard.view_models import BADGES, at_moment, badge_of
from mulligan.http.services import CallerServices

HOLDER = Visitor(EVERYTHING, Role.VIEWER, "owner:link", "")  # who has the link, and nothing else
AGAIN = (State.DEAD, State.CANCELLED)
WORDS = {
    State.QUEUED: "It waits for its turn.",
    State.RUNNING: "It is being worked on.",
    State.SUCCEEDED: "It is done.",
    State.DEAD: "It did not work.",
    State.CANCELLED: "It was cancelled.",
    State.PARKED: "Somebody has to look at it first.",
}
INNER = ("no_worker", "limited", "over_budget")  # our affairs, not the owner's
HELD = "It waits: something it needs does not work at the moment. It goes on by itself."


class StatusScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def show(self, request: Request, text: str, said: str = "") -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            opened = _opened(desk, text)
            return _job(desk, opened) if opened.what == "job" else _batch(desk, opened)

        found = await self._house.reader.at_desk(look, HOLDER)
        return self._house.page(request, "status.html", text=text, said=SAID.get(said, ""), **found)

    async def retry(self, request: Request, text: str) -> Response:
        """The link is what allows it; a form of another site does not have it."""
        visits.check_origin(request)
        form = await visits.form_of(request)

        def work(desk: CallerServices) -> None:
            opened = _opened(desk, text)
            if not opened.retry:
                raise NotFound
            _again(desk, opened, form)

        try:
            await self._house.reader.at_desk(work, HOLDER)
        except MulliganError:
            return self._house.back(request, f"/status/{text}?said=refused", "")
        return self._house.back(request, f"/status/{text}?said=again", "")


SAID = {
    "again": "It is tried again.",
    "refused": "It cannot be tried again right now. Try later, or ask whoever runs this for you.",
}


def _opened(desk: CallerServices, text: str) -> Pass:
    return StatusLinks(lambda: desk.store, lambda: desk.settings).opened(text)


def _job(desk: CallerServices, opened: Pass) -> dict[str, Any]:
    job = desk.jobs.get(opened.id)
    with desk.store.read() as unit:
        now = unit.now()
    return {
        "title": job.kind,
        "badge": BADGES[job.state] if job.phase in INNER else badge_of(job),
        "words": _sentence(job, now),
        "progress": None
        if job.progress is None or job.state is not State.RUNNING
        else round(job.progress * 100),
        "bar": (),
        "fields": [one[:2] for one in _fields(desk, job)]
        if opened.retry and job.state in AGAIN
        else [],
        "may_retry": opened.retry and job.state in AGAIN,
        "at": at_moment(to_micros(job.finished_at or job.started_at or job.created_at), now),
        "ended": job.state in {State.SUCCEEDED, State.DEAD, State.CANCELLED},
    }


def _sentence(job: Job, now: Micros) -> str:
    """What happened and what happens next, without anything of ours."""
    said = str((job.error or {}).get("message", "")) if job.state is not State.SUCCEEDED else ""
    if job.state is State.QUEUED:
        return _waiting(job, said, now)
    return said if said and job.state is State.DEAD else WORDS[job.state]


def _waiting(job: Job, said: str, now: Micros) -> str:
    if job.phase == "held":
        return f"{f'{said} ' if said else ''}{HELD}"
    when = to_micros(job.run_at)
    soon = f"in {span(now, when)}" if when > now + SECOND else "in a moment"
    if job.failures:
        return f"{said or 'It did not work yet.'} It is tried again by itself, {soon}."
    return f"It begins {soon}." if when > now + SECOND else WORDS[State.QUEUED]


def _fields(desk: CallerServices, job: Job) -> list[Field]:
    """What its kind lets people change, as it is; what is secret is not asked for here."""
    with desk.store.read() as unit:
        return [one for one in editable_fields(unit, job) if one.known]


def _batch(desk: CallerServices, opened: Pass) -> dict[str, Any]:
    batch = desk.batches.get(opened.id)
    with desk.store.read() as unit:
        now = unit.now()
    counts = batch.counts
    return {
        "title": batch.name or "Batch",
        "badge": OUTCOMES[batch.state],
        "words": _counted(batch),
        "progress": None if batch.finished_at else round(counts.share * 100),
        "bar": parts([(state, tone, getattr(counts, state)) for state, tone in TONES.items()]),
        "fields": [],
        "may_retry": opened.retry and bool(counts.dead) and batch.finished_at is not None,
        "at": at_moment(to_micros(batch.finished_at or batch.created_at), now),
        "ended": batch.finished_at is not None,
    }


def _counted(batch: Batch) -> str:
    counts = batch.counts
    if batch.finished_at is None:
        return f"{counts.ended:,} of {counts.total:,} are done."
    if counts.dead:
        return f"{counts.succeeded:,} of {counts.total:,} worked, {counts.dead:,} did not."
    return f"All {counts.total:,} are done." if counts.total else "It is done."


def _again(desk: CallerServices, opened: Pass, form: Mapping[str, str]) -> None:
    if opened.what == "batch":
        desk.batches.retry_failed(opened.id, reason="by the owner")
        return
    job = desk.jobs.get(opened.id)
    payload = changed(_fields(desk, job), form)
    overrides = {"payload": payload} if payload else None
    desk.jobs.retry(
        opened.id, reason="by the owner", overrides=overrides, owner=job.owner
    )  # and has the owner's limit

"""Screens of jobs and batches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from mulligan.app.search import complete_search, interpret_search
from mulligan.batches.queries import BatchQueries
from mulligan.batches.rules import BatchState
from mulligan.batches.service import Batch
from mulligan.core.durations import Micros, to_micros
from mulligan.core.errors import Refused
from mulligan.core.format import as_sentence
from mulligan.core.ids import LENGTH
from mulligan.core.job import Job, State
from mulligan.http.dashboard.charts import BarPart, bars, stacked_bar
from mulligan.http.dashboard.renderer import (
    PAGE,
    JobStory,
    MenuEntry,
    Renderer,
    check_filter,
    load_story,
    root_path,
    screen,
)
from mulligan.http.dashboard.retry import describe_retry
from mulligan.http.dashboard.steps import step_rows
from mulligan.http.dashboard.view_models import (
    EXPORT_FORMATS,
    Badge,
    event_row,
    export,
    export_links,
    filter_chips,
    filter_link,
    job_list_rows,
    job_page,
    jobs_link,
    optional_time_label,
    split_filter,
    time_label,
    without_advice,
)
from mulligan.http.services import VisitorServices
from mulligan.jobs.filter import FIELDS, parse_filter
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.search import CappedCount
from mulligan.waits.service import open_question
from mulligan.worker.queries import WorkerQueries

# --- Jobs ---

# Actions on a job: title and the states that allow it.
JOB_ACTIONS = {
    "release": ("Release", (State.PARKED,)),
    "retry": ("Retry", (State.DEAD, State.PARKED, State.CANCELLED)),
    "rerun": ("Run again", (State.SUCCEEDED,)),
    "cancel": ("Cancel", (State.QUEUED, State.RUNNING)),
    "discard": ("Discard", (State.DEAD, State.PARKED)),
    "undiscard": ("Undo discard", (State.CANCELLED,)),
}


ONE_BY_ONE = ("release", "rerun")  # not offered for many jobs


class JobScreens:
    """The list of jobs and the page of one job."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/jobs", MenuEntry("", 3, "jobs", "Jobs", "list"))
    async def list(
        self,
        request: Request,
        filter: str = "",  # noqa: A002 - as in the URL
        before: str = "",
        format: str = "",  # noqa: A002 - as in the URL
    ) -> Response:
        typed = check_filter(filter, before)
        root = root_path(request)
        path = f"{root}/jobs"
        found = await self._renderer.read(
            request, lambda services: interpret_search(services, typed, services.owner)
        )
        if found.job_id:
            return RedirectResponse(f"{path}/{found.job_id}", 303)
        text = found.filter
        if format in EXPORT_FORMATS:
            rows = await self._renderer.read(request, lambda services: _export(services, text))
            return export(rows, "jobs", format)

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
            older = ""
            if jobs.cursor:
                query = urlencode({"filter": text, "before": jobs.cursor})
                older = f"{path}?{query}"
            return {
                "rows": job_list_rows(services, jobs, now, root),
                "older": older,
                "partial": jobs.partial,
                "count": _format_count(count),
                "is_single": count == 1,
                "states": _state_chips(services, path, text),
                "bulk_actions": _bulk_actions(text, {job.state for job in jobs}),
                "error": "",
            }

        status = 200
        try:
            values = await self._renderer.read(request, load)
        except Refused as refused:
            status = 400
            values = {**EMPTY_LIST, "error": str(refused)}
        values["chips"] = filter_chips(path, text)
        values["typed"] = typed
        values["meant"] = _correct(typed)
        values["export"] = export_links(filter_link(path, [text] if text else []))
        return self._renderer.page(
            request, "list.html", "jobs", status, filter=text, before=before, **values
        )

    @screen("/search")
    async def complete(self, request: Request, text: str = "") -> Response:
        """Return what may follow in the search box, as JSON for its script."""
        typed = check_filter(text)
        found = await self._renderer.read(
            request, lambda services: complete_search(services, typed, services.owner)
        )
        return JSONResponse([one._asdict() for one in found])

    @screen("/jobs/{job_id}")
    async def one(self, request: Request, job_id: str, log: int = 0) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            story = load_story(services, job_id)
            releases = {row.worker: row.release for row in story.attempts if row.release}
            return {
                **job_page(story, private=services.visitor.may_see_private),
                **_verdict(story.job, story.now),
                **_log(services, job_id, log),
                "title": services.jobs.titles([story.job])[0],
                "releases": releases,
                "release": story.attempts[-1].release if story.attempts else "",
                "actions": _actions(story.job),
                "question": open_question(story.row),
                "retry_preview": describe_retry(services, story.job, story.row),
                "steps": step_rows(services, story),
                "relations": load_relations(services, story),
                "commands": _commands(story.job, _base_url(request, services)),
            }

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "job.html", "jobs", **values)


def _log(services: VisitorServices, job_id: str, token: int) -> dict[str, Any]:
    """Return the log of one attempt, or of the last that has one. Operators only."""
    if not services.visitor.may_see_private:
        return {"log": None, "logged": ()}
    with services.store.read() as tx:
        logged = JobQueries(tx).list_attempt_logs(job_id)
    if not logged:
        return {"log": None, "logged": ()}
    chosen = token if token in logged else logged[-1]
    return {"log": services.jobs.log(job_id, chosen), "logged": logged[::-1]}


def _verdict(job: Job, now: Micros) -> dict[str, str]:
    """Return the state of a job as a headline and a sentence."""
    ended = "" if job.finished_at is None else time_label(to_micros(job.finished_at), now).ago
    if job.state is State.SUCCEEDED:
        failures = "1 failure" if job.failures == 1 else f"{job.failures} failures"
        detail = f"It recovered after {failures}." if job.failures else ""
        return {"headline": f"Succeeded {ended}", "detail": detail}
    if job.state is State.DEAD:
        tries = "1 attempt" if job.attempt == 1 else f"{job.attempt} attempts"
        _, _, reason = job.why.partition(": ")
        detail = _capitalise(as_sentence(without_advice(reason)))
        return {"headline": f"Failed after {tries}, {ended}", "detail": detail}
    return {
        "headline": job.phase.replace("_", " ").capitalize(),
        "detail": _capitalise(as_sentence(job.why)),
    }


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


EMPTY_LIST: dict[str, Any] = {
    "rows": (),
    "older": "",
    "partial": False,
    "count": "0",
    "is_single": False,
    "states": (),
    "bulk_actions": (),
}
MAX_EXPORT = 10_000  # jobs
# Chips of the list: title and the part of the filter that it stands for.
STATE_CHIPS = (
    ("dead", "state:dead"),
    ("parked", "state:parked"),
    ("running", "state:running"),
    ("retrying", "phase:backing_off"),
    ("held", "phase:held"),
    ("scheduled", "phase:scheduled"),
    ("queued", "state:queued"),
    ("succeeded", "state:succeeded"),
    ("cancelled", "state:cancelled"),
)
CHEAP_FIELDS = frozenset({"state", "phase", "kind", "queue", "owner", "since"})
CHIP_CAP = 10_000  # jobs that a chip counts


class StateChip(NamedTuple):
    """A state as a link that chooses it, with the number of its jobs."""

    title: str
    link: str
    here: bool
    total: str


def _state_chips(services: VisitorServices, path: str, text: str) -> list[StateChip]:
    """Return the states with their numbers of jobs, as far as these can be counted quickly."""
    parts = split_filter(text)
    others = [part for part in parts if not part.startswith(("state:", "phase:"))]
    is_cheap = set(parse_filter(text)) <= CHEAP_FIELDS
    chips = [StateChip("all", filter_link(path, others), len(others) == len(parts), "")]
    for title, part in STATE_CHIPS:
        count = ""
        if is_cheap:
            found = services.jobs.count(
                " ".join([part, *others]), cap=CHIP_CAP, owner=services.owner
            )
            count = _format_count(found)
        if count != "0" or part in parts:
            chips.append(StateChip(title, filter_link(path, [part, *others]), part in parts, count))
    if not others and services.owner is None:
        chips += _unserved_chip(services, path, parts)
    return chips


def _unserved_chip(services: VisitorServices, path: str, parts: Sequence[str]) -> list[StateChip]:
    """Return a chip for the waiting jobs of kinds that no live worker knows."""
    with services.store.read() as tx:
        known = WorkerQueries(tx).live_kinds()
    unserved = {
        kind.name: kind.ready + kind.held_jobs + kind.later
        for kind in services.kinds.list()
        if kind.name not in known and kind.ready + kind.held_jobs + kind.later
    }
    if not unserved:
        return []
    wanted = ["state:queued", f"kind:{','.join(sorted(unserved))}"]
    count = f"{sum(unserved.values()):,}"
    return [StateChip("no worker", filter_link(path, wanted), wanted == [*parts], count)]


def _format_count(count: CappedCount) -> str:
    or_more = "+" if count.capped or count.partial else ""
    return f"{count:,}{or_more}"


def _correct(text: str) -> str:
    """Return a search with the names of fields that its unknown names resemble, or ""."""
    parts = split_filter(text)
    corrected = []
    for part in parts:
        name, colon, value = part.partition(":")
        similar = difflib.get_close_matches(name, FIELDS, n=1) if colon else []
        is_known = name in FIELDS or name.startswith("arg.")
        corrected.append(f"{similar[0]}:{value}" if similar and not is_known else part)
    return "" if corrected == parts else " ".join(corrected)


def _export(services: VisitorServices, text: str) -> list[dict[str, Any]]:
    """Return the jobs of a filter as rows of a file, at most MAX_EXPORT."""
    rows: list[dict[str, Any]] = []
    before: str | None = None
    while len(rows) < MAX_EXPORT:
        jobs = services.jobs.list(
            text, limit=EXPORT_PAGE, before=before, owner=services.owner, private=services.private
        )
        titles = services.jobs.titles(jobs)
        rows += [_export_row(job, title) for job, title in zip(jobs, titles, strict=True)]
        before = jobs.cursor
        if before is None:
            break
    return rows


EXPORT_PAGE = 500
EXPORT_FIELDS = ("id", "kind", "queue", "owner", "state", "phase", "attempt", "failures")
EXPORT_TIMES = ("created_at", "run_at", "started_at", "finished_at")


def _export_row(job: Job, title: str) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(job, name) for name in EXPORT_FIELDS}
    row["title"] = title
    row["code"] = "" if job.error is None else job.error.get("code", "")
    row["why"] = job.why
    for name in EXPORT_TIMES:
        at = getattr(job, name)
        row[name] = "" if at is None else at.isoformat()
    return row


def _bulk_actions(text: str, present: AbstractSet[State]) -> list[tuple[str, str]]:
    """Return the actions that the states of a filter allow, or else the states of the page."""
    fields = parse_filter(text)
    wanted = present
    if "state" in fields:
        states = fields["state"]
        wanted = {State(state) for state in ([states] if isinstance(states, str) else states)}
    return [
        (verb, title)
        for verb, (title, allowed) in JOB_ACTIONS.items()
        if verb not in ONE_BY_ONE and wanted & set(allowed)
    ]


def _count_jobs(services: VisitorServices, text: str) -> CappedCount:
    return services.jobs.count(text, owner=services.owner, private=services.private)


def _actions(job: Job) -> list[tuple[str, str]]:
    actions = []
    for verb, (title, states) in JOB_ACTIONS.items():
        if job.state in states:
            actions.append((verb, title))
    return actions


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


# --- Related objects of a job ---

MAX_CHILDREN = 20


class Relation(NamedTuple):
    """A link to an object that a job is connected with."""

    role: str
    text: str
    link: str


def load_relations(services: VisitorServices, story: JobStory) -> list[Relation]:
    """Load what made a job, what it belongs to, and what it made."""
    return [
        *_makers(services, story),
        *_groups(services, story),
        *_operations(story),
        *_children(services, story),
    ]


def _makers(services: VisitorServices, story: JobStory) -> Iterator[Relation]:
    """Yield the job, batch or schedule that made this job. A unique key may begin with its id."""
    maker, colon, _ = (story.row.unique_key or "").partition(":")
    if colon and len(maker) == LENGTH and maker.isalnum():
        with services.store.read() as tx:
            parent = JobQueries(tx).get_job(maker)
            batch = BatchQueries(tx).get_batch(maker)
        if parent is not None and services.owner in (None, parent.owner):
            yield Relation("made by", f"{parent.kind} {parent.id}", f"/jobs/{parent.id}")
        if batch is not None and services.owner in (None, batch.owner):
            yield Relation("follows batch", batch.name or batch.id, f"/batches/{batch.id}")
    for name in _event_values(story, "schedule"):
        yield Relation("schedule", name, "/schedules")


def _groups(services: VisitorServices, story: JobStory) -> Iterator[Relation]:
    """Yield the batch, the failure group and the dependencies of the job."""
    row = story.row
    if row.batch_id is not None:
        yield _batch_relation(services, row.batch_id)
    fingerprints = [attempt.fingerprint for attempt in story.attempts if attempt.fingerprint]
    if fingerprints and row.state == State.DEAD:
        yield _cause_relation(services, fingerprints[-1])
    for key in story.job.uses:
        yield Relation("uses", key, "/dependencies")


def _cause_relation(services: VisitorServices, fingerprint: str) -> Relation:
    group = services.failures.get(
        fingerprint, owner=services.owner, private=services.private and services.owner is None
    )
    others = group.count - 1
    role = "same cause"
    if others > 0:
        role = f"same cause, {others:,} other {'job' if others == 1 else 'jobs'}"
    return Relation(role, group.title, f"/failures/{quote(fingerprint, safe='')}")


def _batch_relation(services: VisitorServices, batch_id: str) -> Relation:
    with services.store.read() as tx:
        batch = BatchQueries(tx).get_batch(batch_id)
    if batch is None:
        return Relation("batch", batch_id, jobs_link(f"batch:{batch_id}"))
    return Relation("batch", batch.name or batch_id, f"/batches/{batch_id}")


def _operations(story: JobStory) -> Iterator[Relation]:
    for operation in _event_values(story, "operation"):
        yield Relation("operation", operation, f"/operations/{operation}")


def _children(services: VisitorServices, story: JobStory) -> Iterator[Relation]:
    with services.store.read() as tx:
        ids = JobQueries(tx).find_jobs_by_key(f"{story.job.id}:", MAX_CHILDREN)
        children = [JobQueries(tx).get_job(job_id) for job_id in ids]
    for child in children:
        if child is not None and services.owner in (None, child.owner):
            yield Relation("made", f"{child.kind} {child.state}", f"/jobs/{child.id}")


def _event_values(story: JobStory, name: str) -> Iterable[str]:
    """Return the different values of a field in the events of a job, in order."""
    values = [event.data.get(name) for event in story.events]
    return dict.fromkeys(str(value) for value in values if value)


# --- Batches ---

BATCH_PAGE = 50
MEMBERS = 50
BATCH_BADGES = {
    BatchState.PROCESSING: Badge("play", "processing", "busy"),
    BatchState.READY: Badge("check", "ready", "good"),
    BatchState.PARTIAL: Badge("contrast", "partial", "warn"),
    BatchState.FAILED: Badge("x", "failed", "bad"),
    BatchState.EXPIRED: Badge("hourglass", "expired", "calm"),
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

    @screen("/batches", MenuEntry("", 6, "batches", "Batches", "boxes"))
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
                "members": job_list_rows(services, members, now, root),
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
    parts = [f"{counts.succeeded:,} of {counts.total:,} succeeded"]
    if counts.dead:
        parts.append(f"{counts.dead:,} dead")
    if counts.cancelled:
        parts.append(f"{counts.cancelled:,} cancelled")
    if counts.unfinished:
        parts.append(f"{counts.unfinished:,} not finished")
    return ", ".join(parts)


def _state_counts(batch: Batch, root: str) -> list[tuple[str, int, str]]:
    return [
        (state, getattr(batch.counts, state), _members_link(root, batch.id, f"state:{state}"))
        for state in MEMBER_TONES
    ]


def _members_link(root: str, batch_id: str, condition: str) -> str:
    return f"{root}/jobs?filter={quote(f'batch:{batch_id} {condition}')}"

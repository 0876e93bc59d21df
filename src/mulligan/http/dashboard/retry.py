"""Manual retry of a job with changes: editable fields, preview, and the form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastapi import Request, Response

from mulligan.access.keys import Role
from mulligan.core.durations import Micros, parse_seconds, to_micros
from mulligan.core.errors import MulliganError, NotFound, Refused
from mulligan.core.format import format_duration, format_time
from mulligan.core.job import Job, JobRow, State
from mulligan.guards.queries import GuardQueries
from mulligan.http.dashboard.renderer import JobStory, Renderer, form_route, load_story, screen
from mulligan.http.dashboard.view_models import job_badge
from mulligan.http.services import VisitorServices
from mulligan.jobs.preconditions import redact_value
from mulligan.jobs.view import load_limit_state
from mulligan.jobs.why import derive_phase
from mulligan.manifest.declared import load_kinds
from mulligan.retries.policy import Policy
from mulligan.storage.base import Transaction
from mulligan.worker.queries import WorkerQueries

# --- Editable fields ---


class EditableField(NamedTuple):
    """A payload field that people may change before a retry."""

    name: str
    text: str  # empty if it must not be shown
    value: Any
    visible: bool


def load_editable_fields(tx: Transaction, job: Job) -> list[EditableField]:
    """Load the payload fields that the kind declares as editable."""
    spec = load_kinds(tx).get(job.kind)
    if spec is None:
        return []
    payload = job.payload if isinstance(job.payload, Mapping) else {}
    return [_field(name, payload.get(name)) for name in spec.editable]


def _field(name: str, value: Any) -> EditableField:
    visible = redact_value(name, value) == value
    text = _to_text(value) if visible else ""
    return EditableField(name, text, value, visible)


def _to_text(value: Any) -> str:
    """Format a value for an input: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed_fields(
    fields: list[EditableField], form: Mapping[str, str], prefix: str = ""
) -> dict[str, Any]:
    """Return the values of fields that the form changed."""
    changes = {}
    for field in fields:
        text = form.get(prefix + field.name)
        if text is not None and text != field.text:
            changes[field.name] = _parse_value(text, field.value)
    return changes


def _parse_value(text: str, before: Any) -> Any:
    """Parse an input: a string stays a string, anything else is JSON if it is valid."""
    if isinstance(before, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- Preview in sentences ---

RETRYABLE_STATES = (State.DEAD, State.PARKED, State.CANCELLED)


def describe_retry(
    services: VisitorServices,
    job: Job,
    row: JobRow,
    overrides: dict[str, Any] | None = None,
    at: float | datetime | None = None,
) -> list[str]:
    """Say what a manual retry would do. Empty if the state of the job does not allow one."""
    if job.state not in RETRYABLE_STATES:
        return []
    try:
        preview = services.jobs.preview_retry(
            job.id, overrides=overrides, at=at, owner=services.owner
        )
    except MulliganError as refused:
        return [f"A retry would be refused: {refused}"]
    if preview.refused:
        return [f"A retry would be refused: {_join_errors(preview.refused)}"]
    warnings = [f"Warning: {warning}" for warning in preview.warnings]
    return [*warnings, *_retry_sentences(services, job, row, overrides or {}, at)]


def _join_errors(errors: Iterable[MulliganError]) -> str:
    return "; ".join(str(error) for error in errors)


def _retry_sentences(
    services: VisitorServices,
    job: Job,
    row: JobRow,
    overrides: dict[str, Any],
    at: float | datetime | None,
) -> Iterator[str]:
    retries = _describe_retries(services, row, overrides)
    yield f"A retry runs it {_describe_start(at)}{retries}. Its history is kept."
    queue = str(overrides.get("queue") or job.queue)
    why = _describe_obstacle(services, row._replace(queue=queue))
    if why:
        yield f"It would wait now: {why}."
    if job.token:
        times = "once" if job.token == 1 else f"{job.token} times"
        yield f"It ran {times} before, so its side effects may happen again."
    finished = [step.name for step in services.jobs.steps(job.id) if step.state == "done"]
    if finished:
        noun = "step is" if len(finished) == 1 else "steps are"
        yield f"{len(finished)} finished {noun} not called again."
    if job.cost:
        yield f"Its cost so far: {job.cost:g}."


def _describe_start(at: float | datetime | None) -> str:
    if at is None:
        return "as soon as a worker is free"
    if isinstance(at, datetime):
        return f"not before {format_time(to_micros(at))}"
    return f"in {format_duration(at)}"


def _describe_retries(services: VisitorServices, row: JobRow, overrides: dict[str, Any]) -> str:
    """Say how many fresh retries the policy allows, and how far apart."""
    policy = Policy.from_json(row.policy) if row.policy else None
    try:
        found = services.policy.explain(
            row.kind,
            queue=overrides.get("queue") or row.queue,
            policy=policy,
            max_retries=overrides.get("max_retries", row.max_retries),
        )
    except NotFound:
        return ""
    limit = found.field("max_retries").value
    if not limit:
        return ", without retries"
    retries = "1 fresh retry" if limit == 1 else f"{limit:,} fresh retries"
    return f", with {retries} ({found.field('backoff').value.describe()})"


def _describe_obstacle(services: VisitorServices, row: JobRow) -> str:
    """Return why such a job would have to wait if it were due now, or an empty string."""
    with services.store.read() as tx:
        now: Micros = tx.now()
        queued = row._replace(state=State.QUEUED, run_at=now)
        gates = GuardQueries(tx).list_gates()
        live_kinds = WorkerQueries(tx).live_kinds()
        phase, why = derive_phase(queued, gates, now, live_kinds, load_limit_state(tx, now))
    return "" if phase == "ready" else why


# --- The form ---

OPTIONS = ("max_retries", "queue", "priority", "timeout")
PAYLOAD_PREFIX = "payload."
MAX_DIGITS = 9


class EditScreens:
    """The form to retry a job with changes."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/jobs/{job_id}/edit")
    async def form(self, request: Request, job_id: str) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            story = load_story(services, job_id)
            preview = describe_retry(services, story.job, story.row)
            return {**_form_page(services, story, {}), "retry_preview": preview}

        values = await self._renderer.read(request, load)
        return self._renderer.page(request, "retry.html", "jobs", **values)

    @form_route("/jobs/{job_id}/edit")
    async def submit(self, request: Request, job_id: str) -> Response:
        """Show what the form would change; with its field `do`, retry the job."""

        def work(services: VisitorServices, form: dict[str, str]) -> dict[str, Any] | str:
            story = load_story(services, job_id)
            if not form.get("do"):
                return _preview_page(services, story, form)
            job = services.jobs.retry(
                job_id,
                reason=form.get("reason", ""),
                owner=services.owner,
                **_retry_options(services, story, form),
            )
            return f"Retried: generation {job.generation} starts. {job.why}"

        try:
            result = await self._renderer.submit(request, work, Role.OPERATOR)
        except MulliganError as refused:
            text = f"Not done: {refused}"
            return self._renderer.redirect(request, f"/jobs/{job_id}", text, "bad")
        if isinstance(result, str):
            return self._renderer.redirect(request, f"/jobs/{job_id}", result)
        return self._renderer.page(request, "retry.html", "jobs", still=True, **result)


def _form_page(
    services: VisitorServices, story: JobStory, form: Mapping[str, str]
) -> dict[str, Any]:
    job = story.job
    current = {
        "max_retries": job.max_retries,
        "queue": job.queue,
        "priority": job.priority,
        "timeout": _timeout(story),
    }
    options = []
    for name in OPTIONS:
        current_value = "" if current[name] is None else current[name]
        options.append((name, form.get(name, ""), current_value))
    payload = []
    for field in _fields(services, job):
        text = form.get(PAYLOAD_PREFIX + field.name, field.text)
        payload.append((field.name, text, field.visible))
    return {
        "job": job,
        "title": services.jobs.titles([job])[0] or job.kind,
        "badge": job_badge(job),
        "may_retry": job.state in RETRYABLE_STATES,
        "options": options,
        "payload": payload,
        "at": form.get("at", ""),
        "reason": form.get("reason", ""),
        "changes": [],
        "is_preview": False,
        "error": "",
    }


def _timeout(story: JobStory) -> str:
    timeout = story.row.timeout
    return "" if timeout is None else format_duration(timeout / 1_000_000)


def _preview_page(
    services: VisitorServices, story: JobStory, form: Mapping[str, str]
) -> dict[str, Any]:
    page = _form_page(services, story, form)
    try:
        options = _retry_options(services, story, form)
        preview = services.jobs.preview_retry(story.job.id, owner=services.owner, **options)
    except MulliganError as refused:
        return {**page, "error": str(refused), "retry_preview": []}
    if preview.refused:
        reasons = _join_errors(preview.refused)
        return {
            **page,
            "error": f"A retry with these changes would be refused: {reasons}",
            "changes": _wanted_changes(story, options["overrides"] or {}),
            "retry_preview": [],
        }
    return {
        **page,
        "changes": [
            (name, _change_text(change["before"]), _change_text(change["after"]))
            for name, change in preview.changes.items()
        ],
        "is_preview": True,
        "retry_preview": describe_retry(services, story.job, story.row, **options),
    }


def _wanted_changes(story: JobStory, overrides: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what a refused form would have changed."""
    payload = story.job.payload if isinstance(story.job.payload, Mapping) else {}
    changes = []
    for name, value in overrides.items():
        if name != "payload":
            changes.append(
                (name, _change_text(getattr(story.job, name, None)), _change_text(value))
            )
    for name, value in overrides.get("payload", {}).items():
        before = redact_value(name, payload.get(name))
        changes.append((f"payload.{name}", _change_text(before), _change_text(value)))
    return changes


def _change_text(value: Any) -> str:
    return "–" if value is None else _to_text(value)


# --- Parsing the form ---


def _retry_options(
    services: VisitorServices, story: JobStory, form: Mapping[str, str]
) -> dict[str, Any]:
    overrides = _overrides(services, story.job, form)
    return {"overrides": overrides or None, "at": parse_start(form.get("at", ""))}


def _overrides(services: VisitorServices, job: Job, form: Mapping[str, str]) -> dict[str, Any]:
    overrides: dict[str, Any] = {
        name: _parse_option(name, form[name]) for name in OPTIONS if form.get(name)
    }
    payload = changed_fields(_fields(services, job), form, PAYLOAD_PREFIX)
    if payload:
        overrides["payload"] = payload
    return overrides


def _fields(services: VisitorServices, job: Job) -> list[EditableField]:
    with services.store.read() as tx:
        return load_editable_fields(tx, job)


def _parse_option(name: str, text: str) -> Any:
    if name == "queue":
        return text
    if name == "timeout":
        length = parse_seconds(text)
        if length is None:
            message = f"timeout: invalid duration {text!r:.40}. Use 30s, 5m or 2h."
            raise Refused(message)
        return length
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
        message = f"{name}: {text!r:.40} is not a whole number"
        raise Refused(message)
    return int(text)


def parse_start(text: str) -> float | datetime | None:
    """Parse `30m` or `2026-11-17 03:00`. Times without a zone are UTC."""
    if not text:
        return None
    length = parse_seconds(text)
    if length is not None:
        return length
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"at: invalid time {text!r:.40}. Use 30m, 2h or 2026-11-17 03:00 (UTC)."
        raise Refused(message) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)

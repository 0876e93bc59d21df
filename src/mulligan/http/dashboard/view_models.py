"""View models: jobs, attempts, events and filters as the templates print them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from mulligan.batches.queries import BatchQueries
from mulligan.core.attempt import Ended
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.event import Event
from mulligan.core.format import format_duration, format_time
from mulligan.core.ids import LENGTH
from mulligan.core.job import COUNT_CAP, AttemptRow, Job, State
from mulligan.failures.redact import scrub
from mulligan.http.dashboard.charts import timeline
from mulligan.http.dashboard.renderer import JobStory
from mulligan.http.services import VisitorServices
from mulligan.jobs.queries import JobQueries


class Badge(NamedTuple):
    """A state as an icon, a word and a tone. Never by colour alone, for colour-blind people."""

    icon: str
    word: str
    tone: str


BADGES = {
    "ready": Badge("○", "ready", "calm"),
    "scheduled": Badge("◷", "scheduled", "calm"),
    "backing_off": Badge("↻", "retrying soon", "warn"),
    "held": Badge("‖", "held", "warn"),
    "limited": Badge("≡", "limited", "calm"),
    "over_budget": Badge("≡", "over budget", "warn"),
    "no_worker": Badge("?", "no worker", "warn"),
    "running": Badge("▶", "running", "busy"),
    "stopping": Badge("◼", "stopping", "warn"),
    "queued": Badge("○", "queued", "calm"),
    "parked": Badge("!", "parked", "warn"),
    "succeeded": Badge("✓", "succeeded", "good"),
    "dead": Badge("✕", "dead", "bad"),
    "cancelled": Badge("⊘", "cancelled", "calm"),
}
OPEN = Badge("⊗", "open", "bad")  # an open circuit breaker: no calls pass
RECOVERING = Badge("↗", "recovering", "warn")
SNOOZED = Badge("◷", "snoozed", "calm")  # snoozed or held: it waits, but nothing failed


class TimeLabel(NamedTuple):
    """A time for people: ISO 8601, in full, and relative to now."""

    iso: str
    full: str
    ago: str


class JobListRow(NamedTuple):
    """One job in a table."""

    id: str
    link: str
    badge: Badge
    kind: str
    queue: str
    attempt: int
    code: str
    why: str
    progress: int | None
    at: TimeLabel


def time_label(at: Micros, now: Micros) -> TimeLabel:
    """Describe a time relative to now."""
    full = format_time(at)
    return TimeLabel(full.replace(" UTC", "Z").replace(" ", "T"), full, _relative(at, now))


def optional_time_label(at: datetime | None, now: Micros) -> TimeLabel | None:
    """Describe a time relative to now, if there is one."""
    return None if at is None else time_label(to_micros(at), now)


def _relative(at: Micros, now: Micros) -> str:
    seconds = (now - at) / SECOND
    if seconds < -1:
        return f"in {format_duration(-seconds)}"
    if seconds < 1:
        return "just now"
    return f"{format_duration(int(seconds))} ago"


def format_count(count: int) -> str:
    """Format a count that stops at COUNT_CAP."""
    return f"{COUNT_CAP:,}+" if count >= COUNT_CAP else f"{count:,}"


# --- Jobs ---


def job_badge(job: Job) -> Badge:
    """Return the badge of a job's phase."""
    if job.phase == "backing_off" and job.error is None:
        return SNOOZED
    return BADGES.get(job.phase) or BADGES[job.state]


def changed_at(job: Job) -> datetime:
    """Return when the job last changed its state."""
    return job.finished_at or job.started_at or job.created_at


def job_progress(job: Job) -> int | None:
    """Return the progress of a running job in percent, or None."""
    if job.progress is None or job.state is not State.RUNNING:
        return None
    return round(job.progress * 100)


def job_list_row(job: Job, now: Micros, root: str = "") -> JobListRow:
    """Build the row of a job for a table."""
    return JobListRow(
        id=job.id,
        link=f"{root}/jobs/{job.id}",
        badge=job_badge(job),
        kind=job.kind,
        queue=job.queue,
        attempt=job.attempt,
        code="" if job.error is None else str(job.error.get("code", "")),
        why=_short_why(job),
        progress=job_progress(job),
        at=time_label(to_micros(changed_at(job)), now),
    )


def _short_why(job: Job) -> str:
    """Shorten the `why` sentence: the table has a time column, and the job's page has the rest."""
    if job.state is State.SUCCEEDED and job.failures + job.losses:
        return f"recovered: attempt {job.attempt} succeeded"
    if job.finished_at is not None:
        return job.why.partition(": ")[2] or job.why
    if job.phase in {"backing_off", "scheduled"}:
        return job.why.rpartition("; ")[0] or job.why
    if job.phase == "running":
        return f"attempt {job.attempt}"
    return job.why


def job_page(story: JobStory, *, private: bool) -> dict[str, Any]:
    """Build the context of a job's page. `private`: with the private part of its failures."""
    job = story.job
    return {
        "job": job,
        "badge": job_badge(job),
        "facts": [(name, value) for name, value in _facts(story) if value not in ("", None)],
        "error": job.error,
        "choices": json.loads(story.row.choices or "[]"),
        "payload": _pretty_json(job.payload),
        "result": None if job.result is None else _pretty_json(job.result),
        "timeline": timeline(story),
        "attempts": [_attempt(row, private=private) for row in reversed(story.attempts)],
        "events": [event_row(event) for event in story.events],
        "kind_link": _jobs_link(f"kind:{job.kind}"),
    }


def _facts(story: JobStory) -> Iterator[tuple[str, str | TimeLabel | None]]:
    job = story.job
    row = story.row
    yield "queue", job.queue
    yield "owner", job.owner
    yield "priority", str(job.priority)
    yield "attempt", f"{job.attempt} of generation {job.generation}"
    yield "failures", str(job.failures)
    yield "losses", str(job.losses)
    yield "uses", ", ".join(job.uses)
    yield "unique key", job.unique_key
    if row.progress is not None:
        yield "progress", f"{row.progress:.0%} {row.progress_message}".strip()
    times = {
        "created": row.created_at,
        "due": row.run_at,
        "started": row.started_at,
        "ended": row.finished_at,
        "deadline": row.deadline_at,
    }
    for name, at in times.items():
        if at is not None:
            yield name, time_label(at, story.now)


def _attempt(row: AttemptRow, *, private: bool) -> dict[str, Any]:
    evidence = json.loads(row.evidence or "{}")
    return {
        "number": row.attempt,
        "generation": row.generation,
        "ended": row.ended,
        "tone": ATTEMPT_TONES.get(row.ended, "calm"),
        "started": format_time(row.started_at),
        "duration": format_duration(max(0, row.ended_at - row.started_at) / SECOND),
        "code": row.code or "",
        "cls": row.cls or "",
        "rule": row.rule or "",
        "public": row.public or "",
        "reason": row.reason,
        "evidence": [(name, str(value)) for name, value in evidence.items()],
        "worker": row.worker,
        "notes": _attempt_notes(json.loads(row.judged or "{}")),
        "token": row.token,
        "private": private_fields(json.loads(row.private or "{}")) if private else [],
    }


def _attempt_notes(judged: Mapping[str, Any]) -> list[str]:
    """Return notes about other rules, shadow rules, and how the next attempt differs."""
    notes = []
    if judged.get("also"):
        notes.append(f"other rules that matched: {', '.join(judged['also'])}")
    shadow = judged.get("shadow")
    if shadow:
        code = f"{shadow['code']} ({shadow['class']})"
        notes.append(f"shadow rule {shadow['rule']} would classify it as {code}")
    policy = judged.get("shadow_policy")
    if policy:
        notes.append(f"shadow policy would decide: {policy.get('reason') or policy.get('verb')}")
    changes = judged.get("then") or {}
    notes += [f"the next attempt uses {name} {value}" for name, value in changes.items()]
    return notes


ATTEMPT_TONES: dict[str, str] = {
    Ended.RETURNED: "good",
    Ended.FAILED: "bad",
    Ended.LOST: "bad",
    Ended.REFUSED: "bad",
    Ended.RETRY: "warn",
    Ended.SNOOZED: "calm",
    Ended.PARKED: "warn",
    Ended.HELD: "warn",
}
PRIVATE_FIELDS = ("message", "detail", "stderr", "trace")


def private_fields(private: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the private part of a failure, in a fixed order."""
    return [(name, str(private[name])) for name in PRIVATE_FIELDS if private.get(name)]


def _pretty_json(value: Any) -> str:
    """Format JSON with secrets masked: a payload may contain passwords."""
    return scrub(json.dumps(value, indent=2, ensure_ascii=False))


# --- Events ---

# Fields of an event's data that name its subject, if it has no job.
SUBJECT_FIELDS = (
    "queue",
    "dependency",
    "kind",
    "fingerprint",
    "operation",
    "schedule",
    "worker",
    "subscription",
    "alert",
    "rule",
)
UNCHANGED_FIELDS = ("reason", "actor")  # shown elsewhere, so not as a change
PLAUSIBLE_TIMES = range(10**15, 10**16)  # microseconds since 1970: years 2001 to 2286


def event_row(event: Event) -> dict[str, Any]:
    """Build the row of an event for a table."""
    data = event.data
    return {
        "id": event.id,
        "at": format_time(event.at),
        "type": event.type,
        "attempt": event.attempt,
        "actor": event.actor,
        "job": event.job_id,
        "batch": None if event.job_id else event.batch_id,
        "subject": next((str(data[name]) for name in SUBJECT_FIELDS if data.get(name)), ""),
        "owner": event.owner,
        "details": _event_details(data),
    }


def _event_details(data: Mapping[str, Any]) -> str:
    values = [data.get(name) for name in ("code", "reason", "choice")]
    return " · ".join(str(value) for value in values if value)


def format_value(value: Any) -> str:
    """Format a value of an event's data for people. Numbers that look like times become times."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value in PLAUSIBLE_TIMES:
        return format_time(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def event_changes(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what an event changed as (name, before, after)."""
    before = _mapping(data.get("before"))
    after = _mapping(data.get("after"))
    changes = [
        (name, format_value(before.get(name)), format_value(after.get(name)))
        for name in {**before, **after}
        if name not in UNCHANGED_FIELDS
    ]
    for name, value in _mapping(data.get("changes")).items():
        change = _mapping(value)
        changes.append(
            (name, format_value(change.get("before")), format_value(change.get("after")))
        )
    return [change for change in changes if change[1] != change[2]]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- Filters ---


class Chip(NamedTuple):
    """A part of a filter, with the link that removes or chooses it."""

    text: str
    link: str
    here: bool


def split_filter(text: str) -> list[str]:
    """Split a filter into its parts, with their quotes. A filter with an open quote is one part."""
    try:
        return shlex.split(text, posix=False)
    except ValueError:
        return [text] if text else []


def filter_chips(path: str, text: str) -> list[Chip]:
    """Return a chip per part of a filter; its link removes that part."""
    parts = split_filter(text)
    chips = []
    for index, part in enumerate(parts):
        others = parts[:index] + parts[index + 1 :]
        chips.append(Chip(part, filter_link(path, others), True))
    return chips


def choice_chips(path: str, text: str, field: str, values: Iterable[str]) -> list[Chip]:
    """Return a chip per value of one field; the first one, "all", removes the field."""
    parts = split_filter(text)
    others = [part for part in parts if not part.startswith(f"{field}:")]
    current = next((part for part in parts if part.startswith(f"{field}:")), "")
    chips = [Chip("all", filter_link(path, others), current == "")]
    for value in values:
        choice = f"{field}:{value}"
        chips.append(Chip(str(value), filter_link(path, [choice, *others]), choice == current))
    return chips


def filter_link(path: str, parts: Iterable[str]) -> str:
    """Return the address of a list with a filter of these parts."""
    text = " ".join(parts)
    return f"{path}?{urlencode({'filter': text})}" if text else path


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
        group = fingerprints[-1]
        yield Relation("died of", group, f"/failures/{quote(group, safe='')}")
    for key in story.job.uses:
        yield Relation("uses", key, "/dependencies")


def _batch_relation(services: VisitorServices, batch_id: str) -> Relation:
    with services.store.read() as tx:
        batch = BatchQueries(tx).get_batch(batch_id)
    if batch is None:
        return Relation("batch", batch_id, _jobs_link(f"batch:{batch_id}"))
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
    return dict.fromkeys(str(event.data[name]) for event in story.events if event.data.get(name))


def _jobs_link(text: str) -> str:
    return f"/jobs?filter={quote(text)}"

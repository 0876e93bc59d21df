"""View models: jobs, attempts, events and filters as the templates print them."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fastapi import Response

from mulligan.core.attempt import Ended
from mulligan.core.durations import SECOND, Micros, to_micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import (
    cut_end,
    encode_text,
    format_actor,
    format_duration,
    format_size,
    format_time,
)
from mulligan.core.ids import shorten_id
from mulligan.core.job import COUNT_CAP, AttemptRow, Job, State
from mulligan.failures.groups import describe_exception, parse_trace
from mulligan.failures.redact import scrub
from mulligan.http.dashboard.charts import timeline
from mulligan.http.dashboard.renderer import JobStory
from mulligan.http.services import VisitorServices
from mulligan.notifications.sentences import describe_event


class Badge(NamedTuple):
    """A state as an icon, a word and a tone. Never by colour alone, for colour-blind people."""

    icon: str
    word: str
    tone: str


BADGES = {
    "ready": Badge("circle", "ready", "calm"),
    "scheduled": Badge("clock", "scheduled", "calm"),
    "backing_off": Badge("rotate-cw", "retrying", "warn"),
    "waiting": Badge("clock", "waiting", "calm"),
    "held": Badge("pause", "held", "warn"),
    "limited": Badge("gauge", "limited", "calm"),
    "over_budget": Badge("gauge", "over budget", "warn"),
    "no_worker": Badge("circle-question-mark", "no worker", "warn"),
    "running": Badge("play", "running", "busy"),
    "stopping": Badge("square", "stopping", "warn"),
    "queued": Badge("circle", "queued", "calm"),
    "parked": Badge("hand", "parked", "warn"),
    "succeeded": Badge("check", "succeeded", "good"),
    "dead": Badge("x", "dead", "bad"),
    "cancelled": Badge("ban", "cancelled", "calm"),
}
DOWN = Badge("unplug", "down", "bad")  # an open circuit breaker: no calls pass
RECOVERING = Badge("trending-up", "recovering", "warn")
SNOOZED = Badge("clock", "snoozed", "calm")  # snoozed or held: it waits, but nothing failed


class TimeLabel(NamedTuple):
    """A time for people: ISO 8601, in full, and relative to now."""

    iso: str
    full: str
    ago: str


class JobListRow(NamedTuple):
    """One job in a table."""

    id: str
    link: str
    short_id: str
    badge: Badge
    kind: str
    title: str
    queue: str
    owner: str
    attempt: str  # "2/4" if the number of attempts is limited
    ran: str  # how long its last attempt ran, or runs
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

MAX_WHY = 100  # characters in a table


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


def job_list_rows(
    services: VisitorServices, jobs: Sequence[Job], now: Micros, root: str = ""
) -> list[JobListRow]:
    """Build the rows of jobs for a table."""
    titles = services.jobs.titles(jobs)
    pairs = zip(jobs, titles, strict=True)
    return [job_list_row(job, title, now, root) for job, title in pairs]


def job_list_row(job: Job, title: str, now: Micros, root: str) -> JobListRow:
    """Build the row of a job for a table."""
    code = ""
    if job.error is not None and job.state is not State.RUNNING:
        code = str(job.error.get("code", ""))
    return JobListRow(
        id=job.id,
        link=f"{root}/jobs/{job.id}",
        short_id=shorten_id(job.id),
        badge=job_badge(job),
        kind=job.kind,
        title=title,
        queue=job.queue,
        owner=job.owner,
        attempt=_format_attempt(job),
        ran=_format_run(job, now),
        code=code,
        why=cut_end(_short_why(job), MAX_WHY),
        progress=job_progress(job),
        at=time_label(to_micros(changed_at(job)), now),
    )


def _format_attempt(job: Job) -> str:
    if not job.attempt:
        return ""
    if job.max_retries is None:
        return str(job.attempt)
    return f"{job.attempt}/{max(job.attempt, job.max_retries + 1)}"


def _format_run(job: Job, now: Micros) -> str:
    """Return how long the last attempt ran: 0.4 s. Empty for a job that waits."""
    if job.started_at is None or job.state in {State.QUEUED, State.PARKED}:
        return ""
    end = now if job.finished_at is None else to_micros(job.finished_at)
    return format_duration(max(0, end - to_micros(job.started_at)) / SECOND)


_ADVICE = re.compile(r"; to retry such errors, .*")


def without_advice(why: str) -> str:
    """Return why a job is not retried, without how to change that: the rule's page says it."""
    return _ADVICE.sub("", why)


def _failure_before(job: Job) -> str:
    """Name the code with which the attempt before the running one failed."""
    code = "" if job.error is None else str(job.error.get("code", ""))
    return f"after {code}" if code else ""


_SINCE = re.compile(r" since \S+ \S+ UTC")


def _short_why(job: Job) -> str:
    """Shorten the `why` sentence: the table has a time column, and the job's page has the rest."""
    if job.state is State.SUCCEEDED:
        recovered = job.failures + job.losses > 0
        return f"recovered: attempt {job.attempt} succeeded" if recovered else ""
    if job.finished_at is not None:
        return without_advice(job.why.partition(": ")[2] or job.why)
    if job.phase in {"backing_off", "scheduled", "waiting"}:
        return job.why.rpartition("; ")[0] or job.why
    if job.phase == "running":
        return job.progress_message or _failure_before(job)
    # A hold: what closes it, without since when and what an operator may type.
    return _SINCE.sub("", job.why.partition(";")[0])


def job_page(story: JobStory, *, private: bool) -> dict[str, Any]:
    """Build the context of a job's page. `private`: with the private part of its failures."""
    job = story.job
    result = None if job.result is None else _pretty_json(job.result)
    facts = [(name, value) for name, value in _facts(story) if value not in ("", None)]
    return {
        "job": job,
        "badge": job_badge(job),
        "facts": facts,
        "error": job.error,
        "choices": json.loads(story.row.choices or "[]"),
        "payload": _pretty_json(job.payload),
        "result": result,
        "timeline": timeline(story),
        "attempts": _attempts(story, private=private),
        "events": [_job_event(event, story.now) for event in reversed(story.events)],
        "progress": job_progress(job),
        "progress_message": job.progress_message,
        "kind_link": jobs_link(f"kind:{job.kind}"),
    }


def _attempts(story: JobStory, *, private: bool) -> list[dict[str, Any]]:
    """Return the attempts, newest first. Only those that ran are numbered."""
    numbers: Counter[int] = Counter()
    found = []
    for row in story.attempts:
        numbers[row.generation] += row.has_run
        found.append(_attempt(row, numbers[row.generation], private=private))
    return found[::-1]


def _event_text(event: Event) -> str:
    """Describe an event of the page's own job: its kind need not be named."""
    if event.type == EventType.JOB_STARTED:
        return f"Attempt {event.attempt} started."
    text = describe_event(event).removeprefix(f"{event.data.get('kind', '')} ")
    text = text.removeprefix("was ").removeprefix("is ")
    return text[:1].upper() + text[1:]


def _job_event(event: Event, now: Micros) -> dict[str, Any]:
    return {
        "at": time_label(event.at, now),
        "type": event.type,
        "text": _event_text(event),
        "attempt": event.attempt,
        "by": format_actor(event.actor) if event.actor else "",
    }


def _facts(story: JobStory) -> Iterator[tuple[str, str | TimeLabel | None]]:
    job = story.job
    row = story.row
    if job.attempt:
        yield "attempts", str(_count_runs(story))
    yield "generation", str(job.generation) if job.generation > 1 else ""
    yield "failures", str(job.failures) if job.failures else ""
    yield "losses", str(job.losses) if job.losses else ""
    yield "max retries", "" if job.max_retries is None else str(job.max_retries)
    yield "priority", str(job.priority) if job.priority else ""
    yield "uses", ", ".join(job.uses)
    yield "unique key", job.unique_key
    yield "cost", f"{job.cost:g}" if job.cost else ""
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


def _count_runs(story: JobStory) -> int:
    """Count the attempts of this generation that ran. One that runs has no row yet."""
    runs = 0
    unstarted = 0
    for row in story.attempts:
        if row.generation == story.job.generation:
            runs += row.has_run
            unstarted += not row.has_run
    return max(runs, story.job.attempt - unstarted)


def _attempt(row: AttemptRow, number: int, *, private: bool) -> dict[str, Any]:
    evidence = json.loads(row.evidence or "{}")
    private_part = json.loads(row.private or "{}") if private else {}
    return {
        "number": number,
        "generation": row.generation,
        "has_run": row.has_run,
        "ended": row.ended,
        "tone": ATTEMPT_TONES.get(row.ended, "calm"),
        "started": time_label(row.started_at, row.started_at),
        "duration": format_duration(max(0, row.ended_at - row.started_at) / SECOND),
        "code": row.code or "",
        "cls": row.cls or "",
        "rule": row.rule or "",
        "public": row.public or "",
        "reason": without_advice(row.reason),
        "evidence": evidence_items(evidence),
        "worker": row.worker,
        "short_worker": shorten_id(row.worker),
        "notes": _attempt_notes(json.loads(row.judged or "{}")),
        "token": row.token,
        "exception": describe_exception(private_part)[0],
        "trace": trace_parts(private_part),
        "trace_text": str(private_part.get("trace") or ""),
        "private": _other_private_fields(private_part),
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
    Ended.WAITING: "calm",
    Ended.PARKED: "warn",
    Ended.HELD: "warn",
}
BYTE_FIELDS = ("memory_limit", "limit_bytes", "size", "free", "rss")
_SHOWN_APART = ("message", "trace")
PRIVATE_FIELDS = ("runbook", "alarm", "message", "detail", "stderr", "trace")


def private_fields(private: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the private part of a failure, in a fixed order."""
    return [(name, str(private[name])) for name in PRIVATE_FIELDS if private.get(name)]


def _other_private_fields(private: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the private fields that an attempt's page does not show in a place of their own."""
    fields = private_fields(private)
    return [(name, text) for name, text in fields if name not in _SHOWN_APART]


def trace_parts(private: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a trace into lines, frames of the job, and runs of library frames, which are folded."""
    trace = str(private.get("trace") or "")
    parts: list[dict[str, Any]] = []
    for part in parse_trace(trace.split("\n") if trace else ()):
        if isinstance(part, str):
            parts.append({"type": "line", "text": part})
        elif not part.is_library:
            parts.append({"type": "frame", "frame": part})
        elif parts and parts[-1]["type"] == "library":
            parts[-1]["frames"].append(part)
        else:
            parts.append({"type": "library", "frames": [part]})
    return parts


def evidence_items(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the evidence of a failure with numbers for people: 42 MB, not 42491904."""
    return [(name.replace("_", " "), _evidence_text(name, evidence[name])) for name in evidence]


def _evidence_text(name: str, value: Any) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and (name.endswith(("_rss", "_bytes")) or name in BYTE_FIELDS):
        return format_size(value)
    return f"{value:,}" if is_number and value >= 10_000 else format_value(value)


def _pretty_json(value: Any) -> str:
    """Format JSON with secrets masked: a payload may contain passwords."""
    return scrub(json.dumps(value, indent=2, ensure_ascii=False))


# --- Events ---

# Fields of an event's data that name its subject, if it has no job, and where the subject is shown.
SUBJECT_FIELDS = {
    "queue": "/jobs?filter=queue:{}",
    "dependency": "/dependencies/{}",
    "kind": "/jobs?filter=kind:{}",
    "fingerprint": "/failures/{}",
    "operation": "/operations/{}",
    "schedule": "/schedules",
    "worker": "/queues#workers",
    "subscription": "/notifications",
    "alert": "/alerts",
    "rule": "/alerts",
}
SUBJECTS_WITH_IDS = frozenset({"operation", "worker", "subscription"})
UNCHANGED_FIELDS = ("reason", "actor")  # shown elsewhere, so not as a change
PLAUSIBLE_TIMES = range(10**15, 10**16)  # microseconds since 1970: years 2001 to 2286


class EventSubject(NamedTuple):
    """The object that an event is about, as a link. Long ids are shortened."""

    text: str = ""
    short_id: str = ""
    link: str = ""
    title: str = ""


def event_row(event: Event, now: Micros | None = None) -> dict[str, Any]:
    """Build the row of an event for a table. With `now`, it also has the time relative to it."""
    data = event.data
    return {
        "id": event.id,
        "at": format_time(event.at),
        "when": None if now is None else time_label(event.at, now),
        "kind": data.get("kind", ""),
        "short": "" if event.job_id is None else shorten_id(event.job_id),
        "type": event.type,
        "attempt": event.attempt,
        "actor": event.actor,
        "job": event.job_id,
        "subject": _subject(event),
        "owner": event.owner,
        "details": _event_details(data),
    }


def _subject(event: Event) -> EventSubject:
    data = event.data
    if event.job_id:
        kind = str(data.get("kind") or "job")
        return EventSubject(kind, shorten_id(event.job_id), f"/jobs/{event.job_id}", event.job_id)
    if event.batch_id:
        name = str(data.get("name") or "batch")
        link = f"/batches/{event.batch_id}"
        return EventSubject(name, shorten_id(event.batch_id), link, event.batch_id)
    for field, path in SUBJECT_FIELDS.items():
        if data.get(field):
            name = str(data[field])
            link = path.format(quote(name, safe=""))
            if field in SUBJECTS_WITH_IDS:
                return EventSubject(field, shorten_id(name), link, name)
            return EventSubject(name, "", link, field)
    return EventSubject()


def _event_details(data: Mapping[str, Any]) -> str:
    reason = data.get("reason")
    if reason == Ended.RETURNED:  # the type of the event says so
        reason = ""
    values = [data.get("code"), reason, data.get("choice")]
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
    all_before = _mapping(data.get("before"))
    all_after = _mapping(data.get("after"))
    values = []
    for name in {**all_before, **all_after}:
        if name not in UNCHANGED_FIELDS:
            values.append((name, all_before.get(name), all_after.get(name)))
    for name, change in _mapping(data.get("changes")).items():
        pair = _mapping(change)
        values.append((name, pair.get("before"), pair.get("after")))
    changes = []
    for name, value_before, value_after in values:
        before = format_value(value_before)
        after = format_value(value_after)
        if before != after:
            changes.append((name, before, after))
    return changes


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


def needs_no_quotes(name: str) -> bool:
    """True if a value can stand in a filter as it is."""
    return bool(name) and not set(name) & set(" ,\"'\\")


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
    others = []
    chosen = []
    for part in split_filter(text):
        if part.startswith(f"{field}:"):
            chosen.append(part)
        else:
            others.append(part)
    current = chosen[0] if chosen else ""
    chips = [Chip("all", filter_link(path, others), current == "")]
    for value in values:
        choice = f"{field}:{value}"
        chips.append(Chip(str(value), filter_link(path, [choice, *others]), choice == current))
    return chips


def filter_link(path: str, parts: Iterable[str]) -> str:
    """Return the address of a list with a filter of these parts."""
    text = " ".join(parts)
    return f"{path}?{urlencode({'filter': text})}" if text else path


def jobs_link(text: str) -> str:
    """Return the address of the jobs that a filter finds, without the root of the dashboard."""
    return f"/jobs?filter={quote(text)}"


# --- Export ---

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
EXPORT_FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def export_links(address: str) -> dict[str, str]:
    """Return the addresses at which a list is exported, by format."""
    mark = "&" if "?" in address else "?"
    return {name: f"{address}{mark}format={name}" for name in EXPORT_FORMATS}


def export(rows: Sequence[Mapping[str, Any]], name: str, form: str) -> Response:
    """Return rows as a file. Cells that a spreadsheet would run as formulas get an apostrophe."""
    if form == "json":
        text = json.dumps(rows, ensure_ascii=False, indent=2)
    else:
        out = io.StringIO()
        columns = list(rows[0]) if rows else []
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        for row in rows:
            cells = {column: _csv_cell(value) for column, value in row.items()}
            writer.writerow(cells)
        text = out.getvalue()
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    return Response(encode_text(text), media_type=EXPORT_FORMATS[form], headers=headers)


def _csv_cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text

"""Pictures made into words: what the templates print. Nothing here asks a database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from mulligan.core.attempt import Ended
from mulligan.core.event import Event
from mulligan.core.format import duration, moment
from mulligan.core.ids import LENGTH
from mulligan.core.job import SECOND, AttemptRow, Job, Micros, State, to_micros
from mulligan.failures.redact import scrub
from mulligan.http.dashboard.charts import timeline
from mulligan.http.dashboard.renderer import Shown, Story
from mulligan.http.services import CallerServices


class Badge(NamedTuple):
    """A state is an icon and a word, and only then a colour."""

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
OPEN = Badge("⊗", "open", "bad")  # as at any breaker: nothing flows
RECOVERING = Badge("↗", "recovering", "warn")
PUT_OFF = Badge("◷", "put off", "calm")  # snoozed or held: it waits, but nothing failed


class Moment(NamedTuple):
    iso: str
    full: str
    ago: str


class Row(NamedTuple):
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
    at: Moment


def at_moment(at: Micros, now: Micros) -> Moment:
    apart = (now - at) / SECOND
    ago = (
        f"in {duration(-apart)}"
        if apart < -1
        else "just now"
        if apart < 1
        else f"{duration(int(apart))} ago"
    )
    full = moment(at)
    return Moment(full.replace(" UTC", "Z").replace(" ", "T"), full, ago)


def badge_of(job: Job) -> Badge:
    if job.phase == "backing_off" and job.error is None:
        return PUT_OFF
    return BADGES.get(job.phase) or BADGES[job.state]


def changed_at(job: Job) -> datetime:
    return job.finished_at or job.started_at or job.created_at


def row_of(shown: Shown, now: Micros, root: str = "") -> Row:
    job = shown.job
    return Row(
        id=job.id,
        link=f"{root}/jobs/{job.id}",
        badge=badge_of(job),
        kind=job.kind,
        queue=job.queue,
        attempt=job.attempt,
        code="" if job.error is None else str(job.error.get("code", "")),
        why=shown.note if job.phase == "running" and shown.note else _why(job),
        progress=None
        if job.progress is None or job.state is not State.RUNNING
        else round(job.progress * 100),
        at=at_moment(to_micros(changed_at(job)), now),
    )


def _why(job: Job) -> str:
    """The sentence in short: a table has a column for the moment, and the job's own page has the advice."""
    if job.state is State.SUCCEEDED and job.failures + job.losses:
        return f"recovered: attempt {job.attempt} succeeded"
    if job.finished_at is not None:
        return job.why.partition(": ")[2] or job.why
    if job.phase in {"backing_off", "scheduled"}:
        return job.why.rpartition("; ")[0] or job.why
    return f"attempt {job.attempt}" if job.phase == "running" else job.why


def story(found: Story, *, private: bool) -> dict[str, Any]:
    """`private`: with the half of each failure that is not for owners."""
    job = found.job
    return {
        "job": job,
        "badge": badge_of(job),
        "facts": [(name, value) for name, value in _facts(found) if value not in ("", None)],
        "error": job.error,
        "choices": json.loads(found.row.choices or "[]"),
        "payload": _pretty(job.payload),
        "result": None if job.result is None else _pretty(job.result),
        "timeline": timeline(found),
        "attempts": [_attempt(row, private=private) for row in reversed(found.attempts)],
        "events": [event_line(event) for event in found.events],
        "kind_link": f"/jobs?filter={quote(f'kind:{job.kind}')}",
    }


def _facts(found: Story) -> Iterable[tuple[str, Any]]:
    job, row = found.job, found.row
    yield from (("queue", job.queue), ("owner", job.owner), ("priority", str(job.priority)))
    yield from (
        ("attempt", f"{job.attempt} of generation {job.generation}"),
        ("failures", str(job.failures)),
    )
    yield from (
        ("losses", str(job.losses)),
        ("uses", ", ".join(job.uses)),
        ("unique key", job.unique_key),
    )
    if row.progress is not None:
        yield "progress", f"{row.progress:.0%} {row.progress_message}".strip()
    times = (
        ("created", row.created_at),
        ("due", row.run_at),
        ("started", row.started_at),
        ("ended", row.finished_at),
    )
    for name, at in (*times, ("deadline", row.deadline_at)):
        yield name, None if at is None else at_moment(at, found.now)


def _attempt(row: AttemptRow, *, private: bool) -> dict[str, Any]:
    return {
        "number": row.attempt,
        "generation": row.generation,
        "ended": row.ended,
        "tone": TONES.get(row.ended, "calm"),
        "started": moment(row.started_at),
        "ran": duration(max(0, row.ended_at - row.started_at) / SECOND),
        "code": row.code or "",
        "cls": row.cls or "",
        "rule": row.rule or "",
        "public": row.public or "",
        "reason": row.reason,
        "evidence": [
            (name, str(value)) for name, value in json.loads(row.evidence or "{}").items()
        ],
        "worker": row.worker,
        "beside": _beside(json.loads(row.judged or "{}")),
        "token": row.token,
        "private": _private(row) if private else [],
    }


def _beside(judged: Mapping[str, Any]) -> list[str]:
    """What else was said of the failure, and how the next attempt differs."""
    shadow, policy = judged.get("shadow"), judged.get("shadow_policy")
    said = [f"said otherwise: {', '.join(judged['also'])}"] if judged.get("also") else []
    said += (
        [f"in shadow, rule {shadow['rule']} would say {shadow['code']} ({shadow['class']})"]
        if shadow
        else []
    )
    said += (
        [f"the policy in shadow would say: {policy.get('reason') or policy.get('verb')}"]
        if policy
        else []
    )
    said += [
        f"the next attempt has {name} {value}" for name, value in (judged.get("then") or {}).items()
    ]
    return said


TONES: dict[str, str] = {
    Ended.RETURNED: "good",
    Ended.FAILED: "bad",
    Ended.LOST: "bad",
    Ended.REFUSED: "bad",
    Ended.RETRY: "warn",
    Ended.SNOOZED: "calm",
    Ended.PARKED: "warn",
    Ended.HELD: "warn",
}


def event_line(event: Event) -> dict[str, Any]:
    data = event.data
    whom = next((str(data[name]) for name in WHOM if data.get(name)), "")
    return {
        "id": event.id,
        "at": moment(event.at),
        "type": event.type,
        "attempt": event.attempt,
        "actor": event.actor,
        "job": event.job_id,
        "batch": None if event.job_id else event.batch_id,
        "whom": whom,
        "owner": event.owner,
        "news": _news(data),
    }


WHOM = (
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
)  # of what has no job


BESIDE = ("reason", "actor")  # told beside the change already
MOMENTS = range(10**15, 10**16)  # microseconds since 1970, of our days


def shown_value(value: Any) -> str:
    """A value of an event's data as people read it: a moment as one."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int) and value in MOMENTS:
        return moment(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changes_of(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What an event changed: name, before, after. Only what differs."""
    before, after = _mapping(data.get("before")), _mapping(data.get("after"))
    found = [
        (name, shown_value(before.get(name)), shown_value(after.get(name)))
        for name in {**before, **after}
        if name not in BESIDE
    ]
    for name, one in _mapping(data.get("changes")).items():
        said = _mapping(one)
        found.append((name, shown_value(said.get("before")), shown_value(said.get("after"))))
    return [one for one in found if one[1] != one[2]]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _news(data: Mapping[str, Any]) -> str:
    said = (data.get(name) for name in ("code", "reason", "choice"))
    return " · ".join(str(value) for value in said if value)


def _private(row: AttemptRow) -> list[tuple[str, str]]:
    """The half of a failure that is not for owners."""
    private = json.loads(row.private or "{}")
    return [(name, str(private[name])) for name in PRIVATE if private.get(name)]


PRIVATE = ("message", "detail", "stderr", "trace")


def _pretty(value: Any) -> str:
    """Payloads may hold what is nobody's business, and anybody on this machine can open the page."""
    return scrub(json.dumps(value, indent=2, ensure_ascii=False))


# A filter as chips: each part with the address of the list without it, and the states as alternatives.


class Chip(NamedTuple):
    words: str
    link: str  # for a part: the list without it; for an alternative: the list with it
    here: bool


def parts_of(words: str) -> list[str]:
    """As they were written, quotes and all; what cannot be read apart is one part."""
    try:
        return shlex.split(words, posix=False)
    except ValueError:
        return [words] if words else []


def removable(path: str, words: str) -> list[Chip]:
    parts = parts_of(words)
    return [
        Chip(part, listed(path, [*parts[:place], *parts[place + 1 :]]), True)
        for place, part in enumerate(parts)
    ]


def alternatives(path: str, words: str, field: str, values: Iterable[str]) -> list[Chip]:
    """The same filter with another value of one field; the first is none."""
    parts = parts_of(words)
    rest = [part for part in parts if not part.startswith(f"{field}:")]
    now = next((part for part in parts if part.startswith(f"{field}:")), "")
    made = ["", *(f"{field}:{value}" for value in values)]
    return [
        Chip(
            one.partition(":")[2] or "all", listed(path, [one, *rest] if one else rest), one == now
        )
        for one in made
    ]


def listed(path: str, parts: Iterable[str]) -> str:
    words = " ".join(parts)
    return f"{path}?{urlencode({'filter': words})}" if words else path


# What a job is connected with: its batch, its cause, who made it, what it made, what was done with it.

CHILDREN = 20


class Relation(NamedTuple):
    what: str
    words: str
    link: str


def relations(desk: CallerServices, found: Story) -> list[Relation]:
    return [*_before(desk, found), *_around(desk, found), *_after(desk, found)]


def _before(desk: CallerServices, found: Story) -> Iterator[Relation]:
    """A key that begins with the id of a job or a batch was made by it."""
    maker, colon, _ = (found.row.unique_key or "").partition(":")
    if colon and len(maker) == LENGTH and maker.isalnum():
        with desk.store.read() as unit:
            parent, batch = unit.get(maker), unit.batch(maker)
        if parent is not None and desk.owner in (None, parent.owner):
            yield Relation("made by", f"{parent.kind} {parent.id}", f"/jobs/{parent.id}")
        if batch is not None and desk.owner in (None, batch.owner):
            yield Relation("follows batch", batch.name or batch.id, f"/batches/{batch.id}")
    schedules = [
        str(event.data["schedule"]) for event in found.events if event.data.get("schedule")
    ]
    for name in dict.fromkeys(schedules):
        yield Relation("schedule", name, "/schedules")


def _around(desk: CallerServices, found: Story) -> Iterator[Relation]:
    row = found.row
    if row.batch_id is not None:
        with desk.store.read() as unit:
            batch = unit.batch(row.batch_id)
        name = row.batch_id if batch is None or not batch.name else batch.name
        yield Relation(
            "batch",
            name,
            f"/batches/{row.batch_id}" if batch is not None else _jobs(f"batch:{row.batch_id}"),
        )
    group = next((one.fingerprint for one in reversed(found.attempts) if one.fingerprint), None)
    if group is not None and row.state == State.DEAD:
        yield Relation("died of", group, f"/failures/{quote(group, safe='')}")
    yield from (Relation("uses", key, "/dependencies") for key in found.job.uses)


def _after(desk: CallerServices, found: Story) -> Iterator[Relation]:
    operations = [
        str(event.data["operation"]) for event in found.events if event.data.get("operation")
    ]
    for operation in dict.fromkeys(operations):
        yield Relation("operation", operation, f"/operations/{operation}")
    with desk.store.read() as unit:
        children = [unit.get(one) for one in unit.find_keys(f"{found.job.id}:", CHILDREN)]
    for child in children:
        if child is not None and desk.owner in (None, child.owner):
            yield Relation("made", f"{child.kind} {child.state}", f"/jobs/{child.id}")


def _jobs(words: str) -> str:
    return f"/jobs?filter={quote(words)}"

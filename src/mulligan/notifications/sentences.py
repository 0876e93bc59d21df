"""One honest sentence for each thing that people are told, for somebody who is woken by it.

What happened, to how many, why, and what is being done about it. Each text from outside has its own short room, so
that a long one cannot push out what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from mulligan.core.event import Event, EventType
from mulligan.core.format import clock, duration, moment, one_line, span, who
from mulligan.core.job import Micros
from mulligan.notifications.rules import IncidentFacts

NAME, CAUSE, REASON = 40, 80, 100  # characters of each in a sentence
NEEDS_YOU = "nothing more is tried: it needs you"


def sentence(event: Event) -> str:
    """Of any event; of one that nobody has put into words, its name and its reason."""
    say = _SAY.get(event.type)
    told = say(event) if say is not None else f"{event.type}{_because(event)}"
    return told if told.endswith((".", "…", "?", "!")) else f"{told}."


# -- parts ------------------------------------------------------------------------------------------
def short(value: Any, limit: int = NAME) -> str:
    """Any text from outside in a sentence: one line, and no longer than its room."""
    text = one_line("" if value is None else str(value), 4096)
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _kind(event: Event) -> str:
    return short(event.data.get("kind")) or "A job"


def _cause(data: Mapping[str, Any]) -> str:
    """`A service is not available (HTTP_5XX)`."""
    said = short(data.get("message"), CAUSE).rstrip(".")
    code = short(data.get("code"))
    return f"{said} ({code})" if said and code else said or code or "no reason is known"


def _named(event: Event, name: str, else_: str = "?") -> str:
    return short(event.data.get(name)) or else_


def _because(event: Event, limit: int = REASON) -> str:
    reason = short(event.data.get("reason") or event.data.get("note"), limit).rstrip(".")
    return f": {reason}" if reason else ""


def _at(value: Any, beside: Micros) -> str:
    return f"{clock(value, beside)}" if _whole(value) else ""


def _until(event: Event) -> str:
    at = _at(event.data.get("until"), event.at)
    return f" until {at}" if at else ""


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> int:
    return value if _whole(value) else 0


def _people(event: Event) -> str:
    return short(who(event.actor)) if event.actor else "somebody"


# -- jobs -------------------------------------------------------------------------------------------
def _died(event: Event) -> str:
    tried = f" after {event.attempt} attempts" if event.attempt and event.attempt > 1 else ""
    return f"{_kind(event)} died{tried}: {_cause(event.data)}; {NEEDS_YOU}"


def _retry(event: Event) -> str:
    data = event.data
    failures, most = _number(data.get("failures")), data.get("max_retries")
    which = f"retry {failures} of {most}" if failures and _whole(most) else "it is tried again"
    return f"{_kind(event)} failed: {_cause(data)}; {which}{_when(data.get('next_retry_at'), event.at)}"


def _when(value: Any, now: Micros) -> str:
    return f" at {clock(value, now)} (in {span(now, value)})" if _whole(value) else ""


def _snoozed(event: Event) -> str:
    until = _at(event.data.get("next_retry_at"), event.at)
    return f"{_kind(event)} was put off{until and f' until {until}'}{_because(event)}"


def _succeeded(event: Event) -> str:
    tried = f" at attempt {event.attempt}" if event.attempt and event.attempt > 1 else ""
    ran = event.data.get("duration_ms")
    return f"{_kind(event)} succeeded{tried}{f' in {duration(ran / 1000)}' if _whole(ran) else ''}"


def _queued(event: Event) -> str:
    due = event.data.get("run_at")
    later = f", to start at {clock(due, event.at)}" if _whole(due) and due > event.at else ""
    return f"{_kind(event)} was enqueued{later}"


def _parked(event: Event) -> str:
    return f"{_kind(event)} waits for a person to decide{_because(event)}"


def _lost(event: Event) -> str:
    return f"The process or worker under {_kind(event)} died; it goes on in a process of its own"


def _by(verb: str) -> Callable[[Event], str]:
    """What somebody did to a job."""
    return lambda event: f"{_kind(event)} was {verb} by {_people(event)}{_because(event)}"


def _moved(verb: str) -> Callable[[Event], str]:
    return lambda event: f"{_kind(event)} {verb}{_because(event)}"


def _pruned(event: Event) -> str:
    return f"Retention removed {_number(event.data.get('jobs')):,} finished {_kind(event)} jobs"


# -- batches ----------------------------------------------------------------------------------------
def _batch(event: Event) -> str:
    return f"Batch {short(event.data.get('name')) or short(event.batch_id) or '?'}"


def _figures(event: Event) -> str:
    data = event.data
    total, dead, cancelled = (_number(data.get(name)) for name in ("total", "dead", "cancelled"))
    lost = [
        f"{count:,} {word}"
        for count, word in ((dead, "died"), (cancelled, "were cancelled"))
        if count
    ]
    return ", ".join([f"{_number(data.get('succeeded')):,} of {total:,} succeeded", *lost])


def _ended(how: str, then: str = "") -> Callable[[Event], str]:
    return lambda event: f"{_batch(event)} {how}: {_figures(event)}{then}"


def _batch_by(what: str) -> Callable[[Event], str]:
    return lambda event: f"{_batch(event)} {what}{_because(event)}"


# -- what is shared ---------------------------------------------------------------------------------
def _dependency(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"{_named(event, 'dependency', 'Something')} {what}{_until(event)}{_because(event)}"
    )


def _queue(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"Queue {_named(event, 'queue')} was {what} by {_people(event)}{_until(event)}{_because(event)}"
    )


def _held(event: Event) -> str:
    return f"Jobs of kind {_kind(event)} wait{_until(event)}: it is held{_because(event)}"


def _released(event: Event) -> str:
    return f"Kind {_kind(event)} was released by {_people(event)}{_because(event)}"


def _group(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"Failures with {short(event.data.get('code')) or 'one cause'} were {what} by {_people(event)}"
        f"{_until(event)}{_because(event)}"
    )


def _operation(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"The bulk action {_named(event, 'action')} on {short(event.data.get('filter'), 60) or 'many jobs'} "
        f"{what}{_because(event, 60)}"
    )


def _skipped(event: Event) -> str:
    count = _number(event.data.get("count"))
    return f"Schedule {_named(event, 'schedule')} missed {count:,} runs that are not made up for"


def _worker(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"Worker {_named(event, 'worker')} on {_named(event, 'host')} {what}{_because(event)}"
    )


def _subscription(what: str) -> Callable[[Event], str]:
    return lambda event: (
        f"Subscription {_named(event, 'name', _named(event, 'subscription'))} {what}{_because(event)}"
    )


def _alert(event: Event) -> str:
    data = event.data
    if not _number(data.get("jobs")):
        did = short(data.get("did"), CAUSE).rstrip(".")
        return f"Alert {_named(event, 'rule')}{_because(event, 2 * CAUSE)}{f'; done about it: {did}' if did else ''}"
    how_many = f"{_number(data.get('jobs')):,} {_kind(event)} jobs"
    return f"{how_many} died of one cause and none succeeded: {_cause(data)}; the kind is held until you release it"


def _calm(event: Event) -> str:
    about = short(event.data.get("rule") or event.data.get("kind")) or "it"
    return f"The alert {about} is over{_because(event, 2 * CAUSE)}"


_SAY: Mapping[str, Callable[[Event], str]] = {
    EventType.JOB_QUEUED: _queued,
    EventType.JOB_STARTED: lambda event: f"{_kind(event)} began attempt {event.attempt or 1}",
    EventType.JOB_RETRY_SCHEDULED: _retry,
    EventType.JOB_SNOOZED: _snoozed,
    EventType.JOB_SUCCEEDED: _succeeded,
    EventType.JOB_DIED: _died,
    EventType.JOB_CANCELLED: _moved("was cancelled"),
    EventType.JOB_CANCEL_REQUESTED: _by("asked to stop"),
    EventType.JOB_PARKED: _parked,
    EventType.JOB_RELEASED: _moved("goes on"),
    EventType.JOB_LOST: _lost,
    EventType.JOB_RETRIED: _by("retried"),
    EventType.JOB_DISCARDED: _by("given up"),
    EventType.JOB_EDITED: _by("changed"),
    EventType.JOB_PRUNED: _pruned,
    EventType.JOB_STALE_REFUSED: _moved(
        "was reported ended by a worker that had lost it; nothing was changed"
    ),
    EventType.BATCH_SEALED: lambda event: (
        f"{_batch(event)} is complete: {_number(event.data.get('total')):,} jobs"
    ),
    EventType.BATCH_READY: _ended("is ready"),
    EventType.BATCH_PARTIAL: _ended("is only partly done", "; those need you"),
    EventType.BATCH_FAILED: _ended("failed", "; it needs you"),
    EventType.BATCH_RECOVERED: _ended("has recovered"),
    EventType.BATCH_REOPENED: _batch_by("goes on: members were retried"),
    EventType.BATCH_CANCELLED: _batch_by("was cancelled"),
    EventType.BATCH_EXPIRED: _batch_by("has expired; nothing of it begins again"),
    EventType.DEPENDENCY_OPENED: _dependency("is held, and jobs that use it wait"),
    EventType.DEPENDENCY_PROBING: _dependency(
        "is tried with one job, to see whether it answers again"
    ),
    EventType.DEPENDENCY_CLOSED: _dependency("answers again, and jobs that use it go on"),
    EventType.DEPENDENCY_CHANGED: _dependency("has other limits now"),
    EventType.KIND_HELD: _held,
    EventType.KIND_RELEASED: _released,
    EventType.QUEUE_PAUSED: _queue("paused"),
    EventType.QUEUE_RESUMED: _queue("resumed"),
    EventType.QUEUE_CHANGED: _queue("given other limits"),
    EventType.FAILURE_MUTED: _group("muted"),
    EventType.FAILURE_RESOLVED: _group("called resolved"),
    EventType.FAILURE_REOPENED: _group("reopened"),
    EventType.OPERATION_STARTED: _operation("began"),
    EventType.OPERATION_PAUSED: _operation("is paused"),
    EventType.OPERATION_RESUMED: _operation("goes on"),
    EventType.OPERATION_STOPPED: _operation("stopped by itself, because too many failed again"),
    EventType.OPERATION_ABORTED: _operation("was ended"),
    EventType.OPERATION_FINISHED: _operation("is done"),
    EventType.SCHEDULE_SKIPPED: _skipped,
    EventType.SUBSCRIPTION_CREATED: _subscription("was made"),
    EventType.SUBSCRIPTION_CHANGED: _subscription("was changed"),
    EventType.SUBSCRIPTION_DISABLED: _subscription("is switched off, and nothing is sent to it"),
    EventType.SUBSCRIPTION_REMOVED: _subscription("was removed"),
    EventType.WORKER_STARTED: _worker("started"),
    EventType.WORKER_DRAIN_REQUESTED: _worker("was asked to finish and leave"),
    EventType.WORKER_LOST: _worker("is lost; its jobs go on elsewhere"),
    EventType.DATABASE_RESTORED: lambda event: (
        f"{_people(event)} says that the database is a restored one{_because(event)}"
    ),
    EventType.ALERT_FIRED: _alert,
    EventType.ALERT_RESOLVED: _calm,
}


# -- incidents --------------------------------------------------------------------------------------
def of_incident(incident: IncidentFacts, step: str) -> str:
    what = step.partition(":")[0]
    cause = _cause({"message": incident.message, "code": incident.code})
    if what == "over":
        return f"Over: {_many(incident)}: {cause}; {_OVER.get(incident.why, _OVER['quiet'])}."
    now = "" if what == "opened" else "Now "
    if incident.of == EventType.JOB_PARKED:
        return f"{now}{_many(incident)}: {short(incident.message, REASON) or cause}; they wait until you decide."
    since = f"since {moment(incident.first_at)[11:]}"
    it = "it needs" if incident.count == 1 else "they need"
    return f"{now}{_many(incident)} {since}: {cause}; nothing more is tried: {it} you."


_OVER = {
    "quiet": "it has been quiet since, and what died stays dead until you retry it",
    "resolved": "somebody has called it resolved",
    "recovered": "the batch is ready",
}


def _many(incident: IncidentFacts) -> str:
    kind = short(incident.kind)
    jobs = f"{incident.count:,} {kind + ' ' if kind else ''}job{'' if incident.count == 1 else 's'}"
    if incident.of == EventType.JOB_PARKED:
        return f"{jobs} wait{'s' if incident.count == 1 else ''} for a person"
    batch = (
        f" in batch {short(incident.batch_name or incident.batch_id)}" if incident.batch_id else ""
    )
    return f"{jobs}{batch} died" + (" of one cause" if incident.count > 1 and not batch else "")


def of_cap(kept: int, hour: Micros) -> str:
    these = f"{kept:,} more message{'' if kept == 1 else 's'} about incidents"
    return (
        f"{these} were kept back in the hour from {moment(hour)}, because of the limit notify.cap."
    )


# -- facts ------------------------------------------------------------------------------------------
_FACTS = (
    ("Kind", "kind"),
    ("Queue", "queue"),
    ("Batch", "name"),
    ("Depends on", "dependency"),
    ("Cause", "message"),
    ("Code", "code"),
    ("Class", "class"),
    ("Reason", "reason"),
    ("HTTP status", "http_status"),
    ("Exit code", "exit_code"),
    ("Signal", "signal"),
    ("Succeeded", "succeeded"),
    ("Died", "dead"),
    ("Cancelled", "cancelled"),
    ("Worker", "worker"),
)
VALUE = 500


def details(event: Event) -> tuple[tuple[str, str], ...]:
    return tuple(_details(event))


def _details(event: Event) -> Iterator[tuple[str, str]]:
    yield "When", moment(event.at)
    for label, name in _FACTS:
        if (value := event.data.get(name)) not in (None, ""):
            yield label, short(value, VALUE)
    if event.attempt:
        yield "Attempt", str(event.attempt)
    if _whole(at := event.data.get("next_retry_at")):
        yield "Next attempt", moment(at)
    for label, value in (
        ("Owner", event.owner),
        ("Job", event.job_id),
        ("Batch id", event.batch_id),
    ):
        if value:
            yield label, short(value, VALUE)


def incident_details(incident: IncidentFacts) -> tuple[tuple[str, str], ...]:
    told = (
        ("Jobs", f"{incident.count:,}"),
        ("First", moment(incident.first_at)),
        ("Last", moment(incident.last_at)),
        ("Kind", incident.kind),
        ("Queue", incident.queue),
        ("Batch", incident.batch_name or incident.batch_id),
        ("Cause", incident.message),
        ("Code", incident.code),
        ("Class", incident.cls),
        ("Owner", incident.owner),
        ("Group", incident.group),
        ("An example", incident.job_id),
    )
    return tuple((label, short(value, VALUE)) for label, value in told if value)

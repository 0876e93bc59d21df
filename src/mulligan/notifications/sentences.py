"""One sentence per event or incident, for mails, chats and webhooks.

Each sentence says what happened, to how many jobs, why, and what happens next. Every text from
outside (names, causes, reasons) is shortened separately, so that a long one cannot push out the
part that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from mulligan.core.durations import Micros
from mulligan.core.event import Event, EventType
from mulligan.core.format import (
    format_actor,
    format_duration,
    format_elapsed,
    format_time,
    format_time_after,
    one_line,
)
from mulligan.notifications.rules import IncidentFacts

# Maximum characters of a text from outside within a sentence.
MAX_NAME = 40
MAX_FILTER = 60
MAX_CAUSE = 80
MAX_REASON = 100
MAX_ALERT_REASON = 160

NO_RETRY = "No more automatic retries"

Sentence = Callable[[Event], str]


def describe_event(event: Event) -> str:
    """Describe an event in one sentence; without a template, by its name and reason."""
    template = _TEMPLATES.get(event.type, _default_template)
    text = template(event)
    if text.endswith((".", "…", "?", "!")):
        return text
    return f"{text}."


def _default_template(event: Event) -> str:
    return f"{event.type}{_reason(event)}"


# --- Parts of a sentence ---


def shorten(value: Any, limit: int = MAX_NAME) -> str:
    """Return a text from outside on one line, cut to `limit` characters."""
    if value is None:
        return ""
    text = one_line(str(value), 4096)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1].rstrip()}…"


def _field(event: Event, name: str, default: str = "?") -> str:
    return shorten(event.data.get(name)) or default


def _kind(event: Event) -> str:
    return _field(event, "kind", "A job")


def _actor(event: Event) -> str:
    if not event.actor:
        return "an unknown user"
    return shorten(format_actor(event.actor))


def _cause(data: Mapping[str, Any]) -> str:
    """Return `A service is not available (HTTP_5XX)`."""
    message = shorten(data.get("message"), MAX_CAUSE).rstrip(".")
    code = shorten(data.get("code"))
    if message and code:
        return f"{message} ({code})"
    return message or code or "unknown cause"


def _reason(event: Event, limit: int = MAX_REASON) -> str:
    """Return `: the reason`, or nothing if the event has none."""
    text = event.data.get("reason") or event.data.get("note")
    reason = shorten(text, limit).rstrip(".")
    return f": {reason}" if reason else ""


def _until(event: Event, field: str = "until") -> str:
    """Return ` until 08:01:00 UTC`, or nothing if the event has no end."""
    end = event.data.get(field)
    if not _is_int(end):
        return ""
    return f" until {format_time_after(end, event.at)}"


def _count(event: Event, name: str) -> int:
    value = event.data.get(name)
    return value if _is_int(value) else 0


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# --- Jobs ---


def _died(event: Event) -> str:
    attempts = ""
    if event.attempt and event.attempt > 1:
        attempts = f" after {event.attempt} attempts"
    return f"{_kind(event)} died{attempts}: {_cause(event.data)}. {NO_RETRY}"


def _retry_scheduled(event: Event) -> str:
    failures = _count(event, "failures")
    max_retries = event.data.get("max_retries")
    next_at = event.data.get("next_retry_at")
    plan = "It will be retried"
    if failures and _is_int(max_retries):
        plan = f"Retry {failures} of {max_retries}"
    if _is_int(next_at):
        time = format_time_after(next_at, event.at)
        plan = f"{plan} at {time} (in {format_elapsed(event.at, next_at)})"
    return f"{_kind(event)} failed: {_cause(event.data)}. {plan}"


def _snoozed(event: Event) -> str:
    return f"{_kind(event)} was snoozed{_until(event, 'next_retry_at')}{_reason(event)}"


def _waiting(event: Event) -> str:
    until = _until(event, "next_retry_at")
    return f"{_kind(event)} waits without a slot{until}{_reason(event)}"


def _answered(event: Event) -> str:
    return f"{_actor(event)} answered {_field(event, 'step')} of {_kind(event)}"


def _succeeded(event: Event) -> str:
    text = f"{_kind(event)} succeeded"
    if event.attempt and event.attempt > 1:
        text = f"{text} on attempt {event.attempt}"
    run_ms = event.data.get("duration_ms")
    if _is_int(run_ms):
        text = f"{text} in {format_duration(run_ms / 1000)}"
    return text


def _queued(event: Event) -> str:
    start = event.data.get("run_at")
    later = ""
    if _is_int(start) and start > event.at:
        later = f", to start at {format_time_after(start, event.at)}"
    return f"{_kind(event)} was enqueued{later}"


def _started(event: Event) -> str:
    return f"{_kind(event)} started attempt {event.attempt or 1}"


def _lost(event: Event) -> str:
    return f"The process that ran {_kind(event)} died. The job will run again in a separate process"


def _cancel_requested(event: Event) -> str:
    return f"{_actor(event)} requested the cancellation of {_kind(event)}{_reason(event)}"


def _stale_refused(event: Event) -> str:
    return (
        f"A worker reported the end of {_kind(event)} after losing its lease. Nothing was changed"
    )


def _step_finished(event: Event) -> str:
    return f"Step {_field(event, 'step')} of {_kind(event)} is {_field(event, 'state')}"


def _pruned(event: Event) -> str:
    return f"Retention removed {_count(event, 'jobs'):,} finished {_kind(event)} jobs"


def _job_was(verb: str) -> Sentence:
    """Return a template for an automatic change of a job."""
    return lambda event: f"{_kind(event)} {verb}{_reason(event)}"


def _job_was_by(verb: str) -> Sentence:
    """Return a template for a person's change of a job."""
    return lambda event: f"{_kind(event)} was {verb} by {_actor(event)}{_reason(event)}"


# --- Batches ---


def _batch_name(event: Event) -> str:
    name = shorten(event.data.get("name")) or shorten(event.batch_id) or "?"
    return f"Batch {name}"


def _batch_progress(event: Event) -> str:
    """Return `47 of 50 succeeded, 3 died`."""
    dead = _count(event, "dead")
    cancelled = _count(event, "cancelled")
    parts = [f"{_count(event, 'succeeded'):,} of {_count(event, 'total'):,} succeeded"]
    if dead:
        parts.append(f"{dead:,} died")
    if cancelled:
        parts.append(f"{cancelled:,} were cancelled")
    return ", ".join(parts)


def _batch_sealed(event: Event) -> str:
    return f"{_batch_name(event)} is sealed with {_count(event, 'total'):,} jobs"


def _batch_ended(verb: str, suffix: str = "") -> Sentence:
    return lambda event: f"{_batch_name(event)} {verb}: {_batch_progress(event)}{suffix}"


def _batch_was(verb: str) -> Sentence:
    return lambda event: f"{_batch_name(event)} {verb}{_reason(event)}"


# --- Dependencies, kinds, queues ---


def _dependency_opened(event: Event) -> str:
    dependency = _field(event, "dependency", "a dependency")
    return f"Calls to {dependency} are on hold{_until(event)}{_reason(event)}"


def _dependency_probing(event: Event) -> str:
    dependency = _field(event, "dependency", "a dependency")
    return f"One job is testing whether {dependency} works again{_reason(event)}"


def _dependency_closed(event: Event) -> str:
    dependency = _field(event, "dependency", "a dependency")
    return f"Calls to {dependency} are allowed again{_reason(event)}"


def _dependency_changed(event: Event) -> str:
    dependency = _field(event, "dependency", "a dependency")
    return f"Limits of {dependency} were changed{_until(event)}{_reason(event)}"


def _kind_held(event: Event) -> str:
    return f"Kind {_field(event, 'kind')} is held{_until(event)}{_reason(event)}"


def _kind_released(event: Event) -> str:
    return f"Kind {_field(event, 'kind')} was released by {_actor(event)}{_reason(event)}"


def _queue_was(verb: str) -> Sentence:
    return lambda event: (
        f"Queue {_field(event, 'queue')} was {verb} by {_actor(event)}"
        f"{_until(event)}{_reason(event)}"
    )


def _queue_changed(event: Event) -> str:
    queue = _field(event, "queue")
    return f"Limits of queue {queue} were changed by {_actor(event)}{_until(event)}{_reason(event)}"


# --- Failure groups, operations, schedules, workers, subscriptions ---


def _failures_were(verb: str) -> Sentence:
    def describe(event: Event) -> str:
        code = _field(event, "code", "the same cause")
        return f"Failures with {code} were {verb} by {_actor(event)}{_until(event)}{_reason(event)}"

    return describe


def _release_was(verb: str) -> Sentence:
    def describe(event: Event) -> str:
        kind = shorten(event.data.get("kind")) or "every kind"
        return (
            f"Release {_field(event, 'release')} was {verb} for {kind} by {_actor(event)}"
            f"{_until(event)}{_reason(event)}"
        )

    return describe


def _failure_regressed(event: Event) -> str:
    release = event.data.get("release")
    where = f" under release {shorten(release)}" if release else ""
    by = shorten(format_actor(str(event.data.get("resolved_by", ""))))
    return (
        f"{_kind(event)} died of {_field(event, 'code', 'the same cause')} again{where},"
        f" although {by} had resolved it{_note(event)}"
    )


def _note(event: Event) -> str:
    note = shorten(event.data.get("note"))
    return f" ({note})" if note else ""


def _operation_was(verb: str) -> Sentence:
    def describe(event: Event) -> str:
        jobs = shorten(event.data.get("filter"), MAX_FILTER) or "many jobs"
        return f"Bulk {_field(event, 'action')} of {jobs} {verb}{_reason(event, MAX_FILTER)}"

    return describe


def _delivery_skipped(event: Event) -> str:
    return f"A message to {_field(event, 'subscription')} was not sent: {_field(event, 'reason')}"


def _schedule_skipped(event: Event) -> str:
    count = _count(event, "count")
    runs = "1 missed run" if count == 1 else f"{count:,} missed runs"
    return f"Schedule {_field(event, 'schedule')} skipped {runs}"


def _worker_was(verb: str) -> Sentence:
    return lambda event: (
        f"Worker {_field(event, 'worker')} on {_field(event, 'host')} {verb}{_reason(event)}"
    )


def _subscription_was(verb: str) -> Sentence:
    def describe(event: Event) -> str:
        name = _field(event, "name", _field(event, "subscription"))
        return f"Subscription {name} {verb}{_reason(event)}"

    return describe


def _database_restored(event: Event) -> str:
    return f"{_actor(event)} declared that the database was restored from a backup{_reason(event)}"


# --- Alerts ---


def _alert_fired(event: Event) -> str:
    if _count(event, "jobs"):
        return _kind_breaker_fired(event)
    text = f"Alert {_field(event, 'rule')}{_reason(event, MAX_ALERT_REASON)}"
    action = shorten(event.data.get("did"), MAX_CAUSE).rstrip(".")
    if action:
        text = f"{text}. Action: {action}"
    return text


def _kind_breaker_fired(event: Event) -> str:
    return (
        f"{_count(event, 'jobs'):,} {_kind(event)} jobs failed in a row with the same cause: "
        f"{_cause(event.data)}. The kind is held until you release it"
    )


def _alert_resolved(event: Event) -> str:
    name = shorten(event.data.get("rule") or event.data.get("kind")) or "?"
    return f"Alert {name} resolved{_reason(event, MAX_ALERT_REASON)}"


_TEMPLATES: Mapping[str, Sentence] = {
    EventType.JOB_QUEUED: _queued,
    EventType.JOB_STARTED: _started,
    EventType.JOB_RETRY_SCHEDULED: _retry_scheduled,
    EventType.JOB_SNOOZED: _snoozed,
    EventType.JOB_WAITING: _waiting,
    EventType.JOB_ANSWERED: _answered,
    EventType.JOB_SUCCEEDED: _succeeded,
    EventType.JOB_DIED: _died,
    EventType.JOB_CANCELLED: _job_was("was cancelled"),
    EventType.JOB_CANCEL_REQUESTED: _cancel_requested,
    EventType.JOB_PARKED: _job_was("is parked and waits for a decision"),
    EventType.JOB_RELEASED: _job_was("was returned to the queue"),
    EventType.JOB_TRIED: _job_was_by("tried although its kind is held"),
    EventType.JOB_LOST: _lost,
    EventType.JOB_RETRIED: _job_was_by("retried"),
    EventType.JOB_DISCARDED: _job_was_by("discarded"),
    EventType.JOB_UNDISCARDED: _job_was_by("restored after a discard"),
    EventType.JOB_EDITED: _job_was_by("edited"),
    EventType.JOB_STEP_FINISHED: _step_finished,
    EventType.JOB_PRUNED: _pruned,
    EventType.JOB_STALE_REFUSED: _stale_refused,
    EventType.BATCH_SEALED: _batch_sealed,
    EventType.BATCH_READY: _batch_ended("is ready"),
    EventType.BATCH_PARTIAL: _batch_ended("is partly done", f". {NO_RETRY}"),
    EventType.BATCH_FAILED: _batch_ended("failed", f". {NO_RETRY}"),
    EventType.BATCH_RECOVERED: _batch_ended("has recovered"),
    EventType.BATCH_REOPENED: _batch_was("was reopened by a retry"),
    EventType.BATCH_CANCELLED: _batch_was("was cancelled"),
    EventType.BATCH_EXPIRED: _batch_was("has expired and cannot be retried"),
    EventType.DEPENDENCY_OPENED: _dependency_opened,
    EventType.DEPENDENCY_PROBING: _dependency_probing,
    EventType.DEPENDENCY_CLOSED: _dependency_closed,
    EventType.DEPENDENCY_CHANGED: _dependency_changed,
    EventType.KIND_HELD: _kind_held,
    EventType.KIND_RELEASED: _kind_released,
    EventType.QUEUE_PAUSED: _queue_was("paused"),
    EventType.QUEUE_RESUMED: _queue_was("resumed"),
    EventType.QUEUE_CHANGED: _queue_changed,
    EventType.RELEASE_HELD: _release_was("held"),
    EventType.RELEASE_UNHELD: _release_was("let go"),
    EventType.FAILURE_MUTED: _failures_were("muted"),
    EventType.FAILURE_RESOLVED: _failures_were("marked as resolved"),
    EventType.FAILURE_REOPENED: _failures_were("reopened"),
    EventType.FAILURE_ASSIGNED: _failures_were("assigned"),
    EventType.FAILURE_REGRESSED: _failure_regressed,
    EventType.OPERATION_STARTED: _operation_was("started"),
    EventType.OPERATION_PAUSED: _operation_was("was paused"),
    EventType.OPERATION_RESUMED: _operation_was("was resumed"),
    EventType.OPERATION_STOPPED: _operation_was("stopped because too many jobs failed again"),
    EventType.OPERATION_ABORTED: _operation_was("was aborted"),
    EventType.OPERATION_FINISHED: _operation_was("finished"),
    EventType.DELIVERY_SKIPPED: _delivery_skipped,
    EventType.SCHEDULE_SKIPPED: _schedule_skipped,
    EventType.SUBSCRIPTION_CREATED: _subscription_was("was created"),
    EventType.SUBSCRIPTION_CHANGED: _subscription_was("was changed"),
    EventType.SUBSCRIPTION_DISABLED: _subscription_was("is disabled and gets no messages"),
    EventType.SUBSCRIPTION_REMOVED: _subscription_was("was removed"),
    EventType.WORKER_STARTED: _worker_was("started"),
    EventType.WORKER_DRAIN_REQUESTED: _worker_was("was asked to drain and stop"),
    EventType.WORKER_LOST: _worker_was("is lost, its jobs will run on other workers"),
    EventType.DATABASE_RESTORED: _database_restored,
    EventType.ALERT_FIRED: _alert_fired,
    EventType.ALERT_RESOLVED: _alert_resolved,
}


# --- Incidents ---

_END_SENTENCES = {
    "quiet": "No new deaths. Dead jobs stay dead until you retry them",
    "resolved": "The failure was marked as resolved",
    "recovered": "The batch is ready",
}


def describe_incident(incident: IncidentFacts, step: str) -> str:
    """Describe an incident at one step: `opened`, `grown:1`, `grown:2` …, `over`."""
    step_name = step.partition(":")[0]
    jobs = _affected_jobs(incident)
    cause = _cause({"message": incident.message, "code": incident.code})
    if step_name == "over":
        end = _END_SENTENCES.get(incident.end_reason, _END_SENTENCES["quiet"])
        return f"Over: {jobs}: {cause}. {end}."
    prefix = "" if step_name == "opened" else "Update: "
    if incident.event_type == EventType.JOB_PARKED:
        question = shorten(incident.message, MAX_REASON).rstrip(".") or cause
        return f"{prefix}{jobs}: {question}"
    time = format_time(incident.first_at)[11:]
    return f"{prefix}{jobs} since {time}: {cause}. {NO_RETRY}."


def _affected_jobs(incident: IncidentFacts) -> str:
    """Return `400 render jobs died of the same cause`."""
    is_single = incident.count == 1
    noun = "job" if max(incident.count, incident.batch_size) == 1 else "jobs"
    kind = shorten(incident.kind)
    if kind:
        noun = f"{kind} {noun}"
    jobs = f"{format_share(incident)} {noun}"
    if incident.batch_id:
        jobs = f"{jobs} in batch {shorten(incident.batch_name or incident.batch_id)}"
    if incident.event_type == EventType.JOB_PARKED:
        verb = "waits" if is_single else "wait"
        return f"{jobs} {verb} for a decision"
    is_one_cause = bool(incident.group) or not incident.batch_id
    return f"{jobs} died of the same cause" if is_one_cause and not is_single else f"{jobs} died"


def format_share(incident: IncidentFacts) -> str:
    """Return `400`, or `4 of 6` in a batch."""
    if incident.batch_size < incident.count:
        return f"{incident.count:,}"
    return f"{incident.count:,} of {incident.batch_size:,}"


def describe_cap(suppressed: int, hour: Micros) -> str:
    """Describe how many incident messages the hourly limit suppressed."""
    messages = (
        "1 incident message was" if suppressed == 1 else (f"{suppressed:,} incident messages were")
    )
    return f"{messages} suppressed in the hour from {format_time(hour)} (limit notify.cap)."


# --- Details: labelled values below the sentence ---

_DETAIL_FIELDS = (
    ("Kind", "kind"),
    ("Queue", "queue"),
    ("Batch", "name"),
    ("Dependency", "dependency"),
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
MAX_DETAIL = 500

Details = tuple[tuple[str, str], ...]


def event_details(event: Event) -> Details:
    """Return the labelled values of an event, in the order in which people want them."""
    return tuple(_event_details(event))


def _event_details(event: Event) -> Iterator[tuple[str, str]]:
    yield "Time", format_time(event.at)
    for label, name in _DETAIL_FIELDS:
        value = event.data.get(name)
        if value not in (None, ""):
            yield label, shorten(value, MAX_DETAIL)
    if event.attempt:
        yield "Attempt", str(event.attempt)
    next_at = event.data.get("next_retry_at")
    if _is_int(next_at):
        yield "Next attempt", format_time(next_at)
    ids = (("Owner", event.owner), ("Job", event.job_id), ("Batch id", event.batch_id))
    for label, value in ids:
        if value:
            yield label, shorten(value, MAX_DETAIL)


def _job_titles(incident: IncidentFacts) -> str:
    """Return `Copy for Ada, Copy for Cy and 2 more`; empty if the kind declares no title."""
    titles = [shorten(job.title) for job in incident.jobs if job.title]
    more = incident.count - len(titles)
    text = ", ".join(titles)
    return f"{text} and {more:,} more" if titles and more > 0 else text


def incident_details(incident: IncidentFacts) -> Details:
    """Return the labelled values of an incident."""
    values = (
        ("Jobs", format_share(incident)),
        ("Names", _job_titles(incident)),
        ("First", format_time(incident.first_at)),
        ("Last", format_time(incident.last_at)),
        ("Kind", incident.kind),
        ("Queue", incident.queue),
        ("Batch", incident.batch_name or incident.batch_id),
        ("Cause", incident.message),
        ("Code", incident.code),
        ("Class", incident.cls),
        ("Owner", incident.owner),
        ("Group", incident.group),
        ("Example job", incident.job_id),
    )
    return tuple((label, shorten(value, MAX_DETAIL)) for label, value in values if value)

"""Generate docs/reference/events.md. Used by `generate.py`."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
from mulligan.core.event import EventType

Table = Callable[..., str]

WHEN = {
    EventType.JOB_QUEUED: "a job was enqueued (for a caller's transaction: written shortly after its commit)",
    EventType.JOB_STARTED: "an attempt was claimed",
    EventType.JOB_RETRY_SCHEDULED: "an attempt failed and will be retried",
    EventType.JOB_SNOOZED: "the handler snoozed or held a dependency, or a failure was not charged",
    EventType.JOB_WAITING: "an attempt ended, uncharged: the job waits for a time, an answer or child jobs",
    EventType.JOB_ANSWERED: "a person or a program answered what a job waits for (`app.tell`)",
    EventType.JOB_SUCCEEDED: "the handler returned a result",
    EventType.JOB_DIED: "the job has finally failed",
    EventType.JOB_CANCELLED: "the job was cancelled; if it ran, its code has stopped",
    EventType.JOB_CANCEL_REQUESTED: "a cancel of a running job was requested",
    EventType.JOB_PARKED: "the handler needs a person's decision",
    EventType.JOB_RELEASED: "a person released a parked job, or a worker returned it uncharged",
    EventType.JOB_TRIED: "a person let this job run although its kind is held",
    EventType.JOB_LOST: "its process or worker died; the next attempt runs alone",
    EventType.JOB_RETRIED: "a person started a new generation",
    EventType.JOB_DISCARDED: "a person discarded a dead or parked job",
    EventType.JOB_UNDISCARDED: "a person undid a discard: the job is dead or parked again",
    EventType.JOB_EDITED: "a person moved a waiting job to another queue",
    EventType.JOB_UNDOING: "the job has died or was cancelled, and undoes its steps first",
    EventType.JOB_STEP_FINISHED: "the result of a step is durable, or the step was undone",
    EventType.JOB_PRUNED: "retention removed finished jobs; one event per kind, state, owner and code",
    EventType.JOB_STALE_REFUSED: "a worker reported the end of an attempt it had lost; nothing was changed",
    EventType.BATCH_SEALED: "a batch was sealed (in a caller's transaction: written after its commit)",
    EventType.BATCH_READY: "all members of a batch have ended, within its tolerance",
    EventType.BATCH_PARTIAL: "all members of a batch have ended, some succeeded, and more died than it tolerates",
    EventType.BATCH_FAILED: "all members of a batch have ended, and none succeeded or a must-have is missing",
    EventType.BATCH_RECOVERED: "a partial or failed batch is ready now; sent with `batch.ready`",
    EventType.BATCH_REOPENED: "a member of a finished batch was retried: a new generation begins",
    EventType.BATCH_CANCELLED: "a person cancelled a batch; running members are asked to stop",
    EventType.BATCH_EXPIRED: "a finished batch has expired; it cannot be retried",
    EventType.DEPENDENCY_OPENED: "a breaker, a person, a handler (`Hold`) or a server's hint holds a dependency",
    EventType.DEPENDENCY_PROBING: "a probe checks whether an open dependency answers again",
    EventType.DEPENDENCY_CLOSED: "a dependency answers again, or its hold was ended",
    EventType.DEPENDENCY_CHANGED: "limits changed, a probe was requested, or a recovery has ended",
    EventType.KIND_HELD: "a guard or a person held a kind: its jobs wait",
    EventType.KIND_RELEASED: "a person released a held kind",
    EventType.RELEASE_HELD: "a person or an alert holds a release, or one kind of it",
    EventType.RELEASE_UNHELD: "a person ended the hold of a release",
    EventType.QUEUE_PAUSED: "a person paused a queue",
    EventType.QUEUE_RESUMED: "a person resumed a queue",
    EventType.QUEUE_CHANGED: "a person set or cleared the limits of a queue",
    EventType.FAILURE_MUTED: "a person muted a failure group, with or without an end",
    EventType.FAILURE_RESOLVED: "a person resolved a failure group; a later death is a regression",
    EventType.FAILURE_REOPENED: "a person removed the mark of a failure group",
    EventType.FAILURE_ASSIGNED: "a person assigned a failure group to somebody, or to nobody",
    EventType.FAILURE_REGRESSED: "a job died of a resolved cause, under a release that should have the fix",
    EventType.OPERATION_STARTED: "an operation was started",
    EventType.OPERATION_PAUSED: "a person paused an operation",
    EventType.OPERATION_RESUMED: "a person resumed an operation",
    EventType.OPERATION_STOPPED: "an operation stopped: too many jobs failed again with the same cause",
    EventType.OPERATION_ABORTED: "a person aborted an operation; the remaining jobs are unchanged",
    EventType.OPERATION_FINISHED: "every item of an operation has ended",
    EventType.SUBSCRIPTION_CREATED: "a subscription was created",
    EventType.SUBSCRIPTION_CHANGED: "a subscription was enabled, or got a new secret",
    EventType.SUBSCRIPTION_DISABLED: "a person, a 410 answer or days of failures disabled it",
    EventType.SUBSCRIPTION_REMOVED: "a person removed a subscription",
    EventType.DELIVERY_SKIPPED: "a message was not sent: no mail server is set, no recipient, or the subscription is off",
    EventType.SCHEDULE_SKIPPED: "slots of a schedule passed without a worker and will not run",
    EventType.SCHEDULE_PAUSED: "a person paused a schedule: its slots get no job",
    EventType.SCHEDULE_RESUMED: "a person resumed a schedule, or its pause ended",
    EventType.WORKER_STARTED: "a worker registered",
    EventType.WORKER_DRAIN_REQUESTED: "a person requested a drain of a worker",
    EventType.WORKER_LOST: "a worker died or its lease expired",
    EventType.KEY_CREATED: "a person created an API key; the event contains only its id",
    EventType.KEY_REVOKED: "a person revoked an API key",
    EventType.WORKER_RUNNER_DIED: "a runner process exited or was killed",
    EventType.DATABASE_RESTORED: "a person announced a restore (`mulligan restored`)",
    EventType.ALERT_FIRED: "an alert rule fired or a kind is held; sent once",
    EventType.ALERT_RESOLVED: "an alert ended, or a held kind was released",
    EventType.ALERT_SILENCED: "a person silenced an alert, or ended the silence",
}

FIELDS = (
    ("id", "grows; the cursor of readers"),
    (
        "seq",
        "order of the events of one job: a later event has a higher number; gaps are normal. In the API, streams and webhooks",
    ),
    ("at", "time in microseconds since 1970 UTC, by the database's clock"),
    ("type", "one of the names above"),
    ("job_id, batch_id, owner", "the job or batch, if any"),
    ("attempt, token", "the attempt, if any"),
    (
        "actor",
        "who did it: `python`, `cli:NAME`, `key:ID`, `upkeep`, `schedule`, `guard` …, a worker id, or nothing",
    ),
    ("data", "further data; only the public part of a failure"),
)

DATA = (
    ("kind, queue", "of the job"),
    ("until, concurrency, rate, cleared", "of a pause or a limit"),
    ("reason", "the reason of the decision, or the one a person gave"),
    ("duration_ms", "how long the handler ran"),
    ("next_retry_at", "time of the next attempt, in microseconds"),
    ("code, class, message, rule", "the failure; `message` is the public sentence"),
    ("http_status, exit_code, signal, errno, program, …", "evidence, if any"),
    ("from, generation, choice, max_retries, run_at", "of a manual action"),
    ("before, after", "of a manual action: values before and after, by name"),
    ("changes", "of a retry with overrides: each field before and after, payloads redacted"),
    ("skipped", "of `job.succeeded`: the result existed, the handler was not called"),
    ("worker, host, pid", "of a worker"),
    (
        "worker, runner, signal, exit_code, jobs",
        "of a dead runner: how it ended, and how many jobs it had",
    ),
    (
        "wait_ms, uses, cost",
        "of an attempt: time since it was due, dependencies, cost",
    ),
    (
        "retries",
        "of an attempt, from `job.started` on: retries so far, this attempt included",
    ),
    (
        "name, generation, total, succeeded, dead, cancelled, missed, on_complete",
        "of a batch and its outcome: members by state, failed must-haves, the enqueued job",
    ),
    ("runbook", "of a death: what its rule tells operators to do; owners do not see it"),
    ("alarm", "of a death: `page` or `none`, if its rule says so; owners do not see it"),
    ("losses, max_losses", "of a loss, and of a death by losses: count and limit"),
    ("group, failures, max_retries", "of a death or retry: cause, count and limit of failures"),
    ("subscription, name", "of a subscription"),
    (
        "before, job, jobs, asked_to_stop, outcome, expires_at",
        "of a batch: its former state, retried or stopped jobs",
    ),
    (
        "kind, fingerprint, code, message, job, jobs, owners, since",
        "of the alert of a held kind; `job` is an example",
    ),
    (
        "rule, key, value, threshold, window, severity, evidence, runbook",
        "of an alert: rule, subject, value",
    ),
    ("action, did, limit, until", "of an alert with an action: which, and until when"),
    (
        "fingerprint, until, note",
        "of a failure group; `owner` unless it covers all owners",
    ),
    (
        "operation, action, filter, state, total, counts, untouched, note",
        "of an operation; `operation` also of its jobs",
    ),
    ("before, after", "of a change: values before and after"),
    ("run_at", "of `job.queued`: when it is due, in microseconds"),
    ("schedule, slot_at", "of `job.queued`: the schedule and the slot, in microseconds"),
    (
        "schedule, first, last, count",
        "of `schedule.skipped`: which slots, in microseconds; counting stops at 10,000",
    ),
)


EVENTS = """\
{notice}

# Events

An event row is written in the same transaction as the change it records. `app.jobs.history(id)` returns those of one
job, `mulligan jobs show ID` prints them.

## Which events are there?

{events}

{unused}Progress is not an event: it would drown the others.

## What does an event hold?

{fields}

## What is in `data`?

{data}
"""


def page(notice: str, table: Table, code: str) -> str:
    """Return the page. `code` is all source that may write an event."""
    written = _written(code)
    for kind in EventType:
        if bool(WHEN.get(kind)) != (kind in written):
            message = f"docs/generate_events.py: WHEN[{kind}] must exist if and only if the code writes the event"
            raise LookupError(message)
    rows = [[f"`{kind}`", WHEN[kind], _verbs(kind)] for kind in EventType if kind in written]
    unused = ", ".join(f"`{kind}`" for kind in EventType if kind not in written)
    return EVENTS.format(
        notice=notice,
        events=table(("event", "when", "move"), rows),
        unused=f"Reserved names that nothing writes yet: {unused}.\n\n" if unused else "",
        fields=table(("field", "meaning"), ([f"`{name}`", meaning] for name, meaning in FIELDS)),
        data=table(("key", "meaning"), ([f"`{name}`", meaning] for name, meaning in DATA)),
    )


def _verbs(kind: EventType) -> str:
    return ", ".join(verb for verb in Verb if lifecycle.EVENTS[verb] == kind)


def _written(code: str) -> set[EventType]:
    """Return the event types that a lifecycle move or the source names."""
    by_moves = {lifecycle.EVENTS[verb] for verb in Verb}
    return by_moves | {kind for kind in EventType if f"EventType.{kind.name}" in code}

"""The page of events. Used by `generate.py`."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
from mulligan.core.event import EventType

Table = Callable[..., str]

WHEN = {
    EventType.JOB_QUEUED: "a job was enqueued (for a caller's transaction: written shortly after its commit)",
    EventType.JOB_STARTED: "an attempt was claimed",
    EventType.JOB_RETRY_SCHEDULED: "an attempt failed and will be tried again",
    EventType.JOB_SNOOZED: "the handler put the job off or holds a dependency, or a failure was not charged",
    EventType.JOB_SUCCEEDED: "the handler returned a result",
    EventType.JOB_DIED: "the job ended without success, for good",
    EventType.JOB_CANCELLED: "the job was cancelled; if it ran, its code has stopped",
    EventType.JOB_CANCEL_REQUESTED: "somebody asked a running job to stop",
    EventType.JOB_PARKED: "the handler needs a person's decision",
    EventType.JOB_RELEASED: "a person released a parked job, or a worker gave it back unharmed",
    EventType.JOB_LOST: "its process or worker died; it goes on in a runner of its own",
    EventType.JOB_RETRIED: "a person started a new generation",
    EventType.JOB_DISCARDED: "a person gave a dead or parked job up",
    EventType.JOB_EDITED: "a person changed a job that waits: moved it to another queue",
    EventType.JOB_PRUNED: "retention removed finished jobs; one event for each kind, state, owner and code",
    EventType.JOB_STALE_REFUSED: "a worker reported the end of an attempt it had lost; nothing was changed",
    EventType.BATCH_SEALED: "a batch takes no more members (of a caller's transaction: told soon after its commit)",
    EventType.BATCH_READY: "all members of a batch have ended, and well enough",
    EventType.BATCH_PARTIAL: "all members of a batch have ended, some succeeded, and more died than it tolerates",
    EventType.BATCH_FAILED: "all members of a batch have ended, and none succeeded or a must-have is missing",
    EventType.BATCH_RECOVERED: "a batch is ready that was partial or failed before; beside `batch.ready`",
    EventType.BATCH_REOPENED: "a member of a finished batch was retried: the batch begins a new generation",
    EventType.BATCH_CANCELLED: "a person cancelled a batch: what waits is cancelled, what runs is asked to stop",
    EventType.BATCH_EXPIRED: "the time of a finished batch is over; nothing of it begins again",
    EventType.DEPENDENCY_OPENED: "a breaker, a person, a handler (`Hold`) or a server's hint holds a dependency",
    EventType.DEPENDENCY_PROBING: "one attempt was let through to see whether an open dependency answers again",
    EventType.DEPENDENCY_CLOSED: "a dependency answers again, or a person or the end of a hold let its jobs go",
    EventType.DEPENDENCY_CHANGED: "limits were set, a probe was asked for, fewer may run, or a recovery is over",
    EventType.KIND_HELD: "a guard or a person held a kind: its jobs wait",
    EventType.KIND_RELEASED: "a person released a held kind",
    EventType.QUEUE_PAUSED: "a person paused a queue",
    EventType.QUEUE_RESUMED: "a person let a paused queue go on",
    EventType.QUEUE_CHANGED: "a person set or cleared the limits of a queue",
    EventType.FAILURE_MUTED: "a person wants to hear nothing of a failure group, for a time or until they say so",
    EventType.FAILURE_RESOLVED: "a person has seen to the cause of a failure group; a death after it is a regression",
    EventType.FAILURE_REOPENED: "a person has taken back that a failure group is muted or resolved",
    EventType.OPERATION_STARTED: "somebody began a bulk action; its jobs are written down",
    EventType.OPERATION_PAUSED: "a person lets an operation send nothing more for now",
    EventType.OPERATION_RESUMED: "a person lets a paused operation go on",
    EventType.OPERATION_STOPPED: "an operation stopped by itself: too many failed of the same cause again",
    EventType.OPERATION_ABORTED: "a person ended an operation; what was not sent stays untouched",
    EventType.OPERATION_FINISHED: "every item of an operation has ended",
    EventType.SUBSCRIPTION_CREATED: "somebody is told of something from now on",
    EventType.SUBSCRIPTION_CHANGED: "a subscription was switched on again, or got a new secret",
    EventType.SUBSCRIPTION_DISABLED: "a person, its receiver (410) or days of nothing but failures switched one off",
    EventType.SUBSCRIPTION_REMOVED: "a person removed a subscription",
    EventType.SCHEDULE_SKIPPED: "no worker was there when slots of a schedule came, and they will not run",
    EventType.SCHEDULE_PAUSED: "a person paused a schedule: its slots get no job",
    EventType.SCHEDULE_RESUMED: "a person let a paused schedule go on, or the time of its pause is over",
    EventType.WORKER_STARTED: "a worker entered its row",
    EventType.WORKER_DRAIN_REQUESTED: "a person asked a worker to finish what it runs, and leave",
    EventType.WORKER_LOST: "a worker was found dead or its lease ran out; its row is closed",
    EventType.KEY_CREATED: "a person made an API key; what is told is its id, never the key",
    EventType.KEY_REVOKED: "a person revoked an API key: it lets nobody in any more",
    EventType.WORKER_RUNNER_DIED: "a process that runs jobs ended by itself or was killed by somebody else",
    EventType.DATABASE_RESTORED: "a person has said that the database is a restored one (`mulligan restored`)",
    EventType.ALERT_FIRED: "something is worth a person's attention: by a rule of the alerts, or a kind is held; once",
    EventType.ALERT_RESOLVED: "what an alert was fired for is over, or somebody has released it",
    EventType.ALERT_SILENCED: "a person does not want to hear of an alert for a while, or again does",
}

FIELDS = (
    ("id", "grows; the cursor of readers"),
    ("at", "when, in microseconds since 1970 UTC, by the clock of the store"),
    ("type", "one of the names above"),
    ("job_id, batch_id, owner", "whom it concerns, where it concerns a job or a batch"),
    ("attempt, token", "which attempt, where it concerns one"),
    (
        "actor",
        "who did it: `python`, `cli:NAME`, `key:ID`, `upkeep`, `schedule`, `guard` …, a worker id, or nothing",
    ),
    ("data", "what else is known; of a failure its public half only"),
)

DATA = (
    ("kind, queue", "of the job"),
    ("until, concurrency, rate, cleared", "of a pause or a limit"),
    ("reason", "the sentence of the decision, or what a person gave"),
    ("duration_ms", "how long the handler ran"),
    ("next_retry_at", "when it goes on, in microseconds"),
    ("code, class, message, rule", "the failure; `message` is the public sentence"),
    ("http_status, exit_code, signal, errno, program, …", "evidence, where there is any"),
    ("from, generation, choice, max_retries, run_at", "of a move made by hand"),
    ("before, after", "of what a person did: what it was and what it is now, by name"),
    ("changes", "of a retry with overrides: by field its value before and after, payloads redacted"),
    ("skipped", "of `job.succeeded`: its result was there already, and its handler was not called"),
    ("worker, host, pid", "of a worker"),
    ("worker, runner, signal, exit_code, jobs", "of a runner that died: how, and how many jobs it had"),
    (
        "wait_ms, failed_before, uses, cost",
        "of an attempt: how long it was due, counted failures of this life before it, what it uses, what it cost",
    ),
    (
        "name, generation, total, succeeded, dead, cancelled, missed, on_complete",
        "of a batch and its outcome: members by state, must-haves that are missing, the job that was enqueued",
    ),
    ("losses, max_losses", "of a loss, and of a death by losses: how often it was lost, how often it may"),
    ("group, failures, max_retries", "of a death: its cause, how often it failed, how often it may; of a retry too"),
    ("subscription, name", "of a subscription"),
    ("before, job, jobs, asked_to_stop, outcome, expires_at", "of a batch: what it was, what was retried or stopped"),
    ("kind, fingerprint, code, message, job, jobs, owners, since", "of the alert of a held kind; `job` is an example"),
    ("rule, key, value, threshold, window, severity, evidence, runbook", "of an alert: which, about what, how high"),
    ("action, did, limit, until", "of an alert that acts: what, and until when"),
    (
        "fingerprint, until, note",
        "of a failure group; `owner` if not of all",
    ),
    (
        "operation, action, filter, state, total, counts, untouched, note",
        "of an operation; `operation` also of its jobs",
    ),
    ("before, after", "of a change: what it was, and what it is"),
    ("run_at", "of `job.queued`: when it is due, in microseconds"),
    ("schedule, slot_at", "of `job.queued`: the schedule that made the job, and for which slot, in microseconds"),
    ("schedule, first, last, count", "of `schedule.skipped`: which slots, in microseconds; counting stops at 10,000"),
)


EVENTS = """\
{notice}

# Events

An event row is written in the same transaction as the change it tells of. `app.jobs.history(id)` returns those of one
job, `mulligan jobs show ID` prints them.

## Which events are there?

{events}

{silent}Progress is not an event: it would drown the others.

## What does an event hold?

{fields}

## What is in `data`?

{data}
"""


def page(notice: str, table: Table, code: str) -> str:
    """`code`: all the source that may write an event."""
    written = _written(code)
    for kind in EventType:
        if bool(WHEN.get(kind)) != (kind in written):
            message = f"docs/generate_events.py: WHEN[{kind}] must be told if and only if the code writes it"
            raise LookupError(message)
    rows = [[f"`{kind}`", WHEN[kind], _verbs(kind)] for kind in EventType if kind in written]
    silent = ", ".join(f"`{kind}`" for kind in EventType if kind not in written)
    return EVENTS.format(
        notice=notice,
        events=table(("event", "when", "move"), rows),
        silent=f"Reserved names that nothing writes yet: {silent}.\n\n" if silent else "",
        fields=table(("field", "meaning"), ([f"`{name}`", words] for name, words in FIELDS)),
        data=table(("key", "meaning"), ([f"`{name}`", words] for name, words in DATA)),
    )


def _verbs(kind: EventType) -> str:
    return ", ".join(verb for verb in Verb if lifecycle.event_for(verb) == kind)


def _written(code: str) -> set[EventType]:
    """Named by a move, or somewhere in the code that writes."""
    by_moves = {lifecycle.event_for(verb) for verb in Verb}
    return by_moves | {kind for kind in EventType if f"EventType.{kind.name}" in code}

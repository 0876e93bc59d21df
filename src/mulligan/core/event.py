"""Event types and event records. An event is written in the transaction of its change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.durations import Micros, to_datetime
from mulligan.core.job import NewJob


class EventType(StrEnum):
    """Names of all events, as stored and as sent to subscribers."""

    JOB_QUEUED = "job.queued"
    JOB_STARTED = "job.started"
    JOB_RETRY_SCHEDULED = "job.retry_scheduled"
    JOB_SNOOZED = "job.snoozed"
    JOB_WAITING = "job.waiting"
    JOB_ANSWERED = "job.answered"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_DIED = "job.died"
    JOB_CANCELLED = "job.cancelled"
    JOB_CANCEL_REQUESTED = "job.cancel_requested"
    JOB_PARKED = "job.parked"
    JOB_RELEASED = "job.released"
    JOB_TRIED = "job.tried"
    JOB_LOST = "job.lost"
    JOB_RETRIED = "job.retried"
    JOB_DISCARDED = "job.discarded"
    JOB_UNDISCARDED = "job.undiscarded"
    JOB_EDITED = "job.edited"
    JOB_STEP_FINISHED = "job.step_finished"
    JOB_UNDOING = "job.undoing"
    JOB_PRUNED = "job.pruned"
    JOB_STALE_REFUSED = "job.stale_refused"
    BATCH_SEALED = "batch.sealed"
    BATCH_READY = "batch.ready"
    BATCH_PARTIAL = "batch.partial"
    BATCH_FAILED = "batch.failed"
    BATCH_RECOVERED = "batch.recovered"
    BATCH_REOPENED = "batch.reopened"
    BATCH_CANCELLED = "batch.cancelled"
    BATCH_EXPIRED = "batch.expired"
    DEPENDENCY_OPENED = "dependency.opened"
    DEPENDENCY_PROBING = "dependency.probing"
    DEPENDENCY_CLOSED = "dependency.closed"
    DEPENDENCY_CHANGED = "dependency.changed"
    KIND_HELD = "kind.held"
    KIND_RELEASED = "kind.released"
    RELEASE_HELD = "release.held"
    RELEASE_UNHELD = "release.unheld"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_RESUMED = "queue.resumed"
    QUEUE_CHANGED = "queue.changed"
    FAILURE_MUTED = "failure.muted"
    FAILURE_RESOLVED = "failure.resolved"
    FAILURE_REOPENED = "failure.reopened"
    FAILURE_ASSIGNED = "failure.assigned"
    FAILURE_REGRESSED = "failure.regressed"
    OPERATION_STARTED = "operation.started"
    OPERATION_PAUSED = "operation.paused"
    OPERATION_RESUMED = "operation.resumed"
    OPERATION_STOPPED = "operation.stopped"
    OPERATION_ABORTED = "operation.aborted"
    OPERATION_FINISHED = "operation.finished"
    SUBSCRIPTION_CREATED = "subscription.created"
    SUBSCRIPTION_CHANGED = "subscription.changed"
    SUBSCRIPTION_DISABLED = "subscription.disabled"
    SUBSCRIPTION_REMOVED = "subscription.removed"
    DELIVERY_SKIPPED = "delivery.skipped"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_PAUSED = "schedule.paused"
    SCHEDULE_RESUMED = "schedule.resumed"
    WORKER_STARTED = "worker.started"
    WORKER_DRAIN_REQUESTED = "worker.drain_requested"
    WORKER_LOST = "worker.lost"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    WORKER_RUNNER_DIED = "worker.runner_died"
    DATABASE_RESTORED = "database.restored"
    ALERT_FIRED = "alert.fired"
    ALERT_RESOLVED = "alert.resolved"
    ALERT_SILENCED = "alert.silenced"


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event about to be written. The database assigns its id and time."""

    type: EventType
    job_id: str | None = None
    batch_id: str | None = None
    owner: str = ""
    attempt: int | None = None
    token: int | None = None
    actor: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class Event(NamedTuple):
    """An event as stored."""

    id: int
    at: Micros
    type: str
    job_id: str | None
    batch_id: str | None
    owner: str
    attempt: int | None
    token: int | None
    actor: str
    data: Mapping[str, Any]

    @property
    def seq(self) -> int:
        """Order of the events of one job: a later event has a higher number. Gaps are normal.

        It is the id: a transaction draws ids for the events of a job only after it has locked the
        job, so ids grow along the life of each job, in every store.
        """
        return self.id

    @property
    def time(self) -> datetime:
        """Time of the event."""
        return to_datetime(self.at)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Build an event from its fields. Fields of a newer version are ignored."""
        return cls(**{name: values[name] for name in cls._fields})


EventList = list[Event]  # for services with a method named list

# Actors that are parts of Mulligan, not people or programs.
SYSTEM_ACTORS = frozenset(
    {"", "alert", "breaker", "guard", "handler", "hint", "schedule", "upkeep"}
)

# Data fields that the owner of a job must not see: workers, hosts, and changes by staff.
STAFF_ONLY_FIELDS = frozenset(
    {"before", "after", "changes", "worker", "host", "pid", "note", "fixed", "filter", "runbook"}
    | {"release", "in_release", "resolved_by", "alarm", "undo"}
)


def owner_visible_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return event data without the fields that are for staff only."""
    return {name: value for name, value in data.items() if name not in STAFF_ONLY_FIELDS}


def queued_event(job: NewJob, run_at: Micros, actor: str, data: Mapping[str, Any]) -> NewEvent:
    """Return the `job.queued` event of a new job."""
    return NewEvent(
        EventType.JOB_QUEUED,
        job_id=job.id,
        batch_id=job.batch_id,
        owner=job.owner,
        actor=actor,
        data={"kind": job.kind, "queue": job.queue, "run_at": run_at, **data},
    )

"""Statements about durable steps and checkpoints, as methods, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from mulligan.core.attempt import Failure, Lease, StepFailure
from mulligan.core.durations import Micros
from mulligan.core.event import EventType
from mulligan.core.job import RecordedStep
from mulligan.core.json import encode
from mulligan.events.queries import JobEventQueries
from mulligan.retries.undo import mark_undo
from mulligan.steps.rules import AUTO_UNDO, StepKind, StepRecord, StepState
from mulligan.storage.base import Queries, RowTransaction

_UNFINISHED = frozenset({StepState.RUNNING, StepState.WAITING})


class StepRow(NamedTuple):
    """A step as it is stored."""

    name: str
    kind: str
    state: str
    number: int
    value: str | None
    detail: str
    token: int
    started_at: Micros
    ended_at: Micros | None
    actor: str


class StepWrite(NamedTuple):
    """A step to save: the fence of its attempt, its row, and the data of its event."""

    lease: Lease
    id: str
    worker: str
    token: int
    name: str
    kind: str
    state: str
    number: int
    value: str | None
    detail: str
    took: Micros
    settings: str | None = None  # new settings of the job; None: unchanged
    data: str | None = None  # of the event; None: no event

    @property
    def key(self) -> tuple[str, str]:
        """Primary key of the row."""
        return self.id, self.name


def step_write(lease: Lease, record: StepRecord) -> StepWrite:
    """Return the row and the event of what an attempt records, under its fence."""
    return StepWrite(
        lease,
        lease.id,
        lease.worker,
        lease.token,
        *record,
        settings=_settings_after(lease, record),
        data=_event_data(lease, record),
    )


def _settings_after(lease: Lease, record: StepRecord) -> str | None:
    """Return the settings of a job that now has a step to undo; None: unchanged."""
    if record.state != StepState.DONE or AUTO_UNDO not in record.detail:
        return None
    settings = mark_undo(lease.settings)
    return None if settings == lease.settings else settings


def _event_data(lease: Lease, record: StepRecord) -> str | None:
    """Return the data of `job.step_finished`; None for what finishes no step."""
    if record.kind == StepKind.CHECKPOINT or record.state in _UNFINISHED:
        return None
    data: dict[str, Any] = {"kind": lease.kind, "queue": lease.queue, "step": record.name}
    data |= {"state": record.state, "duration_ms": record.took // 1000}
    return encode(data)


class FailedStep(NamedTuple):
    """A step that failed, to save with the settlement of its attempt."""

    id: str
    name: str
    number: int
    token: int
    took: Micros
    detail: str


def failed_step(lease: Lease, step: StepFailure, failure: Failure | None) -> FailedStep:
    """Return the row of a step that failed."""
    detail = encode({"code": failure.code} if failure is not None else {})
    return FailedStep(lease.id, step.name, step.number, lease.token, step.took, detail)


def lease_after(lease: Lease, write: StepWrite) -> Lease:
    """Return the lease of an attempt that has saved a step: its decision must use the same."""
    settings = lease.settings if write.settings is None else write.settings
    return lease._replace(losses=0, settings=settings)


class StepQueries(Queries):
    """Statements about steps, in a transaction."""

    def save(self, writes: Sequence[StepWrite]) -> set[tuple[str, str]]:
        """Save steps with their events. Return the keys (job, name) of those that were saved.

        The others belong to attempts that have lost their lease. The keys must be distinct.
        """
        if isinstance(self.tx, RowTransaction):
            return {write.key for write in writes if self._save_row(write)}
        in_order = sorted(writes, key=attrgetter("id", "name"))
        return {(row[0], row[1]) for row in self.tx.run_set("save_steps", in_order)}

    def _save_row(self, write: StepWrite) -> bool:
        """Save one step (SQLite)."""
        if not self.tx.run_set("save_steps", [write]):
            return False
        self.tx.run_set("note_step", [write])
        if write.data is not None and isinstance(self.tx, RowTransaction):
            events = JobEventQueries(self.tx)
            events.write_row_events(EventType.JOB_STEP_FINISHED, [write.lease], [write.data])
        return True

    def save_failed(self, rows: Sequence[FailedStep]) -> None:
        """Save steps that failed, for attempts that this transaction has settled."""
        self.tx.run_set("save_failed_steps", sorted(rows))

    def forget_from(self, job_id: str, name: str, actor: str) -> bool:
        """Forget a step and those that ended after it. False if the job has no such step."""
        return bool(self.tx.rows("forget_steps", id=job_id, name=name, actor=actor))

    def list_undoable(self, job_id: str) -> list[str]:
        """List the finished steps that have an undo function."""
        return [row[0] for row in self.tx.rows("list_undoable_steps", id=job_id)]

    def set_result(self, job_id: str, name: str, value: str, token: int, actor: str) -> None:
        """Set the result of a step by hand."""
        self.tx.rows("set_step_result", id=job_id, name=name, value=value, token=token, actor=actor)

    def clear_mark(self, job_id: str, name: str, actor: str) -> None:
        """Record that a step in doubt did not happen: it runs again."""
        self.tx.rows("clear_step_mark", id=job_id, name=name, actor=actor)

    def find_parked_evidence(self, job_id: str, token: int, code: str) -> str | None:
        """Return the evidence of the attempt that parked a job with this code."""
        found = self.tx.rows("find_parked_evidence", id=job_id, token=token, code=code)
        return found[0][0] if found else None

    def list_recorded(self, ids: Sequence[str]) -> dict[str, dict[str, RecordedStep]]:
        """Return what earlier attempts of jobs recorded, by job and name."""
        found: dict[str, dict[str, RecordedStep]] = {}
        for job_id, name, *step in self.tx.rows(
            "list_recorded_steps", ids=self.tx.array_param(ids)
        ):
            found.setdefault(job_id, {})[name] = RecordedStep._make(step)
        return found

    def list_steps(self, job_id: str) -> list[StepRow]:
        """List the steps of a job in the order in which they ended."""
        return self.list_rows(StepRow, "list_steps", id=job_id)

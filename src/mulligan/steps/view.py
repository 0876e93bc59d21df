"""Steps of a job as people see them: what each one returned, failed with or waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from mulligan.core.durations import optional_datetime, to_datetime
from mulligan.core.job import JobRow, State
from mulligan.steps.queries import StepRow
from mulligan.steps.rules import StepState, read_detail

IN_DOUBT = "in doubt"  # called by an attempt that left no result
RUNS_AGAIN = "runs again"  # a person forgot its result


class JobStep(NamedTuple):
    """A step of a job."""

    name: str
    kind: str  # step, sleep or wait
    state: str
    code: str  # of the failure
    token: int  # of the attempt that wrote it
    started_at: datetime
    ended_at: datetime | None
    until: datetime | None  # when a wait ends
    actor: str  # the person who changed it; empty: an attempt
    value: Any  # what it returned; private

    @property
    def seconds(self) -> float | None:
        """How long it took. None: it has not ended."""
        if self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def may_continue_here(self) -> bool:
        """True if a retry may forget this step and those that ended after it."""
        return self.kind == "step" and self.state != RUNS_AGAIN

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        times = {
            name: None if at is None else at.isoformat()
            for name, at in (
                ("started_at", self.started_at),
                ("ended_at", self.ended_at),
                ("until", self.until),
            )
        }
        return {**self._asdict(), **times}


StepList = list[JobStep]


def describe_steps(rows: Iterable[StepRow], job: JobRow) -> StepList:
    """Return the steps of a job in the order in which they ended."""
    return [_describe(row, job) for row in rows]


def _describe(row: StepRow, job: JobRow) -> JobStep:
    detail = read_detail(row.detail)
    return JobStep(
        name=row.name,
        kind=row.kind,
        state=_word(row, job),
        code=str(detail.get("code", "")),
        token=row.token,
        started_at=to_datetime(row.started_at),
        ended_at=optional_datetime(row.ended_at),
        until=optional_datetime(detail.get("until")) if row.state == StepState.WAITING else None,
        actor=row.actor,
        value=None if row.value is None else json.loads(row.value),
    )


def _word(row: StepRow, job: JobRow) -> str:
    if row.state == StepState.FORGOTTEN:
        return RUNS_AGAIN
    if row.state != StepState.RUNNING:
        return row.state
    is_running_now = job.state == State.RUNNING and job.token == row.token
    return "running" if is_running_now else IN_DOUBT

"""Report of a host queue about one run of a task, as a value and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.attempt import Failure
from mulligan.core.durations import Micros
from mulligan.core.ids import new_id
from mulligan.worker.protocol import failure_from_wire, failure_to_wire

VERSION = 1


class RunEnd(StrEnum):
    """How a run of a task ended, in the order in which one report replaces another."""

    RETRYING = "retrying"  # the host runs it again
    FAILED = "failed"  # the host gave up
    SUCCEEDED = "succeeded"


ORDER = tuple(RunEnd)


class TaskReport(NamedTuple):
    """One run of a task that the host queue has finished."""

    id: str
    host: str  # celery, rq, dramatiq
    task: str  # name in the host queue
    task_id: str
    end: RunEnd
    at: Micros
    worker: str = ""
    payload: Mapping[str, Any] | None = None  # of the job; None: of a success
    failure: Failure | None = None
    retry_at: Micros | None = None  # when the host runs it again
    max_retries: int | None = None  # of the host; None: without limit
    run: int | None = None  # earlier runs of this task; None: not known
    generation: int | None = None  # of the job that was sent; None: not sent by Mulligan

    @property
    def kind(self) -> str:
        """Kind of the job that stands for the task."""
        return kind_name(self.host, self.task)

    def to_json(self) -> str:
        fields = {**self._asdict(), "failure": failure_to_wire(self.failure), "version": VERSION}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """Decode a report. Raises ValueError if it is not one of this version."""
        try:
            fields = json.loads(text)
            if fields.pop("version") != VERSION:
                raise ValueError("the report has another version")
            fields["failure"] = failure_from_wire(fields["failure"])
            fields["end"] = RunEnd(fields["end"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a report: {error}") from error


def kind_name(host: str, task: str) -> str:
    """Return the kind of a task. What a kind must not contain becomes an underscore."""
    clean = "".join("_" if char in "|," or char.isspace() else char for char in task)
    return f"{host}:{clean or 'unnamed'}"[:200]


def new_report_id() -> str:
    """Return the id of a new report. Ids sort by time."""
    return new_id()

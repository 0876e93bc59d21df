"""How tests name kinds and jobs."""

from __future__ import annotations

from typing import Any

from mulligan.engine.kind import Kind
from mulligan.errors import Refused
from mulligan.job import Job

Named = Kind[..., Any] | str


def name_of(kind: Any) -> str:
    """A registered handler, or the name of a kind."""
    if isinstance(kind, Kind):
        return kind.name
    if isinstance(kind, str) and kind:
        return kind
    message = f"a kind is what @app.job made, or its name, not {kind!r:.80}"
    raise Refused(message)


def id_of(job: Any) -> str:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, str) and job:
        return job
    message = f"a job is a Job or its id, not {job!r:.80}"
    raise Refused(message)

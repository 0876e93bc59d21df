"""Build complete values for tests of pure rules; a test passes only what it depends on."""

from __future__ import annotations

from typing import Any

from mulligan.core.attempt import RETRYABLE, Cls, Failure, Lease
from mulligan.core.durations import SECOND
from mulligan.core.job import JobRow

NOW = 1_700_000_000 * SECOND

_LEASE = Lease(
    id="job",
    kind="render",
    queue="default",
    owner="acme",
    worker="w1",
    token=1,
    attempt=1,
    generation=0,
    priority=0,
    payload="{}",
    uses="",
    failures=0,
    losses=0,
    snoozes=0,
    max_retries=None,
    policy=None,
    timeout=None,
    deadline_at=None,
    created_at=NOW,
    run_at=NOW,
    started_at=NOW,
    first_started_at=NOW,
    alone=False,
    batch_id=None,
    choice=None,
    unique_key=None,
    unique_cover=None,
    cancel_reason=None,
)

_JOB_ROW = JobRow(
    id="job",
    kind="render",
    queue="default",
    owner="acme",
    state="queued",
    priority=0,
    payload="{}",
    result=None,
    error=None,
    uses="",
    run_at=NOW,
    created_at=NOW,
    started_at=None,
    first_started_at=None,
    finished_at=None,
    deadline_at=None,
    worker=None,
    token=0,
    generation=0,
    attempt=0,
    failures=0,
    losses=0,
    snoozes=0,
    max_retries=None,
    alone=False,
    unique_key=None,
    unique_hash=None,
    unique_cover=None,
    batch_id=None,
    cancel_reason=None,
    choice=None,
    choices=None,
    reason="",
    progress=None,
    progress_message="",
    cost=0.0,
)


def make_lease(**changes: Any) -> Lease:
    return _LEASE._replace(**changes)


def make_job_row(**changes: Any) -> JobRow:
    return _JOB_ROW._replace(**changes)


def make_failure(cls: Cls = Cls.TRANSIENT, code: str = "BOOM", **changes: Any) -> Failure:
    values = {"public": "It broke.", "rule": "test.rule", "retryable": cls in RETRYABLE, **changes}
    return Failure(code=code, cls=cls, **values)

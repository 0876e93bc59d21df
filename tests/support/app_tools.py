"""Helpers for tests that run jobs of an app inline."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from mulligan import Job, Mulligan, testing
from mulligan.core.durations import SECOND
from mulligan.core.ids import new_id
from mulligan.core.job import AttemptRow, JobRow
from mulligan.jobs.queries import JobQueries
from mulligan.observability.event_counts import EventCounter
from support.store import open_worker

# The store of a test belongs to the test, whatever created it.
drain_anywhere = partial(testing.drain, anywhere=True)
drain_anywhere_async = partial(testing.drain_async, anywhere=True)
advance_anywhere = partial(testing.advance, anywhere=True)


def run_job(app: Mulligan, job: Job) -> Job:
    """Run everything that is due now and return the job."""
    app.run_inline(seed=7)
    return job.refresh()


def advance(app: Mulligan, seconds: float) -> None:
    """Move the store's clock for all its users."""
    app.store.shift_clock(round(seconds * SECOND))


def run_until_final(app: Mulligan, job: Job, attempts: int = 50) -> Job:
    """Run the job until it has no further attempt, each as soon as it is due."""
    for _ in range(attempts):
        done = run_job(app, job)
        if done.next_retry_at is None:
            return done
        advance(app, 1 + max(0.0, (done.run_at - done.created_at).total_seconds()))
    raise AssertionError(f"still {done.state} after {attempts} attempts")


def count_events(app: Mulligan) -> None:
    """Count events as a worker does every second. The first round only makes the reader."""
    counter = EventCounter(every=0)
    counter.run_once(app.store)
    while counter.run_once(app.store):
        pass


def register_idle_worker(app: Mulligan) -> None:
    """Register a worker that has all kinds of this app and claims nothing.

    Without one, the phase of every due job would be no_worker.
    """
    open_worker(app.store, f"w_{new_id()}", kinds=json.dumps(sorted(app.registry.handlers)))


def load_row(app: Mulligan, job: Job) -> JobRow:
    with app.store.read() as tx:
        row = JobQueries(tx).get_job(job.id)
    assert row is not None
    return row


def load_attempts(app: Mulligan, job: Job) -> list[AttemptRow]:
    with app.store.read() as tx:
        return JobQueries(tx).list_attempts(job.id)


def event_types(app: Mulligan, job: Job) -> list[str]:
    """Return the types of a job's events in order, without `job.`."""
    return [event.type.removeprefix("job.") for event in app.jobs.history(job.id)]


def load_private(app: Mulligan, job: Job) -> dict[str, Any]:
    """Return the private part of the last failure."""
    return dict(json.loads(load_attempts(app, job)[-1].private or "{}"))


def error_code(job: Job) -> str:
    return "" if job.error is None else str(job.error["code"])


def assert_other_jobs_run(app: Mulligan) -> None:
    """Assert that another job still runs, whatever happened before."""
    if "after_all" not in app.registry.handlers:
        app.job(name="after_all")(lambda: "fine")
    assert run_job(app, app.enqueue("after_all")).result == "fine"

"""Short words for what the tests of the walk do all the time."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from mulligan import Job, Mulligan, testing
from mulligan.core.ids import new_id
from mulligan.core.job import SECOND, AttemptRow, JobRow
from support.store import open_worker

# A test's store is its own, whoever made it.
drain_anywhere = partial(testing.drain, anywhere=True)
drain_anywhere_async = partial(testing.drain_async, anywhere=True)
advance_anywhere = partial(testing.advance, anywhere=True)


def ran(app: Mulligan, job: Job) -> Job:
    """The job after everything that is due now has run, inline."""
    app.run_inline(seed=7)
    return job.refresh()


def advance(app: Mulligan, seconds: float) -> None:
    """Move the store's clock, for everybody who uses it."""
    app.store.shift_clock(round(seconds * SECOND))


def ran_out(app: Mulligan, job: Job, attempts: int = 50) -> Job:
    """The job after as many attempts as it gets, each as soon as it is due."""
    for _ in range(attempts):
        done = ran(app, job)
        if done.next_retry_at is None:
            return done
        advance(app, 1 + max(0.0, (done.run_at - done.created_at).total_seconds()))
    raise AssertionError(f"still {done.state} after {attempts} attempts")


def stand_by(app: Mulligan) -> None:
    """A worker that knows all kinds of this app and takes nothing: without one, that is all a job's phase would say."""
    open_worker(app.store, f"w_{new_id()}", kinds=json.dumps(sorted(app.registry.handlers)))


def row_of(app: Mulligan, job: Job) -> JobRow:
    with app.store.read() as unit:
        row = unit.get(job.id)
    assert row is not None
    return row


def attempts_of(app: Mulligan, job: Job) -> list[AttemptRow]:
    with app.store.read() as unit:
        return unit.attempts(job.id)


def told(app: Mulligan, job: Job) -> list[str]:
    """The types of its events in order, without their common beginning."""
    return [event.type.removeprefix("job.") for event in app.jobs.history(job.id)]


def private_of(app: Mulligan, job: Job) -> dict[str, Any]:
    """The private half of the last failure."""
    return dict(json.loads(attempts_of(app, job)[-1].private or "{}"))


def code_of(job: Job) -> str:
    return "" if job.error is None else str(job.error["code"])


def works(app: Mulligan) -> None:
    """The next job runs: whatever happened before harmed nobody else."""
    if "after_all" not in app.registry.handlers:
        app.job(name="after_all")(lambda: "fine")
    assert ran(app, app.enqueue("after_all")).result == "fine"

"""The database refuses one row; no other job is affected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mulligan import Mulligan, State
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

REFUSE_RESULT = {
    "sqlite": "CREATE TRIGGER refuse BEFORE UPDATE ON mulligan_job WHEN NEW.result LIKE '%poison%' "
    "BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    "postgresql": "ALTER TABLE mulligan.job ADD CONSTRAINT refuse CHECK (result NOT LIKE '%poison%')",
}


def test_an_outcome_the_database_refuses_ends_only_its_own_job(app: Mulligan, start: Start) -> None:
    with app.transaction() as connection:
        connection.execute(REFUSE_RESULT[app.store.facts()["store"]])
    good = [app.enqueue("says", {"text": "fine", "times": 1}) for _ in range(6)]
    bad = app.enqueue("says", {"text": "poison", "times": 1})
    more = [app.enqueue("says", {"text": "fine", "times": 1}) for _ in range(6)]
    worker = start()
    assert {app.jobs.wait(job.id, 20).state for job in (*good, *more)} == {State.SUCCEEDED}
    dead = app.jobs.wait(bad.id, 20)
    assert dead.error is not None
    assert (dead.state, dead.error["code"]) == (State.DEAD, "OUTCOME_REFUSED")
    later = app.enqueue("says", {"text": "still here", "times": 1})
    assert app.jobs.wait(later.id, 10).state is State.SUCCEEDED
    assert worker.process.poll() is None


@pytest.mark.any_store
def test_a_cancellation_reaches_a_worker_long_before_its_next_heartbeat(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start(worker__lease="3600", worker__heartbeat="1200")
    job = app.enqueue("nap_async", {"seconds": 600})
    until(lambda: starts(job.id))
    app.jobs.cancel(job.id)
    assert app.jobs.wait(job.id, 30).state is State.CANCELLED

"""The database refuses one row; no other job is affected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


SLOW_RESULT = """
CREATE FUNCTION mulligan.be_slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(4); RETURN NEW; END $$;
CREATE TRIGGER be_slow BEFORE UPDATE ON mulligan.job FOR EACH ROW
WHEN (NEW.result LIKE '%slow%') EXECUTE FUNCTION mulligan.be_slow()
"""
TOO_LARGE_RESULT = """
CREATE FUNCTION mulligan.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'too large' USING ERRCODE = '54000'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON mulligan.job FOR EACH ROW
WHEN (NEW.result LIKE '%slow%') EXECUTE FUNCTION mulligan.refuse()
"""
only_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


@only_postgres
@pytest.mark.parametrize("cause", [SLOW_RESULT, TOO_LARGE_RESULT], ids=["timeout", "limit"])
def test_an_outcome_that_can_never_be_written_is_no_outage_and_delays_no_other_job(
    app: Mulligan, store_url: str, tmp_path: Path, cause: str
) -> None:
    with app.transaction() as connection:
        connection.execute(cause)
    bad = app.enqueue("says", {"text": "slow", "times": 20_000})
    good = [app.enqueue("says", {"text": "fine", "times": 1}) for _ in range(6)]
    separator = "&" if "?" in store_url else "?"
    url = f"{store_url}{separator}options=-c%20statement_timeout%3D1500"
    worker = Worker(url, tmp_path).ready()
    try:
        assert {app.jobs.wait(job.id, 20).state for job in good} == {State.SUCCEEDED}
        later = app.enqueue("says", {"text": "still here", "times": 1})
        assert app.jobs.wait(later.id, 10).state is State.SUCCEEDED
        dead = app.jobs.wait(bad.id, 60)
        assert dead.error is not None
        assert (dead.state, dead.error["code"]) == (State.DEAD, "OUTCOME_REFUSED")
    finally:
        assert worker.end() == 0


@pytest.mark.any_store
def test_a_cancellation_reaches_a_worker_long_before_its_next_heartbeat(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start(worker__lease="3600", worker__heartbeat="1200")
    job = app.enqueue("nap_async", {"seconds": 600})
    until(lambda: starts(job.id))
    app.jobs.cancel(job.id)
    assert app.jobs.wait(job.id, 30).state is State.CANCELLED

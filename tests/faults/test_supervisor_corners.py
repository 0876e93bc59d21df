"""Supervisor under faults: runner deaths in an outage, lost results, signals at start-up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Job, Mulligan, State
from mulligan.worker.queries import WorkerQueries
from support.store import attempts, sql
from support.troubled import DATABASE_DOWN, LOST_ANSWERS, PROGRAM, SLOW_CLEANUP, SLOW_WRITES, Faults
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

# These tests do not depend on the database.
only_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)

OUTAGE_LOGGED = "their outcomes are kept"
LONG = "60"  # seconds: a worker that cannot renew for half a lease stops claiming


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path)


def event_types(app: Mulligan, job: Job) -> list[str]:
    return [event.type.removeprefix("job.") for event in app.jobs.history(job.id)]


# --- Death of a runner during an outage ---


@pytest.mark.any_store
def test_a_runner_that_dies_during_a_database_outage_charges_each_of_its_jobs_one_loss(
    app: Mulligan, start: Start, starts: Starts, faults: Faults
) -> None:
    worker = start(program=PROGRAM, worker__lease=LONG)
    jobs = [app.enqueue("nap_first", {"seconds": 60}) for _ in range(3)]
    until(lambda: all(starts(job.id) for job in jobs))
    [runner] = {int(starts(job.id)[0].split()[4]) for job in jobs}

    faults.begin(SLOW_CLEANUP)
    os.kill(runner, signal.SIGKILL)
    until(lambda: faults.was_noticed(SLOW_CLEANUP))
    faults.begin(DATABASE_DOWN)
    until(lambda: OUTAGE_LOGGED in worker.text(), 10, "a transaction failed")
    faults.end(DATABASE_DOWN)
    other = app.enqueue("nap", {"seconds": 0})
    # The worker has reconciled, and no other worker has the three jobs.
    assert app.jobs.wait(other.id, 10).state is State.SUCCEEDED
    assert [event_types(app, job) for job in jobs] == [["queued", "started"]] * 3
    assert [len(starts(job.id)) for job in jobs] == [1] * 3

    faults.begin(DATABASE_DOWN)
    faults.end(SLOW_CLEANUP)
    until(
        lambda: "with 3 jobs" in worker.text() and worker.text().count(OUTAGE_LOGGED) >= 2,
        10,
        "endings wait for the database",
    )
    faults.begin(LOST_ANSWERS)
    faults.end(DATABASE_DOWN)
    until(lambda: all("lost" in event_types(app, job) for job in jobs), 10)
    assert [job.refresh().losses for job in jobs] == [1] * 3
    faults.end(LOST_ANSWERS)

    for job in jobs:
        done = app.jobs.wait(job.id, 15)
        assert (done.state, done.failures, done.token) == (State.SUCCEEDED, 0, 2)
        assert event_types(app, job) == ["queued", "started", "lost", "started", "succeeded"]
        assert [attempt.ended for attempt in attempts(app.store, job.id)] == ["lost", "returned"]
        assert [line.split()[3] for line in starts(job.id)] == ["1", "2"]
    assert worker.process.poll() is None


# --- Lost results ---


def test_a_claim_whose_result_was_lost_is_found_again_and_runs_once(
    app: Mulligan, start: Start, starts: Starts, faults: Faults
) -> None:
    worker = start(program=PROGRAM, worker__lease=LONG)
    faults.begin(LOST_ANSWERS)
    jobs = [app.enqueue("nap", {"seconds": 0}) for _ in range(3)]
    until(
        lambda: (
            any(job.refresh().state is State.RUNNING for job in jobs)
            and OUTAGE_LOGGED in worker.text()
        ),
        10,
    )
    assert [starts(job.id) for job in jobs] == [[]] * 3
    faults.end(LOST_ANSWERS)
    for job in jobs:
        done = app.jobs.wait(job.id, 10)
        assert (done.state, done.attempts) == (State.SUCCEEDED, 1)
        assert event_types(app, job) == ["queued", "started", "succeeded"]
        assert len(starts(job.id)) == 1


# --- Endings that the database refuses ---


REFUSE = (
    "CREATE TRIGGER refuse BEFORE UPDATE ON {{p}}job WHEN OLD.id = '{id}' AND NEW.state <> 'running' "
    "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
)


@only_sqlite
def test_a_job_whose_ending_is_refused_in_any_form_is_not_run_again_and_the_others_run(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    bad = app.enqueue("nap", {"seconds": 0})
    sql(app.store, REFUSE.format(id=bad.id))
    worker = start(program=PROGRAM)
    until(lambda: "the database refuses this failure too" in worker.text(), 10, worker.text())
    others = [app.enqueue("nap", {"seconds": 0}) for _ in range(3)]
    assert {app.jobs.wait(job.id, 10).state for job in others} == {State.SUCCEEDED}
    assert worker.end() == 0
    assert event_types(app, bad) == ["queued", "started"]
    assert len(starts(bad.id)) == 1


# --- Signals at start-up ---


def nothing_is_left(app: Mulligan, worker: Worker, folder: Path) -> bool:
    with app.store.read() as tx:
        rows = WorkerQueries(tx).list_workers(closed=False)
    return not (rows or worker.runners_left() or list((folder / "state").rglob("*.life")))


@only_sqlite
def test_sigterm_during_the_import_of_the_app_ends_the_worker_at_once(
    app: Mulligan, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app.store.prepare()
    monkeypatch.setenv("SLOW_IMPORT", "600")
    worker = start(wait=False, program=PROGRAM)
    until(worker.runners)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(5) == 0
    assert nothing_is_left(app, worker, tmp_path)


@only_sqlite
def test_sigterm_before_the_database_answers_ends_the_worker_at_once(
    app: Mulligan, start: Start, faults: Faults, tmp_path: Path
) -> None:
    app.store.prepare()
    faults.begin(DATABASE_DOWN)
    worker = start(wait=False, program=PROGRAM)
    until(lambda: "trying again" in worker.text(), 10)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(5) == 0
    assert nothing_is_left(app, worker, tmp_path)


@only_sqlite
def test_sigterm_during_the_registration_leaves_no_open_worker_row(
    app: Mulligan, start: Start, faults: Faults, tmp_path: Path
) -> None:
    app.store.prepare()
    faults.begin(SLOW_WRITES)
    worker = start(wait=False, program=PROGRAM)
    until(lambda: faults.was_noticed(SLOW_WRITES), 10)
    worker.signal(signal.SIGTERM)
    until(lambda: "stopping" in worker.text() and not worker.runners(), 10)
    faults.end(SLOW_WRITES)
    assert worker.process.wait(10) == 0
    assert nothing_is_left(app, worker, tmp_path)


@only_sqlite
@pytest.mark.slow
def test_runners_that_are_killed_while_they_load_the_app_are_replaced(
    app: Mulligan, start: Start
) -> None:
    worker = start(wait=False, environ={"SLOW_IMPORT": "1.5"}, worker__runners="2")
    for pid in until(lambda: len(worker.runners()) == 2 and worker.runners(), 60):
        os.kill(pid, signal.SIGKILL)
    until(lambda: worker.text().count("ended (signal 9)") == 2, 60)
    assert app.jobs.wait(app.enqueue("nap", {"seconds": 0}).id, 60).state is State.SUCCEEDED
    assert worker.process.poll() is None

"""Runners that reached `max_jobs_per_runner` or `max_memory_per_runner` are replaced; no job pays for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from mulligan import Job, Mulligan, State
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]


def wait_for_all(app: Mulligan, jobs: list[Job]) -> list[Job]:
    return [app.jobs.wait(job.id, 30) for job in jobs]


def pid_of(line: str) -> int:
    return int(line.split()[4])


def test_a_runner_gets_no_more_jobs_than_its_limit(app: Mulligan, start: Start, starts: Starts):
    worker = start(worker__max_jobs_per_runner="5", worker__concurrency="4")
    jobs = [app.enqueue("nap", {"seconds": 0.0}) for _ in range(23)]
    done = wait_for_all(app, jobs)
    assert {(job.state, job.failures, job.losses) for job in done} == {(State.SUCCEEDED, 0, 0)}
    # On a busy machine a job may be given back unstarted, which is an attempt.
    [times_started] = {len(starts(job.id)) for job in done}
    assert times_started == 1
    ran = Counter(pid_of(starts(job.id)[0]) for job in done)
    assert max(ran.values()) <= 5
    assert "is replaced: it has run 5 jobs" in worker.text()
    # One shared runner, and a spare one for isolated kinds.
    until(lambda: len(worker.runners()) == 2, 10, "old runners have exited")


def test_long_jobs_finish_in_a_runner_that_gets_no_more(
    app: Mulligan, start: Start, starts: Starts
):
    start(worker__max_jobs_per_runner="2", worker__concurrency="6")
    long = [app.enqueue("nap", {"seconds": 2.5}) for _ in range(2)]
    until(lambda: all(starts(job.id) for job in long), 10)
    short = [app.enqueue("nap", {"seconds": 0.0}) for _ in range(3)]
    for job in wait_for_all(app, short):
        assert job.state is State.SUCCEEDED
        assert app.jobs.get(long[0].id).state is State.RUNNING  # nothing waited for the long ones
    for job in wait_for_all(app, long):
        assert (job.state, job.attempts, job.losses) == (State.SUCCEEDED, 1, 0)


def test_a_limit_of_one_job_runs_as_many_at_once_as_there_are_slots(
    app: Mulligan, start: Start, starts: Starts
):
    start(worker__max_jobs_per_runner="1", worker__concurrency="4")
    jobs = [app.enqueue("nap", {"seconds": 3.0}) for _ in range(4)]
    until(lambda: all(starts(job.id) for job in jobs), 10, "all run at once")
    done = wait_for_all(app, jobs)
    assert len({pid_of(starts(job.id)[0]) for job in done}) == 4
    assert {(job.attempts, job.losses) for job in done} == {(1, 0)}


def test_a_runner_that_leaks_is_replaced_and_its_jobs_finish(
    app: Mulligan, start: Start, starts: Starts
):
    worker = start(worker__max_memory_per_runner="300MB")
    slow = app.enqueue("nap", {"seconds": 2.0})
    until(lambda: starts(slow.id), 10)
    leaks = app.enqueue("leaks", {"megabytes": 400})
    assert app.jobs.wait(leaks.id, 20).state is State.SUCCEEDED
    until(lambda: "is replaced: it uses" in worker.text(), 10)
    assert re.search(r"it uses \d+ MB, more than 300 MB", worker.text())
    ended = app.jobs.wait(slow.id, 20)
    assert (ended.state, ended.attempts, ended.losses) == (State.SUCCEEDED, 1, 0)
    after = app.enqueue("nap", {"seconds": 0.0})
    app.jobs.wait(after.id, 20)
    assert pid_of(starts(after.id)[0]) != pid_of(starts(slow.id)[0])
    until(lambda: len(worker.runners()) == 2, 10, "the large one has exited")


@pytest.mark.any_store
def test_a_memory_limit_below_the_size_of_the_app_is_ignored_with_a_warning(
    app: Mulligan, start: Start
):
    worker = start(worker__max_memory_per_runner="10MB")
    jobs = [app.enqueue("nap", {"seconds": 0.0}) for _ in range(3)]
    wait_for_all(app, jobs)
    assert "worker.max_memory_per_runner (10 MB) is ignored: the app alone uses" in worker.text()
    assert "is replaced" not in worker.text()

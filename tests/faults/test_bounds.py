"""Limits on how many jobs and runners a worker holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mulligan import Mulligan, State
from mulligan.worker.supervisor.slots import MAX_CLAIM, MAX_PREFETCH, Prefetch
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.any_store

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_isolated_jobs_use_at_most_concurrency_plus_one_runners(
    app: Mulligan, start: Start
) -> None:
    worker = start(worker__concurrency="2")
    # Short jobs, so that the prefetch grows.
    quick = [app.enqueue("says", {"text": "x", "times": 1}) for _ in range(200)]
    jobs = [app.enqueue("alone", {}) for _ in range(12)]
    most = 0

    def all_done() -> bool:
        nonlocal most
        most = max(most, len(worker.runners()))
        return all(job.refresh().state is State.SUCCEEDED for job in jobs)

    until(all_done, 40)
    # The shared runner, two that work, the spare, and two that are just exiting.
    assert most <= 1 + 2 + 1 + 2
    assert len({job.refresh().result for job in jobs}) == len(jobs)
    assert {app.jobs.wait(job.id, 20).state for job in quick} == {State.SUCCEEDED}


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_prefetched_jobs_that_do_not_start_are_released_and_not_claimed_ahead_again(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    for _ in range(300):
        app.enqueue("says", {"text": "x", "times": 1})
    long = [app.enqueue("nap", {"seconds": 9}) for _ in range(2)]
    behind = [app.enqueue("says", {"text": "y", "times": 1}) for _ in range(20)]
    start(worker__concurrency="2")
    until(lambda: all(starts(job.id) for job in long), 20)
    assert {app.jobs.wait(job.id, 30).state for job in (*long, *behind)} == {State.SUCCEEDED}
    # If they were recalled every two seconds there would be five attempts or more.
    assert max(job.refresh().attempt for job in behind) <= 3


def test_the_prefetch_grows_while_jobs_are_short_and_stops_when_they_are_long() -> None:
    prefetch = Prefetch(10)
    for _ in range(20):
        prefetch.learn(10, 10, [0, 1])
    assert prefetch.ahead == MAX_PREFETCH
    assert prefetch.free_slots(0) == MAX_CLAIM
    prefetch.learn(10, 10, [500] * 10)
    assert prefetch.free_slots(0) == 10
    prefetch.learn(10, 10, [1])
    prefetch.reset()
    assert prefetch.free_slots(10) == 0


@pytest.mark.parametrize("took_ms", [2, 5, 20])
def test_the_prefetch_is_at_most_half_a_second_of_work(took_ms: int) -> None:
    prefetch = Prefetch(10)
    for _ in range(20):
        prefetch.learn(10, 10, [took_ms] * 30)
    assert 400 < prefetch.ahead * took_ms / 10 <= 500


def test_work_is_ahead_only_while_jobs_are_claimed_ahead() -> None:
    prefetch = Prefetch(10)
    assert prefetch.work_ahead(10) == 0
    for _ in range(20):
        prefetch.learn(10, 10, [5] * 30)
    assert 0.4 < prefetch.work_ahead(prefetch.ahead) <= 0.5
    prefetch.learn(10, 10, [500] * 30)
    assert prefetch.work_ahead(10) == 0


def test_one_long_job_among_hundreds_does_not_stop_the_prefetch() -> None:
    prefetch = Prefetch(10)
    for _ in range(20):
        prefetch.learn(10, 10, [0] * 10)
    prefetch.learn(10, 10, [0] * 299 + [30])
    assert prefetch.ahead == MAX_PREFETCH
    prefetch.learn(10, 10, [0] * 280 + [30] * 20)
    assert prefetch.ahead == 0


def test_a_short_stall_of_the_runner_does_not_stop_the_prefetch() -> None:
    prefetch = Prefetch(10)
    for _ in range(20):
        prefetch.learn(10, 10, [0] * 10)
    prefetch.learn(10, 10, [0] * 110 + [30] * 10)
    assert prefetch.ahead > 1000
    prefetch.learn(10, 10, [0] * 80 + [30] * 10)
    assert prefetch.ahead == 0


def test_a_short_stall_does_not_stop_the_prefetch_when_few_jobs_ended() -> None:
    prefetch = Prefetch(10)
    for _ in range(20):
        prefetch.learn(10, 10, [0] * 10)
    prefetch.learn(10, 10, [30] * 10 + [0] * 20)
    assert prefetch.ahead > 1000
    for _ in range(9):
        prefetch.learn(10, 10, [0] * 10)
    assert prefetch.ahead == MAX_PREFETCH
    for _ in range(2):  # this is not a short stall any more
        prefetch.learn(10, 10, [30] * 10)
    assert prefetch.ahead == 0
    prefetch.learn(10, 10, [0] * 10)  # only jobs that end from now on count
    assert prefetch.ahead == 4 * 10

"""A worker holds no more than it was told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mulligan import Mulligan, State
from mulligan.worker.fast.lease_batch import MOST_AHEAD, MOST_AT_ONCE, Prefetch
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.any_store

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_isolated_jobs_never_have_more_runners_than_the_concurrency_and_a_spare(
    app: Mulligan, start: Start
) -> None:
    worker = start(worker__concurrency="2")
    quick = [
        app.enqueue("says", {"text": "x", "times": 1}) for _ in range(200)
    ]  # lets the line grow
    jobs = [app.enqueue("alone", {}) for _ in range(12)]
    most = 0

    def all_done() -> bool:
        nonlocal most
        most = max(most, len(worker.runners()))
        return all(job.refresh().state is State.SUCCEEDED for job in jobs)

    until(all_done, 40)
    assert (
        most <= 1 + 2 + 1 + 2
    )  # the shared one, two at work, the spare, and two that are just leaving
    assert len({job.refresh().result for job in jobs}) == len(jobs)
    assert {app.jobs.wait(job.id, 20).state for job in quick} == {State.SUCCEEDED}


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_jobs_that_do_not_move_in_line_go_back_and_stay_back(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    for _ in range(300):
        app.enqueue("says", {"text": "x", "times": 1})
    long = [app.enqueue("nap", {"seconds": 9}) for _ in range(2)]
    behind = [app.enqueue("says", {"text": "y", "times": 1}) for _ in range(20)]
    start(worker__concurrency="2")
    until(lambda: all(starts(job.id) for job in long), 20)
    assert {app.jobs.wait(job.id, 30).state for job in (*long, *behind)} == {State.SUCCEEDED}
    # Called back every two seconds it would be five or more; one late turn may take it once more.
    assert max(job.refresh().attempt for job in behind) <= 3


def test_the_line_grows_while_jobs_are_short_and_is_given_up_when_they_are_not() -> None:
    pace = Prefetch(10)
    for _ in range(20):
        pace.turned(10, 10, [0, 1])
    assert pace.ahead == MOST_AHEAD
    assert pace.room(0) == MOST_AT_ONCE
    pace.turned(10, 10, [500] * 10)
    assert pace.room(0) == 10
    pace.turned(10, 10, [1])
    pace.hold_back()
    assert pace.room(10) == 0


@pytest.mark.parametrize("took_ms", [2, 5, 20])
def test_the_line_is_never_longer_than_what_is_done_in_half_a_second(took_ms: int) -> None:
    pace = Prefetch(10)
    for _ in range(20):
        pace.turned(10, 10, [took_ms] * 30)
    assert 400 < pace.ahead * took_ms / 10 <= 500


def test_one_long_job_among_hundreds_costs_the_others_no_line() -> None:
    pace = Prefetch(10)
    for _ in range(20):
        pace.turned(10, 10, [0] * 10)
    pace.turned(10, 10, [0] * 299 + [30])
    assert pace.ahead == MOST_AHEAD
    pace.turned(10, 10, [0] * 280 + [30] * 20)
    assert pace.ahead == 0


def test_a_moment_in_which_the_runner_stood_still_costs_no_line() -> None:
    pace = Prefetch(10)
    for _ in range(20):
        pace.turned(10, 10, [0] * 10)
    pace.turned(10, 10, [0] * 110 + [30] * 10)
    assert pace.ahead > 1000
    pace.turned(10, 10, [0] * 80 + [30] * 10)
    assert pace.ahead == 0


def test_nor_does_it_when_hardly_anything_else_ended_since_the_last_turn() -> None:
    pace = Prefetch(10)
    for _ in range(20):
        pace.turned(10, 10, [0] * 10)
    pace.turned(10, 10, [30] * 10 + [0] * 20)
    assert pace.ahead > 1000
    for _ in range(9):
        pace.turned(10, 10, [0] * 10)
    assert pace.ahead == MOST_AHEAD
    for _ in range(2):  # but that is no moment any more
        pace.turned(10, 10, [30] * 10)
    assert pace.ahead == 0
    pace.turned(10, 10, [0] * 10)  # and what ends from then on counts alone
    assert pace.ahead == 4 * 10

"""Dead runners and workers, and the fate of their jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from mulligan import Mulligan, State
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from support.proc import is_alive
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]
Starts = Callable[[str], list[str]]


@pytest.mark.seed("003-32")
@pytest.mark.any_store
def test_kill_of_a_runner_requeues_its_ten_jobs_and_they_finish(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    seconds_to_requeue_after_kill_of_a_runner(app, start, starts)


@pytest.mark.timing
def test_kill_of_a_runner_requeues_its_ten_jobs_within_a_second(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    assert seconds_to_requeue_after_kill_of_a_runner(app, start, starts) < 1.0


def seconds_to_requeue_after_kill_of_a_runner(app: Mulligan, start: Start, starts: Starts) -> float:
    start()
    jobs = [app.enqueue("nap_first", {"seconds": 60}) for _ in range(10)]
    until(lambda: all(starts(job.id) for job in jobs))
    [runner] = {int(starts(job.id)[0].split()[4]) for job in jobs}
    os.kill(runner, signal.SIGKILL)
    killed = time.monotonic()
    until(
        lambda: all(any(e.type == "job.lost" for e in app.jobs.history(job.id)) for job in jobs), 10
    )
    took = time.monotonic() - killed
    for job in jobs:
        done = app.jobs.wait(job.id, 15)
        assert done.state is State.SUCCEEDED
        lost = next(e for e in app.jobs.history(job.id) if e.type == "job.lost")
        assert lost.data["signal"] == signal.SIGKILL
        assert done.failures == 0
    until(lambda: _runner_deaths(app) == [{"signal": signal.SIGKILL, "jobs": 10}], 10)
    return took


def _runner_deaths(app: Mulligan) -> list[dict[str, object]]:
    with app.store.read() as tx:
        events = [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type == "worker.runner_died"
        ]
    return [{"signal": event.data["signal"], "jobs": event.data["jobs"]} for event in events]


@pytest.mark.seed("000-07", "000-11", "003-48")
def test_kill_of_the_whole_worker_and_a_restart_recovers_its_jobs(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    seconds_to_recover_after_a_restart(app, start, starts)  # 000-07, 000-11, 003-48


@pytest.mark.timing
def test_recovery_after_a_restart_starts_within_two_seconds(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    assert seconds_to_recover_after_a_restart(app, start, starts) < 2.0


def seconds_to_recover_after_a_restart(app: Mulligan, start: Start, starts: Starts) -> float:
    first = start()
    jobs = [app.enqueue("nap_first", {"seconds": 60}) for _ in range(5)]
    until(lambda: all(starts(job.id) for job in jobs))
    first.kill()
    restarted = time.monotonic()
    start(wait=False)
    until(
        lambda: all(any(e.type == "job.lost" for e in app.jobs.history(job.id)) for job in jobs), 20
    )
    took = time.monotonic() - restarted
    assert {app.jobs.wait(job.id, 20).state for job in jobs} == {State.SUCCEEDED}
    return took


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
@pytest.mark.any_store
def test_a_started_job_with_once_is_parked_when_its_worker_is_killed_or_stopped(
    app: Mulligan, start: Start, starts: Starts, signal_name: str
) -> None:
    worker = start(WORKER__SHUTDOWN_GRACE="1", WORKER__KILL_GRACE="0.5")
    job = app.enqueue("nap_once", {"seconds": 60})
    until(lambda: starts(job.id))
    if signal_name == "SIGKILL":
        worker.kill()
        start(wait=False)
    else:
        worker.signal(signal.SIGTERM)
    until(lambda: app.jobs.get(job.id).state is State.PARKED, 30)
    assert "it may have done its work" in app.jobs.get(job.id).why
    assert len(starts(job.id)) == 1


@pytest.mark.any_store
def test_runners_do_not_outlive_a_killed_supervisor(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start()
    job = app.enqueue("nap", {"seconds": 60})
    until(lambda: starts(job.id))
    runners = worker.runners()
    worker.kill()
    until(lambda: not any(is_alive(pid) for pid in runners), 2)


@pytest.mark.seed("000-89", "003-31")
@pytest.mark.any_store
def test_a_job_that_kills_its_process_is_dead_after_max_losses_and_its_neighbours_succeed(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    neighbours = [app.enqueue("nap", {"seconds": 1.0}) for _ in range(4)]
    poison = app.enqueue("poison", {})
    start()
    dead = app.jobs.wait(poison.id, 30)
    assert dead.state is State.DEAD
    assert dead.error is not None
    assert dead.error["code"] == "PROCESS_DIED"
    assert len(starts(poison.id)) == 3  # 000-89, 003-31
    for job in neighbours:
        done = app.jobs.wait(job.id, 20)
        assert done.state is State.SUCCEEDED
        assert len([e for e in app.jobs.history(job.id) if e.type == "job.lost"]) <= 1


@pytest.mark.any_store
def test_a_job_that_kills_the_whole_worker_is_dead_after_max_losses_and_no_neighbour_is(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    assassin = app.enqueue("assassin", {})
    neighbours = [app.enqueue("nap", {"seconds": 0.3}) for _ in range(8)]
    for _ in range(3):  # whoever runs a service starts it again
        assert start(wait=False, worker__concurrency="4").process.wait(40) == -signal.SIGKILL
    start(worker__concurrency="4")
    dead = app.jobs.wait(assassin.id, 30)
    assert (dead.state, dead.losses) == (State.DEAD, 3)
    assert len(starts(assassin.id)) == 3
    for job in neighbours:
        assert app.jobs.wait(job.id, 20).state is State.SUCCEEDED


@pytest.mark.any_store
def test_a_segmentation_fault_stores_its_trace_as_private_evidence(
    app: Mulligan, start: Start
) -> None:
    start(retry__max_losses="0")
    dead = app.jobs.wait(app.enqueue("crash_hard", {}).id, 20)
    assert dead.error is not None
    assert dead.error["signal"] == signal.SIGSEGV
    with app.store.read() as tx:
        [attempt] = JobQueries(tx).list_attempts(dead.id)
    assert "Segmentation fault" in (attempt.private or "")


@pytest.mark.any_store
def test_a_checkpoint_written_since_the_last_loss_sets_losses_to_zero(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start()
    job = app.enqueue("saves", {"steps": 5})
    done = app.jobs.wait(job.id, 40)
    assert (done.state, done.result) == (State.SUCCEEDED, 5)
    assert len(starts(job.id)) == 6


@pytest.mark.seed("000-33", "003-30")
@pytest.mark.any_store
def test_writes_of_a_worker_that_was_stopped_past_its_lease_are_refused(
    app: Mulligan, start: Start, starts: Starts, store_url: str
) -> None:
    first = start()
    job = app.enqueue("nap_first", {"seconds": 2.0})
    until(lambda: starts(job.id))
    first.freeze(store_url)
    start()
    done = app.jobs.wait(job.id, 20)
    assert (done.state, done.token) == (State.SUCCEEDED, 2)  # 003-30
    first.stop_all(signal.SIGCONT)
    refused = until(
        lambda: [e for e in app.jobs.history(job.id) if e.type == "job.stale_refused"], 10
    )
    assert refused[0].token == 1  # 000-33
    endings = [
        e
        for e in app.jobs.history(job.id)
        if e.type in {"job.succeeded", "job.died", "job.cancelled"}
    ]
    assert len(endings) == 1
    assert app.jobs.get(job.id).token == 2
    another = app.enqueue("nap", {"seconds": 0})
    assert app.jobs.wait(another.id, 10).state is State.SUCCEEDED
    until(lambda: "new id" in first.text(), 5)

"""Time limits, memory limits, cancel, shutdown: what must end does end, and nobody else pays."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Mulligan, State
from support.proc import is_alive
from support.waiting import until
from support.worker import Worker, marked_processes

pytestmark = [pytest.mark.processes, pytest.mark.any_store]

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sleeping_thread", marks=pytest.mark.slow),
        "sleeping_task",
        "holds_the_gil",
        pytest.param("blocks_the_loop", marks=pytest.mark.slow),
        pytest.param("ignores_sigterm", marks=pytest.mark.slow),
        "process_tree",
    ],
)
def test_a_time_limit_ends_an_attempt_and_all_its_processes(
    app: Mulligan, start: Start, starts: Starts, kind: str, tmp_path: Path
) -> None:
    start()
    job = app.enqueue(kind, {})
    dead = app.jobs.wait(job.id, 20)
    assert dead.state is State.DEAD
    assert dead.error is not None
    assert dead.error["code"] == "TIMEOUT"
    assert len(starts(job.id)) == 1
    pid = int(starts(job.id)[0].split()[4])
    if kind not in {"sleeping_task", "process_tree"}:
        until(lambda: not is_alive(pid), 5)
    assert [
        p
        for n in ("611", "612", "613")
        for p in marked_processes(f"sleep {n}")
        if _ours(p, tmp_path)
    ] == []


@pytest.mark.parametrize(
    "kind", ["holds_the_gil", pytest.param("blocks_the_loop", marks=pytest.mark.slow)]
)
def test_a_neighbour_of_an_attempt_past_its_limit_is_not_charged(
    app: Mulligan, start: Start, kind: str
) -> None:
    start()
    bad = app.enqueue(kind, {})
    good = [app.enqueue("nap", {"seconds": 2.5}), app.enqueue("nap_async", {"seconds": 2.5})]
    assert app.jobs.wait(bad.id, 25).state is State.DEAD
    for job in good:
        done = app.jobs.wait(job.id, 20)
        assert (done.state, done.failures, done.losses) == (State.SUCCEEDED, 0, 0)


def test_a_memory_limit_ends_the_attempt_with_its_own_code(app: Mulligan, start: Start) -> None:
    start()
    dead = app.jobs.wait(app.enqueue("eats_memory", {}).id, 25)
    assert dead.error is not None
    assert (dead.state, dead.error["code"]) == (State.DEAD, "MEMORY_LIMIT")


def test_an_escalation_gives_the_next_attempt_more_time(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start()
    job = app.enqueue("needs_time", {})
    done = app.jobs.wait(job.id, 25)
    assert (done.state, done.result, done.failures, len(starts(job.id))) == (
        State.SUCCEEDED,
        "in time",
        1,
        2,
    )


def test_the_memory_limit_of_an_escalation_applies_in_a_single_use_runner(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    start()
    job = app.enqueue("grows", {})
    dead = app.jobs.wait(job.id, 25)
    assert dead.error is not None
    assert (dead.state, dead.error["code"]) == (State.DEAD, "MEMORY_LIMIT")
    assert dead.error["limit"] == 150 * 1024 * 1024
    first, second = (line.split()[4] for line in starts(job.id)[:2])
    assert first != second


@pytest.mark.parametrize("kind", ["nap", "nap_async"])
def test_cancel_of_a_running_job_is_recorded_once_its_code_has_stopped(
    app: Mulligan, start: Start, starts: Starts, kind: str
) -> None:
    start()
    job = app.enqueue(kind, {"seconds": 30})
    until(lambda: starts(job.id))
    asked = app.jobs.cancel(job.id, reason="changed my mind")
    assert asked.state is State.RUNNING
    done = app.jobs.wait(job.id, 15)
    assert done.state is State.CANCELLED
    types = [e.type for e in app.jobs.history(job.id)]
    assert types == ["job.queued", "job.started", "job.cancel_requested", "job.cancelled"]


def test_sigterm_lets_short_jobs_finish_and_releases_long_ones_uncharged(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start()
    short = app.enqueue("nap", {"seconds": 1.0})
    long = app.enqueue("nap", {"seconds": 60})
    until(lambda: starts(short.id) and starts(long.id))
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(10) == 0  # and not the minute that the long one wants
    assert app.jobs.get(short.id).state is State.SUCCEEDED
    back = app.jobs.get(long.id)
    assert (back.state, back.failures, back.losses) == (State.QUEUED, 0, 0)
    assert worker.runners_left() == []


def test_a_second_signal_ends_the_worker_at_once(
    app: Mulligan, start: Start, starts: Starts
) -> None:
    worker = start(worker__shutdown_grace="60")
    job = app.enqueue("nap", {"seconds": 60})
    until(lambda: starts(job.id))
    worker.signal(signal.SIGTERM)
    until(lambda: "stopping" in worker.text())
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(5) == 0
    assert app.jobs.get(job.id).state is State.QUEUED


def test_isolated_attempts_run_in_separate_processes(app: Mulligan, start: Start) -> None:
    start()
    jobs = [app.enqueue("alone", {}) for _ in range(4)]
    pids = {app.jobs.wait(job.id, 20).result for job in jobs}
    assert len(pids) == 4


def test_the_work_directory_is_removed_after_the_attempt(app: Mulligan, start: Start) -> None:
    start()
    done = app.jobs.wait(app.enqueue("where", {}).id, 10)
    assert not Path(done.result).exists()


def test_the_state_of_on_start_is_available_in_a_runner(app: Mulligan, start: Start) -> None:
    start()
    assert app.jobs.wait(app.enqueue("state_of", {}).id, 10).result is True


def test_a_job_of_an_unknown_kind_waits_visibly_then_dies_with_its_own_code(
    app: Mulligan, start: Start
) -> None:
    start(worker__unknown_kind_after="1")
    job = app.enqueue("nobody.knows.this", {})
    assert job.refresh().phase == "no_worker"
    dead = app.jobs.wait(job.id, 10)
    assert dead.error is not None
    assert dead.error["code"] == "KIND_UNKNOWN"


def test_an_app_that_cannot_be_imported_ends_the_worker_with_a_clear_error(start: Start) -> None:
    worker = start(wait=False, app="support.nowhere:app")
    assert worker.process.wait(15) == 1
    assert "nowhere" in worker.text()


def _ours(pid: int, folder: Path) -> bool:
    """Other tests may run beside us: a process is ours if it stands in our folder."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve().is_relative_to(folder)
    except OSError:
        return False

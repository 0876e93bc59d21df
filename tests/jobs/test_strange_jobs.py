"""Strange jobs in real workers: each ends recorded, the worker is unharmed, the next job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Job, Mulligan, State
from mulligan.worker.liveness import find_marked
from mulligan.worker.queries import WorkerQueries
from support.app_tools import error_code, event_types, load_private, load_row
from support.proc import is_alive
from support.waiting import until
from support.worker import FAST, Worker

pytestmark = [pytest.mark.processes, pytest.mark.any_store]

Start = Callable[..., Worker]
STRANGE = "support.strange:app"


def ended(app: Mulligan, kind: str, **payload: object) -> Job:
    return app.jobs.wait(app.enqueue(kind, payload).id, 30)


def unharmed(app: Mulligan, worker: Worker) -> None:
    assert ended(app, "fine").result == "fine"
    assert worker.process.poll() is None


@pytest.mark.slow
def test_a_job_that_kills_its_process_is_recorded_as_lost(app: Mulligan, start: Start) -> None:
    worker = start(retry__max_losses="0")
    for kind, payload, facts in (
        ("exits", {"code": 0}, {"exit_code": 0}),
        ("exits", {"code": 3}, {"exit_code": 3}),
        ("closes_files", {}, {}),
        ("closes_files_async", {}, {}),
        ("closes_the_wire", {"stays": 0}, {}),
        ("closes_the_wire", {"stays": 600}, {}),
        ("stops_the_loop", {}, {}),
        ("cancels_everybody", {}, {}),
        ("rings_the_alarm", {}, {"signal": signal.SIGALRM}),
    ):
        done = ended(app, kind, **payload)
        assert (kind, done.state, error_code(done)) == (kind, State.DEAD, "PROCESS_DIED")
        assert facts.items() <= done.error.items()
        assert (done.failures, done.losses) == (0, 1)
        unharmed(app, worker)


@pytest.mark.slow
def test_jobs_next_to_one_that_blocks_the_loop_are_not_charged(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    worker = start()
    for bad in ("stops_the_loop", "cancels_everybody"):
        naps = [app.enqueue("naps", {"seconds": 1.0}) for _ in range(3)]
        until(lambda naps=naps: all((tmp_path / f"runs-{nap.id}").exists() for nap in naps), 10)
        dead = ended(app, bad)
        assert (dead.state, error_code(dead), dead.losses) == (State.DEAD, "PROCESS_DIED", 3)
        for nap in naps:
            done = app.jobs.wait(nap.id, 20)
            assert (done.state, done.failures, done.losses) == (State.SUCCEEDED, 0, 0)
    unharmed(app, worker)


def test_strange_handlers_end_as_declared_and_the_worker_continues(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    worker = start(worker__shutdown_grace="3")
    runners = worker.runners()
    for kind, payload, end in (
        ("exits_politely", {}, "HANDLER_EXIT"),
        ("shouts", {}, "said"),
        ("leaves_threads", {}, "left"),
        ("goes_elsewhere", {}, "/"),
        ("ignores_signals", {}, "deaf"),
        ("returns_much", {"size": 50_000_000}, "RESULT_TOO_LARGE"),
        ("returns_much", {"size": 1_000_000}, "x" * 1_000_000),
        ("raises_much", {"size": 20_000_000}, "UNKNOWN_ERROR"),
        ("raises_base", {}, "UNKNOWN_ERROR"),
        ("cancels_itself", {}, "TASK_CANCELLED"),
        ("state_of", {}, [True, True]),
        ("closes_its_voice", {}, "mute"),
    ):
        done = ended(app, kind, **payload)
        assert end in (done.result, error_code(done)), (kind, error_code(done))
        assert done.attempt == 1
        unharmed(app, worker)
    assert worker.runners() == runners
    stays = ended(app, "forks_a_child_that_stays").result
    both = ended(app, "forks_and_both_return")
    assert both.result == int((tmp_path / "fork").read_text())
    left = ended(app, "replaces_its_directory")
    assert (tmp_path / "precious" / "file").read_text() == "keep me"
    unharmed(app, worker)
    assert worker.end() == 0
    until(lambda: not any(is_alive(pid) for pid in (stays, both.result)), 5)
    assert not Path(left.result).exists()
    assert (tmp_path / f"closed-{runners[0]}").exists()


def test_a_stopped_job_ends_with_its_child_processes_and_a_result_stands(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    worker = start(worker__kill_grace="5")
    kinds = ["watches_its_flag", "finishes_all_the_same", "runs_a_program", "runs_a_program_async"]
    runners = worker.runners()
    jobs = [app.enqueue(kind) for kind in kinds]
    until(lambda: all((tmp_path / f"runs-{job.id}").exists() for job in jobs), 15)
    for job in jobs:
        app.jobs.cancel(job.id, reason="enough")
    ends = [app.jobs.wait(job.id, 20) for job in jobs]
    assert [job.state for job in ends] == [
        State.CANCELLED,
        State.SUCCEEDED,
        State.CANCELLED,
        State.CANCELLED,
    ]
    assert ends[1].result == "finished"
    [leader] = runners
    prefix = _mark(leader)
    assert [pid for pid in find_marked(prefix) if pid != leader] == []
    assert worker.runners() == runners  # nobody had to die for it
    unharmed(app, worker)


def test_facts_limits_and_events_arrive_from_the_runner(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    worker = start()
    tells = app.enqueue("tells", {"go": "go"})
    late = app.enqueue("overstays", {}, deadline=3)
    flags = app.enqueue("flags")
    assert app.jobs.wait(flags.id, 20).state is State.DEAD
    with app.store.read() as tx:
        assert (
            WorkerQueries(tx).get_previous_attempts([flags.id])[flags.id].steps["flags"].value
            == "[false,false,true]"
        )
    runner, program, where, folder = ended(app, "mark_of").result
    assert program.startswith(f"{runner}/")
    assert where == folder
    until(lambda: tells.refresh().progress == 0.75, 10)
    assert load_row(app, tells).progress_message == "three quarters"
    (tmp_path / "go").touch()
    done = app.jobs.wait(tells.id, 10)
    assert (done.result, done.cost, done.progress) == ("told", 1.5, 0.75)
    cut = app.jobs.wait(late.id, 20)
    assert (cut.state, error_code(cut), cut.attempt) == (State.DEAD, "DEADLINE_PASSED", 1)
    assert event_types(app, late) == ["queued", "started", "died"]
    unharmed(app, worker)


def test_the_last_progress_before_the_end_is_stored(app: Mulligan, start: Start) -> None:
    start()
    assert ended(app, "says_where_it_stopped").progress == 0.4


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_worker_whose_output_nobody_reads_goes_on(
    app: Mulligan, store_url: str, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        **FAST,
        "MULLIGAN_DATABASE_URL": store_url,
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    command = [
        sys.executable,
        str(Path(__file__).parent.parent / "support" / "worker_main.py"),
        STRANGE,
    ]
    with subprocess.Popen(
        command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as worker:
        try:
            complains = app.enqueue("complains")
            until(lambda: complains.refresh().state is not State.QUEUED, 15)
            assert app.jobs.wait(app.enqueue("fine").id, 6).result == "fine"
        finally:
            worker.kill()


def test_a_payload_the_worker_does_not_understand_is_refused_there_and_the_others_run(
    app: Mulligan, start: Start
) -> None:
    jobs = [app.enqueue("exits", {"status": 3}), app.enqueue("returns_much", {"size": "large"})]
    worker = start()
    for job in jobs:
        done = app.jobs.wait(job.id, 15)
        assert (done.state, error_code(done), done.attempt) == (State.DEAD, "PAYLOAD_REFUSED", 1)
        assert load_private(app, done)["message"]
    unharmed(app, worker)


def _mark(pid: int) -> str:
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(
        os.fsdecode(entry.partition(b"=")[2])
        for entry in environ
        if entry.startswith(b"MULLIGAN_ATTEMPT=")
    )

"""`run_inline`: the path of a worker in one process, cancellation and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from mulligan import Context, Fixed, Mulligan, Policy, Rule, State
from mulligan.core.errors import StoreUnavailable
from mulligan.core.tracing import OPENTELEMETRY
from mulligan.manifest.queries import ManifestQueries
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance, event_types, run_job
from support.call_trace import trace_functions
from support.waiting import until

pytestmark = pytest.mark.processes


def test_run_inline_returns_how_many_attempts_ran_and_can_run_one(app):
    @app.job
    def one() -> None: ...

    one.enqueue_many({} for _ in range(3))
    assert app.run_inline(until_idle=False) == 1
    assert app.run_inline() == 2
    assert app.run_inline() == 0


def test_run_inline_claims_only_kinds_of_its_app(app, make_app):
    stranger = make_app()

    @stranger.job(name="theirs")
    def theirs() -> None: ...

    job = theirs.enqueue()
    assert app.run_inline() == 0
    assert job.refresh().state is State.QUEUED
    assert run_job(stranger, job).state is State.SUCCEEDED


@pytest.mark.parametrize("colour", ["sync", "async", "program"])
def test_a_job_that_runs_inline_can_be_cancelled(make_app, colour):
    app = make_app(worker__heartbeat="0.1")
    runs = threading.Event()

    @app.job(name="sync")
    def watches(ctx: Context) -> None:
        runs.set()
        while not ctx.cancelled:
            time.sleep(0.01)

    @app.job(name="async")
    async def sleeps() -> None:
        runs.set()
        await asyncio.sleep(600)

    @app.job(name="program")
    def waits(ctx: Context) -> None:
        runs.set()
        ctx.run(["sleep", "661"])

    job = app.enqueue(colour)
    worker = threading.Thread(target=app.run_inline)
    worker.start()
    assert runs.wait(10)
    app.jobs.cancel(job.id, reason="enough")
    worker.join(20)
    assert not worker.is_alive()
    assert job.refresh().state is State.CANCELLED
    assert event_types(app, job) == ["queued", "started", "cancel_requested", "cancelled"]


SCRIPT = """
    import asyncio, pathlib, sys, time
    from mulligan import Context, Mulligan

    app = Mulligan()

    @app.job(name="sync")
    def sleeps(ctx: Context):
        pathlib.Path("runs").touch()
        time.sleep(600)

    @app.job(name="async")
    async def sleeps_too(ctx: Context):
        pathlib.Path("runs").touch()
        await asyncio.sleep(600)

    @app.job(name="program")
    def waits(ctx: Context):
        ctx.run(["sh", "-c", f"touch {pathlib.Path.cwd()}/runs; sleep 662"])

    app.enqueue(sys.argv[1])
    app.run_inline()
"""


@pytest.mark.parametrize("colour", ["sync", "async", "program"])
def test_ctrl_c_ends_run_inline_at_once_and_releases_the_job_uncharged(
    app, store_url, tmp_path, colour
):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    env = {
        **os.environ,
        "MULLIGAN_DATABASE_URL": store_url,
        "MULLIGAN_WORKER__STATE_DIR": str(tmp_path / "state"),
    }
    with subprocess.Popen(
        [sys.executable, "script.py", colour],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        until((tmp_path / "runs").exists, 20)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=10)
    assert error.decode().strip().endswith("KeyboardInterrupt")
    [job] = app.jobs.list()
    assert (job.state, job.failures, job.losses) == (State.QUEUED, 0, 0)
    assert [event.type for event in app.jobs.history(job.id)][-1] == "job.released"
    with app.store.read() as tx:
        assert all(
            worker.closed_at is not None for worker in WorkerQueries(tx).list_workers(closed=True)
        )
    assert list((tmp_path / "state").rglob("*.work/*")) == []


def test_a_handler_that_raises_keyboard_interrupt_itself_is_only_a_failure(app):
    @app.job(policy=Policy(max_retries=0))
    def pretends() -> None:
        raise KeyboardInterrupt

    job = pretends.enqueue()
    assert run_job(app, job).error["code"] == "STOPPED"


def test_run_inline_restores_the_signal_handler(app):
    before = signal.getsignal(signal.SIGINT)
    app.run_inline()
    assert signal.getsignal(signal.SIGINT) is before


def test_run_inline_works_on_any_thread(app):
    @app.job
    async def one() -> str:
        return "ran"

    job = one.enqueue()
    worker = threading.Thread(target=app.run_inline)
    worker.start()
    worker.join(20)
    assert job.refresh().result == "ran"


def test_a_failing_hook_raises_and_leaves_no_registered_worker(app):
    @app.on_start
    def broken() -> None:
        raise RuntimeError("no connection")

    @app.job
    def one() -> None: ...

    job = one.enqueue()
    with pytest.raises(RuntimeError, match="no connection"):
        app.run_inline()
    assert job.refresh().attempt == 0
    with app.store.read() as tx:
        assert all(
            worker.closed_at is not None for worker in WorkerQueries(tx).list_workers(closed=True)
        )


def test_a_later_run_uses_what_was_declared_since_the_first(app):
    @app.job(name="breaks", policy=Policy(max_retries=0))
    def breaks() -> None:
        raise RuntimeError("no paper")

    assert run_job(app, breaks.enqueue()).error["code"] == "UNKNOWN_ERROR"
    app.rules.add(Rule("paper", message="no paper", code="NO_PAPER", cls="permanent"))

    @app.job(name="late")
    def late() -> str:
        return "ran"

    job = late.enqueue()
    assert run_job(app, breaks.enqueue()).error["code"] == "NO_PAPER"
    assert job.refresh().result == "ran"


def test_each_run_registers_a_new_worker_and_starts_with_a_new_state(app):
    states = []

    @app.on_start
    def start() -> dict[str, int]:
        return {"number": len(states)}

    @app.job
    def one(ctx: Context) -> None:
        states.append(vars(ctx.state))
        ctx.state.left = "behind"

    for _ in range(2):
        run_job(app, one.enqueue())
    assert [state["number"] for state in states] == [0, 1]
    with app.store.read() as tx:
        workers = WorkerQueries(tx).list_workers(closed=True)
    assert len(workers) == 2
    assert all(worker.closed_at is not None for worker in workers)


def test_two_threads_can_run_inline_at_the_same_time(app):
    both_run = threading.Barrier(2, timeout=20)

    @app.job
    def meets() -> None:
        both_run.wait()

    app.run_inline()
    jobs = meets.enqueue_many({} for _ in range(2))
    threads = [threading.Thread(target=app.run_inline) for _ in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED] * 2


def test_a_run_publishes_its_manifest_if_it_was_not_published_for_a_minute(app):
    def published_at() -> int:
        with app.store.read() as tx:
            return ManifestQueries(tx).list_manifests()[0][-1]

    app.run_inline()
    first = published_at()
    app.run_inline()
    assert published_at() == first
    advance(app, 61)
    app.run_inline()
    assert published_at() > first


# A reader follows a job that fails, is retried and dies through these many functions and files.
MAX_FUNCTIONS = 255
MAX_FILES = 45


def test_a_job_that_dies_after_a_retry_calls_few_functions_in_few_files(sqlite_url, monkeypatch):
    monkeypatch.delitem(sys.modules, OPENTELEMETRY, raising=False)  # other tests import it
    app = Mulligan(sqlite_url)

    @app.job(name="breaks", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def breaks(number: int) -> None:
        raise ConnectionError(f"no answer to call {number}")

    breaks.enqueue(number=1)
    app.run_inline()
    job = breaks.enqueue(number=2)
    functions = trace_functions(app.run_inline)
    assert (job.refresh().state, job.refresh().attempt) == (State.DEAD, 2)
    app.close()
    assert len(functions) <= MAX_FUNCTIONS, sorted(functions)
    assert len({file for file, _ in functions}) <= MAX_FILES, sorted(functions)


def test_a_database_that_cannot_be_opened_is_reported_in_one_sentence(tmp_path):
    app = Mulligan(f"sqlite:///{tmp_path}/no/such/folder/mulligan.db")
    with pytest.raises(StoreUnavailable, match="folder"):
        app.run_inline()
    assert not Path(tmp_path / "no").exists()

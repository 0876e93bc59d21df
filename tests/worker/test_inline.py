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

from mulligan import Context, Mulligan, Policy, State
from mulligan.core.errors import StoreUnavailable
from mulligan.worker.queries import WorkerQueries
from support.app_tools import event_types, run_job
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


def test_a_database_that_cannot_be_opened_is_reported_in_one_sentence(tmp_path):
    app = Mulligan(f"sqlite:///{tmp_path}/no/such/folder/mulligan.db")
    with pytest.raises(StoreUnavailable, match="folder"):
        app.run_inline()
    assert not Path(tmp_path / "no").exists()

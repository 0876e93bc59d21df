"""A background worker ends with the program that started it, however the program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mulligan import Mulligan, background_worker
from mulligan.core.errors import ConfigError
from support.proc import is_alive
from support.waiting import until

pytestmark = pytest.mark.processes

PROGRAM = """
import time
from mulligan import background_worker

with background_worker("jobs:app") as worker:
    print(worker.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def app(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", f"sqlite:///{folder}/mulligan.db")
    opened = Mulligan(f"sqlite:///{folder}/mulligan.db")
    yield opened
    opened.close()


def test_a_background_worker_finishes_its_running_job_before_it_ends(app, folder):
    with background_worker("jobs:app", env={"MULLIGAN_LOG__LEVEL": "ERROR"}) as worker:
        waits = app.enqueue("wait_for", {"path": str(folder / "it")})
        until(lambda: app.jobs.get(waits.id).state == "running", 20, "a start")
        (folder / "it").touch()
    assert not is_alive(worker.pid)
    assert app.jobs.get(waits.id).state == "succeeded"


def test_a_program_that_is_killed_takes_its_worker_along(app, folder):
    environ = {**os.environ, "MULLIGAN_WORKER__SHUTDOWN_GRACE": "1"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, cwd=folder, env=environ
    )
    try:
        worker = int(program.stdout.readline())
        job = app.enqueue("wait_for", {"path": str(folder / "never")})
        until(lambda: app.jobs.get(job.id).state == "running", 20, "a start")
    finally:
        program.kill()
        program.communicate()
    until(lambda: not is_alive(worker), 20, "the worker's end")
    assert app.jobs.get(job.id).state == "queued"  # given back, uncharged
    assert app.jobs.get(job.id).failures == app.jobs.get(job.id).losses == 0


@pytest.mark.seed("003-32")
def test_a_killed_worker_is_replaced_and_its_job_runs_again(app, folder, caplog):
    environ = {"MULLIGAN_LOG__LEVEL": "ERROR", "MULLIGAN_WORKER__LEASE": "3"}
    environ["MULLIGAN_WORKER__HEARTBEAT"] = environ["MULLIGAN_WORKER__SWEEP"] = "1"
    with background_worker("jobs:app", env=environ) as worker:
        first = worker.pid
        job = app.enqueue("wait_for", {"path": str(folder / "it")})
        until(lambda: app.jobs.get(job.id).state == "running", 30, "a start")
        os.kill(first, signal.SIGKILL)
        until(lambda: app.jobs.get(job.id).token == 2, 60, "a second attempt")
        (folder / "it").touch()
        until(lambda: app.jobs.get(job.id).state == "succeeded", 30, "success")
        assert worker.pid != first
    assert not is_alive(worker.pid)
    shown = f"worker {first} was killed by signal 9. Another one starts in 0.5 s."
    assert shown in caplog.text


def test_a_worker_that_refuses_its_app_is_not_started_again(app, caplog):
    with background_worker("nowhere:app") as worker:
        first = worker.pid
        message = f"worker {first} cannot run. It is not started again."
        until(lambda: message in caplog.text, 30, "the message")
        assert worker.pid == first


def test_a_worker_that_is_about_to_start_again_is_not_started_after_the_block(app, monkeypatch):
    started = []
    monkeypatch.setattr("mulligan.app.background.RESTART_DELAYS", (30.0, 30.0))
    with background_worker("jobs:app") as worker:
        started.append(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: not is_alive(worker.pid), 30, "its end")
    assert [worker.pid] == started


@pytest.mark.parametrize("name", ["jobs", "", None, 7])
def test_an_invalid_app_name_is_refused_before_anything_starts(name):
    with (
        pytest.raises(ConfigError, match="module:attribute, for example jobs:app"),
        background_worker(name),
    ):
        pass

"""A background worker ends with the program that started it, however the program ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan import Mulligan, background_worker
from mulligan.core.errors import ConfigError
from support.waiting import until

pytestmark = pytest.mark.processes

PROGRAM = """
import time
from mulligan import background_worker

with background_worker("jobs:app") as worker:
    print(worker, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


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
    assert not alive(worker)
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
    until(lambda: not alive(worker), 20, "the worker's end")
    assert app.jobs.get(job.id).state == "queued"  # given back, uncharged
    assert app.jobs.get(job.id).failures == app.jobs.get(job.id).losses == 0


@pytest.mark.parametrize("name", ["jobs", "", None, 7])
def test_an_invalid_app_name_is_refused_before_anything_starts(name):
    with (
        pytest.raises(ConfigError, match="module:attribute, for example jobs:app"),
        background_worker(name),
    ):
        pass

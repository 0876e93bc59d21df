"""Settings of the environment are obeyed by `mulligan worker` and the pages, without the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from mulligan.apps.render.config import read_config
from mulligan.apps.render.jobs import app
from support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.any_store]


def doctor(**environment: str) -> dict[str, tuple[str, str]]:
    """Return the settings and their origins that a worker of the app would use."""
    command = [sys.executable, "-m", "mulligan", "doctor", "mulligan.apps.render.jobs:app"]
    output = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    ).stdout
    rows = [line.split("\t") for line in output.splitlines() if line.startswith("setting\t")]
    return {row[1]: (row[2], row[3]) for row in rows}


@pytest.mark.seed("003-42")
def test_stalled_interval_is_the_lease_of_a_worker(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert doctor(MULLIGAN_DATABASE_URL=url)["worker.lease"] == ("30.0", "code")  # 003-42
    changed = doctor(MULLIGAN_DATABASE_URL=url, STALLED_INTERVAL_MS="6000")
    assert changed["worker.lease"] == ("6.0", "code")  # 003-42
    assert changed["worker.heartbeat"] == ("1.0", "code")


@pytest.mark.seed("003-42")
@pytest.mark.parametrize("variable", ["JOB_TIMEOUT_MS", "MAX_STALLED_COUNT", "MAX_RETRIES"])
def test_a_setting_that_is_no_number_is_refused_by_name(variable):
    with pytest.raises(SystemExit, match=f"{variable}='soon' is not a number"):
        read_config({variable: "soon"})


@pytest.mark.seed("003-30", "003-42", "003-48")
@pytest.mark.timeout(180)
def test_a_worker_without_a_sign_of_life_for_the_stalled_interval_loses_its_job(
    service, fake_ffmpeg, monkeypatch, tmp_path
):
    """The first worker is stopped, not killed: it holds its files and its connection."""
    begun = tmp_path / "begun"  # a job that was claimed and never begun would not be a loss
    program = fake_ffmpeg(f"touch {begun}; exec sleep 300")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    environment = {"STALLED_INTERVAL_MS": "6000", "MULLIGAN_WORKER__SWEEP": "1"}
    with service.mulligan.worker(env=environment) as first:
        job = service.order()
        until(begun.exists, 60, "the first attempt")
        stopped = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            with service.mulligan.worker(env=environment):
                until(lambda: app.jobs.get(job).attempts == 2, 90, "the second worker")  # 003-48
                assert app.jobs.get(job).losses == 1  # 003-30, 003-42
        finally:
            for process in stopped:
                process.kill()


@pytest.mark.seed("003-31", "003-42")
@pytest.mark.timeout(180)
def test_an_order_that_kills_its_runner_fails_after_the_stalled_count(
    service, fake_ffmpeg, monkeypatch
):
    program = fake_ffmpeg("kill -9 $PPID")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with service.mulligan.worker(env={"MAX_STALLED_COUNT": "1"}):
        job = app.jobs.wait(service.order(), timeout=90)
    view = service.fetch(job.id)
    assert (view["state"], view["attempts"]) == ("FAILED", 2)  # 003-31, 003-42


@pytest.mark.seed("003-21", "003-42")
@pytest.mark.timeout(120)
def test_job_timeout_and_retries_are_obeyed_by_a_worker(service, fake_ffmpeg, monkeypatch):
    program = fake_ffmpeg("exec sleep 300")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with service.mulligan.worker(env={"JOB_TIMEOUT_MS": "2000", "MAX_RETRIES": "1"}):
        job = app.jobs.wait(service.order(), timeout=60)
    view = service.fetch(job.id)
    assert view["error"]["message"] == "FFmpeg timeout after 2000ms"  # 003-21
    assert (view["state"], view["attempts"]) == ("FAILED", 2)  # 003-42


@pytest.mark.seed("003-46")
def test_finished_orders_leave_after_the_retention(service):
    job = service.run_order()["id"]
    service.mulligan.advance(app.settings.retention.succeeded - 60)
    service.mulligan.drain()
    assert service.client.get(f"/jobs/{job}").status_code == 200
    service.mulligan.advance(120)
    service.mulligan.drain()
    assert service.client.get(f"/jobs/{job}").status_code == 404  # 003-46

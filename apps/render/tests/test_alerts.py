"""The four alerts of the specification: each fires at its threshold and reaches the operators."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mulligan.apps.render import jobs
from mulligan.apps.render.jobs import app, render
from mulligan.testing import Returns
from support.alert_driver import AlertDriver
from support.waiting import until

from .conftest import ALERTS_TO

LOW_THRESHOLDS = """
[alerts]
every = 1
rules = [
  { name = "failure_share", least = 3, for = 0 },
  { name = "queue_ageing", above = 2, least = 5, for = 0 },
  { name = "slow_jobs", above = 0.1, least = 3 },
]
"""
DONE = Returns({"video": "x.mp4"})


def fired(alerts) -> set[str]:
    """Return the names of the alerts that the operators were sent."""
    bodies = [message.body for message in alerts if message.body["type"] == "alert.fired"]
    return {body["data"]["details"]["rule"] for body in bodies}


@pytest.mark.seed("003-49")
def test_more_than_5_percent_failed_fires_and_four_of_four_do_not(service, alerts):
    service.mulligan.drain()  # a worker has stored the subscriptions
    driver = AlertDriver(app)
    for _ in range(4):
        service.run_order(service.clip("down.jpg"))  # four attempts
        for _ in range(4):
            driver.run(70)
    service.mulligan.drain()
    assert "failure_share" not in fired(alerts)  # 003-49: four of four in each five minutes
    failures = [ConnectionResetError("peer")] * 2
    for _ in range(10):
        for _ in range(19):
            service.order()
        with service.mulligan.force(render, *failures, *[DONE] * 19):
            service.mulligan.drain(scheduled=True)
        driver.run(70)
    service.mulligan.drain()
    assert "failure_share" in fired(alerts)  # 003-49: 2 of 21, for ten minutes


@pytest.mark.seed("003-50")
def test_more_than_100_waiting_orders_that_age_fire(service, alerts):
    service.mulligan.drain()  # a worker has stored the subscriptions
    render.enqueue_many([{"timeline": {"clips": [service.clip()]}}] * 100)
    driver = AlertDriver(app)
    driver.run(302)
    driver.run(302)
    assert ("alert.fired", "queue_ageing", "render") in driver.reported()
    with service.mulligan.force(render, *[DONE] * 100):
        service.mulligan.drain()
    assert "queue_ageing" in fired(alerts)  # 003-50


@pytest.mark.seed("003-50")
@pytest.mark.any_store
def test_few_waiting_orders_do_not_fire(service, alerts):
    render.enqueue_many([{"timeline": {"clips": [service.clip()]}}] * 20)
    driver = AlertDriver(app)
    driver.run(302)
    driver.run(302)
    assert "queue_ageing" not in [name for _, name, _ in driver.reported()]  # 003-50


@pytest.mark.seed("003-51")
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [pytest.param(100, set(), marks=pytest.mark.slow), (250, {"slow_jobs"})],
)
def test_renders_that_take_more_than_four_minutes_fire(
    service, alerts, monkeypatch, seconds, expected
):
    """Each render takes the real time and `seconds` more on the clock of the worker."""
    added = [0.0]
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() + added[0]
    monkeypatch.setattr("mulligan.worker.inline.time", clock)
    upload = jobs._store

    async def upload_slowly(video: Path, name: str) -> str:
        added[0] += seconds
        return await upload(video, name)

    monkeypatch.setattr(jobs, "_store", upload_slowly)
    service.mulligan.drain()  # a worker has stored the subscriptions
    driver = AlertDriver(app)
    for _ in range(20):
        service.order()
    service.mulligan.drain()
    driver.run(30)
    service.mulligan.drain()
    assert fired(alerts) & {"slow_jobs"} == expected  # 003-51


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("003-32", "003-49", "003-50", "003-51", "003-52")
@pytest.mark.timeout(180)
def test_a_worker_sends_all_four_alerts_to_the_operators(
    service, alerts, fake_ffmpeg, monkeypatch, tmp_path
):
    """Thresholds other than that of restarts are lowered, as an operator could do."""
    program = fake_ffmpeg("exec sleep 300")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    config = tmp_path / "mulligan.toml"
    config.write_text(LOW_THRESHOLDS)
    environment = {
        "ALERTS_TO": ALERTS_TO,
        "MULLIGAN_CONFIG": str(config),
        "MULLIGAN_WORKER__CONCURRENCY": "1",
        "STORAGE_URL": f"file://{tmp_path}/videos",
        "MAX_STALLED_COUNT": "9",
    }
    with service.mulligan.worker(env=environment) as worker:
        service.order()
        seen: set[int] = set()
        for number in range(4):
            until(lambda: _find_runner(worker, seen), 60, f"ffmpeg after {number} kills").kill()
        until(lambda: "worker_restarts" in fired(alerts), 60, "the alert of restarts")  # 003-52
        until(lambda: _find_runner(worker, seen), 60, "the job in a new runner")  # 003-32
        for _ in range(6):
            service.order()
        until(lambda: "queue_ageing" in fired(alerts), 60, "the alert of the queue")  # 003-50
        program.write_text("#!/bin/sh\nsleep 0.3\nexit 1\n")
        for process in _ffmpeg_processes(worker):
            process.kill()
        expected = {"failure_share", "slow_jobs"}
        until(lambda: expected <= fired(alerts), 90, "the other alerts")  # 003-49, 003-51


def _ffmpeg_processes(worker) -> list[psutil.Process]:
    below = psutil.Process(worker.pid).children(recursive=True)
    return [process for process in below if "sleep" in _name(process)]


def _find_runner(worker, seen: set[int]) -> psutil.Process | None:
    """Return the runner of an ffmpeg that is not in `seen`, and add that ffmpeg.

    The ffmpeg of a killed runner gets another parent before it is killed too.
    """
    for process in _ffmpeg_processes(worker):
        if process.pid not in seen:
            seen.add(process.pid)
            return process.parent()
    return None


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""

"""Outages of full length with default settings. Each test draws a chart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mulligan import State
from support import gateway_app
from support.gateway import FLAP, HANG, OK, REFUSE, SLOW
from support.outage import OutageReport, OutageScenario, OutageStage
from support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

On = Callable[[OutageScenario], OutageStage]

DEFAULTS = OutageScenario(capacity=50, request_seconds=0.05, client_timeout=5)
JOBS = 1000
MINUTE = 60.0
DRAINED = 400.0
MARGIN = 10  # one in a hundred may find out how much the gateway can serve


def report(stage: OutageStage, folder: Path, title: str) -> OutageReport:
    """Draw the chart before the assertions, and return the report."""
    result = stage.report(DRAINED)
    result.draw(folder, title)
    return result


def start_work(stage: OutageStage, jobs: int = JOBS) -> None:
    stage.call(jobs)
    stage.start_workers()
    stage.start_other_jobs()


def run_healthy(stage: OutageStage, seconds: float, rate: float) -> None:
    """So many jobs a second; what comes to the gateway is far below what it can serve."""
    calls = stage.call_steadily(rate)
    stage.pass_time(seconds)
    stage.calls += calls.stop()


def test_a_minute_of_refusals_from_the_first_job_on(on: On, tmp_path: Path) -> None:
    stage = on(DEFAULTS)
    stage.gateway.set_mode(REFUSE)
    start_work(stage)
    stage.pass_time(MINUTE)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "a minute of refusals from the first job on")
    result.check_all(slack=5, margin=MARGIN)


def test_a_minute_of_refusals_after_a_healthy_minute(on: On, tmp_path: Path) -> None:
    stage = on(DEFAULTS)
    start_work(stage, jobs=0)
    run_healthy(stage, MINUTE, 10)
    stage.gateway.set_mode(REFUSE)
    stage.call(JOBS - len(stage.calls))
    stage.pass_time(MINUTE)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "a minute of refusals after a healthy minute")
    result.check_all(slack=5, margin=MARGIN)


def test_a_minute_of_hanging(on: On, tmp_path: Path) -> None:
    stage = on(DEFAULTS)
    patience = stage.world.client_timeout
    stage.gateway.set_mode(HANG)
    start_work(stage)
    stage.pass_time(MINUTE)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "a minute of hanging")
    result.check_all(grace=patience + 1, slack=patience + 5, margin=MARGIN, others=patience + 1)


def test_a_minute_of_flapping_every_five_seconds(on: On, tmp_path: Path) -> None:
    stage = on(replace(DEFAULTS, declared={"cool_down": 2}))
    stage.gateway.set_mode(FLAP, 5.0)
    start_work(stage)
    stage.pass_time(MINUTE)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "a minute of flapping every five seconds")
    result.check_all_succeeded()
    result.check_charged_once_per_opening(MARGIN)
    result.check_one_probe_at_a_time(1)
    result.check_closed_soon(slack=5)
    result.check_rate_after_closing()
    result.check_other_jobs_ran_at_once(1)


def test_a_minute_at_ten_times_its_normal_time(on: On, tmp_path: Path) -> None:
    stage = on(DEFAULTS)
    start_work(stage, jobs=0)
    run_healthy(stage, 30, 15)
    stage.gateway.set_mode(SLOW, 10)
    run_healthy(stage, 30, 15)
    stage.call(JOBS - len(stage.calls))
    stage.pass_time(30)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "a minute at ten times its normal time")
    result.check_all_succeeded()
    result.check_served_once()
    result.check_other_jobs_ran_at_once(1)
    if result.open_periods:  # half a second is slow, but no harm: whether it opens depends on how many it refuses meanwhile
        result.check_all(
            slack=5, margin=MARGIN
        )  # it refuses only what is above its capacity, slow as it is


def test_workers_killed_during_a_probe_twice_in_one_outage(on: On, tmp_path: Path) -> None:
    stage = on(replace(DEFAULTS, client_timeout=120, declared={"cool_down": 10}))
    stage.gateway.set_mode(REFUSE)
    start_work(stage)
    settled = stage.wait_opened() + 1
    until(lambda: time.monotonic() > settled)
    stage.gateway.set_mode(HANG)
    for _ in range(2):
        ((_, by),) = until(stage.gateway.in_flight, 60, "a probe hangs")
        next(worker for worker in stage.workers if worker.pid == by).kill()
        until(
            lambda by=by: by not in [pid for _, pid in stage.gateway.in_flight()],
            5,
            "its runner has followed",
        )
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "workers killed during a probe")
    result.check_all(slack=10, margin=MARGIN, others=6)


def test_one_job_that_always_provokes_errors_at_the_head_of_a_held_queue(
    on: On, tmp_path: Path
) -> None:
    stage = on(DEFAULTS)
    stage.gateway.poison("poison")
    stage.gateway.set_mode(REFUSE)
    poison = gateway_app.call_again_soon.options(priority=-9).enqueue(tag="poison")
    start_work(stage)
    stage.pass_time(MINUTE)
    stage.gateway.set_mode(OK)
    result = report(stage, tmp_path, "one poisonous job at the head of the queue")
    result.check_all(slack=20, margin=MARGIN)
    (dead,) = stage.wait_ended([poison.id], 60)
    assert (dead.state, dead.failures) == (State.DEAD, 4)

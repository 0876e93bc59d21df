"""Outages at full length, with the settings that hold when nobody says anything. Each draws a picture of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mulligan import State
from support import calling
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


def told(place: OutageStage, folder: Path, title: str) -> OutageReport:
    """Drawn before anything is said about it."""
    story = place.report(DRAINED)
    story.draw(folder, title)
    return story


def work_begins(place: OutageStage, jobs: int = JOBS) -> None:
    place.call(jobs)
    place.start_workers()
    place.start_other_jobs()


def healthy(place: OutageStage, seconds: float, rate: float) -> None:
    """So many jobs a second; what comes to the gateway is far below what it can serve."""
    calls = place.call_steadily(rate)
    place.pass_time(seconds)
    place.calls += calls.stop()


def test_a_minute_of_refusals_from_the_first_job_on(on: On, tmp_path: Path) -> None:
    place = on(DEFAULTS)
    place.gateway.set_mode(REFUSE)
    work_begins(place)
    place.pass_time(MINUTE)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "a minute of refusals from the first job on")
    story.check_all(slack=5, margin=MARGIN)


def test_a_minute_of_refusals_after_a_healthy_minute(on: On, tmp_path: Path) -> None:
    place = on(DEFAULTS)
    work_begins(place, jobs=0)
    healthy(place, MINUTE, 10)
    place.gateway.set_mode(REFUSE)
    place.call(JOBS - len(place.calls))
    place.pass_time(MINUTE)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "a minute of refusals after a healthy minute")
    story.check_all(slack=5, margin=MARGIN)


def test_a_minute_of_hanging(on: On, tmp_path: Path) -> None:
    place = on(DEFAULTS)
    patience = place.world.client_timeout
    place.gateway.set_mode(HANG)
    work_begins(place)
    place.pass_time(MINUTE)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "a minute of hanging")
    story.check_all(grace=patience + 1, slack=patience + 5, margin=MARGIN, others=patience + 1)


def test_a_minute_of_flapping_every_five_seconds(on: On, tmp_path: Path) -> None:
    place = on(replace(DEFAULTS, declared={"cool_down": 2}))
    place.gateway.set_mode(FLAP, 5.0)
    work_begins(place)
    place.pass_time(MINUTE)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "a minute of flapping every five seconds")
    story.check_all_succeeded()
    story.check_charged_once_per_opening(MARGIN)
    story.check_one_probe_at_a_time(1)
    story.check_closed_soon(slack=5)
    story.check_rate_after_closing()
    story.check_other_jobs_ran_at_once(1)


def test_a_minute_at_ten_times_its_normal_time(on: On, tmp_path: Path) -> None:
    place = on(DEFAULTS)
    work_begins(place, jobs=0)
    healthy(place, 30, 15)
    place.gateway.set_mode(SLOW, 10)
    healthy(place, 30, 15)
    place.call(JOBS - len(place.calls))
    place.pass_time(30)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "a minute at ten times its normal time")
    story.check_all_succeeded()
    story.check_served_once()
    story.check_other_jobs_ran_at_once(1)
    if story.open_periods:  # half a second is slow, but no harm: whether it opens depends on how many it refuses meanwhile
        story.check_all(
            slack=5, margin=MARGIN
        )  # it refuses only what is above its capacity, slow as it is


def test_workers_killed_during_a_probe_twice_in_one_outage(
    on: On, tmp_path: Path
) -> None:
    place = on(replace(DEFAULTS, client_timeout=120, declared={"cool_down": 10}))
    place.gateway.set_mode(REFUSE)
    work_begins(place)
    settled = place.wait_opened() + 1
    until(lambda: time.monotonic() > settled)
    place.gateway.set_mode(HANG)
    for _ in range(2):
        ((_, by),) = until(place.gateway.in_flight, 60, "a probe hangs")
        next(worker for worker in place.workers if worker.pid == by).kill()
        until(
            lambda by=by: by not in [pid for _, pid in place.gateway.in_flight()],
            5,
            "its runner has followed",
        )
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "workers killed with the probe in their hands")
    story.check_all(slack=10, margin=MARGIN, others=6)


def test_one_job_that_always_provokes_errors_at_the_head_of_a_held_queue(
    on: On, tmp_path: Path
) -> None:
    place = on(DEFAULTS)
    place.gateway.poison("poison")
    place.gateway.set_mode(REFUSE)
    poison = calling.call_again_soon.options(priority=-9).enqueue(tag="poison")
    work_begins(place)
    place.pass_time(MINUTE)
    place.gateway.set_mode(OK)
    story = told(place, tmp_path, "one poisonous job at the head of the line")
    story.check_all(slack=20, margin=MARGIN)
    (dead,) = place.wait_ended([poison.id], 60)
    assert (dead.state, dead.failures) == (State.DEAD, 4)

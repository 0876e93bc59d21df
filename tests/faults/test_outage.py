"""An outage of a dependency charges no job, and recovery causes no second outage.

Three tests run with every change, the others with the slow ones. test_outage_proofs.py runs the
same outages at full length and draws charts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mulligan import State
from support import gateway_app
from support.gateway import FLAP, HANG, OK, REFUSE, SLOW
from support.outage import IN_FLIGHT, OutageScenario, OutageStage
from support.waiting import until

pytestmark = pytest.mark.processes

On = Callable[[OutageScenario], OutageStage]

# Without jitter: a charged job is retried two seconds later, when the breaker must have opened.
SOON = {"retry__base_delay": "2", "retry__factor": "1", "retry__jitter": "none"}
SHORT = OutageScenario(capacity=60, request_seconds=0.05, declared={"cool_down": 1}, settings=SOON)
LARGE = replace(SHORT, capacity=1000)
LEASE = 4.0
COOL_DOWN = 6.0  # longer than a probe may hang (5 s)
SETTLED = 1.0  # seconds after which what was in flight at the opening has ended


def start_in_an_outage(on: On, world: OutageScenario = SHORT, jobs: int = 120) -> OutageStage:
    """Start an outage before any call succeeded, and wait until only probes are in flight."""
    stage = on(world)
    stage.gateway.set_mode(REFUSE)
    stage.call(jobs)
    stage.start_workers()
    stage.start_other_jobs()
    opened = stage.wait_opened()
    until(lambda: time.monotonic() > opened + SETTLED)
    return stage


@pytest.mark.slow
@pytest.mark.any_store
def test_an_outage_from_the_first_job_on_charges_no_job(on: On) -> None:
    stage = start_in_an_outage(on)
    stage.pass_time(4)
    stage.gateway.set_mode(OK)
    stage.report(30).check_all()


@pytest.mark.slow
def test_an_outage_after_healthy_work_charges_no_job(on: On) -> None:
    stage = on(SHORT)
    stage.start_workers()
    stage.start_other_jobs()
    calls = stage.call_steadily(20)
    until(lambda: stage.gateway.count() >= 40, 10)
    stage.gateway.set_mode(REFUSE)
    stage.wait_opened()
    until(lambda: len(calls.ids) >= 120, 10)
    stage.calls += calls.stop()
    stage.gateway.set_mode(OK)
    stage.report(30).check_all()


@pytest.mark.slow
@pytest.mark.any_store
def test_an_open_breaker_shows_why_and_until_when(on: On) -> None:
    stage = start_in_an_outage(on)
    gateway = stage.app.dependencies.get("gateway")
    assert (gateway.key, gateway.state) == ("gateway", "open")
    assert gateway.held > 0
    assert gateway.since is not None
    assert gateway.reason
    held = stage.app.jobs.get(stage.calls[-1])
    assert (held.state, held.phase, held.failures) == (State.QUEUED, "held", 0)
    assert "gateway" in held.why
    stage.gateway.set_mode(OK)
    stage.wait_closed(10)
    types = [event.type for event in stage.events()]
    assert types[0] == "dependency.opened"
    assert types.count("dependency.opened") == types.count("dependency.closed")
    assert "dependency.probing" in types
    assert {event.data["dependency"] for event in stage.events()} == {"gateway"}
    assert all(event.data["reason"] for event in stage.events("dependency.opened"))
    stage.report(30).check_all_succeeded()
    assert stage.app.dependencies.get("gateway").state in {"closed", "ramping"}


@pytest.mark.slow
def test_an_open_breaker_is_probed_only_by_its_probe_function(on: On) -> None:
    stage = start_in_an_outage(on, replace(SHORT, has_health_check=True))
    settled = stage.wait_opened() + SETTLED
    stage.pass_time(3)
    recovered = stage.gateway.set_mode(OK)
    result = stage.report(30)
    result.check_all()
    knocked = {call.tag for call in result.calls if settled < call.began < recovered}
    assert knocked == {"probe"}


@pytest.mark.slow
@pytest.mark.any_store
def test_a_worker_that_dies_during_a_probe_does_not_block_the_breaker(on: On) -> None:
    stage = start_in_an_outage(on, replace(SHORT, client_timeout=60))
    stage.gateway.set_mode(HANG)
    ((_, by),) = until(stage.gateway.in_flight, 10, "a probe hangs")
    next(worker for worker in stage.workers if worker.pid == by).kill()
    until(
        lambda: by not in [pid for _, pid in stage.gateway.in_flight()],
        5,
        "its runner has followed",
    )
    stage.gateway.set_mode(OK)
    stage.report(30).check_all(slack=LEASE + 3, others=LEASE + 2)


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.parametrize("end", ["hangs", "its runner is killed", "its worker is killed"])
def test_the_breaker_closes_within_a_cool_down_and_a_lease_whatever_happens_to_the_probe(
    on: On, end: str
) -> None:
    """Twice during the outage, and a third time just before the gateway recovers."""
    declared = {"cool_down": COOL_DOWN}
    stage = start_in_an_outage(on, replace(SHORT, client_timeout=60, declared=declared))
    for _ in range(3):
        stage.gateway.set_mode(HANG)
        ((_, by),) = until(stage.gateway.in_flight, 30, "a probe hangs")
        worker = next(worker for worker in stage.workers if worker.pid == by)
        if end == "its runner is killed":
            for pid in worker.runners():
                os.kill(pid, signal.SIGKILL)
        elif end == "its worker is killed":
            worker.kill()
        until(lambda: not stage.gateway.in_flight(), 30, "the probe has ended")
        stage.gateway.set_mode(REFUSE)
        if end == "its worker is killed":
            stage.start_workers(1)
    stage.gateway.set_mode(OK)
    report = stage.report(60)
    report.check_all_succeeded()
    report.check_one_probe_at_a_time(SETTLED)
    report.check_one_probe_per_cool_down()
    report.check_closed_soon(slack=LEASE + 3)


@pytest.mark.slow
def test_a_hanging_gateway_opens_the_breaker_like_a_refusing_one(on: On) -> None:
    timeout = 1.0
    stage = on(replace(SHORT, client_timeout=timeout))
    stage.gateway.set_mode(HANG)
    stage.call(120)
    stage.start_workers()
    stage.start_other_jobs()
    stage.wait_opened()
    stage.pass_time(4)
    stage.gateway.set_mode(OK)
    stage.report(30).check_all(grace=timeout + SETTLED, slack=timeout + 2, others=timeout + 1)


@pytest.mark.slow
def test_a_flapping_gateway_kills_no_job_and_does_not_block_the_breaker(on: On) -> None:
    stage = on(SHORT)
    stage.gateway.set_mode(FLAP, 1.0)
    stage.call(120)
    stage.start_workers()
    stage.start_other_jobs()
    stage.wait_opened()
    stage.pass_time(6)
    stage.gateway.set_mode(OK)
    result = stage.report(90)
    result.check_all_succeeded()
    result.check_charged_once_per_opening(margin=5)
    result.check_one_probe_at_a_time(SETTLED)
    result.check_closed_soon(slack=2)
    result.check_rate_after_closing()
    result.check_other_jobs_ran_at_once(1)


@pytest.mark.slow
def test_a_gateway_ten_times_slower_opens_the_breaker_and_no_job_is_charged(on: On) -> None:
    stage = on(replace(SHORT, client_timeout=5, declared={"cool_down": 1, "slow": 0.25}))
    stage.start_workers()
    stage.start_other_jobs()
    calls = stage.call_steadily(20)
    until(lambda: stage.gateway.count() >= 40, 10)
    stage.gateway.set_mode(SLOW, 10)
    stage.wait_opened()
    until(lambda: len(calls.ids) >= 120, 10)
    stage.gateway.set_mode(OK)
    stage.calls += calls.stop()
    result = stage.report(30)
    result.check_all()
    assert {job.failures for job in result.jobs} == {0}


@pytest.mark.slow
def test_one_job_that_provokes_errors_dies_alone_while_others_run(on: On) -> None:
    stage = on(LARGE)
    stage.gateway.poison("poison")
    poison = gateway_app.call_again_soon.enqueue(tag="poison")
    stage.call(60)
    stage.start_workers()
    result = stage.report(15)
    result.check_all_succeeded()
    assert {job.failures for job in result.jobs} == {0}
    died_of_its_own_errors(stage, poison.id)


@pytest.mark.slow
def test_one_job_that_provokes_errors_delays_later_jobs_only_briefly(
    on: On,
) -> None:
    stage = on(LARGE)
    stage.gateway.poison("poison")
    stage.start_workers()
    poison = gateway_app.call_again_soon.enqueue(tag="poison")
    until(lambda: stage.gateway.count() >= 2, 10, "it fails repeatedly and no other job calls")
    stage.call(5)
    result = stage.report(10)
    result.check_all_succeeded()
    assert {job.failures for job in result.jobs} == {0}
    died_of_its_own_errors(stage, poison.id)


@pytest.mark.slow
def test_a_poisonous_job_at_the_head_of_the_queue_does_not_prevent_recovery(on: On) -> None:
    stage = on(SHORT)
    stage.gateway.poison("poison")
    stage.gateway.set_mode(REFUSE)
    poison = gateway_app.call_again_soon.options(priority=-9).enqueue(tag="poison")
    stage.call(60)
    stage.start_workers()
    stage.start_other_jobs()
    stage.wait_opened()
    stage.pass_time(2)
    stage.gateway.set_mode(OK)
    stage.report(30).check_all(slack=4)
    died_of_its_own_errors(stage, poison.id)


def died_of_its_own_errors(stage: OutageStage, job_id: str) -> None:
    """By its three retries, and at most three more attempts that it was not charged for."""
    (dead,) = stage.wait_ended([job_id], 30)
    assert dead.error is not None
    assert (dead.state, dead.error["code"], dead.failures) == (State.DEAD, "HTTP_5XX", 4)
    assert sum(call.tag == "poison" for call in stage.gateway.calls()) <= 4 + 3


@pytest.mark.slow
@pytest.mark.any_store
def test_fail_fast_ends_new_jobs_at_once_and_a_manual_retry_succeeds_afterwards(on: On) -> None:
    stage = start_in_an_outage(
        on,
        replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}, has_health_check=True),
        30,
    )
    before = stage.gateway.calls()
    late = stage.call(20)
    jobs = stage.wait_ended(late, 5)
    assert {(job.state, (job.error or {}).get("code")) for job in jobs} == {
        (State.DEAD, "DEPENDENCY_UNAVAILABLE")
    }
    assert (
        max((job.finished_at - job.created_at).total_seconds() for job in jobs if job.finished_at)
        < 1.5
    )
    assert {call.tag for call in stage.gateway.calls()[len(before) :]} <= {"probe"}
    stage.gateway.set_mode(OK)
    stage.wait_closed(10)
    for job_id in late:
        stage.app.jobs.retry(job_id, reason="the gateway has recovered")
    assert {job.state for job in stage.wait_ended(late, 20)} == {State.SUCCEEDED}


@pytest.mark.slow
def test_fail_fast_without_a_probe_function_notices_the_recovery_by_new_jobs(on: On) -> None:
    stage = start_in_an_outage(
        on, replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}), 30
    )
    calls = stage.call_steadily(5)
    stage.pass_time(2)
    stage.gateway.set_mode(OK)
    stage.wait_closed(10)
    count = len(calls.ids)
    until(lambda: len(calls.ids) >= count + 5)
    late = stage.wait_ended(calls.stop()[count + 1 :], 20)
    assert {job.state for job in late} == {State.SUCCEEDED}
    result = stage.report(20)
    result.check_one_probe_at_a_time(SETTLED)
    result.check_other_jobs_ran_at_once(1)


@pytest.mark.slow
def test_three_hundred_waiting_retries_without_fresh_jobs_all_succeed(on: On) -> None:
    stage = on(OutageScenario(capacity=2000, request_seconds=0.01))
    ids = [job.id for job in gateway_app.stumble.enqueue_many([{} for _ in range(300)])]
    stage.start_workers()
    jobs = stage.wait_ended(ids, 25)
    assert {(job.state, job.failures) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert len(stage.gateway.calls()) == len(ids) > IN_FLIGHT

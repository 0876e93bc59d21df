"""Something that jobs use goes away and comes back: it costs no job, and its end is no second outage.

Three of them run with every change, the others with the slow ones. The same at full length, drawn as a picture:
test_outage_proofs.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mulligan import State
from support import calling
from support.gateway import FLAP, HANG, OK, REFUSE, SLOW
from support.outage import IN_FLIGHT, OutageScenario, OutageStage
from support.waiting import until

pytestmark = pytest.mark.processes

On = Callable[[OutageScenario], OutageStage]

# Without jitter: who was charged comes back two seconds later, when the breaker must have opened.
SOON = {"retry__base_delay": "2", "retry__factor": "1", "retry__jitter": "none"}
SHORT = OutageScenario(capacity=60, request_seconds=0.05, declared={"cool_down": 1}, settings=SOON)
ROOMY = replace(SHORT, capacity=1000)
LEASE = 4.0
SETTLED = 1.0  # seconds after which what was in flight at the opening has ended


def begun_in_an_outage(on: On, world: OutageScenario = SHORT, jobs: int = 120) -> OutageStage:
    """Nothing has ever succeeded; the breaker is open, and nothing is in flight but probes."""
    place = on(world)
    place.gateway.set_mode(REFUSE)
    place.call(jobs)
    place.start_workers()
    place.start_other_jobs()
    opened = place.wait_opened()
    until(lambda: time.monotonic() > opened + SETTLED)
    return place


@pytest.mark.any_store
def test_an_outage_from_the_first_job_on_charges_no_job(on: On) -> None:
    place = begun_in_an_outage(on)
    place.pass_time(4)
    place.gateway.set_mode(OK)
    place.report(30).check_all()


@pytest.mark.slow
def test_an_outage_after_healthy_work_charges_no_job(on: On) -> None:
    place = on(SHORT)
    place.start_workers()
    place.start_other_jobs()
    calls = place.call_steadily(20)
    until(lambda: place.gateway.count() >= 40, 10)
    place.gateway.set_mode(REFUSE)
    place.wait_opened()
    until(lambda: len(calls.ids) >= 120, 10)
    place.calls += calls.stop()
    place.gateway.set_mode(OK)
    place.report(30).check_all()


@pytest.mark.slow
@pytest.mark.any_store
def test_an_open_breaker_shows_why_and_until_when(on: On) -> None:
    place = begun_in_an_outage(on)
    gateway = place.app.dependencies.get("gateway")
    assert (gateway.key, gateway.state) == ("gateway", "open")
    assert gateway.held > 0
    assert gateway.since is not None
    assert gateway.reason
    held = place.app.jobs.get(place.calls[-1])
    assert (held.state, held.phase, held.failures) == (State.QUEUED, "held", 0)
    assert "gateway" in held.why
    place.gateway.set_mode(OK)
    place.wait_closed(10)
    types = [event.type for event in place.events()]
    assert types[0] == "dependency.opened"
    assert types.count("dependency.opened") == types.count("dependency.closed")
    assert "dependency.probing" in types
    assert {event.data["dependency"] for event in place.events()} == {"gateway"}
    assert all(event.data["reason"] for event in place.events("dependency.opened"))
    place.report(30).check_all_succeeded()
    assert place.app.dependencies.get("gateway").state in {"closed", "ramping"}


@pytest.mark.slow
def test_an_open_breaker_is_probed_only_by_its_probe_function(on: On) -> None:
    place = begun_in_an_outage(on, replace(SHORT, has_health_check=True))
    settled = place.wait_opened() + SETTLED
    place.pass_time(3)
    recovered = place.gateway.set_mode(OK)
    story = place.report(30)
    story.check_all()
    knocked = {call.tag for call in story.calls if settled < call.began < recovered}
    assert knocked == {"probe"}


@pytest.mark.slow
@pytest.mark.any_store
def test_a_worker_that_dies_during_a_probe_does_not_block_the_breaker(on: On) -> None:
    place = begun_in_an_outage(on, replace(SHORT, client_timeout=60))
    place.gateway.set_mode(HANG)
    ((_, by),) = until(place.gateway.in_flight, 10, "a probe hangs")
    next(worker for worker in place.workers if worker.pid == by).kill()
    until(
        lambda: by not in [pid for _, pid in place.gateway.in_flight()],
        5,
        "its runner has followed",
    )
    place.gateway.set_mode(OK)
    place.report(30).check_all(slack=LEASE + 3, others=LEASE + 2)


@pytest.mark.slow
def test_a_hanging_gateway_opens_the_breaker_like_a_refusing_one(on: On) -> None:
    patience = 1.0
    place = on(replace(SHORT, client_timeout=patience))
    place.gateway.set_mode(HANG)
    place.call(120)
    place.start_workers()
    place.start_other_jobs()
    place.wait_opened()
    place.pass_time(4)
    place.gateway.set_mode(OK)
    place.report(30).check_all(grace=patience + SETTLED, slack=patience + 2, others=patience + 1)


@pytest.mark.slow
def test_a_flapping_gateway_kills_no_job_and_does_not_block_the_breaker(on: On) -> None:
    place = on(SHORT)
    place.gateway.set_mode(FLAP, 1.0)
    place.call(120)
    place.start_workers()
    place.start_other_jobs()
    place.wait_opened()
    place.pass_time(6)
    place.gateway.set_mode(OK)
    story = place.report(90)
    story.check_all_succeeded()
    story.check_charged_once_per_opening(margin=5)
    story.check_one_probe_at_a_time(SETTLED)
    story.check_closed_soon(slack=2)
    story.check_rate_after_closing()
    story.check_other_jobs_ran_at_once(1)


@pytest.mark.slow
def test_a_gateway_ten_times_slower_opens_the_breaker_and_no_job_is_charged(on: On) -> None:
    place = on(replace(SHORT, client_timeout=5, declared={"cool_down": 1, "slow": 0.25}))
    place.start_workers()
    place.start_other_jobs()
    calls = place.call_steadily(20)
    until(lambda: place.gateway.count() >= 40, 10)
    place.gateway.set_mode(SLOW, 10)
    place.wait_opened()
    until(lambda: len(calls.ids) >= 120, 10)
    place.gateway.set_mode(OK)
    place.calls += calls.stop()
    story = place.report(30)
    story.check_all()
    assert {job.failures for job in story.jobs} == {0}


@pytest.mark.slow
def test_one_job_that_provokes_errors_dies_alone_while_others_run(on: On) -> None:
    place = on(ROOMY)
    place.gateway.poison("poison")
    poison = calling.call_again_soon.enqueue(tag="poison")
    place.call(60)
    place.start_workers()
    story = place.report(15)
    story.check_all_succeeded()
    assert {job.failures for job in story.jobs} == {0}
    died_of_its_own_errors(place, poison.id)


@pytest.mark.slow
def test_one_job_that_provokes_errors_delays_later_jobs_only_briefly(
    on: On,
) -> None:
    place = on(ROOMY)
    place.gateway.poison("poison")
    place.start_workers()
    poison = calling.call_again_soon.enqueue(tag="poison")
    until(lambda: place.gateway.count() >= 2, 10, "it fails again and again, and nobody else calls")
    place.call(5)
    story = place.report(10)
    story.check_all_succeeded()
    assert {job.failures for job in story.jobs} == {0}
    died_of_its_own_errors(place, poison.id)


@pytest.mark.slow
def test_a_poisonous_job_at_the_head_of_the_queue_does_not_prevent_recovery(on: On) -> None:
    place = on(SHORT)
    place.gateway.poison("poison")
    place.gateway.set_mode(REFUSE)
    poison = calling.call_again_soon.options(priority=-9).enqueue(tag="poison")
    place.call(60)
    place.start_workers()
    place.start_other_jobs()
    place.wait_opened()
    place.pass_time(2)
    place.gateway.set_mode(OK)
    place.report(30).check_all(slack=4)
    died_of_its_own_errors(place, poison.id)


def died_of_its_own_errors(place: OutageStage, job_id: str) -> None:
    """By its three retries, and at most three more attempts that it was not charged for."""
    (dead,) = place.wait_ended([job_id], 30)
    assert dead.error is not None
    assert (dead.state, dead.error["code"], dead.failures) == (State.DEAD, "HTTP_5XX", 4)
    assert sum(call.tag == "poison" for call in place.gateway.calls()) <= 4 + 3


@pytest.mark.any_store
def test_fail_fast_ends_new_jobs_at_once_and_a_manual_retry_succeeds_afterwards(on: On) -> None:
    place = begun_in_an_outage(
        on, replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}, has_health_check=True), 30
    )
    before = place.gateway.calls()
    late = place.call(20)
    jobs = place.wait_ended(late, 5)
    assert {(job.state, (job.error or {}).get("code")) for job in jobs} == {
        (State.DEAD, "DEPENDENCY_UNAVAILABLE")
    }
    assert (
        max((job.finished_at - job.created_at).total_seconds() for job in jobs if job.finished_at)
        < 1.5
    )
    assert {call.tag for call in place.gateway.calls()[len(before) :]} <= {"probe"}
    place.gateway.set_mode(OK)
    place.wait_closed(10)
    for job_id in late:
        place.app.jobs.retry(job_id, reason="it is well again")
    assert {job.state for job in place.wait_ended(late, 20)} == {State.SUCCEEDED}


@pytest.mark.slow
def test_fail_fast_without_a_probe_function_notices_the_recovery_by_new_jobs(on: On) -> None:
    place = begun_in_an_outage(
        on, replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}), 30
    )
    calls = place.call_steadily(5)
    place.pass_time(2)
    place.gateway.set_mode(OK)
    place.wait_closed(10)
    seen = len(calls.ids)
    until(lambda: len(calls.ids) >= seen + 5)
    late = place.wait_ended(calls.stop()[seen + 1 :], 20)
    assert {job.state for job in late} == {State.SUCCEEDED}
    story = place.report(20)
    story.check_one_probe_at_a_time(SETTLED)
    story.check_other_jobs_ran_at_once(1)


@pytest.mark.slow
def test_three_hundred_waiting_retries_without_fresh_jobs_all_succeed(on: On) -> None:
    place = on(OutageScenario(capacity=2000, request_seconds=0.01))
    ids = [job.id for job in calling.stumble.enqueue_many([{} for _ in range(300)])]
    place.start_workers()
    jobs = place.wait_ended(ids, 25)
    assert {(job.state, job.failures) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert len(place.gateway.calls()) == len(ids) > IN_FLIGHT

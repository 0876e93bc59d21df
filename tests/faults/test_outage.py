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
from support.outage import IN_FLIGHT, Stage, World
from support.waiting import until

pytestmark = pytest.mark.processes

On = Callable[[World], Stage]

# Without jitter: who was charged comes back two seconds later, when the breaker must have opened.
SOON = {"retry__base_delay": "2", "retry__factor": "1", "retry__jitter": "none"}
SHORT = World(capacity=60, takes=0.05, declared={"cool_down": 1}, settings=SOON)
ROOMY = replace(SHORT, capacity=1000)
LEASE = 4.0
SETTLED = 1.0  # seconds after which what was in flight at the opening has ended


def begun_in_an_outage(on: On, world: World = SHORT, jobs: int = 120) -> Stage:
    """Nothing has ever succeeded; the breaker is open, and nothing is in flight but probes."""
    place = on(world)
    place.gateway.become(REFUSE)
    place.call(jobs)
    place.hire()
    place.others_begin()
    opened = place.opened()
    until(lambda: time.monotonic() > opened + SETTLED)
    return place


@pytest.mark.any_store
def test_an_outage_from_the_first_job_on_costs_nothing_but_patience(on: On) -> None:
    place = begun_in_an_outage(on)
    place.pass_time(4)
    place.gateway.become(OK)
    place.story(30).line_was_held()


@pytest.mark.slow
def test_an_outage_after_healthy_work_costs_nothing_but_patience(on: On) -> None:
    place = on(SHORT)
    place.hire()
    place.others_begin()
    calls = place.call_steadily(20)
    until(lambda: place.gateway.count() >= 40, 10)
    place.gateway.become(REFUSE)
    place.opened()
    until(lambda: len(calls.ids) >= 120, 10)
    place.calls += calls.stop()
    place.gateway.become(OK)
    place.story(30).line_was_held()


@pytest.mark.slow
@pytest.mark.any_store
def test_while_it_is_open_everybody_can_see_that_why_and_until_when(on: On) -> None:
    place = begun_in_an_outage(on)
    gateway = place.app.dependencies.get("gateway")
    assert (gateway.key, gateway.state) == ("gateway", "open")
    assert gateway.held > 0
    assert gateway.since is not None
    assert gateway.reason
    held = place.app.jobs.get(place.calls[-1])
    assert (held.state, held.phase, held.failures) == (State.QUEUED, "held", 0)
    assert "gateway" in held.why
    place.gateway.become(OK)
    place.wait_closed(10)
    types = [event.type for event in place.events()]
    assert types[0] == "dependency.opened"
    assert types.count("dependency.opened") == types.count("dependency.closed")
    assert "dependency.probing" in types
    assert {event.data["dependency"] for event in place.events()} == {"gateway"}
    assert all(event.data["reason"] for event in place.events("dependency.opened"))
    place.story(30).all_succeeded()
    assert place.app.dependencies.get("gateway").state in {"closed", "ramping"}


@pytest.mark.slow
def test_a_probe_of_its_own_is_all_that_knocks_while_it_is_open(on: On) -> None:
    place = begun_in_an_outage(on, replace(SHORT, probed=True))
    settled = place.opened() + SETTLED
    place.pass_time(3)
    recovered = place.gateway.become(OK)
    story = place.story(30)
    story.line_was_held()
    knocked = {call.tag for call in story.calls if settled < call.began < recovered}
    assert knocked == {"probe"}


@pytest.mark.slow
@pytest.mark.any_store
def test_a_worker_that_dies_with_the_probe_in_its_hands_leaves_nothing_half_open(on: On) -> None:
    place = begun_in_an_outage(on, replace(SHORT, patience=60))
    place.gateway.become(HANG)
    ((_, by),) = until(place.gateway.in_flight, 10, "a probe hangs")
    next(worker for worker in place.workers if worker.pid == by).kill()
    until(
        lambda: by not in [pid for _, pid in place.gateway.in_flight()],
        5,
        "its runner has followed",
    )
    place.gateway.become(OK)
    place.story(30).line_was_held(slack=LEASE + 3, others=LEASE + 2)


@pytest.mark.slow
def test_a_gateway_that_hangs_is_held_like_one_that_refuses(on: On) -> None:
    patience = 1.0
    place = on(replace(SHORT, patience=patience))
    place.gateway.become(HANG)
    place.call(120)
    place.hire()
    place.others_begin()
    place.opened()
    place.pass_time(4)
    place.gateway.become(OK)
    place.story(30).line_was_held(grace=patience + SETTLED, slack=patience + 2, others=patience + 1)


@pytest.mark.slow
def test_a_gateway_that_flaps_ends_nobody_and_leaves_nothing_half_open(on: On) -> None:
    place = on(SHORT)
    place.gateway.become(FLAP, 1.0)
    place.call(120)
    place.hire()
    place.others_begin()
    place.opened()
    place.pass_time(6)
    place.gateway.become(OK)
    story = place.story(90)
    story.all_succeeded()
    story.paid_at_most_once_per_opening(margin=5)
    story.one_at_a_time_while_open(SETTLED)
    story.closed_soon(slack=2)
    story.never_too_fast()
    story.others_ran_at_once(1)


@pytest.mark.slow
def test_a_gateway_ten_times_slower_than_it_was_is_spared_and_nobody_is_charged(on: On) -> None:
    place = on(replace(SHORT, patience=5, declared={"cool_down": 1, "slow": 0.25}))
    place.hire()
    place.others_begin()
    calls = place.call_steadily(20)
    until(lambda: place.gateway.count() >= 40, 10)
    place.gateway.become(SLOW, 10)
    place.opened()
    until(lambda: len(calls.ids) >= 120, 10)
    place.gateway.become(OK)
    place.calls += calls.stop()
    story = place.story(30)
    story.line_was_held()
    assert {job.failures for job in story.jobs} == {0}


@pytest.mark.slow
def test_one_job_that_alone_provokes_errors_dies_alone_in_company(on: On) -> None:
    place = on(ROOMY)
    place.gateway.poison("poison")
    poison = calling.call_again_soon.enqueue(tag="poison")
    place.call(60)
    place.hire()
    story = place.story(15)
    story.all_succeeded()
    assert {job.failures for job in story.jobs} == {0}
    died_of_its_own_errors(place, poison.id)


@pytest.mark.slow
def test_one_job_that_alone_provokes_errors_holds_up_those_who_come_later_only_briefly(
    on: On,
) -> None:
    place = on(ROOMY)
    place.gateway.poison("poison")
    place.hire()
    poison = calling.call_again_soon.enqueue(tag="poison")
    until(lambda: place.gateway.count() >= 2, 10, "it fails again and again, and nobody else calls")
    place.call(5)
    story = place.story(10)
    story.all_succeeded()
    assert {job.failures for job in story.jobs} == {0}
    died_of_its_own_errors(place, poison.id)


@pytest.mark.slow
def test_a_poisonous_job_at_the_head_of_the_line_keeps_nobody_from_recovery(on: On) -> None:
    place = on(SHORT)
    place.gateway.poison("poison")
    place.gateway.become(REFUSE)
    poison = calling.call_again_soon.options(priority=-9).enqueue(tag="poison")
    place.call(60)
    place.hire()
    place.others_begin()
    place.opened()
    place.pass_time(2)
    place.gateway.become(OK)
    place.story(30).line_was_held(slack=4)
    died_of_its_own_errors(place, poison.id)


def died_of_its_own_errors(place: Stage, job_id: str) -> None:
    """By its three retries, and at most three more attempts that it was not charged for."""
    (dead,) = place.ended([job_id], 30)
    assert dead.error is not None
    assert (dead.state, dead.error["code"], dead.failures) == (State.DEAD, "HTTP_5XX", 4)
    assert sum(call.tag == "poison" for call in place.gateway.calls()) <= 4 + 3


@pytest.mark.any_store
def test_fail_fast_ends_new_work_at_once_and_a_retry_by_hand_succeeds_afterwards(on: On) -> None:
    place = begun_in_an_outage(
        on, replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}, probed=True), 30
    )
    before = place.gateway.calls()
    late = place.call(20)
    jobs = place.ended(late, 5)
    assert {(job.state, (job.error or {}).get("code")) for job in jobs} == {
        (State.DEAD, "DEPENDENCY_UNAVAILABLE")
    }
    assert (
        max((job.finished_at - job.created_at).total_seconds() for job in jobs if job.finished_at)
        < 1.5
    )
    assert {call.tag for call in place.gateway.calls()[len(before) :]} <= {"probe"}
    place.gateway.become(OK)
    place.wait_closed(10)
    for job_id in late:
        place.app.jobs.retry(job_id, reason="it is well again")
    assert {job.state for job in place.ended(late, 20)} == {State.SUCCEEDED}


@pytest.mark.slow
def test_fail_fast_without_a_probe_of_its_own_finds_the_recovery_by_new_work(on: On) -> None:
    place = begun_in_an_outage(
        on, replace(SHORT, declared={"cool_down": 1, "mode": "fail_fast"}), 30
    )
    calls = place.call_steadily(5)
    place.pass_time(2)
    place.gateway.become(OK)
    place.wait_closed(10)
    seen = len(calls.ids)
    until(lambda: len(calls.ids) >= seen + 5)
    late = place.ended(calls.stop()[seen + 1 :], 20)
    assert {job.state for job in late} == {State.SUCCEEDED}
    story = place.story(20)
    story.one_at_a_time_while_open(SETTLED)
    story.others_ran_at_once(1)


@pytest.mark.slow
def test_three_hundred_waiting_retries_and_no_fresh_job_all_get_through(on: On) -> None:
    place = on(World(capacity=2000, takes=0.01))
    ids = [job.id for job in calling.stumble.enqueue_many([{} for _ in range(300)])]
    place.hire()
    jobs = place.ended(ids, 25)
    assert {(job.state, job.failures) for job in jobs} == {(State.SUCCEEDED, 1)}
    assert len(place.gateway.calls()) == len(ids) > IN_FLIGHT

"""Circuit breakers and retry budgets of the providers."""

from __future__ import annotations

import pytest

from mulligan.testing import Returns, force, worker
from support.receivers import open_receiver
from support.waiting import until

pytestmark = pytest.mark.processes

GOOD = Returns({"video": "none"})
DOWN = "The provider is down. The task waits for it, and no retry is spent."


@pytest.mark.any_store
@pytest.mark.seed("002-51", "002-52", "002-54")
def test_tasks_of_a_provider_that_is_down_wait_uncharged_and_resume(world, ann):
    world.set_fault("nimbus", "503")
    waiting = [ann.order(f"cat {n}") for n in range(12)]
    quartz_task = ann.order(model="quartz-2")
    world.run()
    assert world.app.dependencies.get("nimbus").state == "open"
    assert ann.task(quartz_task).status == "succeeded"
    calls_before = len(world.calls())
    assert calls_before < 12  # the others were not sent
    assert DOWN in {ann.task(task).error for task in waiting}
    for _ in range(10):
        world.advance(60)
        world.run()
    assert len(world.calls()) == calls_before  # 002-51, 002-54: only the probe calls the provider
    world.set_fault("nimbus", "ok")
    world.run(until_done=True)
    ended = [ann.task(task) for task in waiting]
    assert {task.status for task in ended} == {"succeeded"}  # 002-52
    assert max(task.retryCount for task in ended) <= 1  # 002-51
    assert world.app.dependencies.get("nimbus").state != "open"


@pytest.mark.any_store
@pytest.mark.seed("002-47")
def test_trouble_with_a_provider_reaches_the_channel_of_the_operators(make_world):
    with open_receiver() as receiver:
        world = make_world(AlertWebhook=receiver.url())
        ann = world.caller()
        with worker(world.app, "mulligan.apps.videogen.jobs:app"):
            for n in range(12):
                ann.order(f"cat {n} [401]")
            until(receiver.bodies, 90, "an alert")
    assert {body["type"] for body in receiver.bodies()} == {"alert.fired"}


@pytest.mark.any_store
@pytest.mark.seed("002-53", "002-54")
def test_retry_budget_delays_excess_retries_without_failing_them(make_world):
    world = make_world(RetryBudget="10/m")
    ann = world.caller()
    tasks = [ann.order(f"cat {n}") for n in range(48)]
    every_fourth_fails = (GOOD, GOOD, GOOD, ConnectionResetError("reset"))
    with force(world.app, "video.nimbus", *every_fourth_fails, times=12):
        world.run()
    waiting = [task for task in tasks if ann.task(task).status == "pending"]
    assert len(waiting) == 12

    def count(status):
        return sum(ann.task(task).status == status for task in waiting)

    with force(world.app, "video.nimbus", GOOD, times=12):
        world.advance(36)
        world.run()
        assert count("succeeded") == 10  # 002-53, 002-54
        world.advance(5)
        world.run()
        assert count("pending") == 2
        world.run(until_done=True)
    assert count("succeeded") == 12  # 002-53

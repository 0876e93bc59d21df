"""Circuit breakers and retry budgets of the providers."""

from __future__ import annotations

import pytest

from mulligan.testing import Returns, force

pytestmark = pytest.mark.processes

GOOD = Returns({"video": "none"})
DOWN = "The provider is down. The task waits for it, and no retry is spent."


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
    assert len(world.calls()) == calls_before  # only the probe calls the provider
    world.set_fault("nimbus", "ok")
    world.run(until_done=True)
    ended = [ann.task(task) for task in waiting]
    assert {task.status for task in ended} == {"succeeded"}
    assert max(task.retryCount for task in ended) <= 1
    assert world.app.dependencies.get("nimbus").state != "open"


@pytest.mark.seed("002-53", "002-54")
def test_retry_budget_delays_excess_retries_without_failing_them(
    make_world,
):
    world = make_world(RetryBudget="10/m")
    ann = world.caller()
    tasks = [ann.order(f"cat {n}") for n in range(48)]
    with force(
        world.app, "video.nimbus", GOOD, GOOD, GOOD, ConnectionResetError("reset"), times=12
    ):
        world.run()
    waiting = [task for task in tasks if ann.task(task).status == "pending"]
    assert len(waiting) == 12
    with force(world.app, "video.nimbus", GOOD, times=12):
        world.advance(36)
        world.run()
        assert [ann.task(task).status for task in waiting].count("succeeded") == 10
        world.advance(5)
        world.run()
        assert [ann.task(task).status for task in waiting].count("pending") == 2
        world.run(until_done=True)
    assert {ann.task(task).status for task in waiting} == {"succeeded"}

"""Providers that are down, and retries that are too many."""

from __future__ import annotations

import pytest

from mulligan.testing import Returns, force

pytestmark = pytest.mark.processes

GOOD = Returns({"video": "none"})
DOWN = "The provider is down. The task waits for it, and no retry is spent."


@pytest.mark.seed("002-51", "002-52", "002-54")
def test_while_a_provider_is_down_tasks_wait_uncharged_and_go_on_by_themselves(world, ann):
    world.tell("nimbus", "503")
    found = [ann.order(f"cat {n}") for n in range(12)]
    other = ann.order(model="quartz-2")
    world.run()
    assert world.app.dependencies.get("nimbus").state == "open"
    assert ann.task(other).status == "succeeded"
    asked = len(world.calls())
    assert asked < 12  # the rest was not sent
    assert DOWN in {ann.task(task).error for task in found}
    for _ in range(10):
        world.later(60)
        world.run()
    assert len(world.calls()) == asked  # it is the probe that looks, and not the tasks
    world.tell("nimbus", "ok")
    world.run(all_of_it=True)
    ended = [ann.task(task) for task in found]
    assert {task.status for task in ended} == {"succeeded"}
    assert max(task.retryCount for task in ended) <= 1
    assert world.app.dependencies.get("nimbus").state != "open"


@pytest.mark.seed("002-53", "002-54")
def test_of_twelve_retries_ten_start_within_a_minute_and_the_others_wait_without_failing(
    make_world,
):
    world = make_world(RetryBudget="10/m")
    ann = world.caller()
    tasks = [ann.order(f"cat {n}") for n in range(48)]
    with force(
        world.app, "video.nimbus", GOOD, GOOD, GOOD, ConnectionResetError("reset"), times=12
    ):
        world.run()
    found = [task for task in tasks if ann.task(task).status == "pending"]
    assert len(found) == 12
    with force(world.app, "video.nimbus", GOOD, times=12):
        world.later(36)
        world.run()
        assert [ann.task(task).status for task in found].count("succeeded") == 10
        world.later(5)
        world.run()
        assert [ann.task(task).status for task in found].count("pending") == 2
        world.run(all_of_it=True)
    assert {ann.task(task).status for task in found} == {"succeeded"}

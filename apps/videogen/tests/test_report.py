"""Numbers of the report, compared with a manual count."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan.testing import Returns, force

DONE = Returns({"video": "none"})
LOST = ConnectionResetError("reset by peer")


def run_task(world, ann, model, *endings):
    """Run one task whose attempts end in these ways."""
    kind = world.providers.BY_MODEL[model].kind
    task = ann.order(model=model)
    with force(world.app, kind, *endings):
        world.run(until_done=True)
    return task


@pytest.mark.seed("002-33", "002-34", "002-35", "002-36", "002-37", "002-47")
def test_report_shows_failure_rates_and_success_of_retries(world, ann):
    for _ in range(3):
        run_task(world, ann, "nimbus-1", DONE)
    second = run_task(world, ann, "nimbus-1", LOST, DONE)
    third = run_task(world, ann, "nimbus-1", LOST, LOST, DONE)
    for _ in range(2):
        run_task(world, ann, "quartz-2", LOST, LOST, TimeoutError())
    worst, best = world.caller("*").get("/v1/videos/report").json()["data"]
    assert (worst["provider"], worst["failureRate"], worst["failuresByType"]) == (
        "quartz",
        1.0,
        {"TIMEOUT": 2},
    )  # 002-34, 002-35: the worst comes first
    assert (best["provider"], best["failureRate"], best["failuresByType"]) == ("nimbus", 0.0, {})
    assert (worst["retrySuccessRate"], best["retrySuccessRate"]) == (0.0, 1.0)  # 002-33
    assert best["retrySuccessByAttempt"] == {
        "2": {"succeeded": 1, "of": 2},
        "3": {"succeeded": 1, "of": 1},
    }  # 002-33
    assert worst["retrySuccessByAttempt"] == {
        "2": {"succeeded": 0, "of": 2},
        "3": {"succeeded": 0, "of": 2},
    }
    assert best["attemptsNeeded"] == {"1": 3, "2": 1, "3": 1}  # 002-37
    assert best["attemptsPerTask"] == pytest.approx(8 / 5)  # 002-47
    expected = [seconds_to_rescue(world, task) for task in (second, third)]
    assert best["meanSecondsToSuccess"] == pytest.approx(sum(expected) / 2, abs=0.1)  # 002-36


def seconds_to_rescue(world, task):
    """Return the seconds from the end of the first attempt to the end of the last."""
    attempts = world.app.jobs.attempts(task.removeprefix("task_"))
    return (attempts[-1].ended_at - attempts[0].ended_at) / 1e6


@pytest.mark.any_store
@pytest.mark.seed("002-56")
def test_failed_task_has_the_success_share_of_similar_tasks(world, ann):
    for n in range(12):
        for _ in range(6):  # so that the breaker stays closed
            run_task(world, ann, "nimbus-1", DONE)
        endings = [LOST] * 4 if n % 4 else [LOST, DONE]
        run_task(world, ann, "nimbus-1", *endings)
        world.advance(600)
    chances = {
        item.attempt: item.chance
        for item in world.app.insight(timedelta(days=1), kind="video.nimbus").numbers.chances
        if item.code == "NETWORK_ERROR"
    }
    assert (chances[2].trials, chances[2].successes) == (12, 3)
    assert chances[2].low < 0.25 < chances[2].high
    failed = [item for item in map(ann.task, ann.tasks()) if item.status == "failed"]
    shown = failed[0].estimatedChance
    assert all(item.estimatedChance == shown for item in failed)
    # Nine tasks were retried three times; no last retry succeeded.
    assert (shown["succeeded"], shown["of"], shown["share"]) == (0, 9, 0)  # 002-56: a share
    assert (shown["low"], shown["enough"]) == (0, False)
    assert 0.2 < shown["high"] < 0.4  # 002-56: nine tasks do not say more


@pytest.mark.seed("002-56")
def test_share_after_one_failed_task_is_0_of_1_and_too_few_to_say(world, ann):
    task = run_task(world, ann, "nimbus-1", *[LOST] * 4)
    shown = ann.task(task).estimatedChance
    assert (shown["share"], shown["succeeded"], shown["of"]) == (0, 0, 1)
    assert (shown["low"], shown["enough"]) == (0, False)
    assert shown["high"] > 0.7


@pytest.mark.any_store
@pytest.mark.seed("002-56")
def test_share_is_calibrated_on_a_run_whose_chance_is_known(world, ann):
    """Let 40 tasks fail once, and every fourth of them again and for good."""
    for n in range(40):
        endings = [LOST, DONE] if n % 4 else [LOST, ValueError("bad prompt")]
        run_task(world, ann, "nimbus-1", *endings)
    run_task(world, ann, "nimbus-1", LOST, LOST, LOST, LOST)
    cell = world.report.load_cells(world.providers.BY_KIND["video.nimbus"])
    [first_retry] = [item for item in cell if (item.code, item.attempt) == ("NETWORK_ERROR", 2)]
    shown = world.report.share_view(first_retry.success)
    assert (shown["succeeded"], shown["of"], shown["enough"]) == (30, 41, True)  # counted by hand
    assert shown["share"] == round(30 / 41, 3)
    assert shown["low"] < 0.75 < shown["high"]  # 002-56: the interval holds the real chance

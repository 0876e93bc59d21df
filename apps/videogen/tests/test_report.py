"""Numbers against a count by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mulligan.testing import Returns, force

DONE = Returns({"video": "none"})
LOST = ConnectionResetError("reset by peer")


def play(world, ann, model, *endings):
    """One task that ends so, attempt after attempt."""
    kind = world.providers.BY_MODEL[model].kind
    task = ann.order(model=model)
    with force(world.app, kind, *endings):
        world.run(all_of_it=True)
    return task


@pytest.mark.seed("002-33", "002-34", "002-35", "002-36", "002-37", "002-47")
def test_the_report_says_which_provider_fails_and_whether_retries_help(world, ann):
    for _ in range(3):
        play(world, ann, "nimbus-1", DONE)
    second, third = (
        play(world, ann, "nimbus-1", LOST, DONE),
        play(world, ann, "nimbus-1", LOST, LOST, DONE),
    )
    for _ in range(2):
        play(world, ann, "quartz-2", LOST, LOST, TimeoutError())
    worst, best = world.caller("*").get("/v1/videos/report").json()["data"]
    assert (worst["provider"], worst["failureRate"], worst["failuresByType"]) == (
        "quartz",
        1.0,
        {"TIMEOUT": 2},
    )
    assert (best["provider"], best["failureRate"], best["failuresByType"]) == ("nimbus", 0.0, {})
    assert (worst["retrySuccessRate"], best["retrySuccessRate"]) == (0.0, 1.0)
    assert best["retrySuccessByAttempt"] == {
        "2": {"succeeded": 1, "of": 2},
        "3": {"succeeded": 1, "of": 1},
    }
    assert worst["retrySuccessByAttempt"] == {
        "2": {"succeeded": 0, "of": 2},
        "3": {"succeeded": 0, "of": 2},
    }
    assert best["attemptsNeeded"] == {"1": 3, "2": 1, "3": 1}
    assert best["attemptsPerTask"] == pytest.approx(8 / 5)
    by_hand = [rescued_after(world, task) for task in (second, third)]
    assert best["meanSecondsToSuccess"] == pytest.approx(sum(by_hand) / 2, abs=0.1)


def rescued_after(world, task):
    """Seconds from the end of its first attempt to the end of its last."""
    attempts = world.app.jobs.attempts(task.removeprefix("task_"))
    return (attempts[-1].ended_at - attempts[0].ended_at) / 1e6


@pytest.mark.seed("002-56")
def test_a_failed_task_says_what_share_of_its_like_succeeded_at_the_next_attempt(world, ann):
    for n in range(12):
        play(world, ann, "nimbus-1", *([LOST] * 4 if n % 4 else [LOST, DONE]))
        world.later(600)
    chances = {
        one.attempt: one.chance
        for one in world.app.insight(timedelta(days=1), kind="video.nimbus").numbers.chances
        if one.code == "NETWORK_ERROR"
    }
    assert (chances[2].trials, chances[2].successes) == (12, 3)
    assert chances[2].low < 0.25 < chances[2].high
    failed = [one for one in map(ann.task, ann.tasks()) if one.status == "failed"]
    assert {one.estimatedChance["of"] for one in failed} == {9}
    assert all(one.estimatedChance["share"] < 0.35 for one in failed)

"""Settings from the environment."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

import pytest

from mulligan.testing import worker
from support.waiting import until

pytestmark = pytest.mark.any_store


def retry_delays(world, kind="video.nimbus", cls="transient"):
    """Return the shortest and the longest delay of each retry."""
    calendar = world.app.policy.explain(kind).of_class(cls).calendar
    return [(round(row.earliest, 3), round(row.latest, 3)) for row in calendar if row.attempt > 1]


@pytest.mark.seed("002-05")
@pytest.mark.parametrize("model", ["nimbus-1", "quartz-2"])
def test_five_retries_are_six_calls_of_any_provider(make_world, model):
    world = make_world(MaxRetries="5", BaseDelaySeconds="1")
    ann = world.caller()
    task = ann.order("a cat [503]", model=model)
    world.run(until_done=True)
    failed = ann.task(task)
    assert (failed.status, failed.retryCount, failed.maxRetries) == ("failed", 5, 5)  # 002-05
    assert len(world.calls()) == 6  # 002-05


@pytest.mark.seed("002-02", "002-06", "002-21", "002-22", "002-24")
def test_first_delay_is_the_base_delay_with_20_percent_jitter(make_world):
    assert retry_delays(make_world()) == [
        (24, 36),
        (48, 72),
        (96, 144),
    ]  # 002-02, 002-21, 002-22, 002-24
    assert retry_delays(make_world(BaseDelaySeconds="60"))[0] == (48, 72)  # 002-06


@pytest.mark.seed("002-07", "002-25")
def test_delays_stay_below_the_maximum_and_keep_their_jitter(make_world):
    delays = retry_delays(make_world(MaxRetries="12"))
    assert delays[-1] == (2400, 3600)
    assert max(latest for _, latest in delays) == 3600  # 002-07, 002-25
    assert retry_delays(make_world(MaxDelaySeconds="40"))[-1] == (26.667, 40)  # 002-07


@pytest.mark.seed("002-23")
def test_retries_at_the_maximum_delay_are_spread(make_world):
    world = make_world(MaxDelaySeconds="20")  # less than the delay of the first retry
    ann = world.caller()
    failing = []
    for number in range(12):
        failing.append(ann.order(f"cat {number} [503]"))
        for other in range(2):  # so that the provider is not considered down
            ann.order(f"dog {number}.{other}")
    world.run()
    attempts = [world.app.jobs.attempts(world.job(task).id)[0] for task in failing]
    delays = [(attempt.next_run_at - attempt.ended_at) / 1e6 for attempt in attempts]
    assert 13 < min(delays) < max(delays) <= 20.1  # 002-23
    assert len({round(delay, 1) for delay in delays}) > 5  # 002-23: not all at the maximum


@pytest.mark.seed("002-08")
def test_disabled_retries_fail_at_the_first_failure(make_world):
    world = make_world(EnableRetries="false")
    ann = world.caller()
    world.set_fault("nimbus", "503")
    delays = [ann.order(f"cat {n}") for n in range(8)]
    world.run(until_done=True)
    assert {(ann.task(task).status, ann.task(task).maxRetries) for task in delays} == {
        ("failed", 0)
    }
    assert len(world.calls()) == 8


@pytest.mark.processes
@pytest.mark.seed("002-09")
@pytest.mark.parametrize(
    ("setting", "seconds"), [({}, 30), ({"RetryCheckIntervalSeconds": "7"}, 7)]
)
def test_check_interval_is_the_poll_of_worker_and_web(make_world, setting, seconds):
    """`mulligan doctor` shows the settings that `mulligan worker` of the same app uses."""
    world = make_world(**setting)
    assert world.app.settings.worker.poll == seconds  # 002-09: the web
    command = ["doctor", "mulligan.apps.videogen.jobs:app", "-o", "json"]
    run = subprocess.run(
        [sys.executable, "-m", "mulligan", *command], capture_output=True, text=True, check=False
    )
    shown = {row["name"]: row for row in json.loads(run.stdout)["settings"]}
    assert float(shown["worker.poll"]["value"]) == seconds  # 002-09: the worker


@pytest.mark.processes
@pytest.mark.seed("002-09", "002-15")
def test_due_task_starts_within_the_check_interval_on_a_real_worker(make_world):
    world = make_world(RetryCheckIntervalSeconds="2", BaseDelaySeconds="3")
    ann = world.caller()
    with worker(world.app, "mulligan.apps.videogen.jobs:app"):
        task = ann.order("a cat [503 x1]")
        due = until(lambda: ann.task(task).nextRetryAt, 60, "a scheduled retry")
        until(lambda: ann.task(task).status == "succeeded", 60, "a video")
    started = [attempt.started_at for attempt in world.app.jobs.attempts(world.job(task).id)][1]
    late = started / 1e6 - datetime.fromisoformat(due).timestamp()
    assert 0 <= late < 2 + 10  # 002-15: not before its time; 002-09, on a busy machine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MaxRetries", "-1"),
        ("BaseDelaySeconds", "soon"),
        ("MaxDelaySeconds", "nan"),
        ("EnableRetries", "perhaps"),
    ],
)
def test_invalid_setting_is_refused_with_its_name(make_world, name, value):
    with pytest.raises(ValueError, match=f"VideoGeneration__{name}"):
        make_world(**{name: value})


# --- By provider ---------------------------------------------------------------------------------
@pytest.mark.seed("002-46", "002-49")
def test_provider_can_have_its_own_limit_and_delays(make_world):
    assert retry_delays(make_world(), "video.quartz") == [(96, 144), (192, 288)]  # 002-49: its own
    world = make_world(
        MaxRetries="4",
        Providers__quartz__MaxRetries="2",  # the value of its strategy, pinned
        Providers__quartz__BaseDelaySeconds="200",
    )
    assert len(retry_delays(world)) == 4
    assert retry_delays(world, "video.quartz") == [(160, 240), (320, 480)]  # 002-49
    ann = world.caller()
    assert ann.task(ann.order(model="quartz-2")).maxRetries == 2  # 002-46
    assert ann.task(ann.order(model="nimbus-1-fast")).maxRetries == 4  # 002-46


@pytest.mark.seed("002-46", "002-49")
def test_value_of_one_provider_wins_over_that_of_all_and_both_over_its_strategy(make_world):
    names = {"BaseDelaySeconds": "60", "MaxDelaySeconds": "100", "MaxRetries": "3"}
    for_all = make_world(**names)
    assert retry_delays(for_all, "video.quartz") == retry_delays(for_all)  # 002-49
    pinned = {f"Providers__quartz__{name}": value for name, value in names.items()}
    world = make_world(BaseDelaySeconds="5", MaxDelaySeconds="6", MaxRetries="9", **pinned)
    assert retry_delays(world, "video.quartz") == retry_delays(for_all)
    assert len(retry_delays(world)) == 9  # 002-46


@pytest.mark.seed("002-50")
def test_error_code_of_a_provider_can_have_its_own_limit_and_delay(make_world):
    world = make_world(Providers__quartz__MaxRetries="9")
    ann = world.caller()
    loading = ann.order("a cat [warming]", model="quartz-2")
    refused = ann.order("a cat [policy]", model="quartz-2")
    world.run()
    assert ann.task(loading).error == "Retry 1/9 scheduled: The model is being loaded."
    assert 14 <= world.retry_delay(loading) <= 15
    assert (ann.task(refused).status, ann.task(refused).errorCode) == ("failed", "CONTENT_REFUSED")
    world.run(until_done=True)
    assert (ann.task(loading).status, ann.task(loading).retryCount) == ("failed", 2)

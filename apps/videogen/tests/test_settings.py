"""Settings from the environment."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.any_store


def retry_delays(world, kind="video.nimbus", cls="transient"):
    """Return the shortest and the longest delay of each retry."""
    calendar = world.app.policy.explain(kind).of_class(cls).calendar
    return [(round(row.earliest, 3), round(row.latest, 3)) for row in calendar if row.attempt > 1]


@pytest.mark.seed("002-05")
def test_five_retries_are_six_calls(make_world):
    world = make_world(MaxRetries="5", BaseDelaySeconds="1")
    ann = world.caller()
    task = ann.order("a cat [503]")
    world.run(until_done=True)
    assert (ann.task(task).status, ann.task(task).retryCount, ann.task(task).maxRetries) == (
        "failed",
        5,
        5,
    )
    assert len(world.calls()) == 6


@pytest.mark.seed("002-02", "002-06", "002-21", "002-22", "002-24")
def test_first_delay_is_the_base_delay_with_20_percent_jitter(make_world):
    assert retry_delays(make_world()) == [(24, 36), (48, 72), (96, 144)]
    assert retry_delays(make_world(BaseDelaySeconds="60"))[0] == (48, 72)


@pytest.mark.seed("002-07", "002-23", "002-25")
def test_delays_stay_below_the_maximum_and_keep_their_jitter(make_world):
    delays = retry_delays(make_world(MaxRetries="12"))
    assert delays[-1] == (2400, 3600)
    assert max(latest for _, latest in delays) == 3600
    assert retry_delays(make_world(MaxDelaySeconds="40"))[-1] == (26.667, 40)


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


@pytest.mark.seed("002-09")
def test_check_interval_is_the_poll_of_the_worker(make_world):
    assert make_world().jobs.SETTINGS.worker == {"MULLIGAN_WORKER__POLL": "30"}
    assert make_world(RetryCheckIntervalSeconds="5").jobs.SETTINGS.worker == {
        "MULLIGAN_WORKER__POLL": "5"
    }


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
    world = make_world(MaxRetries="4", Providers__quartz__BaseDelaySeconds="200")
    assert len(retry_delays(world)) == 4
    assert retry_delays(world, "video.quartz") == [(160, 240), (320, 480)]
    ann = world.caller()
    assert ann.task(ann.order(model="quartz-2")).maxRetries == 2
    assert ann.task(ann.order(model="nimbus-1-fast")).maxRetries == 4


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

"""The environment, under the names of the people who run it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.any_store


def waits(world, kind="video.nimbus", cls="transient"):
    """The earliest and the latest moment of each retry, after the failure before it."""
    calendar = world.app.policy.explain(kind).of_class(cls).calendar
    return [(round(row.earliest, 3), round(row.latest, 3)) for row in calendar if row.attempt > 1]


@pytest.mark.seed("002-05")
def test_five_retries_are_six_calls(make_world):
    world = make_world(MaxRetries="5", BaseDelaySeconds="1")
    ann = world.caller()
    task = ann.order("a cat [503]")
    world.run(all_of_it=True)
    assert (ann.task(task).status, ann.task(task).retryCount, ann.task(task).maxRetries) == (
        "failed",
        5,
        5,
    )
    assert len(world.calls()) == 6


@pytest.mark.seed("002-02", "002-06", "002-21", "002-22", "002-24")
def test_the_first_wait_is_30_seconds_give_or_take_a_fifth_or_what_is_said(make_world):
    assert waits(make_world()) == [(24, 36), (48, 72), (96, 144)]
    assert waits(make_world(BaseDelaySeconds="60"))[0] == (48, 72)


@pytest.mark.seed("002-07", "002-23", "002-25")
def test_no_wait_is_longer_than_the_longest_and_those_at_the_cap_are_still_spread(make_world):
    found = waits(make_world(MaxRetries="12"))
    assert found[-1] == (2400, 3600)
    assert max(latest for _, latest in found) == 3600
    assert waits(make_world(MaxDelaySeconds="40"))[-1] == (26.667, 40)


@pytest.mark.seed("002-08")
def test_without_retries_the_first_failure_is_the_last(make_world):
    world = make_world(EnableRetries="false")
    ann = world.caller()
    world.tell("nimbus", "503")
    found = [ann.order(f"cat {n}") for n in range(8)]
    world.run(all_of_it=True)
    assert {(ann.task(task).status, ann.task(task).maxRetries) for task in found} == {("failed", 0)}
    assert len(world.calls()) == 8


@pytest.mark.seed("002-09")
def test_the_interval_is_how_often_the_worker_looks(make_world):
    assert make_world().jobs.SETTINGS.worker == {"MULLIGAN_WORKER__POLL": "30"}
    assert make_world(RetryCheckIntervalSeconds="5").jobs.SETTINGS.worker == {
        "MULLIGAN_WORKER__POLL": "5"
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MaxRetries", "-1"),
        ("BaseDelaySeconds", "soon"),
        ("MaxDelaySeconds", "nan"),
        ("EnableRetries", "perhaps"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(make_world, name, said):
    with pytest.raises(ValueError, match=f"VideoGeneration__{name}"):
        make_world(**{name: said})


# -- by provider ---------------------------------------------------------------------------------
@pytest.mark.seed("002-46", "002-49")
def test_a_provider_may_have_a_limit_and_delays_of_its_own(make_world):
    world = make_world(MaxRetries="4", Providers__quartz__BaseDelaySeconds="200")
    assert len(waits(world)) == 4
    assert waits(world, "video.quartz") == [(160, 240), (320, 480)]
    ann = world.caller()
    assert ann.task(ann.order(model="quartz-2")).maxRetries == 2
    assert ann.task(ann.order(model="nimbus-1-fast")).maxRetries == 4


@pytest.mark.seed("002-50")
def test_a_code_of_one_provider_has_a_limit_and_a_wait_of_its_own(make_world):
    world = make_world(Providers__quartz__MaxRetries="9")
    ann = world.caller()
    loading, refused = (
        ann.order("a cat [warming]", model="quartz-2"),
        ann.order("a cat [policy]", model="quartz-2"),
    )
    world.run()
    assert ann.task(loading).error == "Retry 1/9 scheduled: The model is being loaded."
    assert 14 <= world.wait_of(loading) <= 15
    assert (ann.task(refused).status, ann.task(refused).errorCode) == ("failed", "CONTENT_REFUSED")
    world.run(all_of_it=True)
    assert (ann.task(loading).status, ann.task(loading).retryCount) == ("failed", 2)

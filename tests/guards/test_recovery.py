"""The promises about recovery, on the simulation of tools/bench/recovery.py, and its page in the docs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from bench import recovery, releases
from bench.chart import drawn
from bench.recovery import Run, Setting, ramped

DOCS = Path(__file__).parents[2] / "docs"


@cache
def ours(setting: Setting, seed: int = 1) -> Run:
    return Run(setting, ramped(setting), seed=seed)


def keeps_the_promise(run: Run) -> bool:
    quick = run.drained is not None and run.drained <= 2 * run.setting.ideal()
    return quick and run.share < 0.01 and run.highest <= 1.5


PROMISED = [recovery.GATEWAY, recovery.UNKNOWN, recovery.COLD, recovery.SLOW]


@pytest.mark.parametrize("setting", PROMISED, ids=lambda setting: setting.name)
def test_a_backlog_drains_within_twice_the_ideal_with_few_failures_and_no_second_far_above_capacity(
    setting,
):
    assert keeps_the_promise(ours(setting))


@pytest.mark.slow
@pytest.mark.parametrize("setting", PROMISED, ids=lambda setting: setting.name)
def test_the_promise_does_not_hang_on_the_draw(setting):
    assert all(
        keeps_the_promise(Run(setting, ramped(setting), seed=seed)) for seed in range(100, 110)
    )


def test_far_more_capacity_than_was_ever_used_is_found_within_two_minutes():
    run = ours(recovery.ROOMY)
    assert run.drained is not None
    assert run.drained <= 120
    assert run.share < 0.01
    assert run.highest <= 1.5


def test_a_tenth_of_spare_capacity_is_enough_to_drain():
    """A ramp that cuts deeply and comes back slowly would use less than arrives."""
    run = ours(recovery.TIGHT)
    assert run.drained is not None
    assert run.highest <= 1.5


def test_a_dependency_that_always_fails_now_and_then_is_not_kept_at_the_floor():
    run = ours(recovery.FLAKY)
    assert run.drained is not None
    assert run.drained <= 3 * recovery.FLAKY.ideal()
    assert run.highest <= 1.5


def test_the_limit_goes_with_the_backlog_and_nothing_follows():
    run = ours(recovery.GATEWAY)
    assert run.drained is not None
    assert set(run.rates[run.drained + 5 :]) == {None}
    assert sum(run.failed[run.drained :]) == 0
    assert run.waiting[-1] == 0


def test_the_page_shows_what_the_simulation_gives_today():
    """When it fails: `python -m bench.releases`, and its tables into the page."""
    page = (DOCS / "explain" / "recovery.md").read_text(encoding="utf-8")
    others = {
        name: release(recovery.GATEWAY)
        for name, release in recovery.RELEASES.items()
        if name != "ramp"
    }
    runs = {name: Run(recovery.GATEWAY, release) for name, release in others.items()}
    runs["ramp"] = ours(recovery.GATEWAY)
    assert releases.by_release(runs) in page
    assert (
        releases.by_setting({setting.name: ours(setting) for setting in recovery.SETTINGS}) in page
    )
    assert (DOCS / "pictures" / "recovery.svg").read_text(encoding="utf-8") == drawn(runs)

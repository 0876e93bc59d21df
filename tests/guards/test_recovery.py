"""Recovery after an outage, in the simulation of tools/bench/recovery.py, and its docs page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from bench import recovery, releases
from bench.chart import draw_chart
from bench.recovery import Run, Setting, ramped

DOCS = Path(__file__).parents[2] / "docs"


@cache
def simulate_ramp(setting: Setting, seed: int = 1) -> Run:
    return Run(setting, ramped(setting), seed=seed)


def recovers_well(run: Run) -> bool:
    quick = run.drained is not None and run.drained <= 2 * run.setting.ideal()
    return quick and run.share < 0.01 and run.highest <= 1.5


PROMISED = [recovery.GATEWAY, recovery.UNKNOWN, recovery.COLD, recovery.SLOW]


@pytest.mark.parametrize("setting", PROMISED, ids=lambda setting: setting.name)
def test_backlog_drains_within_twice_the_ideal_time(
    setting,
):
    assert recovers_well(simulate_ramp(setting))


@pytest.mark.slow
@pytest.mark.parametrize("setting", PROMISED, ids=lambda setting: setting.name)
def test_recovery_does_not_depend_on_the_seed(setting):
    assert all(recovers_well(Run(setting, ramped(setting), seed=seed)) for seed in range(100, 110))


def test_much_higher_capacity_is_found_within_two_minutes():
    run = simulate_ramp(recovery.ROOMY)
    assert run.drained is not None
    assert run.drained <= 120
    assert run.share < 0.01
    assert run.highest <= 1.5


def test_ten_percent_spare_capacity_drains_the_backlog():
    """A ramp with deep cuts and slow growth would start fewer jobs than arrive."""
    run = simulate_ramp(recovery.TIGHT)
    assert run.drained is not None
    assert run.highest <= 1.5


def test_occasional_failures_do_not_keep_the_rate_low():
    run = simulate_ramp(recovery.FLAKY)
    assert run.drained is not None
    assert run.drained <= 3 * recovery.FLAKY.ideal()
    assert run.highest <= 1.5


def test_limit_ends_with_the_backlog():
    run = simulate_ramp(recovery.GATEWAY)
    assert run.drained is not None
    assert set(run.rates[run.drained + 5 :]) == {None}
    assert sum(run.failed[run.drained :]) == 0
    assert run.waiting[-1] == 0


def test_docs_pages_show_the_current_simulation():
    """If this fails, run `python -m bench.releases` and copy its tables into the pages."""
    page = (DOCS / "explain" / "recovery.md").read_text(encoding="utf-8")
    details = (DOCS / "contributors" / "recovery.md").read_text(encoding="utf-8")
    others = {
        name: release(recovery.GATEWAY)
        for name, release in recovery.RELEASES.items()
        if name != "ramp"
    }
    runs = {name: Run(recovery.GATEWAY, release) for name, release in others.items()}
    runs["ramp"] = simulate_ramp(recovery.GATEWAY)
    assert releases.by_release(runs) in page
    assert (
        releases.by_setting({setting.name: simulate_ramp(setting) for setting in recovery.SETTINGS})
        in details
    )
    assert (DOCS / "pictures" / "recovery.svg").read_text(encoding="utf-8") == draw_chart(runs)

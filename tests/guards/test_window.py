"""Outage detection: when a dependency counts as down."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.core.durations import SECOND
from mulligan.guards.window import EMPTY_WINDOW, DependencyTally, explain_outage, probability_above

NOW = 1_000_000 * SECOND
LENGTH = 120 * SECOND
JOBS = tuple(f"job{n}" for n in range(8))


def tally(ok: float = 0, failed: float = 0, jobs: tuple[str, ...] = JOBS) -> DependencyTally:
    return DependencyTally(ok=ok, failed=failed, jobs=jobs if failed else ())


def outage(window, now=NOW, *, min_calls=20, after_outage=False):
    return explain_outage(window, now, LENGTH, 0.5, min_calls, after_outage=after_outage)


def window_of(*steps: DependencyTally, every: int = SECOND):
    window = EMPTY_WINDOW
    for n, step in enumerate(steps):
        window = window.add(step, NOW + n * every, LENGTH, 0.5)
    return window


@pytest.mark.parametrize(
    ("failed", "ok", "opens"),
    [(4, 0, True), (3, 0, False), (5, 1, False), (6, 1, True), (2, 9, False)],
)
def test_few_calls_need_high_confidence(failed, ok, opens):
    assert bool(outage(window_of(tally(ok, failed)))) is opens


@pytest.mark.seed("001-34")
def test_failure_share_of_enough_calls_opens():
    assert outage(window_of(tally(10, 10))) == "10 of 20 calls failed in the last 2 min"
    assert outage(window_of(tally(11, 10))) is None
    assert outage(window_of(tally(7, 8)), min_calls=16) is None


@pytest.mark.seed("001-35")
def test_repeated_failures_of_one_job_are_not_an_outage():
    assert outage(window_of(tally(0, 40, ("one",)))) is None
    assert outage(window_of(tally(0, 40, ("one", "two")))) is None
    assert outage(window_of(tally(0, 40, ("one", "two", "three")))) is not None


def test_outage_of_a_busy_dependency_is_noticed_within_a_few_calls():
    window = window_of(*[tally(100) for _ in range(110)])
    failures = 0
    while not outage(window, NOW + 110 * SECOND):
        failures += 1
        window = window.add(tally(0, 1), NOW + 110 * SECOND, LENGTH, 0.5)
    assert 10 <= failures <= 16
    assert outage(window, NOW + 110 * SECOND) == f"{failures} of {failures} calls failed within 1 s"


def test_occasional_failures_are_not_an_outage():
    rng, window = Random(7), EMPTY_WINDOW
    for n in range(20_000):
        failed = rng.random() < 0.1
        window = window.add(tally(not failed, failed), NOW + n * SECOND // 10, LENGTH, 0.5)
        assert outage(window, NOW + n * SECOND // 10) is None


def test_few_failures_are_enough_after_an_outage():
    window = window_of(tally(100), tally(0, 6))
    assert outage(window) is None
    assert outage(window, after_outage=True) is not None


def test_calls_older_than_the_window_are_dropped():
    window = window_of(tally(0, 3), tally(0, 1), every=200 * SECOND)
    assert window.failed == 1


def test_a_failure_of_unknown_class_counts_half():
    assert outage(window_of(tally(0, 7 * 0.5))) is None
    assert outage(window_of(tally(0, 8 * 0.5))) is not None


def test_rate_is_that_of_the_busiest_bucket():
    window = window_of(*[tally(5) for _ in range(10)], *[tally(50) for _ in range(20)])
    assert window.rate(NOW + 30 * SECOND, LENGTH) == pytest.approx(50, rel=0.2)
    assert EMPTY_WINDOW.rate(NOW, LENGTH) is None


def test_clock_set_back_loses_at_most_the_window():
    window = window_of(*[tally(5) for _ in range(10)])
    back = window.add(tally(0, 2), NOW - 3600 * SECOND, LENGTH, 0.5)
    assert back.failed == 2
    assert outage(back, NOW - 3600 * SECOND) is None


@pytest.mark.parametrize(
    ("failed", "ok", "probability"), [(4, 0, 0.969), (3, 0, 0.938), (5, 1, 0.938), (15, 5, 0.987)]
)
def test_probability_above_is_the_tail_of_a_beta_distribution(failed, ok, probability):
    assert probability_above(failed, ok, 0.5) == pytest.approx(probability, abs=0.001)

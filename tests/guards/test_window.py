"""When a dependency counts as down."""

from __future__ import annotations

from random import Random

import pytest

from mulligan.core.job import SECOND
from mulligan.guards.window import EMPTY, DependencyTally, surely, why_down

NOW = 1_000_000 * SECOND
LENGTH = 120 * SECOND
JOBS = tuple(f"job{n}" for n in range(8))


def seen(ok: float = 0, failed: float = 0, jobs: tuple[str, ...] = JOBS) -> DependencyTally:
    return DependencyTally(ok=ok, failed=failed, jobs=jobs if failed else ())


def down(window, now=NOW, *, min_calls=20, wary=False):
    return why_down(window, now, LENGTH, 0.5, min_calls, wary=wary)


def filled(*steps: DependencyTally, every: int = SECOND):
    window = EMPTY
    for n, step in enumerate(steps):
        window = window.plus(step, NOW + n * every, LENGTH, 0.5)
    return window


@pytest.mark.parametrize(
    ("failed", "ok", "opens"),
    [(4, 0, True), (3, 0, False), (5, 1, False), (6, 1, True), (2, 9, False)],
)
def test_few_calls_must_be_sure(failed, ok, opens):
    assert bool(down(filled(seen(ok, failed)))) is opens


@pytest.mark.seed("001-34")
def test_enough_calls_open_by_their_share():
    assert down(filled(seen(10, 10))) == "10 of 20 calls failed in the last 2 min"
    assert down(filled(seen(11, 10))) is None
    assert down(filled(seen(7, 8)), min_calls=16) is None


@pytest.mark.seed("001-35")
def test_one_job_that_fails_again_and_again_is_no_outage():
    assert down(filled(seen(0, 40, ("one",)))) is None
    assert down(filled(seen(0, 40, ("one", "two")))) is None
    assert down(filled(seen(0, 40, ("one", "two", "three")))) is not None


def test_a_busy_dependency_that_goes_down_is_noticed_within_a_few_calls():
    window = filled(*[seen(100) for _ in range(110)])
    failures = 0
    while not down(window, NOW + 110 * SECOND):
        failures += 1
        window = window.plus(seen(0, 1), NOW + 110 * SECOND, LENGTH, 0.5)
    assert 10 <= failures <= 16
    assert down(window, NOW + 110 * SECOND) == f"{failures} of {failures} calls failed within 1 s"


def test_what_fails_now_and_then_opens_nothing():
    rng, window = Random(7), EMPTY
    for n in range(20_000):
        failed = rng.random() < 0.1
        window = window.plus(seen(not failed, failed), NOW + n * SECOND // 10, LENGTH, 0.5)
        assert down(window, NOW + n * SECOND // 10) is None


def test_after_an_outage_a_few_failures_are_enough():
    window = filled(seen(100), seen(0, 6))
    assert down(window) is None
    assert down(window, wary=True) is not None


def test_what_is_older_than_the_window_is_forgotten():
    window = filled(seen(0, 3), seen(0, 1), every=200 * SECOND)
    assert window.failed == 1


def test_a_failure_of_unknown_class_counts_half():
    assert down(filled(seen(0, 7 * 0.5))) is None
    assert down(filled(seen(0, 8 * 0.5))) is not None


def test_the_rate_before_is_that_of_the_busiest_time():
    window = filled(*[seen(5) for _ in range(10)], *[seen(50) for _ in range(20)])
    assert window.rate(NOW + 30 * SECOND, LENGTH) == pytest.approx(50, rel=0.2)
    assert EMPTY.rate(NOW, LENGTH) is None


def test_a_clock_that_went_back_loses_at_most_the_window():
    window = filled(*[seen(5) for _ in range(10)])
    back = window.plus(seen(0, 2), NOW - 3600 * SECOND, LENGTH, 0.5)
    assert back.failed == 2
    assert down(back, NOW - 3600 * SECOND) is None


@pytest.mark.parametrize(
    ("failed", "ok", "sure"), [(4, 0, 0.969), (3, 0, 0.938), (5, 1, 0.938), (15, 5, 0.987)]
)
def test_how_sure_one_may_be_is_the_tail_of_a_beta(failed, ok, sure):
    assert surely(failed, ok, 0.5) == pytest.approx(sure, abs=0.001)

"""How many retries a dependency bears."""

from __future__ import annotations

import pytest

from mulligan.core.job import SECOND
from mulligan.guards.budget import (
    DEFAULT,
    Bucket,
    allows,
    filled,
    low,
    next_token,
    observed,
    per_period,
)
from mulligan.guards.window import DependencyTally

NOW = 1_000_000 * SECOND
FULL = Bucket(50.0, NOW)
EMPTY = Bucket(0.0, NOW)


def test_ten_first_tries_pay_for_a_retry():
    assert observed(EMPTY, DependencyTally(first_ok=10), DEFAULT, NOW).tokens == pytest.approx(1)


def test_a_retry_that_succeeds_has_cost_nothing():
    assert observed(FULL, DependencyTally(retried=20, retry_ok=20), DEFAULT, NOW).tokens == 50


def test_time_alone_brings_a_retry_in_ten_seconds():
    assert allows(EMPTY, DEFAULT, NOW + 10 * SECOND) == 1
    assert next_token(EMPTY, DEFAULT, NOW) == pytest.approx(NOW + 10 * SECOND, abs=2)
    assert next_token(FULL, DEFAULT, NOW) is None


def test_it_is_never_fuller_than_full_and_a_clock_that_went_back_brings_nothing():
    assert filled(FULL, DEFAULT, NOW + 10**6 * SECOND).tokens == 50
    assert filled(EMPTY, DEFAULT, NOW - 10**6 * SECOND).tokens == 0


def test_three_hundred_retries_of_an_evening_get_through_in_time():
    """Nothing but retries waits and none of them succeeds: the worst case."""
    bucket, now, through = FULL, NOW, 0
    while through < 300:
        taken = min(allows(bucket, DEFAULT, now), 300 - through)
        bucket = observed(bucket, DependencyTally(retried=taken), DEFAULT, now)
        through += taken
        now += SECOND
    assert now - NOW <= 2600 * SECOND


def test_claims_need_not_ask_while_it_is_half_full():
    assert not low(FULL, DEFAULT)
    assert low(Bucket(24.9, NOW), DEFAULT)


def test_so_many_in_an_hour_is_just_that():
    terms = per_period(100, 3600)
    bucket = observed(
        Bucket(100.0, NOW), DependencyTally(retried=100, first_ok=1000, retry_ok=100), terms, NOW
    )
    assert bucket.tokens == 0
    assert allows(bucket, terms, NOW + 360 * SECOND) == 10

"""Retry budget of a dependency."""

from __future__ import annotations

import pytest

from mulligan.core.durations import SECOND
from mulligan.guards.budget import (
    DEFAULT_BUDGET,
    RetryBucket,
    apply_tally,
    available_retries,
    is_low,
    next_retry_at,
    per_period,
    refill,
)
from mulligan.guards.window import DependencyTally

NOW = 1_000_000 * SECOND
FULL = RetryBucket(50.0, NOW)
EMPTY = RetryBucket(0.0, NOW)


def test_ten_successes_earn_one_retry():
    assert apply_tally(
        EMPTY, DependencyTally(first_ok=10), DEFAULT_BUDGET, NOW
    ).tokens == pytest.approx(1)


def test_successful_retry_is_refunded():
    assert (
        apply_tally(FULL, DependencyTally(retried=20, retry_ok=20), DEFAULT_BUDGET, NOW).tokens
        == 50
    )


def test_time_earns_a_retry_every_ten_seconds():
    assert available_retries(EMPTY, DEFAULT_BUDGET, NOW + 10 * SECOND) == 1
    assert next_retry_at(EMPTY, DEFAULT_BUDGET, NOW) == pytest.approx(NOW + 10 * SECOND, abs=2)
    assert next_retry_at(FULL, DEFAULT_BUDGET, NOW) is None


def test_bucket_never_overflows_or_refills_from_a_clock_set_back():
    assert refill(FULL, DEFAULT_BUDGET, NOW + 10**6 * SECOND).tokens == 50
    assert refill(EMPTY, DEFAULT_BUDGET, NOW - 10**6 * SECOND).tokens == 0


def test_three_hundred_retries_pass_the_budget_in_time():
    """Worst case: only retries wait and none succeeds."""
    bucket, now, through = FULL, NOW, 0
    while through < 300:
        taken = min(available_retries(bucket, DEFAULT_BUDGET, now), 300 - through)
        bucket = apply_tally(bucket, DependencyTally(retried=taken), DEFAULT_BUDGET, now)
        through += taken
        now += SECOND
    assert now - NOW <= 2600 * SECOND


def test_half_full_bucket_is_not_low():
    assert not is_low(FULL, DEFAULT_BUDGET)
    assert is_low(RetryBucket(24.9, NOW), DEFAULT_BUDGET)


def test_budget_per_hour_allows_exactly_that_many():
    terms = per_period(100, 3600)
    bucket = apply_tally(
        RetryBucket(100.0, NOW),
        DependencyTally(retried=100, first_ok=1000, retry_ok=100),
        terms,
        NOW,
    )
    assert bucket.tokens == 0
    assert available_retries(bucket, terms, NOW + 360 * SECOND) == 10

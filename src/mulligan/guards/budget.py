"""Retry budgets: a token bucket per dependency that first attempts fill and retries empty.

While failures are rare the budget allows several retries per job; when they are frequent it allows
a fraction of one. Time also refills the bucket, so that every retry starts eventually. An empty
bucket delays retries and never fails a job.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.guards.window import DependencyTally

DEFAULT_SIZE = 50.0
DEFAULT_RATE = 0.1  # retries per second


class BudgetConfig(NamedTuple):
    """How the bucket of a dependency is filled."""

    share: float = 0.1  # retries earned by each success of a first attempt
    rate: float = DEFAULT_RATE  # retries earned per second
    size: float = DEFAULT_SIZE
    refund: bool = True  # a retry that succeeds costs nothing


DEFAULT_BUDGET = BudgetConfig()


def per_period(retries: float, seconds: float) -> BudgetConfig:
    """Return a budget of `retries` per period that only time refills."""
    return BudgetConfig(0.0, retries / seconds, max(1.0, retries), refund=False)


class RetryBucket(NamedTuple):
    """Fill level of a budget at a time."""

    tokens: float
    at: Micros


def refill(bucket: RetryBucket, config: BudgetConfig, now: Micros) -> RetryBucket:
    """Add the tokens earned since the last refill; none if the clock went back."""
    earned = max(0, now - bucket.at) / SECOND * config.rate
    return RetryBucket(min(config.size, bucket.tokens + earned), now)


def apply_tally(
    bucket: RetryBucket, tally: DependencyTally, config: BudgetConfig, now: Micros
) -> RetryBucket:
    """Charge started retries and credit successes.

    Workers report claims about a second late, so the level may be negative for a while.
    """
    tokens = refill(bucket, config, now).tokens
    tokens += config.share * tally.first_ok - tally.retried
    if config.refund:
        tokens += tally.retry_ok
    return RetryBucket(min(config.size, max(-config.size, tokens)), now)


def is_low(bucket: RetryBucket, config: BudgetConfig) -> bool:
    """Return True if claims must count retries against this bucket."""
    return bucket.tokens < config.size / 2


def available_retries(bucket: RetryBucket, config: BudgetConfig, now: Micros) -> int:
    return max(0, math.floor(refill(bucket, config, now).tokens + 1e-9))


def next_retry_at(bucket: RetryBucket, config: BudgetConfig, now: Micros) -> Micros | None:
    """Return when the next retry may start, or None if it may start now."""
    tokens = refill(bucket, config, now).tokens
    if tokens >= 1:
        return None
    return now + round((1 - tokens) / config.rate * SECOND) + 1

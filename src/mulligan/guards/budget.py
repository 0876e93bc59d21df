"""How many retries a dependency bears: a bucket that first tries fill and retries empty.

Acts like "a few retries" while failures are rare and like "a fraction of a retry" when they are not. An empty bucket is
a slow lane: time alone fills it too, so that no retry waits for ever, and nothing ever fails for want of a token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mulligan.core.job import SECOND, Micros
from mulligan.guards.window import DependencyTally

SIZE = 50.0
TRICKLE = 0.1  # a second


class BudgetTerms(NamedTuple):
    """What feeds the bucket."""

    share: float = 0.1  # of a retry, for each success at the first try
    rate: float = TRICKLE  # retries, for each second
    size: float = SIZE
    returned: bool = True  # a retry that succeeds has cost nothing


DEFAULT = BudgetTerms()


def per_period(retries: float, seconds: float) -> BudgetTerms:
    """So many in each period, and nothing else feeds it."""
    return BudgetTerms(0.0, retries / seconds, max(1.0, retries), returned=False)


class Bucket(NamedTuple):
    tokens: float
    at: Micros


def filled(bucket: Bucket, terms: BudgetTerms, now: Micros) -> Bucket:
    """What the time since has brought; a clock that went back brings nothing."""
    tokens = bucket.tokens + max(0, now - bucket.at) / SECOND * terms.rate
    return Bucket(min(terms.size, tokens), now)


def observed(bucket: Bucket, seen: DependencyTally, terms: BudgetTerms, now: Micros) -> Bucket:
    """Claims of a second are told late, so it may stand below zero for a while."""
    fed = filled(bucket, terms, now).tokens - seen.retried + terms.share * seen.first_ok
    if terms.returned:
        fed += seen.retry_ok
    return Bucket(min(terms.size, max(-terms.size, fed)), now)


def low(bucket: Bucket, terms: BudgetTerms) -> bool:
    """Low enough that claims must count."""
    return bucket.tokens < terms.size / 2


def allows(bucket: Bucket, terms: BudgetTerms, now: Micros) -> int:
    return max(0, math.floor(filled(bucket, terms, now).tokens + 1e-9))


def next_token(bucket: Bucket, terms: BudgetTerms, now: Micros) -> Micros | None:
    """When the next retry may start; None: it may now."""
    tokens = filled(bucket, terms, now).tokens
    if tokens >= 1:
        return None
    return now + round((1 - tokens) / terms.rate * SECOND) + 1

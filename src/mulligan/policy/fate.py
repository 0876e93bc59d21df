"""What would become of a job whose every attempt failed of the same: when it is tried again, and why it ends."""

from __future__ import annotations

import math
from typing import NamedTuple

from mulligan.core.attempt import Failure
from mulligan.policy.backoff import bounds, nominal
from mulligan.policy.counts import NONE
from mulligan.policy.decide import backoff_of
from mulligan.policy.outlook import MOST_TRIES, Try
from mulligan.policy.reasons import max_age
from mulligan.policy.refuse import Charge, refused
from mulligan.policy.retry import EffectivePolicy
from mulligan.policy.terms import Terms, terms_of

SPREAD, SPREAD_MOST = 0.1, 60.0  # of a server's hint


class Fate(NamedTuple):
    """`tries` begins with the first attempt."""

    tries: tuple[Try, ...]
    end: str  # why there is no further one; empty: there are more than anybody reads

    @property
    def retried(self) -> bool:
        return len(self.tries) > 1


def fate(policy: EffectivePolicy, failure: Failure) -> Fate:
    """By the very rules that decide about a job."""
    terms, counts = terms_of(failure), NONE
    tries = [Try(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    while len(tries) < MOST_TRIES:
        counts = counts.plus(failure)
        charge = Charge(failure, terms, len(tries), counts)
        refusal = refused(policy, charge)
        if refusal is not None:
            return Fate(tuple(tries), refusal.text)
        found = _next(policy, charge, tries[-1])
        if policy.max_age is not None and found.at_earliest > policy.max_age:
            return Fate(tuple(tries), max_age(policy.max_age).text)
        tries.append(found)
    return Fate(tuple(tries), "")


def _next(policy: EffectivePolicy, charge: Charge, last: Try) -> Try:
    backoff, before = backoff_of(policy, charge)
    hint, spread = _hint(charge.failure, charge.terms)
    low, high = bounds(backoff, before)
    wait, low, high = max(nominal(backoff, before), hint), max(low, hint), max(high, hint) + spread
    return Try(last.attempt + 1, wait, low, high, last.at_earliest + low, last.at + wait, last.at_latest + high)


def _hint(failure: Failure, terms: Terms) -> tuple[float, float]:
    """How long the other side wants to be left alone, and by how much that is spread."""
    asked = failure.retry_after
    if asked is None or not math.isfinite(asked) or asked <= 0 or not terms.wait_for_hint:
        return 0.0, 0.0
    return asked, min(SPREAD * asked, SPREAD_MOST)
